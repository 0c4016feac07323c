"""What each place of a grid is told of a partly seen image: all of it, near and far."""

from collections.abc import Sequence
from typing import final

from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.nets.residual_conv import ResidualStack, shrinking

_LEVELS = 4  # each with half the side of the one before


@final
class ContextNet(nn.Module):
    """From images to a map of a smaller side, every place of which sees all of them.

    The map is made smaller still, three times, and larger again, with residual blocks of every
    size, so that what is far away takes few steps (a U-Net).

    Args:
        in_channels: Of the images, and of the mask if it stands beside them.
        width: Channels inside and of the map.
        hidden: Channels inside a residual block.
        num_blocks: Residual blocks of each of the four sizes, the largest first, on the way down
            and, but for the smallest, again on the way up.
        factor: By which the map is smaller, 2 or 4.
        fine: Channels and residual blocks of the size of the images, before the map; none if 0.
    """

    tensors_only = True  # from tensors to tensors, so that it can be compiled

    def __init__(
        self,
        in_channels: int,
        width: int,
        hidden: int,
        num_blocks: Sequence[int],
        factor: int = 4,
        fine: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__()
        if len(num_blocks) != _LEVELS:
            raise ValueError(f"num_blocks must be {_LEVELS} numbers, got {len(num_blocks)}")
        channels, fine_blocks = fine
        self.fine = nn.Sequential()
        if channels:
            self.fine.append(nn.Conv2d(in_channels, channels, 3, padding=1))
            self.fine.append(ResidualStack(channels, channels, fine_blocks))
        self.first = shrinking(channels or in_channels, width, factor)
        steps = range(_LEVELS - 1)
        self.smaller = nn.ModuleList(nn.Conv2d(width, width, 3, 2, 1) for _ in steps)
        self.down, self.up = (
            nn.ModuleList(ResidualStack(width, hidden, count) for count in counts)
            for counts in (num_blocks, num_blocks[-2::-1])
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, width, height / factor, width / factor)``."""
        state: Tensor = self.first(self.fine(x))
        seen: list[Tensor] = []
        for smaller, stack in zip(self.smaller, self.down, strict=False):
            seen.append(stack(state))
            state = smaller(seen[-1])
        state = self.down[-1](state)
        for stack, beside in zip(self.up, reversed(seen), strict=True):
            state = stack(beside + F.interpolate(state, beside.shape[2:]))
        return state
