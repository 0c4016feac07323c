"""``postmatch describe``: a table's columns and gaps, and how well a model knows it."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group

from postmatch.cli.files import Source
from postmatch.cli.grids import columns_grid, facts_grid, lines, oddities_grid
from postmatch.cli.groups import Columns, OptionalTable, Reading, Running
from postmatch.cli.models import as_typed, loaded
from postmatch.cli.session import session

if TYPE_CHECKING:
    from postmatch.tables import Table

EXAMPLES = """
    postmatch describe people.csv                      columns and gaps, at once
    postmatch describe --model people.model            what a model knows
    postmatch describe people.csv -m people.model      and which rows look unlikely
"""


def describe(
    reading: Reading,
    columns: Columns,
    running: Running,
    table: OptionalTable = None,
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", metavar="DIR", help="A model made by fit or impute."),
    ] = None,
    unlikely: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many unlikely rows to name.")
    ] = 5,
) -> None:
    """Show what TABLE's columns are taken for and what is missing; nothing is trained.

    With a model also how well it told cells it was not trained on, and the rows of TABLE that it
    finds least likely, counted from 1, with the cells that make them so.
    """
    with session(running) as here:
        if table is None and model is None:
            raise typer.BadParameter("give a TABLE, a --model, or both")
        learned = None if model is None else loaded(here, model)
        data = None if table is None else Source(table, reading).read().data
        schema = learned.table if learned is not None else _schema(data, columns)
        missing, rows = None, 0
        if data is not None:
            missing, rows = _missing(schema, data), data.num_rows
        record = _record(schema, missing, rows)
        parts = [columns_grid(schema, missing, rows)]
        if schema.notes:
            parts.append(lines(["", *(f"Note: {note}" for note in schema.notes)]))
        if learned is not None:
            parts += ["", facts_grid(learned)]
            record["model"] = learned.facts
        if learned is not None and data is not None and unlikely:
            from postmatch.cli.oddities import oddities

            found = oddities(learned, data, unlikely, running.seed)
            parts += ["", oddities_grid(found)]
            record["unlikely"] = [dataclasses.asdict(oddity) for oddity in found]
        here.show(Group(*parts), asked_for=True)
        here.result(record)


def _schema(data: Any, columns: Columns) -> "Table":
    from postmatch.tables import Table

    with as_typed():
        return Table.fit(data, **columns.told)


def _missing(table: "Table", data: Any) -> list[int]:
    """Return the missing cells of each column, modelled or not, in the order of the table."""
    from postmatch.tables.frames import frame_of

    frame = frame_of(data)
    left = list(frame.names)
    counts = []
    for column in table.columns:
        if column.name not in left:
            counts.append(frame.rows)
            continue
        place = left.index(column.name)
        left[place] = ""  # of two columns of one name each is counted once
        counts.append(int(frame.cells(place, table.missing).missing.sum()))
    return counts


def _record(table: "Table", missing: list[int] | None, rows: int) -> dict[str, Any]:
    from postmatch.cli.wording import contents

    columns: list[dict[str, Any]] = [
        {"name": column.name, "kind": column.kind, "values": contents(column)}
        for column in table.columns
    ]
    if missing is None:
        return {"columns": columns, "notes": list(table.notes)}
    counted = [{**c, "missing": count} for c, count in zip(columns, missing, strict=True)]
    return {"rows": rows, "columns": counted, "notes": list(table.notes)}
