"""The contract of Table: what goes in comes out, and only holes are filled."""

import datetime as dt
import json
import math
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from postmatch.tables import Table
from postmatch.tables.typed import typed

ROWS = 24
HOLE = 3  # every third row has holes


def with_holes(values: list[Any]) -> list[Any]:
    return [None if row % HOLE == 1 else values[row % len(values)] for row in range(ROWS)]


def content() -> dict[str, list[Any]]:
    return {
        "height": with_holes([1.5, 2.25, 3.125, 0.5]),
        "rooms": with_holes([1, 2, 3, 5, 8]),
        "garden": with_holes([True, False, False, True]),
        "town": with_holes(["Aix", "Bonn", "Aix", "Cork"]),
        "built": with_holes([dt.datetime(2020, 1, 1), dt.datetime(2021, 5, 4)]),
    }


def in_pandas() -> pd.DataFrame:
    frame = pd.DataFrame(content(), index=[f"row {i}" for i in range(ROWS)])
    return frame.astype({"rooms": "Int64", "garden": "boolean"})


def in_pandas_objects() -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(v, dtype=object) for name, v in content().items()})


def in_pandas_categories() -> pd.DataFrame:
    frame = pd.DataFrame(content())
    frame["town"] = frame["town"].astype("category")
    frame["rooms"] = pd.Categorical(frame["rooms"], ordered=True)
    frame["span"] = pd.cut(frame["height"], 2)
    frame["height"] = frame["height"].astype("float32")
    frame["built"] = frame["built"].dt.tz_localize("Europe/Berlin")
    return frame


def in_polars() -> pl.DataFrame:
    frame = pl.DataFrame(content())
    return frame.with_columns(
        pl.col("town").cast(pl.Enum(["Aix", "Bonn", "Cork", "Rome"])).alias("fixed"),
        pl.col("town").cast(pl.Categorical).alias("category"),
        pl.col("built").cast(pl.Date).alias("day"),
        pl.col("height").cast(pl.Decimal(10, 3)).alias("exact"),
    )


def in_arrow() -> pa.Table:
    table = pa.table(content())
    towns = table.column("town").combine_chunks()
    table = table.append_column("coded", towns.dictionary_encode())
    return table.append_column("exact", table.column("height").cast(pa.decimal128(10, 3)))


def in_text() -> pa.Table:
    texts = [["?" if v is None else str(v) for v in values] for values in content().values()]
    return pa.table(texts, names=list(content()))


def in_objects() -> np.ndarray:
    out = np.empty((ROWS, 5), dtype=object)
    for position, values in enumerate(content().values()):
        out[:, position] = values
    return out


FRAMES = [
    in_pandas,
    in_pandas_objects,
    in_pandas_categories,
    in_polars,
    in_arrow,
    in_text,
    in_objects,
]


def as_lists(data: Any) -> list[list[Any]]:
    if isinstance(data, pd.DataFrame):
        return [data.iloc[:, i].astype(object).tolist() for i in range(data.shape[1])]
    if isinstance(data, pl.DataFrame):
        return [series.to_list() for series in data]
    if isinstance(data, pa.Table):
        return [column.to_pylist() for column in data.columns]
    return data.T.tolist()


def schema(data: Any) -> Any:
    if isinstance(data, pd.DataFrame):
        return list(data.dtypes), list(data.columns), list(data.index)
    return data.dtype if isinstance(data, np.ndarray) else data.schema


def noise(like: Tensor) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(0)) * 3


@pytest.mark.parametrize("make", FRAMES)
def test_decode_fills_every_hole_and_changes_nothing_else(make: Any) -> None:
    data = make()
    table = Table.fit(data)
    assert all(column.kind != "ignored" for column in table.columns)
    x, _ = table.encode(data)
    filled = table.decode(noise(x), data)
    assert type(filled) is type(data)
    assert schema(filled) == schema(data)
    for before, after in zip(as_lists(data), as_lists(filled), strict=True):
        for row, (old, new) in enumerate(zip(before, after, strict=True)):
            if row % HOLE != 1:
                assert new == old
                assert type(new) is type(old)
    assert table.encode(filled)[1].all()


@pytest.mark.parametrize("make", FRAMES)
def test_observed_is_where_cells_are_and_hidden_entries_are_zero(make: Any) -> None:
    data = make()
    x, observed = Table.fit(data).encode(data)
    rows = torch.arange(ROWS) % HOLE != 1
    assert torch.equal(observed, rows[:, None].expand_as(observed))
    assert x.dtype == torch.float32
    assert (x[~observed] == 0).all()


