"""Metrics against values known in closed form."""

import numpy as np
import pytest
from scipy.stats import norm

from postmatch.metrics import (
    accuracy,
    as_points,
    calibration_error,
    categorical_crps,
    cluster_accuracy,
    coverage,
    crps,
    energy_distance,
    interval_width,
    matched_clusters,
    nrmse,
)


def test_nrmse_of_the_mean_is_one_when_everything_is_hidden() -> None:
    truth = np.random.default_rng(0).normal(3.0, [1.0, 10.0, 0.1], (50, 3))
    imputed = np.broadcast_to(truth.mean(0), truth.shape)
    assert nrmse(imputed, truth, np.ones_like(truth, bool)) == pytest.approx(1.0)


def test_nrmse_averages_features_scaled_by_the_whole_column() -> None:
    truth = np.array([[0.0, 0.0, 5.0], [2.0, 20.0, 6.0], [0.0, 0.0, 7.0], [2.0, 20.0, 8.0]])
    imputed = truth + np.array([3.0, 10.0, 99.0])
    hidden = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0]], bool)
    # Errors 3 and 10 over standard deviations 1 and 10; the third column hides nothing.
    assert nrmse(imputed, truth, hidden) == pytest.approx((3.0 + 1.0) / 2)


def test_nrmse_ignores_unknown_cells_and_constant_columns() -> None:
    truth = np.array([[0.0, 4.0], [2.0, 4.0], [np.nan, 4.0]])
    imputed = np.array([[1.0, 7.0], [3.0, 7.0], [50.0, 7.0]])
    assert nrmse(imputed, truth, np.ones_like(truth, bool)) == pytest.approx(1.0)


def test_nrmse_never_reads_what_was_not_hidden() -> None:
    truth = np.array([[0.0], [2.0]])
    hidden = np.array([[True], [False]])
    assert nrmse([[1.0], [np.nan]], truth, hidden) == pytest.approx(1.0)


def test_accuracy_averages_columns_over_their_hidden_cells() -> None:
    truth = np.array([["a", "x"], ["b", "x"], ["a", "y"]], object)
    imputed = np.array([["a", "x"], ["a", "z"], ["b", "z"]], object)
    hidden = np.array([[1, 0], [1, 1], [0, 0]], bool)
    assert accuracy(imputed, truth, hidden) == pytest.approx((0.5 + 0.0) / 2)


def test_scores_of_nothing_hidden_are_nan() -> None:
    truth, hidden = np.zeros((3, 2)), np.zeros((3, 2), bool)
    assert np.isnan(nrmse(truth, truth, hidden))
    assert np.isnan(accuracy(truth, truth, hidden))


def test_crps_of_one_draw_is_the_absolute_error() -> None:
    assert crps([[1.0, -2.0]], [0.0, 1.0]) == pytest.approx(2.0)


@pytest.mark.parametrize("num_samples", [2, 5, 30])
def test_crps_of_a_gaussian_ensemble_estimates_its_closed_form(num_samples: int) -> None:
    generator = np.random.default_rng(num_samples)
    truth = generator.normal(0.0, 1.5, 20_000)
    draws = generator.normal(0.3, 0.8, (num_samples, truth.size))
    each = np.array([crps(draws[:, i : i + 1], truth[i : i + 1]) for i in range(2000)])
    z = (truth - 0.3) / 0.8
    exact = 0.8 * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    # Errors of a cell given its truth are at most as spread as its scores.
    standard_error = each.std() / np.sqrt(truth.size)
    assert abs(crps(draws, truth) - exact.mean()) < 4 * standard_error


def test_crps_equals_its_definition_over_all_pairs() -> None:
    generator = np.random.default_rng(0)
    draws, truth = generator.normal(size=(4, 3, 2)), generator.normal(size=(3, 2))
    pairs = np.abs(draws[:, None] - draws[None]).sum((0, 1)) / (4 * 3)
    expected = (np.abs(draws - truth).mean(0) - 0.5 * pairs).mean()
    assert crps(draws, truth) == pytest.approx(expected)


def test_categorical_crps_estimates_half_the_brier_score() -> None:
    generator = np.random.default_rng(0)
    p, cells = np.array([0.6, 0.3, 0.1]), 40_000
    draws = generator.choice(3, (5, cells), p=p)
    truth = np.zeros(cells, int)
    exact = 0.5 * ((p - np.eye(3)[0]) ** 2).sum()
    each = np.array([categorical_crps(draws[:, [i]], truth[[i]]) for i in range(2000)])
    error = categorical_crps(draws, truth) - exact
    assert abs(error) < 4 * each.std() / np.sqrt(cells)


