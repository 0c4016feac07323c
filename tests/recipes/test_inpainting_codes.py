"""How a VQ-VAE of images and its posterior are trained."""

import copy

import pytest
import torch
from torch import nn

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.discretised import DiscretisedLogistics
from postmatch.masks import Bernoulli
from postmatch.recipes import inpainting_codes
from postmatch.recipes.guessing import Guessing
from postmatch.recipes.image_batches import ImageBatches
from postmatch.recipes.inpainting_codes import fit_codes
from postmatch.training.plan import Plan
from small_codes import small_model


def test_a_code_depends_on_its_own_square_alone() -> None:
    vae, x = small_model().vae, torch.rand(30, 1, 12, 12)
    before = vae.encode(x).sample()
    x[..., 5, 8] = 5.0
    changed = (vae.encode(x).sample() != before).any(0).nonzero().tolist()
    assert changed == [[2, 4]]


def test_training_the_posterior_trains_the_guess_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layers: list[nn.Module] = []
    build = Guessing.__init__

    def remember(self: Guessing, model: MatchedVAE, x: torch.Tensor) -> None:
        build(self, model, x)
        layers.append(copy.deepcopy(self.layers))
        layers.append(self.layers)

    monkeypatch.setattr(Guessing, "__init__", remember)
    images = torch.randint(256, (20, 1, 12, 12), dtype=torch.uint8)
    batch = ImageBatches(images, 4, torch.Generator().manual_seed(0))
    model = small_model()
    before = {*model.state_dict()}
    fit_codes(model, batch, images[:0], Bernoulli(0.5), Plan(10))
    first, trained = (list(layer.parameters()) for layer in layers)
    assert not any(torch.equal(a, b) for a, b in zip(first, trained, strict=True))
    assert {*model.state_dict()} == before  # the layer is not kept


def test_pixels_of_256_levels_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inpainting_codes, "_FIRST", 0.5)
    images = torch.full((20, 1, 12, 12), 40, dtype=torch.uint8)
    batch = ImageBatches(images, 4, torch.Generator().manual_seed(0))
    model, x = small_model(components=2), images / 255.0
    before = model.vae.loss(x).mean()
    fit_codes(model, batch, images[:0], Bernoulli(0.5), Plan(600, learning_rate=1e-2))
    assert model.vae.eval().loss(x).mean() < 0.5 * before
    decoded = model.vae.decode(model.vae.encode(x).sample())
    assert isinstance(decoded, DiscretisedLogistics)
    assert decoded.mean.shape == x.shape
    assert (decoded.mean - x).abs().mean() < 0.05


@pytest.mark.parametrize("steps", [0, 4, 30])  # of both parts, the first of which has 10
def test_a_training_that_is_cut_off_leaves_nothing_frozen(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inpainting_codes, "_FIRST", 0.25)
    images = torch.randint(256, (20, 1, 12, 12), dtype=torch.uint8)
    batch = ImageBatches(images, 4, torch.Generator().manual_seed(0))
    model, asked = small_model(), iter([False] * steps + [True] * 100)
    report = fit_codes(model, batch, images[:0], Bernoulli(0.5), Plan(40), stop=lambda: next(asked))
    assert report.stopped_by == "interruption"
    assert report.steps == steps + 1
    assert all(p.requires_grad for p in model.parameters())
