"""What is kept of the UCI repository's tables, and how it is split and standardised."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from postmatch.data import official, uci

Array = NDArray[np.float64]
Writers = dict[str, Callable[..., Any]]


def standardised(known: Array, test: Array) -> tuple[Array, Array]:
    return tuple((x - known.mean(0)) / known.std(0) for x in (known, test))  # type: ignore[return-value]


def arrays(found: uci.Splits) -> tuple[Array, Array]:
    """Return the rows to learn from and to choose by together, and those to judge by."""
    for part in (found.train, found.val, found.test):
        assert part.dtype == torch.float32
        assert torch.isfinite(part).all()
    known = torch.cat([found.train, found.val]).double().numpy()
    return known, found.test.double().numpy()


def lengths(found: uci.Splits) -> tuple[int, int, int]:
    return len(found.train), len(found.val), len(found.test)


def test_power_drops_gaps_and_columns_and_is_standardised(
    uci_folder: Path, writers: Writers
) -> None:
    raw = writers["power"](uci_folder)
    found = uci.load("power")
    assert lengths(found) == (98, 10, 12)
    known, test = arrays(found)
    np.testing.assert_allclose(known.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(known.std(0), 1.0, atol=1e-5)
    # The first column counts rows, so its order tells which row is which, whatever the noise.
    row = np.concatenate([known, test])[:, 0].argsort().argsort()
    assert (row != np.arange(120)).any()
    expected = standardised(raw[row[:108]], raw[row[108:]])
    width = np.array([0.001, 0.01, 1.0, 1.0, 1.0, 1.0]) / raw.std(0)
    assert (np.abs(known - expected[0]) < 2.0 * width).all()
    assert (np.abs(test - expected[1]) < 2.0 * width).all()


def test_noise_of_power_is_as_wide_as_its_last_digit(
    uci_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = (
        "1/1/2007;00:00:00;1.000;0.5;230.00;4.0;0.000;0.000;0.000",
        "1/1/2007;00:10:00;1.010;0.5;230.10;4.0;10.000;10.000;10.000",
    )
    path = uci_folder / "household_power_consumption.txt"
    path.write_text("\n".join([";".join(official._POWER), *(levels * 1000)]))
    monkeypatch.setitem(official.ROWS, "power", 2000)
    for column in np.concatenate(arrays(uci.load("power"))).T:
        low, high = column[column < column.mean()], column[column > column.mean()]
        # Levels ten widths apart; of 1000 uniform draws, the range is about 0.998 of the width.
        assert np.ptp(low) / (high.min() - low.min()) == pytest.approx(0.1, rel=0.02)
        assert np.ptp(high) / (high.min() - low.min()) == pytest.approx(0.1, rel=0.02)
        assert len(np.unique(column)) > 1950


def test_gas_keeps_a_quarter_and_no_sensor_like_a_later_one(
    uci_folder: Path, writers: Writers
) -> None:
    raw = writers["gas"](uci_folder)
    found = uci.load("gas")
    assert lengths(found) == (81, 9, 10)
    chosen = np.random.default_rng(official.SEED).permutation(400)[:100]
    expected = standardised(raw[chosen[:90]], raw[chosen[90:]])
    for part, truth in zip(arrays(found), expected, strict=True):
        np.testing.assert_allclose(part, truth, atol=1e-5)


@pytest.mark.parametrize("suffix", [".csv.gz", ".csv"])
def test_hepmass_keeps_the_first_signals_and_no_discrete_feature(
    uci_folder: Path, writers: Writers, suffix: str
) -> None:
    raw = writers["hepmass"](uci_folder, suffix)
    found = uci.load("hepmass")
    assert lengths(found) == (90, 10, 30)
    for part, truth in zip(arrays(found), standardised(*raw), strict=True):
        np.testing.assert_allclose(part, truth, atol=1e-5)


def test_a_smallest_value_that_occurs_six_times_takes_its_feature_away() -> None:
    rows = np.arange(20.0)[:, None] * np.ones(3)
    rows[:5, 0] = rows[:6, 1] = -1.0
    rows[:19, 2] = 30.0
    assert official._seldom_smallest(rows).tolist() == [True, False, True]


def test_miniboone_keeps_signals_with_values_and_no_feature_with_a_spike(
    uci_folder: Path, writers: Writers
) -> None:
    raw = writers["miniboone"](uci_folder)
    found = uci.load("miniboone")
    assert lengths(found) == (47, 5, 5)
    assert found.train.shape[1] == 43
    for part, truth in zip(arrays(found), standardised(raw[:52], raw[52:]), strict=True):
        np.testing.assert_allclose(part, truth, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("power", (1_659_917, 184_435, 204_928)),
        ("gas", (852_174, 94_685, 105_206)),
        ("hepmass", (315_123, 35_013, 174_987)),
        ("miniboone", (29_556, 3_284, 3_648)),
    ],
)
def test_the_published_sizes_follow_from_the_rows_expected(
    name: str, sizes: tuple[int, int, int]
) -> None:
    count = official.ROWS[name] // (4 if name == "gas" else 1)
    rows = np.arange(float(count))[:, None]
    test = np.arange(float(official.ROWS["hepmass test"]))[:, None]
    parts = official._standardised(rows, test) if name == "hepmass" else official._split(rows)
    assert tuple(len(parts[key]) for key in ("train", "val", "test")) == sizes
