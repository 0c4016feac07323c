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
    errs, what misleads it counts for less. Numbers are scored as of a Gaussian.

    Args:
        acquirer: What is trained.
        model: A matched VAE of a table, which stays as it is.
        rows: Of the table, on the device to train on.
        available: What they hold.
        target: Columns that are asked about, bool, ``(columns,)``.
        masks: What is observed in training.
        how: How long; its samples are draws of z behind each prediction.
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
        picked = torch.randperm(len(reveals), generator=generator, device=rows.device)
        new = reveals[picked[: how.num_offers]]  # (offers, columns)
        shown = torch.cat([observed[None], observed | new[:, None]])  # (1 + offers, batch, columns)
        with torch.no_grad():
            score = _scores(model, x, shown, target, how.num_samples, generator)
            gain = (score[1:] - score[0]).mT  # (batch, offers)
        counted = ((new & ~observed[:, None]).any(2) & (~new | there[:, None]).all(2)).to(x.dtype)
        error = acquirer.expected(x, observed)[:, picked[: how.num_offers]] - gain
        return {"gain": (counted * error.square()).sum() / counted.sum().clamp_min(1.0)}

    return train(acquirer, loss, how.plan, generators=[generator], show=show)


def _scores(
    model: MatchedVAE,
    x: Tensor,
    shown: Tensor,
    target: Tensor,
    num_samples: int,
    generator: torch.Generator,
) -> Tensor:
    """Return the log-likelihood of the target's cells given what is shown, ``(shown, batch)``.

    Args:
        model: Predicts.
        x: Rows, ``(batch, columns)``.
        shown: What is shown of them, ``(shown, batch, columns)``; all of it with the same noise.
        target: Which cells are scored.
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
    value, score = x.repeat(count, 1), x.new_zeros(count * batch)
    for column in target.nonzero()[:, 0].tolist():
        if decoded.layout.specs[column].kind == "number":
            variance, mean = torch.var_mean(drawn[..., column], 0)
            spread = variance.clamp_min(_TINY)
            score -= 0.5 * (spread.log() + (value[:, column] - mean).square() / spread)
        else:
            level = value[:, column].long()[None, :, None].expand(num_samples, -1, 1)
            chance = decoded.probs(column).gather(-1, level)[..., 0].mean(0)
            score += chance.clamp_min(_TINY).log()
    return score.view(count, batch)
