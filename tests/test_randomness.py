"""Seeding is scoped."""

import pytest
import torch

from postmatch.randomness import BLOCK_ROWS, RowNoise, noise_blocks, seeded


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    draws = []
    for seed in (5, 5, 6):
        with seeded(seed):
            draws.append(torch.rand(8))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_the_state_is_as_if_the_block_had_not_run() -> None:
    torch.manual_seed(9)
    expected = torch.rand(4)
    torch.manual_seed(9)
    with seeded(1):
        torch.rand(100)
    assert torch.equal(torch.rand(4), expected)


def test_the_state_comes_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), seeded(1):
        torch.rand(100) @ torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_blocks_nest() -> None:
    with seeded(1):
        expected = torch.rand(4)
    with seeded(1):
        with seeded(2):
            torch.rand(3)
        assert torch.equal(torch.rand(4), expected)


def row_noise(places: list[int], seed: int = 0) -> torch.Tensor:
    noise = RowNoise([(seed, 3, 0), (seed, 3, 1)], torch.tensor(places), torch.device("cpu"))
    noise(4)
    return noise(5)  # (draws, rows, size)


def test_a_row_has_its_noise_in_any_company() -> None:
    company = row_noise([3000, 3072, 3500])
    assert torch.equal(row_noise([3072]), company[:, 1:2])
    draws = company.flatten(1)
    assert not torch.isclose(draws[0], draws[1]).any()
    assert not torch.equal(row_noise([3072], seed=1), row_noise([3072]))


def test_blocks_are_those_of_the_whole_table() -> None:
    rows = torch.tensor([0, 1, 5, 900])
    found = [(block, part.tolist()) for block, part in noise_blocks(rows, 2 * BLOCK_ROWS - 2)]
    assert found == [(1, [0, 1]), (2, [5, 900])]
    assert list(noise_blocks(torch.arange(0), 7)) == []
