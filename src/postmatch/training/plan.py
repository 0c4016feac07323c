"""What a run is told beforehand, what it tells on the way, and what it tells at the end."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, final, get_args

from torch import Tensor

from postmatch.training.schedules import RateSchedule, rate_schedule

Losses = dict[str, Tensor]
Precision = Literal["float32", "tf32", "bfloat16"]


@final
@dataclass(frozen=True)
class Plan:
    """How long and how fast to train.

    Args:
        steps: At most so many updates.
        learning_rate: The highest rate, reached after the warm-up.
        schedule: How rates fall after it: ``cosine``, ``exponential`` or ``constant``.
        final_rate: What is left of them at the end, as a part of the highest.
        orthogonal_rate: The highest rate of matrices inside networks, which then take steps that
            are orthogonal matrices (``Muon``); 0 to treat them like all others.
        orthogonal: Which matrices these are: ``square`` ones, as between hidden layers, or ``any``
            but narrow ones, those of convolutions too.
        warmup: Updates over which the rate rises from zero.
        second_moment: How much of the old mean square of the gradients each step of Adam keeps.
        weight_decay: Decoupled weight decay of matrices; vectors are left alone.
        clip_norm: Longest gradient.
        average: Decay of the running average of the weights, which is what training returns.
        validate_every: Updates between validations.
        patience: Stop after so many validations without improvement; 0 for never.
        patience_after: The part of the steps before which patience never ends a run.
        slack: Keep not the best weights but the latest that give back no more than this part of
            what the best ones gained over the untrained ones.
        max_seconds: Stop after this time, having lowered the rate in step with it; 0 for no limit.
        precision: Of matrix products: ``float32``; ``tf32``, which on a GPU rounds the factors to
            10 bits; or ``bfloat16``, 7 bits. Densities are computed in float32 all the same.
        compiled: Compile the networks before the first step, which takes up to a minute. Then the
            gradients of weights are not computed side by side on a GPU, so measure before use.
    """

    steps: int
    learning_rate: float = 2e-3
    schedule: RateSchedule = "cosine"
    final_rate: float = 0.01
    orthogonal_rate: float = 0.0
    orthogonal: Literal["square", "any"] = "square"
    warmup: int = 100
    second_moment: float = 0.99
    weight_decay: float = 0.01
    clip_norm: float = 5.0
    average: float = 0.999
    validate_every: int = 250
    patience: int = 0
    patience_after: float = 0.0
    slack: float = 0.0
    max_seconds: float = 0.0
    precision: Precision = "float32"
    compiled: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.orthogonal not in ("square", "any"):
            raise ValueError(f"orthogonal must be square or any, got {self.orthogonal!r}")
        if self.precision not in get_args(Precision):
            known = ", ".join(get_args(Precision))
            raise ValueError(f"precision must be one of {known}, got {self.precision!r}")
        rate_schedule(self.schedule, self.final_rate)


def plan_of(config: Any, max_seconds: float = 0.0, validations: int = 40) -> Plan:
    """Return the plan that a recipe's config holds, by the fields whose names are those of a plan.

    Args:
        config: A dataclass with ``steps`` and whatever else it decides.
        max_seconds: Stop after this time; 0 for no limit.
        validations: How many of them there are if all steps are taken.
    """
    names = {field.name for field in fields(Plan)} & {field.name for field in fields(config)}
    shared = {name: getattr(config, name) for name in names}
    every = max(1, shared["steps"] // validations)
    return Plan(**shared, validate_every=every, max_seconds=max_seconds)


@final
@dataclass(frozen=True)
class Progress:
    """Where a run stands, for whoever shows it."""

    fraction: float
    step: int
    seconds: float
    losses: dict[str, float]
    validation: float | None
    validated_at: int | None = None
    """The step of that score."""
    member: int = 0
    """Which of several models that are trained side by side it is about; the fraction is of all."""


@final
@dataclass
class Report:
    """What a run did."""

    steps: int = 0
    seconds: float = 0.0
    stopped_by: str = "steps"
    best_step: int = 0
    """The step whose weights were kept."""
    best_validation: float = math.inf
    """Their score."""
    skipped: int = 0
    returns: int = 0
    """How often it went back to its averaged weights, since no step was finite any more."""
    history: list[tuple[int, float]] = field(default_factory=list)
