"""A bar on stderr that follows a run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from postmatch.training.plan import Progress


@contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Yield what ``train`` may show its progress to: a bar with the time left, on stderr.

    Nothing is shown if ``quiet``, in notebooks, and where stderr is a file or a pipe.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    silent = quiet or console.is_jupyter or not console.is_terminal
    with Bar(*columns, console=console, transient=True, disable=silent) as bar:
        task = bar.add_task(label, total=1.0, note="")

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.fraction, note=note_of(progress))

        yield show


def in_turn(*listeners: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Return what shows progress to one listener after the other."""

    def show(progress: Progress) -> None:
        for listener in listeners:
            listener(progress)

    return show


def note_of(progress: Progress) -> str:
    """Return a run's step, its rate, its loss terms and its latest score, in a few words."""
    parts = [f"step {progress.step:,}"] if progress.step else []
    if progress.seconds > 0.0:
        parts.append(f"{progress.step / progress.seconds:,.0f}/s")
    parts += [f"{name} {value:.2f}" for name, value in progress.losses.items()]
    if progress.validation is not None:
        parts.append(f"held out {progress.validation:.3f}")
    return ", ".join(parts)
