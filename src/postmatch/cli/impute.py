"""``postmatch impute``: fill the holes of a table."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postmatch.cli.files import Source, check_outputs, numbered, output_for
from postmatch.cli.groups import (
    Columns,
    Fitting,
    ModelOption,
    OutputOption,
    Reading,
    Running,
    TableArgument,
)
from postmatch.cli.models import obtain
from postmatch.cli.session import Session, session
from postmatch.cli.summary import Filled

if TYPE_CHECKING:
    from postmatch.models import TableModel

EXAMPLES = """
    postmatch impute people.csv                        writes people.filled.csv
    postmatch impute people.csv -o filled.parquet --model people.model
    postmatch impute more.csv --model people.model     the same model, other rows
    postmatch impute people.csv --draws 5 -o out.csv   out.1.csv ... out.5.csv
    postmatch impute people.csv --long -o gaps.csv     row,column,mean,q05,q95,probability
    zcat adult.data.gz | postmatch impute - --no-header --quick > filled.csv
"""


def impute(
    table: TableArgument,
    reading: Reading,
    columns: Columns,
    fitting: Fitting,
    running: Running,
    output: OutputOption = None,
    model: ModelOption = None,
    draws: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Write N tables whose holes hold draws, not best guesses."
        ),
    ] = 0,
    long: Annotated[
        bool,
        typer.Option(
            "--long",
            help="Write one line per hole: row,column,mean,q05,q95,probability. Rows count from 1; "
            "the probability is that of a level.",
        ),
    ] = False,
) -> None:
    """Fill the holes of TABLE and leave every other cell as it is.

    A model is fitted on the table itself, or taken from --model. Holes get the mean of their
    distribution given the rest of their row, or the most probable level. Without -o the answer
    goes to table.filled.csv in the current folder; what came from stdin goes to stdout.
    """
    with session(running) as here:
        place = output or _default_output(table, long=long)
        outputs = numbered(place, draws) if draws else [place]
        _check_wishes(place, draws=draws, long=long, json=running.json)
        check_outputs(outputs, table)
        fitted, source = obtain(here, Source(table, reading), model, columns, fitting)
        if long:
            filled = _describe_holes(here, fitted, source, place)
        else:
            filled = _fill(here, fitted, source, outputs, draws)
        for part in filled.shown(outputs):
            here.show(part, aside=place == "-")
        here.result(filled.record(outputs))


def _default_output(table: str, *, long: bool) -> str:
    if long and table != "-":
        return output_for(table, "long", ".csv")
    return output_for(table, "filled")


def _check_wishes(place: str, *, draws: int, long: bool, json: bool) -> None:
    if draws and long:
        raise typer.BadParameter("--draws and --long are two different answers; choose one")
    if draws and place == "-":
        raise typer.BadParameter("--draws writes several files, so it needs -o with a name")
    if json and place == "-":
        raise typer.BadParameter("--json and the table both want stdout; give -o a name")


def _fill(
    here: Session, model: "TableModel", source: Source, outputs: list[str], draws: int
) -> Filled:
    """Write the filled table, or one for each draw, block by block."""
    from postmatch.tables import open_writer

    seed, filled = here.running.seed, Filled(model)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(open_writer(path)) for path in outputs]
        for offset, block in source.followed("Filling", here.err, quiet=here.quiet):
            answers: Sequence[Any] = (
                model.sample(block, draws, seed=seed, offset=offset)
                if draws
                else [model.impute(block, seed=seed)]
            )
            for writer, answer in zip(writers, answers, strict=True):
                writer.write(answer)
            filled.add(block, answers[0], offset)
    return filled


def _describe_holes(here: Session, model: "TableModel", source: Source, place: str) -> Filled:
    """Write one line per hole with its mean and quantiles, block by block."""
    import pyarrow.compute as pc

    from postmatch.tables import open_writer

    filled = Filled(model)
    with open_writer(place) as writer:
        for offset, block in source.followed("Filling", here.err, quiet=here.quiet):
            answer = model.summarise(block, seed=here.running.seed, offset=offset + 1)
            place_of = answer.column_names.index("probability")
            rounded = pc.round(answer.column("probability"), 4)
            writer.write(answer.set_column(place_of, "probability", rounded))
            filled.count(block)
    return filled
