"""Draws whose noise all rows share, in parts: together they are the same draws."""

import pytest
import torch
from torch.distributions import Distribution, Independent, Laplace, Normal
from torch.testing import assert_close

from postmatch.distributions.noise import noise_size
from postmatch.distributions.shared import shared_draws, shared_parts
from postmatch.distributions.stratified import StratifiedMixture

ROWS = torch.zeros(4, 3)


def mixture(family: type[Distribution]) -> StratifiedMixture:
    """Return two parts that no draw of one could be taken for one of the other."""
    places = (torch.full((4, 2), -1e4), torch.full((4, 2), 1e4))
    return StratifiedMixture([Independent(family(place, 1.0), 1) for place in places])


@pytest.mark.parametrize("family", [Normal, Laplace])  # with noise from outside, and without
@pytest.mark.parametrize("at_once", [0, 2, 6, 16, 50])
def test_parts_of_any_size_are_the_same_draws(family: type[Distribution], at_once: int) -> None:
    both = mixture(family)
    assert (noise_size(both) is None) == (family is Laplace)
    whole = shared_draws(both, 16, 3, ROWS)
    parts = list(shared_parts(both, 16, 3, ROWS, at_once))
    assert max(map(len, parts)) == min(at_once or 16, 16)
    for part in parts:  # as many of each part of the mixture
        assert ((part < 0).sum(0) == len(part) // 2).all()
    assert_close(torch.cat(parts).sort(0).values, whole.sort(0).values, atol=0.0, rtol=0.0)


def test_blocks_have_noise_of_their_own() -> None:
    first, second = shared_parts(mixture(Normal), 2_048, 3, ROWS)
    assert len(first) == len(second) == 1_024
    assert not (first[:, None, 0] == second[None, :, 0]).all(-1).any()  # both entries of z


@pytest.mark.parametrize(
    ("num_samples", "at_once", "message"),
    [
        (0, 0, "num_samples must be at least 1, got 0"),
        (-2, 0, "num_samples must be at least 1, got -2"),
        (7, 4, "num_samples must be a multiple of 2, got 7"),
        (8, 3, "at_once must be 0 or a multiple of 2, got 3"),
    ],
)
def test_numbers_that_do_not_fit_are_told(num_samples: int, at_once: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next(shared_parts(mixture(Normal), num_samples, 0, ROWS, at_once))
