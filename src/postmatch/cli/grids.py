"""Tables for people to read in a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

if TYPE_CHECKING:
    from postmatch.cli.oddities import Oddity
    from postmatch.models import TableModel
    from postmatch.tables import Table


def titled(title: str, grid: Grid) -> RenderableType:
    """Return a table under a title, which may be wider than the table."""
    return Group(Text(title, "bold"), grid)


def plain_grid(*columns: str) -> Grid:
    """Return an empty table; columns named ``>so`` are set to the right."""
    grid = Grid(box=None)
    for name in columns:
        right = name.startswith(">")
        grid.add_column(name.lstrip(">"), justify="right" if right else "left", header_style="dim")
    return grid


def quality(model: "TableModel") -> dict[str, str]:
    """Return, per column, how well cells were told that the model was not trained on."""
    from postmatch.cli.numbers import text_of

    told = {}
    for label, score in (model.facts.get("held_out") or {}).get("columns", {}).items():
        error, simple = score["error"], score["error_of_mean_or_mode"]
        if score["measure"] == "rmse":
            unit = f" {score['unit']}" if score.get("unit") else ""
            error, simple = (f"{text_of(float(f'{v:.3g}'))}{unit}" for v in (error, simple))
            told[label] = f"off by {error} (the mean by {simple})"
        else:
            told[label] = f"{1 - error:.0%} right (the commonest {1 - simple:.0%})"
    return told


def facts_grid(model: "TableModel") -> RenderableType:
    """Return how a model was made and how well it told held-out cells."""
    from postmatch.cli.wording import trained
    from postmatch.tables.cells import counted

    facts = model.facts
    words = (
        f"Fitted on {counted(facts['rows'], 'row')} and "
        f"{counted(len(model.table.modelled), 'column')}: "
        f"{trained(model)} in {facts['seconds']:,.1f} s, seed {facts['seed']}."
    )
    parts: list[RenderableType] = [Text(words)]
    held_out, told = facts.get("held_out") or {}, quality(model)
    if told:
        grid = plain_grid("column", ">cells", "told", ">in 90 %")
        for label, text in told.items():
            score = held_out["columns"][label]
            covered = "" if score["covered"] is None else f"{score['covered']:.0%}"
            grid.add_row(Text(label), f"{score['cells']:,}", text, covered)
        parts += ["", titled("Cells it was not trained on", grid)]
    return Group(*parts)


def columns_grid(table: "Table", missing: Sequence[int] | None, rows: int) -> RenderableType:
    """Return the columns of a table: what they are taken for, their values, what is missing."""
    from postmatch.cli.numbers import shortened
    from postmatch.cli.wording import contents
    from postmatch.tables.cells import counted

    title = counted(len(table.columns), "column")
    title += f", {counted(rows, 'row')}" if missing is not None else ""
    grid = plain_grid("column", "taken for", "values", *([">missing"] if missing else []))
    for place, column in enumerate(table.columns):
        gaps: list[str] = []
        if missing is not None:
            share = missing[place] / max(1, rows)
            gaps = [f"{missing[place]:,} ({share:.1%})" if missing[place] else "0"]
        grid.add_row(Text(column.name), column.kind, Text(shortened(contents(column), 60)), *gaps)
    return titled(title, grid)


def oddities_grid(found: Sequence["Oddity"]) -> RenderableType:
    """Return the rows that a model finds least likely, and why."""
    grid = plain_grid(">row", ">log-likelihood", "what is odd")
    for oddity in found:
        grid.add_row(f"{oddity.row:,}", f"{oddity.score:,.1f}", Text(oddity.why))
    return titled("Rows that look unlikely", grid)


def lines(texts: Sequence[Any]) -> RenderableType:
    """Return texts, one to a line."""
    return Group(*(Text(str(text)) for text in texts))