@pytest.mark.parametrize("make", FRAMES)
def test_encode_after_decode_gives_back_what_x_said_of_the_holes(make: Any) -> None:
    data = make()
    table = Table.fit(data)
    x, observed = table.encode(data)
    # Answers that are values of the column, so that rounding and clipping change nothing.
    answers = torch.where(observed, x, x[torch.arange(ROWS) // HOLE * HOLE])
    again, _ = table.encode(table.decode(answers, data))
    assert_close(again, answers, atol=2e-3, rtol=0)


def test_kinds_are_found_by_content_whatever_the_type() -> None:
    expected = ["numeric", "integer", "boolean", "categorical", "date"]
    for make in (in_pandas, in_pandas_objects, in_polars, in_arrow, in_objects):
        assert [column.kind for column in Table.fit(make()).columns][:5] == expected
    # In text True and False are just two words.
    kinds = [column.kind for column in Table.fit(in_text()).columns]
    assert kinds == ["numeric", "integer", "categorical", "categorical", "date"]


def test_a_table_fitted_on_one_type_of_frame_encodes_the_others_alike() -> None:
    x, observed = Table.fit(in_pandas()).encode(in_pandas())
    for make in (in_arrow, in_text, in_pandas_objects):
        other, seen = Table.fit(in_pandas()).encode(make())
        assert torch.equal(other, x)
        assert torch.equal(seen, observed)


def test_numbers_are_standardised_and_the_jacobian_undoes_it() -> None:
    values = np.random.default_rng(0).normal(50.0, 4.0, size=(4_000, 1))
    table = Table.fit(values)
    x, _ = table.encode(values)
    assert abs(x.mean().item()) < 4 / math.sqrt(4_000)
    assert abs(x.std().item() - 1) < 0.06  # the scale is that of the inner 98 %
    column = table.columns[0]
    assert_close(table.log_jacobian, torch.tensor([-math.log(column.scale)]))
    # A density integrates to one in both units.
    inside = torch.linspace(-8, 8, 20_001)
    density = torch.exp(-0.5 * inside**2 + table.log_jacobian) / math.sqrt(2 * math.pi)
    area = torch.trapezoid(density, inside * column.scale + column.location)
    assert_close(area, torch.tensor(1.0), atol=1e-4, rtol=0)


def test_masses_have_no_jacobian() -> None:
    table = Table.fit(pd.DataFrame({"n": [1, 2, 3, 9], "c": list("abab"), "b": [True, False] * 2}))
    assert table.specs[0].discrete
    assert torch.equal(table.log_jacobian, torch.zeros(3))


def test_integers_lie_one_step_apart_in_x() -> None:
    table = Table.fit(np.array([[0], [1], [2], [7], [5]]))
    x, _ = table.encode(np.array([[3], [4]]))
    spec = table.specs[0]
    assert spec.discrete
    assert_close((x[1] - x[0]).item(), spec.step, atol=1e-6, rtol=0)


def test_integers_of_a_wide_range_are_a_density_and_still_whole() -> None:
    values = np.random.default_rng(0).integers(0, 1_000_000, size=(500, 1))
    table = Table.fit(values)
    assert table.columns[0].kind == "integer"
    assert not table.specs[0].discrete
    assert table.specs[0].step == pytest.approx(1e-3)
    (decoded,) = table.values(torch.randn(100, 1))
    assert np.array_equal(decoded, np.rint(decoded))


def test_the_step_is_the_decimal_in_which_values_are_given() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(0, 2, size=(500, 3))
    table = Table.fit(np.column_stack([values[:, 0].round(1), values[:, 1].round(2), values[:, 2]]))
    for column, decimals in zip(table.columns[:2], (1, 2), strict=True):
        assert column.spec.step == pytest.approx(10**-decimals / column.scale)
    assert table.columns[2].spec.step == 1e-3


def test_clip_keeps_answers_in_the_observed_range_unless_told_otherwise() -> None:
    data = np.array([[1.5], [2.5], [9.5], [np.nan]])
    table = Table.fit(data)
    far = torch.full((4, 1), 50.0)
    assert table.decode(far, data)[3, 0] == 9.5
    assert table.decode(far, data, clip=False)[3, 0] > 100


def test_values_gives_every_cell_in_the_users_units() -> None:
    data = pd.DataFrame({"age": [20, 30, 40, 60], "sex": ["F", "M", "M", "F"]})
    table = Table.fit(data)
    x, _ = table.encode(data)
    ages, sexes = table.values(torch.stack([x, x]))  # (samples, rows, modelled)
    assert ages.shape == (2, 4)
    assert ages[1].tolist() == [20, 30, 40, 60]
    assert sexes[0].tolist() == ["F", "M", "M", "F"]
    means, _ = table.values(x + 0.01, whole=False)
    assert not np.array_equal(means, np.rint(means))


def test_json_gives_back_an_equal_table() -> None:
    for make in FRAMES:
        table = Table.fit(make(), missing=["-999"])
        assert Table.from_json(json.loads(json.dumps(table.to_json()))) == table


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("columns",), []),
        (("columns",), "abc"),
        (("missing",), [3]),
        (("columns", 0, "kind"), "magic"),
        (("columns", 0, "scale"), 0.0),
        (("columns", 0, "scale"), "1"),
        (("columns", 0, "location"), float("nan")),
        (("columns", 0, "knots"), [1.0, 0.0]),
        (("columns", 0, "style"), {"unknown": 1}),
        (("columns", 0, "extra"), 1),
        (("columns", 1, "levels"), ["a", "a"]),
        (("columns", 1, "levels"), [["a"]]),
        (("columns", 0), None),
    ],
)
def test_a_malformed_description_is_a_value_error(path: tuple[Any, ...], value: Any) -> None:
    data = Table.fit(pd.DataFrame({"n": [1.5, 2.5], "c": ["a", "b"]})).to_json()
    place: Any = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match="not a description"):
        Table.from_json(data)


