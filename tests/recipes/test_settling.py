"""Scales that held-out rows settle: too narrow ones are widened, and best guesses stay."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from postmatch.conditioning import MatchedVAE
from postmatch.masks import Bernoulli
from postmatch.recipes.settling import settle_scales
from postmatch.recipes.uci import build, config_of, fit
from postmatch.vaes.mixture import MixtureVAE

SMALL = dataclasses.replace(
    config_of("power", "best"), latent_size=6, width=16, mask_width=16, blocks=1, decoder_blocks=1,
    mask_blocks=1, components=2, feature_components=2, steps=150, batch_size=64, keep_best=False,
    precision="float32",
)  # fmt: skip


def rows(seed: int) -> Tensor:
    """Return rows of six numbers that go up and down together."""
    generator = torch.Generator().manual_seed(seed)
    common, own = (torch.randn(400, n, generator=generator) for n in (1, 6))
    return 0.8 * common + 0.6 * own


@torch.no_grad()
def conditional(model: MatchedVAE, x: Tensor) -> float:
    """Return the loss on rows that nothing was fitted to."""
    generator = torch.Generator().manual_seed(5)
    observed = Bernoulli(0.5).sample(x.shape, generator)
    return float(model.bound_losses(x, None, observed, generator=generator)["conditional"])


@pytest.fixture(scope="module")
def model() -> MatchedVAE:
    return fit(SMALL, rows(0), rows(1))[0].eval()


def test_scales_that_are_too_narrow_are_widened_again(model: MatchedVAE) -> None:
    narrow, fresh = build(SMALL), rows(2)
    narrow.load_state_dict(model.state_dict())
    with torch.no_grad():
        bias = narrow.partial.head.net.last.bias  # type: ignore[union-attr]
        bias[-12:] -= 1.5
    right, wrong = conditional(model, fresh), conditional(narrow, fresh)
    settle_scales(narrow, rows(1), Bernoulli(0.5))
    assert wrong > right + 1.0
    assert conditional(narrow, fresh) < right + 0.15 * (wrong - right)
    assert all(p.requires_grad for p in narrow.parameters())


def test_means_and_weights_of_components_stay(model: MatchedVAE) -> None:
    settled = build(SMALL)
    settled.load_state_dict(model.state_dict())
    settle_scales(settled, rows(1), Bernoulli(0.5))
    z = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    assert isinstance(model.vae, MixtureVAE)
    before, after = model.vae.decode(z), settled.vae.decode(z)
    assert_close(after.mean, before.mean)
    assert_close(after.logits, before.logits)  # type: ignore[attr-defined]
    assert (after.scales - before.scales).abs().max() > 1e-3  # type: ignore[attr-defined]


def test_a_full_posterior_has_no_scales_to_settle() -> None:
    config = dataclasses.replace(SMALL, full_posterior=True, anchored=False)
    with pytest.raises(ValueError, match="settled needs neither"):
        settle_scales(build(config), rows(1), Bernoulli(0.5))
