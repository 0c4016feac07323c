"""Independent features that are mixtures of Gaussians, against torch's own mixtures."""

import math

import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.nn import functional as F
from torch.testing import assert_close

from postmatch.distributions.mixtures import GaussianMixtures
from postmatch.distributions.noise import from_noise, noise_size

ROWS, COMPONENTS, FEATURES = 2, 4, 3


def both() -> tuple[GaussianMixtures, MixtureSameFamily]:
    """Return the same distribution, ours and torch's."""
    outputs = torch.randn(ROWS, 3 * COMPONENTS, FEATURES)
    logits, mean, raw = outputs.movedim(1, -1).unflatten(-1, (3, COMPONENTS)).unbind(-2)
    parts = Normal(mean, F.softplus(raw) + 1e-4)
    return GaussianMixtures(outputs), MixtureSameFamily(Categorical(logits=logits), parts)


def test_density_and_mean_are_those_of_a_mixture() -> None:
    ours, theirs = both()
    x = 2.0 * torch.randn(5, ROWS, FEATURES)
    assert ours.batch_shape == (ROWS, FEATURES)
    assert_close(ours.log_prob(x), theirs.log_prob(x))
    assert_close(ours.mean, theirs.mean)


def test_draws_have_the_moments_of_the_mixture() -> None:
    ours, theirs = both()
    assert noise_size(ours) == 2 * FEATURES
    drawn = from_noise(ours, torch.rand(40_000, ROWS, 2 * FEATURES))
    again = ours.sample(torch.Size([40_000]))
    for x in (drawn, again):
        assert x.shape == (40_000, ROWS, FEATURES)
        error = (theirs.variance / 40_000).sqrt()
        assert ((x.mean(0) - theirs.mean).abs() < 4.5 * error).all()
        # The share of draws below a point is the distribution function there, component included.
        below = theirs.cdf(torch.ones(ROWS, FEATURES))
        error = (below * (1.0 - below) / 40_000).sqrt() + 1e-6
        assert (((x < 1.0).float().mean(0) - below).abs() < 4.5 * error).all()


def test_features_of_a_draw_are_independent() -> None:
    ours, _ = both()
    x = ours.sample(torch.Size([40_000]))[:, 0]
    correlation = torch.corrcoef(x.T) - torch.eye(FEATURES)
    assert correlation.abs().max() < 4.5 / math.sqrt(40_000)


def test_noise_shared_by_rows_may_broadcast() -> None:
    ours, _ = both()
    uniform = torch.rand(7, 1, 2 * FEATURES)
    assert_close(from_noise(ours, uniform), from_noise(ours, uniform.expand(7, ROWS, -1)))


def test_one_component_is_a_gaussian() -> None:
    outputs = torch.randn(ROWS, 3, FEATURES)
    ours = GaussianMixtures(outputs)
    theirs = Normal(outputs[:, 1], F.softplus(outputs[:, 2]) + 1e-4)
    x = torch.randn(ROWS, FEATURES)
    assert_close(ours.log_prob(x), theirs.log_prob(x))
    assert_close(ours.mean, theirs.mean)
