"""Parameters laid end to end, so that one call updates, clips or averages them all."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from postmatch.nets.linear import Half

Shapes = Literal["none", "square", "any"]
_DIMENSIONS = {"none": (), "square": (2,), "any": (2, 4)}  # of linear layers and convolutions
_SMALLEST_SIDE = 16
_ALIGNED = 64  # numbers


class Kind(NamedTuple):
    """What parameters must share to be laid end to end."""

    dtype: torch.dtype
    device: torch.device
    is_matrix: bool
    sides: tuple[int, int] | None
    """Of matrices that are kept apart, rows and columns; otherwise None."""


@final
class FlatParameters:
    """One long vector whose pieces are the parameters, and one whose pieces are their gradients.

    Small networks have many small tensors; visiting each costs more than its arithmetic.

    Args:
        parameters: Of one kind. Until :meth:`release` they are views.
        kind: What they share.
        halved: Whether both vectors are there in bfloat16 too.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], kind: Kind, *, halved: bool = False
    ) -> None:
        self.parameters, self.kind = list(parameters), kind
        starts, length = _starts(self.parameters, packed=kind.sides is not None)
        like = {"dtype": kind.dtype, "device": kind.device}
        self.vector = nn.Parameter(torch.zeros(length, **like))  # type: ignore[call-overload]
        self.gradient: Tensor = torch.zeros_like(self.vector)
        self.half_vector, self.half_gradient = (
            torch.zeros(length if halved else 0, dtype=torch.bfloat16, device=kind.device)
            for _ in range(2)
        )
        self.places: dict[nn.Parameter, Tensor] = {}
        self.halves: dict[nn.Parameter, Half] = {}
        for parameter, start in zip(self.parameters, starts, strict=True):
            piece = slice(start, start + parameter.numel())
            values = self.vector.detach()[piece].view_as(parameter)
            parameter.data = values.copy_(parameter.detach())
            self.places[parameter] = self.gradient[piece].view_as(parameter)
            if halved:
                both = (self.half_vector, self.half_gradient)
                self.halves[parameter] = Half(*(v[piece].view_as(parameter) for v in both))

    def start_over(self) -> None:
        """Forget all gradients, and round the parameters that are there in half precision."""
        self.gradient.zero_()
        if self.halves:
            self.half_gradient.zero_()
            self.half_vector.copy_(self.vector.detach())
        for parameter in self.parameters:
            parameter.grad = None

    def gather_gradients(self) -> None:
        """Add what autograd found for parameters, if anything, to their places, all at once."""
        found = [(self.places[p], p.grad) for p in self.parameters if p.grad is not None]
        if found:
            places, gradients = zip(*found, strict=True)
            torch._foreach_add_(places, gradients)
        if self.halves:
            self.gradient.add_(self.half_gradient)

    def release(self) -> None:
        """Give every parameter a tensor of its own again."""
        for parameter in self.parameters:
            parameter.data, parameter.grad = parameter.data.clone(), None


def flatten(
    module: nn.Module, *, apart: Shapes = "none", halved: bool = False
) -> list[FlatParameters]:
    """Flatten what is to be trained of a module, by kind; see :class:`FlatParameters`.

    Args:
        module: What is trained.
        apart: Which matrices are kept apart, those of the same sides together: ``square`` ones, as
            between hidden layers; or ``any`` that are not narrow, those of convolutions too.
        halved: Whether weights and gradients are there in bfloat16 too.
    """
    kinds: dict[Kind, list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            sides = _sides(parameter, apart)
            kind = Kind(parameter.dtype, parameter.device, parameter.dim() > 1, sides)
            kinds.setdefault(kind, []).append(parameter)
    return [FlatParameters(members, kind, halved=halved) for kind, members in kinds.items()]


def untrained_halves(module: nn.Module) -> dict[nn.Parameter, Half]:
    """Return what is not trained of a module in bfloat16, and no place for gradients."""
    frozen = [p for p in module.parameters() if not p.requires_grad]
    return {p: Half(p.detach().to(torch.bfloat16), p.new_empty(0)) for p in frozen}


def _starts(parameters: Iterable[Tensor], *, packed: bool) -> tuple[list[int], int]:
    """Return where each begins and the length of all, aligned as kernels like it unless packed."""
    starts, length = [], 0
    for parameter in parameters:
        starts.append(length)
        length += parameter.numel() if packed else -(-parameter.numel() // _ALIGNED) * _ALIGNED
    return starts, length


def _sides(parameter: Tensor, apart: Shapes) -> tuple[int, int] | None:
    """Return outputs and inputs of a matrix that is kept apart, None for anything else."""
    if parameter.dim() not in _DIMENSIONS[apart]:
        return None
    rows, columns = len(parameter), parameter[0].numel()
    if min(rows, columns) < _SMALLEST_SIDE or (apart == "square" and rows != columns):
        return None
    return rows, columns
