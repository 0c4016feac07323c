"""The VQ-VAE: its loss by hand, and its densities by enumeration."""

import copy
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from postmatch.conditioning import Conditional, MatchedVAE
from postmatch.distributions.codes import CodeGrid, PointMass
from postmatch.distributions.discretised import DiscretisedLogistics, num_logistic_maps
from postmatch.nets.pixelcnn import PixelCNN
from postmatch.nets.residual_conv import (
    MapAndSummary,
    ResidualConvDecoder,
    ResidualConvEncoder,
)
from postmatch.partial import MaskedEncoder
from postmatch.partial_codes import CodeGridHead
from postmatch.vaes.vq import VQVAE, Codebook
from test_codebook import codebook

KINDS = ("vector", "map", "both")


def small_model(kind: str = "map", channels: int = 1, components: int = 0) -> MatchedVAE:
    """Return an untrained model of 8x8 images, 2x2 grids and 3 codes: 81 grids in all."""
    maps = num_logistic_maps(channels, components) if components else channels
    vae = VQVAE(
        ResidualConvEncoder(channels, 8, 4, hidden=4, num_blocks=1),
        ResidualConvDecoder(4, 8, maps, hidden=4, num_blocks=1),
        Codebook(3, 4),
        PixelCNN(3, (2, 2), 8, 2),
        scale=0.5,
        logistic_channels=channels if components else 0,
    )
    sizes = {"vector": (6, 0), "map": (0, 5), "both": (6, 5)}[kind]
    net: nn.Module = ResidualConvEncoder(channels + 1, 8, 5, hidden=4, num_blocks=1)
    summary = nn.Sequential(nn.Flatten(), nn.Linear(20, 6))
    if kind == "both":
        net = MapAndSummary(net, summary)
    elif kind == "vector":
        net = nn.Sequential(net, summary)
    head = CodeGridHead(PixelCNN(3, (2, 2), 8, 2, *sizes))
    with torch.no_grad():
        vae.codebook.vectors.mul_(2.0)  # far apart, so that codes matter
        head.net.last.weight.mul_(6.0)
        if components:  # whose scales are too large at first for locations to matter
            vae.decoder.net[-1].weight.mul_(6.0)
            scales = slice((1 + channels) * components, (1 + 2 * channels) * components)
            vae.decoder.net[-1].bias[scales] = -2.0
    return MatchedVAE(vae, MaskedEncoder(net, head)).eval()


