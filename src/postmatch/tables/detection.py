"""What a column is: numbers, dates, levels, or something to leave alone."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from postmatch.tables.cells import Bools, Cells, Floats, counted, level_text, parse_numbers
from postmatch.tables.column import Column, Kind, Level
from postmatch.tables.scaling import LARGEST, decimals_of, scaling_of
from postmatch.tables.styles import SAMPLE, Style, date_format, number_form

NEARLY_ALL = 0.98  # of the cells read as numbers, or dates: then the column is one of numbers
MOST_LEVELS = 1_000
FEW = 10  # so many distinct values are levels, however few the rows
SHORTEST_COUNTER = 20  # rows 1, 2, 3, ... fewer than this may be data
NO_VALUE = "has no value at all"
FINEST_SCALE = 1e-9  # of numbers that are written to all of their decimals
ID_NAME = re.compile(r"(.*[_\s.-])?(id|uuid|guid|index|rowid|rownum|unnamed: 0)", re.I)
NUMBERS = re.compile(r"\d+(?:\.\d+)?")
CAMEL_ID = re.compile(r".*[a-z](Id|ID)")

Found = tuple[Column, str | None]  # a column, and what the user should hear about it


def detect(name: str, cells: Cells, *, identifiers: bool = True) -> Found:
    """Return what a column is by its cells.

    Args:
        name: As the caller has it.
        cells: At least one row.
        identifiers: Look for row counters and ids; an array without names has none.
    """
    seen = int((~cells.missing).sum())
    if seen == 0:
        return ignored(name, NO_VALUE)
    if cells.source == "other":
        return ignored(name, "holds neither numbers, dates nor text")
    if cells.source == "boolean":
        return levels_column(name, cells)
    if cells.source == "levels":
        return levels_column(name, cells, ordered=cells.ordered)
    if cells.source == "date":
        return number_column(name, cells, date=True)
    if cells.source == "number":
        if identifiers and is_identifier(name, cells.numbers()):
            return ignored(name, "looks like an identifier")
        return number_column(name, cells)
    return _detect_text(name, cells, seen, identifiers=identifiers)


def _detect_text(name: str, cells: Cells, seen: int, *, identifiers: bool) -> Found:
    for comma in (False, True):
        numbers = cells.numbers(comma=comma)
        if (~np.isnan(numbers)).sum() >= NEARLY_ALL * seen and not has_leading_zeros(cells):
            if identifiers and is_identifier(name, numbers):
                return ignored(name, "looks like an identifier")
            return number_column(name, cells, comma=comma)
    if np.isfinite(cells.dates()).sum() >= NEARLY_ALL * seen:
        return number_column(name, cells, date=True)
    _, _, codes = cells.levels()
    distinct = len(np.unique(codes[codes >= 0]))
    if identifiers and distinct == seen > 1 and is_id_name(name):
        return ignored(name, "looks like an identifier")
    if distinct > max(FEW, seen / 2):
        return ignored(name, "looks like free text or an identifier")
    return levels_column(name, cells)


def ignored(name: str, why: str | None = None) -> Found:
    """Return a column that is passed through as it is."""
    note = None if why is None else f"column {name!r} {why}: passed through, not modelled"
    return Column(name, "ignored"), note


def number_column(name: str, cells: Cells, *, date: bool = False, comma: bool = False) -> Found:
    """Return a column of numbers or dates, scaled by its finite values."""
    every = cells.dates() if date else cells.numbers(comma=comma)
    values = every[np.abs(every) <= LARGEST]  # neither NaN nor infinite
    if len(values) == 0:
        return ignored(name, f"has no number up to {LARGEST:g}")
    whole = np.array_equal(values, np.rint(values))
    unit = date_unit(values) if date else float(whole)
    scaling = scaling_of(values, unit, cells.precision)
    column = Column(
        name,
        "date" if date else "integer" if unit else "numeric",
        location=scaling.location,
        scale=scaling.scale,
        low=float(values.min()),
        high=float(values.max()),
        unit=unit,
        step=scaling.step,
        discrete=scaling.discrete,
        knots=scaling.knots,
        atoms=scaling.atoms,
        style=number_style(cells, values, unit, comma=comma, date=date),
    )
    what = "a date" if date else "a number"
    return _with_strange(column, cells, ~cells.missing & np.isnan(every), f"that are not {what}")


def ordered_column(name: str, cells: Cells, order: Sequence[str]) -> Found:
    """Return a column of the levels that the user names, in that order."""
    column = Column(name, "ordered", levels=tuple(order), style=_style(cells))
    strange = ~cells.missing & ~column.encode(cells)[1]
    return _with_strange(column, cells, strange, "with none of the levels given")


def _with_strange(column: Column, cells: Cells, strange: Bools, what: str) -> Found:
    """Return a column and, if it has cells that it cannot hold, a note of them."""
    if not strange.any():
        return column, None
    examples = ", ".join(map(repr, cells.examples(strange)))
    return column, (
        f"column {column.name!r}: {counted(int(strange.sum()), 'cell')} {what} ({examples}), "
        "hidden from the model and kept"
    )


def levels_column(name: str, cells: Cells, *, ordered: bool = False) -> Found:
    """Return a column of the levels seen, in their type's order or that of their numbers."""
    texts, objects, codes = cells.levels()
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    total: dict[str, int] = {}
    value: dict[str, Level] = {}
    for text, item, count in zip(texts, objects, counts.tolist(), strict=True):
        if count or ordered:
            total[text] = total.get(text, 0) + count
            value.setdefault(text, _plain(item))
    kept = list(total)
    if not (ordered and cells.ordered):
        kept.sort(key=by_numbers if ordered else natural_order)
    note = None
    if len(kept) > MOST_LEVELS:
        common = set(sorted(kept, key=lambda text: -total[text])[:MOST_LEVELS])
        note = (
            f"column {name!r}: {len(kept):,} different values, of which the "
            f"{MOST_LEVELS:,} most common are modelled and the others hidden"
        )
        kept = [text for text in kept if text in common]
    kind: Kind = "ordered" if ordered else "categorical"
    if cells.source == "boolean" and not ordered:
        kind = "boolean"
    levels = tuple(value[text] for text in kept)
    return Column(name, kind, levels=levels, style=_style(cells)), note


