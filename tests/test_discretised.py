"""Pixels as mixtures of rounded logistics: masses, means, draws and gradients."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from postmatch.distributions.discretised import DiscretisedLogistics, num_logistic_maps
from postmatch.distributions.noise import from_noise, noise_size

COMPONENTS, SIDE = 3, 2
LEVELS = torch.arange(256, dtype=torch.float64) / 255.0


def logistics(channels: int, batch: int = 2, spread: float = 1.0) -> DiscretisedLogistics:
    maps = num_logistic_maps(channels, COMPONENTS)
    outputs = spread * torch.randn(batch, maps, SIDE, SIDE, dtype=torch.float64)
    return DiscretisedLogistics(outputs, channels)


def every_level(before: Tensor) -> Tensor:
    """Return images with each level in a last channel, behind the channels given."""
    last = LEVELS.view(-1, 1, 1, 1, 1).expand(-1, *before.shape[:-3], 1, SIDE, SIDE)
    return torch.cat([before.expand(256, *before.shape), last], dim=-3)


@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
def test_the_masses_of_all_levels_sum_to_one(spread: float) -> None:
    grey = logistics(1, spread=spread)
    x = every_level(torch.empty(2, 0, SIDE, SIDE).double())
    log_mass = grey.log_prob(x)
    assert log_mass.shape == (256, 2, 1, SIDE, SIDE)
    assert_close(log_mass.logsumexp(0), torch.zeros(2, 1, SIDE, SIDE).double(), atol=1e-12, rtol=0)


def test_the_masses_of_colours_sum_to_one_whatever_the_channels_before() -> None:
    colour = logistics(3)
    # Of a mixture shared by channels, sum_b p(r, g, b) is p(r, g), and so on up to 1.
    some = torch.tensor([0.0, 0.2, 1.0], dtype=torch.float64)
    pairs = itertools.product(some, repeat=2)
    for red, green in pairs:
        before = torch.stack([red, green]).view(2, 1, 1).expand(2, 2, SIDE, SIDE)
        summed = colour.log_prob(every_level(before)).logsumexp(0)
        assert_close(summed, marginal(colour, [red, green]), atol=1e-10, rtol=0)
    greens = torch.stack([marginal(colour, [some[1], g]) for g in LEVELS])
    assert_close(greens.logsumexp(0), marginal(colour, [some[1]]), atol=1e-10, rtol=0)
    reds = torch.stack([marginal(colour, [r]) for r in LEVELS])
    assert_close(reds.logsumexp(0), torch.zeros(2, 1, SIDE, SIDE).double(), atol=1e-10, rtol=0)


def marginal(colour: DiscretisedLogistics, values: list[Tensor]) -> Tensor:
    """Return the log mass of the first channels, by differences of the distribution function."""
    log_mass = colour.logits.log_softmax(-3)
    for c, value in enumerate(values):
        centre = colour.locations[c]
        for slope, earlier in zip(colour.slopes[c], values[:c], strict=True):
            centre = centre + slope * (2.0 * earlier - 1.0)
        low, high = (torch.sigmoid((2.0 * value - 1.0 + end / 255 - centre) / colour.scales[c])
                     for end in (-1.0, 1.0))  # fmt: skip
        low = torch.zeros_like(low) if value == 0.0 else low
        high = torch.ones_like(high) if value == 1.0 else high
        log_mass = log_mass + (high - low).log()
    return log_mass.logsumexp(-3, keepdim=True)


def test_a_pixel_counts_once_whatever_its_channels() -> None:
    colour = logistics(3, batch=4)
    x = (torch.rand(4, 3, SIDE, SIDE) * 255).round() / 255
    assert colour.log_prob(x).shape == (4, 1, SIDE, SIDE)
    assert colour.sample(torch.Size([5])).shape == (5, 4, 3, SIDE, SIDE)
    assert colour.mean.shape == (4, 3, SIDE, SIDE)
    alone = DiscretisedLogistics(torch.randn(3 * COMPONENTS, SIDE, SIDE), 1)
    assert alone.log_prob(x[0, :1]).shape == alone.sample().shape == (1, SIDE, SIDE)


@pytest.mark.parametrize("channels", [1, 3])
def test_draws_are_levels_with_the_masses_of_log_prob(channels: int) -> None:
    maps = torch.randn(1, num_logistic_maps(channels, COMPONENTS), SIDE, SIDE)
    maps[:, (1 + channels) * COMPONENTS : (1 + 2 * channels) * COMPONENTS] *= 0.2  # wide
    ours = DiscretisedLogistics(maps, channels)
    drawn = ours.sample(torch.Size([40_000]))
    assert_close(drawn * 255, (drawn * 255).round(), atol=1e-4, rtol=0)
    assert drawn.min() == 0.0
    assert drawn.max() == 1.0
    # The average of f / p over draws of p is 1 for any masses f, so p has these very masses.
    log_p = ours.log_prob(drawn)
    for centre in (-0.8, 0.0, 0.8):
        maps = torch.full((1, num_logistic_maps(channels, 1), SIDE, SIDE), centre)
        maps[:, 1 + channels :] = -1.0  # a scale of 0.3, and slopes
        weight = (DiscretisedLogistics(maps, channels).log_prob(drawn) - log_p).exp()
        error = weight.std(0) / math.sqrt(40_000)
        assert ((weight.mean(0) - 1.0).abs() < 4.5 * error).all()
        assert (error < 0.1).all()  # few enough weigh much


def test_the_mean_is_that_of_draws() -> None:
    grey = logistics(1, spread=2.0)
    x = every_level(torch.empty(2, 0, SIDE, SIDE).double())
    exact = (grey.log_prob(x).exp() * x).sum(0)
    assert (grey.mean - exact).abs().max() < 0.5 / 255  # what rounding may change
    drawn = grey.sample(torch.Size([20_000])).double()
    error = drawn.std(0) / math.sqrt(20_000)
    assert ((drawn.mean(0) - exact).abs() < 4.5 * error).all()


def test_the_mean_of_colours_is_that_of_draws_inside_the_range() -> None:
    maps = 0.3 * torch.randn(1, num_logistic_maps(3, COMPONENTS), SIDE, SIDE)
    maps[:, 4 * COMPONENTS : 7 * COMPONENTS] -= 4.0  # narrow, so that none is clipped
    colour = DiscretisedLogistics(maps, 3)
    drawn = colour.sample(torch.Size([20_000]))
    error = drawn.std(0) / math.sqrt(20_000) + 0.5 / 255
    assert ((drawn.mean(0) - colour.mean).abs() < 4.5 * error).all()


def test_the_mean_stays_in_the_range_however_far_the_locations() -> None:
    outputs = torch.zeros(1, 3, SIDE, SIDE)
    outputs[:, 1], outputs[:, 2] = torch.tensor([[-40.0, -1.2], [1.2, 40.0]]), -20.0
    expected = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).view(1, 1, SIDE, SIDE)
    assert_close(DiscretisedLogistics(outputs, 1).mean, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("location", [-300.0, -1.0, 0.0, 300.0])
@pytest.mark.parametrize("raw", [-30.0, 0.0, 30.0])
def test_log_masses_and_gradients_are_finite_in_the_tails(location: float, raw: float) -> None:
    outputs = torch.zeros(1, num_logistic_maps(3, 2), SIDE, SIDE)
    outputs[:, 2:8], outputs[:, 8:14] = location, raw
    outputs.requires_grad_()
    for value in (0.0, 1.0 / 255, 0.5, 1.0):
        log_mass = DiscretisedLogistics(outputs, 3).log_prob(torch.full((1, 3, SIDE, SIDE), value))
        (gradient,) = torch.autograd.grad(log_mass.sum(), outputs)
        assert log_mass.isfinite().all()
        assert (log_mass <= 0.0).all()
        assert gradient.isfinite().all()


def test_half_precision_outputs_are_scored_in_single_precision() -> None:
    outputs = torch.randn(2, 9, SIDE, SIDE).bfloat16()
    x = torch.rand(2, 1, SIDE, SIDE)
    found = DiscretisedLogistics(outputs, 1).log_prob(x.bfloat16())
    assert found.dtype == torch.float32
    exact = DiscretisedLogistics(outputs.double(), 1).log_prob(x.bfloat16())
    assert_close(found.double(), exact, atol=1e-4, rtol=1e-4)


def test_values_that_are_off_the_grid_by_rounding_score_the_same() -> None:
    grey = logistics(1)
    x = torch.randint(256, (2, 1, SIDE, SIDE)) / 255
    assert torch.equal(grey.log_prob(x), grey.log_prob((x * 127.5) / 127.5 + 1e-6))


def test_noise_shared_by_rows_may_broadcast() -> None:
    colour = logistics(3)
    size = noise_size(colour)
    assert size == 4 * SIDE * SIDE
    uniform = torch.rand(7, 1, size)
    assert_close(from_noise(colour, uniform), from_noise(colour, uniform.expand(7, 2, -1)))


def test_one_wide_component_is_a_difference_of_sigmoids() -> None:
    outputs = torch.randn(1, 3, SIDE, SIDE)
    location, scale = outputs[:, 1:2], F.softplus(outputs[:, 2:]) + math.exp(-7.0)
    x = torch.full((1, 1, SIDE, SIDE), 100.0 / 255)
    high, low = (torch.sigmoid((2 * x - 1 + end / 255 - location) / scale) for end in (1.0, -1.0))
    found = DiscretisedLogistics(outputs, 1).log_prob(x)
    assert_close(found, (high - low).log(), atol=1e-4, rtol=1e-4)


def test_a_wrong_number_of_maps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of 10 maps for 3 channels, got 9"):
        DiscretisedLogistics(torch.zeros(1, 9, SIDE, SIDE), 3)
