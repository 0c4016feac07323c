"""Schedules: where they start, where they end, and what they do between."""

import pytest
import torch

from postmatch.training.plan import Plan
from postmatch.training.schedules import cyclical, monotonic, rate_schedule

PLACES = [i / 20 for i in range(21)]


def test_rates_fall_from_one_to_what_is_left() -> None:
    for name in ("cosine", "exponential"):
        values = [rate_schedule(name, 0.1)(place) for place in PLACES]  # type: ignore[arg-type]
        assert values[0] == pytest.approx(1.0)
        assert values[-1] == pytest.approx(0.1)
        assert values == sorted(values, reverse=True)
        assert rate_schedule(name, 0.1)(1.2) == pytest.approx(0.1)  # type: ignore[arg-type]
    assert rate_schedule("exponential", 0.01)(0.5) == pytest.approx(0.1)
    assert rate_schedule("cosine", 0.0)(0.5) == pytest.approx(0.5)
    assert {rate_schedule("constant", 0.1)(place) for place in PLACES} == {1.0}


def test_a_plan_refuses_a_schedule_that_is_none() -> None:
    with pytest.raises(ValueError, match="schedule must be"):
        Plan(10, schedule="linear")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="final must lie"):
        Plan(10, schedule="exponential", final_rate=0.0)


def test_a_monotonic_weight_rises_and_stays() -> None:
    weight = monotonic(0.2)
    places = torch.tensor([0.0, 0.1, 0.2, 0.7, 1.0])
    assert weight(places).tolist() == pytest.approx([0, 0.5, 1, 1, 1])
    assert monotonic(0.0)(places).tolist() == [1.0] * 5
    late = monotonic(0.5, delay=0.5)(torch.tensor([0.0, 0.5, 0.75, 1.0]))
    assert late.tolist() == pytest.approx([0, 0, 0.5, 1])
    with pytest.raises(ValueError, match="warmup"):
        monotonic(1.5)


def test_a_cyclical_weight_starts_over_and_ends_at_one() -> None:
    weight = cyclical(2)
    places = torch.tensor([0.0, 0.125, 0.25, 0.4, 0.5, 0.625, 0.9, 1.0])
    assert weight(places).tolist() == pytest.approx([0, 0.5, 1, 1, 0, 0.5, 1, 1])
    late = cyclical(2, delay=0.2)(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.59, 0.6, 0.7, 1.0]))
    assert late.tolist() == pytest.approx([0, 0, 0.5, 1, 1, 0, 0.5, 1], abs=1e-5)
    with pytest.raises(ValueError, match="cycles"):
        cyclical(0)
