"""VAEs of images: one shared contract."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import mixture_net
from postmatch.nets.conv import ConvDecoder, ConvEncoder
from postmatch.nets.hierarchy_layout import HierarchyLayout
from postmatch.nets.pixelcnn import PixelCNN
from postmatch.nets.residual_conv import ResidualConvDecoder, ResidualConvEncoder
from postmatch.partial import AutoregressiveHead, DiagonalHead, MaskedEncoder
from postmatch.partial_codes import CodeGridHead
from postmatch.recipes import inpainting
from postmatch.recipes.inpainting_config import Model, config_of
from postmatch.vaes.base import log_likelihood
from postmatch.vaes.conv import ConvVAE
from postmatch.vaes.hierarchical import hierarchical_vae
from postmatch.vaes.vq import VQVAE, Codebook


def conv_model() -> MatchedVAE:
    layers = ((4, 3, 2), (8, 4, 1))
    vae = ConvVAE(
        ConvEncoder(1, layers),
        DiagonalHead(8, 3),
        ConvDecoder(3, ((8, 4, 1), (1, 3, 2))),
        3,
        image_shape=(1, 8, 8),
    )
    head = AutoregressiveHead(mixture_net(3, 2, 8, 1, 8))
    return MatchedVAE(vae, MaskedEncoder(ConvEncoder(2, layers), head)).eval()


def hierarchical_model() -> MatchedVAE:
    layout = HierarchyLayout("8x1,8d2,4d4,1x1", "1x1,4m1,8m4", 12, 6, 2)
    return MatchedVAE(*hierarchical_vae(layout, channels=3, num_components=2)).eval()


def vq_model() -> MatchedVAE:
    encoder, decoder = ResidualConvEncoder(3, 8, 4), ResidualConvDecoder(4, 8, 3)
    shape, prior_net = (3, 8, 8), PixelCNN(5, (2, 2), 8, 2)
    vae = VQVAE(encoder, decoder, Codebook(5, 4), prior_net, image_shape=shape)
    head = CodeGridHead(PixelCNN(5, (2, 2), 8, 2, map_channels=6))
    return MatchedVAE(vae, MaskedEncoder(ResidualConvEncoder(4, 8, 6), head)).eval()


def levels(rows: int) -> Tensor:
    return torch.randint(256, (rows, 3, 8, 8)) / 255.0


def grey(rows: int) -> Tensor:
    return torch.rand(rows, 1, 8, 8)


# A new model joins here: how it is built, and images that fit it.
EVERY: dict[str, tuple[Callable[[], MatchedVAE], Callable[[int], Tensor]]] = {
    "ConvVAE": (conv_model, grey),
    "HierarchicalVAE": (hierarchical_model, levels),
    "VQVAE": (vq_model, levels),
}
every_model = pytest.mark.parametrize("name", EVERY)


def build(name: str, rows: int = 6) -> tuple[MatchedVAE, Tensor, Tensor]:
    """Return a model, images, and what is observed of them."""
    torch.manual_seed(0)
    make_model, make_images = EVERY[name]
    model, x = make_model(), make_images(rows)
    return model, x, torch.rand(rows, 1, *x.shape[2:]) < 0.5


@every_model
@torch.no_grad()
def test_a_decoder_has_one_value_per_pixel(name: str) -> None:
    model, x, observed = build(name)
    z = model.vae.encode(x).sample(torch.Size([4]))
    decoded = model.vae.decode(z)
    log_each = decoded.log_prob(x)
    assert log_each.shape == (4, *observed.shape)
    assert decoded.mean.shape == decoded.sample().shape == (4, *x.shape)
    moved = x.clone()
    moved[..., 2, 3] = x.roll(1, 0)[..., 2, 3]
    others = torch.ones_like(log_each, dtype=torch.bool)
    others[..., 2, 3] = False
    assert torch.equal(decoded.log_prob(moved)[others], log_each[others])


@every_model
@torch.no_grad()
def test_hidden_pixels_are_never_read(name: str) -> None:
    model, x, observed = build(name)
    torch.manual_seed(1)
    expected = model.given(x, observed).impute(4)
    torch.manual_seed(1)
    found = model.given(x.masked_fill(~observed, torch.nan), observed).impute(4)
    assert torch.equal(found, expected)


@every_model
@torch.no_grad()
def test_observed_pixels_come_back_untouched(name: str) -> None:
    model, x, observed = build(name)
    answer = model.given(x, observed)
    seen = observed.expand_as(x)
    for filled in (answer.sample(3), answer.draws(3), answer.impute(4)[None]):
        assert torch.equal(filled[:, seen], x[seen].expand(len(filled), -1))
        assert torch.isfinite(filled).all()


@every_model
@torch.no_grad()
def test_scores_are_finite_and_of_the_hidden_pixels_alone(name: str) -> None:
    model, x, observed = build(name)
    log_prob = model.given(x, observed).log_prob(x, None, 20)
    assert log_prob.shape == (6,)
    assert torch.isfinite(log_prob).all()
    everything = torch.ones_like(observed)
    # With nothing hidden, a weight is q(z | x_o) by the half of it that r contains, and no more.
    assert (model.given(x, everything).log_prob(x, None, 20) < math.log(2.0) + 1e-4).all()
    z = model.vae.encode(x).sample(torch.Size([1]))
    decoded = model.vae.decode(z)
    parts = [log_likelihood(decoded, x, counted) for counted in (observed, ~observed, everything)]
    assert_close(parts[0] + parts[1], parts[2], rtol=1e-4, atol=1e-3)


@every_model
@torch.no_grad()
def test_holes_in_training_images_are_refused(name: str) -> None:
    model, x, observed = build(name)
    with pytest.raises(ValueError, match="available must be all True"):
        model.vae.encode(x, observed)


@every_model
@pytest.mark.parametrize("rows", [0, 1])
def test_of_no_images_there_are_no_fillings(name: str, rows: int) -> None:
    model, x, observed = build(name)
    x, shape = x[:rows], (rows, *x.shape[1:])
    answer = model.given(x, observed[:rows])
    assert answer.sample(3).shape == answer.draws(3).shape == (3, *shape)
    assert answer.impute(4).shape == shape
    assert answer.quantiles([0.1, 0.9], 4).shape == (2, *shape)


@every_model
def test_images_of_another_size_or_with_other_channels_are_refused(name: str) -> None:
    model, x, observed = build(name)
    shape = ", ".join(str(n) for n in x.shape[1:])
    for other in (x[..., :4], x[..., :7, :7], x.expand(6, -1, 8, 8).repeat(1, 2, 1, 1), x[0]):
        wanted = rf"x must be \(batch, {shape}\), got \({', '.join(map(str, other.shape))}\)"
        with pytest.raises(ValueError, match=wanted):
            model.given(other, observed)


@every_model
def test_what_is_asked_of_images_is_a_pixel_and_numbers(name: str) -> None:
    model, x, observed = build(name)
    for wrong in (observed.repeat(1, 3, 1, 1), observed[:4], observed[..., :4], observed[:, 0]):
        with pytest.raises(ValueError, match="observed must have one entry per feature"):
            model.given(x, wrong)
    with pytest.raises(ValueError, match=r"x must hold floating point numbers, got torch\.uint8"):
        model.given((255 * x).byte(), observed)


@pytest.mark.parametrize("model", ["conv", "vqvae", "vdvae"])
def test_models_of_the_recipes_know_the_shape_of_their_images(model: Model) -> None:
    assert inpainting.build(config_of("mnist", model)).vae.image_shape == (1, 28, 28)
