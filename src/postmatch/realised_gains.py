"""Training of a network on what measurements really told of a target, in rows that hold both."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, final

import torch
from torch import Tensor

from postmatch.acquisition import AmortisedGain
from postmatch.acquisition_fitting import AcquisitionPlan
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.mixed import MixedColumns
from postmatch.distributions.noise import from_noise, noise_size
from postmatch.masks import MaskDistribution
from postmatch.mixture_gains import check_target, moved_noise
from postmatch.nets.gains import TableGainNet
from postmatch.partial import MaskedEncoder
from postmatch.randomness import seeded
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Progress, Report

_TINY = 1e-6
_ASTRAY = 0.2  # how often a step is taken at random, to see where others lead
_IMAGINED = 4_096  # rows
_REMEMBERED, _RECALLED = 65_536, 512  # rows in memory, and those that a step learns from
_KNOWN = 3  # cells that are known before a walk, at most


class Told(NamedTuple):
    """What measurements told of a target, each ``(more, batch)``.

    Args:
        expected: What the model expects once the measurement is seen; it varies little.
        real: By the target's true value. If the model is right, both have the same mean.
    """

    expected: Tensor
    real: Tensor


class Judged(NamedTuple):
    """Rows of a table, and the model that tells what measurements told of them.

    Args:
        model: A matched VAE, best one that was fitted on other rows. It stays as it is.
        rows: On the device to train on, in units that are the same for all models.
        available: What they hold.
    """

    model: MatchedVAE
    rows: Tensor
    available: Tensor


def fit_realised(
    acquirer: AmortisedGain,
    parts: Sequence[Judged],
    target: Tensor,
    masks: MaskDistribution,
    how: AcquisitionPlan,
    *,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    r"""Regress a network on how much better a target was told after each measurement.

    .. math:: \mathbb{E} \left[ f_i(x_o) - e_i \right]^2
        + \left[ c_i f_i(x_o) + h_i(o) - r_i \right]^2

    over rows of the table, where :math:`r_i` is what seeing :math:`x_i` really told, and
    :math:`e_i` what the model makes of it once it is seen; the gain is :math:`c_i f_i + h_i`. Of
    levels these are :math:`\log p(x_t \mid x_o, x_i) - \log p(x_t \mid x_o)` and its mean under
    the first. Of numbers they are half of what the squared error, or the variance, has lost, as a
    part of the column's variance: no more nats than a Gaussian loses of its entropy.

    If the model is right, :math:`c` is one and :math:`h` is zero. Where it errs, what misleads it
    counts for less; since errors of single rows are noise for the most part, this may depend on the
    columns that are seen, and not on their values. What the model expects is learned from rows that
    it imagines too, of which there are as many as one likes.

    Args:
        acquirer: What is trained, with a :class:`TableGainNet`.
        parts: Rows with what predicts them: one model for all of them, or several, each for those
            that it was not fitted on. A row counts for as much in any part, but for rounding.
        target: Columns that are asked about, bool, ``(columns,)``.
        masks: What is observed in training.
        how: How long; its samples are draws of z behind each prediction. Rows that walk knew up to
            three cells and have taken any number of steps, some of them at random.
        seed: Of batches, masks and draws.
        show: Told of the progress.
    """
    check_target(acquirer.offers, target)
    net = acquirer.net
    assert isinstance(net, TableGainNet)
    device = parts[0].rows.device
    generator = torch.Generator(device).manual_seed(seed)
    reveals, target = acquirer.offers.reveals.to(device), target.to(device)
    sources = [_source(part, target, seed) for part in parts if _holds(part, target).any()]
    if not sources:
        raise ValueError("rows must hold the target, or nothing can be learned of it")
    memory = _Memory(len(reveals), len(target), device)
    sizes = _shares(how.batch_size, [len(source.rows) for source in sources])

    def look(source: _Source, size: int) -> None:
        x, there, is_real = _drawn(source, size, generator)
        observed = _observed(acquirer, x, there & ~target, masks, how, generator)
        picked = torch.randperm(len(reveals), generator=generator, device=device)
        picked = picked[: how.num_offers]
        new = reveals[picked]  # (offers, columns)
        shown = torch.cat([observed[None], observed | new[:, None]])  # (1 + offers, batch, columns)
        with torch.no_grad():
            told = _told(source.model, x, shown, target, how.num_samples, generator)
        counted = (new & ~observed[:, None]).any(2) & (~new | there[:, None]).all(2)
        seen = MaskedEncoder.side_by_side(x, observed)
        memory.keep(seen, picked, told, counted.to(x.dtype), is_real)

    def loss(_: Tensor) -> Losses:
        for source, size in zip(sources, sizes, strict=True):
            look(source, size)
        return {"gain": _error(net, *memory.some(generator))}

    return train(acquirer, loss, how.plan, generators=[generator], show=show)


def _error(
    net: TableGainNet, seen: Tensor, expected: Tensor, real: Tensor, counted: Tensor, known: Tensor
) -> Tensor:
    """Return the mean square of what the network misses; arguments as in memory."""
    by_values, by_mask = net.parts(seen)
    gain = net.trust * by_values.detach() + by_mask
    error = (by_values - expected).square() + known * (gain - real).square()
    return (counted * error).sum() / counted.sum().clamp_min(1.0)


@final
class _Memory:
    """What the latest measurements told: each took hundreds of predictions, so is used often.

    Args:
        num_offers: Things that can be measured.
        num_columns: Of the table.
        device: Where.
    """

    def __init__(self, num_offers: int, num_columns: int, device: torch.device) -> None:
        sizes = (2 * num_columns, num_offers, num_offers, num_offers, 1)
        self.parts = [torch.zeros(_REMEMBERED, size, device=device) for size in sizes]
        self.count = torch.zeros((), dtype=torch.long, device=device)

    def keep(
        self, seen: Tensor, picked: Tensor, told: Told, counted: Tensor, is_real: Tensor
    ) -> None:
        """Remember rows in the place of the oldest.

        Args:
            seen: Values and mask side by side, ``(batch, 2 * columns)``.
            picked: Which offers were tried.
            told: What they told.
            counted: 1 where they could be tried, ``(batch, offers)``, otherwise 0.
            is_real: 1 for rows of the table, 0 for imagined ones.
        """
        at = (self.count + torch.arange(len(seen), device=seen.device)) % _REMEMBERED
        self.count.add_(len(seen))
        row = at[:, None]
        self.parts[0][at], self.parts[4][at] = seen, is_real[:, None]
        for part in self.parts[1:4]:
            part[at] = 0.0
        for part, value in zip(self.parts[1:4], (*(t.mT for t in told), counted), strict=True):
            part[row, picked] = value

    def some(self, generator: torch.Generator) -> list[Tensor]:
        """Return some of what is remembered, in the order of :func:`_error`."""
        filled = self.count.clamp(max=_REMEMBERED)
        drawn = torch.rand(_RECALLED, generator=generator, device=generator.device)
        at = (drawn * filled).long()
        return [part[at] for part in self.parts]


class _Source(NamedTuple):
    """Rows to learn from: those of a table, what they hold, and complete ones of their model."""

    model: MatchedVAE
    rows: Tensor
    available: Tensor
    imagined: Tensor


class _Batch(NamedTuple):
    """Rows, what they hold, and 1 for those of the table, 0 for imagined ones."""

    x: Tensor
    there: Tensor
    is_real: Tensor


def _holds(part: Judged, target: Tensor) -> Tensor:
    """Return which rows hold the target."""
    return part.available[:, target].all(1)


def _source(part: Judged, target: Tensor, seed: int) -> _Source:
    model, told = part.model.eval().requires_grad_(False), _holds(part, target)
    imagined = _imagined(model, part.rows[:1], seed)
    return _Source(model, part.rows[told], part.available[told], imagined)


def _shares(size: int, counts: Sequence[int]) -> list[int]:
    """Return how many rows of a batch are drawn from each of so many, at least one."""
    ends = [round(size * end / sum(counts)) for end in (0, *accumulate(counts))]
    return [max(1, end - start) for start, end in pairwise(ends)]


def _drawn(source: _Source, size: int, generator: torch.Generator) -> _Batch:
    """Return so many rows of the table, and half as many imagined ones, mixed."""

    def some(count: int, size: int) -> Tensor:
        return torch.randint(count, (size,), generator=generator, device=generator.device)

    row = some(len(source.rows), size)
    more = source.imagined[some(len(source.imagined), size // 2)]
    x = torch.cat([source.rows[row], more])
    there = torch.cat([source.available[row], torch.ones_like(more, dtype=torch.bool)])
    order = torch.randperm(len(x), generator=generator, device=generator.device)
    return _Batch(x[order], there[order], (order < size).to(x.dtype))


@torch.no_grad()
def _imagined(model: MatchedVAE, like: Tensor, seed: int) -> Tensor:
    """Return rows as the model draws them if nothing is known, ``(rows, columns)``."""
    with seeded(seed):
        return model.given(like, torch.zeros_like(like, dtype=torch.bool)).sample(_IMAGINED)[:, 0]


def _few(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Return a few random columns of each row, or none."""
    device = generator.device
    rank = torch.rand(shape, generator=generator, device=device).argsort(1).argsort(1)
    count = torch.randint(_KNOWN + 1, (shape[0], 1), generator=generator, device=device)
    return rank < count


