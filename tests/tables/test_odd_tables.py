"""Odd tables: each has a defined behaviour, and docs/tables.md says which."""

import datetime as dt
import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from postmatch.tables import Table


def kinds(table: Table) -> list[str]:
    return [column.kind for column in table.columns]


def text_table(**columns: list[str | None]) -> pa.Table:
    return pa.table({name: pa.array(texts, pa.string()) for name, texts in columns.items()})


@pytest.mark.parametrize("value", [3.7, 5, 0, "same", True, dt.datetime(2020, 1, 1)])
def test_holes_of_a_constant_column_get_the_constant(value: Any) -> None:
    data = pd.DataFrame({"c": pd.Series([value, None, value, value], dtype=object)})
    table = Table.fit(data)
    x, _ = table.encode(data)
    assert table.columns[0].scale == 1.0
    assert table.decode(x + 0.3, data)["c"].tolist() == [value] * 4


def test_a_column_with_no_value_is_announced_and_stays_as_it_is() -> None:
    data = pd.DataFrame({"a": [1.5, 2.5, 3.5], "void": [np.nan] * 3})
    table = Table.fit(data)
    assert kinds(table) == ["numeric", "ignored"]
    assert table.notes == ("column 'void' has no value at all: passed through, not modelled",)
    x, _ = table.encode(data)
    assert x.shape == (3, 1)
    assert table.decode(x, data)["void"].isna().all()


def test_knots_of_a_zero_heavy_column_tell_its_other_values_apart() -> None:
    generator = np.random.default_rng(0)
    values = np.where(generator.random(2_000) < 0.97, 0.0, generator.lognormal(5, 1, 2_000))
    table = Table.fit(values[:, None])
    column = table.columns[0]
    knots = np.array(table.specs[0].knots) * column.scale + column.location
    assert knots.min() == pytest.approx(0, abs=1e-6 * column.scale)
    assert knots.max() == pytest.approx(values.max(), rel=1e-6)
    assert (knots > 1).sum() >= 10
    # A zero comes back as zero, although x is single precision.
    x, _ = table.encode(values[:, None])
    assert np.array_equal(table.values(x)[0][values == 0], np.zeros((values == 0).sum()))


def test_the_bulk_of_a_heavy_tailed_column_is_not_squeezed_to_a_point() -> None:
    values = np.random.default_rng(0).standard_cauchy((5_000, 1))
    x, observed = Table.fit(values).encode(values)
    assert observed.all()
    assert x.abs().max() <= 1.001e4
    low, high = torch.quantile(x, torch.tensor([0.25, 0.75]))
    assert high - low > 0.05  # with the plain standard deviation it is a hundredth of that
    assert (values.std() / (np.quantile(values, 0.75) - np.quantile(values, 0.25))) > 20


def test_five_hundred_categories_are_all_kept() -> None:
    towns = [f"town {i % 500}" for i in range(2_000)]
    table = Table.fit(pd.DataFrame({"town": towns}))
    assert table.specs[0].size == 500
    x, _ = table.encode(pd.DataFrame({"town": towns}))
    assert table.values(x)[0].tolist() == towns


def test_beyond_a_thousand_categories_the_rare_ones_are_hidden_and_kept() -> None:
    towns = [f"t{i % 1_500}" for i in range(3_000)] + [f"t{i}" for i in range(1_000)]
    data = pd.DataFrame({"town": towns})
    table = Table.fit(data)
    assert table.specs[0].size == 1_000
    assert "1,500 different values" in table.notes[0]
    with pytest.warns(UserWarning, match="levels unseen by fit"):
        x, observed = table.encode(data)
    assert observed.sum() == 3_000
    assert table.decode(x, data).equals(data)


def test_dates_come_back_as_dates_of_their_own_resolution() -> None:
    days = pd.Series(pd.to_datetime(["2020-01-01", None, "2020-03-01", "2020-12-24"]))
    moments = pd.Series(pd.to_datetime(["2020-01-01 10:30", None, "2020-03-01 11:00", None]))
    data = pd.DataFrame({"day": days, "moment": moments})
    table = Table.fit(data)
    assert kinds(table) == ["date", "date"]
    x, _ = table.encode(data)
    filled = table.decode(x + 0.1234, data)
    assert (filled["day"] == filled["day"].dt.normalize()).all()
    assert (filled["moment"] == filled["moment"].dt.floor("min")).all()


