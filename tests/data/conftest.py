"""Small files in the formats of the UCI repository, and what should be kept of them."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from postmatch.data import official

Array = NDArray[np.float64]
POWER_HEADER = (
    "Date;Time;Global_active_power;Global_reactive_power;Voltage;Global_intensity;"
    "Sub_metering_1;Sub_metering_2;Sub_metering_3"
)
GAS_HEADER = "Time (seconds), CO conc (ppm), Ethylene conc (ppm), sensor readings (16 channels) "


@pytest.fixture
def uci_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the tables are read from, and expect small ones."""
    monkeypatch.setenv("POSTMATCH_DATA", str(tmp_path))
    sizes = {"power": 120, "gas": 400, "hepmass": 100, "hepmass test": 30, "miniboone": 57}
    for name, size in sizes.items():
        monkeypatch.setitem(official.ROWS, name, size)
    (tmp_path / "uci").mkdir()
    return tmp_path / "uci"


def write_power(folder: Path) -> Array:
    """Write 130 minutes, of which every 13th is a gap; return what is kept, without noise."""
    lines, kept = [POWER_HEADER], []
    for i in range(130):
        minute = 7 * i
        when = f"{1 + i % 9}/2/2007;{minute // 60:02d}:{minute % 60:02d}:00"
        if i % 13 == 5:
            lines.append(f"{when};?;?;?;?;?;?;")
            continue
        values = (float(i), 240.0 - i, 100.0 * (i % 10), 100.0 * (i % 7), 100.0 * (i % 3))
        power, voltage, *meters = values
        rest = ";".join(f"{m:.3f}" for m in meters)
        lines.append(f"{when};{power:.3f};0.000;{voltage:.2f};18.400;{rest}")
        kept.append((*values, float(minute)))
    (folder / "household_power_consumption.txt").write_text("\r\n".join(lines) + "\r\n")
    return np.array(kept)


def write_gas(folder: Path) -> Array:
    """Write 400 rows in which sensor i is like sensor i + 8; return the sensors to be kept."""
    random = np.random.default_rng(0)
    x = random.normal(100.0, 30.0, size=(400, 16))
    x[:, 15] = -x[:, 14] + random.normal(size=400)  # the opposite of another is not like it
    x[:, :8] = x[:, 8:] + random.normal(0.0, 3.0, size=(400, 8))  # correlations of about .995
    x = x.round(2)
    wide = ["  ".join(f"{v:.2f}" for v in (i / 100, 0.0, 20.0, *row)) for i, row in enumerate(x)]
    (folder / "ethylene_CO.txt").write_text(GAS_HEADER + "\n" + " \n".join(wide) + " \n")
    return x[:, 8:]


def hepmass_rows(count: int, seed: int) -> Array:
    """Return rows of a label and 27 features, five of them discrete; every other is a signal."""
    x = np.random.default_rng(seed).normal(size=(count, 28)).round(12)
    x[:, 0] = np.arange(count) % 2 == 0
    x[:, 1 + np.array([5, 9, 13, 17, 21])] = np.arange(count)[:, None] // 2 % 3
    signals = np.flatnonzero(x[:, 0] == 1.0)
    x[signals[:5], 1 + 2] = -9.0  # a smallest value may occur five times
    x[signals[:50], 1 + 3] = 9.0  # and a largest one often
    x[x[:, 0] == 0.0, 1:] += 100.0
    return x


def write_hepmass(folder: Path, suffix: str = ".csv.gz") -> tuple[Array, Array]:
    """Write more than enough rows of both files; return the signals and features to be kept."""
    kept = []
    for name, count, used, named in (("1000_train", 250, 100, 26), ("1000_test", 80, 30, 27)):
        x = hepmass_rows(count, seed=named)
        # The header of the training file is one name short.
        lines = ["# label," + ",".join(f"f{i}" for i in range(named))]
        lines += [",".join(f"{v:.18e}" for v in row) for row in x]
        text = "\n".join(lines).encode() + b"\n"
        content = gzip.compress(text) if suffix.endswith("gz") else text
        (folder / f"{name}{suffix}").write_bytes(content)
        features = [i for i in range(26) if i not in (5, 9, 13, 17, 21)]
        kept.append(x[x[:, 0] == 1.0][:used, 1:][:, features])
    return kept[0], kept[1]


def write_miniboone(folder: Path) -> Array:
    """Write 60 signals, 3 of them without values, and 40 backgrounds; return what is kept."""
    x = np.random.default_rng(0).normal(1.0, 1.0, size=(100, 50))
    spiked = [5, 13, 22, 26, 34, 44, 45]
    x[:, spiked] = np.abs(x[:, spiked]) * (np.arange(100) % 4 > 0)[:, None]  # many zeros
    x[60:] += 1e3
    x[[3, 30, 59, 80]] = -999.0
    x = np.array([[float(f"{v:.6E}") for v in row] for row in x])
    lines = ["   60    40", *("".join(f"{v:16.6E}" for v in row) for row in x)]
    (folder / "MiniBooNE_PID.txt").write_text("\n".join(lines) + "\n")
    signals = np.delete(x[:60], [3, 30, 59], axis=0)
    return np.delete(signals, spiked, axis=1)


@pytest.fixture
def writers() -> dict[str, Callable[..., Any]]:
    """Return what writes the files of a set into a folder and returns the rows to be kept."""
    return {
        "power": write_power,
        "gas": write_gas,
        "hepmass": write_hepmass,
        "miniboone": write_miniboone,
    }
