"""``postmatch fit``: learn a table and keep the model."""

from pathlib import Path
from typing import Annotated

import typer

from postmatch.cli.files import Source, output_for
from postmatch.cli.grids import facts_grid
from postmatch.cli.groups import Fitting, Reading, Running, TableArgument
from postmatch.cli.models import check_folder, fitted, keep
from postmatch.cli.session import session

EXAMPLES = """
    postmatch fit people.csv                           keeps people.model
    postmatch fit people.csv -o models/people --max-minutes 5
    postmatch fit people.csv --ordered size=S,M,L --ignore id --missing -999
"""


def fit(
    table: TableArgument,
    reading: Reading,
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
) -> None:
    """Learn TABLE and keep the model, for impute, sample, score, describe and report."""
    with session(running) as here:
        folder = model or Path(output_for(table, "model", ""))
        check_folder(folder)
        if folder.exists() and any(folder.iterdir()) and not replace:
            raise ValueError(f"{folder} holds a model already; --replace replaces it")
        learned = fitted(here, Source(table, reading).read().data, fitting)
        keep(here, learned, folder)
        here.show(facts_grid(learned))
        here.result({"model": str(folder), **learned.facts})
