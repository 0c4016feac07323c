"""Residual convolutional networks between images and grids of a half or a quarter of their side."""

from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

FACTORS = (2, 4)  # by which a grid's side may be smaller: one or two convolutions of stride 2


@final
class ResidualStack(nn.Module):
    """Blocks that each add two convolutions to their input, 3x3 and 1x1; ReLU before every one.

    Args:
        width: Channels in and out.
        hidden: Channels between the two convolutions of a block.
        num_blocks: How many blocks.
    """

    def __init__(self, width: int, hidden: int, num_blocks: int) -> None:
        super().__init__()
        blocks = range(num_blocks)
        self.inner = nn.ModuleList(nn.Conv2d(width, hidden, 3, padding=1) for _ in blocks)
        self.outer = nn.ModuleList(nn.Conv2d(hidden, width, 1) for _ in blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Return a map of the same shape, after a last ReLU."""
        for inner, outer in zip(self.inner, self.outer, strict=True):
            x = x + outer(F.relu(inner(F.relu(x))))
        return F.relu(x)


def shrinking(in_channels: int, width: int, factor: int) -> nn.Sequential:
    """Return two convolutions after which a map has so many channels, and a smaller side."""
    _check(factor)
    half = width // 2
    return nn.Sequential(
        nn.Conv2d(in_channels, half, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(half, width, 4, stride=2, padding=1)
        if factor == max(FACTORS)
        else nn.Conv2d(half, width, 3, padding=1),
    )


@final
class ResidualConvEncoder(nn.Module):
    """From images to a map of features, of a smaller side: 28x28 to 7x7, or to 14x14.

    Args:
        in_channels: Of the images, and of the mask if it stands beside them.
        width: Channels inside.
        out_channels: Of the map.
        hidden: Channels inside a residual block.
        num_blocks: Residual blocks.
        factor: By which the map is smaller, 2 or 4.
    """

    tensors_only = True  # from tensors to tensors, so that it can be compiled

    def __init__(
        self,
        in_channels: int,
        width: int,
        out_channels: int,
        hidden: int = 32,
        num_blocks: int = 2,
        factor: int = 4,
    ) -> None:
        super().__init__()
        self.factor = factor
        self.net = nn.Sequential(
            shrinking(in_channels, width, factor),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            ResidualStack(width, hidden, num_blocks),
            nn.Conv2d(width, out_channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, out_channels, height / factor, width / factor)``."""
        _check_sides(x, self.factor)
        features: Tensor = self.net(x)
        return features


@final
class LocalEncoder(nn.Module):
    """From images to a map of features, each of which sees one small square of pixels alone.

    What a feature sees is all that it depends on: one whose square is observed is certain, however
    much is hidden elsewhere. Those of a :class:`ResidualConvEncoder` change with pixels far away.

    Args:
        in_channels: Of the images.
        width: Channels inside.
        out_channels: Of the map.
        window: Side of the square, at least ``factor``, and even as that is.
        factor: By which the map is smaller, 2 or 4.
        num_blocks: Layers between the first and the last.
    """

    tensors_only = True

    def __init__(
        self,
        in_channels: int,
        width: int,
        out_channels: int,
        window: int,
        factor: int = 4,
        num_blocks: int = 2,
    ) -> None:
        super().__init__()
        _check(factor)
        if window < factor or window % 2:
            raise ValueError(f"window must be even and at least factor {factor}, got {window}")
        self.factor = factor
        self.first = nn.Conv2d(in_channels, width, window, factor, (window - factor) // 2)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(num_blocks))
        self.last = nn.Conv2d(width, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, out_channels, height / factor, width / factor)``."""
        _check_sides(x, self.factor)
        state: Tensor = self.first(x)
        for block in self.blocks:
            state = state + block(F.gelu(state))
        features: Tensor = self.last(F.gelu(state))
        return features


@final
class ResidualConvDecoder(nn.Module):
    """From a map of features to images of a larger side: 7x7 or 14x14 to 28x28.

    Args:
        in_channels: Of the map.
        width: Channels inside.
        out_channels: Of the images.
        hidden: Channels inside a residual block.
        num_blocks: Residual blocks.
        factor: By which the images are larger, 2 or 4.
    """

    tensors_only = True

    def __init__(
        self,
        in_channels: int,
        width: int,
        out_channels: int,
        hidden: int = 32,
        num_blocks: int = 2,
        factor: int = 4,
    ) -> None:
        super().__init__()
        _check(factor)
        half = width // 2
        self.net = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1),
            ResidualStack(width, hidden, num_blocks),
            nn.ConvTranspose2d(width, half, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(half, out_channels, 4, stride=2, padding=1)
            if factor == max(FACTORS)
            else nn.Conv2d(half, out_channels, 3, padding=1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return ``(batch, out_channels, factor * height, factor * width)``."""
        image: Tensor = self.net(features)
        return image


@final
class MapAndSummary(nn.Module):
    """A map of features and a vector made of all of it, for conditions near and far.

    Args:
        net: From images to the map; what one of its positions sees may be a part of the image.
        summary: From the map to a vector.
    """

    def __init__(self, net: nn.Module, summary: nn.Module) -> None:
        super().__init__()
        self.net, self.summary = net, summary

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vector, ``(batch, size)``, and the map, ``(batch, channels, ...)``."""
        spatial: Tensor = self.net(x)
        return self.summary(spatial), spatial


def _check(factor: int) -> None:
    if factor not in FACTORS:
        raise ValueError(f"factor must be 2 or 4, got {factor}")


def _check_sides(x: Tensor, factor: int) -> None:
    if any(side % factor for side in x.shape[-2:]):
        sides = tuple(x.shape[-2:])
        raise ValueError(f"sides must be multiples of {factor}, got {sides}")
