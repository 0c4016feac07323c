"""One training run: its state, and what one step does to it."""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from postmatch.folders import digest, to_json
from postmatch.training import parallel
from postmatch.training.checkpoints import State
from postmatch.training.plan import Losses, Plan, Progress, Report
from postmatch.training.schedules import rate_schedule
from postmatch.training.sources import StreamedRows
from postmatch.training.update import Update

_MOST_SKIPPED = 50  # non-finite steps in a row before the run goes back to its averaged weights
_MOST_RETURNS = 3  # to these before giving up


@final
class Run:
    """A training run in progress: its whole state, and what one step does to it.

    Args:
        module: What is trained; its parameters are views of long vectors until :meth:`close`.
        loss: From the fraction of training done to the losses of a fresh batch.
        plan: How long and how fast.
        generators: What the loss draws from; torch's global state on the CPU if there are none.
        source: Rows that go on before each step, if the loss reads them from a stream.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor], Losses],
        plan: Plan,
        generators: Sequence[torch.Generator] = (),
        source: StreamedRows | None = None,
    ) -> None:
        self.source = source
        self.generators = list(generators) or [torch.default_generator]
        self.module, self.loss, self.plan = module.train(), loss, plan
        self.report, self.done, self.losses = Report(), False, Losses()
        self.update = Update(module, loss, plan, self.generators)
        self.average = self.update.average
        # A GPU works ahead of the host; asking it how steps went makes it wait.
        self.ask_every = 50 if self.update.device.type == "cuda" else 1
        self.best: list[Tensor] = []
        self.lowest = math.inf
        self.taken = 0  # finite steps when the run last went back
        self.start = time.monotonic()

    def seconds(self) -> float:
        """Return how long the run has taken, before it was resumed and since."""
        return time.monotonic() - self.start

    def fraction(self) -> float:
        """Return how much of the plan is done, by steps or by time, whichever is further."""
        limit = self.plan.max_seconds
        by_time = self.seconds() / limit if limit else 0.0
        return max(self.report.steps / self.plan.steps, by_time)

    def step(self) -> None:
        """Take one step, or skip it if it is not finite."""
        fraction = parallel.agreed(self.fraction())
        if self.source is not None:
            self.source.advance()
        rate = _rate(self.report.steps, fraction, self.plan) * 0.5**self.report.returns
        self.losses = self.update(fraction, rate)
        self.report.steps += 1
        limit = self.plan.max_seconds
        if limit and parallel.agreed(self.seconds()) >= limit:
            self._stop("time")
        elif self.report.steps == self.plan.steps:
            self._stop("steps")
        if self.done or self.report.steps % self.ask_every == 0:
            self._count_skipped()

    def validate(self, validate: Callable[[], float]) -> None:
        """Judge the averaged weights, and keep a copy of the best."""
        report = self.report
        # Held-out batches have other shapes, and are too few to compile for.
        eager = torch.compiler.set_stance("force_eager")
        with self.average.applied(), torch.no_grad(), eager:
            self.module.eval()
            score = parallel.agreed(validate())
            self.module.train()
        report.history.append((report.steps, score))
        self.lowest = min(self.lowest, score)  # a NaN changes nothing
        gained = max(0.0, report.history[0][1] - self.lowest)
        if score <= self.lowest + self.plan.slack * gained:
            report.best_step, report.best_validation = report.steps, score
            self.best = self.average.copy()
        elif self.plan.patience and not self.done and _stale(report, self.plan):
            self._stop("patience")

    def progress(self) -> Progress:
        """Return where the run stands."""
        values = {name: value.item() for name, value in self.losses.items()}
        at, latest = self.report.history[-1] if self.report.history else (None, None)
        fraction = 1.0 if self.done else min(1.0, self.fraction())
        return Progress(fraction, self.report.steps, self.seconds(), values, latest, at)

    def close(self) -> None:
        """Leave the best averaged weights in the module, also after an interruption."""
        self.average.load(self.best or self.average.average)
        self.update.close()
        self.module.eval()
        self.report.seconds = self.seconds()

    def state(self) -> State:
        """Return copies of all that decides what comes next."""
        report = self.report
        numbers = [report.best_validation, self.lowest, self.seconds()]
        tensors = {
            **self._named(),
            "numbers": torch.tensor(numbers, dtype=torch.float64),  # JSON knows no infinities
            "history": torch.tensor(report.history, dtype=torch.float64).view(-1, 2),
            **{f"generator.{i}": g.get_state() for i, g in enumerate(self.generators)},
            **{f"best.{i}": value for i, value in enumerate(self.best)},
        }
        facts = {
            "fingerprint": self.fingerprint(),
            "devices": [generator.device.type for generator in self.generators],
            "steps": report.steps,
            "best_step": report.best_step,
            "returns": report.returns,
            "taken": self.taken,
            "average_updates": self.average.updates,
            "position": None if self.source is None else self.source.position(),
            "done": self.done,
            "stopped_by": report.stopped_by,
        }
        return State({name: t.detach().cpu().clone() for name, t in tensors.items()}, facts)

    def restore(self, state: State) -> None:
        """Go on from a state of the same run.

        Raises:
            ValueError: If it is the state of another module or another plan.
        """
        tensors, facts = state
        if facts["fingerprint"] != self.fingerprint():
            raise ValueError("the state is that of another model, another plan or other data")
        for name, value in self._named().items():
            value.copy_(tensors[name])
        for i, generator in enumerate(self.generators):
            if facts["devices"][i] == generator.device.type and parallel.rank() == 0:
                generator.set_state(tensors[f"generator.{i}"])
            else:  # from CPU to GPU or back, or in another process: other noise, from here on
                generator.manual_seed(facts["steps"] + parallel.rank())
        if self.source is not None:
            self.source.seek(*facts["position"])
        report = self.report
        report.steps, report.best_step = facts["steps"], facts["best_step"]
        report.skipped = int(self.update.skipped)
        report.returns, self.taken = facts.get("returns", 0), facts.get("taken", 0)
        report.stopped_by, self.done = facts["stopped_by"], facts["done"]
        report.history = [(int(step), score) for step, score in tensors["history"].tolist()]
        report.best_validation, self.lowest, seconds = tensors["numbers"].tolist()
        self.start = time.monotonic() - seconds
        self.average.updates = facts["average_updates"]
        count = sum(name.startswith("best.") for name in tensors)
        like = self.average.average
        self.best = [tensors[f"best.{i}"].to(like[i].device) for i in range(count)]

    def fingerprint(self) -> str:
        """Return what a state must share with the run that goes on from it."""
        shapes = {name: list(p.shape) for name, p in self.module.named_parameters()}
        plan = dataclasses.asdict(self.plan)
        return digest(to_json({"shapes": shapes, "plan": plan}))

    def _named(self) -> dict[str, Tensor]:
        """Return the tensors that training changes, by name, as they are and not copied."""
        buffers = {f"buffer.{name}": value for name, value in _buffers(self.module).items()}
        return self.update.named() | buffers

    def _count_skipped(self) -> None:
        report = self.report
        report.skipped = int(self.update.skipped)
        in_a_row = int(self.update.in_a_row)
        if in_a_row < _MOST_SKIPPED:
            return
        what = f"{in_a_row} steps in a row were not finite, last at step {report.steps}"
        if report.steps - report.skipped == self.taken or report.returns == _MOST_RETURNS:
            raise FloatingPointError(what)
        warnings.warn(f"{what}; going on from the averaged weights at half the rates", stacklevel=4)
        self.taken = report.steps - report.skipped
        self.update.return_to_average()
        report.returns += 1

    def _stop(self, reason: str) -> None:
        self.report.stopped_by, self.done = reason, True


def _rate(step: int, fraction: float, plan: Plan) -> float:
    warm = min(1.0, (step + 1) / max(1, plan.warmup))
    return warm * rate_schedule(plan.schedule, plan.final_rate)(fraction)


def _stale(report: Report, plan: Plan) -> bool:
    since = sum(step > report.best_step for step, _ in report.history)
    return since >= plan.patience and report.steps >= plan.patience_after * plan.steps


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a state_dict holds: others are constants."""
    kept = module.state_dict().keys()
    return {name: value for name, value in module.named_buffers() if name in kept}
