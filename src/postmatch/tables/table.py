"""Table: a DataFrame to ``(x, observed)`` and back, one column of x per modelled column."""

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from postmatch.distributions.columns import ColumnSpec
from postmatch.tables.cells import Cells, level_text, read_array
from postmatch.tables.column import Array, Column, Form
from postmatch.tables.detection import detect
from postmatch.tables.explaining import reasons, refusal
from postmatch.tables.frames import Frame, frame_of
from postmatch.tables.overrides import as_asked, overrides, several, unknown_name

Ordered = Mapping[str, Sequence[str]] | Collection[str]


@final
@dataclass(frozen=True)
class Table:
    """What was learned of a table's columns; made by ``fit``, never changed afterwards.

    Args:
        columns: All columns, in the caller's order.
        missing: Texts that mean a missing cell, besides the usual ones.
        notes: What the user should hear about, such as columns that are not modelled.
    """

    columns: tuple[Column, ...]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        data: Any,
        *,
        categorical: Collection[str] = (),
        ordered: Ordered = (),
        numeric: Collection[str] = (),
        ignore: Collection[str] = (),
        missing: Collection[str] = (),
    ) -> Self:
        """Learn types, scales and levels from a DataFrame or a 2-d array.

        Args:
            data: pandas, polars or pyarrow, or an array whose columns are then x0, x1, ...
            categorical: Columns of levels without order.
            ordered: Columns of levels with an order: as given, or else by the numbers in them.
            numeric: Columns of numbers, even if they look like identifiers or levels.
            ignore: Columns to pass through.
            missing: Texts, also of numbers, that mean a missing cell: ``["-999"]``.

        Example:
            >>> import numpy as np
            >>> table = Table.fit(np.array([[1.5, 2.0], [np.nan, 4.0], [2.5, 4.0]]))
            >>> [column.kind for column in table.columns]
            ['numeric', 'integer']
        """
        frame = frame_of(data)
        if not frame.names:
            raise ValueError("the table has no columns")
        if frame.rows == 0:
            raise ValueError("the table has no rows: nothing can be learned from it")
        asked = overrides(
            frame.names,
            {"categorical": categorical, "ordered": ordered, "numeric": numeric, "ignore": ignore},
        )
        order = dict(ordered) if isinstance(ordered, Mapping) else {}
        tokens = tuple(str(text).strip() for text in several("missing", missing))
        found = []
        for position, name in enumerate(frame.names):
            cells = frame.cells(position, tokens)
            choice = asked.get(name)
            if choice is None:
                found.append(detect(name, cells, identifiers=frame.named))
            else:
                found.append(as_asked(name, cells, choice, order.get(name, ())))
        notes = tuple(note for _, note in found if note is not None)
        return cls(tuple(column for column, _ in found), tokens, notes)

    @cached_property
    def modelled(self) -> tuple[Column, ...]:
        """The columns that enter the model, in order: those of x."""
        return tuple(column for column in self.columns if column.kind != "ignored")

    @cached_property
    def specs(self) -> tuple[ColumnSpec, ...]:
        """What the model must know of each column of x."""
        return tuple(column.spec for column in self.modelled)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(column.name for column in self.columns)

    @property
    def log_jacobian(self) -> Tensor:
        r"""Per column of x, :math:`\log |dx/dv|` with v in the user's units; 0 for masses.

        A log density in the user's units is that of x plus this.
        """
        return torch.tensor(
            [
                -float(np.log(column.scale)) if column.is_number and not column.discrete else 0.0
                for column in self.modelled
            ],
            dtype=torch.float32,
        )

    def encode(self, data: Any, *, optional: Collection[str] = ()) -> tuple[Tensor, Tensor]:
        """Return x (float32) and observed (bool), both ``(rows, modelled)``; hidden entries are 0.

        Cells that are there but cannot be used (unseen levels, infinities, text among numbers) are
        hidden, with one warning for each of the three; ``decode`` leaves them as they are.

        Args:
            data: Columns of the names that were fitted, in any order; others are not looked at.
            optional: Columns that may be absent, and are then hidden.
        """
        frame = frame_of(data)
        size = (frame.rows, len(self.modelled))
        x, observed = np.zeros(size, dtype=np.float32), np.zeros(size, dtype=np.bool_)
        unused: dict[str, list[str]] = {}
        for index, column, position in self._positions(frame, optional):
            cells = frame.cells(position, self.missing)
            x[:, index], observed[:, index] = column.encode(cells)
            strange = ~cells.missing & ~observed[:, index]
            if strange.any():
                for reason, text in reasons(column, cells, strange):
                    unused.setdefault(reason, []).append(text)
        for reason, texts in unused.items():
            warnings.warn(
                f"{reason} are hidden from the model and kept as they are: {'; '.join(texts)}",
                UserWarning,
                stacklevel=2,
            )
        return torch.from_numpy(x), torch.from_numpy(observed)

    def holes(self, data: Any) -> Tensor:
        """Return the cells that ``decode`` fills, bool, ``(rows, modelled)``.

        They are hidden, but not all that is hidden is one of them: see ``encode``.
        """
        frame = frame_of(data)
        missing = np.zeros((frame.rows, len(self.modelled)), dtype=np.bool_)
        for index, _, position in self._positions(frame):
            missing[:, index] = frame.cells(position, self.missing).missing
        return torch.from_numpy(missing)

    def left_missing(self, data: Any) -> dict[str, int]:
        """Return how many cells are missing in each column that is not modelled, if any are."""
        frame = frame_of(data)
        filled = {position for _, _, position in self._positions(frame)}
        counts: Counter[str] = Counter()
        for position, name in enumerate(frame.names):
            if position not in filled:
                counts[name] += int(frame.cells(position, self.missing).missing.sum())
        return dict(+counts)

    def decode(self, x: Tensor, original: Any, *, clip: bool = True) -> Any:
        """Return the original with its missing cells, and only those, filled from x.

        Args:
            x: ``(rows, modelled)``.
            original: What was encoded; its type, dtypes, names and index come back.
            clip: Keep numbers in the range seen by ``fit``.
        """
        frame = frame_of(original)
        size = (frame.rows, len(self.modelled))
        if tuple(x.shape) != size:
            raise ValueError(f"x must have shape {size} (rows, modelled), got {tuple(x.shape)}")
        answers = x.detach().cpu().to(torch.float64).numpy()
        filling = {}
        for index, column, position in self._positions(frame):
            cells = frame.cells(position, self.missing)
            if not cells.missing.any():
                continue
            hidden = answers[cells.missing, index]
            if not np.isfinite(hidden).all():
                raise ValueError(f"x must be finite, got NaN or inf for column {column.name!r}")
            values = column.decode(hidden, clip=clip)
            filling[position] = (
                cells.missing,
                _as_cells(column, values, frame.form(position), cells),
            )
        return frame.fill(filling)

    def values(self, x: Tensor, *, clip: bool = True, whole: bool = True) -> tuple[Array, ...]:
        """Return, per column of x, its values in the user's units: float64, or levels as objects.

        Args:
            x: ``(..., modelled)``; each array has the leading shape.
            clip: Keep numbers in the range seen by ``fit``.
            whole: Round integers and dates (days since 1970) to their unit; means may not want it.
        """
        answers = x.detach().cpu().to(torch.float64).numpy()
        return tuple(
            column.decode(answers[..., index], clip=clip, whole=whole)
            for index, column in enumerate(self.modelled)
        )

    def frame_from(self, rows: Sequence[Mapping[str, str]]) -> Any:
        """Return rows of text, such as ``{"age": "54"}``, as a pyarrow table; all else is missing.

        A name or a value that the table does not know is a ValueError.
        """
        for name in dict.fromkeys(name for row in rows for name in row):
            self._check_given(name, [row[name] for row in rows if name in row])
        arrays = [
            pa.array([row.get(name) for row in rows], pa.string()) for name in self.names
        ]  # a row's value may be None, a missing cell
        return pa.Table.from_arrays(arrays, names=list(self.names))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "columns": [column.to_json() for column in self.columns],
            "missing": list(self.missing),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the table that ``to_json`` described, or raise ValueError."""
        if not isinstance(data, Mapping) or set(data) != {"columns", "missing", "notes"}:
            raise ValueError("not a description of a table: it needs columns, missing and notes")
        if not isinstance(data["columns"], list) or not data["columns"]:
            raise ValueError("not a description of a table: columns must be a list, not empty")
        for key in ("missing", "notes"):
            if not isinstance(data[key], list) or any(type(item) is not str for item in data[key]):
                raise ValueError(f"not a description of a table: {key} must be a list of text")
        columns = tuple(Column.from_json(column) for column in data["columns"])
        return cls(columns, tuple(data["missing"]), tuple(data["notes"]))

    def _positions(
        self, frame: Frame, optional: Collection[str] = ()
    ) -> Iterable[tuple[int, Column, int]]:
        """Return the modelled columns with their places in x and in the frame, found by name."""
        if not frame.named:
            if len(frame.names) != len(self.columns):
                raise ValueError(
                    f"the array must have {len(self.columns)} columns, got {len(frame.names)}"
                )
            places = dict(enumerate(range(len(self.columns))))
        else:
            at = {key: place for place, key in enumerate(_numbered(frame.names))}
            keys = dict(enumerate(_numbered(self.names)))
            places = {index: at[key] for index, key in keys.items() if key in at}
        wanted = [i for i, column in enumerate(self.columns) if column.kind != "ignored"]
        absent = [self.columns[i].name for i in wanted if i not in places]
        absent = [name for name in absent if name not in optional]
        if absent:
            raise ValueError(f"the data lacks columns of the table: {', '.join(map(repr, absent))}")
        return [(x, self.columns[i], places[i]) for x, i in enumerate(wanted) if i in places]

    def _check_given(self, name: str, texts: Sequence[str]) -> None:
        if name not in self.names:
            raise ValueError(unknown_name(name, self.names))
        if self.names.count(name) > 1:
            raise ValueError(f"{self.names.count(name)} columns are named {name!r}")
        column = self.columns[self.names.index(name)]
        if column.kind == "ignored":
            raise ValueError(f"column {name!r} is not modelled, so nothing can be given for it")
        cells = read_array(pa.array(texts, pa.string()), self.missing)
        wrong = ~cells.missing & ~column.encode(cells)[1]
        if wrong.any():
            raise ValueError(refusal(column, cells, wrong))


def _as_cells(column: Column, values: Array, form: Form, cells: Cells) -> Array:
    """Return decoded values for the caller's column, levels as the caller's own objects."""
    out = column.cells(values, form)
    if column.is_number or form != "object" or cells.codes is None:
        return out
    texts, objects, _ = cells.levels()
    own = dict(zip(texts, objects, strict=True))
    mapped = np.empty(len(out), dtype=object)
    mapped[:] = [own.get(level_text(value), value) for value in out.tolist()]
    return mapped


def _numbered(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return each name with how often it came before, so that equal names stay apart."""
    seen: Counter[str] = Counter()
    keys = []
    for name in names:
        keys.append((name, seen[name]))
        seen[name] += 1
    return keys
