"""Multilayer perceptrons, plain and residual."""

import abc
from collections.abc import Sequence
from itertools import pairwise
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


class LinearFirst(nn.Module, abc.ABC):
    """A network that begins with a linear layer of its flattened input.

    What follows when one number of the input changes can then be had without that layer's product.
    """

    first: Linear

    @abc.abstractmethod
    def after_first(self, hidden: Tensor) -> Tensor:
        """Return the features that follow from what the first layer returned, and may change it."""


@final
class Perceptron(LinearFirst):
    """Linear layers with rectifiers between them and after the last.

    Args:
        in_size: Numbers of an input, which is flattened behind the batch.
        widths: Of the layers.
    """

    tensors_only = True

    def __init__(self, in_size: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.first = Linear(in_size, widths[0])
        self.others = nn.ModuleList(Linear(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Return features, ``(batch, last width)``."""
        return self.after_first(self.first(x.flatten(1)))

    def after_first(self, hidden: Tensor) -> Tensor:
        """See the base."""
        hidden = hidden.relu_()
        for layer in self.others:
            hidden = layer(hidden).relu_()
        return hidden


@final
class ResidualMLP(LinearFirst):
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
        return self.after_first(self.first(x))

    def after_first(self, hidden: Tensor) -> Tensor:
        """See the base."""
        features: Tensor = self.last(self.blocks(hidden))
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
