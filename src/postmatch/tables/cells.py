"""One column of the caller's data, its holes found, to be read as numbers, dates or levels."""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.int64]
Source = Literal["number", "boolean", "date", "text", "levels", "other"]

MISSING_TEXT = frozenset(  # after stripping blanks; `none` and `na` stay values
    (
        *("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaT"),
        *("nan", "NaN", "NAN", "null", "NULL", "Null", "None"),
    )
)
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")
MICROSECONDS_PER_DAY = 86_400_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@final
@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of one column: plain numbers, or codes of its distinct values.

    Args:
        source: What the caller's column holds; ``levels`` is a categorical type, ``other`` neither.
        missing: The holes, which ``decode`` may fill.
        values: Numbers, 0 / 1 for booleans, days since 1970 for dates; NaN where missing.
        codes: Position of each cell in ``texts``, -1 where missing.
        texts: The distinct values, less those that mean a hole, as text without blanks around.
        objects: The distinct values as the caller has them.
        ordered: The caller's type declares an order of its levels.
        precision: Relative rounding error of the values.
    """

    source: Source
    missing: Bools  # (rows,)
    values: Floats | None = None  # (rows,)
    codes: Codes | None = None  # (rows,)
    texts: Any = None  # pa.StringArray (distinct,)
    objects: Sequence[object] = ()
    ordered: bool = False
    precision: float = 2.0**-52

    def numbers(self, *, comma: bool = False) -> Floats:
        """Return every cell as a number, NaN where it is missing or does not read as one."""
        if self.values is not None:
            return self.values
        if self.codes is None:
            return np.full(len(self.missing), np.nan)
        return spread(parse_numbers(self.texts, comma=comma), self.codes)

    def dates(self) -> Floats:
        """Return every cell as days since 1970, NaN where it is missing or is no ISO date."""
        if self.source == "date" and self.values is not None:
            return self.values
        if self.codes is None:
            return np.full(len(self.missing), np.nan)
        return spread(parse_dates(self.texts), self.codes)

    def levels(self) -> tuple[list[str], Sequence[object], Codes]:
        """Return the distinct values as text and as objects, and the code of each cell, or -1."""
        if self.codes is not None:
            return self.texts.to_pylist(), self.objects, self.codes
        codes = np.full(len(self.missing), -1, dtype=np.int64)
        if self.values is None:
            return [], (), codes
        distinct, codes[~self.missing] = np.unique(self.values[~self.missing], return_inverse=True)
        if self.source == "boolean":
            objects: list[object] = [bool(value) for value in distinct]
        elif self.source == "date":
            objects = [date_text(value) for value in distinct.tolist()]
        else:
            objects = [
                int(value) if value.is_integer() else value for value in map(float, distinct)
            ]
        return [level_text(value) for value in objects], objects, codes

    def examples(self, rows: Bools, limit: int = 3) -> list[str]:
        """Return a few distinct values among the chosen rows, as text."""
        if self.codes is not None:
            first = np.unique(self.codes[rows])[:limit]
            return [str(self.texts[int(code)]) for code in first if code >= 0]
        if self.values is None:
            return []
        return [f"{value:g}" for value in np.unique(self.values[rows])[:limit]]


def spread(values: Floats, codes: Codes) -> Floats:
    """Return ``values[codes]`` with NaN where the code is -1."""
    return np.append(values, np.nan)[codes]


def counted(number: int, thing: str) -> str:
    """Return a number of things in words.

    Example:
        >>> counted(1, "cell"), counted(2_000, "cell")
        ('1 cell', '2,000 cells')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def level_text(value: object) -> str:
    """Return the text by which a level is known, whatever type carries it: 1, 1.0 and '1' agree."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def parse_numbers(texts: Any, *, comma: bool = False) -> Floats:
    """Return an Arrow array of stripped texts as numbers, NaN where one is not a number."""
    if comma:
        texts = pc.replace_substring(texts, ",", ".")
    is_number = pc.match_substring_regex(texts, NUMBER)
    plain = pc.if_else(is_number, pc.utf8_ltrim(texts, "+"), pa.scalar(None, pa.string()))
    values = _floats(plain)
    for sign, words in ((1, ["inf", "+inf", "infinity"]), (-1, ["-inf", "-infinity"])):
        infinite = pc.is_in(pc.utf8_lower(texts), value_set=pa.array(words))
        values[infinite.to_numpy(zero_copy_only=False)] = sign * np.inf
    return values


def parse_dates(texts: Any) -> Floats:
    """Return an Arrow array of stripped texts as days since 1970, NaN where one is no ISO date."""
    days = np.full(len(texts), np.nan)
    for row, text in enumerate(texts.to_pylist()):
        if DATE.fullmatch(text):
            try:
                moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
            except ValueError:  # 2024-02-31 looks like a date and is none
                continue
            days[row] = (moment - EPOCH).total_seconds() / 86_400
    return days


def date_text(day: float) -> str:
    """Return days since 1970 as ISO text."""
    moment = np.datetime64(round(day * MICROSECONDS_PER_DAY), "us").item()
    return str(moment.date() if day.is_integer() else moment)


def read_array(array: Any, missing: Collection[str]) -> Cells:
    """Read the holes and values of an Arrow array of any type."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_dictionary(kind):
        codes = _indices(array)
        objects = array.dictionary.to_pylist()
        return read_levels(codes, objects, missing, ordered=kind.ordered)
    if any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, _is_view)):
        coded = array.cast(pa.large_string()).dictionary_encode()
        codes = _indices(coded)
        return _coded("text", codes, coded.dictionary.to_pylist(), missing)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        moments = array.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
        ticks = moments.cast(pa.int64())
        values = _floats(ticks) / MICROSECONDS_PER_DAY
        return Cells("date", np.isnan(values), values)
    if pa.types.is_boolean(kind):
        values = _floats(array.cast(pa.int8()))
        return Cells("boolean", np.isnan(values), values)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return read_numbers(
            _floats(array), missing, single=pa.types.is_float32(kind) or pa.types.is_float16(kind)
        )
    return Cells("other", array.is_null().to_numpy(zero_copy_only=False))