def _observed(
    acquirer: AmortisedGain,
    x: Tensor,
    there: Tensor,
    masks: MaskDistribution,
    how: AcquisitionPlan,
    generator: torch.Generator,
) -> Tensor:
    """Return what is observed of cells that are there: some have walked, of others see masks."""
    observed = masks.sample(there.shape, generator) & there
    walking = round(how.walking * len(x))
    few = _few(there.shape, generator) & there
    walked = _walked(acquirer, x[:walking], few[:walking], there[:walking], how, generator)
    return torch.cat([walked, observed[walking:]])


@torch.no_grad()
def _walked(
    acquirer: AmortisedGain,
    x: Tensor,
    known: Tensor,
    there: Tensor,
    how: AcquisitionPlan,
    generator: torch.Generator,
) -> Tensor:
    """Return what is observed where the network's own choices led rows that knew a little."""
    reveals, device = acquirer.offers.reveals.to(x.device), x.device
    bought = known
    steps = torch.randint(how.walk_steps + 1, (len(x),), generator=generator, device=device)
    for step in range(how.walk_steps):
        gains = acquirer(x, bought & there)
        gains = gains.masked_fill(~acquirer.offers.open(bought), -torch.inf)
        noise = torch.rand(gains.shape, generator=generator, device=device)
        astray = torch.rand(len(x), 1, generator=generator, device=device) < _ASTRAY
        best = torch.where(astray, noise.masked_fill(gains == -torch.inf, -1.0), gains).argmax(1)
        bought = bought | (reveals[best] & (step < steps)[:, None])
    return bought & there


