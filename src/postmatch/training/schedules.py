"""How a rate or a weight changes over training: functions of the fraction done, 0 to 1.

Weights are part of the loss, which a GPU plays back from a recording, so theirs is a tensor.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

WeightSchedule = Callable[[Tensor], Tensor]
RateSchedule = Literal["cosine", "exponential", "constant"]


def rate_schedule(name: RateSchedule, final: float) -> Callable[[float], float]:
    """Return how the learning rate falls from 1 to ``final``, in units of the highest rate.

    Args:
        name: ``cosine`` falls along half a cosine, ``exponential`` by the same factor in every
            step, as the paper's rates do, and ``constant`` not at all.
        final: What is left at the end.
    """
    if name == "constant":
        return lambda _: 1.0
    if name == "exponential":
        if not 0.0 < final <= 1.0:
            raise ValueError(f"final must lie in (0, 1] for an exponential, got {final}")
        return lambda fraction: final ** min(1.0, fraction)
    if name == "cosine":
        return lambda fraction: (
            final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, fraction)))
        )
    raise ValueError(f"schedule must be cosine, exponential or constant, got {name!r}")


def monotonic(warmup: float) -> WeightSchedule:
    """Rise from 0 to 1 over the first ``warmup`` of training, then stay: a KL weight."""
    if not 0.0 <= warmup <= 1.0:
        raise ValueError(f"warmup must lie in [0, 1], got {warmup}")
    return lambda fraction: (
        (fraction / warmup).clamp(max=1.0) if warmup else torch.ones_like(fraction)
    )


def cyclical(cycles: int, rising: float = 0.5) -> WeightSchedule:
    """Rise from 0 to 1 in the first part of every cycle and stay for the rest: a KL weight.

    Fu et al., "Cyclical Annealing Schedule" (2019).

    Args:
        cycles: How many.
        rising: The part of a cycle in which the weight rises.
    """
    if cycles < 1 or not 0.0 < rising <= 1.0:
        raise ValueError(f"cycles must be positive and rising in (0, 1], got {cycles}, {rising}")

    def weight(fraction: Tensor) -> Tensor:
        place = torch.where(fraction >= 1.0, 1.0, (fraction * cycles) % 1.0)
        return (place / rising).clamp(max=1.0)

    return weight
