"""Distributions over grids of codes, which are whole numbers of type ``torch.long``."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl
from torch.nn import functional as F

from postmatch.distributions.noise import choose_component, from_noise, noise_size
from postmatch.nets.pixelcnn import PixelCNN

_GRID = 2  # axes of a grid


@final
class PointMass(Distribution):
    """One grid for certain: all that an encoder without noise says.

    It has no draws with a gradient, so a match cannot train the encoder behind it.

    Args:
        codes: ``(*batch, height, width)``.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(self, codes: Tensor) -> None:
        self.codes = codes
        super().__init__(codes.shape[:-_GRID], codes.shape[-_GRID:], validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "PointMass":
        """Return the same distribution for a larger batch."""
        return PointMass(self.codes.expand(torch.Size(batch_shape) + self.event_shape))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return the grid, ``(*sample_shape, *batch, height, width)``."""
        return self.codes.expand(torch.Size(sample_shape) + self.codes.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return 0 for that grid and minus infinity for every other."""
        same = (value == self.codes).flatten(-_GRID).all(-1)
        return torch.zeros(same.shape, device=same.device).masked_fill(~same, -math.inf)

    def entropy(self) -> Tensor:
        """Return 0."""
        return torch.zeros(self.batch_shape, device=self.codes.device)


@final
class CodeGrid(Distribution):
    r"""Grids whose codes are categorical given those before them, in reading order.

    .. math:: p(z) = \prod_i p(z_i \mid z_1, \dots, z_{i-1})

    Args:
        net: Gives the logits of all codes in one pass.
        vector: ``(*batch, vector_size)``, what the whole grid is given, if the network was told.
        spatial: ``(*batch, map_channels, height, width)``, what its positions are given, likewise.
        batch_shape: Batch shape when nothing is given.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(
        self,
        net: PixelCNN,
        vector: Tensor | None = None,
        spatial: Tensor | None = None,
        batch_shape: Sequence[int] = (),
    ) -> None:
        self.net, self.vector, self.spatial = net, vector, spatial
        shape = torch.Size(batch_shape)
        if vector is not None:
            shape = vector.shape[:-1]
        elif spatial is not None:
            shape = spatial.shape[: -1 - _GRID]
        super().__init__(shape, torch.Size(net.grid), validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Which codes there are."""
        codes = constraints.integer_interval(0, self.net.num_codes - 1)  # type: ignore[no-untyped-call]
        return constraints.independent(codes, _GRID)  # type: ignore[no-untyped-call]

    def expand(self, batch_shape: Any, _instance: Any = None) -> "CodeGrid":
        """Return the same distribution for a larger batch."""
        shape, vector, spatial = torch.Size(batch_shape), self.vector, self.spatial
        if vector is not None:
            vector = vector.expand(shape + vector.shape[-1:])
        if spatial is not None:
            spatial = spatial.expand(shape + spatial.shape[-1 - _GRID :])
        return CodeGrid(self.net, vector, spatial, shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log mass of each grid, all conditionals in one pass."""
        value = value.expand(self._batch(value.shape[:-_GRID]) + self.event_shape)
        logits = self.net(value, self.vector, self.spatial)  # (..., codes, height, width)
        surprise = F.cross_entropy(
            logits.reshape(-1, *logits.shape[-1 - _GRID :]),
            value.reshape(-1, *self.event_shape),
            reduction="none",
        )
        return -surprise.flatten(1).sum(1).view(value.shape[:-_GRID])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw grids, ``(*sample_shape, *batch, height, width)``."""
        shape = torch.Size(sample_shape) + self.batch_shape + (self.event_shape.numel(),)
        return self.from_noise(torch.rand(shape, device=self.net.embed.weight.device))

    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws from one uniform per code, ``(..., height * width)``, in reading order."""

        def choose(i: int, logits: Tensor) -> Tensor:
            return choose_component(logits, uniform[..., i], dim=-1)

        batch = self._batch(uniform.shape[:-1])
        return self.net.generate(batch, self.vector, self.spatial, choose)

    def _batch(self, leading: torch.Size) -> torch.Size:
        shape: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            leading, self.batch_shape
        )
        return shape


@noise_size.register
def _(distribution: PointMass) -> int | None:  # noqa: ARG001
    return 0


@from_noise.register
def _(distribution: PointMass, uniform: Tensor) -> Tensor:
    return distribution.sample(uniform.shape[:1])


@noise_size.register
def _(distribution: CodeGrid) -> int | None:
    return distribution.event_shape.numel()


@from_noise.register
def _(distribution: CodeGrid, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)


@register_kl(PointMass, CodeGrid)  # type: ignore[no-untyped-call, untyped-decorator]
def _(target: PointMass, approx: CodeGrid) -> Tensor:
    r"""Return :math:`-\log q(z)` at the point: its own entropy is 0."""
    return -approx.log_prob(target.codes)
