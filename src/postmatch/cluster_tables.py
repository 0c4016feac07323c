"""Clusters of the rows of a table, holes and all: frames in, probabilities out."""

import copy
import numbers
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import config_context
from torch import Tensor

from postmatch.cluster_counts import count_clusters
from postmatch.cluster_fitting import ClusterPlan, codes_of, fit_clusters, fit_codes
from postmatch.cluster_starts import StartKind
from postmatch.clustering import SAMPLES, cluster_probabilities
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import mixture_net
from postmatch.distributions.columns import ColumnSpec
from postmatch.masks import Mixture, Pattern, UniformCount
from postmatch.models import device_of, learnable
from postmatch.nets.columns import ColumnFeatures
from postmatch.nets.mlp import ResidualMLP
from postmatch.partial import ClusteredHead, DiagonalHead, FeatureEncoder
from postmatch.randomness import seeded
from postmatch.tables import Table
from postmatch.tables.table import Ordered
from postmatch.threads import for_each, one_thread
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Progress
from postmatch.vaes.table import TableVAE
from postmatch.vaes.vade import VaDE, independent_gaussians

Floats = NDArray[np.float64]
Show = Callable[[Progress], None]
NumClusters = int | Literal["auto"]
_FEW_ROWS = 2_500
_QUICK_STEPS, _QUICK_SECONDS = 250, 20.0
_NARROW = -3.0  # what softplus makes the first scale of q(z | x) of: 0.05, far below that of codes
_PATTERN_WEIGHT = 0.3  # how often the holes of another row are the mask
_AT_ONCE = 256  # rows that are answered together
_LEAST_CONNECTED = 30  # rows, for a graph of neighbours


@final
@dataclass(frozen=True)
class ClusterSizes:
    """Sizes and steps of a table's model with clusters.

    Args:
        latent_size: Length of z.
        width: Hidden units of encoders, decoder and masked network.
        components: Of the mixture of each entry of z given a cluster and a part of a row.
        batch_size: Rows per step.
        steps: Of the codes, of the clusters and of the match.
        max_seconds: Of all of them together; 0 for no limit.
        starts: Mixtures that are tried as a start.
    """

    latent_size: int
    width: int
    components: int
    batch_size: int
    steps: tuple[int, int, int]
    max_seconds: float
    starts: int


def sizes_for(
    columns: int,
    rows: int,
    *,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    quick: bool = False,
) -> ClusterSizes:
    """Return what suits a table of so many columns and rows."""
    for name, limit in (("max_steps", max_steps), ("max_seconds", max_seconds)):
        if limit is not None and not limit > 0:
            raise ValueError(f"{name} must be positive, got {limit}")
    few = rows <= _FEW_ROWS
    steps = (500, 600, 1_000) if few else (1_000, 1_200, 2_000)
    if quick:
        steps = (_QUICK_STEPS, _QUICK_STEPS, 2 * _QUICK_STEPS)
    if max_steps is not None:
        steps = (max_steps, max_steps, max_steps)
    seconds = (_QUICK_SECONDS if quick else 0.0) if max_seconds is None else max_seconds
    return ClusterSizes(
        latent_size=min(10, max(2, columns)),
        width=128 if columns > 40 else 64,
        components=3,
        batch_size=128 if few else 256,
        steps=steps,
        max_seconds=seconds,
        starts=10 if few else 3,
    )


def clustered_model(
    specs: Sequence[ColumnSpec], sizes: ClusterSizes, num_clusters: int
) -> MatchedVAE:
    """Return an untrained VaDE of these columns, with a partial posterior that tells clusters.

    A number has one Gaussian given z, rather than a mixture, so that z must tell groups apart.
    """
    s, features = sizes, ColumnFeatures(specs)

    def net() -> ResidualMLP:
        return ResidualMLP(features.num_features, s.width, 1)

    head = DiagonalHead(s.width, s.latent_size)
    with torch.no_grad():  # codes are learned without noise, which must not swamp them afterwards
        head.linear.weight[s.latent_size :] *= 0.1
        head.linear.bias[s.latent_size :] = _NARROW
    body = TableVAE(
        specs,
        encoder=FeatureEncoder(features, net(), head),
        prior_net=mixture_net(s.latent_size, 1, s.latent_size, 1).requires_grad_(False),  # unused
        decoder=ResidualMLP(s.latent_size, s.width, 1),
        decoder_size=s.width,
        num_components=1,
    )
    mixture = mixture_net(s.latent_size, s.components, s.width, 1, s.width)
    partial = FeatureEncoder(features, net(), ClusteredHead(s.width, num_clusters, mixture))
    return MatchedVAE(VaDE(body, s.latent_size, num_clusters), partial)


