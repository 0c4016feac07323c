"""Residual multilayer perceptrons."""

from typing import final

import torch
from torch import Tensor, nn

from postmatch.nets.linear import Linear


@final
class ResidualBlock(nn.Module):
    """Add two linear layers to their input, normalised first if so wished."""

    def __init__(self, width: int, dropout: float = 0.0, *, normalised: bool = True) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if normalised else nn.Identity()
        self.inner = Linear(width, width)
        self.outer = Linear(width, width)
        self.activation = nn.SiLU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` plus its correction, ``(..., width)``."""
        hidden = self.activation(self.inner(self.norm(x)))
        correction: Tensor = self.outer(self.dropout(hidden))
        return x + correction


@final
class ResidualMLP(nn.Module):
    """A linear layer in, residual blocks, a normalisation if so wished, and an activation."""

    tensors_only = True  # from tensors to tensors, so that it can be compiled

    def __init__(
        self,
        in_size: int,
        width: int,
        num_blocks: int,
        dropout: float = 0.0,
        *,
        normalised: bool = True,
    ) -> None:
        super().__init__()
        self.width = width
        self.first = Linear(in_size, width)
        blocks = [ResidualBlock(width, dropout, normalised=normalised) for _ in range(num_blocks)]
        self.blocks = nn.Sequential(*blocks)
        norm = nn.LayerNorm(width) if normalised else nn.Identity()
        self.last = nn.Sequential(norm, nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        """Return features, ``(..., width)``."""
        features: Tensor = self.last(self.blocks(self.first(x)))
        return features


@final
class SideBySide(nn.Module):
    """What several networks make of the same input, side by side."""

    def __init__(self, *nets: nn.Module) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: Tensor) -> Tensor:
        """Return their features, ``(..., sum of features)``."""
        return torch.cat([net(x) for net in self.nets], dim=-1)


@final
class WithInput(nn.Module):
    """Features of a network and, after them, its input: a head may then pass values on as they are.

    Args:
        net: From ``(..., size)`` to features.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., features + size)``."""
        return torch.cat([self.net(x), x], dim=-1)
