"""Distributions in other units."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from postmatch.distributions.noise import from_noise, noise_size


@final
class Affine(Distribution):
    r"""The distribution of :math:`z = m + s \odot u`, in the shape of m, for a distribution of u.

    .. math:: \log p(z) = \log p_u\left( \frac{z - m}{s} \right) - \sum_i \log s_i

    Args:
        base: Of u, whose event has as many numbers as m, in any shape.
        shift: m.
        scale: s, positive, of the same shape.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real
    has_rsample = False

    def __init__(self, base: Distribution, shift: Tensor, scale: Tensor) -> None:
        self.base, self.shift, self.scale = base, shift, scale
        super().__init__(base.batch_shape, shift.shape, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Affine":
        """Return the same distribution for a larger batch."""
        return Affine(self.base.expand(torch.Size(batch_shape)), self.shift, self.scale)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of z."""
        standard = (value.to(self.shift.dtype) - self.shift) / self.scale
        return self.base.log_prob(_with_event(standard, self.shift, self.base.event_shape)) - (
            self.scale.log().sum()
        )

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw z."""
        return self.placed(self.base.sample(torch.Size(sample_shape)))

    def placed(self, u: Tensor) -> Tensor:
        """Return z of u."""
        axes = u.dim() - len(self.base.event_shape)
        return self.shift + self.scale * u.reshape(u.shape[:axes] + self.shift.shape)


def _with_event(value: Tensor, like: Tensor, event_shape: torch.Size) -> Tensor:
    return value.reshape(value.shape[: value.dim() - like.dim()] + event_shape)


@noise_size.register
def _(distribution: Affine) -> int | None:
    return noise_size(distribution.base)


@from_noise.register
def _(distribution: Affine, uniform: Tensor) -> Tensor:
    return distribution.placed(from_noise(distribution.base, uniform))
