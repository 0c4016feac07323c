"""Plain convolutional networks between images and vectors.

Inside, the channels of a pixel lie side by side, as libraries of convolutions want them.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Layer = tuple[int, int, int]  # filters, kernel, stride

_SLOPE = 0.01  # of a leaky ReLU


@final
class ConvEncoder(nn.Module):
    """From images to vectors: convolutions that keep the size or divide it, the last over all.

    Args:
        channels: Of the images, and of the mask if it stands beside them.
        layers: Filters, kernel and stride of each. Kernels of all but the last are odd, and their
            edges are padded; the last is not padded, so that a kernel as large as what the others
            leave gives one position.
    """

    tensors_only = True  # from tensors to tensors, so that it can be compiled

    def __init__(self, channels: int, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for i, (filters, kernel, stride) in enumerate(layers):
            padding = 0 if i == len(layers) - 1 else _same(kernel)
            self.layers.append(nn.Conv2d(channels, filters, kernel, stride, padding))
            channels = filters

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, features)`` of ``(batch, channels, height, width)``."""
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self.layers:
            x = F.leaky_relu(layer(x), _SLOPE)
        return x.flatten(1)


@final
class ConvDecoder(nn.Module):
    """From vectors to images: transposed convolutions that keep the size or multiply it.

    Args:
        latent_size: Length of the vectors.
        layers: Filters, kernel and stride of each. The first makes one position as large as its
            kernel; kernels of the others are odd. Nothing follows the last.
    """

    tensors_only = True

    def __init__(self, latent_size: int, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.layers, channels = nn.ModuleList(), latent_size
        for i, (filters, kernel, stride) in enumerate(layers):
            padding, more = (0, 0) if i == 0 else (_same(kernel), stride - 1)
            self.layers.append(nn.ConvTranspose2d(channels, filters, kernel, stride, padding, more))
            channels = filters

    def forward(self, z: Tensor) -> Tensor:
        """Return ``(..., channels, height, width)`` of ``(..., latent_size)``."""
        x = z.reshape(-1, z.shape[-1], 1, 1).contiguous(memory_format=torch.channels_last)
        for i, layer in enumerate(self.layers):
            x = layer(F.leaky_relu(x, _SLOPE) if i else x)
        return x.contiguous().view(*z.shape[:-1], *x.shape[1:])


def _same(kernel: int) -> int:
    """Return the padding that leaves the size to the stride alone."""
    if kernel % 2 == 0:
        raise ValueError(f"kernel must be odd where edges are padded, got {kernel}")
    return kernel // 2