@pytest.mark.parametrize("example", ["2020-01-31", "2020-01-31 10:30", "2020-01-31T10:30:15"])
def test_iso_dates_in_text_are_filled_in_the_same_form(example: str) -> None:
    data = text_table(when=[example, "?", example.replace("2020", "2022"), None])
    table = Table.fit(data)
    assert kinds(table) == ["date"]
    x, _ = table.encode(data)
    for text in table.decode(x, data).column("when").to_pylist():
        assert len(text) == len(example)
        dt.datetime.fromisoformat(text)


def test_two_columns_of_one_name_are_two_columns() -> None:
    pandas = pd.DataFrame([[1.5, "u"], [np.nan, "v"], [3.5, None], [2.5, "v"]])
    pandas.columns = ["a", "a"]
    arrow = pa.table([[1.5, None, 3.5, 2.5], ["u", "v", None, "v"]], names=["a", "a"])
    for data in (pandas, arrow):
        table = Table.fit(data)
        assert kinds(table) == ["numeric", "categorical"]
        x, observed = table.encode(data)
        assert observed.tolist() == [[True, True], [False, True], [True, False], [True, True]]
        assert table.encode(table.decode(x, data))[1].all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300])
def test_infinities_are_hidden_with_one_warning_and_kept(value: float) -> None:
    data = np.array([[1.5, 2.0], [value, value], [2.5, np.nan], [3.5, 4.0]])
    table = Table.fit(data)
    with pytest.warns(UserWarning, match=r"infinite or absurdly large.*'x0'.*'x1'") as caught:
        x, observed = table.encode(data)
    assert len(caught) == 1
    assert not observed[1].any()
    assert torch.isfinite(x).all()
    filled = table.decode(x, data)
    assert filled[1].tolist() == [value, value]
    assert 2.0 <= filled[2, 1] <= 4.0


def test_a_column_of_infinities_alone_is_not_modelled() -> None:
    table = Table.fit(np.array([[np.inf, 1.0, 1e300], [-np.inf, 2.0, 2e300]]))
    assert kinds(table) == ["ignored", "integer", "ignored"]
    assert "column 'x2' has no number up to 1e+100" in table.notes[1]


def test_text_and_large_numbers_in_one_column_are_told_apart() -> None:
    table = Table.fit(text_table(n=["1", "2", "3", "10"]))
    with pytest.warns(UserWarning, match="hidden from the model") as caught:
        table.encode(text_table(n=["abc", "1e90", "inf", "2"]))
    assert [str(warning.message) for warning in caught] == [
        "cells that do not read as the numbers or dates of their column are hidden from the model "
        "and kept as they are: column 'n' (1 cell: 'abc')",
        "infinite or absurdly large numbers are hidden from the model and kept as they are: "
        "column 'n' (2 cells: '1e90', 'inf')",
    ]


@pytest.mark.parametrize("row", [{"a": [1.5], "b": ["u"]}, {"a": [1.5], "b": [None]}])
def test_a_table_of_one_row_works(row: dict[str, list[Any]]) -> None:
    data = pd.DataFrame(row)
    table = Table.fit(data)
    x, observed = table.encode(data)
    assert observed.all()
    hole = pd.DataFrame({"a": [np.nan], "b": row["b"]})
    assert table.decode(x, hole)["a"].tolist() == [1.5]


def test_a_table_of_one_column_works() -> None:
    data = pl.DataFrame({"a": [1.0, None, 3.0]})
    table = Table.fit(data)
    x, _ = table.encode(data)
    assert table.decode(x, data)["a"].to_list() == [1.0, 2.0, 3.0]


def test_a_table_with_nothing_in_it_cannot_be_fitted_but_an_empty_block_passes() -> None:
    with pytest.raises(ValueError, match="no rows"):
        Table.fit(pd.DataFrame({"a": []}))
    with pytest.raises(ValueError, match="no columns"):
        Table.fit(pd.DataFrame())
    data = pd.DataFrame({"a": [1.5, 2.5], "b": ["u", "v"]})
    table = Table.fit(data)
    x, observed = table.encode(data.iloc[:0])
    assert x.shape == observed.shape == (0, 2)
    assert table.decode(x, data.iloc[:0]).equals(data.iloc[:0])


