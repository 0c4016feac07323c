"""Distributions over maps of real numbers, position after position."""

from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from postmatch.distributions.autoregressive import AutoregressiveMixture
from postmatch.distributions.noise import from_noise, noise_size
from postmatch.nets.made import MaskedResidualNet
from postmatch.nets.pixelcnn import PixelCNN

_MAP = 3  # axes of a map


@final
class LatentField(Distribution):
    r"""Maps whose numbers are Gaussian mixtures given all before them: positions, then channels.

    .. math:: p(z) = \prod_i \prod_c p(z_{ic} \mid z_{i, <c}, z_{<i}), \qquad
        i \text{ in reading order}

    Args:
        net: Tells of all before a position, as one vector for each.
        each: From such a vector, and what the position is given, to the mixtures of its channels.
        vector: ``(*batch, vector_size)``, what the whole map is given, if the network was told.
        spatial: ``(*batch, map_channels, height, width)``, what its positions are given, likewise.
        batch_shape: Batch shape when nothing is given.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.independent(constraints.real, _MAP)  # type: ignore[no-untyped-call]
    has_rsample = False

    def __init__(
        self,
        net: PixelCNN,
        each: MaskedResidualNet,
        vector: Tensor | None = None,
        spatial: Tensor | None = None,
        batch_shape: Sequence[int] = (),
    ) -> None:
        self.net, self.each, self.vector, self.spatial = net, each, vector, spatial
        shape = torch.Size(batch_shape)
        if vector is not None:
            shape = vector.shape[:-1]
        elif spatial is not None:
            shape = spatial.shape[:-_MAP]
        super().__init__(shape, torch.Size([each.size, *net.grid]), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "LatentField":
        """Return the same distribution for a larger batch."""
        shape, vector, spatial = torch.Size(batch_shape), self.vector, self.spatial
        if vector is not None:
            vector = vector.expand(shape + vector.shape[-1:])
        if spatial is not None:
            spatial = spatial.expand(shape + spatial.shape[-_MAP:])
        return LatentField(self.net, self.each, vector, spatial, shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each map, all conditionals in one pass."""
        value = value.expand(self._batch(value.shape[:-_MAP]) + self.event_shape)
        numbers = value.movedim(-_MAP, -1)  # (..., height, width, channels)
        told = self.net(numbers, self.vector, self.spatial).movedim(-_MAP, -1)
        if self.spatial is not None:
            own = self.spatial.movedim(-_MAP, -1)
            told = torch.cat([told, own.expand(*told.shape[:-1], -1)], dim=-1)
        return AutoregressiveMixture(self.each, told).log_prob(numbers).sum((-1, -2))

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw maps, ``(*sample_shape, *batch, channels, height, width)``."""
        shape = torch.Size(sample_shape) + self.batch_shape + (2 * self.event_shape.numel(),)
        return self.from_noise(torch.rand(shape, device=self.net.embed.weight.device))

    @torch.no_grad()
    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws from two uniforms per number; those of a position lie together."""
        batch = self._batch(uniform.shape[:-1])
        own = torch.unflatten(uniform, -1, (-1, 2 * self.each.size))

        places = None if self.spatial is None else self.spatial.flatten(-2).movedim(-1, 0)

        def choose(i: int, told: Tensor) -> Tensor:
            if places is not None:
                told = torch.cat([told, places[i].expand(*told.shape[:-1], -1)], dim=-1)
            return AutoregressiveMixture(self.each, told).from_noise(own[..., i, :])

        return self.net.generate(batch, self.vector, self.spatial, choose).movedim(-1, -_MAP)

    def _batch(self, leading: torch.Size) -> torch.Size:
        shape: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            leading, self.batch_shape
        )
        return shape


@noise_size.register
def _(distribution: LatentField) -> int | None:
    return 2 * distribution.event_shape.numel()


@from_noise.register
def _(distribution: LatentField, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)
