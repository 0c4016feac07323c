"""The optimiser of everything that is not a square matrix."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

_PIECE = 1 << 14  # numbers; a GPU's kernel gives each piece, however long, to one multiprocessor


@final
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter, 2019) over long vectors.

    torch's own optimiser, called so that a step can be recorded and asks nothing of the host.

    Args:
        vectors: What it moves.
        gradients: Theirs; whoever calls :meth:`step` has filled them.
        decays: The weight decay of each.
        betas: How much of the old mean and mean square of the gradients each step keeps.
    """

    def __init__(
        self,
        vectors: Sequence[Tensor],
        gradients: Sequence[Tensor],
        decays: Sequence[float],
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        self.decays, self.betas = list(decays), betas
        self.means = [torch.zeros_like(vector) for vector in vectors]
        self.squares = [torch.zeros_like(vector) for vector in vectors]
        self.counts = [torch.zeros((), device=vector.device) for vector in vectors]
        together = zip(vectors, gradients, self.means, self.squares, strict=True)
        self.pieces = [[_pieces(part) for part in each] for each in together]

    @torch.no_grad()
    def step(self, rate: Tensor, valid: Tensor) -> None:
        """Move every vector, unless the gradients are not ``valid``: one boolean in a tensor."""
        skip = (~valid).float()
        for each, count, decay in zip(self.pieces, self.counts, self.decays, strict=True):
            count.add_(valid)
            torch._fused_adamw_(  # type: ignore[call-overload]
                *each,
                [],
                [count] * len(each[0]),
                lr=rate,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=decay,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
                found_inf=skip,
            )


def _pieces(vector: Tensor) -> list[Tensor]:
    """Return a vector as it is, or on a GPU in views short enough to keep all of it busy."""
    return list(torch.split(vector, _PIECE)) if vector.device.type == "cuda" else [vector]
