"""Where clusters start: from codes to groups of them, before anything is trained together.

A mixture that is fitted to codes cuts a long, bent group in two and takes two close ones for one,
and training seldom mends it. On a graph of nearest neighbours a walker rarely leaves a group, long
or bent as it may be: so codes can be put where their walkers go (Coifman and Lafon, 2006), and
be told apart there.
"""

import warnings
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import eigsh
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

StartKind = Literal["mixture", "connected"]
Array = NDArray[np.float64]
Whole = NDArray[np.int64]
_ROWS = 20_000  # of which the graph is made, at most
NEIGHBOURS = 10
_REACH = 6  # the neighbour whose distance is a code's unit of length
_MORE = 3  # times as many directions as clusters
_LEFT = 0.8  # of the direction that tells the last cluster apart, when the walk is over
_AT_ONCE = 1_000  # rows
_FLOOR = 1e-4  # of a variance, in units of all codes


class Start(NamedTuple):
    """Groups of codes, and a Gaussian of each.

    Args:
        groups: Which group each code is in, ``(rows,)``.
        weights: ``(clusters,)``.
        mean: ``(clusters, latent_size)``.
        scale: Standard deviations, ``(clusters, latent_size)``.
    """

    groups: Whole
    weights: Array
    mean: Array
    scale: Array


def start_of(
    kind: StartKind,
    codes: Array,
    num_clusters: int,
    num_starts: int = 10,
    seed: int = 0,
    device: torch.device | str = "cpu",
    neighbours: int = NEIGHBOURS,
) -> Start:
    """Return groups of codes.

    Args:
        kind: ``mixture`` for the likeliest mixture of Gaussians, which tells heaps apart that
            overlap; ``connected`` for groups that hang together, of whatever shape.
        codes: ``(rows, latent_size)``.
        num_clusters: How many groups there are.
        num_starts: Ways that are tried, of which the best is taken.
        seed: Of these, and of the rows that are looked at.
        device: Where neighbours are looked for.
        neighbours: How many of them a code is connected to.
    """
    if kind == "mixture":
        return mixture_start(codes, num_clusters, num_starts, seed)
    return connected_start(codes, num_clusters, num_starts, seed, device, neighbours)


def mixture_start(codes: Array, num_clusters: int, num_starts: int, seed: int) -> Start:
    """Return the likeliest of several mixtures that are fitted to codes."""
    unit = codes.std() + 1e-12
    mixture = GaussianMixture(
        num_clusters,
        covariance_type="diag",
        n_init=num_starts,
        max_iter=300,
        reg_covar=_FLOOR,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # training goes on from there anyway
        groups = mixture.fit_predict(codes / unit)
    scale = np.sqrt(mixture.covariances_) * unit
    return Start(groups, mixture.weights_, mixture.means_ * unit, scale)


def connected_start(
    codes: Array,
    num_clusters: int,
    num_starts: int,
    seed: int,
    device: torch.device | str = "cpu",
    neighbours: int = NEIGHBOURS,
) -> Start:
    """Return groups of codes that hang together; those left out go with their nearest."""
    random = np.random.default_rng(seed)
    picked = random.permutation(len(codes))[:_ROWS]
    places = walked(codes[picked], num_clusters, random, device, neighbours)
    told = KMeans(num_clusters, n_init=num_starts, random_state=seed).fit_predict(places)
    groups = told[_nearest(codes, codes[picked], 1, device).who[:, 0]].astype(np.int64)
    each = [codes[groups == i] for i in range(num_clusters)]
    floor = _FLOOR * codes.var() + 1e-12
    mean = np.stack([c.mean(0) if len(c) else codes.mean(0) for c in each])
    variance = np.stack([c.var(0) if len(c) else codes.var(0) for c in each])
    counts = np.array([len(c) + 1.0 for c in each])
    return Start(groups, counts / counts.sum(), mean, np.sqrt(variance + floor))


def walked(
    codes: Array,
    num_clusters: int,
    random: np.random.Generator,
    device: torch.device | str = "cpu",
    neighbours: int = NEIGHBOURS,
) -> Array:
    """Return unit vectors that are alike where random walks from two codes end alike.

    The longer the walk, the fewer directions are left of it; it ends while the direction that
    tells the last cluster from the others still counts.
    """
    graph = _graph(codes, device, neighbours)
    count = min(_MORE * num_clusters, len(codes) - 2)
    values, vectors = eigsh(graph, count, which="LA", v0=random.normal(size=len(codes)))
    values, vectors = values[::-1].clip(1e-9, 1.0 - 1e-9), vectors[:, ::-1]
    steps = np.log(_LEFT) / np.log(values[min(num_clusters, count) - 1])
    places = vectors * values**steps
    unit: Array = places / (np.linalg.norm(places, axis=1, keepdims=True) + 1e-12)
    return unit


class _Neighbours(NamedTuple):
    distance: Array
    who: Whole


def _nearest(codes: Array, among: Array, count: int, device: torch.device | str) -> _Neighbours:
    """Return the nearest of others to each code, nearest first, ``(rows, count)``."""
    x, others = (torch.as_tensor(c, device=device, dtype=torch.float32) for c in (codes, among))
    parts = torch.split(x, _AT_ONCE)
    found = [torch.cdist(part, others).topk(count, largest=False) for part in parts]
    distance, who = (torch.cat(each) for each in zip(*found, strict=True))
    return _Neighbours(_array(distance.double()), _array(who))


def _graph(codes: Array, device: torch.device | str, neighbours: int) -> sparse.csr_matrix:
    """Return affinities of neighbours, each code with its own unit, as a symmetric walk."""
    rows = len(codes)
    near = _nearest(codes, codes, min(neighbours + 1, rows), device)
    distance, who = near.distance[:, 1:], near.who[:, 1:]  # the nearest is the code itself
    unit = distance[:, min(_REACH, distance.shape[1] - 1)] + 1e-12
    affinity = np.exp(-(distance**2) / (unit[:, None] * unit[who]))
    start = np.repeat(np.arange(rows), who.shape[1])
    graph = sparse.csr_matrix((affinity.ravel(), (start, who.ravel())), (rows, rows))
    graph = graph.maximum(graph.T)
    inverse = sparse.diags(1.0 / np.sqrt(np.asarray(graph.sum(1)).ravel()))
    return sparse.csr_matrix(inverse @ graph @ inverse)


def _array(values: Tensor) -> NDArray:  # type: ignore[type-arg]
    return values.cpu().numpy()
