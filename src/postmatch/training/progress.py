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
            known = progress.validation is not None
            note = f"step {progress.step:,}" + (f", {progress.validation:.3f}" if known else "")
            bar.update(task, completed=progress.fraction, note=note)

        yield show