def fit_table_clusters(
    data: Any,
    num_clusters: NumClusters = "auto",
    *,
    max_clusters: int = 10,
    start: StartKind = "mixture",
    categorical: Collection[str] = (),
    ordered: Ordered = (),
    numeric: Collection[str] = (),
    ignore: Collection[str] = (),
    missing: Collection[str] = (),
    max_steps: int | None = None,
    max_seconds: float | None = None,
    quick: bool = False,
    seed: int = 0,
    device: str | torch.device = "auto",
    show: Show | None = None,
) -> "ClusteredTable":
    """Learn a table's columns and the clusters of its rows, holes and all.

    Encoder and decoder are trained first, then the clusters with them, and then the posterior given
    any part of a row. Clusters are numbered from 0, the largest first.

    Args:
        data: As for :func:`postmatch.fit_table`, whose other arguments these are, too.
        num_clusters: How many, or ``auto``: see
            :func:`~postmatch.cluster_counts.count_clusters`.
        max_clusters: How many ``auto`` tries.
        start: See :func:`~postmatch.cluster_starts.start_of`.
        categorical: Columns of levels without order.
        ordered: Columns of levels with an order.
        numeric: Columns of numbers.
        ignore: Columns that tell nothing of clusters.
        missing: Texts that mean a missing cell.
        max_steps: Train each of the three parts for so many steps at most.
        max_seconds: Train no longer than this, all together.
        quick: Train for seconds rather than a minute, 20 of them at most.
        seed: The same seed gives the same model, on the same machine, unless time ran out.
        device: Where to train and answer; ``auto`` is a GPU if there is one.
        show: Told of the progress now and then.
    """
    table = Table.fit(
        data,
        categorical=categorical,
        ordered=ordered,
        numeric=numeric,
        ignore=ignore,
        missing=missing,
    )
    x, available = (part.to(device_of(device)) for part in learnable(table, data))
    _check(num_clusters, max_clusters, start, len(x))
    limits: dict[str, Any] = {"max_steps": max_steps, "max_seconds": max_seconds, "quick": quick}
    sizes = sizes_for(len(table.specs), len(x), **limits)
    began = time.monotonic()
    fitting = _Fitting(table.specs, x, available, sizes, start, seed, show)
    # Mixtures are fitted to codes, which are NumPy's whatever the data were.
    with seeded(seed), one_thread(), config_context(array_api_dispatch=False):
        codes, trained = fitting.codes()
        number = num_clusters
        if number == "auto":
            there = available.sum(1).cpu().numpy()
            fullest = there >= np.median(there)  # rows with holes lie elsewhere, in heaps of theirs
            number = count_clusters(codes[fullest], max_clusters, seed)
        model = fitting.clusters(trained, int(number))
        fitting.match(model)
    seconds = round(time.monotonic() - began, 3)
    facts = {"rows": len(x), "clusters": int(number), "seconds": seconds, "seed": seed}
    fitted = ClusteredTable(table, model, {**facts, "notes": list(table.notes)})
    _largest_first(model, fitted.told(x, available, seed=seed))
    return fitted


@final
class ClusteredTable:
    """A fitted table and the clusters of its rows.

    Rows are answered one by one: neither their order nor their company changes an answer.

    Args:
        table: What was learned of the columns.
        model: A VaDE with its partial posterior, trained on the table's x.
        facts: How it was made, as plain JSON.
    """

    def __init__(self, table: Table, model: MatchedVAE, facts: dict[str, Any]) -> None:
        self.table, self.model, self.facts = table, model.eval(), facts

    @property
    def num_clusters(self) -> int:
        """How many clusters there are."""
        return int(self.facts["clusters"])

    def probabilities(self, data: Any, *, num_samples: int = SAMPLES, seed: int = 0) -> Floats:
        r"""Return :math:`q(c \mid x_o)` of each row, ``(rows, clusters)``."""
        x, observed = self.table.encode(data)
        return self.told(x, observed, num_samples=num_samples, seed=seed).numpy()

    @torch.no_grad()
    def places(self, data: Any) -> Floats:
        """Return the mean of q(z | x) of each row, ``(rows, latent_size)``."""
        x, observed = (part.to(self._device) for part in self.table.encode(data))
        latent = independent_gaussians(self.model.vae.encode(x, observed))
        places: Floats = latent.loc.double().cpu().numpy()
        return places

    @one_thread()
    def told(
        self, x: Tensor, observed: Tensor, *, num_samples: int = SAMPLES, seed: int = 0
    ) -> Tensor:
        """Return the probabilities for encoded rows, in float64.

        In double precision, not even the last digits tell what rows came along.
        """
        device = torch.device("cpu") if self._device.type == "mps" else self._device
        precise = copy.deepcopy(self.model).to(device, torch.float64)
        found = torch.empty(len(x), self.num_clusters, dtype=torch.float64)

        def fill(rows: Tensor) -> None:
            here, seen = x[rows].to(device, torch.float64), observed[rows].to(device)
            found[rows] = cluster_probabilities(precise, here, seen, num_samples, seed).cpu()

        for_each(fill, torch.split(torch.arange(len(x)), _AT_ONCE))
        return found

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


