"""Signs of trouble in importance weights, on weights whose tails are known."""

import math

import pytest
import torch
from torch.testing import assert_close

from postmatch.importance import effective_size, pareto_k


def test_effective_size_counts_equal_weights_and_ignores_lost_ones() -> None:
    equal, lost = torch.zeros(8), torch.tensor([0.0] * 4 + [-200.0] * 4)
    sizes = effective_size(torch.stack([equal, lost - 50.0], dim=1))
    assert_close(sizes, torch.tensor([8.0, 4.0]), atol=1e-3, rtol=0.0)


def pareto_weights(shape: float, samples: int, rows: int) -> torch.Tensor:
    """Return logarithms of weights whose upper tail is a generalised Pareto of this shape."""
    uniform = torch.rand(samples, rows, generator=torch.Generator().manual_seed(0)).double()
    return (1.0 + (uniform ** (-shape) - 1.0) / shape).log()


@pytest.mark.parametrize("shape", [0.1, 0.5, 0.9, 1.5])
def test_the_tail_shape_is_that_of_the_weights(shape: float) -> None:
    samples, rows = 10_000, 400
    found = pareto_k(pareto_weights(shape, samples, rows) - 123.0)  # their unit does not matter
    tail = 3.0 * math.sqrt(samples)
    # What the weak prior makes of the shape, and the spread of the best estimators of it.
    expected = (tail * shape + 5.0) / (tail + 10.0)
    spread = (1.0 + shape) / math.sqrt(tail)
    assert abs(found.mean().item() - expected) < 4.0 * spread / math.sqrt(rows) + 0.02
    assert found.std().item() == pytest.approx(spread, rel=0.3)


def test_weights_without_a_tail_have_a_low_shape_and_too_few_have_none() -> None:
    light = torch.rand(1_000, 50, generator=torch.Generator().manual_seed(0)).log()
    assert pareto_k(light).max() < 0.2  # bounded: the shape of a uniform tail is -1
    assert_close(pareto_k(torch.zeros(1_000, 3)), torch.full((3,), 5.0 / (95 + 10)))
    assert pareto_k(torch.zeros(24, 3)).isnan().all()
    assert pareto_k(torch.randn(25, 3)).isfinite().all()


def test_each_row_is_judged_by_itself() -> None:
    light, heavy = pareto_weights(0.1, 2_000, 1), pareto_weights(1.2, 2_000, 1)
    both = pareto_k(torch.cat([light, heavy], dim=1))
    assert_close(both, torch.cat([pareto_k(light), pareto_k(heavy)]))
    assert both[0] < 0.4 < 0.9 < both[1]
