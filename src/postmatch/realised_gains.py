"""Training of a network on what measurements really told of a target, in rows that hold both."""

from collections.abc import Callable

import torch
from torch import Tensor

from postmatch.acquisition import AmortisedGain
from postmatch.acquisition_fitting import AcquisitionPlan
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.mixed import MixedColumns
from postmatch.distributions.noise import from_noise, noise_size
from postmatch.masks import MaskDistribution
from postmatch.mixture_gains import check_target, moved_noise
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Progress, Report

_TINY = 1e-6
_TRUTH = 0.3  # how much the true cell counts beside what the model expects of it: it is noisy
_ASTRAY = 0.2  # how often a step is taken at random, to see where others lead


def fit_realised(
    acquirer: AmortisedGain,
    model: MatchedVAE,
    rows: Tensor,
    available: Tensor,
    target: Tensor,
    masks: MaskDistribution,
    how: AcquisitionPlan,
    *,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    r"""Regress a network on how much better a target was told after each measurement.

    .. math:: \mathbb{E} \left[ f_i(x_o) - \log p(x_t \mid x_o, x_i) + \log p(x_t \mid x_o)
        \right]^2

    over rows of the table. If the model is right this teaches the expected information; where it
    errs, what misleads it counts for less. Numbers are scored as of a Gaussian. Of levels the true
    one has three tenths of the weight, and what the model expects once :math:`x_i` is seen has the
    others: rare levels would teach little but noise.

    Args:
        acquirer: What is trained.
        model: A matched VAE of a table, which stays as it is.
        rows: Of the table, on the device to train on.
        available: What they hold.
        target: Columns that are asked about, bool, ``(columns,)``.
        masks: What is observed in training.
        how: How long; its samples are draws of z behind each prediction. Rows that walk have taken
            any number of steps, some of them at random.
        seed: Of batches, masks and draws.
        show: Told of the progress.
    """
    check_target(acquirer.offers, target)
    model.eval().requires_grad_(False)
    generator = torch.Generator(rows.device).manual_seed(seed)
    reveals, target = acquirer.offers.reveals.to(rows.device), target.to(rows.device)
    told = available[:, target].all(1).nonzero()[:, 0]
    if not len(told):
        raise ValueError("rows must hold the target, or nothing can be learned of it")

    def loss(_: Tensor) -> Losses:
        size = (min(how.batch_size, len(told)),)
        row = told[torch.randint(len(told), size, generator=generator, device=rows.device)]
        x, there = rows[row], available[row]
        observed = masks.sample(there.shape, generator) & there & ~target
        walking = round(how.walking * len(x))
        observed[:walking] = _walked(acquirer, x[:walking], there[:walking], how, generator)
        picked = torch.randperm(len(reveals), generator=generator, device=rows.device)
        new = reveals[picked[: how.num_offers]]  # (offers, columns)
        shown = torch.cat([observed[None], observed | new[:, None]])  # (1 + offers, batch, columns)
        with torch.no_grad():
            gain = _told(model, x, shown, target, how.num_samples, generator).mT
        counted = ((new & ~observed[:, None]).any(2) & (~new | there[:, None]).all(2)).to(x.dtype)
        error = acquirer.expected(x, observed)[:, picked[: how.num_offers]] - gain
        return {"gain": (counted * error.square()).sum() / counted.sum().clamp_min(1.0)}

    return train(acquirer, loss, how.plan, generators=[generator], show=show)


@torch.no_grad()
def _walked(
    acquirer: AmortisedGain,
    x: Tensor,
    there: Tensor,
    how: AcquisitionPlan,
    generator: torch.Generator,
) -> Tensor:
    """Return what is observed where the network's own choices led rows that knew nothing."""
    reveals, device = acquirer.offers.reveals.to(x.device), x.device
    bought = torch.zeros_like(there)
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
) -> Tensor:
    """Return what was told of the target by all that is shown after the first, ``(more, batch)``.

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
    gain = x.new_zeros(count - 1, batch)
    for column in target.nonzero()[:, 0].tolist():
        truth = x[:, column]
        if decoded.layout.specs[column].kind == "number":
            variance, mean = torch.var_mean(drawn[..., column], 0)
            parts = variance.clamp_min(_TINY).view(count, batch), mean.view(count, batch)
            gain += told_of_number(*parts, truth)
        else:
            chance = decoded.probs(column).mean(0).clamp_min(_TINY)
            gain += told_of_level(chance.view(count, batch, -1), truth)
    return gain


def told_of_level(chance: Tensor, truth: Tensor) -> Tensor:
    r"""Return by how much what is seen made the true level more probable, ``(more, batch)``.

    The truth is mixed with what the model expects of it, which is
    :math:`\mathrm{KL}(p(x_t \mid x_i, x_o) \,\|\, p(x_t \mid x_o))` and far less noisy.

    Args:
        chance: Of the levels before and after more is seen, ``(1 + more, batch, levels)``.
        truth: The codes of the levels, ``(batch,)``.
    """
    log_ratio = chance[1:].log() - chance[0].log()  # (more, batch, levels)
    expected = (chance[1:] * log_ratio).sum(-1)
    level = truth.long()[None, :, None].expand(len(log_ratio), -1, 1)
    return torch.lerp(expected, log_ratio.gather(-1, level)[..., 0], _TRUTH)


def told_of_number(variance: Tensor, mean: Tensor, truth: Tensor) -> Tensor:
    """Return by how much what is seen made the true number more probable, as of a Gaussian.

    Args:
        variance: Before and after more is seen, ``(1 + more, batch)``.
        mean: Likewise.
        truth: The numbers, ``(batch,)``.
    """
    error = (truth - mean).square() / variance
    return 0.5 * (variance[0].log() - variance[1:].log() + error[0] - error[1:])
