"""Numbers and names as people write them."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def text_of(value: float) -> str:
    """Return a number as people write it: four digits that matter, thousands apart.

    Example:
        >>> [text_of(v) for v in (4201.75, 0.012346, 1234567.0, 400.00002)]
        ['4,202', '0.01235', '1,234,567', '400']
    """
    if not math.isfinite(value):
        return "–"
    if value == round(value) or abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.4g}"


def ticks(low: float, high: float, most: int = 5, least: float = 0.0) -> list[float]:
    """Return round numbers between two numbers, at most so many and no closer than ``least``.

    Example:
        >>> ticks(31.2, 59.9)
        [35.0, 40.0, 45.0, 50.0, 55.0]
        >>> ticks(0, 1, 3)
        [0.0, 0.5, 1.0]
        >>> ticks(-0.5, 1.5, least=1.0)
        [0.0, 1.0]
    """
    if not high > low:
        return [float(low)]
    rough = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 2.5, 5, 10, 20):
        step = max(rough * factor, least)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            break
    return [float(round(k * step, 12)) for k in range(first, last + 1)]


def shortened(text: str, most: int) -> str:
    """Return a text, cut where it is too long.

    Example:
        >>> shortened("flipper_length_mm", 10)
        'flipper_l…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def percent(share: float) -> str:
    """Return a share as a percent, with a decimal where it is small."""
    if share == 0 or share >= 0.1:
        return f"{share:.0%}"
    return f"{share:.1%}" if share >= 0.001 else "<0.1%"


def percents(shares: Floats) -> list[str]:
    """Return shares as whole percents, rounded so that the parts of a whole sum to 100.

    What would round to nothing keeps a decimal.

    Example:
        >>> percents(np.array([0.545, 0.455])), percents(np.array([0.997, 0.003]))
        (['55%', '45%'], ['100%', '0.3%'])
    """
    exact = 100 * np.asarray(shares, dtype=np.float64)
    whole = np.floor(exact)
    short = int(np.rint(exact.sum()) - whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:short]] += 1
    return [
        f"{value:.0f}%" if value else percent(share)
        for value, share in zip(whole, shares, strict=True)
    ]
