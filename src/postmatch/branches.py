"""Two lines of work in one training step, at the same time where a GPU records it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor


@final
class Branch:
    """Work that does not wait for what comes after it, until they are joined.

    The networks of a table are too small to fill a GPU, so two of them take little longer than one
    if they run side by side, forward and backward. Outside of a recording, where launching the
    operations takes longest anyway, and on a CPU, everything happens in order.

    Args:
        device: Where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self.main: torch.cuda.Stream | None = None
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self.main = torch.cuda.current_stream(device)
            self.side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self, *used: Tensor) -> Iterator[None]:
        """Do what is inside the block on the branch; it knows all that was begun before it.

        Args:
            used: Tensors made outside that are used inside, also by the backward pass.
        """
        if self.main is None:
            yield
            return
        self.side.wait_stream(self.main)
        for tensor in used:
            tensor.record_stream(self.side)  # or its memory might be given away too early
        with torch.cuda.stream(self.side):
            yield

    def join(self, made: Tensor) -> Tensor:
        """Return what was made on the branch, for use outside."""
        if self.main is not None:
            self.main.wait_stream(self.side)
            made.record_stream(self.main)
        return made
