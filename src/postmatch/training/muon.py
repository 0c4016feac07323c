"""An optimiser for the matrices inside a network."""

import math
from collections.abc import Sequence
from functools import partial
from typing import final

import torch
from torch import Tensor

from postmatch.streams import side_by_side

# Polynomials that bring singular values near 1, each the best for what the ones before leave:
# Amsel et al., "The Polar Express" (2025). Three leave them within a factor of ten of each other,
# which is near enough for a direction to step along.
_POLYNOMIALS = ((8.2873, -23.5959, 17.3004), (4.1071, -2.9478, 0.5448), (3.9487, -2.9089, 0.5518))
_TINY = 1e-7
_AT_ONCE = 8  # stacks of matrices that a GPU works on


@final
class Muon:
    """Momentum whose steps are orthogonal matrices (Jordan et al., 2024).

    A gradient of a layer has a few large directions and many small ones; a step that is as long in
    all of them learns the small ones too. Steps of matrices with more rows than columns are longer,
    so that outputs change as much as inputs of the same size do.

    Args:
        matrices: Stacks of matrices with a gradient, each ``(number, rows, columns)``.
        gradients: Theirs, of the same shapes; whoever calls :meth:`step` has filled them.
        momentum: How much of the old direction each step keeps.
    """

    def __init__(
        self, matrices: Sequence[Tensor], gradients: Sequence[Tensor], momentum: float = 0.95
    ) -> None:
        self.matrices, self.gradients, self.momentum = list(matrices), list(gradients), momentum
        self.directions = [torch.zeros_like(each) for each in self.matrices]

    @torch.no_grad()
    def step(self, rate: Tensor, decay: Tensor, valid: Tensor) -> None:
        """Move every matrix by ``rate`` along its direction, and shrink it by ``decay``.

        Nothing changes unless the gradients are ``valid``, which one boolean in a tensor tells.
        """
        stacks = zip(self.matrices, self.gradients, self.directions, strict=True)
        moves = [partial(self._move, *stack, rate, decay, valid) for stack in stacks]
        side_by_side(rate.device, moves, _AT_ONCE)

    def _move(
        self,
        matrix: Tensor,
        gradient: Tensor,
        direction: Tensor,
        rate: Tensor,
        decay: Tensor,
        valid: Tensor,
    ) -> None:
        found = torch.add(gradient, direction, alpha=self.momentum)
        ahead = torch.add(gradient, found, alpha=self.momentum)
        length = -math.sqrt(max(1.0, matrix.shape[-2] / matrix.shape[-1]))
        moved = torch.addcmul(matrix * (1.0 - decay), orthogonalised(ahead), rate, value=length)
        direction.copy_(torch.where(valid, found, direction))
        matrix.copy_(torch.where(valid, moved, matrix))


def orthogonalised(matrices: Tensor) -> Tensor:
    """Return matrices with the same singular vectors and all singular values near 1.

    Args:
        matrices: ``(..., rows, columns)``; a matrix of zeros stays one.
    """
    if matrices.shape[-2] > matrices.shape[-1]:  # products are of the shorter side
        return orthogonalised(matrices.mT).mT
    size = torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
    x: Tensor = matrices / (size + _TINY)
    for a, b, c in _POLYNOMIALS:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x
