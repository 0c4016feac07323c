"""``postmatch report``: one page on what is missing, what was filled, and how far to trust it."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postmatch.cli.files import Source, check_place, output_for
from postmatch.cli.groups import (
    Columns,
    Fitting,
    ModelOption,
    Reading,
    Running,
    TableArgument,
    spelled,
)
from postmatch.cli.models import obtain
from postmatch.cli.session import session

if TYPE_CHECKING:
    from postmatch.models import TableModel

EXAMPLES = """
    postmatch report people.csv                        writes people.report.html
    postmatch report people.csv -o report.html --model people.model
    postmatch report adult.data.gz --no-header --quick
"""
NUM_ROWS, HOLE_DRAWS = 6, 4_000


def report(
    table: TableArgument,
    reading: Reading,
    columns: Columns,
    fitting: Fitting,
    running: Running,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write the page, as HTML; - is stdout.",
            show_default="table.report.html",
        ),
    ] = None,
    model: ModelOption = None,
) -> None:
    """Write one HTML page about TABLE, which opens in any browser and needs no other file.

    It shows which cells are missing, observed against imputed values of each column, whether
    intervals and probabilities keep their promise on hidden cells, a few rows with their intervals,
    what the columns were taken for, and what the answers assume about why cells are missing.
    """
    with session(running) as here:
        place = output or output_for(table, "report", ".html")
        check_place(place, table)
        fitted, source = obtain(here, Source(table, reading), model, columns, fitting)
        here.say("Drawing the report.")
        name = "standard input" if table == "-" else Path(table).name
        repeated = Running(seed=running.seed, device=running.device)
        options = spelled(reading, columns, fitting, repeated)
        kept = [] if model is None else ["-m", model.name]
        command = shlex.join(["postmatch", "report", Path(table).name, *kept, *options])
        written = compose(fitted, source.read().data, name, command, running.seed)
        write_page(written["page"], place)
        if place != "-":
            here.show(f"Written to {place}")
        here.result({"output": place, "held_out": written["evidence"]})


def compose(model: "TableModel", data: Any, name: str, command: str, seed: int) -> dict[str, Any]:
    """Return the page and the scores on it."""
    from postmatch.cli import sections, trust
    from postmatch.cli.evidence import answers, judge, rows_with_holes, telling_rows
    from postmatch.cli.page import page

    table = model.table
    x, observed = table.encode(data)
    evidence = judge(model, x, observed, seed)
    rows = rows_with_holes(observed, seed)
    num_draws = max(20, HOLE_DRAWS // max(10, len(rows)))
    drawn = model.rows.draws(x[rows], observed[rows], num_draws, seed)
    best = model.rows.points(x[rows], observed[rows], seed=seed)
    chosen = telling_rows(observed, rows, NUM_ROWS)
    told = answers(model, x[chosen], observed[chosen], seed)
    seen = observed.numpy()
    parts = [
        sections.overview(name, table, seen, evidence),
        sections.missingness(table, seen),
        sections.distributions(table, x, observed, drawn, ~observed[rows], best),
        trust.calibration(evidence, seed),
        trust.single_rows(table, x, observed, chosen, told),
        sections.columns(table, seen),
        trust.assumptions(),
        sections.footer(model, command),
    ]
    return {"page": page(f"{name}: missing values", parts), "evidence": evidence.to_json()}


def write_page(text: str, place: str) -> None:
    """Write a page whole, or leave what was there."""
    from postmatch.tables.writing import atomic

    with atomic(place) as file:
        file.write(f"{text}\n".encode() if place == "-" else text.encode())