def _told(
    model: MatchedVAE,
    x: Tensor,
    shown: Tensor,
    target: Tensor,
    num_samples: int,
    generator: torch.Generator,
) -> Told:
    """Return what was told of the target by all that is shown after the first.

    Args:
        model: Predicts.
        x: Rows, ``(batch, columns)``.
        shown: What is shown of them, ``(1 + more, batch, columns)``; all of it with the same noise.
        target: Which cells are predicted.
        num_samples: Draws of z.
        generator: Of the noise.
    """
    count, batch = shown.shape[:2]
    fresh = moved_noise((num_samples,), batch, generator)

    def noise(size: int) -> Tensor:
        return fresh(size).repeat(1, count, 1)

    given = model.given(x.repeat(count, 1), shown.flatten(0, 1))
    (decoded,) = given.marginals_from(noise, (num_samples,))
    assert isinstance(decoded, MixedColumns)
    drawn = from_noise(decoded, noise(noise_size(decoded) or 0))
    parts = []
    for column in target.nonzero()[:, 0].tolist():
        truth = x[:, column]
        if decoded.layout.specs[column].kind == "number":
            variance = drawn[..., column].var(0).view(count, batch)
            mean = decoded.mean[..., column].mean(0)  # as it is predicted, without the draws' noise
            parts.append(told_of_number(variance, mean.view(count, batch), truth))
        else:
            chance = decoded.probs(column).mean(0).clamp_min(_TINY)
            parts.append(told_of_level(chance.view(count, batch, -1), truth))
    expected, real = (torch.stack(each).sum(0) for each in zip(*parts, strict=True))
    return Told(expected, real)


def told_of_level(chance: Tensor, truth: Tensor) -> Told:
    r"""Return by how much what is seen made the true level more probable.

    Expected is :math:`\mathrm{KL}(p(x_t \mid x_i, x_o) \,\|\, p(x_t \mid x_o))`.

    Args:
        chance: Of the levels before and after more is seen, ``(1 + more, batch, levels)``.
        truth: The codes of the levels, ``(batch,)``.
    """
    log_ratio = chance[1:].log() - chance[0].log()  # (more, batch, levels)
    level = truth.long()[None, :, None].expand(len(log_ratio), -1, 1)
    return Told((chance[1:] * log_ratio).sum(-1), log_ratio.gather(-1, level)[..., 0])


def told_of_number(variance: Tensor, mean: Tensor, truth: Tensor) -> Told:
    """Return half of what the squared error lost by what is seen.

    Expected is the same of the variance. For a Gaussian, -log(1 - part) / 2 nats are told, if
    a part of its variance is lost: half of that part at least. Parts are not of the row's own
    variance, which may be small, but of the column's, which is 1 in a model's units; so all rows
    count alike where errors are averaged.

    Args:
        variance: Before and after more is seen, ``(1 + more, batch)``.
        mean: Likewise.
        truth: The numbers, ``(batch,)``.
    """
    error = (truth - mean).square()
    halves = ((each[0] - each[1:]) / 2.0 for each in (variance, error))
    return Told(*halves)
