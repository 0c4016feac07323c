"""Columns of different types: masses and densities, draws, best values, extremes and features."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from postmatch.distributions.columns import ColumnSpec
from postmatch.distributions.layout import ColumnLayout
from postmatch.distributions.mixed import MixedColumns
from postmatch.nets.columns import ColumnFeatures

KNOTS = (-2.0, -1.0, 0.0, 1.5, 4.0)
SPECS = (
    ColumnSpec("category", size=5),
    ColumnSpec("number", step=0.05, knots=KNOTS),
    ColumnSpec("ordered", size=4),
    ColumnSpec("number", step=0.5, discrete=True, knots=(1.0, 2.5, 4.0, 12.0)),
    ColumnSpec("category", size=2),
    ColumnSpec("number", step=3.0, knots=(-0.2, 0.0, 0.5)),  # a resolution wider than all values
    ColumnSpec("ordered", size=2),
    ColumnSpec("category", size=7),
    ColumnSpec("number", step=1e-5, knots=KNOTS),
    ColumnSpec("category", size=1),
)
LEVELS = {0: 5, 2: 4, 4: 2, 6: 2, 7: 7, 9: 1}
CONTINUOUS = [1, 5, 8]
INTEGER = 3


def build(*batch: int, specs: tuple[ColumnSpec, ...] = SPECS, components: int = 3) -> MixedColumns:
    """Return random columns: bumps of different weights, places and widths."""
    layout = ColumnLayout(specs, components)
    return MixedColumns(layout, 1.5 * torch.randn(*batch, layout.num_outputs))


def log_prob_of(columns: MixedColumns, column: int, values: Tensor) -> Tensor:
    """Return one column's log_prob at many values, ``(values, *batch)``."""
    batch = columns.parameters.shape[:-1]
    x = torch.zeros(len(values), *batch, len(columns.layout.specs))
    x[..., column] = values.view(-1, *[1] * len(batch))
    return columns.log_prob(x)[..., column]


def grid_of(spec: ColumnSpec, reach: int) -> Tensor:
    """Return the values that an integer column can take, far in both directions."""
    return spec.knots[0] + spec.step * torch.arange(-reach, reach + 1)


def test_layout_gives_every_column_its_own_parameters() -> None:
    columns = build()
    columns.parameters.mul_(0.2)  # so that no gradient vanishes by rounding
    layout = columns.layout
    assert layout.num_outputs == 6 * 3 * 3 + 5 + 2 + 7 + 1
    x = columns.sample()
    jacobian = torch.autograd.functional.jacobian(
        lambda p: MixedColumns(layout, p).log_prob(x), columns.parameters
    )
    used = jacobian != 0.0  # (columns, parameters)
    assert (used.sum(0) <= 1).all()  # no parameter serves two columns
    assert used.sum(1).tolist() == [5, 9, 9, 9, 2, 9, 9, 7, 9, 0]  # and one level needs none


def test_masses_of_levels_sum_to_one() -> None:
    columns = build(40)
    for column, size in LEVELS.items():
        mass = log_prob_of(columns, column, torch.arange(float(size))).exp()
        assert_close(mass.sum(0), torch.ones(40), atol=1e-5, rtol=0.0)
        assert_close(columns.probs(column), mass.T, atol=1e-6, rtol=0.0)


def test_masses_of_whole_numbers_sum_to_one() -> None:
    columns = build(10)
    mass = log_prob_of(columns, INTEGER, grid_of(SPECS[INTEGER], 2000)).exp()
    assert_close(mass.sum(0), torch.ones(10), atol=1e-3, rtol=0.0)


@pytest.mark.parametrize("column", CONTINUOUS)
def test_densities_integrate_to_one(column: int) -> None:
    columns = build(6)
    grid = torch.linspace(-150.0, 150.0, 60_001)
    density = log_prob_of(columns, column, grid).exp()
    assert_close(torch.trapezoid(density, grid, dim=0), torch.ones(6), atol=2e-3, rtol=0.0)


@pytest.mark.parametrize("column", CONTINUOUS)
def test_no_density_exceeds_one_over_the_resolution(column: int) -> None:
    columns = build(6)
    columns.parameters.mul_(20.0)  # narrow bumps
    density = log_prob_of(columns, column, torch.linspace(-6.0, 6.0, 20_001))
    assert density.max() <= -math.log(SPECS[column].step) + 1e-4


