"""PosteriorMatchingClusterer: scikit-learn's contract, and known mixtures found again."""

import pickle
import re
from collections.abc import Callable
from typing import Any
from unittest import SkipTest

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from postmatch import PosteriorMatchingClusterer
from postmatch.cluster_counts import count_clusters, prediction_strength
from postmatch.metrics import cluster_accuracy, matched_clusters

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

SHARES = np.array([0.5, 0.3, 0.2])
MEANS = np.array([[0.0, 0.0, 0.0, 0.0], [4.0, 1.5, -3.0, 0.0], [0.0, 5.0, 2.0, -4.0]])
SCALES = np.array([[1.0, 0.8, 1.2, 1.0], [0.7, 1.0, 1.0, 1.3], [1.0, 1.2, 0.8, 1.0]])


def mixture(rows: int = 600) -> tuple[Floats, Whole]:
    """Return rows of a known mixture, and the component of each."""
    random = np.random.default_rng(0)
    label = random.choice(3, rows, p=SHARES)
    return MEANS[label] + SCALES[label] * random.normal(size=(rows, 4)), label


def bayes(x: Floats) -> Floats:
    """Return the exact probability of each component given what is there of a row."""
    log_each = norm.logpdf(x[:, None], MEANS, SCALES)  # (rows, components, columns)
    log_joint = np.log(SHARES) + np.nansum(log_each, 2)
    joint = np.exp(log_joint - log_joint.max(1, keepdims=True))
    exact: Floats = joint / joint.sum(1, keepdims=True)
    return exact


