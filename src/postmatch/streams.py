"""Work of one training step that goes on side by side, where a GPU records the step.

The networks of a table are too small to fill a GPU, so several of them take little longer than one
if none waits for the others. Outside of a recording, where launching the operations takes longest
anyway, and on a CPU, everything happens in order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import final

import torch
from torch import Tensor


def new_streams(device: torch.device, number: int) -> list[torch.cuda.Stream]:
    """Return streams beside the one that is being recorded, none if there is no recording."""
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return []
    make = torch.cuda.Stream
    return [make(device) for _ in range(number)]  # type: ignore[no-untyped-call]


@contextmanager
def beside(stream: torch.cuda.Stream, *used: Tensor) -> Iterator[None]:
    """Do what is inside the block on another stream; it knows all that was begun before it.

    Args:
        stream: Which.
        used: Tensors made elsewhere that are used inside, also by the backward pass.
    """
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    for tensor in used:
        tensor.record_stream(stream)  # or its memory might be given away too early
    with torch.cuda.stream(stream):
        yield


def side_by_side(device: torch.device, jobs: Sequence[Callable[[], None]], at_once: int) -> None:
    """Do all of these, none of which needs another, before whatever comes after.

    Args:
        device: Where the work is done.
        jobs: What to do, with tensors made before it and tensors of its own.
        at_once: How many streams share the work.
    """
    streams = new_streams(device, min(at_once, len(jobs)))
    for i, job in enumerate(jobs):
        with beside(streams[i % len(streams)]) if streams else nullcontext():
            job()
    for stream in streams:
        torch.cuda.current_stream(device).wait_stream(stream)


@final
class Branch:
    """Work that does not wait for what comes after it, until they are joined.

    Args:
        device: Where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self.streams = new_streams(device, 1)

    @contextmanager
    def beside(self, *used: Tensor) -> Iterator[None]:
        """Do what is inside the block on the branch; it knows all that was begun before it.

        Args:
            used: Tensors made outside that are used inside, also by the backward pass.
        """
        if not self.streams:
            yield
            return
        with beside(self.streams[0], *used):
            yield

    def join(self, made: Tensor) -> Tensor:
        """Return what was made on the branch, for use outside."""
        for stream in self.streams:
            here = torch.cuda.current_stream(stream.device)
            here.wait_stream(stream)
            made.record_stream(here)
        return made
