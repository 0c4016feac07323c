"""Rows that do not fit into memory, batch after batch."""

from collections.abc import Callable, Iterator
from typing import final

import torch
from torch import Tensor


@final
class StreamedRows:
    """The rows of a long stream, block by block, over and over, shuffled within each block.

    ``batch`` holds the rows of the step at hand. It is one tensor that is filled anew, so that a
    loss which reads it can be recorded by a GPU. A batch never spans two blocks: the last one of a
    block is filled up with rows that its first ones had, so blocks should be long.

    Args:
        blocks: From a number to the stream's blocks from that one on, each ``(rows, *features)``.
        batch_size: Rows per step; no block may be shorter.
        seed: Of the shuffling.
        device: Where the batch is.

    Example:
        >>> def blocks(start):
        ...     yield from [torch.arange(0, 4), torch.arange(4, 8)][start:]
        >>> rows = StreamedRows(blocks, batch_size=2)
        >>> for _ in range(4):
        ...     rows.advance()
        >>> sorted(rows.batch.tolist()) == sorted(rows.shuffled[2:].tolist())
        True
    """

    def __init__(
        self,
        blocks: Callable[[int], Iterator[Tensor]],
        batch_size: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.blocks, self.batch_size, self.seed = blocks, batch_size, seed
        self.device = torch.device(device)
        self.seek(0, 0, 0)

    def advance(self) -> None:
        """Fill the batch with the next rows."""
        if self.offset >= len(self.shuffled):
            self._open(self.number + 1)
        start = min(self.offset, len(self.shuffled) - self.batch_size)
        self.batch.copy_(self.shuffled[start : start + self.batch_size], non_blocking=True)
        self.offset += self.batch_size

    def position(self) -> tuple[int, int, int]:
        """Return how many passes are done, which block is at hand, and how far in it we are."""
        return self.passes, self.number, self.offset

    def seek(self, passes: int, number: int, offset: int) -> None:
        """Go to a position, as if all before it had been read."""
        self.passes, self.stream = passes, self.blocks(number)
        self._open(number)
        self.offset = offset

    def _open(self, number: int) -> None:
        """Read the next block, the first one again if there is none, and shuffle it."""
        block = next(self.stream, None)
        if block is None:
            if number == 0:
                raise ValueError("blocks must yield at least one block")
            self.passes, number, self.stream = self.passes + 1, 0, self.blocks(0)
            block = next(self.stream)
        if len(block) < self.batch_size:
            raise ValueError(
                f"no block may have fewer rows than batch_size ({self.batch_size}), "
                f"got {len(block)} in block {number}"
            )
        mixed = hash((self.seed, self.passes, number))  # of whole numbers: the same everywhere
        order = torch.randperm(len(block), generator=torch.Generator().manual_seed(mixed))
        self.number, self.offset, self.shuffled = number, 0, block[order]
        if not hasattr(self, "batch"):
            shape = (self.batch_size, *block.shape[1:])
            self.batch = torch.empty(shape, dtype=block.dtype, device=self.device)
