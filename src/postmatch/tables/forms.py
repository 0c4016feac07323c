"""Which form of values a column of a given type can hold."""

from datetime import date, datetime
from typing import Any

import narwhals as nw

from postmatch.tables.cells import is_missing
from postmatch.tables.column import Array, Form

NOTHING = ("NoneType", "NAType", "NaTType")


def form_of_dtype(dtype: Any) -> Form:
    """Return the form for a narwhals dtype."""
    if dtype.is_integer():
        return "integer"
    if dtype.is_float() or dtype.is_decimal():
        return "float"
    forms: dict[Any, Form] = {nw.Boolean: "boolean", nw.Date: "date", nw.Datetime: "datetime"}
    if dtype in (nw.Categorical, nw.Enum, nw.Object):
        return "object"
    return next((form for kind, form in forms.items() if dtype == kind), "text")


def form_of_objects(values: Array) -> Form:
    """Return the form of Python objects; text only where every value is text."""
    items = values.tolist()
    types = {kind for kind in set(map(type, items)) if kind.__name__ not in NOTHING}
    if str in types and float in types and all(map(is_missing, filter(_is_float, items))):
        types.remove(float)  # they are NaN
    if types == {str}:
        return "text"
    if any(issubclass(kind, datetime) for kind in types):
        return "datetime"
    return "date" if any(issubclass(kind, date) for kind in types) else "object"


def _is_float(value: object) -> bool:
    return isinstance(value, float)
