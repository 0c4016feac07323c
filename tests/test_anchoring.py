"""Latent vectors that start out as the rows: what each network says before any training."""

import dataclasses
import math

import pytest
import torch

from postmatch.anchoring import anchor_decoder, anchor_encoder, anchor_posterior
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import mixture_net
from postmatch.nets.linear import Linear
from postmatch.nets.mlp import WithInput
from postmatch.partial import DiagonalHead
from postmatch.recipes.uci import build, config_of

NOISE = 0.05  # the recipe's


@pytest.fixture
def model() -> MatchedVAE:
    """Return an untrained model of 8 features with 16 entries of z."""
    torch.manual_seed(0)
    return build(config_of("gas", "best")).eval()


def test_the_posterior_starts_at_the_row(model: MatchedVAE) -> None:
    x = torch.randn(200, 8)
    with torch.no_grad():
        posterior = model.vae.encode(x)
    # What is left of a network's own answer is a tenth of it.
    assert (posterior.mean[:, :8] - x).abs().max() < 0.2
    assert posterior.stddev[:, :8].log().sub(math.log(NOISE)).abs().max() < 0.2
    assert posterior.stddev[:, 8:].min() > 0.5


def test_the_decoder_starts_at_the_first_entries(model: MatchedVAE) -> None:
    z = torch.randn(200, 16)
    with torch.no_grad():
        decoded = model.vae.decode(z)
    assert (decoded.mean - z[:, :8]).abs().max() < 0.2
    assert decoded.sample().sub(z[:, :8]).std() < 0.15


def test_the_partial_posterior_knows_what_is_observed_and_nothing_of_the_rest(
    model: MatchedVAE,
) -> None:
    x, observed = torch.randn(100, 8), torch.rand(100, 8) < 0.5
    with torch.no_grad():
        z = model.partial(x, observed).sample(torch.Size([200]))[..., :8]
    off, spread = (z.mean(0) - x).abs(), z.std(0)
    assert off[observed].max() < 0.2
    assert spread[observed].max() < 0.15
    assert spread[~observed].min() > 0.5
    assert z.mean(0)[~observed].abs().max() < 0.7


def test_hidden_values_are_never_read(model: MatchedVAE) -> None:
    x, observed = torch.randn(20, 8), torch.rand(20, 8) < 0.5
    z = torch.randn(20, 16)
    with torch.no_grad():
        expected = model.partial(x, observed).log_prob(z)
        found = model.partial(x.masked_fill(~observed, math.nan), observed).log_prob(z)
    assert torch.equal(found, expected)


def test_training_moves_what_was_anchored(model: MatchedVAE) -> None:
    x, observed = torch.randn(50, 8), torch.rand(50, 8) < 0.5
    sum(model.bound_losses(x, None, observed).values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_a_network_can_show_its_input_beside_its_features() -> None:
    x = torch.randn(3, 5)
    found = WithInput(torch.nn.Linear(5, 2))(x)
    assert found.shape == (3, 7)
    assert torch.equal(found[:, 2:], x)


def test_z_must_have_room_for_the_features() -> None:
    with pytest.raises(ValueError, match="latent_size must be at least 6 features, got 4"):
        anchor_encoder(DiagonalHead(12, 4), 6, NOISE)
    with pytest.raises(ValueError, match="at least 6 features"):
        anchor_decoder(Linear(4, 18), 6, 4, NOISE)
    with pytest.raises(ValueError, match="at least 6 features"):
        anchor_posterior(mixture_net(4, 3, 8, 1, context_size=12), 6, NOISE)


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [("full_encoder", True), ("full_posterior", True), ("feature_components", 0)],
)
def test_a_recipe_says_what_an_anchor_needs(setting: str, wrong: object) -> None:
    config = dataclasses.replace(config_of("gas", "best"), **{setting: wrong})
    with pytest.raises(ValueError, match=f"anchored needs .*{setting}"):
        build(config)
