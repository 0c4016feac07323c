"""POWER, GAS, HEPMASS and MINIBOONE from the files of the UCI repository.

What is done to them is the recipe of Papamakarios, Pavlakou and Murray, "Masked autoregressive flow
for density estimation" (2017, arXiv 1705.07057, appendix D and the code published with it), which
all later comparisons share:

- POWER: rows with a gap are dropped, and so are the date, the reactive power and the intensity. The
  time becomes the minute of the day. Rows are shuffled. Uniform noise as wide as the last digit is
  added: 0.001 to the active power, 0.01 to the voltage, 1 to each sub-metering and to the minute.
- GAS: a random quarter of the rows. The time and the two concentrations are dropped, then every
  sensor whose correlation with a later one is above 0.98; eight are left.
- HEPMASS: the signals (label 1) in the first tenth of the files "1000", which are the first 350,136
  and 174,987. The last of the 27 features is dropped, as that recipe does because the header of the
  training file is one name short, then the five whose smallest value occurs more than five times.
- MINIBOONE: the signals, which come first, less the 11 rows that say -999 throughout, and less the
  seven features whose smallest value occurs more than five times.

The last tenth is for testing (HEPMASS has a file for that), the last tenth of the others for
validation. All are standardised by the mean and the population standard deviation of training and
validation rows together; for GAS the recipe takes those of all rows, with the test rows, which we
do not. HEPMASS and MINIBOONE keep the order of their files, and with it the recipe's splits. Which
rows of POWER and GAS go where, and the noise of POWER, follow a seed of our own: these sets have
the published sizes and the same distribution, but are not the very same draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from postmatch.data.publishers import Place, expect, find, read_rows, readable

Table = Literal["power", "gas", "hepmass", "miniboone"]
Parts = dict[str, NDArray[np.float32]]
Rows = NDArray[np.float64]
Number = TypeVar("Number", np.float32, np.float64)

SEED = 0
# What must be found: these give the published sizes of the splits.
ROWS = {
    "power": 2_049_280,  # without gaps
    "gas": 4_208_261,
    "hepmass": 350_136,  # signals to learn from
    "hepmass test": 174_987,
    "miniboone": 36_488,  # signals with values
}
FEATURES = {"power": 6, "gas": 8, "hepmass": 21, "miniboone": 43}

_POWER = (
    *("Date", "Time", "Global_active_power", "Global_reactive_power", "Voltage"),
    *("Global_intensity", "Sub_metering_1", "Sub_metering_2", "Sub_metering_3"),
)
_POWER_NOISE = {
    "Global_active_power": 0.001,
    "Voltage": 0.01,
    "Sub_metering_1": 1.0,
    "Sub_metering_2": 1.0,
    "Sub_metering_3": 1.0,
    "Time": 1.0,
}
_SENSORS = tuple(f"sensor {i}" for i in range(1, 17))
_HEPMASS = tuple(f"f{i}" for i in range(27))
_MINIBOONE = tuple(f"f{i}" for i in range(50))
_MOST_REPEATS = 5  # of the smallest value of a feature
_MOST_CORRELATION = 0.98
_NO_VALUE = -100.0  # a first feature of MINIBOONE below this says that the row has none


@final
@dataclass(frozen=True)
class Source:
    """What to download of a set.

    Args:
        page: Of the UCI repository.
        files: What each of the files may be called.
        archives: What the zip archive may be called that they come in.
    """

    page: str
    files: tuple[tuple[str, ...], ...]
    archives: tuple[str, ...]

    def find(self, folder: Path) -> list[Place]:
        """Return where the files lie, or nothing if not all of them are there."""
        places = [find(folder, names, self.archives) for names in self.files]
        found = [place for place in places if place is not None]
        return found if len(found) == len(places) else []

    def __str__(self) -> str:
        files = " and ".join(names[0] for names in self.files)
        return (
            f'{files} (or {self.archives[0]}) of "UCI: {self.page}" (archive.ics.uci.edu), '
            "as they are"
        )


SOURCES: dict[Table, Source] = {
    "power": Source(
        "Individual household electric power consumption",
        (("household_power_consumption.txt",),),
        (
            "household_power_consumption.zip",
            "individual+household+electric+power+consumption.zip",
        ),
    ),
    "gas": Source(
        "Gas sensor array under dynamic gas mixtures",
        (("ethylene_CO.txt",),),
        ("gas+sensor+array+under+dynamic+gas+mixtures.zip", "data.zip", "ethylene_CO.zip"),
    ),
    "hepmass": Source(
        "HEPMASS",
        (("1000_train.csv.gz", "1000_train.csv"), ("1000_test.csv.gz", "1000_test.csv")),
        ("hepmass.zip",),
    ),
    "miniboone": Source(
        "MiniBooNE particle identification",
        (("MiniBooNE_PID.txt",),),
        ("miniboone+particle+identification.zip",),
    ),
}


def read(name: Table, folder: Path) -> Parts | None:
    """Return the splits of a set from its official files, or None if the folder lacks them.

    Raises:
        ValueError: If a file is cut short or is not what it should be.
    """
    places = SOURCES[name].find(folder)
    return _RECIPES[name](places) if places else None


def _power(places: list[Place]) -> Parts:
    (place,) = places
    with readable(place, "the table of household power"), place.opened() as file:
        _check_header(place, file.readline(), ";".join(_POWER))
        blocks = read_rows(file, _POWER, [*_POWER_NOISE], sep=";", gaps=("?", ""))
        kept = [block[~np.isnan(block).any(1)] for block in blocks]
    rows = _joined(place, kept)
    expect(place, "rows without gaps", ROWS["power"], len(rows))
    minute = [*_POWER_NOISE].index("Time")
    rows[:, minute] //= 60.0
    random = np.random.default_rng(SEED)
    rows = rows[random.permutation(len(rows))]
    rows += random.random(rows.shape) * [*_POWER_NOISE.values()]
    return _split(rows)


def _gas(places: list[Place]) -> Parts:
    (place,) = places
    columns = ("Time", "CO", "ethylene", *_SENSORS)
    with readable(place, "the table of ethylene and CO"), place.opened() as file:
        _check_header(place, file.readline(), "Time (seconds)")
        # Half the memory: there are four million rows, of which three million will not be used.
        blocks = read_rows(file, columns, _SENSORS, sep=None)
        kept = [block.astype(np.float32) for block in blocks]
    rows = _joined(place, kept)
    expect(place, "rows", ROWS["gas"], len(rows))
    chosen = np.random.default_rng(SEED).permutation(len(rows))[: len(rows) // 4]
    quarter = rows[chosen].astype(np.float64)
    later = np.triu(np.corrcoef(quarter.T), k=1)  # (sensor, later sensor)
    kept_sensors = later.max(1) <= _MOST_CORRELATION
    _check_features(place, "gas", kept_sensors)
    return _split(quarter[:, kept_sensors])


def _hepmass(places: list[Place]) -> Parts:
    known = _signals(places[0], ROWS["hepmass"])
    test = _signals(places[1], ROWS["hepmass test"])
    kept = _seldom_smallest(known)
    _check_features(places[0], "hepmass", kept)
    return _standardised(known[:, kept], test[:, kept])


def _signals(place: Place, count: int) -> Rows:
    """Return the first rows with the label 1, without the label and the last feature."""
    kept: list[Rows] = []
    found = 0
    with readable(place, "the table of HEPMASS with mass 1000"), place.opened() as file:
        _check_header(place, file.readline(), "# label")
        for block in read_rows(file, ("label", *_HEPMASS), ("label", *_HEPMASS[:-1]), sep=","):
            kept.append(block[block[:, 0] == 1.0, 1:])
            found += len(kept[-1])
            if found >= count:
                break
    expect(place, "or more rows with the label 1", count, min(found, count))
    return _joined(place, kept)[:count]


def _miniboone(places: list[Place]) -> Parts:
    (place,) = places
    with readable(place, "the table of MiniBooNE"), place.opened() as file:
        first = file.readline(100).split()
        if len(first) != 2 or not all(word.isdigit() for word in first):
            raise ValueError(
                f"{place}: the first line must say how many signals and backgrounds follow, "
                f"got {b' '.join(first).decode(errors='replace')!r}"
            )
        signals, backgrounds = map(int, first)
        blocks = [*read_rows(file, _MINIBOONE, _MINIBOONE, sep=None)]
    rows = _joined(place, blocks)
    expect(place, "rows, as its first line says", signals + backgrounds, len(rows))
    rows = rows[:signals]
    rows = rows[rows[:, 0] >= _NO_VALUE]
    expect(place, "signals with values", ROWS["miniboone"], len(rows))
    kept = _seldom_smallest(rows)
    _check_features(place, "miniboone", kept)
    return _split(rows[:, kept])


_RECIPES: dict[Table, Callable[[list[Place]], Parts]] = {
    "power": _power,
    "gas": _gas,
    "hepmass": _hepmass,
    "miniboone": _miniboone,
}


def _joined(place: Place, blocks: list[NDArray[Number]]) -> NDArray[Number]:
    if not blocks:
        raise ValueError(f"{place} ends after its first line")
    rows = np.concatenate(blocks)
    expect(place, "cells that are no finite number", 0, int((~np.isfinite(rows)).sum()))
    return rows


def _seldom_smallest(rows: Rows) -> NDArray[np.bool_]:
    """Return which features have a smallest value that seldom occurs."""
    seldom: NDArray[np.bool_] = (rows == rows.min(0)).sum(0) <= _MOST_REPEATS
    return seldom


def _check_header(place: Place, line: bytes, start: str) -> None:
    header = line.decode(errors="replace").strip()
    if not header.startswith(start):
        raise ValueError(f"{place}: the first line must begin with {start!r}, got {header[:80]!r}")


def _check_features(place: Place, name: Table, kept: NDArray[np.bool_]) -> None:
    expect(place, "features that are not left out", FEATURES[name], int(kept.sum()))


def _split(rows: Rows) -> Parts:
    """Return the splits of rows whose last tenth is for testing."""
    known = len(rows) - len(rows) // 10
    return _standardised(rows[:known], rows[known:])


def _standardised(known: Rows, test: Rows) -> Parts:
    """Return the splits, of which the last tenth of the known rows is for validation."""
    mean, deviation = known.mean(0), known.std(0)
    x, unseen = (((rows - mean) / deviation).astype(np.float32) for rows in (known, test))
    learnt = len(x) - len(x) // 10
    return {"train": x[:learnt], "val": x[learnt:], "test": unseen}
