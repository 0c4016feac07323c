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


def monotonic(warmup: float, delay: float = 0.0) -> WeightSchedule:
    """Stay at 0 for a while, rise to 1 over the next ``warmup`` of training, stay: a KL weight."""
    if not 0.0 <= warmup <= 1.0 or not 0.0 <= delay < 1.0:
        raise ValueError(f"warmup and delay must lie in [0, 1], got {warmup}, {delay}")

    def weight(fraction: Tensor) -> Tensor:
        if not warmup:
            return (fraction >= delay).to(fraction.dtype)
        return ((fraction - delay) / warmup).clamp(0.0, 1.0)

    return weight


def cyclical(cycles: float, rising: float = 0.5, delay: float = 0.0) -> WeightSchedule:
    """Rise from 0 to 1 in the first part of every cycle and stay for the rest: a KL weight.

    Fu et al., "Cyclical Annealing Schedule" (2019).

    Args:
        cycles: How many there are after the delay.
        rising: The part of a cycle in which the weight rises.
        delay: The part of training before the first cycle, in which the weight is 0.
    """
    if cycles <= 0 or not 0.0 < rising <= 1.0 or not 0.0 <= delay < 1.0:
        raise ValueError(
            "cycles must be positive, rising in (0, 1] and delay in [0, 1), "
            f"got {cycles}, {rising}, {delay}"
        )

    def weight(fraction: Tensor) -> Tensor:
        place = (fraction - delay) / (1.0 - delay) * cycles
        place = torch.where(fraction >= 1.0, 1.0, place % 1.0)
        return (place / rising).clamp(max=1.0) * (fraction >= delay)

    return weight
