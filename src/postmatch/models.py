"""A table with its model: frames in, frames out."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from postmatch import __version__
from postmatch.answers import Prediction, prediction_of, summary_of
from postmatch.conditioning import Conditional, MatchedVAE
from postmatch.fitting import fit_matched
from postmatch.randomness import seeded
from postmatch.resuming import check_folder, keep_options
from postmatch.rows import INTERVAL_SAMPLES, POINT_SAMPLES, RowAnswers
from postmatch.tables import Column, Table
from postmatch.tables.overrides import several, unknown_name
from postmatch.tables.table import Ordered
from postmatch.tabular import TableModelConfig, plan_for, table_model
from postmatch.threads import one_thread
from postmatch.training import parallel
from postmatch.training.plan import Plan, Progress, Report

Array = NDArray[Any]
Floats = NDArray[np.float64]


def fit_table(
    data: Any,
    *,
    categorical: Collection[str] = (),
    ordered: Ordered = (),
    numeric: Collection[str] = (),
    ignore: Collection[str] = (),
    missing: Collection[str] = (),
    config: TableModelConfig | None = None,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    quick: bool = False,
    seed: int = 0,
    device: str | torch.device = "auto",
    checkpoints: str | Path | None = None,
    resume: bool = False,
    show: Callable[[Progress], None] | None = None,
) -> "TableModel":
    """Learn a table's columns and train a model on its rows, holes and all.

    Args:
        data: pandas, polars or pyarrow, or an array whose columns are then x0, x1, ...
        categorical: Columns of levels without order.
        ordered: Columns of levels with an order: as given, or else by the numbers in them.
        numeric: Columns of numbers, even if they look like identifiers or levels.
        ignore: Columns to pass through.
        missing: Texts, also of numbers, that mean a missing cell: ``["-999"]``.
        config: Sizes of the model, by default chosen from the table's.
        max_steps: Train for so many steps at most, in place of the default.
        max_seconds: Train no longer than this.
        quick: Train for seconds rather than minutes, 20 of them at most.
        seed: The same seed gives the same model, on the same machine, unless time ran out.
        device: Where to train and answer; ``auto`` is a GPU if there is one.
        checkpoints: A folder to save the training's state to every minute. It is yours to remove,
            once the model is saved.
        resume: Go on from what that folder holds; otherwise it must hold nothing.
        show: Told of the progress now and then: what ``progress_bar`` or ``tensorboard_log`` of
            ``postmatch.training`` yields, or a function of yours.
    """
    folder = None if checkpoints is None else Path(checkpoints)
    first = parallel.rank() == 0  # of several processes, the one that writes
    if first:
        check_folder(folder, resume=resume)
    columns: dict[str, Any] = {
        "categorical": categorical,
        "ordered": ordered,
        "numeric": numeric,
        "ignore": ignore,
        "missing": missing,
    }
    table = Table.fit(data, **columns)
    x, observed = (part.to(device_of(device)) for part in learnable(table, data))
    limits: dict[str, Any] = {"max_steps": max_steps, "max_seconds": max_seconds}
    chosen, plan, options = plan_for(table.specs, len(x), quick=quick)
    plan = _limited(plan, **limits)
    if folder is not None and first:
        asked = {**columns, **limits, "quick": quick, "config": config, "seed": seed}
        keep_options(folder, asked, resume=resume)
    config = chosen if config is None else config
    workers = torch.get_num_threads() if x.device.type == "cpu" else 1
    with seeded(seed), one_thread():
        model = table_model(table.specs, config).to(x.device)
        report = fit_matched(
            model,
            x,
            observed,
            plan,
            options,
            seed=seed,
            workers=workers,
            checkpoints=folder,
            show=show,
        )
    facts = {"rows": len(x), "columns": len(table.columns), "seed": seed, **_facts(report)}
    facts |= {"members": config.num_members, "notes": list(table.notes)}
    return TableModel(table, model, config, facts)


def learnable(table: Table, data: Any) -> tuple[Tensor, Tensor]:
    """Return x and observed, or raise if there is nothing to learn from."""
    if not table.modelled:
        raise ValueError(f"the table has no column to model: {'; '.join(table.notes)}")
    x, observed = table.encode(data)
    if not observed.any():
        raise ValueError("the table has no observed cell to learn from")
    return x, observed


def device_of(name: str | torch.device) -> torch.device:
    """Return the device of this name; ``auto`` is a GPU if there is one."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device("cuda" if there["cuda"] else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be auto, cpu, cuda or mps, got {name!r}") from None
    if not there.get(device.type, True):
        raise ValueError(f"device {device} was asked for, but torch finds none here")
    return device


