"""Batches of training images, as they are, mirrored or moved."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F


@final
@dataclass(frozen=True, eq=False)
class ImageBatches:
    """Draws batches of images, with replacement.

    Args:
        images: uint8, ``(rows, channels, height, width)``.
        size: Images per batch, at most as many as there are.
        generator: On the device of the images.
        mirrored: Whether half of them, at random, are mirrored left to right.
        shift: By how many pixels each is moved at most, along both axes; edges are repeated.
    """

    images: Tensor
    size: int
    generator: torch.Generator
    mirrored: bool = False
    shift: int = 0

    def __call__(self) -> Tensor:
        """Return a batch, in [0, 1]."""
        x = self.images[self._whole(len(self.images))] / 255.0
        if self.mirrored:
            flipped = self._whole(2).bool()[:, None, None, None]
            x = torch.where(flipped, x.flip(-1), x)
        if self.shift:
            down, right = (self._whole(2 * self.shift + 1) - self.shift for _ in range(2))
            x = moved(x, down, right, self.shift)
        return x

    def _whole(self, below: int) -> Tensor:
        """Return a whole number for each image."""
        size = (min(self.size, len(self.images)),)
        return torch.randint(below, size, generator=self.generator, device=self.images.device)


def moved(x: Tensor, down: Tensor, right: Tensor, most: int) -> Tensor:
    """Return images each moved by its own number of pixels, with its edge where nothing was.

    Args:
        x: ``(batch, channels, height, width)``.
        down: By how many, from ``-most`` to ``most``, ``(batch,)``.
        right: Likewise.
        most: A bound of both.
    """
    batch, channels, height, width = x.shape
    rows, columns = (
        most - by[:, None] + torch.arange(length, device=x.device)  # (batch, length)
        for by, length in ((down, height), (right, width))
    )
    place = rows[:, :, None] * (width + 2 * most) + columns[:, None]  # (batch, height, width)
    around = F.pad(x, (most,) * 4, mode="replicate").flatten(2)
    found = around.gather(2, place.flatten(1)[:, None].expand(-1, channels, -1))
    return found.view(batch, channels, height, width)
