"""``postmatch report``: one page on what is missing, what was filled, and how far to trust it."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmatch.cli.files import Source, check_place, output_for
from postmatch.cli.groups import Fitting, ModelOption, OutputOption, Reading, Running, TableArgument
from postmatch.cli.models import obtain
from postmatch.cli.session import session

if TYPE_CHECKING:
    from postmatch.models import TableModel

EXAMPLES = """
    postmatch report people.csv                        writes people.report.html
    postmatch report people.csv -o report.html --model people.model
    postmatch report adult.data.gz --no-header --quick
"""
NUM_ROWS, ROW_DRAWS, HOLE_DRAWS = 6, 1_000, 4_000


def report(
    table: TableArgument,
    reading: Reading,
    fitting: Fitting,
    running: Running,
    output: OutputOption = None,
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
        fitted, source = obtain(here, Source(table, reading), model, fitting)
        here.say("Drawing the report.")
        name = "standard input" if table == "-" else Path(table).name
        command = shlex.join(["postmatch", "report", Path(table).name])
        written = compose(fitted, source.read().data, name, command, running.seed)
        write_page(written["page"], place)
        if place != "-":
            here.show(f"Written to {place}")
        here.result({"output": place, "held_out": written["evidence"]})


def compose(model: "TableModel", data: Any, name: str, command: str, seed: int) -> dict[str, Any]:
    """Return the page and the scores on it."""
    from postmatch.cli import sections, trust
    from postmatch.cli.evidence import (
        best_guesses,
        draw_holes,
        judge,
        rows_with_holes,
        telling_rows,
    )
    from postmatch.cli.page import page

    table = model.table
    x, observed = table.encode(data)
    evidence = judge(model, x, observed, seed)
    rows = rows_with_holes(observed, seed)
    drawn = draw_holes(model, x, observed, rows, max(20, HOLE_DRAWS // max(10, len(rows))), seed)
    best = best_guesses(model, x, observed, rows)
    chosen = telling_rows(observed, rows, NUM_ROWS)
    few = draw_holes(model, x, observed, chosen, ROW_DRAWS, seed)
    seen = observed.numpy()
    parts = [
        sections.overview(name, table, seen, evidence),
        sections.missingness(table, seen),
        sections.distributions(table, x, observed, drawn, ~observed[rows], best),
        trust.calibration(evidence, seed),
        trust.single_rows(table, x, observed, chosen, few),
        sections.columns(table, seen),
        trust.assumptions(),
        sections.footer(model.facts, command),
    ]
    return {"page": page(f"{name}: missing values", parts), "evidence": evidence.to_json()}


def write_page(text: str, place: str) -> None:
    """Write a page whole, or leave what was there."""
    if place == "-":
        print(text)
        return
    path = Path(place).resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
