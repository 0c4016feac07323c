"""Distributions of images, whose pixels are one feature each, whatever their channels."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.distributions.noise import from_noise, noise_size


@final
class Pixels(Distribution):
    """Independent channels of independent pixels; ``log_prob`` has one value per pixel.

    Args:
        base: With one value per channel and pixel, ``(..., channels, height, width)``.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, base: Distribution) -> None:
        self.base = base
        self.has_rsample = base.has_rsample
        super().__init__(base.batch_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Return the mean of each channel, ``(..., channels, height, width)``."""
        return self.base.mean

    def log_prob(self, value: Tensor) -> Tensor:
        """Return ``(..., 1, height, width)``, the sum over channels."""
        return self.base.log_prob(value).sum(-3, keepdim=True)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw images."""
        return self.base.sample(torch.Size(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw images with a gradient."""
        drawn: Tensor = self.base.rsample(torch.Size(sample_shape))
        return drawn


@noise_size.register
def _(distribution: Pixels) -> int | None:
    return noise_size(distribution.base)


@from_noise.register
def _(distribution: Pixels, uniform: Tensor) -> Tensor:
    return from_noise(distribution.base, uniform)
