"""Hidden pixels guessed by a partial encoder, of codes and of a hierarchy."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from postmatch.conditioning import MatchedVAE
from postmatch.nets.hierarchy_layout import HierarchyLayout
from postmatch.recipes import inpainting, inpainting_jointly
from postmatch.recipes.guessing import Guessing
from postmatch.recipes.inpainting_config import config_of
from postmatch.vaes.hierarchical import HierarchicalVAE, hierarchical_vae
from small_codes import small_model

LAYOUT = HierarchyLayout("12x1,12d2,6x1,6d2,3x1,3d3,1x1", "1x1,3m1,6m3,6x1,12m6", 16, 8, 2)


def small_hierarchy(channels: int = 1) -> MatchedVAE:
    torch.manual_seed(0)
    return MatchedVAE(*hierarchical_vae(LAYOUT, channels, num_components=2))


@pytest.mark.parametrize(("channels", "factor"), [(1, 2), (3, 4)])
def test_a_guess_is_judged_at_hidden_pixels_by_a_scale_of_a_fifth(
    channels: int, factor: int
) -> None:
    model, x = small_model(channels, factor), torch.rand(7, channels, 12, 12)
    guessing = Guessing(model, x)
    torch.nn.init.zeros_(guessing.layers[0].weight)
    torch.nn.init.constant_(guessing.layers[0].bias, 0.3)
    observed = torch.rand(7, 1, 12, 12) < 0.5
    observed[0], observed[1] = True, False
    loss = guessing.loss(model.partial(x, observed), x, observed)
    error = ((x - 0.3).square() * ~observed).flatten(1).sum(1)
    assert_close(loss, error / (2 * 0.2**2))
    assert loss[0] == 0.0


def test_each_pixel_is_guessed_from_its_own_place() -> None:
    model, x = small_model(), torch.rand(1, 1, 12, 12)
    guessing, hidden = Guessing(model, x), torch.zeros(1, 1, 12, 12, dtype=torch.bool)
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
    guessing, observed = Guessing(model, x), torch.rand(4, 1, 12, 12) < 0.5
    guessing.loss(model.partial(x, observed), x, observed).sum().backward()  # type: ignore[no-untyped-call]
    taught = {name for name, p in guessing.named_parameters() if p.grad is not None}
    others = {name.rsplit(".", 1)[0] for name in taught if not name.startswith("model")}
    assert others == {"layers.0"}
    own = {name for name in taught if name.startswith("model")}
    assert own
    assert all(name.startswith("model.partial.net.") for name in own)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_hierarchy_guesses_from_a_half_and_from_a_quarter_of_the_side(channels: int) -> None:
    model, x = small_hierarchy(channels), torch.rand(5, channels, 12, 12)
    guessing, observed = Guessing(model, x), torch.rand(5, 1, 12, 12) < 0.5
    assert [layer.in_channels for layer in guessing.layers] == [2 * 8, 8]  # levels of 6 and of 3
    for layer, value in zip(guessing.layers, (0.3, 0.8), strict=True):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.constant_(layer.bias, value)
    loss = guessing.loss(model.partial(x, observed), x, observed)
    errors = [((x - value).square() * ~observed).flatten(1).sum(1) for value in (0.3, 0.8)]
    assert_close(loss, sum(errors) / (2 * 0.2**2))


def test_the_losses_of_a_hierarchy_are_the_same_beside_a_guess() -> None:
    model, x = small_hierarchy(), torch.randint(256, (5, 1, 12, 12)) / 255.0
    guessing, observed = Guessing(model, x), torch.rand(5, 1, 12, 12) < 0.5
    assert isinstance(model.vae, HierarchicalVAE)

    def losses(**guess: object) -> dict[str, torch.Tensor]:
        noise = torch.Generator().manual_seed(1)
        return model.vae.losses_with(model.partial, x, None, observed, generator=noise, **guess)  # type: ignore[arg-type]

    plain, more = losses(), losses(guess=lambda told: guessing.loss(told, x, observed))
    assert list(plain) == ["vae", "match"]
    assert_close({name: more[name] for name in plain}, plain)
    assert_close(more["guess"], guessing.loss(model.partial(x, observed), x, observed))
    alone = losses(train_vae=False, guess=lambda told: guessing.loss(told, x, observed))
    assert set(alone) == {"match", "guess"}
    more["guess"].sum().backward()
    taught = {name for name, p in guessing.named_parameters() if p.grad is not None}
    assert {name.split(".")[0] for name in taught} == {"layers", "model"}
    own = {name for name in taught if name.startswith("model.")}
    assert all(name.startswith("model.partial.encoder.") for name in own)
    assert not any(".trunks." in name or ".heads." in name for name in own)


def test_training_a_hierarchy_trains_its_guess_and_leaves_no_trace_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Guessing] = []
    before: list[torch.Tensor] = []
    told: list[dict[str, float]] = []

    def remember(model: MatchedVAE, x: torch.Tensor) -> Guessing:
        seen.append(Guessing(model, x))
        before.extend(p.detach().clone() for p in seen[-1].layers.parameters())
        return seen[-1]

    monkeypatch.setattr(inpainting_jointly, "Guessing", remember)
    small = {"encoder": "28x1,28d2,14x1,14d2,7d7,1x1", "decoder": "1x1,7m1,14m7,28m14"}
    config = dataclasses.replace(
        config_of("mnist", "vdvae"), **small, width=12, bottleneck=4, latent_channels=2,
        components=2, batch_size=8, steps=100, warmup=5, guess=2.0, precision="float32",
        learning_rate=1e-2, orthogonal_rate=0.02,
    )  # fmt: skip
    images = torch.randint(180, 220, (40, 1, 28, 28), dtype=torch.uint8)
    model, report = inpainting.fit(config, images, images[:8], show=lambda p: told.append(p.losses))
    assert set(told[-1]) == {"vae", "match", "guess"}
    assert told[-1]["guess"] < 0.7 * told[0]["guess"]
    assert set(model.state_dict()) == set(inpainting.build(config).state_dict())
    both = told[-1]["vae"] + told[-1]["match"]  # by which weights are chosen
    assert abs(report.history[-1][1] - both) < 0.5 * told[-1]["guess"]
    inpainting.fit(dataclasses.replace(config, guess=0.0, steps=1), images, images[:8])
    assert len(seen) == 1
    trained = seen[0].layers.parameters()
    assert not any(torch.equal(old, new) for old, new in zip(before, trained, strict=True))
