"""Samples as a function of uniform noise, so that noise can be shared, stratified or replayed.

``Distribution.sample`` hides its randomness. Here a sample is ``from_noise(distribution, noise)``:
the same uniform noise for every row makes an answer independent of the order and the company of
rows, and evenly spread noise makes an average over few samples as good as one over many.
"""

import math
from collections.abc import Sequence
from functools import singledispatch

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Distribution,
    Independent,
    MultivariateNormal,
    Normal,
)

_EDGE = 1e-6  # keeps inverse distribution functions finite in single precision
_NET_AXES = 40  # enough for 16 entries of two uniforms each, and which member of an ensemble


@singledispatch
def noise_size(distribution: Distribution) -> int | None:  # noqa: ARG001
    """Return how many uniforms one draw of one row needs, or None if it cannot be told."""
    return None


@singledispatch
def from_noise(distribution: Distribution, uniform: Tensor) -> Tensor:  # noqa: ARG001
    """Return draws as a function of ``uniform``, ``(samples, batch or 1, noise_size)``."""
    raise TypeError(f"{type(distribution).__name__} has no from_noise; register one for it")


def quasi_uniform(num_samples: int, size: int, seed: int, device: torch.device) -> Tensor:
    """Return evenly spread uniforms, ``(samples, 1, size)``, the same for every row.

    They are Sobol points with a random digital shift: each is uniform, so that averages have no
    bias. Of a power of two of them, one lies in every interval of length 1 / samples along every
    axis, and one in most boxes of that volume; either half is as even, for strata to share. Axes
    come in nets of 40, each but the first in an order of its own: the later axes of one long Sobol
    sequence nearly copy each other. Asking for more axes changes none of the first ones.
    """
    generator = torch.Generator().manual_seed(seed)
    nets, intervals = -(-size // _NET_AXES), 1 << (num_samples - 1).bit_length()
    noise = torch.rand(nets, num_samples + 1, _NET_AXES + 1, generator=generator)
    shift = (noise[:, :1, 1:] * intervals).long()  # (nets, 1, axes)
    order = noise[:, 1:, 0].argsort(1)
    order[:1] = torch.arange(num_samples)
    place = _sobol(num_samples, intervals)[order] ^ shift  # (nets, samples, axes)
    points: Tensor = (place + noise[:, 1:, 1:]) / intervals
    # Rounding can reach 1, which no interval contains.
    points = points.clamp_max(1.0 - _EDGE).movedim(0, 1).flatten(1)
    return points[:, None, :size].to(device)


def _sobol(num_samples: int, intervals: int) -> Tensor:
    """Return which interval along each axis Sobol points lie in, ``(samples, axes)``."""
    engine = torch.quasirandom.SobolEngine(_NET_AXES)  # type: ignore[no-untyped-call]
    points: Tensor = engine.draw(num_samples, dtype=torch.float64)
    return (points * intervals).long()


def standard_normal(uniform: Tensor) -> Tensor:
    """Return the standard normal quantile of each uniform."""
    quantile: Tensor = torch.special.ndtri(uniform.clamp(_EDGE, 1.0 - _EDGE))
    return quantile


def standard_logistic(uniform: Tensor) -> Tensor:
    """Return the standard logistic quantile of each uniform."""
    return torch.logit(uniform, eps=_EDGE)


def choose_component(logits: Tensor, uniform: Tensor, dim: int) -> Tensor:
    """Return the index along ``dim`` that each uniform falls to, that axis removed."""
    sums = logits.softmax(dim).cumsum(dim)
    # Rounded sums may end below 1: measured by the last of them, and kept two steps below it, no
    # uniform falls to a weight of zero, first, last or between.
    place = uniform.clamp(max=1.0 - 2.0**-23) * sums.select(dim, -1)
    return (place.unsqueeze(dim) >= sums.narrow(dim, 0, sums.shape[dim] - 1)).sum(dim)


def draw(
    distribution: Distribution,
    sample_shape: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw with a gradient where the distribution has one.

    A Gaussian takes its noise from the generator, so that runs side by side do not share torch's
    global state; other distributions know that state only. Never ``sample`` where there is a
    choice: ``torch.normal``, behind it, waits for the device.
    """
    shape, base = torch.Size(sample_shape), _gaussian(distribution)
    if generator is not None and base is not None:
        return _moved(base, _gaussian_noise(base, shape, generator))
    drawn: Tensor = (
        distribution.rsample(shape) if distribution.has_rsample else distribution.sample(shape)
    )
    return drawn


def draw_scored(
    distribution: Distribution, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Draw as :func:`draw` does, and return the log density of what was drawn beside it.

    That of a Gaussian is known from the noise: nothing is subtracted, divided or solved for again.
    """
    base = _gaussian(distribution)
    if base is None:
        drawn = draw(distribution, (), generator)
        return drawn, distribution.log_prob(drawn)
    noise = _gaussian_noise(base, torch.Size(), generator)
    scale = (
        base.scale
        if isinstance(base, Normal)
        else base._unbroadcasted_scale_tril.diagonal(dim1=-2, dim2=-1)
    )
    log_each = -0.5 * noise.square() - scale.log() - 0.5 * math.log(2.0 * math.pi)
    summed = len(distribution.event_shape)
    log_prob = log_each.sum(tuple(range(-summed, 0))) if summed else log_each
    return _moved(base, noise), log_prob


def _gaussian(distribution: Distribution) -> Normal | MultivariateNormal | None:
    base = distribution.base_dist if isinstance(distribution, Independent) else distribution
    return base if isinstance(base, Normal | MultivariateNormal) else None


def _gaussian_noise(
    base: Normal | MultivariateNormal, shape: torch.Size, generator: torch.Generator | None
) -> Tensor:
    loc = base.loc
    return torch.randn(shape + loc.shape, generator=generator, device=loc.device, dtype=loc.dtype)


def _moved(base: Normal | MultivariateNormal, noise: Tensor) -> Tensor:
    """Return the standard normal noise in the place and the shape of a Gaussian."""
    if isinstance(base, Normal):
        return base.loc + base.scale * noise
    return base.loc + (base._unbroadcasted_scale_tril @ noise[..., None]).squeeze(-1)


@noise_size.register
def _(distribution: Normal) -> int | None:
    return distribution.batch_shape[2:].numel()  # one per feature, behind samples and batch


@from_noise.register
def _(distribution: Normal, uniform: Tensor) -> Tensor:
    noise = torch.unflatten(standard_normal(uniform), -1, distribution.batch_shape[2:])
    return distribution.loc + distribution.scale * noise


@noise_size.register
def _(distribution: Bernoulli) -> int | None:
    return distribution.batch_shape[2:].numel()  # as of Gaussians


@from_noise.register
def _(distribution: Bernoulli, uniform: Tensor) -> Tensor:
    own = torch.unflatten(uniform, -1, distribution.batch_shape[2:])
    return (own < distribution.probs).to(uniform.dtype)


@noise_size.register
def _(distribution: Independent) -> int | None:  # type: ignore[type-arg]
    if not isinstance(distribution.base_dist, Normal):
        return None
    return distribution.event_shape.numel()


@from_noise.register
def _(distribution: Independent, uniform: Tensor) -> Tensor:  # type: ignore[type-arg]
    base = distribution.base_dist
    assert isinstance(base, Normal)
    noise = torch.unflatten(standard_normal(uniform), -1, distribution.event_shape)
    return base.loc + base.scale * noise


@noise_size.register
def _(distribution: MultivariateNormal) -> int | None:
    return distribution.event_shape.numel()


@from_noise.register
def _(distribution: MultivariateNormal, uniform: Tensor) -> Tensor:
    noise = standard_normal(uniform)[..., None]
    return distribution.loc + (distribution._unbroadcasted_scale_tril @ noise).squeeze(-1)
