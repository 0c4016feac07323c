"""Values that many cells share: found, given their own mass, drawn and written as they are."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from postmatch.distributions.columns import ColumnSpec
from postmatch.distributions.layout import ColumnLayout
from postmatch.distributions.mixed import MixedColumns
from postmatch.nets.columns import ColumnFeatures
from postmatch.tables import Table
from postmatch.tables.scaling import atoms_of, scaling_of

KNOTS = (-2.0, -1.0, 0.0, 1.5, 4.0)
SPECS = (
    ColumnSpec("number", step=0.05, knots=KNOTS),
    ColumnSpec("number", step=0.01, knots=KNOTS, atoms=((-1.0, 0.3), (0.5, 0.1), (0.52, 0.1))),
    ColumnSpec("ordered", size=3),
    ColumnSpec("number", step=0.5, discrete=True, knots=(1.0, 2.5, 12.0), atoms=((2.5, 0.6),)),
    ColumnSpec("category", size=2),
)
CONTINUOUS, DISCRETE = 1, 3


def build(*batch: int) -> MixedColumns:
    torch.manual_seed(0)
    layout = ColumnLayout(SPECS, 3)
    return MixedColumns(layout, torch.randn(*batch, layout.num_outputs))


def rows_with(column: int, values: Tensor, batch: int) -> Tensor:
    x = torch.zeros(len(values), batch, len(SPECS))
    x[..., column] = values[:, None]
    return x


def test_the_density_of_a_column_with_atoms_integrates_to_one() -> None:
    columns = build(4)
    # Midpoints, ten to a resolution, over a range that holds all but a part in 10,000.
    width = 0.001
    values = torch.arange(-300.0, 300.0, width, dtype=torch.float64) + width / 2
    total = torch.zeros(4, dtype=torch.float64)
    for part in values.split(50_000):
        log_prob = columns.log_prob(rows_with(CONTINUOUS, part.float(), 4))[..., CONTINUOUS]
        total += log_prob.double().exp().sum(0) * width
    assert_close(total, torch.ones(4, dtype=torch.float64), atol=5e-3, rtol=0.0)


def test_the_masses_of_whole_numbers_with_atoms_sum_to_one() -> None:
    columns = build(4)
    grid = 1.0 + 0.5 * torch.arange(-4000, 4001)
    mass = columns.log_prob(rows_with(DISCRETE, grid, 4))[..., DISCRETE].exp().sum(0)
    assert_close(mass, torch.ones(4), atol=1e-3, rtol=0.0)


@pytest.mark.parametrize("column", [CONTINUOUS, DISCRETE])
def test_draws_are_at_an_atom_as_often_as_its_mass_says(column: int) -> None:
    columns = build(2)
    number = 40_000
    drawn = columns.sample(torch.Size([number]))[..., column]
    for value, _ in SPECS[column].atoms:
        at = torch.tensor([value])
        mass = columns.log_prob(rows_with(column, at, 2))[0, :, column].exp()
        if column == CONTINUOUS:
            mass = mass * SPECS[column].step  # and what the smooth part has in that interval
            share = ((drawn - value).abs() <= 0.5 * SPECS[column].step).double().mean(0)
            assert ((drawn == at).double().mean(0) > 0.8 * share).all()  # exactly there
        else:
            share = (drawn == value).double().mean(0)
        error = (mass * (1 - mass) / number).sqrt().double()
        # The smooth part is not flat over the interval: a hundredth of the mass, beside 4 s.e.
        assert ((share - mass).abs() < 4 * error + 0.01 * mass).all()


def test_means_count_the_atoms() -> None:
    columns = build(3)
    number = 200_000
    drawn = columns.sample(torch.Size([number]))
    for column in (0, CONTINUOUS):
        error = drawn[..., column].std(0) / number**0.5
        assert ((drawn[..., column].mean(0) - columns.mean[..., column]).abs() < 4 * error).all()


def test_gradients_stay_finite_at_and_beside_atoms() -> None:
    layout = ColumnLayout(SPECS, 3)
    parameters = (30.0 * torch.randn(50, layout.num_outputs)).requires_grad_()
    for value in (-1.0, 0.5, 0.514, 0.52, 1e6):
        x = torch.tensor([value, value, 0.0, 2.5, 1.0])
        log_prob = MixedColumns(layout, parameters).log_prob(x)
        (gradient,) = torch.autograd.grad(log_prob.sum(), parameters)
        assert log_prob.isfinite().all()
        assert gradient.isfinite().all()


def test_before_training_atoms_have_their_shares() -> None:
    layout = ColumnLayout(SPECS, 5)
    drawn = MixedColumns(layout, layout.initial_bias()).sample(torch.Size([40_000]))
    for value, share in SPECS[CONTINUOUS].atoms:
        found = (drawn[:, CONTINUOUS] == torch.tensor(value)).double().mean()
        assert abs(found - share) < 4 * (share * (1 - share) / 40_000) ** 0.5


def test_a_network_is_told_which_atom_a_number_is_at() -> None:
    features = ColumnFeatures(SPECS)
    x = torch.zeros(3, len(SPECS))
    x[:, CONTINUOUS] = torch.tensor([0.5, 0.52, 0.6])
    seen = torch.ones_like(x).bool()
    seen[:, DISCRETE] = False
    found = features(x, seen)
    assert found.shape == (3, features.num_features)
    assert not torch.equal(found[0] != 0, found[1] != 0)
    hidden = features(x, torch.zeros_like(seen))
    assert not hidden.any()


# Which values are atoms


def shares(values: np.ndarray, step: float) -> dict[float, float]:
    return dict(atoms_of(values, values, step))


def test_a_grid_alone_makes_no_atoms() -> None:
    rng = np.random.default_rng(0)
    assert shares(np.round(rng.normal(0, 10, 5000)), 1.0) == {}
    assert shares(rng.normal(size=5000), 1e-3) == {}


def test_a_heap_of_zeros_is_an_atom_however_close_the_other_values_are() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([np.zeros(300), 1e-5 * rng.exponential(size=50), rng.normal(size=650)])
    found = shares(values, 1e-3)
    assert found == {0.0: 0.3}


def test_a_few_values_far_apart_are_all_atoms() -> None:
    values = np.repeat([0.62, 0.71, 0.86, 0.98], [10, 40, 30, 20])
    assert shares(values, 0.01) == {0.62: 0.1, 0.71: 0.4, 0.86: 0.3, 0.98: 0.2}


def test_heaped_answers_are_atoms_of_a_column_of_whole_numbers() -> None:
    rng = np.random.default_rng(0)
    hours = np.concatenate([np.full(500, 40.0), np.round(rng.uniform(20, 60, 500))])
    assert list(shares(hours, 1.0)) == [40.0]


def test_rare_values_are_no_atoms() -> None:
    values = np.concatenate([np.full(5, 7.0), np.random.default_rng(0).normal(size=1000)])
    assert shares(values, 1e-3) == {}


def test_an_atom_comes_back_as_the_caller_wrote_it() -> None:
    odd = 0.1234567890123
    values = np.concatenate([np.full(40, odd), np.random.default_rng(0).normal(size=60)])
    frame = {"a": values, "b": np.arange(100.0) % 7}
    table = Table.fit(np.column_stack(list(frame.values())))
    column = table.columns[0]
    assert [value for value, _ in column.atoms] == [odd]
    x = np.float32((odd - column.location) / column.scale).astype(np.float64)
    assert column.decode(np.array([x]))[0] == odd
    again = type(column).from_json(column.to_json())
    assert again == column


def test_a_few_decimals_among_zeros_are_not_rounded_away() -> None:
    values = np.repeat([0.0, 0.5, 0.83], [990, 2, 8])
    scaling = scaling_of(values, unit=0.0, precision=0.0)
    assert scaling.decimals == 2
    assert scaling.step * scaling.scale == pytest.approx(0.01)
    assert dict(scaling.atoms) == {0.0: 0.99}
