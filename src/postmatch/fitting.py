"""Training a table's model: its members side by side, cut off and resumed."""

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from postmatch.calibrating import calibrate
from postmatch.conditioning import MatchedVAE
from postmatch.folders import digest
from postmatch.masks import Mixture, Pattern, UniformCount
from postmatch.tabular import FitOptions, members_of
from postmatch.training import parallel
from postmatch.training.checkpoints import Checkpoints
from postmatch.training.engine import train
from postmatch.training.plan import Plan, Progress, Report
from postmatch.training.schedules import monotonic
from postmatch.training.signals import signals_noted

JUDGED_ROWS = 768


def fit_matched(
    model: MatchedVAE,
    x: Tensor,
    available: Tensor,
    plan: Plan,
    options: FitOptions,
    *,
    seed: int = 0,
    workers: int = 1,
    checkpoints: Path | None = None,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    """Train a table's model on rows with holes; of several members, some at a time.

    Ctrl-C and SIGTERM end it after the step at hand, having saved if there are checkpoints.

    Args:
        model: What ``table_model`` returned.
        x: ``(rows, columns)``.
        available: Which cells are there.
        plan: How long and how fast each member trains; its time limit is for all of them.
        options: What they are trained on.
        seed: Tells which cells are held out, and what is drawn.
        workers: How many members train at a time, each in a thread; it changes no result.
        checkpoints: A folder to save to every minute, and to go on from if it holds anything.
        show: Told of the progress now and then.
    """
    members = members_of(model)
    workers = workers if parallel.num_processes() == 1 else 1  # or messages might cross
    rounds = math.ceil(len(members) / workers)
    each = replace(plan, max_seconds=plan.max_seconds / rounds)
    rows = _Rows(x, available, options, seed)
    with signals_noted() as noted:
        together = _Together(len(members), show, noted)

        def fit(i: int) -> Report:
            place = None if checkpoints is None else checkpoints / f"member-{i}"
            return _fit_member(members[i], rows.of_member(i), each, together.teller(i), place)

        if workers == 1 or len(members) == 1:
            reports = [fit(i) for i in range(len(members)) if not together.stopped()]
        else:
            with ThreadPoolExecutor(workers) as pool:
                reports = list(pool.map(together.guarded(fit), range(len(members))))
    noted.follow()
    score = _calibrated(model, rows)
    return replace(_sum_of(reports), best_validation=score)


def _calibrated(model: MatchedVAE, rows: "_Rows") -> float:
    """Make the members together as sure as they should be, and return their held-out loss."""
    held_out = rows.held_out()
    judged = _judged(held_out)
    if not len(judged):
        return math.inf
    parts = [part[judged] for part in (rows.x, rows.available & ~held_out, held_out)]
    calibrate(model, *parts)
    return held_out_loss(model, *parts)


def _judged(held_out: Tensor) -> Tensor:
    """Return the rows by whose held-out cells a model is judged."""
    return held_out.any(1).nonzero().squeeze(1)[:JUDGED_ROWS]


@final
@dataclass(frozen=True)
class _Rows:
    """What a member is trained on; all members hold the same cells out."""

    x: Tensor
    available: Tensor
    options: FitOptions
    seed: int
    member: int = 0

    def of_member(self, member: int) -> "_Rows":
        return replace(self, member=member)

    def held_out(self) -> Tensor:
        return held_out_cells(self.available, self.options, self.seed)

    def generator(self) -> torch.Generator:
        """Return a fresh source of this member's batches, masks and noise."""
        own = self.seed + 1 + self.member + 1_000 * parallel.rank()
        return torch.Generator(self.x.device).manual_seed(own)

    def fingerprint(self) -> str:
        """Return what tells this training from one on other rows."""
        cells = [t.cpu().contiguous().numpy().tobytes() for t in (self.x, self.available)]
        told = (self.options, self.seed, self.member)
        return digest(b"".join([*cells, repr(told).encode()]))


@final
class _Together:
    """What runs in threads tell together, and how they are told to stop."""

    def __init__(
        self, members: int, show: Callable[[Progress], None] | None, noted: Callable[[], bool]
    ) -> None:
        self.fractions, self.show, self.noted = [0.0] * members, show, noted
        self.lock, self.failed = threading.Lock(), False

    def stopped(self) -> bool:
        return self.failed or self.noted()

    def teller(self, member: int) -> "_Teller":
        def listen(progress: Progress) -> None:
            with self.lock:
                self.fractions[member] = progress.fraction
                if self.show is not None:
                    fraction = sum(self.fractions) / len(self.fractions)
                    self.show(replace(progress, fraction=fraction, member=member))

        return _Teller(listen, self.stopped)

    def guarded(self, fit: Callable[[int], Report]) -> Callable[[int], Report]:
        """Return the same function, after whose failure the others stop too."""

        def run(member: int) -> Report:
            try:
                return fit(member)
            except BaseException:
                self.failed = True
                raise

        return run


@final
@dataclass(frozen=True)
class _Teller:
    """How one member tells of its progress, and how it is told to stop."""

    show: Callable[[Progress], None]
    stop: Callable[[], bool]


def _fit_member(
    model: MatchedVAE, rows: _Rows, plan: Plan, teller: _Teller, folder: Path | None
) -> Report:
    """Train both parts, and keep the weights under which held-out cells are predicted well."""
    x, options = rows.x, rows.options
    generator, held_out = rows.generator(), rows.held_out()
    kept = rows.available & ~held_out
    weight = options.pattern_weight
    masks = Mixture((UniformCount(), Pattern(kept)), (1.0 - weight, weight))
    batch_size = math.ceil(min(options.batch_size, len(x)) / parallel.num_processes())
    kl_weight = monotonic(options.beta_warmup)

    def loss(fraction: Tensor) -> dict[str, Tensor]:
        drawn = torch.randint(len(x), (batch_size,), generator=generator, device=x.device)
        seen = kept[drawn]
        observed = masks.sample(seen.shape, generator)
        beta = kl_weight(fraction)
        return model.losses(x[drawn], seen, observed, beta=beta, generator=generator)

    judged = _judged(held_out)

    def validate() -> float:
        return held_out_loss(model, x[judged], kept[judged], held_out[judged])

    return train(
        model,
        loss,
        plan,
        validate=validate if len(judged) else None,  # too few cells to keep any back
        show=teller.show,
        generators=[generator],
        checkpoints=None if folder is None else Checkpoints(folder, rows.fingerprint()),
        stop=teller.stop,
    )


def held_out_cells(available: Tensor, options: FitOptions, seed: int) -> Tensor:
    """Return which cells no member learns from, so that all of them can be judged together.

    They are chosen on the CPU, so that they are the same on every device.
    """
    uniform = torch.rand(available.shape, generator=torch.Generator().manual_seed(seed))
    return available & (uniform < options.held_out).to(available.device)


def _sum_of(reports: Sequence[Report]) -> Report:
    """Return what several runs did together."""
    return Report(
        steps=sum(r.steps for r in reports),
        seconds=sum(r.seconds for r in reports),
        stopped_by=reports[-1].stopped_by,
        best_step=sum(r.best_step for r in reports),
        best_validation=sum(r.best_validation for r in reports) / len(reports),
        skipped=sum(r.skipped for r in reports),
        history=[entry for r in reports for entry in r.history],
    )


@torch.no_grad()
def held_out_loss(model: MatchedVAE, x: Tensor, seen: Tensor, held_out: Tensor) -> float:
    r"""Return the mean of :math:`-\log p_{\theta\phi}(x_i \mid x_o)` over held-out cells i."""
    decoded = model.given(x, seen).marginals(num_samples=16)
    log_each = decoded.log_prob(x.masked_fill(~held_out, 0.0))  # (samples, batch, columns)
    log_cell = log_each.logsumexp(0) - torch.tensor(float(len(log_each))).log()
    return float(-log_cell[held_out].mean())
