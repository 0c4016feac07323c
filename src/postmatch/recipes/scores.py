"""Conditional scores of a model on test rows, each labelled by what it estimates."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.masks import Bernoulli
from postmatch.metrics import nrmse
from postmatch.randomness import seeded

_AT_ONCE = 1 << 15  # rows times samples


@torch.no_grad()
def conditional_scores(
    model: MatchedVAE,
    x: Tensor,
    log_scale: Tensor,
    *,
    mask_seeds: Sequence[int] = (0, 1, 2, 3, 4),
    num_samples: int = 1_000,
    ratio_samples: Sequence[int] = (100, 1_000),
) -> dict[str, Any]:
    """Return scores of hidden features, half of them on average, with spreads over mask draws.

    Args:
        model: To be judged.
        x: Test rows in the model's units.
        log_scale: The logarithm of how many of the user's units each feature's unit is; densities
            are of the user's.
        mask_seeds: One draw of masks for each.
        num_samples: Draws of z per row for ``log_prob`` and its gap.
        ratio_samples: The same for ``log_prob_ratio``, which changes with it.
    """
    each = [_one_draw(model, x, log_scale, seed, num_samples, ratio_samples) for seed in mask_seeds]
    found: dict[str, Any] = {}
    for name in each[0]:
        values = [scores[name] for scores in each]
        found[name], found[f"{name}_std"] = float(np.mean(values)), float(np.std(values))
    with seeded(mask_seeds[0]):
        joint = torch.cat(
            [model.vae.log_evidence(x[p], None, num_samples) for p in _parts(x, num_samples)]
        )
    found["joint_log_prob"] = float(joint.double().mean() - log_scale.sum())
    return found


def _one_draw(
    model: MatchedVAE,
    x: Tensor,
    log_scale: Tensor,
    seed: int,
    num_samples: int,
    ratio_samples: Sequence[int],
) -> dict[str, float]:
    generator = torch.Generator(x.device).manual_seed(seed)
    observed = Bernoulli(0.5).sample(x.shape, generator)
    units = ((~observed) * log_scale).sum(1).double().mean()
    scores: dict[str, float] = {}
    with seeded(seed):
        parts = list(_parts(x, num_samples))
        answers = [model.given(x[part], observed[part]) for part in parts]
        pairs = list(zip(answers, parts, strict=True))
        log_prob = torch.cat([a.log_prob(x[p], None, num_samples) for a, p in pairs])
        gap = torch.cat([a.log_prob_gap(num_samples).value for a, _ in pairs])
        scores["log_prob"] = float(log_prob.double().mean() - units)
        scores["log_prob_gap"] = float(gap.double().mean())
        imputed = torch.cat([a.impute(32) for a in answers])
        scores["nrmse"] = nrmse(imputed.cpu(), x.cpu(), ~observed.cpu())
        for count in ratio_samples:
            found = [
                model.given(x[p], observed[p]).log_prob_ratio(x[p], None, count)
                for p in _parts(x, count)
            ]
            ratio = torch.cat([estimate.value for estimate in found]).double()
            size = torch.cat([estimate.effective_sample_size for estimate in found])
            scores[f"log_prob_ratio_{count}"] = float(ratio.mean() - units)
            scores[f"effective_sample_size_{count}"] = float(size.double().median())
    return scores


def _parts(x: Tensor, num_samples: int) -> Iterator[slice]:
    """Yield blocks of rows that are moderate in size, times samples."""
    step = max(1, _AT_ONCE // num_samples)
    for i in range(math.ceil(len(x) / step)):
        yield slice(i * step, (i + 1) * step)