def test_levels_unseen_by_fit_are_hidden_with_one_warning_and_kept() -> None:
    table = Table.fit(pd.DataFrame({"a": ["u", "v"] * 3, "b": ["p", "q"] * 3}))
    data = pd.DataFrame({"a": ["u", "new", None], "b": ["odd", "q", "p"]})
    with pytest.warns(UserWarning, match=r"'a' \(1 cell: 'new'\); column 'b'") as caught:
        x, observed = table.encode(data)
    assert len(caught) == 1
    assert observed.tolist() == [[True, False], [False, True], [False, True]]
    assert table.decode(x, data)["a"].tolist()[:2] == ["u", "new"]


def test_the_fitted_table_and_not_the_block_decides_types() -> None:
    table = Table.fit(text_table(n=["1", "2", "3", "10"], c=["a", "b", "a", "b"]))
    block = text_table(n=["3.5", "many", "2", "?"], c=["a", "a", "b", "a"])
    with pytest.warns(UserWarning, match="do not read as the numbers.*'many'"):
        x, observed = table.encode(block)
    assert observed[:, 0].tolist() == [True, False, True, False]
    assert table.values(x, whole=False)[0][0] == pytest.approx(3.5, abs=1e-5)
    filled = table.decode(x, block).column("n").to_pylist()
    assert filled[:3] == ["3.5", "many", "2"]
    assert filled[3].isdigit()


def test_text_is_filled_in_the_columns_own_style() -> None:
    data = text_table(
        fixed=["1.10", "2.25", "?", "10.00"],
        free=["7", "6.3", "?", "8.25"],
        whole=["7", "6", "?", "9"],
        pointed=["130.0", "98.0", "?", "101.0"],
        blank=[" 5.5", " 6.5", " ?", " 7.0"],
        comma=["1,5", "2,5", "?", "4,5"],
        word=[" yes", " no", " ?", " no"],
    )
    table = Table.fit(data)
    x, _ = table.encode(data)
    x[2] = torch.where(torch.tensor([c.is_number for c in table.columns]), 0.123456, 0.0)
    filled = {name: values[2] for name, values in table.decode(x, data).to_pydict().items()}
    assert len(filled["fixed"].split(".")[1]) == 2
    assert len(filled["free"].split(".")[1]) <= 2
    assert filled["whole"].isdigit()
    assert filled["pointed"].endswith(".0")
    assert filled["blank"].startswith(" ")
    assert "," in filled["comma"]
    assert filled["word"] == " no"
    assert table.encode(table.decode(x, data))[1].all()


@pytest.mark.parametrize(
    ("texts", "filled"),
    [
        (["1152921504606846976", "1152921504606846977", "?"], "1152921504606846976"),
        (["5.126e+06", "4.126e+06", "?"], "4.626e+06"),
        (["1.5", "3.0", "-999"], "2.2"),
        (["29.0", "31.0", "-999"], "30.0"),
    ],
)
def test_large_numbers_exponents_and_fixed_decimals_are_filled_in_their_style(
    texts: list[str], filled: str
) -> None:
    data = text_table(n=texts)
    table = Table.fit(data, numeric=["n"], missing=["-999"])
    assert table.decode(torch.zeros(3, 1), data).column("n").to_pylist()[2] == filled


def test_whole_numbers_beyond_those_with_a_sign_are_filled() -> None:
    data = pa.table({"n": pa.array([2**63 + 2**60, None, 2**63 + 2**61], pa.uint64())})
    filled = Table.fit(data).decode(torch.zeros(3, 1), data).column("n").to_pylist()[1]
    assert filled == 2**63 + 3 * 2**59