@final
@dataclass(frozen=True)
class _Fitting:
    """The three parts of a training; see :func:`fit_table_clusters`."""

    specs: Sequence[ColumnSpec]
    x: Tensor
    available: Tensor
    sizes: ClusterSizes
    start: StartKind
    seed: int
    show: Show | None

    def codes(self) -> tuple[Floats, dict[str, Tensor]]:
        """Return codes of all rows, and the weights that make them."""
        vade = self._untrained(1).vae
        assert isinstance(vade, VaDE)
        fit_codes(
            vade,
            self.x,
            self._plan(0),
            batch_size=self.sizes.batch_size,
            available=self.available,
            seed=self.seed,
            show=self._part(0),
        )
        return codes_of(vade, self.x, available=self.available), vade.body.state_dict()

    def clusters(self, trained: dict[str, Tensor], num_clusters: int) -> MatchedVAE:
        """Return a model whose clusters are trained, from codes that are."""
        model = self._untrained(num_clusters)
        assert isinstance(model.vae, VaDE)
        model.vae.body.load_state_dict(trained)
        plan = ClusterPlan(
            None,
            self._plan(1),
            batch_size=self.sizes.batch_size,
            start=self.start,
            starts=self.sizes.starts,
            attempts=2,
        )
        how: dict[str, Any] = {"seed": self.seed, "show": self._part(1)}
        fit_clusters(model.vae, self.x, plan, available=self.available, **how)
        model.vae.requires_grad_(False)
        return model

    def match(self, model: MatchedVAE) -> None:
        """Train the partial posterior."""
        generator = torch.Generator(self.x.device).manual_seed(self.seed)
        weights = (1.0 - _PATTERN_WEIGHT, _PATTERN_WEIGHT)
        masks = Mixture((UniformCount(), Pattern(self.available)), weights)
        shape = (min(self.sizes.batch_size, len(self.x)),)

        def loss(_: Tensor) -> Losses:
            drawn = torch.randint(len(self.x), shape, generator=generator, device=self.x.device)
            x, available = self.x[drawn], self.available[drawn]
            observed = masks.sample(x.shape, generator)
            return model.losses(x, available, observed, train_vae=False, generator=generator)

        how: dict[str, Any] = {"generators": [generator], "show": self._part(2)}
        train(model.partial, loss, self._plan(2), **how)

    def _untrained(self, num_clusters: int) -> MatchedVAE:
        return clustered_model(self.specs, self.sizes, num_clusters).to(self.x.device)

    def _plan(self, part: int) -> Plan:
        steps, seconds = self.sizes.steps, self.sizes.max_seconds
        return Plan(
            steps[part],
            learning_rate=3e-3,
            warmup=min(50, steps[part] // 10),
            average=0.99,
            max_seconds=seconds * steps[part] / (sum(steps) + steps[1]),  # may be tried twice
        )

    def _part(self, part: int) -> Show | None:
        """Return what shows the progress of one part as that of all, never going back."""
        if self.show is None:
            return None
        show, steps, furthest = self.show, self.sizes.steps, 0.0

        def tell(progress: Progress) -> None:
            nonlocal furthest
            done = (sum(steps[:part]) + progress.fraction * steps[part]) / sum(steps)
            furthest = max(furthest, done)
            show(replace(progress, fraction=furthest))

        return tell


@torch.no_grad()
def _largest_first(model: MatchedVAE, probabilities: Tensor) -> None:
    """Renumber clusters by how many rows they have, in all that knows their numbers."""
    counts = torch.bincount(probabilities.argmax(1), minlength=probabilities.shape[1])
    order = counts.argsort(descending=True, stable=True).to(next(model.parameters()).device)
    assert isinstance(model.vae, VaDE)
    assert isinstance(model.partial, FeatureEncoder)
    head = model.partial.head
    assert isinstance(head, ClusteredHead)
    parts = (model.vae.logits, model.vae.mean, model.vae.raw_scale)
    for values in (*parts, head.linear.weight, head.linear.bias, head.told):
        values.copy_(values[order].clone())


def _check(num_clusters: NumClusters, max_clusters: int, start: StartKind, rows: int) -> None:
    if num_clusters != "auto":
        _check_count("n_clusters", num_clusters, 1, " or 'auto'")
    _check_count("max_clusters", max_clusters, 2)
    if start not in get_args(StartKind):
        raise ValueError(f"start must be one of {', '.join(get_args(StartKind))}, got {start!r}")
    least = 2 if num_clusters == "auto" else num_clusters
    if rows < least:
        raise ValueError(f"n_clusters must be at most the number of rows, n_samples={rows}")
    if start == "connected" and rows < _LEAST_CONNECTED:
        raise ValueError(
            f"start must be mixture for fewer than {_LEAST_CONNECTED} rows, got n_samples={rows}"
        )


def _check_count(name: str, value: Any, least: int, otherwise: str = "") -> None:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < least:
        wanted = f"a whole number from {least}{otherwise}"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")
