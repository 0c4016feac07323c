"""``postmatch sample``: draw rows, given what is known."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postmatch.cli.conditions import check_names, conditioned
from postmatch.cli.files import Source, check_outputs, write_blocks
from postmatch.cli.groups import (
    FittedModel,
    GivenColumnsOption,
    GivenOption,
    OptionalTable,
    OutputOption,
    Reading,
    Running,
)
from postmatch.cli.lists import given, names
from postmatch.cli.models import loaded
from postmatch.cli.session import Session, session

if TYPE_CHECKING:
    from postmatch.models import TableModel

EXAMPLES = """
    postmatch sample -m people.model -n 1000 -o synthetic.csv
    postmatch sample -m people.model -n 20 --given age=54,sex=F
    postmatch sample people.csv -m people.model -n 5 --given-columns age,sex
"""


def sample(
    model: FittedModel,
    reading: Reading,
    running: Running,
    table: OptionalTable = None,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, help="Draws, of each row of TABLE.")
    ] = 10,
    output: OutputOption = "-",
    known: GivenOption = [],  # noqa: B006
    known_columns: GivenColumnsOption = [],  # noqa: B006
) -> None:
    """Draw rows from a model, given what is known.

    Without TABLE, N new rows that agree with --given. With it, N completed copies of each of its
    rows, after the columns "row" and "draw", both counted from 1: given all that a row shows, or
    --given-columns of it.
    """
    with session(running) as here:
        place = output or "-"
        if known_columns and table is None:
            raise typer.BadParameter("--given-columns needs a TABLE to take their values from")
        check_outputs([place], table or "-")
        learned = loaded(here, model)
        values, columns = given(known), names(known_columns)
        if table is None:
            drawn = learned.draw(count, given=values, seed=running.seed)
            blocks = iter([_in_types(learned, drawn, place, json=running.json)])
        else:
            check_names(learned.table, columns)
            blocks = _completed(here, learned, Source(table, reading), count, values, columns)
        if running.json and place == "-":
            here.result({"rows": [row for block in blocks for row in block.to_pylist()]})
        else:
            write_blocks(blocks, place)
            here.finish(place)


def _in_types(model: "TableModel", drawn: Any, place: str, *, json: bool) -> Any:
    """Return rows of text with numbers as numbers, if where they go can hold them."""
    from postmatch.tables.reading import format_of
    from postmatch.tables.typed import typed

    text = format_of(place)[0] == "text" and not (json and place == "-")
    return drawn if text else typed(model.table, drawn)


def _completed(
    here: Session,
    model: "TableModel",
    source: Source,
    count: int,
    values: dict[str, str],
    columns: list[str],
) -> Iterator[Any]:
    """Yield the draws of each block, one after another, with their numbers."""
    for offset, block in source.followed("Drawing", here.err, quiet=here.quiet):
        rows = conditioned(model.table, block, values, columns)
        drawn = model.sample(rows, count, seed=here.running.seed, offset=offset)
        for draw, table in enumerate(drawn, 1):
            yield _numbered(table, range(offset + 1, offset + 1 + block.num_rows), draw)


def _numbered(table: Any, rows: range, draw: int) -> Any:
    import pyarrow as pa

    with_draw = table.add_column(0, "draw", pa.array([draw] * len(rows), pa.int64()))
    return with_draw.add_column(0, "row", pa.array(rows, pa.int64()))
