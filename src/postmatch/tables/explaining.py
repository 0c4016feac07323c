"""Why cells cannot be used, in words."""

from collections.abc import Iterator

import numpy as np

from postmatch.tables.cells import Bools, Cells, Floats, counted, date_text, level_text
from postmatch.tables.column import Column


def reasons(column: Column, cells: Cells, strange: Bools) -> Iterator[tuple[str, str]]:
    """Yield each reason why cells are hidden from the model, with the column and a few of them."""
    if not column.is_number:
        yield "levels unseen by fit", _listed(column, cells, strange)
        return
    unread = strange & np.isnan(_numbers(column, cells))
    if unread.any():
        reason = "cells that do not read as the numbers or dates of their column"
        yield reason, _listed(column, cells, unread)
    if (strange & ~unread).any():
        yield "infinite or absurdly large numbers", _listed(column, cells, strange & ~unread)


def refusal(column: Column, cells: Cells, wrong: Bools) -> str:
    """Return what a value given by the user must be, and the first that is not."""
    got = f"got {cells.examples(wrong)[0]!r}"
    if not column.is_number:
        known = [level_text(level) for level in column.levels]
        more = ", ..." if len(known) > 10 else ""
        return f"{column.name} must be one of {', '.join(known[:10])}{more}, {got}"
    if np.isnan(_numbers(column, cells)[wrong][0]):
        wanted = "a date such as 2024-01-31" if column.kind == "date" else "a number"
        return f"{column.name} must be {wanted}, {got}"
    low, high = (
        date_text(end) if column.kind == "date" else f"{end:g}" for end in (column.low, column.high)
    )
    return f"{column.name} is too far from what the table holds, {low} to {high}, {got}"


def _numbers(column: Column, cells: Cells) -> Floats:
    return cells.dates() if column.kind == "date" else cells.numbers(comma=column.style.comma)


def _listed(column: Column, cells: Cells, strange: Bools) -> str:
    examples = ", ".join(map(repr, cells.examples(strange)))
    return f"column {column.name!r} ({counted(int(strange.sum()), 'cell')}: {examples})"