def test_rows_given_as_text_become_evidence() -> None:
    table = Table.fit(pd.DataFrame({"age": [20, 30, 54, 60], "sex": ["F", "M", "M", "F"]}))
    frame = table.frame_from([{"age": "54", "sex": "F"}, {"age": "30"}])
    x, observed = table.encode(frame)
    assert observed.tolist() == [[True, True], [True, False]]
    assert [values.tolist() for values in table.values(x)] == [[54.0, 30.0], ["F", "F"]]
    assert table.decode(x + 1, frame).column("sex").to_pylist() == ["F", "M"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"agee": "54"}, "did you mean 'age'"),
        ({"age": "old"}, "age must be a number, got 'old'"),
        ({"age": "1e9"}, "age is too far from what the table holds, 20 to 54, got '1e9'"),
        ({"sex": "X"}, "sex must be one of F, M, got 'X'"),
        ({"id": "7"}, "'id' is not modelled"),
    ],
)
def test_what_is_given_must_be_known_to_the_table(row: dict[str, str], message: str) -> None:
    data = pd.DataFrame({"id": [7, 8, 9], "age": [20, 30, 54], "sex": ["F", "M", "M"]})
    with pytest.raises(ValueError, match=message):
        Table.fit(data).frame_from([row])


def test_drawn_text_becomes_numbers_dates_and_truth_values() -> None:
    data = pd.DataFrame(
        {
            "price": [1.25, 22.5, 120.75, None],
            "rooms": [1, 2, 3, 9],
            "town": ["Aix", "Bonn", "Aix", None],
            "zip": [10115, 20095, 10115, 20095],
            "owner": [True, False, True, True],
            "day": pd.to_datetime(["2020-01-01", "2020-02-01", None, "2022-01-01"]),
            "id": [7, 4, 9, 2],
        }
    )
    table = Table.fit(data, categorical=["zip"])
    drawn = typed(table, table.frame_from([{"rooms": "2", "price": "22.50"}, {"rooms": "3.5"}, {}]))
    assert [str(kind) for kind in drawn.schema.types] == [
        *("double", "double", "string", "int64", "bool", "date32[day]", "string")
    ]
    assert drawn.column("rooms").to_pylist() == [2.0, 3.5, None]
    assert drawn.column("price").to_pylist() == [22.5, None, None]
    x, _ = table.encode(data)
    whole = table.decode(x, table.frame_from([{}] * 4))
    assert str(typed(table, whole).schema.field("rooms").type) == "int64"
    assert typed(table, whole).column("day").to_pylist()[0] == dt.date(2020, 1, 1)


def test_drawn_numbers_have_the_decimals_of_the_table_however_wide_its_range() -> None:
    prices = np.random.default_rng(0).uniform(1, 900, 200).round(2)
    table = Table.fit(pa.table({"price": pa.array(prices).cast(pa.decimal128(5, 2), safe=False)}))
    texts = table.decode(noise(torch.empty(50, 1)), table.frame_from([{}] * 50)).column("price")
    assert max(len(text.partition(".")[2]) for text in texts.to_pylist()) == 2


