"""The only training loop of the package."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from postmatch.training.averaging import WeightAverage

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
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimiser = _optimiser(parameters, plan)
    average = WeightAverage(parameters, plan.average)
    report = Report()
    watch = _Watch(plan)
    best: list[Tensor] = []
    in_a_row = 0
    module.train()
    for step in range(plan.steps):
        fraction = watch.fraction(step)
        for group in optimiser.param_groups:
            group["lr"] = plan.learning_rate * _rate(step, fraction, plan)
        losses = loss(fraction)
        total = torch.stack(list(losses.values())).sum()
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        norm = nn.utils.clip_grad_norm_(parameters, plan.clip_norm, foreach=True)
        if bool(torch.isfinite(norm + total.detach())):
            optimiser.step()
            average.update()
            in_a_row = 0
        else:
            report.skipped += 1
            in_a_row += 1
            if in_a_row >= _MOST_SKIPPED:
                raise FloatingPointError(
                    f"{in_a_row} steps in a row were not finite, last at step {step + 1}"
                )
        report.steps = step + 1
        done = report.steps == plan.steps or watch.over()
        if validate is not None and (done or report.steps % plan.validate_every == 0):
            with average.applied(), torch.no_grad():
                module.eval()
                score = validate()
                module.train()
            report.history.append((report.steps, score))
            if score < report.best_validation:
                report.best_step, report.best_validation = report.steps, score
                best = average.copy()
            elif plan.patience and _stale(report, plan):
                report.stopped_by, done = "patience", True
        if show is not None and (done or report.steps % 10 == 0):
            latest = report.history[-1][1] if report.history else None
            values = {name: value.item() for name, value in losses.items()}
            show(Progress(1.0 if done else watch.fraction(report.steps), report.steps, values, latest))
        if done:
            if watch.over() and report.steps < plan.steps and report.stopped_by == "steps":
                report.stopped_by = "time"
            break
    average.load(best or average.copy())
    module.eval()
    report.seconds = watch.seconds()
    return report


def _optimiser(parameters: Iterable[nn.Parameter], plan: Plan) -> torch.optim.Optimizer:
    matrices, vectors = [], []
    for parameter in parameters:
        (matrices if parameter.dim() > 1 else vectors).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.99), fused=True)


def _rate(step: int, fraction: float, plan: Plan) -> float:
    warm = min(1.0, (step + 1) / max(1, plan.warmup))
    return warm * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, fraction))))


def _stale(report: Report, plan: Plan) -> bool:
    since = sum(step > report.best_step for step, _ in report.history)
    return since >= plan.patience


@final
class _Watch:
    """Tells how much of a plan is done, by steps or by time, whichever is further."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.start = plan, time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def fraction(self, step: int) -> float:
        by_steps = step / self.plan.steps
        return max(by_steps, self.seconds() / self.plan.max_seconds) if self.plan.max_seconds else by_steps

    def over(self) -> bool:
        return bool(self.plan.max_seconds) and self.seconds() >= self.plan.max_seconds
