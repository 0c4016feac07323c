"""Pictures of filled images beside what was seen of them."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

HIDDEN = (0.72, 0.80, 0.90)  # the colour of what is not seen: a blue that no ink has
_GAP = 2  # pixels between pictures


def masked(x: Tensor, observed: Tensor) -> Tensor:
    """Return images in colour, ``(batch, 3, height, width)``, with hidden pixels marked.

    Args:
        x: In [0, 1], of one channel or three; hidden pixels may hold anything.
        observed: ``(batch, 1, height, width)``.
    """
    colour = torch.tensor(HIDDEN, device=x.device).view(3, 1, 1)
    return torch.where(observed, x, colour.to(x.dtype))


def gallery(x: Tensor, observed: Tensor, filled: Sequence[Tensor], scale: int = 2) -> Tensor:
    """Return one picture of complete images, what is seen of them, and how they were filled.

    Args:
        x: Complete images, ``(batch, channels, height, width)``; each has a row of its own.
        observed: What is seen, ``(batch, 1, height, width)``.
        filled: Any number of completed batches.
        scale: How large a pixel is drawn.
    """
    return side_by_side([x, masked(x, observed), *filled], scale)


def side_by_side(columns: Sequence[Tensor], scale: int = 2) -> Tensor:
    """Return one picture, uint8 ``(3, height, width)``, with a column for every batch of images."""
    pictures = torch.stack([c.expand(-1, 3, -1, -1) for c in columns], dim=1)
    pictures = pictures.repeat_interleave(scale, -2).repeat_interleave(scale, -1)
    framed = F.pad(pictures, (0, _GAP, 0, _GAP), value=1.0)  # (rows, columns, 3, height, width)
    whole = framed.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
    return (whole.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)
