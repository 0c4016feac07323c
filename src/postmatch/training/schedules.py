"""How a rate or a weight changes over training: functions of the fraction done, 0 to 1."""

import math
from collections.abc import Callable

Schedule = Callable[[float], float]


def constant(_: float) -> float:
    """Stay at 1."""
    return 1.0


def cosine(fraction: float, floor: float = 0.01) -> float:
    """Fall from 1 to ``floor`` along half a cosine."""
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, fraction)))


def exponential(end: float) -> Schedule:
    """Fall from 1 to ``end`` by the same factor in every step, as the paper's rates do."""
    if not 0.0 < end <= 1.0:
        raise ValueError(f"end must lie in (0, 1], got {end}")
    return lambda fraction: end ** min(1.0, fraction)


def monotonic(warmup: float) -> Schedule:
    """Rise from 0 to 1 over the first ``warmup`` of training, then stay: a KL weight."""
    if not 0.0 <= warmup <= 1.0:
        raise ValueError(f"warmup must lie in [0, 1], got {warmup}")
    return lambda fraction: min(1.0, fraction / warmup) if warmup else 1.0


def cyclical(cycles: int, rising: float = 0.5) -> Schedule:
    """Rise from 0 to 1 in the first part of every cycle and stay for the rest: a KL weight.

    Fu et al., "Cyclical Annealing Schedule" (2019).

    Args:
        cycles: How many.
        rising: The part of a cycle in which the weight rises.
    """
    if cycles < 1 or not 0.0 < rising <= 1.0:
        raise ValueError(f"cycles must be positive and rising in (0, 1], got {cycles}, {rising}")

    def weight(fraction: float) -> float:
        place = 1.0 if fraction >= 1.0 else (fraction * cycles) % 1.0
        return min(1.0, place / rising)

    return weight
