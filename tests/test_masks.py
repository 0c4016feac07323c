"""Masks: the contract over every final class, and the rates each class promises."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from postmatch.masks import Bernoulli, MaskDistribution, Mixture, Pattern, UniformCount

PATTERNS = torch.tensor([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 1], [1, 1, 1, 0, 0]]).bool()
# A new class joins here, for rows of five features, with its marginal rates.
EVERY: dict[str, tuple[MaskDistribution, list[float]]] = {
    "Bernoulli": (Bernoulli(0.3), [0.3] * 5),
    "UniformCount": (UniformCount(0.2, 0.8), [0.5] * 5),
    "Pattern": (Pattern(PATTERNS), [0.75, 0.5, 0.5, 0.0, 0.5]),
    "Mixture": (
        Mixture((Bernoulli(0.9), Pattern(PATTERNS)), (1.0, 3.0)),
        [0.7875, 0.6, 0.6, 0.225, 0.6],
    ),
}
every_class = pytest.mark.parametrize("name", EVERY)


def draw(masks: MaskDistribution, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return masks.sample(shape, torch.Generator().manual_seed(seed))


@every_class
def test_every_final_class_is_tested_here(name: str) -> None:
    here = [c for c in MaskDistribution.__subclasses__() if c.__module__ == "postmatch.masks"]
    assert {c.__name__ for c in here} == set(EVERY)
    assert type(EVERY[name][0]).__name__ == name


@every_class
@pytest.mark.parametrize("device", ["cpu", *(["cuda:0"] if torch.cuda.is_available() else [])])
def test_masks_are_bool_of_the_shape_asked_for_on_the_generators_device(
    name: str, device: str
) -> None:
    for rows in (0, 1, 7):
        observed = EVERY[name][0].sample((rows, 5), torch.Generator(device))
        assert (observed.dtype, observed.shape) == (torch.bool, (rows, 5))
        assert observed.device == torch.device(device)


@every_class
def test_a_seed_decides_the_masks_and_nothing_else_does(name: str) -> None:
    masks = EVERY[name][0]
    first = draw(masks, (200, 5), seed=3)
    before = torch.get_rng_state()
    torch.rand(10)
    assert torch.equal(draw(masks, (200, 5), seed=3), first)
    assert not torch.equal(draw(masks, (200, 5), seed=4), first)
    torch.set_rng_state(before)
    draw(masks, (200, 5))
    assert torch.equal(torch.get_rng_state(), before)


@every_class
def test_a_generator_moves_on(name: str) -> None:
    masks, generator = EVERY[name][0], torch.Generator().manual_seed(0)
    first, second = (masks.sample((200, 5), generator) for _ in range(2))
    assert not torch.equal(first, second)


@every_class
def test_features_are_observed_at_the_promised_rates(name: str) -> None:
    masks, rates = EVERY[name]
    observed = draw(masks, (20_000, 5)).double()
    rate = torch.tensor(rates, dtype=torch.float64)
    error = (rate * (1.0 - rate) / len(observed)).sqrt()
    assert ((observed.mean(0) - rate).abs() <= 4.0 * error).all()


@every_class
def test_rows_are_independent(name: str) -> None:
    observed = draw(EVERY[name][0], (20_000, 5)).double()
    for lag in (1, 2):
        here, there = observed[:-lag, :3], observed[lag:, :3]
        both = torch.corrcoef(torch.cat([here, there], dim=1).T)[:3, 3:]
        assert both.abs().max() < 4.5 / math.sqrt(len(observed))


def test_bernoulli_features_are_independent_whatever_the_shape() -> None:
    observed = draw(Bernoulli(0.3), (20_000, 1, 2, 2))
    assert observed.shape == (20_000, 1, 2, 2)
    both = torch.corrcoef(observed.flatten(1).double().T) - torch.eye(4, dtype=torch.float64)
    assert both.abs().max() < 4.5 / math.sqrt(20_000)


def test_uniform_count_makes_every_count_equally_likely_and_features_alike() -> None:
    observed = draw(UniformCount(0.25, 0.75), (20_000, 1, 2, 4))
    assert observed.shape == (20_000, 1, 2, 4)
    count = observed.flatten(1).sum(1)
    share = torch.bincount(count, minlength=9).double() / len(count)
    expected = torch.tensor([0, 0, 1, 1, 1, 1, 1, 0, 0]).double() / 5.0
    error = (expected * (1.0 - expected) / len(count)).sqrt()
    assert ((share - expected).abs() <= 4.0 * error).all()
    # Given the count every set is equally likely: each pair is seen as often as any other.
    of_four = observed.flatten(1)[count == 4].double()
    pairs = (of_four.T @ of_four / len(of_four))[*torch.triu_indices(8, 8, 1)]
    rate = 4 * 3 / (8 * 7)
    assert (pairs - rate).abs().max() < 4.5 * math.sqrt(rate * (1.0 - rate) / len(of_four))


@given(
    features=st.integers(1, 120),
    ends=st.tuples(st.integers(0, 100), st.integers(0, 100)).map(sorted),
)
@example(features=100, ends=[7, 7])  # 0.07 * 100 is a little more than 7
@example(features=100, ends=[29, 29])  # and 0.29 * 100 a little less than 29
@settings(max_examples=60, deadline=None)
def test_uniform_count_keeps_its_bounds(features: int, ends: list[int]) -> None:
    low, high = ends[0] / 100, ends[1] / 100
    # The same bounds in whole numbers, free of rounding.
    fewest, most = -(-ends[0] * features // 100), ends[1] * features // 100
    masks = UniformCount(low, high)
    if fewest > most:
        with pytest.raises(ValueError, match=f"no count of {features} features lies between"):
            draw(masks, (4, features))
    else:
        count = draw(masks, (300, features)).sum(1)
        assert fewest <= count.min()
        assert count.max() <= most
        if most - fewest < 5:  # then 300 draws reach both ends
            assert (count.min(), count.max()) == (fewest, most)


@given(
    rows=st.integers(0, 9),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    probability=st.floats(0.0, 1.0),
    seed=st.integers(0, 2**40),
)
@settings(max_examples=60, deadline=None)
def test_masks_of_any_shape_are_reproducible(
    rows: int, shape: list[int], probability: float, seed: int
) -> None:
    parts = (Bernoulli(probability), UniformCount(), Pattern(torch.ones(1, *shape).bool()))
    for masks in (*parts, Mixture(parts, (0.2, 0.0, 1.0))):
        first, again = (draw(masks, (rows, *shape), seed) for _ in range(2))
        assert first.shape == (rows, *shape)
        assert torch.equal(first, again)
    assert draw(parts[2], (rows, *shape), seed).all()
    if probability in (0.0, 1.0):
        assert (draw(parts[0], (rows, *shape), seed) == bool(probability)).all()


def test_pattern_draws_whole_rows_of_its_table_equally_often() -> None:
    observed = draw(Pattern(PATTERNS), (20_000, 5))
    same = (observed[:, None] == PATTERNS).all(2)  # (rows, patterns)
    assert (same.sum(1) == 1).all()
    assert (same.double().mean(0) - 0.25).abs().max() < 4.0 * math.sqrt(0.25 * 0.75 / 20_000)


def test_mixture_chooses_one_part_for_each_whole_row_by_weight() -> None:
    ones = torch.ones(1, 5).bool()
    masks = Mixture((Pattern(ones), Pattern(~ones), Bernoulli(0.5)), (1.0, 3.0, 0.0))
    observed = draw(masks, (20_000, 5))
    assert (observed.all(1) | ~observed.any(1)).all()  # never from the part of weight zero
    share = observed.all(1).double().mean()
    assert (share - 0.25).abs() < 4.0 * math.sqrt(0.25 * 0.75 / 20_000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bernoulli(1.5), r"probability must lie in \[0, 1\], got 1.5"),
        (lambda: UniformCount(0.6, 0.4), "low <= high.* got 0.6 and 0.4"),
        (lambda: Pattern(torch.ones(2, 3)), "rows must be bool and not empty, got torch.float32"),
        (lambda: Pattern(torch.ones(0, 3).bool()), "not empty, got torch.bool with 0 rows"),
        (lambda: Mixture((), ()), "must pair up, got 0 and 0"),
        (lambda: Mixture((Bernoulli(),), (1.0, 2.0)), "must pair up, got 1 and 2"),
        (lambda: Mixture((Bernoulli(),), (-1.0,)), "weights must"),
        (lambda: Mixture((Bernoulli(),), (0.0,)), "weights must"),
    ],
)
def test_impossible_masks_are_refused(make: Callable[[], MaskDistribution], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_pattern_refuses_rows_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"features of shape \(5,\), asked for \(4,\)"):
        draw(Pattern(PATTERNS), (3, 4))
