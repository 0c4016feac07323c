"""Distributions of rows, seen with other axes before the features; and levels laid end to end."""

from collections.abc import Sequence
from functools import singledispatch
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    MultivariateNormal,
    Normal,
)

from postmatch.distributions.gaussian import Gaussian
from postmatch.distributions.noise import from_noise, noise_size
from postmatch.nets.precision import full_precision


@final
class Reshaped(Distribution):
    """Independent features of rows, ``(rows, *features)``, as ``(*leading, *features)``.

    Args:
        base: With one value for each row and feature.
        leading: The axes in place of the first, as many rows in all.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, base: Distribution, leading: Sequence[int]) -> None:
        self.base, self.leading = base, torch.Size(leading)
        self.has_rsample = base.has_rsample
        super().__init__(self.leading + base.batch_shape[1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Return the mean of each feature."""
        return self._led(self.base.mean)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each feature."""
        axes = len(self.batch_shape) - len(self.leading)
        rows = value.expand(self.leading + value.shape[value.dim() - axes :])
        return self._led(self.base.log_prob(rows.flatten(0, len(self.leading) - 1)))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw features."""
        return self._led(self.base.sample(torch.Size(sample_shape)), len(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw features with a gradient."""
        return self._led(self.base.rsample(torch.Size(sample_shape)), len(sample_shape))

    def _led(self, rows: Tensor, axis: int = 0) -> Tensor:
        return rows.reshape(rows.shape[:axis] + self.leading + rows.shape[axis + 1 :])


@singledispatch
def reshaped(distribution: Distribution, leading: torch.Size) -> Distribution:
    """Return a distribution of rows with these axes in place of the first."""
    return Reshaped(distribution, leading)


@reshaped.register
def _(distribution: Normal, leading: torch.Size) -> Distribution:
    shape = leading + distribution.batch_shape[1:]
    loc, scale = (t.reshape(shape) for t in (distribution.loc, distribution.scale))
    return Gaussian(full_precision(loc), full_precision(scale))


@reshaped.register
def _(distribution: Bernoulli, leading: torch.Size) -> Distribution:
    logits = distribution.logits.reshape(leading + distribution.batch_shape[1:])
    return Bernoulli(logits=full_precision(logits), validate_args=False)


@reshaped.register
def _(distribution: Categorical, leading: torch.Size) -> Distribution:
    logits = distribution.logits.reshape(leading + distribution.param_shape[1:])
    return Categorical(logits=full_precision(logits), validate_args=False)


@singledispatch
def in_full_precision(distribution: Distribution) -> Distribution:
    """Return a Gaussian of half precision in float32, and any other distribution as it is."""
    return distribution


@in_full_precision.register
def _(distribution: Normal) -> Distribution:
    return Gaussian(full_precision(distribution.loc), full_precision(distribution.scale))


@in_full_precision.register
def _(distribution: MultivariateNormal) -> Distribution:
    loc, scale_tril = full_precision(distribution.loc), full_precision(distribution.scale_tril)
    return MultivariateNormal(loc, scale_tril=scale_tril, validate_args=False)


@in_full_precision.register
def _(distribution: Independent) -> Distribution:  # type: ignore[type-arg]
    axes = distribution.reinterpreted_batch_ndims
    return Independent(in_full_precision(distribution.base_dist), axes, validate_args=False)


@final
class EndToEnd(Distribution):
    r"""Levels that are independent of each other, laid end to end in one vector.

    .. math:: p(z) = \prod_i p_i(z_i)

    Args:
        levels: Distributions of real numbers, of any event shapes and one batch shape.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, levels: Sequence[Distribution]) -> None:
        self.levels = tuple(levels)
        self.shapes = tuple(level.event_shape for level in self.levels)
        self.has_rsample = all(level.has_rsample for level in self.levels)
        size = torch.Size([sum(shape.numel() for shape in self.shapes)])
        super().__init__(self.levels[0].batch_shape, size, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the sum over levels."""
        parts = zip(self.levels, split_levels(value, self.shapes), strict=True)
        return torch.stack([level.log_prob(z) for level, z in parts]).sum(0)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors."""
        return self._joined([level.sample(torch.Size(sample_shape)) for level in self.levels])

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors with a gradient."""
        return self._joined([level.rsample(torch.Size(sample_shape)) for level in self.levels])

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return draws of the levels end to end."""
        pairs = zip(parts, self.shapes, strict=True)
        flat = [z.reshape(*z.shape[: z.dim() - len(shape)], -1) for z, shape in pairs]
        return torch.cat(flat, dim=-1)


def split_levels(value: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Return the levels of vectors that hold them end to end, each in its own shape."""
    parts = torch.split(value, [shape.numel() for shape in shapes], dim=-1)
    return [torch.unflatten(z, -1, shape) for z, shape in zip(parts, shapes, strict=True)]


@noise_size.register
def _(distribution: EndToEnd) -> int | None:
    sizes = [noise_size(level) for level in distribution.levels]
    return None if None in sizes else sum(size for size in sizes if size is not None)


@from_noise.register
def _(distribution: EndToEnd, uniform: Tensor) -> Tensor:
    sizes = [noise_size(level) or 0 for level in distribution.levels]
    parts = zip(distribution.levels, torch.split(uniform, sizes, dim=-1), strict=True)
    return distribution._joined([from_noise(level, noise) for level, noise in parts])
