"""The caller's data, whatever its type: columns out, the same type with holes filled back."""

import abc
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from postmatch.tables.cells import (
    Bools,
    Cells,
    read_array,
    read_levels,
    read_numbers,
    read_objects,
)
from postmatch.tables.column import Array, Form
from postmatch.tables.forms import form_of_dtype, form_of_objects

Filling = Mapping[int, tuple[Bools, Array]]  # position -> holes, a value for each


class Frame(abc.ABC):
    """Columns by position, so that two of the same name are two columns."""

    names: tuple[str, ...]
    rows: int
    named = True  # the names are the caller's own, so that columns are found by name

    @abc.abstractmethod
    def cells(self, position: int, missing: Collection[str]) -> Cells:
        """Read one column."""

    @abc.abstractmethod
    def form(self, position: int) -> Form:
        """Return the form of values that one column can hold."""

    @abc.abstractmethod
    def fill(self, filling: Filling) -> Any:
        """Return the caller's type of data, like the original outside the holes."""


def frame_of(data: Any) -> Frame:
    """Return the frame around a caller's data, or raise TypeError."""
    if isinstance(data, np.ndarray):
        return ArrayFrame(data)
    if isinstance(data, pa.Table):
        return ArrowFrame(data)
    if nw.dependencies.is_pandas_dataframe(data):
        return PandasFrame(data)
    try:
        return EagerFrame(nw.from_native(data, eager_only=True))
    except TypeError:
        raise TypeError(
            "data must be a DataFrame (pandas, polars, pyarrow; a lazy one collected first) "
            f"or a 2-d NumPy array, got {type(data).__module__}.{type(data).__qualname__}"
        ) from None


@final
class ArrayFrame(Frame):
    """A 2-d NumPy array; its columns are x0, x1, ..."""

    named = False

    def __init__(self, native: Array) -> None:
        if native.ndim != 2 or native.dtype.kind not in "biufOUM":
            raise ValueError(
                "an array must have 2 dimensions and hold numbers, text or objects, "
                f"got shape {native.shape} of {native.dtype}"
            )
        self.native = native
        self.names = tuple(f"x{position}" for position in range(native.shape[1]))
        self.rows = native.shape[0]

    def cells(self, position: int, missing: Collection[str]) -> Cells:
        """Read one column."""
        values = self.native[:, position]
        if values.dtype.kind in "iuf":
            single = values.dtype.kind == "f" and values.dtype.itemsize < 8
            return read_numbers(values.astype(np.float64), missing, single=single)
        if values.dtype.kind == "M":
            return read_array(pa.array(values.astype("datetime64[us]")), missing)
        return read_objects(values.astype(object), missing)

    def form(self, position: int) -> Form:
        """Return the form of values that one column can hold."""
        forms: dict[str, Form] = {
            "b": "boolean",
            "i": "integer",
            "u": "integer",
            "f": "float",
            "U": "text",
            "M": "datetime",
        }
        return forms.get(self.native.dtype.kind) or form_of_objects(self.native[:, position])

    def fill(self, filling: Filling) -> Any:
        """Return a filled copy."""
        out = self.native.copy()
        if out.dtype.kind == "U":  # a filled text may be longer than any seen
            out = out.astype(np.dtypes.StringDType())
        for position, (holes, values) in filling.items():
            out[holes, position] = values.tolist() if values.dtype.kind == "M" else values
        return (
            out.astype(f"U{max(map(len, out.flat), default=1)}") if out.dtype.kind == "T" else out
        )