def test_a_density_at_fine_resolution_is_the_plain_logistic_density() -> None:
    columns = build(1, components=1)
    spec = SPECS[8]
    mixtures = columns.parameters[0, : columns.layout.num_mixture].view(3, -1)
    _, mean, raw = mixtures[:, 5].tolist()  # the sixth scaled column
    centre = spec.centre + spec.spread * mean
    scale = spec.spread * (math.log1p(math.exp(raw)) + 0.01)  # no component is narrower
    x = torch.linspace(-3.0, 5.0, 9)
    place = (x.double() - centre) / scale
    expected = -place - 2.0 * torch.nn.functional.softplus(-place) - math.log(scale)
    found = log_prob_of(columns, 8, x)[:, 0].double()
    assert_close(found, expected, atol=1e-3, rtol=0.0)


@pytest.mark.parametrize("column", [*LEVELS, INTEGER])
def test_draws_take_each_level_as_often_as_its_mass(column: int) -> None:
    columns = build(3)
    drawn = columns.sample(torch.Size([20_000]))[..., column]  # (samples, batch)
    if column == INTEGER:
        values = grid_of(SPECS[INTEGER], 400)
    else:
        values = torch.arange(float(LEVELS[column]))
    mass = log_prob_of(columns, column, values).exp().double()
    share = (drawn[..., None] - values).abs().lt(1e-3).double().mean(0).T  # (values, batch)
    assert_close(share.sum(0), torch.ones(3).double(), atol=2e-3, rtol=0.0)  # nothing in between
    used = mass * 20_000 > 10.0
    error = (mass * (1.0 - mass) / 20_000).sqrt()
    assert ((share - mass).abs() < 4.5 * error + 1e-6)[used].all()


@pytest.mark.parametrize("column", CONTINUOUS)
def test_draws_of_numbers_follow_their_density(column: int) -> None:
    columns = build(3)
    grid = torch.linspace(-150.0, 150.0, 60_001)
    density = log_prob_of(columns, column, grid).exp().double()  # (grid, batch)
    below = torch.cumulative_trapezoid(density, grid.double(), dim=0)
    drawn = columns.sample(torch.Size([5000]))[..., column]
    for row in range(3):
        value = drawn[:, row].sort().values
        place = below[:, row][((value + 150.0) / 0.005).long().clamp(0, 59_999)]
        expected = (torch.arange(5000) + 0.5) / 5000
        # Once in a thousand such deviations exceed 1.95; the grid adds its own step.
        assert (place - expected).abs().max() < 1.95 / math.sqrt(5000) + 2e-3


def test_the_mean_is_that_of_draws() -> None:
    columns = build(4)
    drawn = columns.sample(torch.Size([40_000]))
    order = [i for i, spec in enumerate(SPECS) if spec.kind != "category"]
    error = drawn.std(0) / math.sqrt(40_000)
    step = torch.tensor([0.05 * SPECS[i].step if SPECS[i].discrete else 0.0 for i in order])
    gap = (drawn.mean(0) - columns.mean).abs()[:, order]
    assert (gap < 4.5 * error[:, order] + step).all()


def test_the_mean_of_a_category_is_its_likeliest_level() -> None:
    columns = build(8)
    for column in (0, 4, 7, 9):
        assert torch.equal(columns.mean[:, column], columns.probs(column).argmax(-1).float())


def test_the_mean_of_ordered_levels_stays_between_them_however_far_the_decoder_points() -> None:
    spec = ColumnSpec("ordered", size=4)
    layout = ColumnLayout([spec], 1)
    far = MixedColumns(layout, torch.tensor([[0.0, 50.0, 0.0], [0.0, -50.0, 0.0]]))
    assert_close(far.mean, torch.tensor([[3.0], [0.0]]), atol=1e-4, rtol=0.0)


def test_the_outermost_ordered_levels_reach_to_infinity() -> None:
    layout = ColumnLayout([ColumnSpec("ordered", size=3)], 1)
    far = MixedColumns(layout, torch.tensor([[0.0, 1000.0, -5.0], [0.0, -1000.0, -5.0]]))
    probs = far.probs(0)
    assert_close(probs, torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]), atol=1e-5, rtol=0.0)
    assert torch.equal(far.sample()[:, 0], torch.tensor([2.0, 0.0]))


