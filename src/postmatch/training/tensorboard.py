"""Scalars for TensorBoard that follow a run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, final

from postmatch.training import parallel
from postmatch.training.plan import Progress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_WRITE_EVERY = 50  # steps; a step on a GPU may take no longer than writing a few scalars
_FLUSH_SECONDS = 10


@contextmanager
def tensorboard_log(folder: str | Path) -> Iterator[Callable[[Progress], None]]:
    """Yield what ``train`` and ``fit_table`` may show their progress to: scalars for TensorBoard.

    They are the terms of the loss, the validation score and the steps per second; each member of
    an ensemble is a run of its own, ``member-0``, ``member-1``, ... A run that goes on, or starts
    anew, replaces what the folder holds of it from that step on. Of several processes the first
    one writes.

    Raises:
        ImportError: If the package tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "--tensorboard needs the package tensorboard: pip install 'postmatch[tensorboard]'"
        ) from error
    runs: dict[int, _Run] = {}

    def show(progress: Progress) -> None:
        if parallel.rank() > 0:
            return
        if progress.member not in runs:
            place = Path(folder) / f"member-{progress.member}"
            writer = SummaryWriter(str(place), purge_step=progress.step, flush_secs=_FLUSH_SECONDS)
            runs[progress.member] = _Run(writer)
        runs[progress.member].show(progress)

    try:
        yield show
    finally:
        for run in runs.values():
            run.close()


@final
class _Run:
    """What one member told, and what of it is written."""

    def __init__(self, writer: "SummaryWriter") -> None:
        self.writer = writer
        self.written = self.latest = Progress(0.0, 0, 0.0, {}, None)

    def show(self, now: Progress) -> None:
        """Write what is new, if it is time to."""
        self.latest = now
        validated = now.validated_at != self.written.validated_at
        if validated or now.step - self.written.step >= _WRITE_EVERY:
            self._write()

    def close(self) -> None:
        """Write the end of the run, too."""
        if self.latest.step > self.written.step:
            self._write()
        self.writer.close()

    def _write(self) -> None:
        before, now = self.written, self.latest
        scalars = {f"loss/{name}": value for name, value in now.losses.items()}
        if now.seconds > before.seconds:
            rate = (now.step - before.step) / (now.seconds - before.seconds)
            scalars["steps_per_second"] = rate
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, now.step)
        if now.validation is not None and now.validated_at != before.validated_at:
            self.writer.add_scalar("validation", now.validation, now.validated_at)
        self.written = now
