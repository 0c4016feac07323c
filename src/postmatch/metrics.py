"""How good imputations and clusters are: pure functions from NumPy arrays to one number."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "accuracy",
    "as_points",
    "calibration_error",
    "categorical_crps",
    "cluster_accuracy",
    "coverage",
    "crps",
    "energy_distance",
    "interval_width",
    "matched_clusters",
    "nrmse",
]

Floats = NDArray[np.float64]


def nrmse(imputed: ArrayLike, truth: ArrayLike, hidden: ArrayLike) -> float:
    r"""Return the root mean squared error over hidden cells, in standard deviations of a feature.

    .. math:: \frac{1}{D} \sum_d \frac{1}{\sigma_d}
        \sqrt{\frac{1}{|H_d|} \sum_{i \in H_d} (\hat{x}_{id} - x_{id})^2}

    The standard deviation is that of the feature over all rows, hidden or not, as in the paper.
    Features with no hidden cell are left out, and so are constant ones, whose error has no scale.
    A NaN in ``truth`` is a cell nobody knows: it is neither judged nor part of the scale.

    Args:
        imputed: ``(rows, features)``; read where ``hidden`` is True only.
        truth: ``(rows, features)``.
        hidden: bool, ``(rows, features)``.
    """
    imputed, truth = np.asarray(imputed, np.float64), np.asarray(truth, np.float64)
    judged = np.asarray(hidden, bool) & ~np.isnan(truth)
    errors = []
    for d in np.flatnonzero(judged.any(0)):
        scale = np.nanstd(truth[:, d])
        rows = judged[:, d]
        if scale > 0:
            errors.append(np.sqrt(np.mean((imputed[rows, d] - truth[rows, d]) ** 2)) / scale)
    return float(np.mean(errors)) if errors else float("nan")


def accuracy(imputed: ArrayLike, truth: ArrayLike, hidden: ArrayLike) -> float:
    """Return the share of hidden cells that are exactly right, per feature, then averaged.

    Args:
        imputed: ``(rows, features)``, labels of any type.
        truth: ``(rows, features)``, labels of the same type.
        hidden: bool, ``(rows, features)``: the cells to judge. Leave out cells nobody knows.
    """
    right, hidden = np.asarray(imputed) == np.asarray(truth), np.asarray(hidden, bool)
    features = np.flatnonzero(hidden.any(0))
    shares = [right[hidden[:, d], d].mean() for d in features]
    return float(np.mean(shares)) if shares else float("nan")


def crps(draws: ArrayLike, truth: ArrayLike) -> float:
    r"""Return the mean continuous ranked probability score of an ensemble, its unbiased form.

    .. math:: \frac{1}{m} \sum_i |x_i - y| - \frac{1}{2 m (m - 1)} \sum_{i, j} |x_i - x_j|

    Its expectation does not depend on the number of draws, so ensembles of different sizes may be
    compared. One draw is a point forecast, whose score is the absolute error.

    Args:
        draws: ``(samples, *cells)``.
        truth: ``(*cells,)``.
    """
    draws, truth = np.asarray(draws, np.float64), np.asarray(truth, np.float64)
    error = np.abs(draws - truth).mean(0)
    m = len(draws)
    if m == 1:
        return float(error.mean())
    # Sum over pairs of |x_i - x_j| from order statistics: x_(i) is added i - 1 times, taken m - i.
    rank = np.arange(1, m + 1).reshape(-1, *[1] * truth.ndim)
    spread = ((2 * rank - m - 1) * np.sort(draws, axis=0)).sum(0) / (m * (m - 1))
    return float((error - spread).mean())


def categorical_crps(draws: ArrayLike, truth: ArrayLike) -> float:
    r"""Return the energy form of the score for labels, unbiased: half the Brier score.

    .. math:: \mathbb{E}\, 1[c \neq y] - \tfrac{1}{2} \mathbb{E}\, 1[c \neq c']

    One draw is a point forecast, whose score is the error rate.

    Args:
        draws: ``(samples, *cells)``, labels of any type.
        truth: ``(*cells,)``.
    """
    draws, truth = np.asarray(draws), np.asarray(truth)
    error = (draws != truth).mean(0)
    m = len(draws)
    if m == 1:
        return float(error.mean())
    differ = sum((draws != draw).sum(0) for draw in draws)
    return float((error - 0.5 * differ / (m * (m - 1))).mean())


def coverage(lower: ArrayLike, upper: ArrayLike, truth: ArrayLike) -> float:
    """Return the share of ``truth`` inside the closed intervals."""
    truth = np.asarray(truth)
    return float(((np.asarray(lower) <= truth) & (truth <= np.asarray(upper))).mean())


def interval_width(lower: ArrayLike, upper: ArrayLike) -> float:
    """Return the mean width of intervals."""
    return float((np.asarray(upper, np.float64) - np.asarray(lower, np.float64)).mean())


def as_points(numbers: ArrayLike, codes: ArrayLike, like: tuple[ArrayLike, ArrayLike]) -> Floats:
    """Return mixed rows as points in which every column has a total variance of about one.

    Numbers are standardised, categories become one-hot vectors divided by the square root of their
    total variance, both by the statistics of ``like``. NaN and negative codes go to the origin of
    their column.

    Args:
        numbers: ``(rows, numeric columns)``.
        codes: ``(rows, categorical columns)``, integers from 0.
        like: ``(numbers, codes)`` of the rows that set the scale.
    """
    numbers, codes = np.asarray(numbers, np.float64), np.asarray(codes, np.int64)
    scale_numbers, scale_codes = np.asarray(like[0], np.float64), np.asarray(like[1], np.int64)
    blocks: list[Any] = []
    for x, reference in zip(numbers.T, scale_numbers.T, strict=True):
        deviation = np.nanstd(reference)
        x = (x - np.nanmean(reference)) / (deviation if deviation > 0 else 1.0)
        blocks.append(np.nan_to_num(x)[:, None])
    for code, reference in zip(codes.T, scale_codes.T, strict=True):
        levels = np.arange(max(code.max(initial=0), reference.max(initial=0)) + 1)
        share = (reference[reference >= 0][:, None] == levels).mean(0)
        variance = (share * (1 - share)).sum()
        blocks.append((code[:, None] == levels) / np.sqrt(variance if variance > 0 else 1.0))
    return np.hstack(blocks).astype(np.float64)


def energy_distance(
    a: ArrayLike, b: ArrayLike, *, paired: bool = False, max_rows: int = 2000, seed: int = 0
) -> float:
    r"""Return the energy distance between two samples of points, 0 when they are equal.

    .. math:: 2\, \mathbb{E}\|a - b\| - \mathbb{E}\|a - a'\| - \mathbb{E}\|b - b'\|

    Args:
        a: ``(rows, coordinates)``; see ``as_points`` for rows of mixed columns.
        b: ``(rows, coordinates)``.
        paired: Say that row i of ``a`` was made from row i of ``b``, as a completed row is. Pairs
            (i, i) are then left out everywhere, which makes the estimate unbiased; it can fall
            below zero by chance. Otherwise it is the usual one, never negative.
        max_rows: Take that many rows at random when there are more, the same ones of both if paired
            or equally long.
        seed: Seeds that choice.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if paired and len(a) != len(b):
        raise ValueError(f"paired samples must be equally long, got {len(a)} and {len(b)} rows")
    generator = np.random.default_rng(seed)
    if len(a) == len(b):
        chosen = generator.permutation(len(a))[:max_rows]
        a, b = a[chosen], b[chosen]
    else:
        a, b = (s[generator.permutation(len(s))[:max_rows]] for s in (a, b))
    across, within_a, within_b = _distances(a, b), _distances(a, a), _distances(b, b)
    if paired:
        across, within_a, within_b = (
            d[~np.eye(len(d), dtype=bool)] for d in (across, within_a, within_b)
        )
    return float(2 * across.mean() - within_a.mean() - within_b.mean())


def _distances(a: Floats, b: Floats) -> Floats:
    from scipy.spatial.distance import cdist  # exact zeros on the diagonal, unlike the Gram trick

    distances: Floats = cdist(a, b)
    return distances


def matched_clusters(clusters: ArrayLike, labels: ArrayLike) -> NDArray[np.int64]:
    """Return the label that each cluster stands for, so that most rows are right.

    Each label stands for one cluster at most; clusters that are left over get -1.

    Args:
        clusters: The cluster of each row, 0 and up.
        labels: Its label, 0 and up.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import

    clusters, labels = np.asarray(clusters, np.int64), np.asarray(labels, np.int64)
    counts = np.zeros((clusters.max() + 1, labels.max() + 1), np.int64)
    np.add.at(counts, (clusters, labels), 1)
    names = np.full(len(counts), -1, np.int64)
    rows, columns = linear_sum_assignment(-counts)
    names[rows] = columns
    return names


def cluster_accuracy(
    clusters: ArrayLike, labels: ArrayLike, names: ArrayLike | None = None
) -> float:
    """Return the share of rows whose cluster stands for their label.

    Args:
        clusters: The cluster of each row, 0 and up.
        labels: Its label, 0 and up.
        names: The label of each cluster, as :func:`matched_clusters` found it on other rows; None
            for the best on these. A cluster without a name is wrong.
    """
    names = matched_clusters(clusters, labels) if names is None else np.asarray(names, np.int64)
    clusters = np.asarray(clusters, np.int64)
    named = np.pad(names, (0, max(0, clusters.max() + 1 - len(names))), constant_values=-1)
    return float(np.mean(named[clusters] == np.asarray(labels, np.int64)))


def calibration_error(probabilities: ArrayLike, truth: ArrayLike, num_bins: int = 15) -> float:
    r"""Return how far the probability of the likeliest class is from how often it is right.

    .. math:: \sum_b \frac{n_b}{n} \left| \mathrm{accuracy}_b - \mathrm{confidence}_b \right|

    over bins of equal width of that probability (Guo et al., 2017).

    Args:
        probabilities: ``(rows, classes)``.
        truth: The class of each row.
        num_bins: How many there are.
    """
    probabilities = np.asarray(probabilities, np.float64)
    sure, right = probabilities.max(1), probabilities.argmax(1) == np.asarray(truth)
    bins = np.minimum((sure * num_bins).astype(np.int64), num_bins - 1)
    gaps = np.bincount(bins, weights=right - sure, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(sure))