def averaged(kind: str) -> MixedColumns:
    """Return three draws of z: two lean to level 1, the third is sure of level 0."""
    probs = torch.tensor([[0.4, 0.6], [0.4, 0.6], [0.999, 0.001]])
    if kind == "category":
        layout = ColumnLayout([ColumnSpec("category", size=2)], 2)
        return MixedColumns(layout, probs.log()[:, None])
    # Two sharp components, one on each level, weighted by the probabilities.
    layout = ColumnLayout([ColumnSpec("ordered", size=2)], 2)
    place = (torch.tensor([0.0, 1.0]) - layout.specs[0].centre) / layout.specs[0].spread
    sharp = torch.full((3, 2), -8.0)
    return MixedColumns(layout, torch.cat([probs.log(), place.expand(3, 2), sharp], 1)[:, None])


@pytest.mark.parametrize("kind", ["category", "ordered"])
def test_the_best_level_is_chosen_after_averaging_probabilities(kind: str) -> None:
    columns = averaged(kind)
    # Averaged: 0.6 for level 0. A vote of the three, or the middle of their bests, would say 1.
    assert_close(columns.probs(0).mean(0)[0, 0].item(), 0.6, atol=0.01, rtol=0.0)
    assert columns.point().item() == 0.0


def test_the_best_number_is_the_mean_over_draws_of_z() -> None:
    columns = build(7, 4)
    expected = columns.mean.mean(0)
    numbers = [i for i, spec in enumerate(SPECS) if spec.kind == "number"]
    assert_close(columns.point()[:, numbers], expected[:, numbers])


def test_best_values_of_every_column_stand_in_their_own_place() -> None:
    columns = build(1, 30)
    best = columns.point()
    for column in LEVELS:
        mass = columns.probs(column)[0]
        assert torch.equal(best[:, column], mass.argmax(-1).float())


@pytest.mark.parametrize("value", [1e8, -1e8, 1e4, -1e4, 0.0])
@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("step", [1e-9, 1e-3, 1e3])
def test_log_prob_and_its_gradient_are_finite_at_extremes(
    value: float, size: float, step: float
) -> None:
    specs = (
        ColumnSpec("number", step=step, knots=KNOTS),
        ColumnSpec("number", step=step, discrete=True, knots=KNOTS),
        ColumnSpec("ordered", size=3),
        ColumnSpec("category", size=3),
    )
    layout = ColumnLayout(specs, 3)
    parameters = (size * torch.randn(50, layout.num_outputs)).requires_grad_()
    x = torch.tensor([value, value, 2.0, 1.0])
    log_prob = MixedColumns(layout, parameters).log_prob(x)
    assert log_prob.isfinite().all()
    (gradient,) = torch.autograd.grad(log_prob.sum(), parameters)
    assert gradient.isfinite().all()


def test_values_broadcast_against_parameters_in_both_directions() -> None:
    columns = build(6, 4)
    one, many = columns.sample()[0], columns.sample(torch.Size([5]))
    assert columns.log_prob(one).shape == (6, 4, 10)
    assert columns.log_prob(many).shape == (5, 6, 4, 10)
    for i in range(6):
        alone = MixedColumns(columns.layout, columns.parameters[i])
        assert_close(columns.log_prob(one)[i], alone.log_prob(one))
        assert_close(columns.log_prob(many)[:, i], alone.log_prob(many[:, i]))


@pytest.mark.parametrize("kind", ["number", "ordered", "category"])
def test_a_table_of_one_kind_alone_works(kind: str) -> None:
    spec = ColumnSpec("number") if kind == "number" else ColumnSpec(kind, size=3)  # type: ignore[arg-type]
    columns = build(5, specs=(spec, spec))
    x = columns.sample(torch.Size([3]))
    assert x.shape == (3, 5, 2)
    assert columns.log_prob(x).isfinite().all()
    features = ColumnFeatures((spec, spec))(x[0], torch.ones(5, 2).bool())
    assert features.isfinite().all()
    assert (features != 0.0).any(1).all()
    expected = columns.mean.mean(0) if kind == "number" else None
    if expected is not None:
        assert_close(columns.point(), expected)


