"""Parameters laid end to end, so that one call updates, clips or averages them all."""

from collections.abc import Iterable
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

_SMALLEST_SQUARE = 16


class Kind(NamedTuple):
    """What parameters must share to be laid end to end."""

    dtype: torch.dtype
    device: torch.device
    is_matrix: bool
    side: int
    """Of square matrices, if those are kept apart; otherwise 0."""


@final
class FlatParameters:
    """One long vector whose pieces are the parameters, and one whose pieces are their gradients.

    Small networks have many small tensors; visiting each costs more than its arithmetic.

    Args:
        parameters: Of one kind. Until :meth:`release` they are views.
        kind: What they share.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], kind: Kind) -> None:
        self.parameters, self.kind = list(parameters), kind
        self.vector = nn.Parameter(torch.cat([p.detach().flatten() for p in self.parameters]))
        self.gradient: Tensor = torch.zeros_like(self.vector)
        self.vector.grad = self.gradient
        start = 0
        for parameter in self.parameters:
            piece = slice(start, start + parameter.numel())
            parameter.data = self.vector.detach()[piece].view_as(parameter)
            start = piece.stop

    def forget_gradients(self) -> None:
        """Let the next backward pass give every parameter a gradient of its own."""
        for parameter in self.parameters:
            parameter.grad = None

    def gather_gradients(self) -> None:
        """Lay the parameters' gradients end to end; of one that has none it is zero.

        One call, where gradients that are views would each be added to.
        """
        each = (p if p.grad is None else p.grad for p in self.parameters)
        pieces = [
            g.new_zeros(g.numel()) if g is p else g.flatten()
            for g, p in zip(each, self.parameters, strict=True)
        ]
        torch.cat(pieces, out=self.gradient)

    def release(self) -> None:
        """Give every parameter a tensor of its own again."""
        for parameter in self.parameters:
            parameter.data, parameter.grad = parameter.data.clone(), None


def flatten(module: nn.Module, *, squares_apart: bool = False) -> list[FlatParameters]:
    """Flatten what is to be trained of a module, by kind."""
    kinds: dict[Kind, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            side = _side(parameter) if squares_apart else 0
            kind = Kind(parameter.dtype, parameter.device, parameter.dim() > 1, side)
            kinds.setdefault(kind, []).append(parameter)
    return [FlatParameters(members, kind) for kind, members in kinds.items()]


def _side(parameter: Tensor) -> int:
    """Return the side of a square matrix, as hidden layers have, 0 for anything else."""
    square = parameter.dim() == 2 and parameter.shape[0] == parameter.shape[1]
    return len(parameter) if square and len(parameter) >= _SMALLEST_SQUARE else 0
