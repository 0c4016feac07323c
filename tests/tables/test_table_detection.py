"""What columns are taken for, and what the user can say about it."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from postmatch.tables import Table, read_table

TABLES = Path(os.environ.get("POSTMATCH_DATA", "data")) / "tabular"
ROWS = 40


def kind(values: Any, name: str = "a", **overrides: Any) -> str:
    return Table.fit(pd.DataFrame({name: values}), **overrides).columns[0].kind


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.5, 2.5] * 20, "numeric"),
        ([1.0, 2.0] * 20, "integer"),
        (["1.10", "2.5"] * 20, "numeric"),
        (["1", "2"] * 20, "integer"),
        (["+1", "-2", "3e2", ".5"] * 10, "numeric"),
        (["1"] * 99 + ["oops"], "integer"),
        (["1"] * 30 + ["oops"] * 10, "categorical"),
        (["007", "012"] * 20, "categorical"),
        ([f"{i:05d}" for i in range(ROWS)], "ignored"),
        (["yes", "no"] * 20, "categorical"),
        (["true", "false"] * 20, "categorical"),
        ([True, False] * 20, "boolean"),
        (["2024-01-05", "2024-02-05"] * 20, "date"),
        (["2024-13-05", "2024-02-31"] * 20, "categorical"),
        ([f"name {i}" for i in range(ROWS)], "ignored"),
        ([f"name {i}" for i in range(5)], "categorical"),
        (list(range(ROWS)), "ignored"),
        (list(range(1, ROWS + 1)), "ignored"),
        (list(range(5)), "integer"),
        (list(range(1980, 1980 + ROWS)), "integer"),
        ([str(i) for i in range(ROWS)], "ignored"),
    ],
)
def test_detection_tells_numbers_levels_dates_and_identifiers_apart(
    values: list[Any], expected: str
) -> None:
    assert kind(values) == expected


@pytest.mark.parametrize("name", ["id", "ID", "customer_id", "PassengerId", "uuid", "index"])
def test_whole_numbers_all_different_and_named_like_an_id_are_one(name: str) -> None:
    assert kind([31, 7, 55, 12], name) == "ignored"
    assert kind([31, 7, 55, 31], name) == "integer"


@pytest.mark.parametrize("name", ["acid", "humid", "paid", "grid", "width"])
def test_words_that_end_in_id_are_no_id(name: str) -> None:
    assert kind([31, 7, 55, 12], name) == "integer"


def test_an_array_has_no_identifiers() -> None:
    assert Table.fit(np.arange(100).reshape(-1, 1)).columns[0].kind == "integer"


def test_what_is_not_modelled_is_announced() -> None:
    data = pd.DataFrame({"id": range(30), "note": [f"text {i}" for i in range(30)]})
    assert Table.fit(data).notes == (
        "column 'id' looks like an identifier: passed through, not modelled",
        "column 'note' looks like free text or an identifier: passed through, not modelled",
    )


def test_the_user_decides_what_detection_cannot_know() -> None:
    assert kind(list(range(ROWS)), numeric=["a"]) == "integer"
    assert kind([10115, 20095] * 20, categorical=["a"]) == "categorical"
    assert kind([1.5, 2.5] * 20, ignore=["a"]) == "ignored"
    assert kind([f"name {i}" for i in range(ROWS)], categorical=["a"]) == "categorical"
    assert kind([1, 2, 3], ordered=["a"]) == "ordered"


def test_ordered_levels_take_the_order_given_or_that_of_their_numbers() -> None:
    sizes = pd.DataFrame({"size": ["S", "L", "M", None]})
    table = Table.fit(sizes, ordered={"size": ["S", "M", "L", "XL"]})
    assert table.specs[0].kind == "ordered"
    assert table.specs[0].size == 4
    assert table.encode(sizes)[0][:3, 0].tolist() == [0, 2, 1]
    ages = pd.DataFrame({"age": ["10-14", "5-9", "100+", "5-9"]})
    assert Table.fit(ages, ordered=["age"]).columns[0].levels == ("5-9", "10-14", "100+")
    typed = pd.DataFrame({"t": pd.Categorical(["lo", "hi"], ["lo", "mid", "hi"], ordered=True)})
    assert Table.fit(typed).columns[0].kind == "ordered"
    assert Table.fit(typed).columns[0].levels == ("lo", "mid", "hi")


@pytest.mark.parametrize("hole", ["", "NA", "?", "-999"])
def test_what_means_a_missing_cell_is_no_level(hole: str) -> None:
    data = pa.table({"age": ["10-14", hole, "5-9", "under 5", hole]})
    table = Table.fit(data, ordered=["age"], missing=["-999"])
    assert table.columns[0].levels == ("under 5", "5-9", "10-14")
    assert table.encode(data)[1][:, 0].tolist() == [True, False, True, True, False]
    declared = pd.DataFrame({"t": pd.Categorical(["lo", "hi"], ["NA", "lo", "hi"], ordered=True)})
    assert Table.fit(declared).columns[0].levels == ("lo", "hi")


def test_negative_numbers_are_ordered_by_value() -> None:
    data = pd.DataFrame({"t": ["-1", "3", "-5", "10"]})
    assert Table.fit(data, ordered=["t"]).columns[0].levels == ("-5", "-1", "3", "10")


def test_cells_with_none_of_the_levels_given_are_announced() -> None:
    data = pd.DataFrame({"size": ["S", "M", "XL", "XL"]})
    assert Table.fit(data, ordered={"size": ["S", "M"]}).notes == (
        "column 'size': 2 cells with none of the levels given ('XL'), hidden from the model "
        "and kept",
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"ordered": ["word"]}, "name the levels of 'word', lowest first: 'a' holds no number"),
        ({"ordered": {"word": ["a", "NA"]}}, "'NA' means a missing cell"),
        ({"categorical": ["zipp"]}, "categorical: no column is named 'zipp'; did you mean 'zip'"),
        ({"ignore": ["qqq"]}, "the table has 'zip', 'word'"),
        ({"categorical": ["zip"], "ignore": ["zip"]}, "both categorical and ignore"),
        ({"numeric": ["word"]}, "'word' cannot be numeric: it holds 'a'"),
        ({"ordered": {"word": ["a", "a"]}}, "must differ"),
    ],
)
def test_an_impossible_wish_is_a_value_error(overrides: dict[str, Any], message: str) -> None:
    data = pd.DataFrame({"zip": [1, 2], "word": ["a", "b"]})
    with pytest.raises(ValueError, match=message):
        Table.fit(data, **overrides)


@pytest.mark.parametrize("group", ["categorical", "ordered", "numeric", "ignore", "missing"])
def test_one_name_instead_of_a_collection_is_a_type_error(group: str) -> None:
    wish: dict[str, Any] = {group: "a"}
    with pytest.raises(TypeError, match=f"{group} must be a collection of names, got the text 'a'"):
        Table.fit(pd.DataFrame({"a": [1, 2]}), **wish)


def test_levels_are_the_same_whether_numbers_carry_them_or_text() -> None:
    table = Table.fit(pd.DataFrame({"zip": [10115.0, 20095.0, np.nan]}), categorical=["zip"])
    assert table.columns[0].levels == (10115, 20095)
    for values in ([20095], ["20095"], ["20095.0"], [20095.0]):
        x, observed = table.encode(pd.DataFrame({"zip": values}))
        assert observed.all()
        assert x.item() == 1
    filled = table.decode(x, pd.DataFrame({"zip": [np.nan]}))
    assert filled["zip"].tolist() == [20095.0]


@pytest.mark.skipif(not TABLES.is_dir(), reason=f"needs POSTMATCH_DATA, looked in {TABLES}")
@pytest.mark.parametrize("name", ["adult", "penguins", "titanic", "yeast", "mushroom", "mpg"])
def test_kinds_of_well_known_tables_are_as_published(name: str) -> None:
    published = json.loads((TABLES / "tables.json").read_text())[name]
    data = read_table(TABLES / f"{name}.csv.gz")
    table = Table.fit(data)
    # Whole numbers that stand for classes or ranks cannot be told from counts.
    same = {"categorical": "integer", "ordered": "integer", "numeric": "integer"}
    for column in table.columns:
        expected = published["columns"][column.name]
        assert column.kind in (expected, same.get(expected))
    _, observed = table.encode(data)
    assert (~observed).sum() == published["missing_cells"]
