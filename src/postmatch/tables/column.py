"""One column of a table: between the caller's cells and one column of x."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, final, get_args

import numpy as np
from numpy.typing import NDArray

from postmatch.distributions.columns import ColumnSpec
from postmatch.tables.cells import MICROSECONDS_PER_DAY, Bools, Cells, Floats, level_text
from postmatch.tables.scaling import LARGEST
from postmatch.tables.styles import Style

Kind = Literal["numeric", "integer", "boolean", "categorical", "ordered", "date", "ignored"]
Form = Literal["text", "integer", "float", "boolean", "date", "datetime", "object"]
Level = str | int | float | bool
Array = NDArray[Any]
BOOLEAN = dict.fromkeys(("0", "0.0", "false"), "False") | dict.fromkeys(
    ("1", "1.0", "true"), "True"
)
FARTHEST = 1e6  # |x| beyond which a number is no evidence but an accident


@final
@dataclass(frozen=True)
class Column:
    """How one column is read and written; learned by ``Table.fit``.

    Args:
        name: Its name, as text.
        kind: What the user sees: numeric, integer, boolean, categorical, ordered, date or ignored.
        levels: The values of a boolean, categorical or ordered column; their order gives the codes.
        location: Numbers and dates: the value (or day) at which x is 0.
        scale: Numbers and dates: the width of one unit of x.
        low: The lowest value seen.
        high: The highest value seen.
        unit: Integers and dates: every value is a multiple of it. 0 for other numbers.
        step: The resolution of x, as in ``ColumnSpec``.
        discrete: Whether x lies on a grid, as in ``ColumnSpec``.
        knots: Quantiles of x, as in ``ColumnSpec``.
        atoms: Numbers and dates that many cells share, each with its share of the cells.
        style: How its cells are written as text.
    """

    name: str
    kind: Kind
    levels: tuple[Level, ...] = ()
    location: float = 0.0
    scale: float = 1.0
    low: float = 0.0
    high: float = 0.0
    unit: float = 0.0
    step: float = 1e-3
    discrete: bool = False
    knots: tuple[float, ...] = (-1.0, 0.0, 1.0)
    atoms: tuple[tuple[float, float], ...] = ()
    style: Style = field(default_factory=Style)

    @property
    def is_number(self) -> bool:
        """Whether x holds a scaled number or day, and not the code of a level."""
        return self.kind in ("numeric", "integer", "date")

    @cached_property
    def spec(self) -> ColumnSpec:
        """What the model must know of this column."""
        if self.is_number:
            atoms = zip(self._atoms_as_x.tolist(), (share for _, share in self.atoms), strict=True)
            return ColumnSpec("number", 1, self.step, self.discrete, self.knots, tuple(atoms))
        return ColumnSpec("ordered" if self.kind == "ordered" else "category", len(self.levels))

    @cached_property
    def _atoms_as_x(self) -> Floats:
        values = np.array([value for value, _ in self.atoms], dtype=np.float64)
        return (values - self.location) / self.scale

    @cached_property
    def _code_of(self) -> dict[str, int]:
        return {level_text(level): code for code, level in enumerate(self.levels)}

    def encode(self, cells: Cells) -> tuple[Floats, Bools]:
        """Return x and what of it is observed; hidden entries are 0."""
        if self.is_number:
            values = cells.dates() if self.kind == "date" else cells.numbers(comma=self.style.comma)
            with np.errstate(over="ignore", invalid="ignore"):
                x = (values - self.location) / self.scale
            # False for NaN and infinities
            observed = (np.abs(values) <= LARGEST) & (np.abs(x) <= FARTHEST)
        else:
            texts, _, codes = cells.levels()
            lookup = np.array([*map(self.code, texts), -1], dtype=np.int64)
            x = lookup[codes].astype(np.float64)
            observed = x >= 0
        return np.where(observed, x, 0.0), observed

    def code(self, text: str) -> int:
        """Return the code of the level known by this text, -1 for none."""
        if text in self._code_of:
            return self._code_of[text]
        if self.kind == "boolean":  # a column of True and False may come back as 0.0 and 1.0
            return self._code_of.get(BOOLEAN.get(text.casefold(), ""), -1)
        try:  # 1.0 and 1 are the same level when one of the two sides had numbers
            return self._code_of.get(level_text(float(text)), -1)
        except ValueError:
            return -1

    def decode(self, x: Floats, *, clip: bool = True, whole: bool = True) -> Array:
        """Return numbers and days as float64, levels as objects.

        Args:
            x: Any shape.
            clip: Keep numbers in the observed range.
            whole: Round integers and dates to their unit.
        """
        if not self.is_number:
            codes = np.clip(np.rint(x), 0, len(self.levels) - 1).astype(np.int64)
            levels: Array = _objects(self.levels)[codes]
            return levels
        values = x * self.scale + self.location
        if self.unit and whole:
            values = np.rint(values / self.unit) * self.unit
        elif not self.unit:
            # x is a float32: round off its noise, so that a zero comes back as zero.
            places = math.ceil(-math.log10(self.scale)) + 6
            values = np.round(values, places) if abs(places) < 300 else values
        values = self._at_atoms(x, values + 0.0)  # no minus before zero
        return np.clip(values, self.low, self.high) if clip else values

    def _at_atoms(self, x: Floats, values: Floats) -> Floats:
        """Return the caller's own numbers where x, but for float32's rounding, is at an atom."""
        if not self.atoms:
            return values
        places = self._atoms_as_x
        nearest = np.searchsorted((places[1:] + places[:-1]) / 2, x)
        near = np.abs(x - places[nearest]) <= 1e-6 * np.maximum(1.0, np.abs(places[nearest]))
        return np.where(near, np.array([value for value, _ in self.atoms])[nearest], values)

    def cells(self, values: Array, form: Form) -> Array:
        """Return decoded values in the form that the caller's column can hold."""
        if not self.is_number:
            return self._level_cells(values, form)
        if form == "text":
            return self.texts(values)
        if self.kind == "date":
            moments = _moments(values)
            return moments.astype("datetime64[D]") if form == "date" else moments
        if form == "integer":
            return np.rint(values).astype(np.uint64 if self.high >= 2.0**63 else np.int64)
        if form == "boolean":
            return np.greater_equal(values, 0.5)
        if form == "object" and self.kind == "integer":
            return _objects([int(value) for value in values.tolist()])
        if form == "object":
            return _objects(values.tolist())
        return values

    def texts(self, values: Array) -> Array:
        """Return decoded values as this column writes them."""
        if not self.is_number:
            return _objects([self.style.pad(level_text(value)) for value in values.tolist()])
        if self.kind == "date":
            return _objects([self.style.moment(moment) for moment in _moments(values).tolist()])
        return _objects([self.style.number(value) for value in values.tolist()])

    def _level_cells(self, values: Array, form: Form) -> Array:
        if form == "text":
            return self.texts(values)
        if form in ("integer", "float"):
            try:
                numbers = np.array([float(value) for value in values], dtype=np.float64)
            except ValueError:
                raise ValueError(
                    f"column {self.name!r} holds numbers, but its levels are text"
                ) from None
            return np.rint(numbers).astype(np.int64) if form == "integer" else numbers
        if form == "boolean":
            texts = [BOOLEAN.get(level_text(value).casefold()) for value in values.tolist()]
            return np.array([text == "True" for text in texts], dtype=bool)
        return values

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        data = dataclasses.asdict(self)
        atoms = [list(atom) for atom in self.atoms]
        return {**data, "levels": list(self.levels), "knots": list(self.knots), "atoms": atoms}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the column that ``to_json`` described, or raise ValueError."""
        try:
            style = Style(**data["style"])
            levels, knots = tuple(data["levels"]), tuple(float(knot) for knot in data["knots"])
            atoms = tuple((float(value), float(share)) for value, share in data["atoms"])
            plain = {"style": style, "levels": levels, "knots": knots, "atoms": atoms}
            column = cls(**{**data, **plain})
            column._check()
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"not a description of a column: {error}") from None
        return column

    def _check(self) -> None:
        for entry in dataclasses.fields(self):
            value, hint = getattr(self, entry.name), entry.type
            if hint is float and (type(value) not in (int, float) or not math.isfinite(value)):
                raise ValueError(f"{entry.name} must be a finite number, got {value!r}")
            if hint in (str, bool) and type(value) is not hint:
                raise ValueError(f"{entry.name} must be {hint}, got {value!r}")
        for entry in dataclasses.fields(self.style):
            if type(getattr(self.style, entry.name)) is not entry.type:
                raise ValueError(f"style.{entry.name} must be {entry.type}")
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {get_args(Kind)}, got {self.kind!r}")
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")
        if len(self._code_of) != len(self.levels):
            raise ValueError("levels must differ")
        if any(not isinstance(level, str | int | float) for level in self.levels):
            raise ValueError("levels must be text, numbers or booleans")
        if self.kind != "ignored":
            _ = self.spec


def _moments(days: Floats) -> Array:
    return np.rint(days * MICROSECONDS_PER_DAY).astype(np.int64).view("datetime64[us]")


def _objects(values: Sequence[object]) -> Array:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
