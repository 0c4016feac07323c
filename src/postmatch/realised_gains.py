"""Training of a network on what measurements really told of a target, in rows that hold both."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from postmatch.acquisition import AmortisedGain
from postmatch.acquisition_fitting import AcquisitionPlan
from postmatch.conditioning import MatchedVAE
from postmatch.masks import MaskDistribution
from postmatch.mixture_gains import check_target
from postmatch.nets.gains import TableGainNet
from postmatch.partial import MaskedEncoder
from postmatch.randomness import seeded
from postmatch.told_gains import Memory, Recalled, told_by
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Progress, Report

_ASTRAY = 0.2  # how often a step is taken at random, to see where others lead
_IMAGINED = 4_096  # rows
_KNOWN = 3  # cells that are known before a walk, at most
_WEIGHING, _WEIGHING_SHARE = 2.0, 0.25  # rows by which it is told how far to trust the others
_MANY = 4_000  # rows, from which single ones teach more than noise


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

    .. math:: \mathbb{E} \left[ f_i(x_o) - \frac{e_i}{\ell(o)} \right]^2
        + \left[ c_i f_i(x_o) + h_i(o) - \frac{r_i}{\ell(o)} \right]^2

    over rows of the table, where :math:`r_i` is what seeing :math:`x_i` really told, :math:`e_i`
    what the model makes of it once it is seen, and :math:`\ell` what there was to be told, on
    average over rows in which the same was seen; the gain is :math:`\ell (c_i f_i + h_i)`. Of
    levels these are :math:`\log p(x_t \mid x_o, x_i) - \log p(x_t \mid x_o)`, its mean under
    the first, and :math:`-\log p(x_t \mid x_o)`. Of numbers they are half of what the squared
    error, or the variance, has lost, as a part of the column's variance, and half of that error: no
    more nats than a Gaussian loses of its entropy.

    If the model is right, :math:`c` is one and :math:`h` is zero. Where it errs, what misleads it
    counts for less; since errors of single rows are noise for the most part, this depends on the
    columns that are seen, and on their values only where there are thousands of rows to tell: then
    the gain has one more part, :math:`\lambda g_i(x_o)`, where :math:`g` is what three quarters of
    the rows find missing, and :math:`\lambda` how much of that the others confirm. What the model
    expects is learned from rows that it imagines too, of which there are as many as one likes.

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
    memory = Memory(len(reveals), len(target), device)
    counts = [len(source.rows) for source in sources]
    sizes = _shares(how.batch_size, counts)
    net.trust_in_rows.requires_grad_(sum(counts) >= _MANY)

    def look(source: _Source, size: int) -> None:
        x, there, role = _drawn(source, size, generator)
        observed = _observed(acquirer, x, there & ~target, masks, how, generator)
        picked = torch.randperm(len(reveals), generator=generator, device=device)
        picked = picked[: how.num_offers]
        new = reveals[picked]  # (offers, columns)
        shown = torch.cat([observed[None], observed | new[:, None]])  # (1 + offers, batch, columns)
        with torch.no_grad():
            told = told_by(source.model, x, shown, target, how.num_samples, generator)
        counted = (new & ~observed[:, None]).any(2) & (~new | there[:, None]).all(2)
        seen = MaskedEncoder.side_by_side(x, observed)
        memory.keep(seen, picked, told, counted.to(x.dtype), role)

    def loss(_: Tensor) -> Losses:
        for source, size in zip(sources, sizes, strict=True):
            look(source, size)
        return {"gain": _error(net, memory.some(generator))}

    return train(acquirer, loss, how.plan, generators=[generator], show=show)


def _error(net: TableGainNet, rows: Recalled) -> Tensor:
    """Return the mean square of what the network misses, as a part of what there was to be told."""
    parts = net.parts(rows.seen)
    known = (rows.role > 0.0).to(rows.left)
    off = known * (parts.log_left + rows.left * (-parts.log_left).exp())  # least at the mean
    per_left = (-parts.log_left.detach()).exp()
    expected, real = per_left * rows.expected, per_left * rows.real
    gain = net.trust * parts.by_values.detach() + parts.by_mask
    missed, weighing = real - gain.detach(), rows.role == _WEIGHING
    told = torch.where(weighing, net.trust_in_rows * parts.by_rows.detach(), parts.by_rows)
    error = (parts.by_values - expected).square()
    error = error + known * ((gain - real).square() + (told - missed).square())
    each = (rows.counted * error).sum() / rows.counted.sum().clamp_min(1.0)
    return each + off.sum() / known.sum().clamp_min(1.0)


class _Source(NamedTuple):
    """Rows to learn from: those of a table, what they hold, and complete ones of their model.

    Args:
        role: Of the table's rows, 1.0 or ``_WEIGHING``.
    """

    model: MatchedVAE
    rows: Tensor
    available: Tensor
    role: Tensor
    imagined: Tensor


class _Batch(NamedTuple):
    """Rows, what they hold, and the role of those of the table, 0 for imagined ones."""

    x: Tensor
    there: Tensor
    role: Tensor


def _holds(part: Judged, target: Tensor) -> Tensor:
    """Return which rows hold the target."""
    return part.available[:, target].all(1)


def _source(part: Judged, target: Tensor, seed: int) -> _Source:
    model, told = part.model.eval().requires_grad_(False), _holds(part, target)
    imagined = _imagined(model, part.rows[:1], seed)
    generator = torch.Generator().manual_seed(seed)
    weighing = torch.rand(int(told.sum()), generator=generator) < _WEIGHING_SHARE
    role = torch.where(weighing, _WEIGHING, 1.0).to(part.rows)
    return _Source(model, part.rows[told], part.available[told], role, imagined)


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
    role = torch.cat([source.role[row], more.new_zeros(len(more))])
    order = torch.randperm(len(x), generator=generator, device=generator.device)
    return _Batch(x[order], there[order], role[order])


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
