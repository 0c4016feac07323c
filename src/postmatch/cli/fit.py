"""``postmatch fit``: learn a table and keep the model."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from postmatch.cli.files import Source, output_for
from postmatch.cli.grids import facts_grid
from postmatch.cli.groups import Columns, Fitting, Reading, Running, TableArgument
from postmatch.cli.models import check_folder, fitted, keep
from postmatch.cli.session import Session, session

EXAMPLES = """
    postmatch fit people.csv                           keeps people.model
    postmatch fit people.csv -o models/people --max-minutes 5
    postmatch fit people.csv --ordered size=S,M,L --ignore id --missing -999
    postmatch fit people.csv --resume                  goes on where Ctrl-C or a crash cut it off
"""


def fit(
    table: TableArgument,
    reading: Reading,
    columns: Columns,
    fitting: Fitting,
    running: Running,
    model: Annotated[
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
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the model that is there.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a fit that was cut off.")
    ] = False,
) -> None:
    """Learn TABLE and keep the model, for impute, sample, score, describe and report.

    Its state is saved every minute beside DIR, in DIR.unfinished, and removed at the end.
    """
    with session(running) as here:
        folder = model or Path(output_for(table, "model", ""))
        folder = folder.resolve() if folder.name in ("", "..") else folder
        check_folder(folder)
        if folder.exists() and any(folder.iterdir()) and not replace:
            raise ValueError(f"{folder} holds a model already; --replace replaces it")
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        _check_unfinished(unfinished, resume=resume, replace=replace)
        data = Source(table, reading).read().data
        with _keeping(here, unfinished):
            learned = fitted(here, data, columns, fitting, unfinished, resume=resume)
        keep(here, learned, folder)
        shutil.rmtree(unfinished, ignore_errors=True)
        here.show(facts_grid(learned))
        here.result({"model": str(folder), **learned.facts})


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


def _check_unfinished(folder: Path, *, resume: bool, replace: bool) -> None:
    """Raise rather than lose a fit that was cut off, unless that is asked for."""
    if resume and not folder.exists():
        raise ValueError(f"there is no {folder} to go on with; leave out --resume to start")
    if folder.exists() and not resume:
        if not replace:
            raise ValueError(
                f"{folder} holds a fit that was cut off: --resume goes on, --replace starts anew"
            )
        shutil.rmtree(folder)