def halved(x: Floats, seed: int = 1) -> Floats:
    """Return rows of which half of the cells, chosen at random in each, are hidden."""
    rank = np.random.default_rng(seed).random(x.shape).argsort(1).argsort(1)
    return np.where(rank < x.shape[1] // 2, np.nan, x)


def quick(n_clusters: Any = 2, **options: Any) -> PosteriorMatchingClusterer:
    return PosteriorMatchingClusterer(n_clusters, **{"max_steps": 3, "device": "cpu"} | options)


@pytest.fixture(scope="module")
def fitted() -> PosteriorMatchingClusterer:
    """A clusterer of the mixture, a tenth of whose cells are missing."""
    x, _ = mixture()
    holes = np.random.default_rng(2).random(x.shape) < 0.1
    return quick(3, max_steps=250).fit(np.where(holes, np.nan, x))


@parametrize_with_checks([quick()])
def test_every_check_of_scikit_learn_passes_and_none_is_skipped(
    estimator: Any, check: Callable[[Any], None]
) -> None:
    if getattr(check, "func", check).__name__ == "check_clustering":
        estimator.set_params(max_steps=40)  # it also wants the right clusters
    try:
        check(estimator)
    except SkipTest as reason:
        pytest.fail(f"skipped: {reason}")


def test_a_known_mixture_is_found_with_its_means_and_shares(
    fitted: PosteriorMatchingClusterer,
) -> None:
    x, label = mixture()
    found = fitted.predict(x)
    assert cluster_accuracy(found, label) > 0.98  # the exact posterior's is 1.0
    order = np.argsort(matched_clusters(found, label))
    error = SCALES / np.sqrt(len(x) * SHARES)[:, None]
    means = np.stack([x[found == c].mean(0) for c in order])
    assert_allclose((means - MEANS) / error, 0.0, atol=4.0)  # standard errors
    shares = np.bincount(found, minlength=3)[order] / len(x)
    assert_allclose(shares, SHARES, atol=4.0 * np.sqrt(0.25 / len(x)))
    assert (np.diff(np.bincount(fitted.labels_)) <= 0).all()  # the largest first


def test_half_of_the_columns_give_the_probabilities_of_bayes(
    fitted: PosteriorMatchingClusterer,
) -> None:
    names = matched_clusters(fitted.labels_, mixture()[1])
    x, label = mixture(1_600)
    half = halved(x)
    told, exact = np.empty((len(half), 3)), bayes(half)
    told[:, names] = fitted.predict_proba(half)
    assert_allclose(told.sum(1), 1.0, rtol=1e-6)
    # On average within 0.05 of the truth, which itself is unsure of one row in ten; and right as
    # often as the truth is, but for one row in fifty.
    assert np.abs(told - exact).mean() < 0.05
    right, best = (float(np.mean(p.argmax(1) == label)) for p in (told, exact))
    assert right > best - 0.02


def test_a_row_of_which_nothing_is_there_gets_the_shares(
    fitted: PosteriorMatchingClusterer,
) -> None:
    told = fitted.predict_proba(np.full((1, 4), np.nan))[0]
    shares = np.bincount(fitted.labels_) / len(fitted.labels_)
    assert_allclose(told, shares, atol=0.1)


@pytest.mark.parametrize("number", [3, 5, 6])
def test_separate_groups_are_counted(number: int) -> None:
    random = np.random.default_rng(number)
    centre = 5.0 * np.eye(6)[:number]  # seven standard deviations apart
    stretch = random.normal(size=(number, 6, 6)) / 6.0 + 0.7 * np.eye(6)
    label = np.arange(240) % number
    noise = np.einsum("nij,nj->ni", stretch[label], random.normal(size=(240, 6)))
    assert count_clusters(centre[label] + noise, most=number + 1) == number


def test_one_heap_is_not_cut_further_than_in_two() -> None:
    heap = np.random.default_rng(0).normal(size=(240, 4))
    assert count_clusters(heap, most=4) == 2
    assert prediction_strength(heap, 4) < 0.7
    assert prediction_strength(heap, 1) == 1.0


def test_auto_finds_the_number_of_groups_of_a_table_with_holes() -> None:
    random = np.random.default_rng(0)
    label = np.arange(300) % 4
    x = 6.0 * np.eye(4)[label] + random.normal(size=(300, 4))
    x[random.random(x.shape) < 0.05] = np.nan
    found = quick("auto", max_clusters=5, max_steps=200).fit(x)
    assert found.n_clusters_ == 4
    assert cluster_accuracy(found.labels_, label) > 0.9


def mixed(rows: int = 240) -> tuple[dict[str, list[Any]], Whole]:
    """Return columns of several kinds with holes, which two groups differ in, and the groups."""
    random = np.random.default_rng(1)
    label = np.asarray(np.arange(rows) % 5 < 2, np.int64)
    sign = 2.0 * label - 1.0
    size = 1.5 * sign + random.normal(size=rows)
    flipped = np.where(random.random(rows) < 0.1, -sign, sign)
    columns = {
        "height": [float(x) for x in size],
        "rooms": [round(5 + 2 * x) for x in sign + 0.5 * random.normal(size=rows)],
        "town": ["Aix" if x > 0 else "Bonn" for x in flipped],
        "owner": [bool(x > 0) for x in np.roll(flipped, 5)],
    }
    holes = {
        name: [None if random.random() < 0.2 else value for value in values]
        for name, values in columns.items()
    }
    return holes, label


def in_pandas(columns: dict[str, list[Any]]) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(columns).astype({"rooms": "Int64", "owner": "boolean"})


def test_groups_of_mixed_columns_with_holes_are_found() -> None:
    columns, label = mixed()
    found = quick(2, max_steps=80).fit(pl.DataFrame(columns))
    assert cluster_accuracy(found.labels_, label) > 0.9


@pytest.mark.parametrize("make", [in_pandas, pa.table])
def test_every_kind_of_frame_has_the_same_answer(make: Any) -> None:
    columns, _ = mixed(60)
    told = quick().fit(make(columns)).predict_proba(make(columns))
    expected = quick().fit(pl.DataFrame(columns)).predict_proba(pl.DataFrame(columns))
    assert_allclose(told, expected, rtol=1e-6)
    assert np.ptp(told[:, 0]) > 0.01  # it says something


def test_levels_given_as_numbers_are_levels_and_another_name_is_missing() -> None:
    x = np.array([[0, 1.0], [1, 2.0], [2, -9.0], [-9.0, 1.0]] * 5)
    table = quick(2, categorical=[0], missing_values=-9).fit(x).model_.table
    assert [column.kind for column in table.columns] == ["categorical", "integer"]
    assert len(table.columns[0].levels) == 3


def test_columns_that_say_nothing_are_told() -> None:
    columns, _ = mixed(60)
    frame = pl.DataFrame(columns).with_columns(id=pl.Series(range(60)))
    with pytest.warns(UserWarning, match="column 'id' looks like an identifier"):
        quick().fit(frame)


def test_the_random_state_decides_everything() -> None:
    x, _ = mixture(60)
    first, again, other = (quick(random_state=r).fit(x).predict_proba(x) for r in (3, 3, 4))
    assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_order_and_company_of_rows_change_no_answer(fitted: PosteriorMatchingClusterer) -> None:
    half = halved(mixture(300)[0])
    whole = fitted.predict_proba(half)
    order = np.random.default_rng(2).permutation(300)
    assert_allclose(fitted.predict_proba(half[order]), whole[order], rtol=1e-9)
    assert_allclose(fitted.predict_proba(half[5:12]), whole[5:12], rtol=1e-9)


def test_a_connected_start_finds_rings() -> None:
    random = np.random.default_rng(0)
    label = np.arange(240) % 2
    angle = 2 * np.pi * random.random(240)
    radius = 1.0 + 3.0 * label + 0.15 * random.normal(size=240)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    found = quick(2, start="connected", max_steps=50).fit(x)
    assert cluster_accuracy(found.labels_, label) > 0.9


def test_a_fitted_clusterer_survives_pickling_and_cloning_forgets() -> None:
    x, _ = mixture(40)
    fitted = quick().fit(x)
    again = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))
    with pytest.raises(NotFittedError):
        clone(fitted).predict(x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clusters": 0}, "n_clusters must be a whole number from 1 or 'auto', got 0"),
        ({"n_clusters": "two"}, "n_clusters must be a whole number from 1 or 'auto', got 'two'"),
        ({"n_clusters": 50}, "n_clusters must be at most the number of rows, n_samples=40"),
        ({"max_clusters": 1}, "max_clusters must be a whole number from 2, got 1"),
        ({"start": "luck"}, "start must be one of mixture, connected, got 'luck'"),
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"max_steps": 0}, "max_steps must be positive, got 0"),
        ({"max_seconds": -1.0}, "max_seconds must be positive, got -1.0"),
        ({"device": "abacus"}, "device must be auto, cpu, cuda or mps, got 'abacus'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    x, _ = mixture(40)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        quick().set_params(**options).fit(x)


def test_a_graph_of_few_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^start must be mixture for fewer than 30 rows, got"):
        quick(start="connected").fit(mixture(20)[0])


def test_time_can_end_a_fit() -> None:
    x, _ = mixture(100)
    found = quick(2, max_steps=100_000, max_seconds=0.5).fit(x)
    assert found.model_.facts["seconds"] < 6.0  # and not the hours that steps would take
