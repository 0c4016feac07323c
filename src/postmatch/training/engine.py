"""The only training loop of the package."""

import math
import time
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from postmatch.training import parallel
from postmatch.training.checkpoints import Checkpoints
from postmatch.training.plan import Losses, Plan, Progress, Report
from postmatch.training.run import Run
from postmatch.training.sources import StreamedRows

_LOG_EVERY = 50  # steps


def train(
    module: nn.Module,
    loss: Callable[[Tensor], Losses],
    plan: Plan,
    *,
    validate: Callable[[], float] | None = None,
    show: Callable[[Progress], None] | None = None,
    generators: Sequence[torch.Generator] = (),
    source: StreamedRows | None = None,
    checkpoints: Checkpoints | None = None,
    stop: Callable[[], bool] | None = None,
) -> Report:
    """Train the parameters of ``module`` that require a gradient, and leave their average in it.

    A run with checkpoints goes on from the newest, if there is one, and ends with the same weights,
    bit for bit on a CPU, as a run that was never cut off: unless time ended it, or what the loss
    draws from is not all in ``generators``.

    A step that is not finite is skipped. After 50 in a row, the run goes on from its averaged
    weights at half the rates, with a warning; thrice at most, and only if steps were finite before.

    Args:
        module: What is trained.
        loss: From the fraction of training done (0 to 1, in a tensor on the module's device) to
            the losses of a fresh batch, whose sum is minimised. On a GPU it is recorded after a few
            steps, so all that differs between steps must come from tensors and generators.
        plan: How long and how fast.
        validate: The score to minimise, computed with the averaged weights; the best ones are kept.
        show: Told of the progress now and then.
        generators: What the loss draws from; torch's global state on the CPU if there are none.
        source: Rows that go on before each step, if the loss reads them from a stream rather than
            draws them from tensors in memory.
        checkpoints: Where to save the state of the run.
        stop: Asked after every step whether the run shall save and end early.

    Raises:
        FloatingPointError: If the loss or its gradient stays non-finite.
        ValueError: If the checkpoints are those of another run.
    """
    run = Run(module, loss, plan, generators, source)
    try:
        saver = _Saver(run, checkpoints)
        if validate is not None and plan.slack and not run.report.history:
            run.validate(validate)  # untrained
        while not run.done:
            run.step()
            if validate is not None and (run.done or run.report.steps % plan.validate_every == 0):
                run.validate(validate)
            if parallel.any_of(stop is not None and stop()) and not run.done:
                saver.save()
                run.report.stopped_by = "interruption"
                break
            saver.save_if_due()
            saver.log_if_due()
            if show is not None and (run.done or run.report.steps % 10 == 0):
                show(run.progress())
    finally:
        run.close()
    return run.report


@final
class _Saver:
    """Saves a run now and then; first of all, puts it where an earlier one was cut off."""

    def __init__(self, run: Run, checkpoints: Checkpoints | None) -> None:
        self.run, self.checkpoints, self.saved_at = run, checkpoints, time.monotonic()
        parallel.wait_for_all()  # the first may still be saving an earlier run
        state = None if checkpoints is None else checkpoints.load()
        if state is not None and checkpoints is not None:
            try:
                run.restore(state)
            except ValueError as error:
                raise ValueError(f"{checkpoints.folder}: {error}") from None
            if parallel.rank() == 0:
                checkpoints.cut_log(run.report.steps)

    def save(self) -> None:
        if self.checkpoints is not None and parallel.rank() == 0:
            self.checkpoints.save(self.run.report.steps, self.run.state())
            self.saved_at = time.monotonic()

    def save_if_due(self) -> None:
        if self.checkpoints is not None:
            waited = time.monotonic() - self.saved_at
            if self.run.done or waited >= self.checkpoints.every_seconds:
                self.save()

    def log_if_due(self) -> None:
        steps = self.run.report.steps
        if self.checkpoints is None or parallel.rank() != 0:
            return
        if self.run.done or steps % _LOG_EVERY == 0:
            now = self.run.progress()
            line = {"step": steps, "seconds": round(now.seconds, 3), **now.losses}
            line |= {} if now.validation is None else {"validation": now.validation}
            self.checkpoints.log({k: v if math.isfinite(v) else None for k, v in line.items()})
