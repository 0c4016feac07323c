"""Samples as a function of uniform noise, so that noise can be shared, stratified or replayed.

``Distribution.sample`` hides its randomness. Here a sample is ``from_noise(distribution, uniform)``:
the same uniforms for every row make an answer independent of the order and the company of rows,
and quasi-random uniforms make an average over few samples as good as one over many.
"""

from functools import singledispatch

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

_EDGE = 1e-6  # keeps inverse distribution functions finite in single precision


@singledispatch
def noise_size(distribution: Distribution) -> int | None:
    """Return how many uniforms one draw of one row needs, or None if it cannot be told."""
    return None


@singledispatch
def from_noise(distribution: Distribution, uniform: Tensor) -> Tensor:
    """Return draws as a function of ``uniform``, ``(samples, batch or 1, noise_size)``."""
    raise TypeError(f"{type(distribution).__name__} has no from_noise; register one for it")


def quasi_uniform(num_samples: int, size: int, seed: int, device: torch.device) -> Tensor:
    """Return randomly shifted Sobol points, ``(samples, 1, size)``, the same for every row.

    The first axes of a longer sequence are those of a shorter one with the same seed.
    """
    points = torch.quasirandom.SobolEngine(size).draw(num_samples)
    shift = torch.rand(size, generator=torch.Generator().manual_seed(seed))
    return ((points + shift) % 1.0).to(device)[:, None]


def standard_normal(uniform: Tensor) -> Tensor:
    """Return the standard normal quantile of each uniform."""
    return torch.special.ndtri(uniform.clamp(_EDGE, 1.0 - _EDGE))


def standard_logistic(uniform: Tensor) -> Tensor:
    """Return the standard logistic quantile of each uniform."""
    return torch.logit(uniform, eps=_EDGE)


def choose_component(logits: Tensor, uniform: Tensor) -> Tensor:
    """Return the index of the category that each uniform falls into, ``logits`` without its last axis."""
    edges = logits.softmax(-1).cumsum(-1)
    return (uniform[..., None] > edges[..., :-1]).sum(-1)


@noise_size.register
def _(distribution: Independent) -> int | None:
    if not isinstance(distribution.base_dist, Normal):
        return None
    return distribution.event_shape.numel()


@from_noise.register
def _(distribution: Independent, uniform: Tensor) -> Tensor:
    base = distribution.base_dist
    noise = standard_normal(uniform).unflatten(-1, distribution.event_shape)
    return base.loc + base.scale * noise


@noise_size.register
def _(distribution: MultivariateNormal) -> int | None:
    return distribution.event_shape.numel()


@from_noise.register
def _(distribution: MultivariateNormal, uniform: Tensor) -> Tensor:
    noise = standard_normal(uniform)[..., None]
    return distribution.loc + (distribution._unbroadcasted_scale_tril @ noise).squeeze(-1)