def test_missing_is_what_is_named_in_text_and_in_numbers() -> None:
    usual = [None, "", " ? ", "NA", "N/A", "nan", "null", "None", "NaN"]
    data = text_table(a=["1.5", "2.5", *usual, "-999"], b=["u", "v", *usual, "-999"])
    table = Table.fit(data, missing=["-999"])
    _, observed = table.encode(data)
    assert observed[:2].all()
    assert not observed[2:].any()
    numbers = np.array([[1, 5], [-999, 6], [3, -999], [4, 7]])
    table = Table.fit(numbers, missing=["-999"])
    x, observed = table.encode(numbers)
    assert (~observed).sum() == 2
    filled = table.decode(x, numbers)
    assert filled.dtype == numbers.dtype
    assert filled.min() == 1


def test_mixed_objects_come_back_as_they_are() -> None:
    data = np.array([[1, "a"], ["?", 2.5], [3, None], [4.5, "a"], ["7", pd.NA]], dtype=object)
    table = Table.fit(data)
    assert kinds(table) == ["numeric", "categorical"]
    x, _ = table.encode(data)
    filled = table.decode(x, data)
    assert filled[[0, 2, 3, 4], 0].tolist() == [1, 3, 4.5, "7"]
    assert isinstance(filled[1, 0], float)
    assert filled[2, 1] in ("a", 2.5)


def test_an_unknown_level_joins_a_categorical_dtype_that_lacks_it() -> None:
    table = Table.fit(pd.DataFrame({"c": pd.Categorical(["a", "b", "b"])}))
    block = pd.DataFrame({"c": pd.Categorical(["a", None])})
    filled = table.decode(torch.ones(2, 1), block)
    assert filled["c"].tolist() == ["a", "b"]
    assert filled["c"].dtype == pd.CategoricalDtype(["a", "b"])


def test_cutting_rows_into_blocks_changes_no_encoding() -> None:
    generator = np.random.default_rng(0)
    rows = 20_000
    data = pa.table(
        {f"n{i}": [f"{v:.4f}" for v in generator.normal(size=rows)] for i in range(3)}
        | {f"c{i}": generator.choice(["u", "v", "?"], rows) for i in range(3)}
    )
    table = Table.fit(data)
    x, observed = table.encode(data)
    parts = [table.encode(data.slice(start, 7_000)) for start in range(0, rows, 7_000)]
    assert torch.equal(torch.cat([part for part, _ in parts]), x)
    assert torch.equal(torch.cat([part for _, part in parts]), observed)


def test_numbers_beyond_those_seen_are_evidence_as_long_as_they_are_sane() -> None:
    table = Table.fit(np.array([[1.0], [2.0], [4.5]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, observed = table.encode(np.array([[100.0]]))
    assert observed.all()
    assert table.values(x, clip=False)[0][0] == pytest.approx(100.0, rel=1e-5)


def test_levels_that_json_cannot_hold_are_known_by_their_text() -> None:
    data = pd.DataFrame({"span": pd.cut([1.0, 2.0, 3.0, np.nan], 2)})
    table = Table.from_json(json.loads(json.dumps(Table.fit(data).to_json())))
    x, observed = table.encode(data)
    assert observed[:, 0].tolist() == [True, True, True, False]
    filled = table.decode(x, data)
    assert filled["span"].dtype == data["span"].dtype
    assert filled["span"][3] == data["span"].cat.categories[0]


def test_sparse_columns_stay_sparse() -> None:
    data = pd.DataFrame({"a": pd.arrays.SparseArray([0.0, 0.0, 1.5, np.nan])})
    table = Table.fit(data)
    x, observed = table.encode(data)
    filled = table.decode(x, data)
    assert observed[:, 0].tolist() == [True, True, True, False]
    assert filled.dtypes.equals(data.dtypes)
    assert filled["a"].tolist()[:3] == [0.0, 0.0, 1.5]


def test_types_that_no_model_reads_pass_through() -> None:
    data = pl.DataFrame(
        {
            "list": [[1], [2]],
            "time": [dt.time(1), None],
            "any": pl.Series([1, "a"], dtype=pl.Object),
        }
    )
    table = Table.fit(data)
    assert kinds(table) == ["ignored"] * 3
    x, observed = table.encode(data)
    assert x.shape == observed.shape == (2, 0)
    assert table.decode(x, data).schema == data.schema
