"""What a table's model answers with: the prediction of a column, the summary of holes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor

from postmatch.tables import Column, Table

Floats = NDArray[np.float64]
Array = NDArray[Any]


@final
@dataclass(frozen=True, eq=False)
class Prediction:
    """The distribution of one column in each row, given whatever else the row shows.

    Numbers are in the user's units, dates in days since 1970.

    Args:
        column: What is predicted.
        best: The most probable level, or the mean, whole where the column is; one per row.
        levels: What the column can be; none for numbers.
        probabilities: Of the levels, ``(rows, levels)``; None for numbers.
        mean: Of a number, ``(rows,)``; None for levels.
        draws: Of a number, in increasing order, ``(samples, rows)``; None for levels.
    """

    column: Column
    best: Array
    levels: tuple[Any, ...] = ()
    probabilities: Floats | None = None
    mean: Floats | None = None
    draws: Floats | None = None

    def quantiles(self, levels: Sequence[float]) -> Floats:
        """Return quantiles of a number, ``(levels, rows)``."""
        if self.draws is None:
            raise ValueError(f"column {self.column.name!r} has levels: see their probabilities")
        if not all(0.0 <= level <= 1.0 for level in levels):
            raise ValueError(f"levels must lie in [0, 1], got {list(levels)}")
        found: Floats = np.quantile(self.draws, list(levels), axis=0)
        return found


def prediction_of(
    column: Column, best: Tensor, draws: Tensor | None = None, chances: Tensor | None = None
) -> Prediction:
    """Return a prediction in the user's units.

    Args:
        column: What is predicted.
        best: Its best values, ``(rows,)``.
        draws: Of a number, sorted, ``(samples, rows)``.
        chances: Of levels, ``(rows, levels)``.
    """
    point = best.double().numpy()
    if chances is not None:
        return Prediction(
            column, column.decode(point), column.levels, probabilities=chances.double().numpy()
        )
    assert draws is not None
    return Prediction(
        column,
        column.decode(point),
        mean=column.decode(point, whole=False),
        draws=column.decode(draws.double().numpy()),
    )


def summary_of(
    table: Table,
    holes: Tensor,
    point: Tensor,
    probability: Tensor,
    quantiles: Mapping[float, Tensor],
    offset: int = 0,
) -> pa.Table:
    """Return one row per hole; see ``TableModel.summarise``.

    Args:
        table: What the columns of x are.
        holes: ``(rows, columns)``, as are all that follow.
        point: The best single values.
        probability: Their probabilities, of columns with levels.
        quantiles: Level to x.
        offset: The number of the first row.
    """
    row, place = (index.numpy() for index in holes.nonzero(as_tuple=True))
    text = not all(column.kind in ("numeric", "integer") for column in table.modelled)
    cells = {name: np.empty(len(row), dtype=object) for name in ("mean", *map(_name, quantiles))}
    sure = np.empty(len(row), dtype=object)
    for index, column in enumerate(table.modelled):
        own, rows = place == index, row[place == index]
        answers = dict(zip(cells, (point, *quantiles.values()), strict=True))
        for name, x in answers.items():
            values = column.decode(x[rows, index].double().numpy(), whole=name != "mean")
            if column.is_number or column.kind == "ordered" or name == "mean":
                cells[name][own] = _texts(column, values) if text else values
        if not column.is_number:
            sure[own] = probability[rows, index].double().numpy()
    names = np.array([column.name for column in table.modelled], dtype=object)
    kind = pa.string() if text else pa.float64()
    return pa.table(
        {
            "row": pa.array(row + offset, pa.int64()),
            "column": pa.array(names[place], pa.string()),
            **{name: pa.array(values, kind) for name, values in cells.items()},
            "probability": pa.array(sure, pa.float64()),
        }
    )


def _name(level: float) -> str:
    return f"q{format(100 * level, 'g').zfill(2)}"


def _texts(column: Column, values: Array) -> Array:
    if column.kind in ("numeric", "integer"):  # a mean has more decimals than its column's cells
        texts = [np.format_float_positional(v, 7, fractional=False, trim="-") for v in values]
        out = np.empty(len(texts), dtype=object)
        out[:] = texts
        return out
    return np.array([text.strip() for text in column.texts(values)], dtype=object)