@final
class ArrowFrame(Frame):
    """A pyarrow table."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.names, self.rows = tuple(map(str, native.column_names)), native.num_rows

    def cells(self, position: int, missing: Collection[str]) -> Cells:
        """Read one column."""
        return read_array(_combined(self.native.column(position)), missing)

    def form(self, position: int) -> Form:
        """Return the form of values that one column can hold."""
        kind = self.native.column(position).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        tests: Sequence[tuple[Any, Form]] = (
            (pa.types.is_boolean, "boolean"),
            (pa.types.is_integer, "integer"),
            (pa.types.is_floating, "float"),
            (pa.types.is_decimal, "float"),
            (pa.types.is_date, "date"),
            (pa.types.is_timestamp, "datetime"),
        )
        return next((form for test, form in tests if test(kind)), "text")

    def fill(self, filling: Filling) -> Any:
        """Return a table of the same schema."""
        out = self.native
        for position, (holes, values) in filling.items():
            field, column = out.schema.field(position), _combined(out.column(position))
            coded = pa.types.is_dictionary(field.type)
            plain = field.type.value_type if coded else field.type
            plain = pa.large_string() if pa.types.is_string_view(plain) else plain
            filler = pa.array(_spread(values, holes))
            filler = filler.cast(plain, safe=False)  # a double fits a single or a decimal only so
            filled = pc.if_else(pa.array(holes), filler, column.cast(plain))
            filled = _encoded(filled, column, field.type) if coded else filled.cast(field.type)
            out = out.set_column(position, field, filled)
        return out


@final
class PandasFrame(Frame):
    """A pandas DataFrame, whatever its index and column names."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.names, self.rows = tuple(map(str, native.columns)), len(native)

    def cells(self, position: int, missing: Collection[str]) -> Cells:
        """Read one column."""
        series = self.native.iloc[:, position]
        if _is_categorical(series):
            codes = series.cat.codes.to_numpy().astype(np.int64)
            levels = series.cat.categories.tolist()
            return read_levels(codes, levels, missing, ordered=bool(series.cat.ordered))
        try:
            return read_objects(
                series.array if series.dtype != object else series.to_numpy(), missing
            )
        except NotImplementedError:
            return read_objects(series.to_numpy(dtype=object), missing)

    def form(self, position: int) -> Form:
        """Return the form of values that one column can hold."""
        series = _dense(self.native.iloc[:, position])
        if series.dtype == object:
            return form_of_objects(series.to_numpy())
        return form_of_dtype(nw.from_native(series, series_only=True).dtype)

    def fill(self, filling: Filling) -> Any:
        """Return a copy with the same index, names and dtypes."""
        out = self.native.copy()
        for position, (holes, values) in filling.items():
            series = self.native.iloc[:, position].copy()
            if _is_categorical(series):
                unknown = [
                    v for v in dict.fromkeys(values.tolist()) if v not in series.cat.categories
                ]
                series = series.cat.add_categories(unknown) if unknown else series
            dtype, series = series.dtype, _dense(series)
            series.iloc[np.flatnonzero(holes)] = _for_pandas(values, series.dtype)
            out.isetitem(position, series.astype(dtype) if dtype != series.dtype else series)
        return out


@final
class EagerFrame(Frame):
    """Any other eager DataFrame that narwhals knows, polars first."""

    def __init__(self, native: nw.DataFrame[Any]) -> None:
        self.native = native
        self.names, self.rows = tuple(native.columns), len(native)

    def cells(self, position: int, missing: Collection[str]) -> Cells:
        """Read one column."""
        series = self.native[self.names[position]]
        if series.dtype == nw.Object:
            return Cells("other", series.is_null().to_numpy())
        cells = read_array(_combined(series.to_arrow()), missing)
        # Arrow calls an Enum ordered, but polars users fix the levels of colours with it too.
        return replace(cells, ordered=False) if series.dtype == nw.Enum else cells

    def form(self, position: int) -> Form:
        """Return the form of values that one column can hold."""
        return form_of_dtype(self.native[self.names[position]].dtype)

    def fill(self, filling: Filling) -> Any:
        """Return a frame of the same schema."""
        columns = []
        for position, (holes, values) in filling.items():
            series = self.native[self.names[position]]
            backend = self.native.implementation
            filler = nw.new_series(series.name, _spread(values, holes).tolist(), backend=backend)
            keep = nw.new_series("keep", (~holes).tolist(), backend=backend)
            columns.append(series.zip_with(keep, filler.cast(series.dtype)))
        return self.native.with_columns(*columns).to_native()


def _combined(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _encoded(values: Any, original: Any, kind: Any) -> Any:
    """Return values in a dictionary type, with the original's own dictionary as far as it goes."""
    known = original.dictionary
    new = pc.unique(values.filter(pc.invert(pc.is_in(values, value_set=known)))).drop_null()
    dictionary = pa.concat_arrays([known, new.cast(known.type)])
    indices = pc.index_in(values, value_set=dictionary).cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, dictionary, ordered=kind.ordered)


def _spread(values: Array, holes: Bools) -> Array:
    full: Array = values[np.maximum(np.cumsum(holes) - 1, 0)]
    return full  # (rows,), any value outside the holes


def _is_categorical(series: Any) -> bool:
    import pandas as pd

    return isinstance(series.dtype, pd.CategoricalDtype)


def _dense(series: Any) -> Any:
    return series.sparse.to_dense() if str(series.dtype).startswith("Sparse") else series


def _for_pandas(values: Array, dtype: Any) -> Any:
    """Return values that a pandas column takes without changing its dtype."""
    import pandas as pd

    if isinstance(dtype, pd.DatetimeTZDtype):
        moments = pd.DatetimeIndex(values).tz_localize("UTC").tz_convert(dtype.tz)
        return moments.as_unit(dtype.unit)
    if isinstance(dtype, pd.ArrowDtype):
        return pa.array(values).cast(dtype.pyarrow_dtype, safe=False).to_pylist()
    plain = getattr(dtype, "numpy_dtype", dtype)  # Int64 holds int64
    if isinstance(plain, np.dtype) and plain.kind in "iufbM":
        return values.astype(plain)
    return values.astype(object) if values.dtype.kind == "M" else values
