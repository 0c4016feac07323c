"""Importance weights: how many at a time, and whether an average of them can be trusted."""

import math

import torch
from torch import Tensor

FEWEST_WEIGHTS = 25  # whose tail, a fifth of them, has a shape
_EQUAL = 1e-4  # differences between weights that are rounding, in units of the largest
_TINY = 1e-12


def in_parts(num_samples: int, at_once: int, multiple: int = 1) -> list[int]:
    """Return how many samples are drawn at a time, so that not all are in memory together.

    Args:
        num_samples: Of all parts together.
        at_once: The most of a part; 0 for all.
        multiple: What each must be a multiple of.

    Raises:
        ValueError: If one of them is no such number.
    """
    if num_samples < 1 or num_samples % multiple:
        wanted = "at least 1" if num_samples < 1 else f"a multiple of {multiple}"
        raise ValueError(f"num_samples must be {wanted}, got {num_samples}")
    if at_once < 0 or at_once % multiple:
        wanted = "0 or more" if multiple == 1 else f"0 or a multiple of {multiple}"
        raise ValueError(f"at_once must be {wanted}, got {at_once}")
    whole, rest = divmod(num_samples, at_once or num_samples)
    return [at_once or num_samples] * whole + [rest] * (rest > 0)


def effective_size(log_weight: Tensor) -> Tensor:
    r"""Return :math:`(\sum w)^2 / \sum w^2` over the leading axis: how many weights count."""
    return (2.0 * log_weight.logsumexp(0) - (2.0 * log_weight).logsumexp(0)).exp()


def pareto_k(log_weight: Tensor) -> Tensor:
    """Return the shape of the weights' upper tail, over the leading axis (Vehtari et al., 2024).

    A tail of shape k has finite moments up to 1 / k. Below about 0.5 an average of the weights is
    as good as its number of samples suggests; above 0.7 no practical number is enough. NaN for
    fewer than 25 weights, whose tail would be of fewer than five.

    Args:
        log_weight: ``(samples, *batch)``.
    """
    samples = len(log_weight)
    if samples < FEWEST_WEIGHTS:
        return torch.full_like(log_weight[0], math.nan)
    tail = min(samples // 5, math.ceil(3.0 * math.sqrt(samples)))
    highest = log_weight.double().topk(tail + 1, dim=0).values.flip(0)  # ascending
    # In units of the largest weight, whose place on the scale does not matter.
    weight = (highest - highest[-1]).exp()
    return _fitted_shape(weight[1:] - weight[0]).to(log_weight.dtype)


def _fitted_shape(excess: Tensor) -> Tensor:
    """Return the shape of a generalised Pareto distribution (Zhang and Stephens, 2009).

    Args:
        excess: What lies above the threshold, ascending along the first axis, in units of the
            largest weight. Weights that are equal but for rounding have no tail: their shape is 0
            before it is drawn towards 0.5.
    """
    count = len(excess)
    flat = excess[-1] < _EQUAL
    excess = torch.where(flat, torch.ones_like(excess), excess)
    quartile = excess[int(count / 4 + 0.5) - 1].clamp_min(_TINY)
    grid = 30 + int(math.sqrt(count))
    places = torch.arange(1, grid + 1, device=excess.device, dtype=excess.dtype) - 0.5
    places = places.view(-1, *[1] * (excess.dim() - 1))
    slope = 1.0 / excess[-1] + (1.0 - (grid / places).sqrt()) / (3.0 * quartile)  # (grid, *batch)
    shape = torch.log1p(-slope.unsqueeze(1) * excess).mean(1)
    log_profile = count * ((-slope / shape).log() - shape - 1.0)
    best = (log_profile.softmax(0) * slope).sum(0)
    found = torch.log1p(-best * excess).mean(0)
    # A weak prior at 0.5, worth ten observations, calms what few of them say.
    return (count * torch.where(flat, 0.0, found) + 5.0) / (count + 10.0)
