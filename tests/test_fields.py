"""Distributions over maps, levels, and other units: what is drawn is what is scored."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal
from torch.testing import assert_close

from postmatch.distributions.affine import Affine
from postmatch.distributions.autoregressive import mixture_net, split_mixture
from postmatch.distributions.fields import LatentField
from postmatch.distributions.ladder import Ladder
from postmatch.distributions.noise import from_noise, noise_size
from postmatch.nets.pixelcnn import PixelCNN

CHANNELS, GRID = 2, (3, 4)


def field(components: int = 1, batch: int = 5, *, given: str = "both") -> LatentField:
    vector = torch.randn(batch, 6) if given != "map" else None
    spatial = torch.randn(batch, 3, *GRID) if given != "vector" else None
    sizes = {"vector_size": 0 if vector is None else 6, "map_channels": 0 if spatial is None else 3}
    net = PixelCNN(7, GRID, 8, 2, channels=CHANNELS, **sizes)
    told = 7 + (0 if spatial is None else 3)
    return LatentField(net, mixture_net(CHANNELS, components, 8, 1, told), vector, spatial)


def parameters(drawn: LatentField, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and scale of every number given those before it, by one pass."""
    numbers = z.movedim(-3, -1)
    told = drawn.net(numbers, drawn.vector, drawn.spatial).movedim(-3, -1)
    if drawn.spatial is not None:
        own = drawn.spatial.movedim(-3, -1).expand(*told.shape[:-1], -1)
        told = torch.cat([told, own], dim=-1)
    _, mean, scale = split_mixture(drawn.each(numbers, told), dim=-2)
    return mean[..., 0, :].movedim(-1, -3), scale[..., 0, :].movedim(-1, -3)


@pytest.mark.parametrize("given", ["both", "vector", "map"])
@torch.no_grad()
def test_a_map_is_drawn_by_the_conditionals_that_score_it(given: str) -> None:
    drawn = field(given=given)
    uniform = torch.rand(4, 5, noise_size(drawn))
    z = from_noise(drawn, uniform)
    mean, scale = parameters(drawn, z)
    # Of the two uniforms of a number the second is its place; channels of a position lie together.
    place = uniform[..., 1::2].unflatten(-1, (*GRID, CHANNELS)).movedim(-1, -3)
    assert_close(torch.special.ndtr((z - mean) / scale), place, atol=2e-4, rtol=1e-3)
    expected = Normal(mean, scale).log_prob(z).flatten(2).sum(2)
    assert_close(drawn.log_prob(z), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_number_depends_on_none_that_comes_after_it() -> None:
    drawn = field(batch=1)
    z = drawn.sample()
    before = parameters(drawn, z)[0]
    order = torch.arange(math.prod(GRID) * CHANNELS).view(*GRID, CHANNELS).movedim(-1, 0)
    changed = z.clone()
    changed[0, 1, 1, 2] += 3.0  # channel 1 of row 1, column 2
    after = parameters(drawn, changed)[0]
    moved = (after - before).abs()[0] > 1e-6
    assert not moved[order <= order[1, 1, 2]].any()
    assert moved[order > order[1, 1, 2]].any()


@torch.no_grad()
def test_draws_of_mixtures_over_maps_fit_their_density() -> None:
    drawn = field(components=3, batch=1)
    z = drawn.sample(torch.Size([4_000]))[:, 0]
    flat = z.flatten(1)
    narrow = Independent(Normal(flat[:2_000].mean(0), 0.9 * flat[:2_000].std(0)), 1)
    weight = (narrow.log_prob(flat[2_000:]) - drawn.log_prob(z[2_000:, None])[:, 0]).exp()
    assert (weight.mean() - 1.0).abs() < 4.5 * weight.std() / math.sqrt(2_000)


def test_a_map_expands_as_its_condition_does() -> None:
    drawn = field(batch=1)
    z = torch.randn(3, 1, CHANNELS, *GRID)
    assert_close(drawn.expand((3, 1)).log_prob(z), drawn.log_prob(z))


@torch.no_grad()
def test_other_units_move_a_distribution_and_keep_its_mass() -> None:
    shift, scale = torch.randn(2, 3), 0.5 + torch.rand(2, 3)
    base = Independent(Normal(torch.zeros(4, 6), 2.0), 1)  # a vector, for z of another shape
    placed = Affine(base, shift, scale)
    z = torch.randn(7, 4, 2, 3)
    truth = Independent(Normal(shift.expand(4, 2, 3), 2.0 * scale), 2)
    assert_close(placed.log_prob(z), truth.log_prob(z))
    uniform = torch.rand(7, 4, 6)
    assert_close(from_noise(placed, uniform), from_noise(truth, uniform))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        drawn = placed.sample(torch.Size([5]))
        torch.manual_seed(1)
        assert_close(drawn, shift + scale * base.sample(torch.Size([5])).view(5, 4, 2, 3))


class Two(Normal):
    """A normal that takes two uniforms per number, as mixtures do."""


@from_noise.register
def _(distribution: Two, uniform: Tensor) -> Tensor:
    return distribution.loc + distribution.scale * torch.special.ndtri(uniform[..., 1::2])


def linear_ladder(batch: int) -> tuple[Ladder, MultivariateNormal]:
    """Return two levels of which the second follows the first, and their joint Gaussian."""
    slope = torch.tensor([[1.0, -2.0, 0.5]])

    def level(i: int, before: Tensor) -> Distribution:
        if i == 0:
            return TwoEach(torch.zeros(*before.shape[:-1], 1), 1.5)
        return TwoEach(before @ slope, 0.7)

    ladder = Ladder(level, [torch.Size([1]), torch.Size([3])], torch.Size([batch]), slope)
    across = torch.cat([torch.ones(1, 1), slope], dim=1)
    covariance = 1.5**2 * across.mT @ across + torch.diag(torch.tensor([0.0, *[0.49] * 3]))
    return ladder, MultivariateNormal(torch.zeros(batch, 4), covariance)


class TwoEach(Independent):
    def __init__(self, mean: Tensor, scale: float) -> None:
        super().__init__(Two(mean, scale), 1)


@from_noise.register
def _(distribution: TwoEach, uniform: Tensor) -> Tensor:
    return from_noise(distribution.base_dist, uniform)


@torch.no_grad()
def test_levels_that_follow_each_other_are_one_gaussian() -> None:
    ladder, joint = linear_ladder(5)
    z = 2.0 * torch.randn(6, 5, 4)
    assert_close(ladder.log_prob(z), joint.log_prob(z), rtol=1e-4, atol=1e-4)
    drawn = ladder.sample(torch.Size([4_000]))[:, 0]
    covariance = drawn.mT @ drawn / 4_000
    truth = joint.covariance_matrix[0]
    spread = (truth.square() + torch.outer(truth.diag(), truth.diag())).sqrt()  # of one product
    assert ((covariance - truth).abs() < 4.5 * spread / math.sqrt(4_000)).all()


@torch.no_grad()
def test_levels_take_their_own_noise() -> None:
    ladder, _ = linear_ladder(5)
    uniform = torch.rand(3, 1, noise_size(ladder))
    z = from_noise(ladder, uniform)
    noise = torch.special.ndtri(uniform[..., 1::2])
    assert_close(z[..., :1], 1.5 * noise[..., :1].expand(3, 5, 1))
    slope = torch.tensor([1.0, -2.0, 0.5])
    assert_close(z[..., 1:], z[..., :1] * slope + 0.7 * noise[..., 1:].expand(3, 5, 3))