def test_categorical_crps_of_one_draw_is_the_error_rate() -> None:
    draws = np.array([["a", "b", "b", "c"]], object)
    assert categorical_crps(draws, np.array(["a", "b", "c", "c"], object)) == pytest.approx(0.25)


def test_coverage_counts_the_ends_and_width_is_a_mean() -> None:
    lower, upper = np.array([0.0, 0.0, 0.0, 1.0]), np.array([1.0, 1.0, 1.0, 4.0])
    assert coverage(lower, upper, [0.0, 1.0, 1.5, 0.5]) == pytest.approx(0.5)
    assert interval_width(lower, upper) == pytest.approx(1.5)


@pytest.mark.parametrize("paired", [False, True])
def test_energy_distance_of_equal_samples_is_zero(paired: bool) -> None:
    x = np.random.default_rng(0).normal(size=(3000, 4))
    assert energy_distance(x, x, paired=paired) == pytest.approx(0.0, abs=1e-12)


def test_energy_distance_of_two_points_is_twice_their_distance() -> None:
    assert energy_distance([[0.0, 0.0]], [[3.0, 4.0]]) == pytest.approx(10.0)


def test_energy_distance_of_shifted_gaussians_is_its_closed_form() -> None:
    generator = np.random.default_rng(0)
    shift = 1.0

    def estimate() -> float:
        a, b = generator.normal(size=(2, 400, 1))
        return energy_distance(a, b + shift, paired=True)

    estimates = np.array([estimate() for _ in range(60)])

    # E|N(m, 2)| = 2 / sqrt(pi) exp(-m^2 / 4) + m (1 - 2 Phi(-m / sqrt 2)).
    def mean_distance(m: float) -> float:
        return 2 / np.sqrt(np.pi) * np.exp(-(m**2) / 4) + m * (1 - 2 * norm.cdf(-m / np.sqrt(2)))

    exact = 2 * mean_distance(shift) - 2 * mean_distance(0.0)
    assert abs(estimates.mean() - exact) < 4 * estimates.std(ddof=1) / np.sqrt(estimates.size)


def test_paired_energy_distance_is_unbiased_for_equal_distributions() -> None:
    generator = np.random.default_rng(0)
    draws = generator.normal(size=(200, 2, 50, 3))
    estimates = np.array([energy_distance(a, b, paired=True) for a, b in draws])
    assert abs(estimates.mean()) < 4 * estimates.std(ddof=1) / np.sqrt(len(estimates))


def test_paired_energy_distance_refuses_samples_of_different_length() -> None:
    with pytest.raises(ValueError, match="equally long, got 3 and 2"):
        energy_distance(np.zeros((3, 1)), np.zeros((2, 1)), paired=True)


def test_points_give_numbers_and_categories_the_same_total_variance() -> None:
    generator = np.random.default_rng(0)
    numbers = generator.normal(5.0, [2.0, 30.0], (500, 2))
    codes = np.column_stack([generator.integers(0, 2, 500), generator.integers(0, 7, 500)])
    points = as_points(numbers, codes, (numbers, codes))
    blocks = np.split(points, [1, 2, 4], axis=1)
    assert [block.var(0).sum() for block in blocks] == pytest.approx([1.0] * 4)


def test_unknown_cells_lie_at_the_origin_of_their_column() -> None:
    points = as_points([[np.nan], [1.0], [3.0]], [[-1], [0], [1]], ([[1.0], [3.0]], [[0], [1]]))
    assert points[0] == pytest.approx([0.0, 0.0, 0.0])
    assert points[1] == pytest.approx([-1.0, np.sqrt(2), 0.0])


def test_clusters_are_named_so_that_most_rows_are_right() -> None:
    clusters = [0, 0, 0, 1, 1, 2, 2, 2, 3]
    labels = [2, 2, 0, 0, 0, 1, 1, 2, 1]
    assert matched_clusters(clusters, labels).tolist() == [2, 0, 1, -1]
    assert cluster_accuracy(clusters, labels) == pytest.approx(6 / 9)
    assert cluster_accuracy([1, 1, 0], [2, 0, 2], names=[2, 0]) == pytest.approx(2 / 3)


def test_probabilities_that_come_true_as_often_are_calibrated() -> None:
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.5, 1.0, 50_000)
    probabilities = np.stack([sure, 1.0 - sure], 1)
    truth = (rng.uniform(size=50_000) > sure).astype(int)
    # A bin of n rows errs by about 0.5 / sqrt(n), here 8 of 6,250 rows each.
    assert calibration_error(probabilities, truth) < 0.01
    boasting = np.stack([np.full(1_000, 0.9), np.full(1_000, 0.1)], 1)
    half = np.arange(1_000) % 2
    assert calibration_error(boasting, half) == pytest.approx(0.4)
    assert calibration_error(np.eye(2)[half], half) == 0.0
