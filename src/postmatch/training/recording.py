"""Repeating the same operations: on a GPU, by a recording that is played back."""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar, final

import torch

_WARM_UPS = 3  # calls before the recording, in which libraries choose and prepare what they need

T = TypeVar("T")


@final
class Recorded(Generic[T]):
    """A function of nothing whose work is on tensors that stay in place.

    On a CPU it is simply called. On a GPU, small networks are so quickly computed that launching
    their operations one by one takes longer; after a few calls they are recorded as a CUDA graph
    and played back as one.

    Args:
        function: What to repeat. It returns tensors, which later calls overwrite.
        device: Where its tensors are.
        generators: What it draws from.
        recordable: Whether to record it at all.
    """

    def __init__(
        self,
        function: Callable[[], T],
        device: torch.device,
        generators: Sequence[torch.Generator] = (),
        *,
        recordable: bool = True,
    ) -> None:
        self.function = function
        self.generators = [g for g in generators if g.device.type == device.type]
        self.recordable = recordable and device.type == "cuda"
        self.stream: torch.cuda.Stream | None = None
        if self.recordable:
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0
        self.result: T | None = None

    def __call__(self) -> T:
        """Do it once."""
        if self.stream is None:
            return self.function()
        self.calls += 1
        if self.graph is None and self.recordable and self.calls > _WARM_UPS:
            self._record(self.stream)
        if self.graph is None:
            return self._beside(self.stream)
        self.graph.replay()
        assert self.result is not None
        return self.result

    def free(self) -> None:
        """Free the recording, and the memory that it keeps."""
        self.graph, self.result, self.calls = None, None, 0

    def _beside(self, stream: torch.cuda.Stream) -> T:
        """Call the function on the stream of the recording."""
        here = torch.cuda.current_stream(stream.device)
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            result = self.function()
        here.wait_stream(stream)
        return result

    def _record(self, stream: torch.cuda.Stream) -> None:
        graph = torch.cuda.CUDAGraph()
        before = [generator.clone_state() for generator in self.generators]
        for generator in self.generators:
            graph.register_generator_state(generator)
        try:
            with _nothing_freed(), torch.cuda.graph(graph, stream=stream):
                self.result = self.function()
        except RuntimeError as error:
            self.recordable = False
            for generator, state in zip(self.generators, before, strict=True):
                generator.graphsafe_set_state(state)  # its own still waits for the recording
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"this step cannot be recorded as a CUDA graph, so it runs slower: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self.graph = graph


@contextmanager
def _nothing_freed() -> Iterator[None]:
    """Collect garbage now and not in the block: a recording freed in it would spoil another."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