def read_numbers(values: Floats, missing: Collection[str], *, single: bool = False) -> Cells:
    """Read an array of numbers, in which NaN and the numbers the user names are holes."""
    hole = np.isnan(values)
    for text in missing:
        number = parse_numbers(pa.array([text.strip()]))[0]
        hole = hole | (values == number)
    return Cells(
        "number",
        hole,
        np.where(hole, np.nan, values),
        precision=2.0**-23 if single else 2.0**-52,
    )


def read_levels(
    codes: Codes, objects: Sequence[object], missing: Collection[str], *, ordered: bool = False
) -> Cells:
    """Read a categorical column from its codes and levels."""
    return _coded("levels", codes, objects, missing, ordered=ordered)


def read_objects(values: Any, missing: Collection[str]) -> Cells:
    """Read Python objects, of one type or of several."""
    try:
        return read_array(pa.array(values, from_pandas=True), missing)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        position: dict[str, int] = {}  # mixed types: a value is known by its text
        objects: list[object] = []
        codes = np.full(len(values), -1, dtype=np.int64)
        for row, value in enumerate(values):
            if not is_missing(value):
                text = level_text(value)
                codes[row] = position.setdefault(text, len(position))
                if len(objects) < len(position):
                    objects.append(value)
        return _coded("text", codes, objects, missing)


def is_missing(value: object) -> bool:
    """Return whether a single Python object is None, NaN, pd.NA or NaT."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)


def _coded(
    source: Source,
    codes: Codes,
    objects: Sequence[object],
    missing: Collection[str],
    *,
    ordered: bool = False,
) -> Cells:
    if all(isinstance(value, str) for value in objects):
        texts = pc.utf8_trim_whitespace(pa.array(objects, pa.string()))
    else:
        texts = pa.array([level_text(value) for value in objects], pa.string())
    tokens = MISSING_TEXT | {text.strip() for text in missing}
    hole = pc.is_in(texts, value_set=pa.array(tokens, pa.string()))
    keep = ~hole.to_numpy(zero_copy_only=False).astype(bool)
    if not keep.all():  # what means a missing cell is neither a level nor an example of style
        texts = texts.filter(pa.array(keep))
        objects = [value for value, kept in zip(objects, keep, strict=True) if kept]
        codes = np.append(np.where(keep, np.cumsum(keep) - 1, -1), -1)[codes]
    return Cells(source, codes < 0, codes=codes, texts=texts, objects=objects, ordered=ordered)


def _floats(array: Any) -> Floats:
    values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.array(values, dtype=np.float64)


def _indices(array: Any) -> Codes:
    indices = pc.fill_null(array.indices.cast(pa.int64()), -1)
    return np.array(indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def _is_view(kind: Any) -> bool:
    return bool(pa.types.is_string_view(kind))