def by_numbers(text: str) -> tuple[list[float], str]:
    """Return a key that sorts levels by the numbers they hold alone: under 5, 5-9, 10 or more."""
    try:
        return [float(text)], text
    except ValueError:
        return [float(number) for number in NUMBERS.findall(text)], text


def natural_order(text: str) -> tuple[list[tuple[int, float, str]], str]:
    """Return a key that sorts numbers inside text by value: 5-9 before 10-14."""
    parts = re.split(f"({NUMBERS.pattern})", text)
    return [(0, float(p), "") if i % 2 else (1, 0.0, p) for i, p in enumerate(parts) if p], text


def is_id_name(name: str) -> bool:
    """Return whether a column of this name is often an identifier."""
    return ID_NAME.fullmatch(name.strip()) is not None or CAMEL_ID.fullmatch(name) is not None


def is_identifier(name: str, numbers: Floats) -> bool:
    """Return whether whole numbers, all different, count the rows or are named like an id."""
    seen = np.isfinite(numbers)
    values = numbers[seen]
    if not np.array_equal(values, np.rint(values)) or len(np.unique(values)) < max(len(values), 2):
        return False
    start = values - np.flatnonzero(seen)
    counter = (
        len(values) >= SHORTEST_COUNTER and start[0] in (0, 1) and bool((start == start[0]).all())
    )
    return counter or is_id_name(name)


def has_leading_zeros(cells: Cells) -> bool:
    """Return whether a cell such as 007 says that these digits are no number."""
    return bool(pc.any(pc.match_substring_regex(cells.texts, r"^0\d+$")).as_py())


def date_unit(days: Floats) -> float:
    """Return the coarsest of day, hour, minute, second, microsecond that fits all times."""
    for per_day in (1, 24, 1_440, 86_400):
        ticks = days * per_day
        if np.abs(ticks - np.rint(ticks)).max() < 1e-5:
            return 1.0 / per_day
    return 1.0 / 86_400_000_000


def number_style(cells: Cells, values: Floats, unit: float, *, comma: bool, date: bool) -> Style:
    """Return how numbers or dates of this column are written."""
    if cells.source != "text":
        if date:
            return Style(date="%Y-%m-%d" if unit == 1.0 else "%Y-%m-%d %H:%M:%S")
        decimals = 0 if unit else decimals_of(values, FINEST_SCALE, cells.precision)
        return Style() if decimals is None else Style(decimals, digits=17)
    padding = _style(cells)
    texts = _sample(cells.texts)
    if date:
        formats = [date_format(text) for text in texts if text[4:5] == "-"]
        common = max(set(formats), key=lambda form: (formats.count(form), form))
        return Style(date=common, lead=padding.lead, trail=padding.trail)
    numbers = np.isfinite(parse_numbers(pa.array(texts), comma=comma))
    form = number_form([text for text, good in zip(texts, numbers, strict=True) if good])
    return replace(form, comma=comma, lead=padding.lead, trail=padding.trail)


def _style(cells: Cells) -> Style:
    if cells.source != "text":
        return Style()
    objects = cells.objects[:: max(1, len(cells.objects) // SAMPLE)]
    return Style.of_texts([value for value in objects if isinstance(value, str)])


def _sample(texts: pa.Array) -> list[str]:
    every = max(1, len(texts) // SAMPLE)
    return [str(text) for text in texts.to_pylist()[::every]]


def _plain(value: object) -> Level:
    """Return a level as JSON can hold it; text without the blanks around."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | int) or (isinstance(value, float) and np.isfinite(value)):
        return value
    return level_text(value)
