"""Seeds: torch's global state for a while, and noise that belongs to the rows of a table."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from torch import Tensor

BLOCK_ROWS = 1_024  # row i of a table gets its noise from block i // 1024


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global state inside the block, and restore it afterwards.

    CUDA is left alone as long as nothing has used it, so that seeding does not start it.

    Example:
        >>> with seeded(3):
        ...     first = torch.rand(2)
        >>> with seeded(3):
        ...     bool((torch.rand(2) == first).all())
        True
    """
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = range(torch.cuda.device_count()) if started else range(0)
    with torch.random.fork_rng(devices=list(cuda)):
        # Not torch.manual_seed, which would leave a seed waiting for a CUDA that starts later.
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed_all(seed)
        yield


@final
class RowNoise:
    """Uniforms for some rows of a table, the same whatever other rows are asked for with them.

    Args:
        seeds: One for each draw; they should hold the number of the block.
        places: Of the rows in the table, all in one block.
        device: Where the noise goes; it is made on the CPU, so that devices agree.
    """

    def __init__(
        self, seeds: Sequence[tuple[int, ...]], places: Tensor, device: torch.device
    ) -> None:
        mixed = [np.random.SeedSequence(seed).generate_state(1, np.uint64) for seed in seeds]
        self.generators = [torch.Generator().manual_seed(int(state[0])) for state in mixed]
        self.places, self.device = places % BLOCK_ROWS, device

    def __call__(self, size: int) -> Tensor:
        """Return fresh uniforms, ``(draws, rows, size)``."""
        whole = (torch.rand(BLOCK_ROWS, size, generator=g) for g in self.generators)
        return torch.stack([block[self.places] for block in whole]).to(self.device)


def noise_blocks(rows: Tensor, offset: int = 0) -> Iterator[tuple[int, Tensor]]:
    """Yield increasing rows block by block, with the number of each block.

    Args:
        rows: Their places in a chunk of a table.
        offset: The place of the chunk in the table.
    """
    block, first = np.unique((rows + offset).numpy() // BLOCK_ROWS, return_index=True)
    parts = np.split(rows.numpy(), first)[1:]  # before the first block there is nothing
    yield from zip(block.tolist(), map(torch.from_numpy, parts), strict=True)
