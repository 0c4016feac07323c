"""Parameters laid end to end, so that one call updates, clips or averages them all."""

from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor, nn


@final
class FlatParameters:
    """One long vector whose pieces are the parameters, and one whose pieces are their gradients.

    Small networks have many small tensors; visiting each costs more than its arithmetic.

    Args:
        parameters: Of one dtype and on one device. Until :meth:`release` they are views.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.vector = nn.Parameter(torch.cat([p.detach().flatten() for p in self.parameters]))
        self.gradient: Tensor = torch.zeros_like(self.vector)
        self.vector.grad = self.gradient
        start = 0
        for parameter in self.parameters:
            piece = slice(start, start + parameter.numel())
            parameter.data = self.vector.detach()[piece].view_as(parameter)
            parameter.grad = self.gradient[piece].view_as(parameter)
            start = piece.stop

    def release(self) -> None:
        """Give every parameter a tensor of its own again."""
        for parameter in self.parameters:
            parameter.data, parameter.grad = parameter.data.clone(), None


def flatten(module: nn.Module) -> list[tuple[FlatParameters, bool]]:
    """Flatten what is to be trained of a module, by kind; the flag tells matrices from vectors."""
    kinds: dict[tuple[torch.dtype, torch.device, bool], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            kind = (parameter.dtype, parameter.device, parameter.dim() > 1)
            kinds.setdefault(kind, []).append(parameter)
    return [(FlatParameters(members), kind[2]) for kind, members in kinds.items()]
