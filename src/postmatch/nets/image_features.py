"""Features of images of any size: a map at the size of a grid, and a vector of all of it."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.nets.residual_conv import ResidualStack

_SUMMARY_CHANNELS = 8


@final
class ImageFeatures(nn.Module):
    """Convolutions that halve an image as long as it is twice as large as a grid, or larger.

    What is left is averaged to the grid's size.

    Args:
        in_channels: Of the images, and of the mask beside them.
        size: Their height and width.
        grid: Height and width of the map.
        width: Its channels, and those of all layers.
        num_blocks: Residual blocks at each size.
        vector_size: Length of the vector.
    """

    tensors_only = True  # from tensors to tensors, so that it can be compiled

    def __init__(
        self,
        in_channels: int,
        size: tuple[int, int],
        grid: tuple[int, int],
        width: int,
        num_blocks: int,
        vector_size: int,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.first = nn.Conv2d(in_channels, width, 3, padding=1)
        self.halvings, self.stacks = nn.ModuleList(), nn.ModuleList()
        while all(side >= 2 * least for side, least in zip(size, grid, strict=True)):
            self.halvings.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
            self.stacks.append(ResidualStack(width, width // 2, num_blocks))
            size = ((size[0] + 1) // 2, (size[1] + 1) // 2)
        self.last = ResidualStack(width, width // 2, num_blocks)
        self.narrow = nn.Conv2d(width, _SUMMARY_CHANNELS, 1)
        self.summary = nn.Linear(_SUMMARY_CHANNELS * grid[0] * grid[1], vector_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vector, ``(batch, vector_size)``, and the map, ``(batch, width, *grid)``."""
        features = F.relu(self.first(x.contiguous(memory_format=torch.channels_last)))
        for halve, stack in zip(self.halvings, self.stacks, strict=True):
            features = stack(halve(features))
        features = self.last(F.adaptive_avg_pool2d(features, self.grid))
        vector: Tensor = self.summary(F.relu(self.narrow(features)).flatten(1))
        return vector, features


@final
class VectorOf(nn.Module):
    """The vector of a network that returns a vector and a map."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, vector_size)``."""
        vector: Tensor = self.net(x)[0]
        return vector
