"""Noise: evenly spread, the same for every row, and turned into draws of the right distribution."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import (
    Bernoulli,
    Distribution,
    Gamma,
    Independent,
    MultivariateNormal,
    Normal,
)
from torch.testing import assert_close

from postmatch.distributions.autoregressive import AutoregressiveMixture, mixture_net
from postmatch.distributions.columns import ColumnSpec
from postmatch.distributions.layout import ColumnLayout
from postmatch.distributions.mixed import MixedColumns
from postmatch.distributions.noise import (
    choose_component,
    draw,
    draw_scored,
    from_noise,
    noise_size,
    quasi_uniform,
    standard_logistic,
    standard_normal,
)
from postmatch.distributions.stratified import StratifiedMixture
from postmatch.partial import DiagonalHead, FullGaussianHead

CPU = torch.device("cpu")


def diagonal() -> Distribution:
    return Independent(Normal(torch.randn(2, 3), torch.rand(2, 3) + 0.2), 1)


def full() -> Distribution:
    lower = torch.randn(2, 3, 3).tril() + 2.0 * torch.eye(3)
    return MultivariateNormal(torch.randn(2, 3), scale_tril=lower)


def mixture() -> Distribution:
    return AutoregressiveMixture(mixture_net(3, 4, 8, 1, context_size=2), torch.randn(2, 2))


def columns() -> Distribution:
    specs = (ColumnSpec("number"), ColumnSpec("ordered", size=4), ColumnSpec("category", size=3))
    layout = ColumnLayout(specs, 2)
    return MixedColumns(layout, torch.randn(2, layout.num_outputs))


EVERY = {"diagonal": diagonal, "full": full, "mixture": mixture, "columns": columns}


@torch.no_grad()
@pytest.mark.parametrize("name", EVERY)
def test_from_noise_equals_sample_in_distribution(name: str) -> None:
    distribution = EVERY[name]()
    size = noise_size(distribution)
    assert size is not None
    ours = from_noise(distribution, torch.rand(20_000, 2, size))
    theirs = distribution.sample(torch.Size([20_000]))
    assert ours.shape == theirs.shape
    error = ((ours.var(0) + theirs.var(0)) / 20_000).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < 4.5 * error).all()
    ours, theirs = ours.flatten(1), theirs.flatten(1)  # (samples, 6)
    # Products of pairs, so that the two agree on covariances as well, within and between rows.
    pairs = [torch.einsum("si,sj->sij", v - v.mean(0), v - v.mean(0)) for v in (ours, theirs)]
    error = ((pairs[0].var(0) + pairs[1].var(0)) / 20_000).sqrt()
    assert ((pairs[0].mean(0) - pairs[1].mean(0)).abs() < 4.5 * error).all()


@torch.no_grad()
def test_a_plain_normal_over_features_takes_one_uniform_for_each() -> None:
    decoded = Normal(torch.randn(50, 4, 2, 3), torch.rand(50, 4, 2, 3) + 0.1)
    assert noise_size(decoded) == 6
    uniform = torch.rand(50, 1, 6)
    expected = decoded.icdf(uniform.view(50, 1, 2, 3).expand(50, 4, 2, 3))
    assert_close(from_noise(decoded, uniform), expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_strata_take_equal_shares_of_the_noise() -> None:
    parts = [diagonal(), full()]
    both = StratifiedMixture(parts)
    uniform = torch.rand(10, 2, 3)
    expected = torch.cat([from_noise(parts[0], uniform[:5]), from_noise(parts[1], uniform[5:])])
    assert noise_size(both) == 3
    assert torch.equal(from_noise(both, uniform), expected)


def test_a_distribution_without_from_noise_says_so() -> None:
    gamma = Independent(Gamma(torch.ones(2, 3), torch.ones(2, 3)), 1)
    assert noise_size(gamma) is None
    assert noise_size(Gamma(1.0, 1.0)) is None
    assert noise_size(StratifiedMixture([diagonal(), gamma])) is None
    with pytest.raises(TypeError, match="Gamma has no from_noise; register one for it"):
        from_noise(Gamma(1.0, 1.0), torch.rand(3))


@pytest.mark.parametrize("num_samples", [1, 2, 64, 256])
def test_every_interval_holds_one_point_along_every_axis(num_samples: int) -> None:
    points = quasi_uniform(num_samples, 100, 0, CPU)
    assert points.shape == (num_samples, 1, 100)
    assert points.min() >= 0.0
    assert points.max() < 1.0
    place = (points[:, 0] * num_samples).floor().sort(0).values
    assert torch.equal(place, torch.arange(float(num_samples))[:, None].expand_as(place))


@pytest.mark.parametrize(("num_samples", "intervals"), [(7, 8), (50, 64), (100, 128)])
def test_of_any_number_of_points_no_two_share_an_interval(num_samples: int, intervals: int) -> None:
    place = (quasi_uniform(num_samples, 100, 0, CPU)[:, 0] * intervals).floor().sort(0).values
    assert (place.diff(dim=0) >= 1.0).all()


def test_of_two_axes_every_box_holds_one_point_and_the_two_halves_are_as_even() -> None:
    points = quasi_uniform(64, 2, 3, CPU)[:, 0]
    for some in (points, points[:32], points[32:]):
        for across in (1, 2, 4, 8, 16, 32):
            sides = torch.tensor([float(across), len(some) / across])
            x, y = (some * sides).floor().long().T
            assert len(torch.unique(x * 64 + y)) == len(some)


def test_asking_for_more_axes_changes_none_of_the_first() -> None:
    few, many = (quasi_uniform(64, size, 5, CPU) for size in (7, 300))
    assert torch.equal(few, many[..., :7])


def test_the_seed_decides_the_noise_and_torchs_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    first = quasi_uniform(16, 4, 1, CPU)
    assert torch.equal(quasi_uniform(16, 4, 1, CPU), first)
    assert not torch.equal(quasi_uniform(16, 4, 2, CPU), first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_samples", [64, 256])
def test_axes_of_different_nets_are_correlated_by_chance_alone(num_samples: int) -> None:
    points = quasi_uniform(num_samples, 200, 0, CPU)[:, 0]
    net = torch.arange(200) // 40
    correlation = torch.corrcoef(points.T)[net[:, None] != net].abs()
    assert correlation.max() < 5.0 / math.sqrt(num_samples)  # 16,000 pairs
    assert correlation.square().mean().sqrt() < 1.1 / math.sqrt(num_samples)


def test_more_axes_than_a_sobol_sequence_has_are_fine() -> None:
    assert quasi_uniform(2, 30_000, 0, CPU).shape == (2, 1, 30_000)


def test_the_mean_of_spread_noise_is_far_better_than_that_of_plain_noise() -> None:
    means = torch.stack([standard_normal(quasi_uniform(64, 20, s, CPU)).mean(0) for s in range(50)])
    assert means.square().mean().sqrt() < 0.1 / math.sqrt(64)
    assert means.mean().abs() < 4.0 * means.std() / math.sqrt(means.numel())


@pytest.mark.parametrize("num_samples", [1, 5, 32])
def test_every_point_is_uniform_over_seeds_whatever_their_number(num_samples: int) -> None:
    seeds = torch.cat([quasi_uniform(num_samples, 45, s, CPU) for s in range(800)], 1).double()
    for point in {0, num_samples // 2, num_samples - 1}:
        drawn = seeds[point].sort(0).values  # (seeds, axes)
        steps = torch.arange(801, dtype=torch.float64)[:, None] / 800
        distance = torch.maximum((steps[1:] - drawn).amax(0), (drawn - steps[:-1]).amax(0))
        assert distance.max() < 2.4 / math.sqrt(800)  # Kolmogorov's: 1 in 50,000 for each axis


@pytest.mark.parametrize(("num_samples", "share"), [(5, 1.0), (32, 0.3), (100, 0.2)])
def test_an_average_over_spread_noise_has_no_bias_and_a_share_of_the_variance(
    num_samples: int, share: float
) -> None:
    weight = 0.8 / torch.arange(1.0, 7.0)
    normal = [standard_normal(quasi_uniform(num_samples, 6, s, CPU))[:, 0] for s in range(600)]
    means = torch.stack([(z @ weight).exp().mean() for z in normal]).double()  # of log-normals
    square = float(weight.square().sum())
    truth, variance = math.exp(0.5 * square), math.exp(square) * math.expm1(square)
    assert abs(means.mean() - truth) < 4.0 * means.std() / math.sqrt(600)
    assert means.var() < share * variance / num_samples


def test_spread_noise_is_even_within_each_member_of_a_few() -> None:
    # The first axis chooses one of four, of which each has its own function of the next.
    slope = torch.tensor([1.0, -2.0, 3.0, -1.0])
    means = []
    for seed in range(200):
        member, value = quasi_uniform(32, 2, seed, CPU)[:, 0].T
        means.append((slope[(4 * member).long()] * (value - 0.5)).mean())
    independent = slope.square().mean() / 12.0 / 32
    assert torch.stack(means).square().mean() < 0.1 * independent


def shares(logits: Tensor, uniform: Tensor) -> Tensor:
    chosen = choose_component(logits.expand(len(uniform), -1), uniform, dim=-1)
    return torch.bincount(chosen, minlength=logits.shape[-1]).double() / len(uniform)


def test_components_are_chosen_by_their_weight() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0])
    evenly = (torch.arange(100_000) + 0.5) / 100_000
    assert_close(shares(logits, evenly).float(), logits.softmax(0), atol=2e-5, rtol=0.0)


def test_no_draw_ever_lands_on_what_has_no_weight() -> None:
    # The cumulative sum of single-precision weights ends a little below 1 for some of these rows.
    logits = torch.cat([torch.randn(20_000, 60), torch.full((20_000, 4), -torch.inf)], dim=1)
    largest = torch.tensor(1.0).nextafter(torch.tensor(0.0)).expand(20_000)
    assert choose_component(logits, largest, dim=-1).max() == 59
    first = torch.tensor([-torch.inf, 0.0]).expand(3, -1)
    assert (choose_component(first, torch.tensor([0.0, 0.5, largest[0]]), dim=-1) == 1).all()


def test_quantile_functions_invert_their_distribution_functions_and_stay_finite() -> None:
    uniform = torch.linspace(0.001, 0.999, 500, dtype=torch.float64)
    assert_close(torch.special.ndtr(standard_normal(uniform)), uniform)
    assert_close(torch.sigmoid(standard_logistic(uniform)), uniform)
    ends = torch.tensor([0.0, 1.0])
    for quantile in (standard_normal, standard_logistic):
        low, high = quantile(ends).tolist()
        assert -20.0 < low < -4.0
        assert 4.0 < high < 20.0


# Strata


def bumps() -> StratifiedMixture:
    places, widths = torch.tensor([[-1.0], [3.0]]), torch.tensor([[0.5], [1.5]])
    return StratifiedMixture(
        [Independent(Normal(m[None], s[None]), 1) for m, s in zip(places, widths, strict=True)]
    )


def test_a_stratified_mixture_is_a_density() -> None:
    grid = torch.linspace(-20.0, 20.0, 8001)[:, None, None]
    density = bumps().log_prob(grid)[:, 0].exp()
    assert torch.trapezoid(density, grid[:, 0, 0]).item() == pytest.approx(1.0, abs=1e-4)
    at = torch.tensor([[0.7]])
    expected = 0.5 * sum(part.log_prob(at).exp() for part in bumps().parts)
    assert_close(bumps().log_prob(at).exp(), expected)


def test_every_part_of_a_stratified_mixture_gets_as_many_draws() -> None:
    drawn = bumps().sample(torch.Size([8000]))
    assert drawn.shape == (8000, 1, 1)
    for half, mean, std in ((drawn[:4000], -1.0, 0.5), (drawn[4000:], 3.0, 1.5)):
        assert abs(half.mean() - mean) < 4.0 * std / math.sqrt(4000)
        assert abs(half.std() - std) < 4.0 * std / math.sqrt(8000)


def test_importance_weights_of_a_stratified_mixture_average_to_one() -> None:
    proposal, target = bumps(), Independent(Normal(torch.tensor([[1.0]]), torch.ones(1, 1)), 1)
    weights = torch.stack([_weight(proposal, target) for _ in range(400)])
    assert (weights.mean() - 1.0).abs() < 4.0 * weights.std() / math.sqrt(400)


def _weight(proposal: StratifiedMixture, target: Distribution) -> Tensor:
    z = proposal.sample(torch.Size([20]))
    return (target.log_prob(z) - proposal.log_prob(z)).exp().mean()


def test_a_share_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="num_samples must be a multiple of 2, got 5"):
        bumps().sample(torch.Size([5]))


@pytest.mark.parametrize("make", [diagonal, full])
def test_a_generator_alone_decides_the_draws_of_a_gaussian(
    make: Callable[[], Distribution],
) -> None:
    gaussian = make()
    first = draw(gaussian, (4,), torch.Generator().manual_seed(3))
    torch.manual_seed(17)
    assert torch.equal(draw(gaussian, (4,), torch.Generator().manual_seed(3)), first)
    assert not torch.equal(draw(gaussian, (4,), torch.Generator().manual_seed(4)), first)
    many = draw(gaussian, (40_000,), torch.Generator().manual_seed(0))
    error = gaussian.stddev / 200.0  # one standard error of the mean
    assert ((many.mean(0) - gaussian.mean).abs() < 4.5 * error).all()
    assert_close(many.std(0), gaussian.stddev, rtol=0.02, atol=0.0)


def test_draws_without_a_generator_follow_the_global_state() -> None:
    for distribution in (diagonal(), mixture()):
        torch.manual_seed(5)
        first = draw(distribution, (2,))
        torch.manual_seed(5)
        assert torch.equal(draw(distribution, (2,)), first)


@pytest.mark.parametrize("make", [diagonal, full, lambda: Normal(torch.randn(2, 3), 0.7), mixture])
def test_a_draw_comes_with_its_own_log_density(make: Callable[[], Distribution]) -> None:
    distribution = make()
    drawn, log_prob = draw_scored(distribution, torch.Generator().manual_seed(0))
    assert drawn.shape == distribution.batch_shape + distribution.event_shape
    assert_close(log_prob, distribution.log_prob(drawn), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", [DiagonalHead(4, 3), FullGaussianHead(4, 3)])
def test_gradients_through_a_draw_and_its_log_density_are_those_of_the_long_way(
    head: nn.Module,
) -> None:
    def gradient(*, long: bool) -> Tensor:
        features = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_()
        z, log_prob = draw_scored(head(features), torch.Generator().manual_seed(0))
        log_prob = head(features).log_prob(z) if long else log_prob
        return torch.autograd.grad((log_prob + z.sin().sum(-1)).sum(), features)[0]

    assert_close(gradient(long=False), gradient(long=True), atol=1e-4, rtol=1e-4)


def test_coins_come_from_noise() -> None:
    probability = torch.tensor([0.1, 0.5, 0.9])
    coins = Bernoulli(probability.expand(4_000, 1, 3))
    assert noise_size(coins) == 3
    drawn = from_noise(coins, quasi_uniform(4_000, 3, 0, torch.device("cpu")))
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    # Evenly spread noise is better than four standard errors of independent draws.
    error = (probability * (1.0 - probability) / 4_000).sqrt()
    assert ((drawn.mean((0, 1)) - probability).abs() < 4.0 * error).all()
