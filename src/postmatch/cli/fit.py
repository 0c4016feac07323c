"""``postmatch fit``: learn a table and keep the model."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from postmatch.cli.files import Source, check_writable_place, output_for
from postmatch.cli.grids import facts_grid
from postmatch.cli.groups import Columns, Fitting, Reading, Running, TableArgument
from postmatch.cli.models import check_folder, fitted, keep
from postmatch.cli.session import Session, session

EXAMPLES = """
    postmatch fit people.csv                           keeps people.model
    postmatch fit people.csv -o models/people --max-minutes 5
    postmatch fit people.csv --ordered size=S,M,L --ignore id --missing -999
    postmatch fit people.csv --resume                  goes on where Ctrl-C or a crash cut it off
    postmatch fit people.csv --tensorboard runs        and tensorboard --logdir runs shows it
    postmatch fit people.csv --slim                    keeps a folder of half the size
    torchrun --nproc-per-node 4 -m postmatch fit people.csv      on four GPUs
"""

ModelFolder = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        "--model",
        "-m",
        metavar="DIR",
        help="The folder to keep the model in.",
        show_default="table.model",
    ),
]
ReplaceOption = Annotated[bool, typer.Option("--replace", help="Replace the model that is there.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with a fit that was cut off.")]
SlimOption = Annotated[
    bool,
    typer.Option(
        "--slim",
        help="Keep weights in half precision: half the size, and answers that agree to about a "
        "hundredth of a column's spread.",
    ),
]
TensorBoardOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write loss terms, validation score and steps per second there, for TensorBoard; "
        "needs the extra postmatch[tensorboard].",
    ),
]


def fit(
    table: TableArgument,
    reading: Reading,
    columns: Columns,
    fitting: Fitting,
    running: Running,
    model: ModelFolder = None,
    replace: ReplaceOption = False,
    resume: ResumeOption = False,
    slim: SlimOption = False,
    tensorboard: TensorBoardOption = None,
) -> None:
    """Learn TABLE and keep the model, for impute, sample, score, describe and report.

    Its state is saved every minute beside DIR, in DIR.unfinished, and removed at the end.
    """
    from postmatch.training.parallel import rank, together

    with together(), session(_told_by_first(running, rank())) as here:
        folder = model or Path(output_for(table, "model", ""))
        folder = folder.resolve() if folder.name in ("", "..") else folder
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        if rank() == 0:
            _check_apart(tensorboard, folder, unfinished)
            _check_folders(folder, unfinished, resume=resume, replace=replace)
        data = Source(table, reading).read().data
        with _keeping(here, unfinished):
            learned = fitted(
                here, data, columns, fitting, unfinished, resume=resume, tensorboard=tensorboard
            )
        if rank() > 0:
            return  # the first process keeps what all have learned
        keep(here, learned, folder, slim=slim)
        shutil.rmtree(unfinished, ignore_errors=True)
        here.show(facts_grid(learned))
        here.result({"model": str(folder), **learned.facts})


def _told_by_first(running: Running, rank: int) -> Running:
    """Return how a process runs of which the first one tells what happens."""
    return running if rank == 0 else dataclasses.replace(running, quiet=True, json=False)


@contextlib.contextmanager
def _keeping(here: Session, unfinished: Path) -> Iterator[None]:
    """Fit, and of a fit that is cut off say what is kept of it and why it cannot go on."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if unfinished.exists():
            here.say(f"{unfinished} keeps what was learned so far: --resume goes on with it.")
        raise
    except Exception as error:
        if not any(unfinished.glob("member-*")):  # nothing was learned
            shutil.rmtree(unfinished, ignore_errors=True)
        if isinstance(error, ValueError) and "other data" in str(error):
            raise ValueError(
                f"{unfinished} holds a fit of another table: repeat the command it began with, or "
                "start anew with --replace"
            ) from error
        raise


def _check_folders(folder: Path, unfinished: Path, *, resume: bool, replace: bool) -> None:
    """Raise rather than lose a model or a fit that was cut off, unless that is asked for."""
    check_folder(folder)
    if folder.exists() and any(folder.iterdir()) and not replace:
        raise ValueError(f"{folder} holds a model already; --replace replaces it")
    if resume and not unfinished.exists():
        raise ValueError(f"there is no {unfinished} to go on with; leave out --resume to start")
    if unfinished.exists() and not resume:
        if not replace:
            raise ValueError(
                f"{unfinished} holds a fit that was cut off: --resume goes on, --replace starts "
                "anew"
            )
        shutil.rmtree(unfinished)


def _check_apart(tensorboard: Path | None, folder: Path, unfinished: Path) -> None:
    """Raise unless the folder for TensorBoard can be made, and is apart from those of the model."""
    if tensorboard is None:
        return
    place = tensorboard.resolve()
    for other in (folder, unfinished):
        if place.is_relative_to(other.resolve()):
            raise typer.BadParameter(f"--tensorboard: {tensorboard} is in {other}; name another")
    if place.exists() and not place.is_dir():
        raise typer.BadParameter(f"--tensorboard wants a folder, and {tensorboard} is a file")
    above = next(parent for parent in place.parents if parent.exists())
    check_writable_place(above / place.name, tensorboard)
