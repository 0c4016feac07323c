"""VAEs: one shared contract, and the sums over what is available."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, kl_divergence
from torch.testing import assert_close

from linear_gaussian import (
    LinearGaussianVAE,
    draw_rows,
    exact_conditional,
    exact_log_evidence,
    linear_gaussian,
)
from postmatch.distributions.autoregressive import mixture_net
from postmatch.distributions.columns import ColumnSpec
from postmatch.masks import UniformCount
from postmatch.nets.mlp import ResidualMLP
from postmatch.objectives import elbo
from postmatch.partial import DiagonalHead, MaskedEncoder
from postmatch.tabular import TableModelConfig, table_model
from postmatch.vaes.base import VAE, log_likelihood, require_complete
from postmatch.vaes.gaussian import GaussianVAE
from postmatch.vaes.mixture import MixtureVAE
from postmatch.vaes.vade import VaDE

COLUMNS = (
    ColumnSpec("number", step=0.01),
    ColumnSpec("category", size=3),
    ColumnSpec("number", step=1.0, discrete=True, knots=(0.0, 3.0, 9.0)),
    ColumnSpec("ordered", size=4),
)


def table_vae(num_members: int = 1) -> VAE:
    config = TableModelConfig(
        latent_size=4,
        width=24,
        num_blocks=1,
        prior_width=16,
        head_width=16,
        mask_blocks=1,
        latent_components=2,
        column_components=2,
        num_members=num_members,
    )
    vae = table_model(COLUMNS, config).vae.eval()
    with torch.no_grad():
        for parameter in vae.parameters():  # far from the start, where z says little
            parameter.add_(0.2 * torch.randn_like(parameter))
    return vae


def table_rows(rows: int) -> Tensor:
    columns = (
        torch.randn(rows),
        torch.randint(3, (rows,)),
        torch.randint(10, (rows,)),
        torch.randint(4, (rows,)),
    )
    return torch.stack([c.float() for c in columns], dim=1)


def gaussian_vae() -> VAE:
    head = DiagonalHead(16, 4)
    encoder = MaskedEncoder(ResidualMLP(10, 16, 1), head)
    decoder = nn.Sequential(ResidualMLP(4, 16, 1), nn.Linear(16, 5))
    return GaussianVAE(encoder, decoder, 4, mixture_net(4, 3, 16, 1), scale=0.5).eval()


def mixture_vae() -> VAE:
    encoder = MaskedEncoder(ResidualMLP(10, 16, 1), DiagonalHead(16, 4))
    decoder = nn.Sequential(ResidualMLP(4, 16, 1), nn.Linear(16, 3 * 2 * 5))
    return MixtureVAE(encoder, decoder, mixture_net(4, 3, 16, 1), num_features=5).eval()


def vade() -> VAE:
    encoder = MaskedEncoder(ResidualMLP(10, 16, 1), DiagonalHead(16, 4))
    decoder = nn.Sequential(ResidualMLP(4, 16, 1), nn.Linear(16, 5))
    return VaDE(GaussianVAE(encoder, decoder, 4, scale=0.5), 4, 3).eval()


OF_IMAGES = {"ConvVAE", "HierarchicalVAE", "VQVAE"}  # in test_image_vaes.py
OF_OTHERS = {"ExternalVAE", "WithPrior"}  # in test_external.py, test_prior_fitting.py
# A new model joins here: how it is built, and rows that fit it.
EVERY: dict[str, tuple[Callable[[], VAE], Callable[[int], Tensor]]] = {
    "LinearGaussianVAE": (linear_gaussian, lambda rows: draw_rows(linear_gaussian(), rows)[0]),
    "GaussianVAE": (gaussian_vae, lambda rows: torch.randn(rows, 5)),
    "MixtureVAE": (mixture_vae, lambda rows: torch.randn(rows, 5)),
    "VaDE": (vade, lambda rows: torch.randn(rows, 5)),
    "TableVAE": (table_vae, table_rows),
    "TableEnsemble": (lambda: table_vae(num_members=3), table_rows),
}
every_vae = pytest.mark.parametrize("name", EVERY)


def build(name: str, rows: int = 30) -> tuple[VAE, Tensor, Tensor]:
    """Return a model, rows, and what is available of them."""
    make_vae, make_rows = EVERY[name]
    vae, x = make_vae(), make_rows(rows)
    available = UniformCount(0.25, 1.0).sample(x.shape, torch.Generator().manual_seed(1))
    return vae, x, available


@every_vae
def test_every_final_class_is_tested_here(name: str) -> None:
    ours = {c.__name__ for c in VAE.__subclasses__() if "postmatch" in c.__module__}
    assert ours <= set(EVERY) | OF_IMAGES | OF_OTHERS
    assert type(build(name)[0]).__name__ == name


@every_vae
@torch.no_grad()
def test_prior_and_posterior_are_distributions_over_the_same_z(name: str) -> None:
    vae, x, available = build(name)
    prior, posterior = vae.prior(), vae.encode(x, available)
    assert posterior.batch_shape == (30,)
    z = posterior.sample(torch.Size([7]))
    assert prior.log_prob(z).shape == posterior.log_prob(z).shape == (7, 30)
    assert prior.sample(torch.Size([5])).shape[-1:] == posterior.event_shape
    # Importance weights of a narrow Gaussian under draws of the posterior average to one.
    alone = vae.encode(x[:1], available[:1])
    drawn = alone.sample(torch.Size([20_000]))[:, 0]
    weight, members = torch.empty(20_000), 3 if name == "TableEnsemble" else 1
    for member in range(members):  # the ensemble's z begins with one of three
        own = (drawn[:, 0] == member) if members > 1 else torch.ones(20_000, dtype=torch.bool)
        vector = drawn[own, -4:]
        narrow = Independent(Normal(vector.mean(0), 0.6 * vector.std(0)), 1)
        log_narrow = narrow.log_prob(vector) - math.log(members)
        weight[own] = (log_narrow - alone.log_prob(drawn[:, None])[own, 0]).exp()
    assert (weight.mean() - 1.0).abs() < 4.5 * weight.std() / math.sqrt(20_000)


@every_vae
@torch.no_grad()
def test_a_decoder_is_factorised_over_features(name: str) -> None:
    vae, x, _ = build(name)
    z = vae.prior().sample(torch.Size([6, 30]))
    decoded = vae.decode(z)
    log_each = decoded.log_prob(x)
    assert log_each.shape == (6, *x.shape)
    for feature in range(x.shape[1]):
        moved = x.clone()
        moved[:, feature] = x[:, feature].roll(1)
        others = [i for i in range(x.shape[1]) if i != feature]
        assert torch.equal(decoded.log_prob(moved)[..., others], log_each[..., others])
    assert decoded.sample().shape == (6, *x.shape)


@every_vae
@pytest.mark.parametrize("junk", [0.0, 1e6, math.nan, math.inf])
def test_what_is_not_available_is_never_read(name: str, junk: float) -> None:
    vae, x, available = build(name)
    found = []
    for rows in (x, x.masked_fill(~available, junk)):
        torch.manual_seed(3)
        loss = vae.loss(rows, available)
        found.append([loss, *torch.autograd.grad(loss.sum(), _encoder_parameters(vae))])
    for plain, spoilt in zip(*found, strict=True):
        assert torch.equal(plain, spoilt)
        assert spoilt.isfinite().all()


def _encoder_parameters(vae: VAE) -> list[Tensor]:
    return [p for name, p in vae.named_parameters() if not name.startswith("prior")]


@every_vae
def test_available_everywhere_is_the_same_as_not_saying(name: str) -> None:
    vae, x, available = build(name)
    losses = []
    for said in (None, torch.ones_like(available)):
        torch.manual_seed(3)
        losses.append(vae.loss(x, said))
    assert_close(*losses, atol=1e-6, rtol=1e-6)


# The divergence of a VaDE is in closed form, and its bound another one: test_vade.py.
@pytest.mark.parametrize("name", [name for name in EVERY if name != "VaDE"])
def test_the_loss_is_the_negative_elbo_over_what_is_available(name: str) -> None:
    vae, x, available = build(name)
    posterior = vae.encode(x, available)
    torch.manual_seed(3)
    loss = vae.loss(x, available, beta=0.5, posterior=posterior)
    torch.manual_seed(3)
    z = posterior.rsample()
    log_each = vae.decode(z).log_prob(x)
    log_x = torch.stack([log_each[i][available[i]].sum() for i in range(len(x))])
    expected = -elbo(log_x, z, posterior, vae.prior(), beta=0.5)
    assert_close(loss, expected, atol=1e-4, rtol=1e-5)


@every_vae
@torch.no_grad()
def test_the_best_value_lies_among_what_the_decoder_draws(name: str) -> None:
    vae, x, available = build(name)
    decoded = vae.decode(vae.encode(x, available).sample(torch.Size([50])))
    best, drawn = vae.point(decoded), decoded.sample()
    assert best.shape == x.shape
    assert ((best >= drawn.amin(0)) & (best <= drawn.amax(0))).all()


@every_vae
@torch.no_grad()
def test_no_draw_is_reproducible_without_a_seed_and_every_one_is_with_it(name: str) -> None:
    vae, x, available = build(name)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(vae.decode(vae.encode(x, available).sample()).sample())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


# The linear-Gaussian one is what it claims to be


def test_the_elbo_of_incomplete_rows_is_the_evidence_of_what_is_available() -> None:
    vae = linear_gaussian()
    x, available = draw_rows(vae, 50)
    loss = vae.loss(x.masked_fill(~available, math.nan), available)
    assert_close(-loss.double(), exact_log_evidence(vae, x, available), atol=1e-4, rtol=1e-5)


def test_the_exact_posterior_agrees_with_the_joint_gaussian() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, observed = draw_rows(vae, 50)
    posterior = vae.encode(x, observed)
    # The mean of a hidden feature is linear in z; both derivations must give the same.
    mean, covariance = exact_conditional(vae, x, observed)
    assert_close((posterior.mean @ vae.weight.T + vae.bias)[~observed], mean[~observed])
    spread = vae.weight @ posterior.covariance_matrix @ vae.weight.T
    spread = spread + torch.diag(vae.log_noise.exp().square())
    both = ~observed[:, :, None] & ~observed[:, None, :]
    assert_close(spread[both], covariance[both])


def test_the_average_posterior_is_the_prior() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, observed = draw_rows(vae, 4000, num_observed=3)
    posterior = vae.encode(x, observed)
    assert (posterior.mean.mean(0).abs() < 4.5 * posterior.mean.std(0) / math.sqrt(4000)).all()
    total = posterior.covariance_matrix + posterior.mean[:, :, None] * posterior.mean[:, None, :]
    error = total.std(0) / math.sqrt(4000)
    assert ((total.mean(0) - torch.eye(4)).abs() < 4.5 * error).all()


def test_nothing_available_leaves_the_prior() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, _ = draw_rows(vae, 3)
    nothing = torch.zeros_like(x, dtype=torch.bool)
    divergence = kl_divergence(vae.encode(x, nothing), vae.prior().expand(torch.Size([3])))
    assert_close(divergence, torch.zeros(3).double(), atol=1e-12, rtol=0.0)


# Sums over features


@pytest.mark.parametrize("samples", [(), (5,), (2, 3)])
def test_log_likelihood_sums_the_counted_features_of_each_row(samples: tuple[int, ...]) -> None:
    decoded = Normal(torch.randn(*samples, 4, 3), 1.0)
    x, counted = torch.randn(4, 3), torch.rand(4, 3) < 0.5
    log_each = decoded.log_prob(x)
    total = log_likelihood(decoded, x)
    assert total.shape == (*samples, 4)
    assert_close(total, log_each.sum(-1))
    some = log_likelihood(decoded, x.masked_fill(~counted, math.nan), counted)
    assert_close(some, log_each.where(counted, 0.0).sum(-1))


class Pixels(Distribution):
    """Pixels whose channels are one feature: ``log_prob`` keeps an axis of length 1 for them."""

    def __init__(self, mean: Tensor) -> None:
        self.base = Normal(mean, 1.0)
        super().__init__(mean.shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.base.log_prob(value).sum(-3, keepdim=True)


def test_log_likelihood_of_images_counts_pixels_with_all_their_channels() -> None:
    decoded = Pixels(torch.randn(5, 2, 3, 4, 4))
    x, counted = torch.randn(2, 3, 4, 4), torch.rand(2, 1, 4, 4) < 0.5
    found = log_likelihood(decoded, x.masked_fill(~counted, math.nan), counted)
    each = decoded.base.log_prob(x).where(counted, 0.0)
    assert_close(found, each.flatten(2).sum(2))
    assert found.shape == (5, 2)


def test_rows_with_holes_are_refused_on_behalf_of_encoders_that_need_whole_ones() -> None:
    require_complete(None)
    require_complete(torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"available must be all True.*needs complete rows"):
        require_complete(torch.tensor([[True, False]]))


def test_a_gradient_step_on_the_loss_raises_the_evidence() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, available = draw_rows(vae, 500, num_observed=5)
    worse = LinearGaussianVAE(
        0.5 * vae.weight.detach(), vae.bias.detach() + 1.0, 1.5 * vae.log_noise.detach().exp()
    )
    optimiser = torch.optim.Adam(worse.parameters(), lr=0.03)
    before = exact_log_evidence(worse, x, available).mean()
    for _ in range(80):
        optimiser.zero_grad()
        worse.loss(x, available).mean().backward()
        optimiser.step()
    after = exact_log_evidence(worse, x, available).mean()
    truth = exact_log_evidence(vae, x, available).mean()
    assert before < truth - 0.5
    assert after > truth - 0.2 * (truth - before)
