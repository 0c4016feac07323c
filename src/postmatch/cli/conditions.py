"""Rows as a question wants them: some columns known, some set, the others hidden."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postmatch.tables import Table


def conditioned(
    table: "Table", rows: Any, values: Mapping[str, str], columns: Sequence[str]
) -> Any:
    """Return pyarrow rows with ``values`` set and, if ``columns`` are named, all others hidden.

    Args:
        table: Which columns are modelled; others are left alone.
        rows: A pyarrow table.
        values: What is known of every row.
        columns: Whose own values are known; none named means all of them.
    """
    import pyarrow as pa

    table.frame_from([values])  # raises what is wrong with a name or a value
    check_names(table, columns)
    modelled = {column.name for column in table.modelled}
    for place, name in enumerate(rows.column_names):
        kind = rows.schema.field(place).type
        if name in values:
            cell = _cell(values[name], kind)
            rows = rows.set_column(place, name, pa.repeat(cell, rows.num_rows))
        elif columns and name not in columns and name in modelled:
            rows = rows.set_column(place, name, pa.nulls(rows.num_rows, kind))
    return rows


def check_names(table: "Table", columns: Sequence[str]) -> None:
    """Raise unless all are columns that the model knows."""
    from postmatch.tables.overrides import unknown_name

    known = [column.name for column in table.modelled]
    for name in columns:
        if name not in known:
            raise ValueError(f"--given-columns: {unknown_name(name, known)}")


def _cell(text: str, kind: Any) -> Any:
    import pyarrow as pa

    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_floating(plain) or pa.types.is_integer(plain):
        return pa.scalar(float(text), pa.float64())
    if pa.types.is_string(plain) or pa.types.is_large_string(plain):
        return pa.scalar(text, plain)
    return pa.scalar(text).cast(plain)