def images(rows: int, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Return images, and which of their pixels are observed."""
    return torch.rand(rows, channels, 8, 8), torch.rand(rows, 1, 8, 8) < 0.5


# The networks


@pytest.mark.parametrize(("side", "grid"), [(28, 7), (64, 16), (8, 2)])
def test_a_grid_has_a_quarter_of_the_side_of_an_image(side: int, grid: int) -> None:
    encoder, decoder = ResidualConvEncoder(3, 8, 5), ResidualConvDecoder(5, 8, 3)
    features = encoder(torch.rand(2, 3, side, side))
    assert features.shape == (2, 5, grid, grid)
    assert decoder(features).shape == (2, 3, side, side)


@pytest.mark.parametrize(
    ("channels", "width", "thousands"),
    [(1, 32, 88), (3, 128, 663)],  # REFERENCE, section 6: MNIST and CelebA
)
def test_the_networks_are_as_large_as_the_published_ones(
    channels: int, width: int, thousands: int
) -> None:
    networks = (
        ResidualConvEncoder(channels, width, 64),
        ResidualConvDecoder(64, width, channels),
    )
    assert round(sum(p.numel() for n in networks for p in n.parameters()) / 1e3) == thousands


def test_images_that_do_not_fit_a_grid_are_refused() -> None:
    with pytest.raises(ValueError, match=r"multiples of 4, got \(28, 30\)"):
        ResidualConvEncoder(1, 8, 4)(torch.zeros(1, 1, 28, 30))


# The loss


class Times(nn.Module):
    """Multiply by one weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def by_hand() -> tuple[VQVAE, Tensor]:
    """Return a model of two pixels: f = 0.5 x, codes at 0 and 1, mean = 2 e, deviation 0.5."""
    vae = VQVAE(Times(0.5), Times(2.0), codebook([0.0, 1.0]), scale=0.5 - 1e-5)
    return vae, torch.tensor([[[[0.6, 1.4]]]])  # f = 0.3, 0.7; e = 0, 1; means 0, 2


def test_the_loss_is_the_one_computed_by_hand() -> None:
    vae, x = by_hand()
    distance = 0.25 * (0.3**2 + 0.3**2) / 2
    surprise = (0.6**2 + 0.6**2) / (2 * 0.5**2) + 2 * math.log(0.5 * math.sqrt(2 * math.pi))
    assert_close(vae.eval().loss(x), torch.tensor([distance + surprise]))


def test_the_gradient_passes_the_codes_straight() -> None:
    vae, x = by_hand()
    vae.loss(x).sum().backward()
    # d surprise / d mean = (mean - x) / 0.25 = -2.4, 2.4, and d mean / d e = 2, and d f / d w = x;
    # d distance / d f = 0.25 * 2 * (f - e) / 2 = 0.075, -0.075.
    slope = (-2.4 * 2 + 0.075) * 0.6 + (2.4 * 2 - 0.075) * 1.4
    assert_close(vae.encoder.weight.grad, torch.tensor(slope), atol=1e-4, rtol=1e-4)
    # The decoder's own gradient is taken at the codes: -2.4 * 0 + 2.4 * 1.
    assert_close(vae.decoder.weight.grad, torch.tensor(2.4), atol=1e-4, rtol=1e-4)


def test_only_the_loss_in_training_mode_moves_the_codebook() -> None:
    model, (x, observed) = small_model(), images(6)
    vae = model.vae
    assert isinstance(vae, VQVAE)

    def moves(act: Callable[[], object]) -> bool:
        before = {name: buffer.clone() for name, buffer in vae.codebook.named_buffers()}
        act()
        return any(not torch.equal(b, before[n]) for n, b in vae.codebook.named_buffers())

    assert not moves(lambda: vae.loss(x))
    model.train()
    assert moves(lambda: vae.loss(x))
    assert not moves(lambda: vae.encode(x))
    assert not moves(lambda: model.losses(x, None, observed, train_vae=False))


def test_a_training_step_is_decided_by_its_generator() -> None:
    model, (x, _) = small_model().train(), images(50)
    start, found = copy.deepcopy(model.vae.state_dict()), []
    model.vae.codebook.patience = 0  # every code starts again at every step
    for seed in (3, 3, 4):
        torch.manual_seed(len(found))  # of no effect
        model.vae.load_state_dict(start)
        model.vae.loss(x, generator=torch.Generator().manual_seed(seed))
        found.append(model.vae.codebook.vectors.clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


# The contract


def test_a_posterior_is_the_point_of_the_nearest_codes() -> None:
    vae, (x, _) = small_model().vae, images(5)
    posterior = vae.encode(x)
    assert isinstance(posterior, PointMass)
    assert (posterior.batch_shape, posterior.event_shape) == ((5,), (2, 2))
    features = vae.encoder(x).movedim(1, -1)
    expected = (features[..., None, :] - vae.codebook.vectors).norm(dim=-1).argmin(-1)
    assert torch.equal(posterior.sample(), expected)


def test_an_rgb_pixel_counts_once() -> None:
    vae, (x, _) = small_model(channels=3).vae, images(5, channels=3)
    decoded = vae.decode(torch.randint(3, (7, 5, 2, 2)))
    assert decoded.mean.shape == decoded.sample().shape == (7, 5, 3, 8, 8)
    scale = vae.log_scale.exp() + 1e-5
    each = -0.5 * ((x - decoded.mean) / scale) ** 2 - scale.log() - 0.5 * math.log(2 * math.pi)
    assert_close(decoded.log_prob(x), each.sum(2, keepdim=True))


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_256_levels_are_the_logistics_that_the_decoder_tells(channels: int) -> None:
    vae = small_model(channels=channels, components=2).vae.eval()
    x, _ = images(5, channels)
    z = vae.encode(x).sample()
    decoded, vectors = vae.decode(z.expand(7, -1, -1, -1)), vae.codebook(z)
    direct = DiscretisedLogistics(vae.decoder(vectors.movedim(-1, -3)), channels)
    assert isinstance(decoded, DiscretisedLogistics)
    assert decoded.mean.shape == decoded.sample().shape == (7, 5, channels, 8, 8)
    assert_close(decoded.log_prob(x)[3], direct.log_prob(x))
    distance = (vae.encoder(x).movedim(1, -1) - vectors).square().flatten(1).mean(1)
    assert_close(vae.loss(x), 0.25 * distance - direct.log_prob(x).flatten(1).sum(1))
    assert "log_scale" not in dict(vae.named_parameters())  # which nothing would train


def test_a_row_is_decoded_alike_alone_and_among_samples() -> None:
    vae, z = small_model().vae, torch.randint(3, (7, 5, 2, 2))
    assert_close(vae.decode(z).mean[2, 3], vae.decode(z[2, 3]).mean, atol=1e-5, rtol=1e-5)


def test_the_prior_is_the_distribution_of_its_own_network() -> None:
    vae = small_model().vae
    prior, grids = vae.prior(), all_grids()
    assert isinstance(prior, CodeGrid)
    assert_close(prior.log_prob(grids), CodeGrid(vae.prior_net).log_prob(grids))
    vae.prior_net = None
    with pytest.raises(ValueError, match="this VQVAE has no prior: give it a prior_net"):
        vae.prior()


def test_images_with_holes_are_refused() -> None:
    vae, (x, available) = small_model().vae, images(3)
    for door in (vae.encode, vae.loss):
        with pytest.raises(ValueError, match="this VAE's encoder needs complete rows"):
            door(x, available)
        door(x, torch.ones_like(available))


def test_training_the_target_through_the_match_is_refused() -> None:
    model, (x, observed) = small_model(), images(3)
    with pytest.raises(ValueError, match=r"train_target needs draws.*which PointMass lacks"):
        model.losses(x, None, observed, train_target=True)


def test_the_evidence_of_images_is_that_of_their_codes() -> None:
    vae, (x, _) = small_model().vae, images(3)
    z = vae.encode(x).sample()
    log_x = vae.decode(z).log_prob(x).flatten(1).sum(1)
    assert_close(vae.log_evidence(x, num_samples=2), log_x + vae.prior().log_prob(z))


# Conditional questions


def all_grids() -> Tensor:
    return torch.tensor(list(itertools.product(range(3), repeat=4))).view(-1, 2, 2)


@torch.no_grad()
def enumerated(model: MatchedVAE, answer: Conditional, x: Tensor) -> Tensor:
    """Return the exact log-likelihood of what is hidden, a sum over all 81 grids."""
    grids = all_grids()[:, None].expand(-1, len(x), -1, -1)
    log_each = model.vae.decode(grids).log_prob(x).masked_fill(answer.observed, 0.0)
    return (log_each.flatten(2).sum(2) + answer.latent.log_prob(grids)).logsumexp(0)


def averages_to_one(ratio: Tensor) -> bool:
    """Tell whether independent estimates of 1, ``(repeats, ...)``, average to it."""
    error = ratio.std(0) / math.sqrt(len(ratio))
    return bool(((ratio.mean(0) - 1.0).abs() < 4.5 * error + 1e-4).all())


@pytest.mark.parametrize(("kind", "components"), [*((kind, 0) for kind in KINDS), ("map", 2)])
def test_the_likelihood_that_log_prob_bounds_is_the_sum_over_all_grids(
    kind: str, components: int
) -> None:
    model, (x, observed) = small_model(kind, components=components), images(4)
    truth = enumerated(model, model.given(x, observed), x)
    many = x.repeat(300, 1, 1, 1), observed.repeat(300, 1, 1, 1)
    found = model.given(*many).log_prob(many[0], num_samples=10).view(300, 4)
    ratio = (found - truth).exp()
    assert averages_to_one(ratio)
    assert (found.mean(0) < truth).all()
    shared = model.given(x, observed).log_prob(x, num_samples=2000, seed=0)
    error = ratio.std(0) * math.sqrt(10 / 2000)  # evenly spread noise does better than this
    assert ((shared - truth).expm1().abs() < 4.5 * error).all()


def test_bounds_from_below_and_above_hold_the_truth_of_drawn_rows() -> None:
    model, (x, observed) = small_model(), images(200)
    answer = model.given(x, observed)
    gap = answer.log_prob_gap(num_samples=50)
    truth = enumerated(model, answer, gap.x)
    for excess in (gap.below - truth, truth - gap.above):
        assert excess.isfinite().all()
        assert excess.mean() < 4.5 * excess.std() / math.sqrt(len(excess))
    assert gap.value.mean() < 1.0


def test_the_ratio_of_the_paper_meets_the_sums_over_all_grids() -> None:
    model, (x, observed) = small_model(), images(4)
    with torch.no_grad():
        model.partial.head.net.last.weight.div_(6.0)  # as broad as the prior, so as to cover it
    prior, z = model.vae.prior(), model.vae.encode(x).sample()
    whole = model.vae.decode(z).log_prob(x).flatten(1).sum(1) + prior.log_prob(z)
    grids = all_grids()[:, None].expand(-1, 4, -1, -1)
    log_each = model.vae.decode(grids).log_prob(x).masked_fill(~observed, 0.0)
    part = (log_each.flatten(2).sum(2) + prior.log_prob(grids)).logsumexp(0)
    many = x.repeat(100, 1, 1, 1), observed.repeat(100, 1, 1, 1)
    ratio = model.given(*many).log_prob_ratio(many[0], num_samples=20)
    # The evidence of what is observed is estimated without bias; it is in the denominator.
    assert averages_to_one((whole - part - ratio.value.view(100, 4)).exp())


@pytest.mark.parametrize(("kind", "components"), [*((kind, 0) for kind in KINDS), ("map", 2)])
@pytest.mark.parametrize("channels", [1, 3])
def test_hidden_values_are_never_read(kind: str, components: int, channels: int) -> None:
    model, (x, observed) = small_model(kind, channels, components), images(4, channels)
    found = []
    for junk in (0.0, math.nan, math.inf):
        answer = model.given(x.masked_fill(~observed, junk), observed)
        torch.manual_seed(1)
        sample = answer.sample(3)
        assert sample.shape == (3, 4, channels, 8, 8)
        quantiles = answer.quantiles([0.1, 0.9], num_samples=16)
        assert (quantiles[0] <= quantiles[1]).all()
        found.append([sample, answer.impute(8), quantiles, answer.log_prob(x, num_samples=4)])
    for plain, *spoilt in zip(*found, strict=True):
        assert plain.isfinite().all()
        assert all(torch.equal(plain, other) for other in spoilt)
    shown = observed.expand_as(x)
    assert torch.equal(found[0][1][shown], x[shown])


def test_an_imputation_is_the_mean_over_codes() -> None:
    model, (x, observed) = small_model(), images(3)
    answer = model.given(x, observed)
    grids = all_grids()[:, None].expand(-1, 3, -1, -1)
    with torch.no_grad():
        weight = answer.latent.log_prob(grids).exp()[..., None, None, None]
        means = model.vae.decode(grids).mean
        exact = (weight * means).sum(0)
        spread = (weight * (means - exact).square()).sum(0).sqrt()
    hidden = ~observed
    error = (answer.impute(1024) - exact)[hidden].abs() / spread[hidden]
    assert (error < 4.5 / math.sqrt(1024)).all()  # evenly spread noise does better than this
