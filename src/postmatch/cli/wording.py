"""Values of a column, as people read them."""

from postmatch.cli.svg import shortened, text_of
from postmatch.tables import Column
from postmatch.tables.cells import date_text, level_text


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
