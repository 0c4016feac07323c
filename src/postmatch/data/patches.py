"""Symmetries of patches of photographs."""

from typing import final

import torch
from torch import Tensor

_SIDE = 8


@final
class PatchSymmetries:
    """Patches turned by quarters and mirrored at random, as photographs might have been taken.

    Args:
        scale: How many units of grey the unit of each of the 63 pixels is.
    """

    def __init__(self, scale: Tensor) -> None:
        self.scale = scale
        pixels = torch.arange(_SIDE * _SIDE, device=scale.device).view(_SIDE, _SIDE)
        turned = [pixels.rot90(quarters) for quarters in range(4)]
        self.places = torch.stack([p.flatten() for each in turned for p in (each, each.mT)])

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return patches of the same shape, ``(batch, 63)``, each in one of its eight positions."""
        count = len(self.places)
        which = torch.randint(count, x.shape[:1], generator=generator, device=x.device)
        grey = x * self.scale
        whole = torch.cat([grey, -grey.sum(1, keepdim=True)], dim=1)  # the mean of a patch is zero
        return whole.gather(1, self.places[which])[:, :-1] / self.scale
