"""Columns and their values, as people read them."""

from collections.abc import Sequence

from postmatch.cli.numbers import shortened, text_of
from postmatch.models import TableModel
from postmatch.tables import Column, Table
from postmatch.tables.cells import counted, date_text, level_text


def written(column: Column, value: float) -> str:
    """Return a value as people read it; of levels, that with this code."""
    if not column.is_number:
        return level_text(column.levels[int(value)])
    if column.kind == "date":
        return date_text(float(value))
    return text_of(float(round(value) if column.kind == "integer" else value))


def contents(column: Column) -> str:
    """Return what a column holds: its range, or its levels."""
    if column.kind == "ignored":
        return "passed through, not modelled"
    if column.is_number:
        return f"{written(column, column.low)} to {written(column, column.high)}"
    texts = [level_text(level) for level in column.levels]
    more = f" and {len(texts) - 8:,} more" if len(texts) > 8 else ""
    between = " < " if column.kind == "ordered" else ", "
    return between.join(shortened(text, 30) for text in texts[:8]) + more


def labels(names: Sequence[str]) -> list[str]:
    """Return names of which no two are the same.

    Example:
        >>> labels(["a", "b", "a"])
        ['a', 'b', 'a (2)']
    """
    taken: dict[str, None] = {}
    for name in names:
        label, number = name, 1
        while label in taken:
            number += 1
            label = f"{name} ({number})"
        taken[label] = None
    return list(taken)


def labelled(table: Table) -> list[tuple[Column, str]]:
    """Return the modelled columns of a table, each with its label among all of its columns."""
    pairs = zip(table.columns, labels(table.names), strict=True)
    return [(column, label) for column, label in pairs if column.kind != "ignored"]


def trained(model: TableModel) -> str:
    """Return how many steps each member of a model took, on average."""
    members, steps = model.config.num_members, int(model.facts["steps"])
    if members == 1:
        return counted(steps, "step")
    about = "" if steps % members == 0 else "about "
    return f"{members} models x {about}{counted(round(steps / members), 'step')}"
