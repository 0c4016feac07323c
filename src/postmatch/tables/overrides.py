"""What the user says of a column, which detection cannot know."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from postmatch.tables.cells import MISSING_TEXT, Cells
from postmatch.tables.detection import (
    NO_VALUE,
    NUMBERS,
    Found,
    ignored,
    levels_column,
    number_column,
    ordered_column,
)


def overrides(names: Sequence[str], groups: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return what was asked for each column named, or raise ValueError."""
    asked: dict[str, str] = {}
    for group, members in groups.items():
        for name in map(str, several(group, members)):
            if name not in names:
                raise ValueError(f"{group}: {unknown_name(name, names)}")
            if name in asked:
                raise ValueError(f"column {name!r} cannot be both {asked[name]} and {group}")
            asked[name] = group
    return asked


def several(group: str, texts: Collection[Any]) -> Collection[Any]:
    """Return a collection of texts, or raise TypeError for a single text, which is none."""
    if isinstance(texts, str):
        raise TypeError(f"{group} must be a collection of names, got the text {texts!r}")
    return texts


def as_asked(name: str, cells: Cells, choice: str, order: Sequence[str]) -> Found:
    """Return the column as the user wants it read."""
    if choice == "ignore":
        return ignored(name)
    if cells.missing.all() and not order:
        return ignored(name, NO_VALUE)
    if choice == "numeric":
        if cells.source == "date" or np.isfinite(cells.dates()).any():
            return number_column(name, cells, date=True)
        comma = np.isfinite(cells.numbers()).sum() < np.isfinite(cells.numbers(comma=True)).sum()
        column, note = number_column(name, cells, comma=bool(comma))
        if column.kind == "ignored":
            example = cells.examples(~cells.missing)[0]
            raise ValueError(f"column {name!r} cannot be numeric: it holds {example!r}")
        return column, note
    if cells.source == "other":
        raise ValueError(f"column {name!r} cannot be {choice}: its type is not text or numbers")
    if choice == "ordered":
        return _ordered(name, cells, [str(level).strip() for level in order])
    return levels_column(name, cells)


def _ordered(name: str, cells: Cells, order: Sequence[str]) -> Found:
    if len(set(order)) < len(order):
        raise ValueError(f"ordered: the levels of {name!r} must differ, got {', '.join(order)}")
    for text in MISSING_TEXT.intersection(order):
        raise ValueError(f"ordered: {text!r} means a missing cell, so {name!r} has no such level")
    if order:
        return ordered_column(name, cells, order)
    if not cells.ordered and cells.source != "boolean":
        for text in cells.levels()[0]:
            if NUMBERS.search(text) is None:
                raise ValueError(
                    f"ordered: name the levels of {name!r}, lowest first: {text!r} holds no number "
                    "to be ordered by"
                )
    return levels_column(name, cells, ordered=True)


def unknown_name(name: str, names: Sequence[str]) -> str:
    """Return the message about a name that no column has, with those that come close."""
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else (
        f"the table has {', '.join(map(repr, names[:10]))}{', ...' if len(names) > 10 else ''}"
    )  # fmt: skip
    return f"no column is named {name!r}; {hint}"
