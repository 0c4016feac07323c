"""PosteriorMatchingImputer: scikit-learn's contract, and that it learns something."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from postmatch import PosteriorMatchingImputer

Floats = NDArray[np.float64]

STEPS = 200


def correlated(rows: int = 400) -> tuple[Floats, Floats]:
    """Return five columns that two hidden causes drive, and the same with 20 % of cells hidden."""
    random = np.random.default_rng(0)
    causes = random.normal(size=(rows, 2))
    weights = np.array([[1.0, 0.8, -1.0, 0.3, 0.0], [0.0, 0.5, 0.6, -1.0, 1.0]])
    complete = causes @ weights + 0.2 * random.normal(size=(rows, 5))
    complete = 10.0 + 3.0 * complete
    return complete, np.where(random.random(complete.shape) < 0.2, np.nan, complete)


def mixed(rows: int = 60) -> dict[str, list[Any]]:
    random = np.random.default_rng(1)
    size = random.normal(size=rows)
    columns = {
        "height": [float(x) for x in size],
        "rooms": [round(4 + x) for x in size],
        "town": ["Aix" if x > 0 else "Bonn" for x in size],
        "owner": [bool(x > 0.5) for x in size],
    }
    return {
        name: [None if random.random() < 0.2 else value for value in values]
        for name, values in columns.items()
    }


def in_pandas() -> Any:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(mixed(), index=[f"row {i}" for i in range(60)])
    return frame.astype({"rooms": "Int64", "owner": "boolean"})


def in_polars() -> Any:
    return pl.DataFrame(mixed())


def in_arrow() -> Any:
    return pa.table(mixed())


FRAMES = [in_pandas, in_polars, in_arrow]


def quick(**options: Any) -> PosteriorMatchingImputer:
    return PosteriorMatchingImputer(max_steps=5, device="cpu", **options)


def improvement(steps: int) -> float:
    """Return by how much the RMSE on hidden cells is below that of the column mean."""
    complete, x = correlated()
    hidden = np.isnan(x)
    filled = PosteriorMatchingImputer(max_steps=steps, quick=True, device="cpu").fit_transform(x)
    mean = np.broadcast_to(np.nanmean(x, axis=0), x.shape)
    ours, theirs = (np.sqrt(np.mean((f - complete)[hidden] ** 2)) for f in (filled, mean))
    return float(1 - ours / theirs)


@parametrize_with_checks([quick()])
def test_every_check_of_scikit_learn_passes_and_none_is_skipped(
    estimator: Any, check: Callable[[Any], None]
) -> None:
    try:
        check(estimator)
    except SkipTest as reason:
        pytest.fail(f"skipped: {reason}")


def test_imputation_beats_the_column_mean_by_a_fifth() -> None:
    assert improvement(STEPS) > 0.2


WITHOUT_PANDAS = f"""
import sys

class WithoutPandas:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] == "pandas"
        return None if hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path = [WithoutPandas(finder) for finder in sys.meta_path]
import polars
import test_estimators

