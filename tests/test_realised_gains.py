"""What a network of gains learns from: rows that were met, and rows that were imagined."""

import pytest
import torch
from torch.testing import assert_close

from postmatch import realised_gains, told_gains
from postmatch.acquisition import AmortisedGain
from postmatch.mixture_gains import moved_noise
from postmatch.nets.gains import TableGainNet
from postmatch.table_acquiring import table_acquirer
from postmatch.told_gains import Memory, Recalled, Told, told_by
from small_models import people, people_model

COLUMNS, OFFERS = 6, 5


def recalled(rows: int = 4, **changed: torch.Tensor) -> Recalled:
    """Return rows of which nothing is seen and of which every offer was tried."""
    generator = torch.Generator().manual_seed(1)
    expected, real = torch.randn(2, rows, OFFERS, generator=generator)
    left = torch.rand(rows, 1, generator=generator) + 0.5
    seen, ones = torch.zeros(rows, 2 * COLUMNS), torch.ones(rows, OFFERS)
    return Recalled(seen, expected, real, ones, torch.ones(rows, 1), left)._replace(**changed)


def network() -> TableGainNet:
    torch.manual_seed(0)
    return TableGainNet(people_model().table.specs, OFFERS)


def settled(rows: Recalled, steps: int = 400) -> TableGainNet:
    """Return a network that was trained on the same rows again and again."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        realised_gains._error(net, rows).backward()
        optimizer.step()
    return net


def test_imagined_rows_teach_what_is_expected_alone() -> None:
    net, imagined = network(), torch.zeros(4, 1)
    other = torch.randn(4, OFFERS, generator=torch.Generator().manual_seed(2))

    def error(**changed: torch.Tensor) -> float:
        return realised_gains._error(net, recalled(**changed)).item()

    assert error(role=imagined) == error(role=imagined, real=other)
    assert error(role=imagined) == error(role=imagined, left=torch.ones(4, 1))
    assert error() != error(real=other)
    assert error() != error(left=torch.ones(4, 1))
    assert error(role=imagined) != error(role=imagined, expected=other)


def test_what_is_left_to_tell_is_the_mean_over_rows_that_show_the_same() -> None:
    rows = recalled()
    left = settled(rows).parts(rows.seen).log_left.exp()
    assert_close(left, rows.left.mean().expand_as(left), rtol=1e-3, atol=0.0)


def test_gains_are_told_as_well_where_little_is_left() -> None:
    rows = recalled()
    little = rows._replace(
        **{name: 1e-3 * getattr(rows, name) for name in ("expected", "real", "left")}
    )
    gain, small = (settled(each, 1_500)(each.seen)[0] for each in (rows, little))
    assert_close(gain, rows.real.mean(0), rtol=0.02, atol=0.01)
    assert_close(small, 1e-3 * gain, rtol=0.02, atol=2e-5)


@pytest.mark.parametrize(("confirmed", "trust"), [(1.0, 1.0), (0.4, 0.4), (-1.0, 0.0)])
def test_what_rows_teach_is_trusted_as_far_as_others_confirm_it(
    confirmed: float, trust: float
) -> None:
    generator = torch.Generator().manual_seed(3)
    rows, half = recalled(200), torch.arange(200) % 2
    seen = rows.seen.clone()
    seen[:, 0] = torch.randn(200, generator=generator).sign()  # the income is high or low
    seen[:, COLUMNS] = 1.0  # and always known
    role = 1.0 + half[:, None]  # the others are weighing
    change = torch.where(half[:, None] == 1, confirmed, 1.0) * seen[:, :1].expand(-1, OFFERS)
    rows = rows._replace(
        seen=seen,
        expected=torch.zeros(200, OFFERS),
        real=0.7 + change,
        role=role,
        left=torch.ones(200, 1),
    )
    net = settled(rows)
    assert_close(net.trust_in_rows.clamp(0.0, 1.0).item(), trust, rtol=0.0, atol=0.05)
    high, low = net(seen)[seen[:, 0] > 0.0], net(seen)[seen[:, 0] < 0.0]
    assert_close((high.mean() - low.mean()).item(), 2.0 * trust, rtol=0.0, atol=0.1)
    assert_close((high.mean() + low.mean()).item(), 1.4, rtol=0.0, atol=0.15)  # by the mask


@pytest.mark.parametrize(("many", "learned"), [(300, True), (500, False)])
def test_values_teach_beyond_the_model_where_there_are_many_rows(
    many: int, learned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realised_gains, "_MANY", many)
    gains = table_acquirer(people_model(), target="town").fit(people(), steps=20).gains
    assert isinstance(gains, AmortisedGain)
    assert isinstance(gains.net, TableGainNet)
    assert (gains.net.trust_in_rows.item() != 0.0) == learned


def test_memory_holds_the_latest_rows_with_the_offers_that_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(told_gains, "_REMEMBERED", 5)
    monkeypatch.setattr(told_gains, "_RECALLED", 200)
    memory = Memory(OFFERS, COLUMNS, torch.device("cpu"))
    generator, picked = torch.Generator().manual_seed(0), torch.tensor([3, 1])
    for first, remembered in ((0, {0, 1, 2}), (3, {1, 2, 3, 4, 5})):
        number = torch.arange(first, first + 3.0)
        seen = number[:, None].expand(-1, 2 * COLUMNS)
        by_offer = (torch.stack([number, -number]), torch.stack([10.0 * number, number]))
        told = Told(*by_offer, left=3.0 * number)
        memory.keep(seen, picked, told, torch.ones(3, 2), number % 2)
        found, expected, real, counted, role, left = memory.some(generator)
        assert set(found[:, 0].tolist()) == remembered
        assert_close(expected[:, 3], found[:, 0])
        assert_close(expected[:, 1], -found[:, 0])
        assert_close(real[:, 3], 10.0 * found[:, 0])
        assert_close(counted, torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]).expand_as(counted))
        assert_close(role[:, 0], found[:, 0] % 2)
        assert_close(left[:, 0], 3.0 * found[:, 0])


def test_numbers_are_judged_by_the_means_that_are_predicted() -> None:
    table_model = people_model()
    model = table_model.model
    x, there = table_model.table.encode(people(12, holes=0.0))
    target, samples = torch.arange(COLUMNS) == 1, 4  # the weight
    shown = torch.zeros(2, *there.shape, dtype=torch.bool)
    shown[1, :, 0] = True  # what the income tells of it
    with torch.no_grad():
        told = told_by(model, x, shown, target, samples, torch.Generator().manual_seed(3))
        fresh = moved_noise((samples,), len(x), torch.Generator().manual_seed(3))
        given = model.given(x.repeat(2, 1), shown.flatten(0, 1))
        (decoded,) = given.marginals_from(lambda size: fresh(size).repeat(1, 2, 1), (samples,))
    means = decoded.mean[..., 1].mean(0).view(2, -1)
    error = (x[:, 1] - means).square()
    assert_close(told.real[0], (error[0] - error[1]) / 2.0)
    assert_close(told.left, error[0] / 2.0)


@pytest.mark.parametrize("counts", [[10, 10, 10], [100, 300], [7], [1, 5_000, 20]])
def test_a_batch_has_rows_of_every_part_by_their_number(counts: list[int]) -> None:
    shares = realised_gains._shares(16, counts)
    fair = [16 * count / sum(counts) for count in counts]
    assert all(abs(share - max(1.0, part)) <= 1.0 for share, part in zip(shares, fair, strict=True))
    assert min(shares) >= 1
    assert sum(shares) == 16 or min(fair) < 1.0
