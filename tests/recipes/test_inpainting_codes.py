"""What a VQ-VAE's posterior learns beside its match."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from postmatch.conditioning import MatchedVAE
from postmatch.masks import Bernoulli
from postmatch.recipes import inpainting_codes
from postmatch.recipes.image_batches import ImageBatches
from postmatch.recipes.inpainting_codes import _Guessing, code_model, fit_codes
from postmatch.training.plan import Plan


def small_model(
    channels: int = 1, factor: int = 2, size: int = 12, components: int = 0
) -> MatchedVAE:
    torch.manual_seed(0)
    return code_model(
        channels=channels,
        size=size,
        factor=factor,
        window=factor,
        num_codes=5,
        code_size=4,
        width=8,
        components=components,
        context=(8, 4, (1, 1, 1, 1)),
        fine=(0, 0),
        posterior=(6, 2),
        prior=(6, 2),
        dropout=0.0,
    )


@pytest.mark.parametrize(("channels", "factor"), [(1, 2), (3, 4)])
def test_a_guess_is_judged_at_hidden_pixels_by_a_scale_of_a_fifth(
    channels: int, factor: int
) -> None:
    model, x = small_model(channels, factor), torch.rand(7, channels, 12, 12)
    guessing = _Guessing(model, x)
    torch.nn.init.zeros_(guessing.layer.weight)
    torch.nn.init.constant_(guessing.layer.bias, 0.3)
    observed = torch.rand(7, 1, 12, 12) < 0.5
    observed[0], observed[1] = True, False
    loss = guessing.loss(model.partial(x, observed), x, observed)
    error = ((x - 0.3).square() * ~observed).flatten(1).sum(1)
    assert_close(loss, error / (2 * 0.2**2))
    assert loss[0] == 0.0


def test_each_pixel_is_guessed_from_its_own_place() -> None:
    model, x = small_model(), torch.rand(1, 1, 12, 12)
    guessing, hidden = _Guessing(model, x), torch.zeros(1, 1, 12, 12, dtype=torch.bool)
    posterior = model.partial(x, hidden)
    told = posterior.spatial.detach().requires_grad_()  # type: ignore[attr-defined]
    posterior.spatial = told  # type: ignore[attr-defined]
    all_but_one = ~hidden
    all_but_one[..., 5, 8] = False
    guessing.loss(posterior, x, all_but_one).sum().backward()  # type: ignore[no-untyped-call]
    assert told.grad is not None
    places = told.grad.abs().sum((0, 1)).nonzero().tolist()
    assert places == [[2, 4]]


def test_a_guess_teaches_what_tells_the_posterior_of_the_image_and_nothing_else() -> None:
    model, x = small_model(), torch.rand(4, 1, 12, 12)
    guessing, observed = _Guessing(model, x), torch.rand(4, 1, 12, 12) < 0.5
    guessing.loss(model.partial(x, observed), x, observed).sum().backward()  # type: ignore[no-untyped-call]
    taught = {name for name, p in guessing.named_parameters() if p.grad is not None}
    assert {name.rsplit(".", 1)[0] for name in taught if not name.startswith("model")} == {"layer"}
    own = {name for name in taught if name.startswith("model")}
    assert own
    assert all(name.startswith("model.partial.net.") for name in own)


def test_a_code_depends_on_its_own_square_alone() -> None:
    vae, x = small_model().vae, torch.rand(30, 1, 12, 12)
    before = vae.encode(x).sample()
    x[..., 5, 8] = 5.0
    changed = (vae.encode(x).sample() != before).any(0).nonzero().tolist()
    assert changed == [[2, 4]]


def test_training_the_posterior_trains_the_guess_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layers: list[nn.Module] = []
    build = _Guessing.__init__

    def remember(self: _Guessing, model: MatchedVAE, x: torch.Tensor) -> None:
        build(self, model, x)
        layers.append(copy.deepcopy(self.layer))
        layers.append(self.layer)

    monkeypatch.setattr(_Guessing, "__init__", remember)
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
