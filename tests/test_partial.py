"""Partial encoders: the contract over every final class, and training towards exact posteriors."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
import zuko
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, kl_divergence
from torch.testing import assert_close

from linear_gaussian import (
    LinearGaussianVAE,
    draw_rows,
    exact_log_conditional,
    linear_gaussian,
    separate_gaussian,
)
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import mixture_net
from postmatch.distributions.columns import ColumnSpec
from postmatch.distributions.noise import from_noise, noise_size
from postmatch.masks import UniformCount
from postmatch.nets.columns import ColumnFeatures
from postmatch.nets.mlp import ResidualMLP
from postmatch.objectives import match
from postmatch.partial import (
    AutoregressiveHead,
    DiagonalHead,
    FeatureEncoder,
    FullGaussianHead,
    MaskedEncoder,
    PartialEncoder,
    SetEncoder,
)
from postmatch.vaes.ensemble import EnsembleEncoder

FEATURES, LATENT, WIDTH = 6, 3, 16


def diagonal_head(width: int = WIDTH, latent: int = LATENT) -> nn.Module:
    return DiagonalHead(width, latent)


def full_head(width: int = WIDTH, latent: int = LATENT) -> nn.Module:
    return FullGaussianHead(width, latent)


def autoregressive_head(width: int = WIDTH, latent: int = LATENT) -> nn.Module:
    return AutoregressiveHead(mixture_net(latent, 3, 16, 1, context_size=width))


HEADS = {"diagonal": diagonal_head, "full": full_head, "autoregressive": autoregressive_head}


def masked(head: nn.Module) -> PartialEncoder:
    return MaskedEncoder(ResidualMLP(2 * FEATURES, WIDTH, 1), head)


def embedded(head: nn.Module) -> PartialEncoder:
    return SetEncoder(FEATURES, 8, ResidualMLP(8, WIDTH, 1), head)


def featured(head: nn.Module) -> PartialEncoder:
    specs = (*[ColumnSpec("number")] * 3, ColumnSpec("ordered", size=4), ColumnSpec("number"))
    features = ColumnFeatures((*specs, ColumnSpec("category", size=3)))
    return FeatureEncoder(features, ResidualMLP(features.num_features, WIDTH, 1), head)


def ensemble(head: nn.Module) -> PartialEncoder:
    return EnsembleEncoder([masked(head), featured(copy.deepcopy(head))])


# A new class joins here.
EVERY = {
    "MaskedEncoder": masked,
    "SetEncoder": embedded,
    "FeatureEncoder": featured,
    "EnsembleEncoder": ensemble,
}
MEMBERS = {"EnsembleEncoder": 2}  # its z begins with the number of a member
every_class = pytest.mark.parametrize("name", EVERY)
every_head = pytest.mark.parametrize("head", HEADS)


def build(name: str, head: str) -> PartialEncoder:
    return EVERY[name](HEADS[head]())


def rows(batch: int = 40) -> tuple[Tensor, Tensor]:
    """Return rows that fit the columns of every encoder, and masks of every size."""
    x = torch.cat([torch.randn(batch, 3), torch.randint(3, (batch, 3)).float()], dim=1)
    observed = UniformCount().sample(x.shape, torch.Generator().manual_seed(1))
    return x, observed


def points(distribution: Distribution, batch: int) -> Tensor:
    """Return fixed values of z, of one member and of the other where there are two."""
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(6, batch, LATENT, generator=generator)
    if distribution.event_shape == (LATENT,):
        return z
    member = (torch.arange(6.0) % 2)[:, None, None].expand(6, batch, 1)
    return torch.cat([member, z], dim=-1)


def fingerprint(distribution: Distribution, batch: int) -> Tensor:
    """Return log densities at fixed points, which tell distributions apart."""
    return distribution.log_prob(points(distribution, batch))


# Those in test_hierarchical.py, and those in test_attaching.py.
ELSEWHERE = {"HierarchicalEncoder", "AttachedEncoder", "StandardisedEncoder"}


@every_class
def test_every_final_class_is_tested_here(name: str) -> None:
    ours = {c.__name__ for c in PartialEncoder.__subclasses__() if "postmatch" in c.__module__}
    assert ours - ELSEWHERE == set(EVERY)
    assert type(build(name, "diagonal")).__name__ == name


@every_class
@every_head
@pytest.mark.parametrize("junk", [0.0, 1e6, math.nan, math.inf, -math.inf])
def test_hidden_values_are_never_read(name: str, head: str, junk: float) -> None:
    encoder, (x, observed) = build(name, head), rows()
    expected = fingerprint(encoder(x, observed), len(x))
    found = fingerprint(encoder(x.masked_fill(~observed, junk), observed), len(x))
    assert torch.equal(found, expected)
    assert expected.isfinite().all()


@every_class
@every_head
def test_hidden_values_never_reach_a_gradient(name: str, head: str) -> None:
    encoder, (x, observed) = build(name, head), rows()
    gradients = []
    for junk in (0.0, math.nan):
        loss = fingerprint(encoder(x.masked_fill(~observed, junk), observed), len(x)).mean()
        gradients.append(torch.autograd.grad(loss, list(encoder.parameters())))
    for plain, with_nan in zip(*gradients, strict=True):
        assert torch.equal(plain, with_nan)
        assert plain.isfinite().all()


@every_class
@every_head
def test_observed_values_and_the_mask_itself_are_read(name: str, head: str) -> None:
    encoder, (x, _) = build(name, head), rows()
    x[:, :3] = x[:, :3].clamp(-0.9, 0.9)
    everything = torch.ones_like(x, dtype=torch.bool)
    plain = fingerprint(encoder(x, everything), len(x))
    for i in range(FEATURES):
        moved = x.clone()
        moved[:, i] = torch.where(x[:, i] > 0.5, 0.0, 1.0)
        change = fingerprint(encoder(moved, everything), len(x)) - plain
        assert (change.abs().amax(0) > 1e-6).all()
        without = everything.clone()
        without[:, i] = False
        zero = x.clone()
        zero[:, i] = 0.0  # a zero that is seen says more than one that is not
        change = fingerprint(encoder(zero, everything), len(x)) - fingerprint(
            encoder(zero, without), len(x)
        )
        assert (change.abs().amax(0) > 1e-6).all()


@every_class
@every_head
def test_rows_do_not_read_each_other(name: str, head: str) -> None:
    encoder, (x, observed) = build(name, head), rows()
    whole = fingerprint(encoder(x, observed), len(x))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    z = points(encoder(x, observed), len(x))
    mixed = encoder(x[order], observed[order]).log_prob(z[:, order])
    assert_close(mixed, whole[:, order], atol=1e-5, rtol=1e-5)
    alone = encoder(x[4:5], observed[4:5]).log_prob(z[:, 4:5])
    assert_close(alone, whole[:, 4:5], atol=1e-5, rtol=1e-5)


@every_class
@every_head
@torch.no_grad()
def test_the_distribution_is_one_of_vectors_and_draws_follow_its_density(
    name: str, head: str
) -> None:
    encoder, (x, observed) = build(name, head), rows(2)
    latent = encoder(x, observed)
    members = MEMBERS.get(name, 1)
    size = LATENT + (members > 1)
    assert (latent.batch_shape, latent.event_shape) == ((2,), (size,))
    # Importance weights of another Gaussian under draws of this one average to 1.
    drawn = latent.sample(torch.Size([4000]))
    assert drawn.shape == (4000, 2, size)
    vector = drawn[..., -LATENT:]
    other = Independent(Normal(vector.mean(0), 0.5 * vector.std(0)), 1)
    weight = (other.log_prob(vector) - math.log(members) - latent.log_prob(drawn)).exp()
    error = weight.std(0) / math.sqrt(4000)
    assert ((weight.mean(0) - 1.0).abs() < 4.5 * error).all()
    needed = noise_size(latent)
    assert needed is not None
    assert from_noise(latent, torch.rand(7, 1, needed)).shape == (7, 2, size)


def test_a_masked_encoder_reads_images_whose_mask_has_one_channel() -> None:
    net = nn.Sequential(nn.Conv2d(4, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 4 * 5, WIDTH))
    encoder = MaskedEncoder(net, diagonal_head())
    x, observed = torch.randn(6, 3, 4, 5), torch.rand(6, 1, 4, 5) < 0.5
    expected = fingerprint(encoder(x, observed), 6)
    found = fingerprint(encoder(x.masked_fill(~observed, math.nan), observed), 6)
    assert torch.equal(found, expected)


def test_a_full_gaussian_has_a_positive_cholesky_factor_for_any_features() -> None:
    head = FullGaussianHead(4, 3)
    latent = head(100.0 * torch.randn(50, 4))
    assert isinstance(latent, MultivariateNormal)
    lower = latent.scale_tril
    assert (lower.diagonal(dim1=-2, dim2=-1) > 0.0).all()
    assert (lower.triu(1) == 0.0).all()
    off_diagonal = lower[:, *torch.tril_indices(3, 3, -1)]
    assert (off_diagonal.std(0) > 1.0).all()  # and all its entries are free


# Training against a frozen VAE ends at the exact posterior


def fit(vae: LinearGaussianVAE, encoder: PartialEncoder, steps: int) -> None:
    """Match an encoder to a frozen VAE, rows and masks fresh at every step."""
    model = MatchedVAE(vae, encoder)
    optimiser = torch.optim.Adam(encoder.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        x, _ = draw_rows(vae, 256, seed=step + 10)
        observed = UniformCount().sample(x.shape, generator)
        loss = model.losses(x, None, observed, train_vae=False)["match"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def divergence(vae: LinearGaussianVAE, encoder: PartialEncoder) -> float:
    """Return the mean KL from the exact partial posterior to the learned one."""
    x, observed = draw_rows(vae, 500)
    exact, learned = vae.posterior(x, observed), encoder(x, observed)
    z = exact.sample(torch.Size([200]))
    return (exact.log_prob(z) - learned.log_prob(z)).mean().item()


def small_net(vae: LinearGaussianVAE) -> ResidualMLP:
    return ResidualMLP(2 * len(vae.weight), 48, 1)


def untrained(vae: LinearGaussianVAE, encoder: PartialEncoder) -> float:
    with torch.no_grad():
        return divergence(vae, encoder)


@pytest.mark.parametrize(
    ("make_vae", "head", "steps"),
    [
        (separate_gaussian, diagonal_head, 300),
        (lambda: linear_gaussian(4, 2), full_head, 400),
        (lambda: linear_gaussian(4, 2), autoregressive_head, 400),
    ],
    ids=["diagonal", "full", "autoregressive"],
)
def test_training_against_a_frozen_vae_ends_at_the_exact_posterior(
    make_vae: Callable[[], LinearGaussianVAE],
    head: Callable[[int, int], nn.Module],
    steps: int,
) -> None:
    vae = make_vae()
    encoder = MaskedEncoder(small_net(vae), head(48, 2))
    before = untrained(vae, encoder)
    fit(vae, encoder, steps)
    with torch.no_grad():
        after = divergence(vae, encoder)
    # 0.03 nats: a standard deviation off by about 12 %, or a mean off by a quarter of one.
    assert after < 0.03
    assert before > 0.3


def test_a_diagonal_head_cannot_reach_a_posterior_with_correlations() -> None:
    vae = linear_gaussian(4, 2)
    encoder = MaskedEncoder(small_net(vae), diagonal_head(48, 2))
    fit(vae, encoder, 300)
    x, observed = draw_rows(vae, 500)
    with torch.no_grad():
        exact = vae.posterior(x, observed)
        # The best diagonal Gaussian has the exact marginals; it misses the total correlation.
        variance = exact.covariance_matrix.diagonal(dim1=1, dim2=2)
        best = MultivariateNormal(exact.loc, torch.diag_embed(variance))
        least = kl_divergence(exact, best).mean().item()
        after = divergence(vae, encoder)
    assert least > 0.05
    assert least - 0.01 < after < least + 0.03


# Heads of one's own: flows of zuko


class FlowHead(nn.Module):
    """Features to a conditional flow; zuko's flows can also be passed as they are."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.flow = zuko.flows.NSF(latent, context=width, transforms=2, hidden_features=(16,))

    def forward(self, features: Tensor) -> Distribution:
        distribution: Distribution = self.flow(features)
        return distribution


