"""Heads over maps and levels of numbers, and a partial encoder that works in standard units."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from postmatch.distributions.affine import Affine
from postmatch.distributions.fields import LatentField
from postmatch.distributions.ladder import Ladder
from postmatch.nets.made import MaskedResidualNet
from postmatch.nets.pixelcnn import PixelCNN
from postmatch.partial import PartialEncoder


@final
class FieldHead(nn.Module):
    """Features to an autoregressive mixture over a map of numbers.

    Args:
        net: Over positions; it says whether it takes a vector, or a vector and a map.
        each: Over the channels of a position.
    """

    def __init__(self, net: PixelCNN, each: MaskedResidualNet) -> None:
        super().__init__()
        self.net, self.each = net, each

    def forward(self, features: Tensor | tuple[Tensor, Tensor]) -> Distribution:
        """Return the distribution, batch shape that of the features."""
        vector, spatial = features if isinstance(features, tuple) else (features, None)
        return LatentField(self.net, self.each, vector, spatial)


@final
class LadderHead(nn.Module):
    """Features to the distributions of several levels, each told those before it.

    Args:
        shapes: Of the levels.
        contexts: For each level, from features and the levels before to what its head reads.
        heads: From vectors to distributions.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[int]],
        contexts: Sequence[nn.Module],
        heads: Sequence[nn.Module],
    ) -> None:
        super().__init__()
        self.shapes = [torch.Size(shape) for shape in shapes]
        self.contexts, self.heads = nn.ModuleList(contexts), nn.ModuleList(heads)

    def forward(self, features: Tensor | tuple[Tensor, Tensor]) -> Distribution:
        """Return the distribution of all levels end to end, batch shape ``(batch,)``."""
        vector = features[0] if isinstance(features, tuple) else features

        def level(i: int, before: Tensor) -> Distribution:
            own = vector.expand(*before.shape[:-1], vector.shape[-1])
            context = self.contexts[i](torch.cat([own, before], dim=-1))
            distribution: Distribution = self.heads[i](context)
            return distribution

        return Ladder(level, self.shapes, vector.shape[:-1], vector)


@final
class StandardisedEncoder(PartialEncoder):
    r"""A partial encoder whose networks see rows and z in standard units.

    Args:
        encoder: In these units.
        x_place: Mean and standard deviation of features, each of a shape that broadcasts with x.
        z_place: The same of z, in its own shape; None for codes.
    """

    x_shift: Tensor
    x_scale: Tensor
    z_shift: Tensor | None
    z_scale: Tensor | None

    def __init__(
        self,
        encoder: PartialEncoder,
        x_place: tuple[Tensor, Tensor],
        z_place: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        z_shift, z_scale = z_place or (None, None)
        self.register_buffer("x_shift", x_place[0])
        self.register_buffer("x_scale", x_place[1])
        self.register_buffer("z_shift", z_shift)
        self.register_buffer("z_scale", z_scale)

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return the distribution over z in its own units."""
        standard = (x.to(self.x_shift.dtype) - self.x_shift) / self.x_scale
        distribution: Distribution = self.encoder(standard, observed)
        if self.z_shift is None or self.z_scale is None:
            return distribution
        return Affine(distribution, self.z_shift, self.z_scale)
