"""Conditional scores of a model on test rows, each labelled by what it estimates."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.importance import FEWEST_WEIGHTS
from postmatch.masks import Bernoulli
from postmatch.metrics import nrmse
from postmatch.randomness import seeded
from postmatch.vaes.base import log_likelihood

MASK_SEEDS = (0, 1, 2, 3, 4)
_AT_ONCE, _AT_ONCE_ON_GPU = 1 << 15, 1 << 19  # rows times samples
IMPUTATION_DRAWS = 128  # per row, whose mean is the imputation
_POSTERIOR_DRAWS = 16  # per row, for what limits the bound


@final
@dataclass(frozen=True)
class Judging:
    """How a model is judged.

    Args:
        mask_seeds: One draw of masks for each, half of the features hidden on average.
        num_samples: Draws of z per row for ``log_prob`` and its gap.
        ratio_samples: The same for ``log_prob_ratio``, which changes with it.
        ratio_rows: How many rows the ratio is taken of, at most; it needs the most draws. By how
            much it exceeds ``log_prob`` of the same rows is added to that of all of them.
    """

    mask_seeds: Sequence[int] = MASK_SEEDS
    num_samples: int = 1_000
    ratio_samples: Sequence[int] = (100, 1_000, 10_000)
    ratio_rows: int = 1_000


def conditional_scores(
    model: MatchedVAE,
    x: Tensor,
    log_scale: Tensor,
    how: Judging | None = None,
    show: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Return scores of hidden features, each with its spread over draws of masks.

    ``log_prob_error`` is the standard error of ``log_prob`` as a mean over test rows, which a draw
    of masks says little about. Beside ``log_prob`` stands what limits it: it is about
    ``reconstruction``, the mean of log p(x_u | z) over the encoder's draws, less ``match_kl``, the
    divergence of q(z | x_o) from q(z | x).

    Args:
        model: To be judged.
        x: Test rows in the model's units.
        log_scale: The logarithm of how many of the user's units each feature's unit is; densities
            are of the user's.
        how: With which masks and how many draws.
        show: Told now and then which part of the work is done.
    """
    how = Judging() if how is None else how
    each = []
    for i, seed in enumerate(how.mask_seeds):
        each.append(_one_draw(model, x, log_scale, seed, how))
        if show is not None:
            show((i + 1) / len(how.mask_seeds))
    found = with_spread(each)
    with seeded(how.mask_seeds[0]), torch.no_grad():
        joint = torch.cat(
            [model.vae.log_evidence(x[p], None, how.num_samples) for p in parts(x, how.num_samples)]
        )
    found["joint_log_prob"] = float(joint.double().mean() - log_scale.sum())
    return found


def masks_of(x: Tensor, seed: int) -> Tensor:
    """Return which features of test rows are observed: the same ones on every device."""
    return Bernoulli(0.5).sample(x.shape, torch.Generator().manual_seed(seed)).to(x.device)


def with_spread(each: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the mean of each score over draws of masks, and its standard deviation."""
    found: dict[str, Any] = {}
    for name in each[0]:
        values = [scores[name] for scores in each]
        found[name], found[f"{name}_std"] = float(np.mean(values)), float(np.std(values))
    return found


def parts(x: Tensor, num_samples: int) -> Iterator[slice]:
    """Yield blocks of rows that are moderate in size, times samples."""
    most = _AT_ONCE_ON_GPU if x.device.type == "cuda" else _AT_ONCE
    step = max(1, most // num_samples)
    for i in range(math.ceil(len(x) / step)):
        yield slice(i * step, (i + 1) * step)


@torch.no_grad()
def _one_draw(
    model: MatchedVAE, x: Tensor, log_scale: Tensor, seed: int, how: Judging
) -> dict[str, float]:
    observed = masks_of(x, seed)
    units = (~observed * log_scale).sum(1).double()
    with seeded(seed):
        bound, gap = _bounds(model, x, observed, how.num_samples)
        bound = bound - units
        scores = {
            "log_prob": float(bound.mean()),
            "log_prob_error": float(bound.std() / math.sqrt(len(bound))),
            "log_prob_gap": float(gap.mean()),
        }
        scores |= _limits(model, x, observed, units)
        scores |= _imputation(model, x, observed)
        few = slice(how.ratio_rows)
        for count in how.ratio_samples:
            ratio, signs = _ratio(model, x[few], observed[few], count)
            excess = (ratio - units[few] - bound[few]).mean()
            scores[f"log_prob_ratio_{count}"] = float(bound.mean() + excess)
            scores |= signs
    return scores


def _bounds(
    model: MatchedVAE, x: Tensor, observed: Tensor, num_samples: int
) -> tuple[Tensor, Tensor]:
    """Return the headline of each row, in the model's units, and how loose it is."""
    log_prob, gap = [], []
    for part in parts(x, num_samples):
        answer = model.given(x[part], observed[part])
        log_prob.append(answer.log_prob(x[part], None, num_samples))
        gap.append(answer.log_prob_gap(num_samples).value)
    return torch.cat(log_prob).double(), torch.cat(gap).double()


def _limits(model: MatchedVAE, x: Tensor, observed: Tensor, units: Tensor) -> dict[str, float]:
    """Return how well z tells what is hidden, and how far off q(z | x_o) is, and the prior."""
    reconstruction, match_kl, prior_kl = [], [], []
    for part in parts(x, _POSTERIOR_DRAWS):
        posterior = model.vae.encode(x[part])
        z = posterior.sample(torch.Size([_POSTERIOR_DRAWS]))
        log_z = posterior.log_prob(z)
        hidden = ~observed[part]
        reconstruction.append(log_likelihood(model.vae.decode(z), x[part], hidden).mean(0))
        match_kl.append((log_z - model.partial(x[part], observed[part]).log_prob(z)).mean(0))
        prior_kl.append((log_z - model.vae.prior().log_prob(z)).mean(0))
    return {
        "reconstruction": float((torch.cat(reconstruction).double() - units).mean()),
        "match_kl": float(torch.cat(match_kl).double().mean()),
        "prior_kl": float(torch.cat(prior_kl).double().mean()),
    }


def _imputation(model: MatchedVAE, x: Tensor, observed: Tensor) -> dict[str, float]:
    start = time.perf_counter()
    imputed = torch.cat(
        [
            model.given(x[p], observed[p]).impute(IMPUTATION_DRAWS)
            for p in parts(x, IMPUTATION_DRAWS)
        ]
    ).cpu()
    seconds = time.perf_counter() - start
    return {
        "nrmse": nrmse(imputed, x.cpu(), ~observed.cpu()),
        "impute_microseconds": 1e6 * seconds / len(x),
    }


def _ratio(
    model: MatchedVAE, x: Tensor, observed: Tensor, num_samples: int
) -> tuple[Tensor, dict[str, float]]:
    """Return the paper's estimate for each row, in the model's units, and its signs of trouble."""
    found = [
        model.given(x[p], observed[p]).log_prob_ratio(x[p], None, num_samples)
        for p in parts(x, num_samples)
    ]
    value, size, shape = (
        torch.cat([getattr(estimate, name) for estimate in found]).double()
        for name in ("value", "effective_sample_size", "pareto_k")
    )
    signs = {f"effective_sample_size_{num_samples}": float(size.median())}
    if num_samples >= FEWEST_WEIGHTS:
        signs[f"pareto_k_{num_samples}"] = float(shape.median())
    return value, signs