assert test_estimators.improvement({STEPS}) > 0.2
filled = test_estimators.quick(add_indicator=True).fit_transform(test_estimators.in_polars())
assert type(filled) is polars.DataFrame
assert "pandas" not in sys.modules
"""


def test_imputation_is_as_good_without_pandas() -> None:
    paths = [*map(os.path.abspath, sys.path), str(Path(__file__).parent)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", WITHOUT_PANDAS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_observed_cells_of_an_array_are_untouched_and_holes_filled() -> None:
    _, x = correlated(40)
    filled = quick().fit_transform(x)
    assert filled.dtype == np.float64
    assert not np.isnan(filled).any()
    assert_array_equal(filled[~np.isnan(x)], x[~np.isnan(x)])
    whole = quick().fit_transform(np.array([[1, 2], [3, 4], [5, 6]]))
    assert whole.dtype == np.float64


@pytest.mark.parametrize("make", FRAMES)
def test_a_mixed_frame_comes_back_in_its_own_type_with_its_holes_filled(make: Any) -> None:
    frame = make()
    imputer = quick().fit(frame)
    results = [
        imputer.transform(frame),
        *imputer.sample(frame, 2),
        *imputer.quantiles(frame, [0.1]).values(),
    ]
    for filled in results:
        assert type(filled) is type(frame)
        columns = filled.to_dict("list") if make is in_pandas else pa.table(filled).to_pydict()
        assert list(columns) == list(mixed())
        for name, values in mixed().items():
            assert None not in columns[name]
            seen = [(a, b) for a, b in zip(values, columns[name], strict=True) if a is not None]
            assert all(a == b for a, b in seen)
    if make is in_pandas:
        assert list(results[0].index) == list(frame.index)
        assert_array_equal(results[0].dtypes, frame.dtypes)


def test_an_array_with_text_is_a_mixed_table() -> None:
    x = np.array([["a", 1.5], ["b", 2.5], [None, 1.4], ["a", None]], dtype=object)
    filled = quick().fit_transform(x)
    assert filled[2, 0] in ("a", "b")
    assert isinstance(filled[3, 1], float)


def test_columns_are_told_by_name_or_position() -> None:
    x = np.array([[0, 1.0], [1, 2.0], [2, np.nan], [np.nan, 1.0]])
    kinds = [c.kind for c in quick(categorical=[0]).fit(x).model_.table.columns]
    assert kinds == ["categorical", "integer"]
    frame = in_polars().with_columns(size=pl.Series(["S", "M", "L"] * 20))
    fitted = quick(categorical=["rooms"], ordered={"size": ["S", "M", "L"]}).fit(frame)
    assert [c.kind for c in fitted.model_.table.columns][1::3] == ["categorical", "ordered"]


def test_missing_values_can_have_another_name() -> None:
    _, x = correlated(40)
    named = quick(missing_values=-1).fit_transform(np.where(np.isnan(x), -1.0, x))
    assert_allclose(named, quick().fit_transform(x))


def test_indicators_are_appended_for_columns_that_had_holes() -> None:
    _, x = correlated(40)
    x[:, 2] = np.where(np.isnan(x[:, 2]), 10.0, x[:, 2])
    imputer = quick(add_indicator=True).fit(x)
    out = imputer.transform(x)
    assert_array_equal(out[:, 5:], np.isnan(x)[:, [0, 1, 3, 4]])
    names = [f"x{i}" for i in range(5)] + [f"missingindicator_x{i}" for i in (0, 1, 3, 4)]
    assert list(imputer.get_feature_names_out()) == names


@pytest.mark.parametrize("make", FRAMES)
def test_indicators_of_frames_are_booleans_of_their_own_rows(make: Any) -> None:
    frame = make()
    imputer = quick(add_indicator=True).fit(frame)
    out = imputer.transform(frame)
    columns = out.to_dict("list") if make is in_pandas else pa.table(out).to_pydict()
    assert list(columns) == list(imputer.get_feature_names_out())
    for name, values in mixed().items():
        assert columns[f"missingindicator_{name}"] == [value is None for value in values]


def test_empty_columns_are_dropped_or_kept_as_zero() -> None:
    _, x = correlated(40)
    x[:, 1] = np.nan
    with pytest.warns(UserWarning, match=r"^dropped, since they have no value in fit: 'x1'$"):
        imputer = quick(add_indicator=True).fit(x)
    assert list(imputer.get_feature_names_out())[:5] == [
        "x0",
        "x2",
        "x3",
        "x4",
        "missingindicator_x0",
    ]
    assert imputer.transform(x).shape == (40, 8)
    kept = quick(keep_empty_features=True).fit(x)
    assert_array_equal(kept.transform(x)[:, 1], 0.0)
    x[3, 1] = 7.0
    assert kept.transform(x)[3, 1] == 7.0


@pytest.mark.parametrize("make", FRAMES)
def test_empty_columns_of_frames_are_dropped_or_kept(make: Any) -> None:
    frame = make()
    empty = [None] * 60
    if make is in_pandas:
        frame["empty"] = np.nan
    elif make is in_polars:
        frame = frame.with_columns(empty=pl.Series(empty, dtype=pl.Float64))
    else:
        frame = frame.append_column("empty", pa.array(empty, pa.float64()))
    names = list(mixed())
    with pytest.warns(UserWarning, match="dropped.*: 'empty'"):
        dropped = quick().fit(frame)
    assert list(dropped.get_feature_names_out()) == names
    assert list(_names(dropped.transform(frame))) == names
    kept = quick(keep_empty_features=True).fit_transform(frame)
    assert list(_names(kept)) == [*names, "empty"]
    assert_array_equal(np.asarray(kept["empty"]), 0.0)


def test_columns_that_are_not_filled_are_told_in_one_warning() -> None:
    frame = pl.DataFrame(mixed()).with_columns(
        id=pl.Series(range(60)), note=pl.Series([f"text {i}" for i in range(60)])
    )
    told = "column 'id' looks like an identifier: .*; column 'note' looks like free text"
    with pytest.warns(UserWarning, match=told) as caught:
        quick().fit(frame)
    assert len(caught) == 1


def test_what_is_no_table_and_one_name_for_many_are_refused_in_words() -> None:
    with pytest.raises(TypeError, match="a lazy one collected first"):
        quick().fit(in_polars().lazy())
    for group in ("categorical", "ordered"):
        with pytest.raises(TypeError, match=f"{group} must be a collection of names, got the text"):
            quick(**{group: "town"}).fit(in_polars())


def _names(frame: Any) -> Any:
    return frame.column_names if isinstance(frame, pa.Table) else frame.columns


def test_the_random_state_decides_everything() -> None:
    _, x = correlated(40)
    first, again = (quick(random_state=3).fit(x) for _ in range(2))
    other = quick(random_state=4).fit(x)
    assert_array_equal(first.transform(x), again.transform(x))
    assert_array_equal(first.sample(x, 2), again.sample(x, 2))
    assert not np.allclose(first.sample(x, 2), other.sample(x, 2))
    generator = np.random.RandomState(3)
    two = [quick(random_state=generator).fit(x).seed_ for _ in range(2)]
    assert two[0] != two[1]


def test_equal_rows_get_independent_draws() -> None:
    _, x = correlated(40)
    row = np.array([[10.0, np.nan, 10.0, np.nan, 10.0]])
    drawn = np.array(quick().fit(x).sample(np.repeat(row, 300, axis=0), 2))
    assert len(np.unique(drawn[0, :, 1])) > 250
    assert abs(np.corrcoef(drawn[0, :, 1], drawn[1, :, 1])[0, 1]) < 4 / np.sqrt(300)
    assert_array_equal(drawn[:, :, [0, 2, 4]], 10.0)


def test_order_company_and_chunks_of_rows_change_no_answer() -> None:
    _, x = correlated(60)
    imputer = quick().fit(x)
    order = np.random.default_rng(2).permutation(60)
    for answer in (imputer.transform, imputer.score_samples):
        whole = answer(x)
        assert_allclose(answer(x[order]), whole[order], rtol=1e-5)
        apart = np.concatenate([answer(x[start : start + 7]) for start in range(0, 60, 7)])
        assert_allclose(apart, whole, rtol=1e-5)


def test_likely_rows_score_higher() -> None:
    complete, x = correlated()
    imputer = PosteriorMatchingImputer(max_steps=30, quick=True, device="cpu").fit(x)
    far = complete.mean(0) + 8 * complete.std(0) * np.array([1, -1, 1, -1, 1])
    assert imputer.score_samples(far[None])[0] < imputer.score_samples(complete[:50]).min()


def test_quantiles_enclose_the_middle() -> None:
    _, x = correlated(40)
    low, high = quick().fit(x).quantiles(x, [0.1, 0.9]).values()
    hidden = np.isnan(x)
    assert (low[hidden] < high[hidden]).all()
    assert_array_equal(low[~hidden], x[~hidden])


def test_it_works_in_pipelines_and_cross_validation() -> None:
    complete, x = correlated(90)
    y = complete[:, 0] + complete[:, 4]
    pipeline = make_pipeline(quick(add_indicator=True), StandardScaler(), Ridge())
    scores = cross_val_score(pipeline, x, y, cv=3)
    assert scores.min() > 0.2


def test_it_works_on_some_columns_and_names_them() -> None:
    pandas = pytest.importorskip("pandas")
    _, x = correlated(40)
    frame = pandas.DataFrame(x, columns=list("abcde"), index=range(100, 140))
    some = ColumnTransformer([("fill", quick(), ["a", "b", "c"])], remainder="passthrough")
    out = some.set_output(transform="pandas").fit_transform(frame)
    assert list(out.columns) == ["fill__a", "fill__b", "fill__c", "remainder__d", "remainder__e"]
    assert list(out.index) == list(frame.index)
    assert not out.iloc[:, :3].isna().any(axis=None)


@pytest.mark.parametrize("wanted", ["pandas", "polars"])
@pytest.mark.parametrize("make", [in_pandas, in_polars, lambda: correlated(40)[1]])
def test_set_output_gives_the_frame_that_was_asked_for(make: Any, wanted: str) -> None:
    pytest.importorskip("pandas")
    x = make()
    imputer = quick(add_indicator=True).set_output(transform=wanted)
    out = imputer.fit_transform(x)
    assert type(out).__module__.split(".")[0] == wanted
    assert list(out.columns) == list(imputer.get_feature_names_out())


def test_a_fitted_estimator_survives_pickling_and_cloning_forgets() -> None:
    _, x = correlated(40)
    imputer = quick(random_state=2).fit(x)
    again = pickle.loads(pickle.dumps(imputer))
    assert_array_equal(again.transform(x), imputer.transform(x))
    with pytest.raises(NotFittedError):
        clone(imputer).sample(x, 1)


def test_infinities_and_a_table_without_any_value_are_refused() -> None:
    _, x = correlated(10)
    with pytest.raises(ValueError, match="no column to model"):
        quick().fit(np.full((3, 2), np.nan))
    x[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        quick().fit(x)


def test_progress_is_shown_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    _, x = correlated(20)
    quick(verbose=1).fit(x)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
