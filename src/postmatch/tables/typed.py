"""Text cells as numbers, dates and truth values, for files and readers that know types."""

from typing import Any

import numpy as np
import pyarrow as pa

from postmatch.tables.cells import read_array
from postmatch.tables.column import Column, Form
from postmatch.tables.table import Table


def typed(table: Table, data: Any) -> Any:
    """Return rows of text, all of them drawn from a model, in the types of the table's columns.

    Args:
        table: What the columns are.
        data: A pyarrow table with the columns of ``table``.
    """
    arrays = [
        _array(column, cells, table.missing)
        for column, cells in zip(table.columns, data.columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, names=list(table.names))


def _array(column: Column, texts: Any, missing: tuple[str, ...]) -> Any:
    cells = read_array(texts, missing)
    if not column.is_number:
        kind = _kind_of_levels(column)
        x, observed = column.encode(cells)
        return texts if kind is None else pa.array(column.decode(x), kind, mask=~observed)
    if column.kind == "date":
        days = cells.dates()
        form: Form = "date" if column.unit == 1.0 else "datetime"
        return pa.array(column.cells(np.nan_to_num(days), form), mask=np.isnan(days))
    numbers = cells.numbers(comma=column.style.comma)
    plain = np.nan_to_num(numbers)
    whole = column.kind == "integer" and np.array_equal(plain, np.rint(plain))
    form = "integer" if whole and np.abs(plain).max(initial=0.0) < 2.0**63 else "float"
    return pa.array(column.cells(plain, form), mask=np.isnan(numbers))


def _kind_of_levels(column: Column) -> Any:
    types = {type(level) for level in column.levels}
    if types in ({bool}, {int}):
        return pa.bool_() if types == {bool} else pa.int64()
    return pa.float64() if types and types <= {int, float} else None
