"""From a column's numbers to x: location, scale, resolution and knots."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from postmatch.tables.cells import Floats

FINEST_STEP = 1e-3  # in units of x: below it a density would follow the rounding of the data
LARGEST = 1e100  # a number beyond counts as infinite: squares and ratios would overflow
WIDEST = 1e4  # largest |x| at fit: float32 still tells apart values FINEST_STEP from one another
KNOTS = 17
MOST_ATOMS = 24
FEWEST_CELLS, SMALLEST_SHARE, LEAST_EXCESS = 6, 0.01, 2.0  # of a value that is an atom


@final
@dataclass(frozen=True)
class Scaling:
    r"""The affine map :math:`x = (v - \text{location}) / \text{scale}` and what is known of x.

    Args:
        decimals: In which almost all values can be written, or None for continuous ones.
    """

    location: float
    scale: float
    step: float
    discrete: bool
    knots: tuple[float, ...]
    atoms: tuple[tuple[float, float], ...]
    decimals: int | None


def scaling_of(values: Floats, unit: float, precision: float) -> Scaling:
    """Return the scaling of finite values.

    Args:
        values: At least one finite number.
        unit: Values are multiples of it; 0 if they are not known to be.
        precision: Relative rounding error of the values.
    """
    location, scale = location_and_scale(values)
    x = (values - location) / scale
    decimals = None if unit else decimals_of(values, scale, precision)
    if unit:
        step = unit / scale
    else:
        step = 10.0**-decimals / scale if decimals is not None else FINEST_STEP
    grain = float(np.spacing(np.float32(np.abs(x).max())))  # what float32 can tell apart out there
    discrete = bool(unit) and step >= FINEST_STEP and step >= 4 * grain
    step = step if discrete else max(step, FINEST_STEP)
    return Scaling(
        location, scale, step, discrete, knots_of(x, step), atoms_of(values, x, step), decimals
    )


def location_and_scale(values: Floats) -> tuple[float, float]:
    """Return mean and standard deviation of the values between their 1 % and 99 % quantiles.

    Values outside count as the nearest quantile: in a heavy-tailed column the plain standard
    deviation is that of a few extremes, and the bulk would shrink to a point. A column in which
    under 1 % differ from a constant falls back on the plain ones. The scale is at least a
    1 / ``WIDEST`` part of the range, 1 for a constant column.
    """
    largest = float(np.abs(values).max())
    if values.min() == values.max():
        return float(values[0]), 1.0
    unit = values / largest  # so that no square overflows
    trimmed = np.clip(unit, *np.quantile(unit, [0.01, 0.99], method="inverted_cdf"))
    if trimmed.min() == trimmed.max():
        trimmed = unit
    location = float(trimmed.mean())
    scale = max(float(trimmed.std()), float(np.abs(unit - location).max()) / WIDEST) * largest
    return (location * largest, scale) if 1e-300 < scale < 1e300 else (float(values[0]), 1.0)


def decimals_of(values: Floats, scale: float, precision: float) -> int | None:
    """Return how many decimals almost all values need, or None if finer than ``FINEST_STEP``.

    Nine in ten of the different values must need no more either: where almost all cells are zero,
    the zeros say nothing about the rest.
    """
    different, counts = np.unique(values, return_counts=True)
    most = math.floor(-math.log10(FINEST_STEP * scale))
    for decimals in range(min(most, 300) + 1):
        shifted = different * 10.0**decimals
        tolerance = np.maximum(1e-6, 2 * precision * np.abs(shifted))
        close = (np.abs(shifted - np.rint(shifted)) <= tolerance) & (tolerance < 0.05)
        if close.mean() >= 0.9 and counts[close].sum() >= 0.99 * len(values):
            return decimals
    return None


def knots_of(x: Floats, step: float) -> tuple[float, ...]:
    """Return about 17 increasing quantiles of x, from lowest to highest.

    Where one value repeats, as zero does in a zero-heavy column, quantiles coincide; the places
    they leave go to quantiles of the distinct values, so that the rest of the range is told apart.
    """
    levels = np.linspace(0.0, 1.0, KNOTS)
    knots = np.unique(np.quantile(x, levels, method="inverted_cdf"))
    if len(knots) < KNOTS:
        distinct = np.unique(x)
        extra = np.quantile(
            distinct, np.linspace(0.0, 1.0, KNOTS + 2 - len(knots)), method="inverted_cdf"
        )
        knots = np.union1d(knots, extra)
    gap = np.diff(knots, prepend=-np.inf) > 1e-6 * np.maximum(1.0, np.abs(knots))
    knots = knots[gap]
    if len(knots) < 2:
        half = max(step, 1.0) / 2
        return float(knots[0] - half), float(knots[0] + half)
    return tuple(float(knot) for knot in knots)


def atoms_of(values: Floats, x: Floats, step: float) -> tuple[tuple[float, float], ...]:
    """Return the values that many cells share, in order, each with its share of the cells.

    A value on a grid is no atom for being on it. An atom holds ``LEAST_EXCESS`` times what its
    neighbourhood, out to the second places on both sides where there is anything, would give it if
    all places ``step`` apart were equally frequent there.
    """
    _, first, counts = np.unique(values, return_index=True, return_counts=True)
    place = np.rint((x[first] - x.min()) / step)
    order = np.lexsort((-counts, place))  # in each place its most frequent value first
    place, first, counts = place[order], first[order], counts[order]
    starts = np.flatnonzero(np.diff(place, prepend=-1.0))
    sums = np.concatenate([[0], np.cumsum(np.add.reduceat(counts, starts))])
    place, first, counts = place[starts], first[starts], counts[starts]
    left = np.maximum(np.arange(len(place)) - 2, 0)
    right = np.minimum(np.arange(len(place)) + 2, len(place) - 1)
    expected = (sums[right + 1] - sums[left]) / (place[right] - place[left] + 1.0)
    often = (counts >= FEWEST_CELLS) & (counts >= SMALLEST_SHARE * len(x))
    atoms = np.flatnonzero(often & (counts >= LEAST_EXCESS * expected))
    atoms = np.sort(atoms[np.argsort(-counts[atoms], kind="stable")[:MOST_ATOMS]])
    # Values in places side by side may still be less than a step apart.
    atoms = atoms[np.diff(x[first[atoms]], prepend=-np.inf) >= 0.999 * step]
    return tuple((float(values[first[i]]), float(counts[i] / len(x))) for i in atoms)
