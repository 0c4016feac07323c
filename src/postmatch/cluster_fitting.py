"""Training of a VAE with clusters: its codes first, groups of them, and then all together.

Few of the ways to start end well, and which do shows in the bound on the data alone: so several
starts are tried where it must be, and no label is ever asked for.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution

from postmatch.cluster_starts import NEIGHBOURS, Start, StartKind, start_of
from postmatch.distributions.clusters import GaussianClusters
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Progress, Report
from postmatch.vaes.base import log_likelihood
from postmatch.vaes.vade import VaDE, independent_gaussians

_AT_ONCE = 2_000  # rows
_EMPTY = 0.1  # a cluster is lost that has less than this part of an equal share

Read = Callable[[Tensor], Tensor]
Vary = Callable[[Tensor, torch.Generator], Tensor]


@final
@dataclass(frozen=True)
class ClusterPlan:
    """How long and how fast.

    Args:
        codes: Of encoder and decoder without noise, whose codes the clusters start from; None if
            :func:`fit_codes` has trained them already.
        clusters: Of everything together.
        groups: Of everything together before that, each row in the cluster of its group, so that
            groups of any shape become clusters; None to leave it out.
        batch_size: Rows per step.
        start: What the groups are: see :func:`postmatch.cluster_starts.start_of`.
        neighbours: Of a code, in the graph that connected groups come from.
        starts: Ways to group the codes that are tried, of which the best is taken.
        attempts: Trainings of the clusters, at most; more than one if clusters were lost.
        certainty: How much it counts that z tells the cluster: see :meth:`VaDE.loss`.
    """

    codes: Plan | None
    clusters: Plan
    groups: Plan | None = None
    batch_size: int = 128
    start: StartKind = "mixture"
    starts: int = 10
    attempts: int = 3
    certainty: float = 0.0
    neighbours: int = NEIGHBOURS


@final
@dataclass
class ClusterReport:
    """What happened in a training.

    Args:
        codes: That of encoder and decoder, if it was part of it.
        groups: Those with rows kept in their groups, one per attempt if there are any.
        clusters: Those of everything together, one per attempt.
        losses: The bound that each attempt ended with, of all rows.
        shares: The part of the rows in each cluster, of each attempt.
        kept: Which attempt was kept.
    """

    codes: Report | None = None
    groups: list[Report] = field(default_factory=list)
    clusters: list[Report] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    shares: list[list[float]] = field(default_factory=list)
    kept: int = 0


def fit_clusters(
    model: VaDE,
    rows: Tensor,
    plan: ClusterPlan,
    *,
    available: Tensor | None = None,
    read: Read = lambda x: x,
    vary: Vary | None = None,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> ClusterReport:
    """Train a VAE with clusters.

    An attempt that lost a cluster is followed by another from the same codes and other groups; the
    one with the best bound is kept, of those that lost the fewest clusters.

    Args:
        model: Untrained, on the device of the rows.
        rows: As they are stored.
        plan: How long.
        available: Which cells of the rows are there, in the shape of what the model reads; None
            for all.
        read: From rows as they are stored to what the model reads.
        vary: Gives each batch of these another form that they might as well have had, which is
            encoded in its place; what is decoded is the row itself.
        seed: Of batches, noise and mixtures.
        show: Told of the progress of each part.
    """
    generator = torch.Generator(rows.device).manual_seed(seed)
    batches = _Batches(model, rows, available, read, vary, plan.batch_size, generator)
    groups = torch.zeros(len(rows), dtype=torch.long, device=rows.device)

    def grouped(_: Tensor) -> Losses:
        batch = batches.draw()
        return {"groups": batches.loss(batch, groups[batch.drawn], plan.certainty)}

    def bound(_: Tensor) -> Losses:
        return {"vae": batches.loss(batches.draw(), None, plan.certainty)}

    how = {"generators": [generator], "show": show}
    report = ClusterReport()
    if plan.codes is not None:
        report.codes = _fit_codes(batches, plan.codes, show)
    codes, start = codes_of(model, rows, read, available), _copy(model)
    found: list[tuple[int, float, dict[str, Tensor]]] = []
    for attempt in range(plan.attempts):
        model.load_state_dict(start)
        groups.copy_(torch.from_numpy(start_clusters(model, codes, plan, seed + attempt).groups))
        if plan.groups is not None:
            report.groups.append(train(model, grouped, plan.groups, **how))  # type: ignore[arg-type]
        report.clusters.append(train(model, bound, plan.clusters, **how))  # type: ignore[arg-type]
        loss, shares = _outcome(model, rows, read, seed, available)
        lost = int(sum(share < _EMPTY / len(shares) for share in shares))
        report.losses.append(loss)
        report.shares.append(shares)
        found.append((lost, loss, _copy(model)))
        if not lost:
            break
    report.kept = min(range(len(found)), key=lambda i: found[i][:2])
    model.load_state_dict(found[report.kept][2])
    return report


def fit_codes(
    model: VaDE,
    rows: Tensor,
    plan: Plan,
    *,
    batch_size: int = 128,
    available: Tensor | None = None,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    """Train encoder and decoder only, without noise; see :func:`fit_clusters`."""
    generator = torch.Generator(rows.device).manual_seed(seed)
    batches = _Batches(model, rows, available, lambda x: x, None, batch_size, generator)
    return _fit_codes(batches, plan, show)


class _Batch(NamedTuple):
    drawn: Tensor
    x: Tensor
    available: Tensor | None
    posterior: Distribution


@final
@dataclass(frozen=True)
class _Batches:
    """Rows at random, encoded; see :func:`fit_clusters`."""

    model: VaDE
    rows: Tensor
    available: Tensor | None
    read: Read
    vary: Vary | None
    batch_size: int
    generator: torch.Generator

    def draw(self) -> _Batch:
        count, device = len(self.rows), self.rows.device
        shape = (min(self.batch_size, count),)
        drawn = torch.randint(count, shape, generator=self.generator, device=device)
        x = self.read(self.rows[drawn])
        there = None if self.available is None else self.available[drawn]
        seen = x if self.vary is None else self.vary(x, self.generator)
        return _Batch(drawn, x, there, self.model.encode(seen, there))

    def loss(self, batch: _Batch, clusters: Tensor | None, certainty: float) -> Tensor:
        return self.model.loss(
            batch.x,
            available=batch.available,
            posterior=batch.posterior,
            generator=self.generator,
            clusters=clusters,
            certainty=certainty,
        ).mean()


def _fit_codes(batches: _Batches, plan: Plan, show: Callable[[Progress], None] | None) -> Report:
    def reconstruct(_: Tensor) -> Losses:
        batch = batches.draw()
        decoded = batches.model.decode(independent_gaussians(batch.posterior).loc)
        return {"codes": -log_likelihood(decoded, batch.x, batch.available).mean()}

    generators = [batches.generator]
    return train(batches.model.body, reconstruct, plan, generators=generators, show=show)


@torch.no_grad()
def codes_of(
    model: VaDE, rows: Tensor, read: Read = lambda x: x, available: Tensor | None = None
) -> NDArray[np.float64]:
    """Return the means of q(z | x) of all rows, ``(rows, latent_size)``."""
    encode = model.eval().encode
    means = [
        independent_gaussians(encode(read(part), there)).loc
        for part, there in _parts(rows, available)
    ]
    return torch.cat(means).double().cpu().numpy()


def start_clusters(
    model: VaDE, codes: NDArray[np.float64], plan: ClusterPlan, seed: int = 0
) -> Start:
    """Let clusters start as groups of codes, and return these."""
    like = model.mean
    about = (len(model.logits), plan.starts, seed, like.device, plan.neighbours)
    start = start_of(plan.start, codes, *about)
    parameters = (start.weights, start.mean, start.scale)
    model.set_clusters(
        *(torch.as_tensor(p, dtype=like.dtype, device=like.device) for p in parameters)
    )
    return start


@torch.no_grad()
def _outcome(
    model: VaDE, rows: Tensor, read: Read, seed: int, available: Tensor | None = None
) -> tuple[float, list[float]]:
    """Return the mean bound of all rows, and the part of them in each cluster."""
    generator, prior, total = torch.Generator(rows.device).manual_seed(seed), model.prior(), 0.0
    assert isinstance(prior, GaussianClusters)
    counts = torch.zeros(prior.num_clusters, dtype=torch.long)
    for part, there in _parts(rows, available):
        x = read(part)
        posterior = model.eval().encode(x, there)
        loss = model.loss(x, available=there, posterior=posterior, generator=generator)
        total += float(loss.double().sum())
        best = prior.expected_log_joint(independent_gaussians(posterior)).argmax(-1)
        counts += torch.bincount(best.cpu(), minlength=prior.num_clusters)
    return total / len(rows), (counts / len(rows)).tolist()


def _parts(rows: Tensor, available: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield some rows at a time, and what is there of them."""
    parts = torch.split(rows, _AT_ONCE)
    there = [None] * len(parts) if available is None else torch.split(available, _AT_ONCE)
    yield from zip(parts, there, strict=True)


def _copy(model: VaDE) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}
