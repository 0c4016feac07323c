"""Metrics of filled images against values worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import MiniBatchKMeans
from threadpoolctl import threadpool_info, threadpool_limits
from torch.testing import assert_close

from postmatch.image_metrics import (
    largest_f_score,
    precision_recall,
    precision_recall_curve,
    psnr,
    psnr_per_sample,
)


def test_psnr_is_that_of_the_mean_over_all_pixels_and_channels() -> None:
    x = torch.full((2, 3, 2, 2), 0.5)
    imputations = x.repeat(2, 1, 1, 1, 1)
    imputations[0, 0, 0, 0, 0] += 0.4  # one of 12 values, in one of two samples
    imputations[0, 1] += 0.3
    imputations[1, 1] -= 0.1
    # Errors of the mean: 0.2 in one of 12 values; 0.1 everywhere.
    of_mean = [-10.0 * math.log10(0.04 / 12), 20.0]
    assert_close(psnr(imputations, x), torch.tensor(of_mean))
    # Of each: the first image has no error in the second sample.
    of_each = [math.inf, 0.5 * (-10.0 * math.log10(0.09) + 20.0)]
    assert_close(psnr_per_sample(imputations, x), torch.tensor(of_each))


def test_one_sample_has_one_psnr_and_several_less_each_than_their_mean() -> None:
    x = torch.rand(5, 1, 8, 8)
    imputations = torch.rand(10, 5, 1, 8, 8)
    assert_close(psnr(imputations[:1], x), psnr_per_sample(imputations[:1], x))
    assert (psnr(imputations, x) > psnr_per_sample(imputations, x)).all()
    assert_close(psnr(imputations, x), psnr(imputations.mean(0, keepdim=True), x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_image_without_error_is_infinitely_good(dtype: torch.dtype) -> None:
    x = torch.rand(4, 3, 9, 9, dtype=dtype)
    perfect = x.repeat(7, 1, 1, 1, 1)  # seven equal numbers whose mean may differ by rounding
    assert psnr(perfect, x).tolist() == [math.inf] * 4
    assert psnr_per_sample(perfect, x).tolist() == [math.inf] * 4
    almost = perfect.clone()
    almost[:, 2, 0, 0, 0] = 1.0 - almost[:, 2, 0, 0, 0]
    assert psnr(almost, x).isinf().tolist() == [True, True, False, True]


def test_images_that_are_not_comparable_are_refused() -> None:
    x = torch.rand(4, 1, 3, 3)
    for metric in (psnr, psnr_per_sample):
        with pytest.raises(ValueError, match=r"\(samples, \*shape of x\), got \(4, 1, 3, 3\) and"):
            metric(x, x)
        with pytest.raises(ValueError, match="at least one sample"):
            metric(x[None][:0], x)
        with pytest.raises(TypeError, match=r"x must be floating point.* got torch.uint8"):
            metric(x[None], x.byte())
        with pytest.raises(ValueError, match=r"x must lie in \[0, 1\], got values from 0 to 255"):
            metric(x[None], torch.tensor([0.0, 255.0, 3.0]).expand(4, 1, 3, 3))


def test_the_curve_of_small_histograms_is_that_worked_out_by_hand() -> None:
    # Three angles: tan 22.5, 45 and 67.5 degrees.
    slopes = [math.sqrt(2.0) - 1.0, 1.0, math.sqrt(2.0) + 1.0]
    precision, recall = precision_recall_curve([0.5, 0.5, 0.0], [0.25, 0.25, 0.5], num_angles=3)
    # min(s / 2, 1 / 4) twice; the third cluster, which is not real, counts nothing.
    assert precision == pytest.approx([slopes[0], 0.5, 0.5])
    assert recall == pytest.approx([1.0, 0.5, 0.5 / slopes[2]])
    # The other way round: what was precision is recall, from the last angle to the first.
    turned = precision_recall_curve([0.25, 0.25, 0.5], [0.5, 0.5, 0.0], num_angles=3)
    assert turned[0] == pytest.approx(recall[::-1])
    assert turned[1] == pytest.approx(precision[::-1])


def test_recall_is_precision_over_the_slope_and_many_angles_reach_both_ends() -> None:
    random = np.random.default_rng(0)
    p, q = random.dirichlet(np.full(20, 10.0), size=2)  # no share is tiny
    p[:3], q[-2:] = 0.0, 0.0
    p, q = p / p.sum(), q / q.sum()
    precision, recall = precision_recall_curve(p, q)
    slope = np.tan(np.arange(1, 1002) / 1002 * np.pi / 2.0)
    assert precision == pytest.approx(slope * recall)
    # At the ends: the share of each that lies where the other one is at all.
    assert precision[-1] == pytest.approx(q[p > 0.0].sum(), abs=1e-12)
    assert recall[0] == pytest.approx(p[q > 0.0].sum(), abs=1e-12)
    # In the middle: one less their distance in total variation.
    assert precision[500] == pytest.approx(1.0 - 0.5 * np.abs(p - q).sum())


@pytest.mark.parametrize(
    ("precision", "recall", "weight", "expected"),
    [
        ([0.5], [0.25], 1.0, 1.0 / 3.0),
        ([0.5], [0.25], 8.0, 65 * 0.125 / (64 * 0.5 + 0.25)),
        ([0.5], [0.25], 1.0 / 8.0, (65 / 64) * 0.125 / (0.5 / 64 + 0.25)),
        ([0.5, 1.0, 0.0], [0.25, 0.2, 0.0], 1.0, 1.0 / 3.0),
        ([0.5, 1.0, 0.0], [0.25, 0.2, 0.0], 1.0 / 8.0, (65 / 64) * 0.2 / (1 / 64 + 0.2)),
        ([0.0, 0.0], [0.0, 0.0], 8.0, 0.0),
        ([1.0], [1.0], 8.0, 1.0),
    ],
)
def test_the_largest_f_score_weighs_recall(
    precision: list[float], recall: list[float], weight: float, expected: float
) -> None:
    assert largest_f_score(precision, recall, weight) == pytest.approx(expected, abs=1e-15)


def modes(which: list[int], rows: int = 600, seed: int = 0) -> np.ndarray:
    """Return vectors in narrow clusters around far corners, equally many in each."""
    centres = 100.0 * np.eye(8)
    random = np.random.default_rng(seed)
    return centres[np.resize(which, rows)] + random.normal(size=(rows, 8))


def test_a_set_has_all_of_its_own_precision_and_recall_and_none_of_a_far_one() -> None:
    x = modes([0, 1, 2, 3])
    own = precision_recall(x, x[::-1], num_runs=2)
    assert (own.precision, own.recall) == pytest.approx((1.0, 1.0))
    far = precision_recall(x, modes([4, 5, 6, 7]), num_runs=2)
    assert (far.precision, far.recall) == (0.0, 0.0)


def f_scores(real: list[float], generated: list[float]) -> tuple[float, float]:
    """Return precision and recall of histograms by a grid search over slopes."""
    p, q, best = np.array(real), np.array(generated), [0.0, 0.0]
    for slope in np.geomspace(1e-3, 1e3, 20_001):
        alpha, beta = np.minimum(slope * p, q).sum(), np.minimum(p, q / slope).sum()
        for i, w in enumerate((1.0 / 8.0, 8.0)):
            best[i] = max(best[i], (1 + w**2) * alpha * beta / (w**2 * alpha + beta))
    return best[0], best[1]


def test_missing_modes_cost_recall_and_invented_ones_precision() -> None:
    few, many = modes([0, 1]), modes([0, 1, 2, 3], seed=1)
    # With a cluster for each mode the histograms are known.
    missing = precision_recall(many, few, num_clusters=4, num_runs=3)
    expected = f_scores([0.25] * 4, [0.5, 0.5, 0.0, 0.0])
    assert (missing.precision, missing.recall) == pytest.approx(expected, abs=1e-4)
    assert missing.precision > 0.98 > 0.52 > missing.recall
    invented = precision_recall(few, many, num_clusters=4, num_runs=3)
    assert (invented.precision, invented.recall) == pytest.approx(expected[::-1], abs=1e-4)


def test_curves_are_averaged_over_samples_before_they_are_scored() -> None:
    few, many = modes([0, 1]), modes([0, 1, 2, 3], seed=1)
    both = precision_recall(many, np.stack([few, many]), num_clusters=4, num_runs=2)
    halves = [[0.5, 0.5, 0.0, 0.0], [0.25] * 4]
    curves = np.mean([precision_recall_curve([0.25] * 4, q) for q in halves], axis=0)
    assert both.precision == pytest.approx(largest_f_score(*curves, 1.0 / 8.0))
    assert both.recall == pytest.approx(largest_f_score(*curves, 8.0))
    one = precision_recall(many, few[None], num_clusters=4, num_runs=2)
    assert one == precision_recall(many, few, num_clusters=4, num_runs=2)


def test_a_seed_decides_the_clusters_and_tensors_are_welcome() -> None:
    real, generated = torch.randn(300, 4), torch.randn(300, 4) + 0.3
    first = precision_recall(real, generated, num_runs=2, seed=1)
    assert precision_recall(real.numpy(), generated.numpy(), num_runs=2, seed=1) == first
    assert precision_recall(real, generated, num_runs=2, seed=2) != first
    assert 0.3 < first.recall < 1.0


def test_clusters_are_made_by_one_thread_and_all_else_keeps_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inside: list[int] = []
    fit_predict = MiniBatchKMeans.fit_predict

    def counted(self: MiniBatchKMeans, vectors: Any) -> Any:
        inside.extend(each["num_threads"] for each in threadpool_info())
        return fit_predict(self, vectors)

    monkeypatch.setattr(MiniBatchKMeans, "fit_predict", counted)
    with threadpool_limits(3):
        precision_recall(torch.randn(60, 4), torch.randn(60, 4), num_runs=2)
        outside = {each["num_threads"] for each in threadpool_info()}
    assert set(inside) == {1}
    assert max(outside) == 3


def test_vectors_that_are_not_comparable_are_refused() -> None:
    x = modes([0, 1], rows=40)
    for other in (x[:30], x[:, :4], x[None, None]):
        with pytest.raises(ValueError, match="as many vectors as real, of the same length, got"):
            precision_recall(x, other)
    with pytest.raises(ValueError, match="between 1 and the 40 real vectors, got 41"):
        precision_recall(x, x, num_clusters=41)
    with pytest.raises(ValueError, match="num_runs must be at least 1, got 0"):
        precision_recall(x, x, num_runs=0)
    with pytest.raises(ValueError, match="num_angles must be at least 1, got 0"):
        precision_recall_curve([1.0], [1.0], num_angles=0)
