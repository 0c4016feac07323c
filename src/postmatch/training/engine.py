"""The only training loop of the package."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from postmatch.training.averaging import WeightAverage
from postmatch.training.flat import FlatParameters, flatten
from postmatch.training.muon import Muon

Losses = dict[str, Tensor]
_MOST_SKIPPED = 50  # non-finite steps in a row before giving up


@final
@dataclass(frozen=True)
class Plan:
    """How long and how fast to train.

    Args:
        steps: At most so many updates.
        learning_rate: The highest rate, reached after the warm-up; it then falls along a cosine.
        orthogonal_rate: The highest rate of the square matrices inside networks, which then take
            steps that are orthogonal matrices (``Muon``); 0 to treat them like all others.
        warmup: Updates over which the rate rises from zero.
        weight_decay: Decoupled weight decay of matrices; vectors are left alone.
        clip_norm: Longest gradient.
        average: Decay of the running average of the weights, which is what training returns.
        validate_every: Updates between validations.
        patience: Stop after so many validations without improvement; 0 for never.
        patience_after: The part of the steps before which patience never ends a run.
        slack: Keep the latest weights whose score is within this of the best, not the best ones.
        max_seconds: Stop after this time, having lowered the rate in step with it; 0 for no limit.
    """

    steps: int
    learning_rate: float = 2e-3
    orthogonal_rate: float = 0.0
    warmup: int = 100
    weight_decay: float = 0.01
    clip_norm: float = 5.0
    average: float = 0.999
    validate_every: int = 250
    patience: int = 0
    patience_after: float = 0.0
    slack: float = 0.0
    max_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("steps", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


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
    """The step whose weights were kept."""
    best_validation: float = math.inf
    """Their score."""
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
    run = _Run(module, loss, plan)
    try:
        while not run.done:
            run.step()
            if validate is not None and (run.done or run.report.steps % plan.validate_every == 0):
                run.validate(validate)
            if show is not None and (run.done or run.report.steps % 10 == 0):
                show(run.progress())
    finally:
        run.close()
    return run.report


@final
class _Run:
    """A training run in progress."""

    def __init__(self, module: nn.Module, loss: Callable[[float], Losses], plan: Plan) -> None:
        self.module, self.loss, self.plan = module.train(), loss, plan
        self.report, self.done, self.losses = Report(), False, Losses()
        self.flats = flatten(module, squares_apart=plan.orthogonal_rate > 0.0)
        self.vectors = [flat.vector for flat in self.flats]
        self.optimiser, self.muon = _optimisers(self.flats, plan)
        self.average = WeightAverage(self.vectors, plan.average)
        self.best: list[Tensor] = []
        self.lowest = math.inf
        self.skipped_in_a_row = 0
        self.start = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self.start

    def fraction(self) -> float:
        """Return how much of the plan is done, by steps or by time, whichever is further."""
        limit = self.plan.max_seconds
        by_time = self.seconds() / limit if limit else 0.0
        return max(self.report.steps / self.plan.steps, by_time)

    def step(self) -> None:
        """Take one step, or skip it if it is not finite."""
        fraction = self.fraction()
        rate = _rate(self.report.steps, fraction, self.plan)
        for group in self.optimiser.param_groups:
            group["lr"] = self.plan.learning_rate * rate
        for flat in self.flats:
            flat.gradient.zero_()
        self.losses = self.loss(fraction)
        total = torch.stack(list(self.losses.values())).sum()
        total.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.vectors, self.plan.clip_norm)
        self.report.steps += 1
        if bool(torch.isfinite(norm + total.detach())):
            self.optimiser.step()
            decay = rate * self.plan.learning_rate * self.plan.weight_decay
            self.muon.step(rate * self.plan.orthogonal_rate, decay)
            self.average.update()
            self.skipped_in_a_row = 0
        else:
            self._skip()
        if self.plan.max_seconds and self.seconds() >= self.plan.max_seconds:
            self._stop("time")
        elif self.report.steps == self.plan.steps:
            self._stop("steps")

    def validate(self, validate: Callable[[], float]) -> None:
        """Judge the averaged weights, and keep a copy of the best."""
        report = self.report
        with self.average.applied(), torch.no_grad():
            self.module.eval()
            score = validate()
            self.module.train()
        report.history.append((report.steps, score))
        self.lowest = min(self.lowest, score)  # a NaN changes nothing
        if score <= self.lowest + self.plan.slack:
            report.best_step, report.best_validation = report.steps, score
            self.best = self.average.copy()
        elif self.plan.patience and not self.done and _stale(report, self.plan):
            self._stop("patience")

    def progress(self) -> Progress:
        values = {name: value.item() for name, value in self.losses.items()}
        latest = self.report.history[-1][1] if self.report.history else None
        return Progress(
            1.0 if self.done else min(1.0, self.fraction()), self.report.steps, values, latest
        )

    def close(self) -> None:
        """Leave the best averaged weights in the module, also after an interruption."""
        self.average.load(self.best or self.average.average)
        for flat in self.flats:
            flat.release()
        self.module.eval()
        self.report.seconds = self.seconds()

    def _skip(self) -> None:
        self.report.skipped += 1
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row >= _MOST_SKIPPED:
            raise FloatingPointError(
                f"{self.skipped_in_a_row} steps in a row were not finite, "
                f"last at step {self.report.steps}"
            )

    def _stop(self, reason: str) -> None:
        self.report.stopped_by, self.done = reason, True


def _optimisers(flats: Sequence[FlatParameters], plan: Plan) -> tuple[torch.optim.AdamW, Muon]:
    """Return the optimiser of square matrices kept apart, and before it that of all else."""
    groups = [
        {"params": [flat.vector], "weight_decay": plan.weight_decay if flat.kind.is_matrix else 0.0}
        for flat in flats
        if not flat.kind.side
    ]
    stacks = [(flat, (-1, flat.kind.side, flat.kind.side)) for flat in flats if flat.kind.side]
    matrices = [flat.vector.detach().view(shape) for flat, shape in stacks]
    gradients = [flat.gradient.view(shape) for flat, shape in stacks]
    groups = groups or [{"params": []}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True), Muon(matrices, gradients)


def _rate(step: int, fraction: float, plan: Plan) -> float:
    warm = min(1.0, (step + 1) / max(1, plan.warmup))
    return warm * (0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, fraction))))


def _stale(report: Report, plan: Plan) -> bool:
    since = sum(step > report.best_step for step, _ in report.history)
    return since >= plan.patience and report.steps >= plan.patience_after * plan.steps