@final
class TableModel:
    """A fitted table and the model of its rows.

    Rows are answered one by one: neither their order, nor their company, nor how they are cut into
    chunks changes an answer. Answers change nothing in the model, so threads may share it.

    Args:
        table: What was learned of the columns.
        model: Trained on the table's x.
        config: The sizes of the model.
        facts: How it was made, as plain JSON.
    """

    def __init__(
        self, table: Table, model: MatchedVAE, config: TableModelConfig, facts: Mapping[str, Any]
    ) -> None:
        self.table, self.model, self.config = table, model.eval(), config
        self.facts = dict(facts)
        self.rows = RowAnswers(self.model, table.specs, config)

    @property
    def device(self) -> torch.device:
        """Where the model answers."""
        return self.rows.device

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device and return it."""
        self.model.to(device_of(device))
        return self

    def impute(self, data: Any, *, num_samples: int = POINT_SAMPLES, seed: int = 0) -> Any:
        """Return the same frame with its holes filled: by means, or by the most probable levels."""
        x, observed = self.table.encode(data)
        return self.table.decode(self.rows.points(x, observed, num_samples, seed), data)

    def sample(self, data: Any, num_samples: int, *, seed: int = 0, offset: int = 0) -> list[Any]:
        """Return completed frames, each with a joint draw of all the holes of every row.

        Rows are drawn independently, equal ones too.

        Args:
            data: Rows with holes.
            num_samples: How many frames; asking for more changes none of the first ones.
            seed: The same seed gives the same draws.
            offset: Which row of a longer table the first one is: chunks get the draws of the whole.
        """
        if num_samples < 1 or offset < 0:
            raise ValueError(
                f"num_samples must be at least 1 and offset at least 0, got {num_samples}, {offset}"
            )
        x, observed = self.table.encode(data)
        drawn = self.rows.draws(x, observed, num_samples, seed, offset)
        return [self.table.decode(each, data) for each in drawn]

    def quantiles(
        self,
        data: Any,
        levels: Sequence[float],
        *,
        num_samples: int = INTERVAL_SAMPLES,
        seed: int = 0,
    ) -> dict[float, dict[str, Array]]:
        """Return, per level, a quantile of every modelled column's own distribution in each row.

        In the user's units, as ``Table.values`` has them: dates are days since 1970. Categories
        have no order, hence no quantiles: the most probable one stands in. Cells that are there
        have their own value.
        """
        x, observed = self.table.encode(data)
        names = [column.name for column in self.table.modelled]
        found = self.rows.quantiles(x, observed, levels, num_samples, seed)
        return {
            level: dict(zip(names, self.table.values(at), strict=True))
            for level, at in zip(levels, found, strict=True)
        }

    def impute_quantiles(
        self,
        data: Any,
        levels: Sequence[float],
        *,
        num_samples: int = INTERVAL_SAMPLES,
        seed: int = 0,
    ) -> dict[float, Any]:
        """Return, per level, the same frame with its holes filled by that quantile."""
        x, observed = self.table.encode(data)
        found = self.rows.quantiles(x, observed, levels, num_samples, seed)
        return {level: self.table.decode(at, data) for level, at in zip(levels, found, strict=True)}

    def summarise(
        self,
        data: Any,
        levels: Sequence[float] = (0.05, 0.95),
        *,
        num_samples: int = POINT_SAMPLES,
        seed: int = 0,
        offset: int = 0,
    ) -> pa.Table:
        """Return a pyarrow table with one row per hole.

        Its columns are ``row``, ``column``, ``mean``, ``q05``, ``q95`` and ``probability``. Rows
        count from ``offset``. The mean is what ``impute`` fills in, but not rounded. Of levels,
        ``mean`` is the most probable one and ``probability`` its probability, which is null for
        numbers; categories have no quantiles. The cells of ``mean`` and of the quantiles are
        numbers if all modelled columns are, otherwise text.

        Args:
            data: Rows with holes.
            levels: Of the quantiles.
            num_samples: Draws per row behind a mean, as in ``impute``; behind a quantile they are
                as many as in ``quantiles`` at least.
            seed: Of the noise that rows share.
            offset: The number of the first row.
        """
        x, observed = self.table.encode(data)
        holes = self.table.holes(data)
        point = self.rows.points(x, observed, num_samples, seed)
        probability = self.rows.probabilities(x, observed, point, num_samples, seed)
        most = max(num_samples, INTERVAL_SAMPLES)
        quantiles = self.rows.quantiles(x, observed, levels, most, seed)
        at = dict(zip(levels, quantiles, strict=True))
        return summary_of(self.table, holes, point, probability, at, offset)

    def score(
        self,
        data: Any,
        *,
        given: Collection[str] | None = None,
        num_samples: int = 100,
        seed: int = 0,
        precise: bool = False,
    ) -> Floats:
        r"""Return one log-likelihood per row, in the user's units, bounded from below.

        That of all cells that are there, :math:`\log p(x_o)`, or of those of other columns given
        the cells of some: a density for continuous numbers, a mass for the others. Rows without a
        cell to score get 0.

        Args:
            data: Rows, holes allowed.
            given: Columns whose cells are known rather than scored.
            num_samples: Draws per row, an even number; more of them tighten the bound.
            seed: Of the noise that rows share.
            precise: Compute in double precision, at half the speed: not even the last digits then
                tell what rows came along.
        """
        x, observed = self.table.encode(data)
        seen = observed & self._among(given or ())
        scored = observed & ~seen
        total = self.rows.log_prob(x, seen, scored, num_samples, seed, precise=precise)
        units = (scored * self.table.log_jacobian).sum(1, dtype=torch.float64)
        scores: Floats = (total + units).numpy()
        return scores

    def unlikely(self, data: Any, most: int = 10, *, seed: int = 0) -> list[tuple[int, float]]:
        """Return the rows with the lowest scores, from 0, worst first, each with its score."""
        scores = self.score(data, seed=seed)
        return [(int(row), float(scores[row])) for row in np.argsort(scores)[:most]]

    def predict(
        self, data: Any, target: str, *, num_samples: int = POINT_SAMPLES, seed: int = 0
    ) -> Prediction:
        """Return the distribution of one column in each row, given whatever else is there.

        The column's own cells are not looked at; it may be absent.

        Args:
            data: Rows, holes allowed.
            target: The name of the column.
            num_samples: Draws per row behind a mean or a probability; behind a quantile they are
                as many as in ``quantiles`` at least.
            seed: Of the noise that rows share.
        """
        index, column = self._modelled(target)
        x, observed = self.table.encode(data, optional=(target,))
        observed[:, index] = False
        best = self.rows.points(x, observed, num_samples, seed)[:, index]
        if not column.is_number:
            chances = self.rows.chances(x, observed, index, num_samples, seed)
            return prediction_of(column, best, chances=chances)
        most = max(num_samples, INTERVAL_SAMPLES)
        order = torch.linspace(0.0, 1.0, most).tolist()  # the levels of sorted draws
        draws = torch.empty(most, len(x))

        def fill(rows: Tensor, answer: Conditional) -> None:
            draws[:, rows] = answer.quantiles(order, most, seed)[..., index].cpu()

        self.rows.ask(x, observed, most, fill)
        return prediction_of(column, best, draws)

    def draw(self, rows: int, given: Mapping[str, str] | None = None, *, seed: int = 0) -> Any:
        """Return new rows as a pyarrow table of text, from the joint distribution or given values.

        Columns that are not modelled stay empty.
        """
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        return self.sample(self.table.frame_from([given or {}] * rows), 1, seed=seed)[0]

    def _among(self, names: Collection[str]) -> Tensor:
        """Return which columns of x have these names."""
        wanted = {self._modelled(name)[1].name for name in several("given", names)}
        return torch.tensor([column.name in wanted for column in self.table.modelled])

    def _modelled(self, name: str) -> tuple[int, Column]:
        for index, column in enumerate(self.table.modelled):
            if column.name == name:
                return index, column
        if name in self.table.names:
            raise ValueError(f"column {name!r} is not modelled")
        raise ValueError(unknown_name(name, self.table.names))


def _limited(plan: Plan, *, max_steps: int | None, max_seconds: float | None) -> Plan:
    for name, limit in (("max_steps", max_steps), ("max_seconds", max_seconds)):
        if limit is not None and not limit > 0:
            raise ValueError(f"{name} must be positive, got {limit}")
    if max_steps is not None:
        plan = dataclasses.replace(plan, steps=max_steps)
    if max_seconds is not None:
        plan = dataclasses.replace(plan, max_seconds=max_seconds)
    return plan


def _facts(report: Report) -> dict[str, Any]:
    held_out = -report.best_validation
    return {
        "steps": report.steps,
        "seconds": round(report.seconds, 3),
        "best_step": report.best_step,
        "held_out_log_prob": held_out if math.isfinite(held_out) else None,
        "stopped_by": report.stopped_by,
        "version": __version__,
    }
