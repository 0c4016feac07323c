"""The only training loop of the package."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from postmatch.training.averaging import WeightAverage
from postmatch.training.flat import FlatParameters, flatten

Losses = dict[str, Tensor]
_MOST_SKIPPED = 50  # non-finite steps in a row before giving up


@final
@dataclass(frozen=True)
class Plan:
    """How long and how fast to train.

    Args:
        steps: At most so many updates.
        learning_rate: The highest rate, reached after the warm-up; it then falls along a cosine.
        warmup: Updates over which the rate rises from zero.
        weight_decay: Decoupled weight decay of matrices; vectors are left alone.
        clip_norm: Longest gradient.
        average: Decay of the running average of the weights, which is what training returns.
        validate_every: Updates between validations.
        patience: Stop after so many validations without improvement; 0 for never.
        patience_after: The part of the steps before which patience never ends a run.
        max_seconds: Stop after this time, having lowered the rate in step with it; 0 for no limit.
    """

    steps: int
    learning_rate: float = 2e-3
    warmup: int = 100
    weight_decay: float = 0.01
    clip_norm: float = 5.0
    average: float = 0.999
    validate_every: int = 250
    patience: int = 0
    patience_after: float = 0.0
    max_seconds: float = 0.0


@final
@dataclass(frozen=True)
class Progress:
    """Where a run stands, for whoever shows it."""

    fraction: float
    step: int
    losses: dict[str, float]
    validation: float | None


@final
@dataclass
class Report:
    """What a run did."""

    steps: int = 0
    seconds: float = 0.0
    stopped_by: str = "steps"
    best_step: int = 0
    best_validation: float = math.inf
    skipped: int = 0
    skipped_in_a_row: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)


def train(
    module: nn.Module,
    loss: Callable[[float], Losses],
    plan: Plan,
    *,
    validate: Callable[[], float] | None = None,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    """Train the parameters of ``module`` that require a gradient, and leave their average in it.

    Args:
        module: What is trained.
        loss: From the fraction of training done (0 to 1) to the losses of a fresh batch, whose sum
            is minimised.
        plan: How long and how fast.
        validate: The score to minimise, computed with the averaged weights; the best ones are kept.
        show: Told of the progress now and then.

    Raises:
        FloatingPointError: If the loss or its gradient stays non-finite.
    """
    flats = flatten(module)
    optimiser = _optimiser(flats, plan)
    average = WeightAverage([flat.vector for flat, _ in flats], plan.average)
    report, watch = Report(), _Watch(plan)
    best: list[Tensor] = []
    try:
        module.train()
        while True:
            losses = _update(report.steps, loss, plan, flats, optimiser, average, watch, report)
            done = report.steps == plan.steps or watch.over()
            if validate is not None and (done or report.steps % plan.validate_every == 0):
                score = _validate(module, average, validate)
                report.history.append((report.steps, score))
                if score < report.best_validation:
                    report.best_step, report.best_validation = report.steps, score
                    best = average.copy()
                elif plan.patience and _stale(report, plan):
                    report.stopped_by, done = "patience", True
            if show is not None and (done or report.steps % 10 == 0):
                show(_progress(report, losses, 1.0 if done else watch.fraction(report.steps)))
            if done:
                break
    finally:
        average.load(best or average.average)
        for flat, _ in flats:
            flat.release()
        module.eval()
        report.seconds = watch.seconds()
    if report.stopped_by == "steps" and report.steps < plan.steps:
        report.stopped_by = "time"
    return report


def _update(
    step: int,
    loss: Callable[[float], Losses],
    plan: Plan,
    flats: list[tuple[FlatParameters, bool]],
    optimiser: torch.optim.Optimizer,
    average: WeightAverage,
    watch: "_Watch",
    report: Report,
) -> Losses:
    """Take one step, or skip it if it is not finite."""
    fraction = watch.fraction(step)
    for group in optimiser.param_groups:
        group["lr"] = plan.learning_rate * _rate(step, fraction, plan)
    for flat, _ in flats:
        flat.gradient.zero_()
    losses = loss(fraction)
    total = torch.stack(list(losses.values())).sum()
    total.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_([flat.vector for flat, _ in flats], plan.clip_norm)
    report.steps = step + 1
    if bool(torch.isfinite(norm + total.detach())):
        optimiser.step()
        average.update()
        report.skipped_in_a_row = 0
        return losses
    report.skipped += 1
    report.skipped_in_a_row += 1
    if report.skipped_in_a_row >= _MOST_SKIPPED:
        raise FloatingPointError(
            f"{report.skipped_in_a_row} steps in a row were not finite, last at step {step + 1}"
        )
    return losses


def _validate(module: nn.Module, average: WeightAverage, validate: Callable[[], float]) -> float:
    with average.applied(), torch.no_grad():
        module.eval()
        score = validate()
        module.train()
    return score


def _progress(report: Report, losses: Losses, fraction: float) -> Progress:
    values = {name: value.item() for name, value in losses.items()}
    latest = report.history[-1][1] if report.history else None
    return Progress(fraction, report.steps, values, latest)


def _optimiser(flats: list[tuple[FlatParameters, bool]], plan: Plan) -> torch.optim.Optimizer:
    groups = [
        {"params": [flat.vector], "weight_decay": plan.weight_decay if matrices else 0.0}
        for flat, matrices in flats
    ]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.99), fused=True)


def _rate(step: int, fraction: float, plan: Plan) -> float:
    warm = min(1.0, (step + 1) / max(1, plan.warmup))
    return warm * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, fraction))))


def _stale(report: Report, plan: Plan) -> bool:
    since = sum(step > report.best_step for step, _ in report.history)
    return since >= plan.patience and report.steps >= plan.patience_after * plan.steps


@final
class _Watch:
    """Tells how much of a plan is done, by steps or by time, whichever is further."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.start = plan, time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def fraction(self, step: int) -> float:
        by_steps = step / self.plan.steps
        if not self.plan.max_seconds:
            return by_steps
        return max(by_steps, self.seconds() / self.plan.max_seconds)

    def over(self) -> bool:
        return bool(self.plan.max_seconds) and self.seconds() >= self.plan.max_seconds
