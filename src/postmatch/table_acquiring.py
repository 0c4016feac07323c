"""What to measure next of a table's rows: frames in, ranked offers out."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from postmatch.acquisition import Acquirer, AmortisedGain, acquire, choose
from postmatch.acquisition_fitting import AcquisitionPlan, fit_amortised
from postmatch.conditioning import Conditional
from postmatch.cross_fitting import Fold
from postmatch.masks import MaskDistribution, Mixture, Pattern, UniformCount
from postmatch.mixture_gains import MixtureGain, gains_from, mixture_teacher
from postmatch.models import TableModel
from postmatch.nets.gains import TableGainNet
from postmatch.randomness import seeded
from postmatch.realised_gains import Judged, fit_realised
from postmatch.table_offers import Advice, Expected, Names, Ranked, TableOffers, table_offers
from postmatch.tables.overrides import several, unknown_name
from postmatch.threads import one_thread
from postmatch.training.plan import Plan, Progress

SAMPLES, DRAWS = 32, 128  # of what would be seen, and of z
ENDS = (0.05, 0.95)  # of an interval
_PATTERN_WEIGHT = 0.3  # how often the holes of another row are the mask


@final
@dataclass(frozen=True, eq=False)
class TablePath:
    """What was bought for each row, step by step.

    Args:
        offers: Names, one list per row.
        gains: What each was expected to tell, in nats.
        observed: What was known of x before each step and after the last,
            ``(steps + 1, rows, columns)``.
    """

    offers: list[list[str]]
    gains: list[list[float]]
    observed: Tensor


def table_acquirer(
    model: TableModel,
    *,
    target: Names = (),
    costs: Mapping[str, float] | None = None,
    groups: Mapping[str, Collection[str]] | None = None,
    cannot: Collection[str] = (),
    num_samples: int = SAMPLES,
    num_draws: int = DRAWS,
    seed: int = 0,
) -> "TableAcquirer":
    """Return what ranks offers for rows of a table, by draws from its model.

    Args:
        model: What ``fit_table`` or ``load`` returned.
        target: The column to be predicted, or several; none for all that z tells of a row.
        costs: Of columns and groups, by name; all others cost 1.
        groups: Columns that come together, by the name of the group.
        cannot: Columns that cannot be measured.
        num_samples: Draws of what would be seen.
        num_draws: Draws of z, an even number.
        seed: Of the noise that rows share.
    """
    offers = table_offers(model.table, target=target, costs=costs, groups=groups, cannot=cannot)
    gains = MixtureGain(model.model, offers.offers, offers.asked, num_samples, num_draws, seed)
    return TableAcquirer(model, offers, gains, seed)


@final
class TableAcquirer:
    """Tells what to measure next of rows with holes.

    A target's own cells are not looked at. Neither the order nor the company of rows changes an
    answer.

    Args:
        model: Of the table.
        offers: What can be measured.
        gains: What tells the expected gain of each.
        seed: Of the noise behind predictions.
    """

    def __init__(
        self, model: TableModel, offers: TableOffers, gains: Acquirer, seed: int = 0
    ) -> None:
        self.model, self.offers, self.gains, self.seed = model, offers, gains, seed

    def rank(self, data: Any) -> list[Advice]:
        """Return what to measure next of each row, the best per cost first."""
        x, observed = self.encode(data)
        gains, expected = self._answers(x, observed)
        return [self._ranked(row, cells) for row, cells in zip(gains, expected, strict=True)]

    def choose(self, data: Any, *, price: float = 0.0, money: float = math.inf) -> list[str | None]:
        """Return the best offer for each row, None where nothing is worth its price.

        Args:
            data: Rows with holes.
            price: Nats that a unit of cost must bring.
            money: What each row may spend.
        """
        x, observed = (part.to(self.model.device) for part in self.encode(data))
        with one_thread(), torch.inference_mode():
            left = x.new_full((len(x),), money)
            best = choose(self.gains, x, observed, price=price, money=left).offer.tolist()
        return [None if offer < 0 else self.offers.names[offer] for offer in best]

    def acquire(
        self,
        data: Any,
        num_steps: int,
        *,
        known: Collection[str] = (),
        budget: float = math.inf,
        price: float = -math.inf,
    ) -> TablePath:
        """Buy for whole rows what is best, as if all but some columns of them were hidden.

        Cells that the rows lack cannot be bought: what would be bought there is, and shows nothing.

        Args:
            data: Rows; of what is hidden, only what is bought is ever looked at.
            num_steps: How many offers are bought, at most.
            known: Columns that are known at the start.
            budget: What a row may spend in all.
            price: Nats that a unit of cost must bring.
        """
        x, there = (part.to(self.model.device) for part in self.encode(data))
        names = [column.name for column in self.model.table.modelled]
        for name in several("known", known):
            if name not in names:
                raise ValueError(f"known: {unknown_name(name, names)}")
        at_start = torch.tensor([name in known for name in names], device=x.device)
        path = acquire(
            _OfThere(self.gains, there),
            x,
            at_start.expand_as(there),
            num_steps,
            budget=budget,
            price=price,
        )
        bought = [[self.offers.names[i] for i in row if i >= 0] for row in path.offers.tolist()]
        gains = [row[: len(own)] for row, own in zip(path.gains.tolist(), bought, strict=True)]
        return TablePath(bought, gains, (path.observed & there).cpu())

    def fit(
        self,
        data: Any,
        *,
        folds: Sequence[Fold] = (),
        realised: bool = True,
        most_known: float = 1.0,
        steps: int = 1_000,
        seed: int = 0,
        show: Callable[[Progress], None] | None = None,
    ) -> "TableAcquirer":
        """Return the same with one network that tells all gains at once, in microseconds.

        Args:
            data: Rows to learn from. With a target and without folds better others than those that
                the model was fitted on: it knows these too well, and so seems to need less.
            folds: What ``cross_fitted`` returned for these rows: each is then judged by a model
                that has not seen it, so that the model's own rows teach what is worth measuring.
            realised: With a target, learn what measurements really told of it in these rows, so
                that what misleads the model counts for less; otherwise what the model expects.
            most_known: The largest part of the columns that rows will show when it is asked.
            steps: Of training.
            seed: Of weights, batches, masks and draws.
            show: Told of the progress now and then.
        """
        x, there = (t.to(self.model.device) for t in self.model.table.encode(data))
        asked, offers = self.offers.asked, self.offers.offers
        seen = there if asked is None else there & ~asked.to(there.device)
        if not seen.any():
            raise ValueError("data has no cell to learn from")
        if folds and (asked is None or not realised):
            raise ValueError("folds are for what was really told of a target, and change no other")
        parts = self._judged(x, there, folds)
        masks = _masks(seen, most_known)
        plan = Plan(steps, learning_rate=3e-3, warmup=min(100, steps // 10 + 1), average=0.99)
        told: dict[str, Any] = {"seed": seed, "show": show}
        every = len(offers.costs)
        with seeded(seed), one_thread():
            net = TableGainNet(self.model.table.specs, every).to(x.device)
            gains, model = AmortisedGain(net, offers), self.model.model
            if realised and asked is not None:
                walk = max(1, round(most_known * every))
                # Twice the steps for half the rows: what rows told is learned from again and again.
                plan = dataclasses.replace(plan, steps=2 * steps)
                how = AcquisitionPlan(plan, 16, every, 16, walking=0.5, walk_steps=walk)
                fit_realised(gains, parts, asked, masks, how, **told)
            else:
                how = AcquisitionPlan(plan, batch_size=32, num_offers=every, num_samples=8)
                told |= {"teacher": mixture_teacher(asked), "available": seen}
                fit_amortised(gains, model, x, masks, how, **told)
        return TableAcquirer(self.model, self.offers, gains.eval(), self.seed)

    def _judged(self, x: Tensor, there: Tensor, folds: Sequence[Fold]) -> list[Judged]:
        """Return which model judges which rows."""
        if not folds:
            return [Judged(self.model.model, x, there)]
        if any(fold.model.table.columns != self.model.table.columns for fold in folds):
            raise ValueError("folds must share the table of the model, or their units differ")
        places = torch.cat([fold.rows for fold in folds])
        if not torch.equal(places.sort().values, torch.arange(len(x))):
            raise ValueError(f"folds must hold each of the {len(x)} rows of data once")
        at = [fold.rows.to(x.device) for fold in folds]
        models = [fold.model.to(x.device).model for fold in folds]
        return [Judged(each, x[rows], there[rows]) for each, rows in zip(models, at, strict=True)]

    def encode(self, data: Any) -> tuple[Tensor, Tensor]:
        """Return x and observed, the target hidden."""
        x, observed = self.model.table.encode(data, optional=self.offers.target)
        return x, observed if self.offers.asked is None else observed & ~self.offers.asked

    def _ranked(self, gains: Tensor, cells: Sequence[Expected]) -> Advice:
        hidden = {cell.column.name: cell for cell in cells}
        costs = self.offers.offers.costs.tolist()
        ranked = [
            Ranked(name, gain, cost, tuple(hidden[c] for c in columns if c in hidden))
            for name, columns, gain, cost in zip(
                self.offers.names, self.offers.columns, gains.tolist(), costs, strict=True
            )
            if gain > -math.inf
        ]
        target = tuple(hidden[name] for name in self.offers.target)
        return Advice(tuple(sorted(ranked, key=lambda offer: -offer.value)), target)

    def _answers(self, x: Tensor, observed: Tensor) -> tuple[Tensor, list[list[Expected]]]:
        """Return gains, and what each hidden cell is expected to hold, row by row."""
        best, sure, ends = x.clone(), torch.ones_like(x), x.repeat(2, 1, 1)
        gains = x.new_full((len(x), len(self.offers.names)), -math.inf)
        offers, sampled = self.offers.offers, isinstance(self.gains, MixtureGain)
        draws_of = self.gains if isinstance(self.gains, MixtureGain) else self._sampler()

        def fill(rows: Tensor, answer: Conditional) -> None:
            draws = draws_of.draws(answer)  # one pass for gains and predictions
            told = (
                gains_from(answer, offers, self.offers.asked, draws)
                if sampled
                else self.gains.expected(answer.x, answer.observed)
            )
            gains[rows] = told.masked_fill(~offers.open(answer.observed), -math.inf).cpu()
            point = torch.where(answer.observed, answer.x, answer.vae.point(draws.decoded))
            best[rows], sure[rows] = point.cpu(), draws.decoded.log_prob(point).exp().mean(0).cpu()
            levels = draws.drawn.new_tensor(ENDS)
            ends[:, rows] = torch.quantile(draws.drawn, levels, dim=0).cpu()

        self.model.rows.ask(x, observed, draws_of.num_draws * draws_of.num_samples // 8, fill)
        return gains, self._cells(observed, best, sure, ends)

    def _sampler(self) -> MixtureGain:
        return MixtureGain(self.model.model, self.offers.offers, None, 2, DRAWS, self.seed)

    def _cells(
        self, observed: Tensor, best: Tensor, sure: Tensor, ends: Tensor
    ) -> list[list[Expected]]:
        columns = self.model.table.modelled
        points, lows, highs = (self.model.table.values(each) for each in (best, *ends))
        found: list[list[Expected]] = [[] for _ in best]
        for row, place in (~observed).nonzero().tolist():
            column, value = columns[place], points[place][row]
            if column.is_number:
                low, high = float(lows[place][row]), float(highs[place][row])
                found[row].append(Expected(column, value, low, high))
            else:
                chance = float(sure[row, place])
                found[row].append(Expected(column, value, probability=chance))
        return found


def _masks(there: Tensor, most_known: float) -> MaskDistribution:
    """Return what is observed in training: some cells, or those that another row shows."""
    some = UniformCount(0.0, most_known)
    if most_known < 1.0:  # which the holes of other rows know nothing of
        return some
    return Mixture((some, Pattern(there)), (1.0 - _PATTERN_WEIGHT, _PATTERN_WEIGHT))


@final
class _OfThere(Acquirer):
    """An acquirer that is shown only what rows hold of what was bought."""

    def __init__(self, gains: Acquirer, there: Tensor) -> None:
        super().__init__(gains.offers)
        self.gains, self.there = gains, there

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:
        """See the base."""
        return self.gains.expected(x, observed & self.there)
