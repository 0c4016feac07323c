"""How good filled images are: close to the truth, and as varied and as real as it."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = [
    "PrecisionRecall",
    "largest_f_score",
    "precision_recall",
    "precision_recall_curve",
    "psnr",
    "psnr_per_sample",
]

Floats = NDArray[np.float64]


def psnr(imputations: Tensor, x: Tensor) -> Tensor:
    r"""Return the peak signal-to-noise ratio of the mean of imputations, in decibels per image.

    .. math:: -10 \log_{10} \frac{1}{CHW} \sum_i (\bar{x}_i - x_i)^2

    All pixels count, observed ones with an error of zero. An image without any error has an
    infinite value; the paper leaves such images out when it averages over images.

    Args:
        imputations: In [0, 1], ``(samples, batch, channels, height, width)``.
        x: The truth, in [0, 1], ``(batch, channels, height, width)``.
    """
    _check_images(imputations, x)
    # The mean of differences, not the difference of means: an error of zero stays zero.
    return _decibels((imputations - x).mean(0))


def psnr_per_sample(imputations: Tensor, x: Tensor) -> Tensor:
    """Return the mean over samples of the peak signal-to-noise ratio of each, one value per image.

    It is below ``psnr``, for the mean of imputations is closer to the truth than they are. An image
    of which one sample has no error at all has an infinite value.

    Args:
        imputations: In [0, 1], ``(samples, batch, channels, height, width)``.
        x: The truth, in [0, 1], ``(batch, channels, height, width)``.
    """
    _check_images(imputations, x)
    each = _decibels((imputations - x).flatten(0, 1))
    return each.view(len(imputations), len(x)).mean(0)


@final
@dataclass(frozen=True)
class PrecisionRecall:
    """How real images are, and how much of what is real they show, each between 0 and 1."""

    precision: float
    recall: float


def precision_recall(
    real: ArrayLike,
    generated: ArrayLike,
    *,
    num_clusters: int = 20,
    num_angles: int = 1001,
    num_runs: int = 10,
    seed: int = 0,
) -> PrecisionRecall:
    """Return precision and recall of a distribution (Sajjadi et al. 2018, "PRD").

    Real and generated vectors are clustered together by k-means on small batches. The two shares of
    each cluster give a curve of precision and recall, averaged over runs; its largest F score with
    a weight of 8 stands for recall, that with a weight of 1/8 for precision.

    Values depend on the features: compare only those of one extractor.

    Args:
        real: Feature vectors, ``(rows, features)``.
        generated: As many, ``(rows, features)``; or ``(samples, rows, features)``, whose curves are
            averaged too.
        num_clusters: How many there are.
        num_angles: How many points the curve has.
        num_runs: How often the vectors are clustered.
        seed: Seeds the clustering.
    """
    real, generated = np.asarray(real, np.float32), np.asarray(generated, np.float32)
    if real.ndim != 2 or generated.ndim not in (2, 3) or generated.shape[-2:] != real.shape:
        raise ValueError(
            "generated must hold as many vectors as real, of the same length, "
            f"got {generated.shape} and {real.shape}"
        )
    if not 1 <= num_clusters <= len(real):
        raise ValueError(
            f"num_clusters must lie between 1 and the {len(real)} real vectors, got {num_clusters}"
        )
    if num_runs < 1:
        raise ValueError(f"num_runs must be at least 1, got {num_runs}")
    states = np.random.default_rng(seed).integers(1 << 31, size=num_runs)
    curves = [
        precision_recall_curve(*_shares(real, own, num_clusters, int(state)), num_angles)
        for own in (generated if generated.ndim == 3 else generated[None])
        for state in states
    ]
    precision, recall = np.mean(curves, axis=0)
    return PrecisionRecall(
        precision=largest_f_score(precision, recall, 1.0 / 8.0),
        recall=largest_f_score(precision, recall, 8.0),
    )


def precision_recall_curve(
    real: ArrayLike, generated: ArrayLike, num_angles: int = 1001
) -> tuple[Floats, Floats]:
    r"""Return the precision and the recall of one histogram with respect to another, per angle.

    .. math:: \alpha(\lambda) = \sum_k \min(\lambda p_k, q_k), \quad
        \beta(\lambda) = \sum_k \min(p_k, q_k / \lambda), \quad
        \lambda = \tan\left(\frac{i}{m + 1} \frac{\pi}{2}\right), \quad i = 1, \ldots, m

    Args:
        real: The shares :math:`p` of the clusters, which sum to 1.
        generated: The shares :math:`q`.
        num_angles: The number :math:`m`; an odd one has an angle at which both count alike.
    """
    if num_angles < 1:
        raise ValueError(f"num_angles must be at least 1, got {num_angles}")
    p, q = np.asarray(real, np.float64), np.asarray(generated, np.float64)
    slope = np.tan(np.arange(1, num_angles + 1) / (num_angles + 1) * (math.pi / 2.0))[:, None]
    return np.minimum(slope * p, q).sum(1), np.minimum(p, q / slope).sum(1)


def largest_f_score(precision: ArrayLike, recall: ArrayLike, weight: float) -> float:
    r"""Return the largest F score along a curve, in which recall counts ``weight`` times as much.

    .. math:: \max \frac{(1 + w^2)\, \alpha \beta}{w^2 \alpha + \beta}
    """
    a, b = np.asarray(precision, np.float64), np.asarray(recall, np.float64)
    below = weight**2 * a + b
    score = (1.0 + weight**2) * a * b / np.where(below > 0.0, below, 1.0)
    return float(min(score.max(), 1.0))  # rounding may lift it above


def _shares(
    real: NDArray[np.float32], generated: NDArray[np.float32], num_clusters: int, state: int
) -> tuple[Floats, Floats]:
    """Return which share of the real and of the generated vectors lies in each joint cluster."""
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    kmeans = MiniBatchKMeans(n_clusters=num_clusters, n_init=10, random_state=state)
    # Batches are small: threads wait for each other, and beside another program that does the same
    # for many times as long as the arithmetic takes.
    with threadpool_limits(1):
        label = kmeans.fit_predict(np.concatenate([generated, real]))
    q, p = (np.bincount(part, minlength=num_clusters) / len(real) for part in np.split(label, 2))
    return p, q


def _decibels(error: Tensor) -> Tensor:
    """Return the ratio for each row of ``(rows, *pixels)``."""
    return -10.0 * error.square().flatten(1).mean(1).log10()


def _check_images(imputations: Tensor, x: Tensor) -> None:
    if imputations.ndim != x.ndim + 1 or imputations.shape[1:] != x.shape or x.ndim < 2:
        raise ValueError(
            "imputations must be (samples, *shape of x), "
            f"got {tuple(imputations.shape)} and {tuple(x.shape)}"
        )
    if len(imputations) == 0:
        raise ValueError("imputations must hold at least one sample")
    for name, images in (("imputations", imputations), ("x", x)):
        if not torch.is_floating_point(images):
            raise TypeError(f"{name} must be floating point, in [0, 1], got {images.dtype}")
    if x.numel() and not (x.min() >= 0.0 and x.max() <= 1.0):
        raise ValueError(
            f"x must lie in [0, 1], got values from {x.min().item():.4g} to {x.max().item():.4g}"
        )