def test_before_training_numbers_have_about_their_marginal() -> None:
    torch.manual_seed(0)
    values = torch.cat([torch.randn(4000) - 2.0, 0.3 * torch.randn(2000) + 6.0])
    knots = tuple(values.quantile(torch.linspace(0, 1, 17)).tolist())
    layout = ColumnLayout([ColumnSpec("number", knots=knots)], 5)
    drawn = MixedColumns(layout, layout.initial_bias()).sample(torch.Size([20_000]))[:, 0]
    levels = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9])
    gap = (drawn.quantile(levels) - values.quantile(levels)).abs()
    assert gap.max() < 0.2 * values.std()


@pytest.mark.parametrize("column", [-1, 1, 10])
def test_only_levels_have_probs(column: int) -> None:
    with pytest.raises(ValueError, match=f"column must be that of levels, got {column}"):
        build(1).probs(column)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "text"}, "kind must be number, ordered or category, got 'text'"),
        ({"kind": "number", "step": 0.0}, "step must be positive and finite, got 0.0"),
        ({"kind": "number", "step": math.inf}, "step must be positive and finite, got inf"),
        ({"kind": "number", "knots": (1.0,)}, r"knots must increase.*got \(1.0,\)"),
        ({"kind": "number", "knots": (0.0, 0.0)}, "knots must increase"),
        ({"kind": "category", "size": 0}, "size must be at least 1, got 0"),
    ],
)
def test_impossible_columns_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ColumnSpec(**arguments)  # type: ignore[arg-type]


# Features


def test_features_are_zero_where_nothing_is_observed_and_finite_whatever_is_hidden() -> None:
    features = ColumnFeatures(SPECS)
    hidden = torch.tensor([math.nan, math.inf, -math.inf, 1e30, math.nan]).repeat(2).expand(4, -1)
    found = features(hidden, torch.zeros(4, 10, dtype=torch.bool))
    assert torch.equal(found, torch.zeros(4, features.num_features))


def test_a_column_moves_its_own_features_alone() -> None:
    features = ColumnFeatures(SPECS)
    x = build(1).sample()
    everything = torch.ones(1, 10, dtype=torch.bool)
    whole = features(x, everything)
    moved_by = []
    for column in range(10):
        without = everything.clone()
        without[:, column] = False
        moved_by.append((features(x, without) != whole)[0])
    moved = torch.stack(moved_by)
    assert (moved.sum(0) <= 1).all()
    assert (moved.sum(1) >= 1).all()


def test_a_number_becomes_its_place_among_the_knots() -> None:
    features = ColumnFeatures([ColumnSpec("number", knots=(0.0, 1.0, 3.0))])
    x = torch.tensor([[-5.0], [0.0], [0.5], [1.0], [2.5], [9.0], [4.5]])
    found = features(x, torch.ones_like(x, dtype=torch.bool))
    place = torch.tensor(  # how far through each gap, less a half
        [[0.0, 0.0], [0.0, 0.0], [0.5, 0.0], [1.0, 0.0], [1.0, 0.75], [1.0, 1.0], [1.0, 1.0]]
    )
    value = (x - 1.0) / 1.5  # centre: the middle knot; spread: half the way between the outer ones
    expected = torch.cat([place - 0.5, value.clamp(-5.0, 5.0), torch.ones_like(x)], dim=1)
    assert_close(found, expected)


def test_columns_with_fewer_knots_are_padded_without_effect() -> None:
    short = ColumnSpec("number", knots=(0.0, 2.0))
    both = ColumnFeatures([short, ColumnSpec("number", knots=(0.0, 1.0, 2.0, 3.0))])
    x = torch.tensor([[0.5, 0.0], [1.5, 0.0]])
    found = both(x, torch.tensor([[True, False]]).expand(2, -1))[:, :3]  # gaps of the short one
    assert_close(found, torch.tensor([[-0.25, -0.5, -0.5], [0.25, -0.5, -0.5]]))


def test_a_level_becomes_its_indicator_and_an_unknown_one_the_nearest() -> None:
    features = ColumnFeatures([ColumnSpec("category", size=3), ColumnSpec("category", size=2)])
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0], [7.0, -1.0]])
    found = features(x, torch.ones_like(x, dtype=torch.bool))
    seen = torch.ones(3, 2)
    indicator = torch.tensor([[1, 0, 0, 0, 1], [0, 0, 1, 1, 0], [0, 0, 1, 1, 0]])
    assert_close(found, torch.cat([seen, indicator.float()], dim=1))
    assert features.num_features == found.shape[1]
