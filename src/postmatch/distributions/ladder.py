"""Levels of a latent variable, each given those before it."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from postmatch.distributions.noise import from_noise, noise_size
from postmatch.distributions.reshaped import split_levels

Level = Callable[[int, Tensor], Distribution]


@final
class Ladder(Distribution):
    r"""Levels end to end in one vector, each with a distribution that knows those before it.

    .. math:: p(z) = \prod_i p_i(z_i \mid z_{<i})

    Args:
        level: From i and the levels before it end to end, ``(..., numbers)``, to the distribution
            of level i, whose batch shape is that of these and whose draws take two uniforms per
            number, as those of mixtures do.
        shapes: Of the levels.
        batch_shape: Of the whole.
        like: A tensor of the device and type of draws.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector
    has_rsample = False

    def __init__(
        self, level: Level, shapes: Sequence[torch.Size], batch_shape: torch.Size, like: Tensor
    ) -> None:
        self.level, self.shapes, self.like = level, tuple(shapes), like
        size = torch.Size([sum(shape.numel() for shape in self.shapes)])
        super().__init__(batch_shape, size, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each vector, one pass for each level."""
        shape: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            value.shape[:-1], self.batch_shape
        )
        value, start, log_levels = value.expand(*shape, -1), 0, []
        for i, z in enumerate(split_levels(value, self.shapes)):
            log_levels.append(self.level(i, value[..., :start]).log_prob(z))
            start += self.shapes[i].numel()
        return torch.stack(log_levels).sum(0)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors, level by level."""
        return self._drawn(
            torch.Size(sample_shape) + self.batch_shape, lambda _, level: level.sample()
        )

    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws as a function of uniforms, ``(..., numbers)``; each level has its own."""
        shape: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            uniform.shape[:-1], self.batch_shape
        )
        parts = torch.split(uniform, [2 * shape.numel() for shape in self.shapes], dim=-1)
        return self._drawn(shape, lambda i, level: from_noise(level, parts[i]))

    @torch.no_grad()
    def _drawn(self, batch: torch.Size, draw: Callable[[int, Distribution], Tensor]) -> Tensor:
        z = self.like.new_empty(*batch, 0)
        for i, shape in enumerate(self.shapes):
            drawn = draw(i, self.level(i, z))
            z = torch.cat([z, drawn.reshape(*batch, shape.numel())], dim=-1)
        return z


@noise_size.register
def _(distribution: Ladder) -> int | None:
    return 2 * distribution.event_shape.numel()


@from_noise.register
def _(distribution: Ladder, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)
