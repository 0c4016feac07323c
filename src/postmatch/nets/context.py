"""What each place of a grid is told of a partly seen image: all of it, near and far."""

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.nets.residual_conv import ResidualStack

_LEVELS = 3  # each with half the side of the one before


@final
class ContextNet(nn.Module):
    """From images to a map of a quarter of their side, every place of which sees all of them.

    The map is made smaller twice and larger again, with residual blocks before and after, so that
    what is far away takes few steps (a U-Net).

    Args:
        in_channels: Of the images, and of the mask if it stands beside them.
        width: Channels inside and of the map.
        hidden: Channels inside a residual block.
        num_blocks: Residual blocks of each size, on the way down and again on the way up.
    """

    tensors_only = True  # from tensors to tensors, so that it can be compiled

    def __init__(self, in_channels: int, width: int, hidden: int, num_blocks: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(in_channels, width // 2, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 4, stride=2, padding=1),
        )
        steps = range(_LEVELS - 1)
        self.smaller = nn.ModuleList(nn.Conv2d(width, width, 3, 2, 1) for _ in steps)
        self.down, self.up = (
            nn.ModuleList(ResidualStack(width, hidden, num_blocks) for _ in range(count))
            for count in (_LEVELS, _LEVELS - 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, width, height / 4, width / 4)``."""
        state: Tensor = self.first(x)
        left: list[Tensor] = []
        for smaller, stack in zip(self.smaller, self.down, strict=False):
            left.append(stack(state))
            state = smaller(left[-1])
        state = self.down[-1](state)
        return self._upward(state, left)

    def _upward(self, state: Tensor, left: Sequence[Tensor]) -> Tensor:
        """Return the map, from the smallest one and those of the way down."""
        for stack, seen in zip(self.up, reversed(left), strict=True):
            state = stack(seen + F.interpolate(state, seen.shape[2:]))
        return state
