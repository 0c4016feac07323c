"""Rubin's rules against hand calculation, their limits and a simulation."""

import numpy as np
import pytest
from scipy.stats import t

from postmatch.pooling import pool


def test_pooling_equals_a_calculation_by_hand() -> None:
    pooled = pool([1.0, 2.0, 3.0], [0.5, 0.4, 0.6])
    total = 0.5 + 4 / 3
    share = (4 / 3) / total
    assert pooled.estimate == pytest.approx(2.0)
    assert pooled.within == pytest.approx(0.5)
    assert pooled.between == pytest.approx(1.0)
    assert pooled.variance == pytest.approx(total)
    assert pooled.dof == pytest.approx(2 / share**2)
    r = (4 / 3) / 0.5
    expected = (r + 2 / (2 * (1 + 1 / r) ** 2 + 3)) / (r + 1)  # Rubin 1987, equation 3.1.10
    assert pooled.fraction_missing_information == pytest.approx(expected)


def test_barnard_rubin_degrees_of_freedom_equal_a_calculation_by_hand() -> None:
    share = (4 / 3) / (0.5 + 4 / 3)
    observed = 21 / 23 * 20 * (1 - share)
    old = 2 / share**2
    pooled = pool([1.0, 2.0, 3.0], [0.5, 0.5, 0.5], complete_dof=20)
    assert pooled.dof == pytest.approx(old * observed / (old + observed))


def test_barnard_rubin_tends_to_rubin_for_a_large_table() -> None:
    estimates, variances = [1.0, 1.2, 0.9], [0.5, 0.6, 0.4]
    large = pool(estimates, variances, complete_dof=1e12)
    assert large.dof == pytest.approx(pool(estimates, variances).dof, rel=1e-6)


def test_imputations_that_agree_lose_no_information() -> None:
    pooled = pool([2.0, 2.0], [0.25, 0.25])
    assert pooled.variance == pytest.approx(0.25)
    assert np.isinf(pooled.dof)
    assert pooled.fraction_missing_information == 0.0
    assert pooled.interval(0.95) == pytest.approx((2 - 1.959964 / 2, 2 + 1.959964 / 2), rel=1e-6)


def test_no_variance_at_all_gives_a_point() -> None:
    pooled = pool([2.0, 2.0], [0.0, 0.0])
    assert pooled.interval() == pytest.approx((2.0, 2.0))


def test_parameters_are_pooled_each_on_its_own() -> None:
    generator = np.random.default_rng(0)
    estimates, variances = generator.normal(size=(5, 3, 2)), generator.uniform(size=(5, 3, 2))
    together = pool(estimates, variances, complete_dof=30)
    alone = pool(estimates[:, 2, 1], variances[:, 2, 1], complete_dof=30)
    for name in ("estimate", "variance", "dof", "fraction_missing_information"):
        assert getattr(together, name)[2, 1] == pytest.approx(getattr(alone, name))
    assert together.interval(0.9)[0][2, 1] == pytest.approx(alone.interval(0.9)[0])


def test_interval_is_students_t() -> None:
    pooled = pool([1.0, 2.0, 3.0], [0.5, 0.5, 0.5], complete_dof=12)
    lower, upper = pooled.interval(0.8)
    margin = t.ppf(0.9, pooled.dof) * np.sqrt(pooled.variance)
    assert (lower, upper) == pytest.approx((2.0 - margin, 2.0 + margin))


def test_intervals_cover_a_mean_whose_cells_were_properly_imputed() -> None:
    generator = np.random.default_rng(0)
    tables, rows, seen, m = 4000, 60, 40, 5
    x = generator.normal(1.0, 2.0, (tables, seen))
    # Proper imputation of a normal column: draw its variance, then its mean, then the cells.
    variance = x.var(1, ddof=1) * (seen - 1) / generator.chisquare(seen - 1, (m, tables))
    mean = x.mean(1) + np.sqrt(variance / seen) * generator.normal(size=(m, tables))
    noise = generator.normal(size=(rows - seen, m, tables))
    filled = mean + np.sqrt(variance) * noise  # (hidden rows, m, tables)
    known = np.broadcast_to(x.T[:, None], (seen, m, tables))
    complete = np.concatenate([known, filled])
    pooled = pool(complete.mean(0), complete.var(0, ddof=1) / rows, complete_dof=rows - 1)
    lower, upper = pooled.interval(0.9)
    covered = np.mean((lower <= 1.0) & (upper >= 1.0))
    assert abs(covered - 0.9) < 4 * np.sqrt(0.9 * 0.1 / tables)
    # A third of the rows is missing, with nothing to predict them from: so is a third of what
    # there is to know. The estimate from m imputations is biased by terms of order 1 / m.
    assert np.median(pooled.fraction_missing_information) == pytest.approx(1 / 3, abs=1 / m)


def test_pooling_says_what_is_wrong_with_its_arguments() -> None:
    with pytest.raises(ValueError, match="at least two imputed tables"):
        pool([1.0], [1.0])
    with pytest.raises(ValueError, match="shape of estimates"):
        pool([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="not be negative"):
        pool([1.0, 2.0], [1.0, -1.0])
    with pytest.raises(ValueError, match="level must be between 0 and 1, got 95"):
        pool([1.0, 2.0], [1.0, 1.0]).interval(95)
