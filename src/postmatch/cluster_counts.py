"""How many clusters there are: as many as two halves of the rows agree on."""

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

Array = NDArray[np.float64]
_ROWS = 2_000  # that are looked at, at most
_SPLITS = 5
_STRONG = 0.8  # Tibshirani and Walther call 0.8 to 0.9 enough
_FLOOR = 1e-2  # of a variance, in units of all codes, so that few rows do not make thin clusters
_LEAST = 4  # rows of a half that make a cluster


def count_clusters(codes: Array, most: int = 10, seed: int = 0) -> int:
    """Return the largest number of clusters, from 2, whose prediction strength is 0.8 at least.

    A number that is too large cuts a group somewhere, and two halves of the rows seldom cut it at
    the same place; a group that stands alone is found in both. Neither the likelihood of a mixture
    nor its penalised forms need that, and they take a bent group for several. Where no number is
    strong enough, the answer is 2.

    Args:
        codes: ``(rows, latent_size)``.
        most: Largest number that is tried.
        seed: Of the halves.
    """
    random = np.random.default_rng(seed)
    codes = codes[random.permutation(len(codes))[:_ROWS]] / (codes.std() + 1e-12)
    most = max(2, min(most, len(codes) // (2 * _LEAST)))
    orders = [random.permutation(len(codes)) for _ in range(_SPLITS)]
    best = 2
    for number in range(3, most + 1):
        strengths = [prediction_strength(codes[order], number, seed) for order in orders]
        error = np.std(strengths) / np.sqrt(_SPLITS)
        if np.mean(strengths) + error >= _STRONG:
            best = number
    return best


def prediction_strength(codes: Array, num_clusters: int, seed: int = 0) -> float:
    r"""Return how well one half of the codes tells the clusters of the other.

    .. math:: \min_k \frac{1}{n_k (n_k - 1)} \sum_{i \ne j \in C_k}
        1[\text{the other half's mixture puts } i \text{ and } j \text{ together}]

    over the clusters :math:`C_k` of the second half (Tibshirani and Walther, 2005); 0 if one has
    hardly any row. Clusters are the components of Gaussian mixtures with full covariances.

    Args:
        codes: In random order, ``(rows, size)``.
        num_clusters: How many there are.
        seed: Of the mixtures.
    """
    first, second = np.array_split(codes, 2)
    own, other = (_mixture(half, num_clusters, seed).predict(second) for half in (second, first))
    together = np.zeros((num_clusters, num_clusters))
    np.add.at(together, (own, other), 1.0)
    size = together.sum(1)
    if size.min() < _LEAST:
        return 0.0  # a few odd rows are no cluster
    return float(((together * (together - 1.0)).sum(1) / (size * (size - 1.0))).min())


def _mixture(codes: Array, num_clusters: int, seed: int) -> GaussianMixture:
    mixture = GaussianMixture(num_clusters, n_init=3, reg_covar=_FLOOR, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return mixture.fit(codes)
