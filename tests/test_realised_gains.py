"""What a network of gains learns from: rows that were met, and rows that were imagined."""

import pytest
import torch
from torch.testing import assert_close

from postmatch import realised_gains
from postmatch.mixture_gains import moved_noise
from postmatch.nets.gains import TableGainNet
from postmatch.realised_gains import Told
from small_models import people, people_model

COLUMNS, OFFERS = 6, 5


def test_imagined_rows_teach_what_is_expected_alone() -> None:
    torch.manual_seed(0)
    net = TableGainNet(people_model().table.specs, OFFERS)
    seen, counted = torch.zeros(4, 2 * COLUMNS), torch.ones(4, OFFERS)
    expected, real, other = torch.randn(3, 4, OFFERS)

    def error(expected: torch.Tensor, real: torch.Tensor, known: float) -> float:
        told = torch.full((4, 1), known)
        return realised_gains._error(net, seen, expected, real, counted, told).item()

    assert error(expected, real, 0.0) == error(expected, other, 0.0)
    assert error(expected, real, 1.0) != error(expected, other, 1.0)
    assert error(expected, real, 0.0) != error(other, real, 0.0)


def test_memory_holds_the_latest_rows_with_the_offers_that_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(realised_gains, "_REMEMBERED", 5)
    monkeypatch.setattr(realised_gains, "_RECALLED", 200)
    memory = realised_gains._Memory(OFFERS, COLUMNS, torch.device("cpu"))
    generator, picked = torch.Generator().manual_seed(0), torch.tensor([3, 1])
    for first, remembered in ((0, {0, 1, 2}), (3, {1, 2, 3, 4, 5})):
        number = torch.arange(first, first + 3.0)
        seen = number[:, None].expand(-1, 2 * COLUMNS)
        told = Told(torch.stack([number, -number]), torch.stack([10.0 * number, number]))
        memory.keep(seen, picked, told, torch.ones(3, 2), number % 2)
        found, expected, real, counted, known = memory.some(generator)
        assert set(found[:, 0].tolist()) == remembered
        assert_close(expected[:, 3], found[:, 0])
        assert_close(expected[:, 1], -found[:, 0])
        assert_close(real[:, 3], 10.0 * found[:, 0])
        assert_close(counted, torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]).expand_as(counted))
        assert_close(known[:, 0], found[:, 0] % 2)


def test_numbers_are_judged_by_the_means_that_are_predicted() -> None:
    table_model = people_model()
    model = table_model.model
    x, there = table_model.table.encode(people(12, holes=0.0))
    target, samples = torch.arange(COLUMNS) == 1, 4  # the weight
    shown = torch.zeros(2, *there.shape, dtype=torch.bool)
    shown[1, :, 0] = True  # what the income tells of it
    with torch.no_grad():
        told = realised_gains._told(
            model, x, shown, target, samples, torch.Generator().manual_seed(3)
        )
        fresh = moved_noise((samples,), len(x), torch.Generator().manual_seed(3))
        given = model.given(x.repeat(2, 1), shown.flatten(0, 1))
        (decoded,) = given.marginals_from(lambda size: fresh(size).repeat(1, 2, 1), (samples,))
    means = decoded.mean[..., 1].mean(0).view(2, -1)
    error = (x[:, 1] - means).square()
    assert_close(told.real[0], (error[0] - error[1]) / 2.0)


@pytest.mark.parametrize("counts", [[10, 10, 10], [100, 300], [7], [1, 5_000, 20]])
def test_a_batch_has_rows_of_every_part_by_their_number(counts: list[int]) -> None:
    shares = realised_gains._shares(16, counts)
    fair = [16 * count / sum(counts) for count in counts]
    assert all(abs(share - max(1.0, part)) <= 1.0 for share, part in zip(shares, fair, strict=True))
    assert min(shares) >= 1
    assert sum(shares) == 16 or min(fair) < 1.0