def test_a_zuko_flow_is_a_head_and_matching_trains_it() -> None:
    vae = linear_gaussian(4, 2)
    encoder = MaskedEncoder(small_net(vae), FlowHead(48, 2))
    before = untrained(vae, encoder)
    fit(vae, encoder, 60)
    with torch.no_grad():
        after = divergence(vae, encoder)
    assert after < 0.25 * before
    # Every answer of a Conditional comes from it.
    x, observed = draw_rows(vae, 60, num_observed=2)
    answer = MatchedVAE(vae, encoder).given(x, observed)
    drawn = answer.sample(400)
    assert torch.equal(drawn[:, observed], x[observed].expand(400, -1))
    error = (answer.impute(100) - drawn.mean(0)) / drawn.std(0)
    assert error[~observed].abs().max() < 4.5 * math.sqrt(1 / 100 + 1 / 400)
    gap = answer.log_prob(x).double() - exact_log_conditional(vae, x, observed)
    assert -0.5 < gap.mean() < 2.0 * gap.std() / math.sqrt(60)


def test_a_seed_decides_the_answers_even_of_a_head_without_from_noise() -> None:
    vae = linear_gaussian(4, 2)
    flow = zuko.flows.MAF(2, context=48, transforms=1, hidden_features=(8,))
    x, observed = draw_rows(vae, 5, num_observed=2)
    answer = MatchedVAE(vae, MaskedEncoder(small_net(vae), flow)).given(x, observed)
    assert noise_size(answer.latent) is None
    for ask in (
        answer.impute,
        lambda **kw: answer.quantiles([0.2], **kw),
        lambda **kw: answer.log_prob(x, **kw),
    ):
        before = torch.get_rng_state()
        first = ask(seed=1)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(2)
        assert torch.equal(ask(seed=1), first)
        assert not torch.equal(ask(seed=2), first)


def test_match_needs_nothing_of_a_head_but_its_log_prob() -> None:
    flow = zuko.flows.NSF(2, context=3, transforms=1, hidden_features=(8,))
    context = torch.randn(5, 3)
    target = Independent(Normal(torch.zeros(5, 2), torch.ones(5, 2)), 1)
    torch.manual_seed(4)
    loss = match(target, flow(context), num_samples=6)
    torch.manual_seed(4)
    z = target.rsample(torch.Size([6]))
    assert_close(loss, -torch.stack([flow(context).log_prob(v) for v in z]).mean(0))