def test_holes_are_told_from_what_is_hidden_otherwise() -> None:
    data = pd.DataFrame({"a": [1.5, 2.5, 4.0], "note": ["x1", None, "z1"], "b": ["u", "v", "u"]})
    table = Table.fit(data, ignore=["note"])
    odd = pd.DataFrame({"a": [np.nan, np.inf, 1.0], "b": ["u", None, "w"], "z": [None, None, 1.0]})
    odd["note"] = ["?", "y", "z"]
    with pytest.warns(UserWarning, match="kept as they are"):
        _, observed = table.encode(odd)
    assert observed.tolist() == [[False, True], [False, False], [True, False]]
    assert table.holes(odd).tolist() == [[True, False], [False, True], [False, False]]
    assert table.left_missing(odd) == {"z": 2, "note": 1}


def test_columns_are_found_by_name_in_any_order_and_extra_ones_pass_through() -> None:
    data = pd.DataFrame({"a": [1.5, 2.5, 4.0], "b": ["u", "v", "u"]})
    table = Table.fit(data)
    moved = pd.DataFrame({"z": [0, 0, 0], "b": ["u", None, "v"], "a": [1.5, 2.5, np.nan]})
    x, observed = table.encode(moved)
    assert observed.tolist() == [[True, True], [True, False], [False, True]]
    filled = table.decode(x, moved)
    assert list(filled.columns) == ["z", "b", "a"]
    assert filled["a"].tolist()[:2] == [1.5, 2.5]
    with pytest.raises(ValueError, match="lacks columns of the table: 'b'"):
        table.encode(moved.drop(columns="b"))


def test_wrong_shapes_and_types_are_refused_at_the_door() -> None:
    table = Table.fit(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        table.decode(torch.zeros(2, 2), np.ones((3, 2)))
    with pytest.raises(ValueError, match="2 columns, got 3"):
        table.encode(np.ones((3, 3)))
    with pytest.raises(TypeError, match="must be a DataFrame"):
        table.encode([[1, 2]])
    with pytest.raises(TypeError, match="collected first"):
        Table.fit(pl.LazyFrame({"a": [1]}))
    with pytest.raises(ValueError, match="x must be finite"):
        table.decode(torch.full((1, 2), torch.nan), np.full((1, 2), np.nan))


def test_pandas_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for make in (in_arrow, in_text, in_objects):
        data = make()
        table = Table.fit(data)
        x, _ = table.encode(data)
        assert table.encode(table.decode(x, data))[1].all()


cells = st.one_of(
    st.none(),
    st.sampled_from(["", "?", " NA", "x", "y ", "007", "1.10", "-3", "1e3", "2024-02-30"]),
    st.integers(-99, 99).map(str),
    st.floats(-1e6, 1e6).map(lambda value: f"{value:.3f}"),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=30))
def test_any_table_of_text_comes_back_with_only_its_holes_filled(rows: list[tuple[Any]]) -> None:
    data = pa.table([list(column) for column in zip(*rows, strict=True)], names=["a", "b", "a"])
    data = data.cast(pa.schema([(name, pa.string()) for name in data.column_names]))
    table = Table.fit(data)
    x, observed = table.encode(data)
    filled = table.decode(noise(x), data)
    assert filled.schema == data.schema
    modelled = [i for i, column in enumerate(table.columns) if column.kind != "ignored"]
    missing = {None, "", "?", " NA"}
    for index, position in enumerate(modelled):
        before, after = data.column(position).to_pylist(), filled.column(position).to_pylist()
        assert [a for a, b in zip(after, before, strict=True) if b not in missing] == [
            b for b in before if b not in missing
        ]
        assert not observed[[b in missing for b in before], index].any()
        assert not missing & set(after)
    assert Table.from_json(json.loads(json.dumps(table.to_json()))) == table


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(st.just(math.nan), st.floats(-1e100, 1e100)),
        min_size=1,
        max_size=40,
    )
)
def test_any_finite_numbers_have_a_finite_x_and_survive(values: list[float]) -> None:
    data = np.array(values).reshape(-1, 1)
    table = Table.fit(data)
    if not table.modelled:
        assert np.isnan(data).all()
        return
    x, observed = table.encode(data)
    assert torch.equal(observed, torch.from_numpy(~np.isnan(data)))
    assert torch.isfinite(x).all()
    assert x.abs().max() <= 1.001e4
    spec = table.specs[0]
    assert spec.step > 0
    filled = table.decode(x, data)
    assert np.array_equal(filled[observed.numpy()], data[observed.numpy()])
    assert (filled >= np.nanmin(data)).all()
    assert (filled <= np.nanmax(data)).all()
