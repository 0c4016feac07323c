"""Clusters against closed forms: mixtures, the bound of a VaDE, and q(c | x_o)."""

import math
from typing import final

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    kl_divergence,
)
from torch.testing import assert_close

from linear_gaussian import linear_gaussian
from postmatch.clustering import cluster_probabilities, entropy
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import AutoregressiveMixture, mixture_net
from postmatch.distributions.clustered import ClusteredMixture
from postmatch.distributions.clusters import GaussianClusters
from postmatch.distributions.noise import draw_scored, from_noise, noise_size, quasi_uniform
from postmatch.partial import ClusteredHead, MaskedEncoder, PartialEncoder
from postmatch.vaes.base import VAE, log_likelihood
from postmatch.vaes.vade import VaDE, independent_gaussians

WEIGHTS = torch.tensor([0.2, 0.5, 0.3])
MEAN = torch.tensor([[-2.0, 0.0], [1.5, 1.0], [0.0, -2.5]])
SCALE = torch.tensor([[0.5, 1.0], [0.8, 0.4], [1.2, 0.6]])


def clusters() -> GaussianClusters:
    return GaussianClusters(WEIGHTS.log(), MEAN, SCALE)


def test_the_mixture_is_torchs() -> None:
    theirs = MixtureSameFamily(Categorical(WEIGHTS), Independent(Normal(MEAN, SCALE), 1))
    z = torch.randn(4, 5, 2)
    assert_close(clusters().log_prob(z), theirs.log_prob(z))
    log_each = theirs.component_distribution.log_prob(z.unsqueeze(-2)) + WEIGHTS.log()
    assert_close(clusters().log_clusters(z), log_each - log_each.logsumexp(-1, keepdim=True))


@pytest.mark.parametrize("shared", [True, False], ids=["shared noise", "own noise"])
def test_draws_are_of_the_clusters(shared: bool) -> None:
    count, ours = 1 << 14, clusters()
    torch.manual_seed(0)
    z = ours.sample(torch.Size([count]))
    if shared:
        size = noise_size(ours)
        assert size == 3
        z = from_noise(ours, quasi_uniform(count, size, 0, torch.device("cpu")))[:, 0]
    expected = WEIGHTS @ MEAN
    variance = WEIGHTS @ (SCALE.square() + MEAN.square()) - expected.square()
    # Means within four standard errors, variances within 5 %, which is more than four of theirs.
    assert ((z.mean(0) - expected).abs() < 4.0 * (variance / count).sqrt()).all()
    assert_close(z.var(0), variance, rtol=0.05, atol=0.0)


def test_the_expected_log_joint_is_the_average_over_draws() -> None:
    posterior = Normal(torch.tensor([[0.3, -1.0], [2.0, 0.5]]), torch.tensor([[0.4, 0.7]] * 2))
    torch.manual_seed(0)
    each = clusters().log_joint(posterior.sample(torch.Size([20_000])))
    exact = clusters().expected_log_joint(posterior)
    assert ((each.mean(0) - exact).abs() < 4.0 * each.std(0) / math.sqrt(20_000)).all()


@final
class Body(VAE):
    """Two numbers with noise, and an encoder that says the same of every row."""

    def __init__(self) -> None:
        super().__init__()
        self.loc, self.log_scale = (
            nn.Parameter(torch.tensor([0.4, -0.6])),
            nn.Parameter(-torch.ones(2)),
        )

    def prior(self) -> Distribution:
        raise AssertionError("a VaDE has a prior of its own")

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        shape = (len(x), 2)
        return Independent(Normal(self.loc.expand(shape), self.log_scale.exp().expand(shape)), 1)

    def decode(self, z: Tensor) -> Distribution:
        return Normal(z, 0.5)


def vade(num_clusters: int = 3) -> VaDE:
    model = VaDE(Body(), 2, num_clusters)
    model.set_clusters(WEIGHTS[:num_clusters], MEAN[:num_clusters], SCALE[:num_clusters])
    return model


def test_clusters_that_are_set_are_those_of_the_prior() -> None:
    prior = vade().prior()
    assert_close(prior.log_weights.exp(), WEIGHTS)
    assert_close(prior.loc, MEAN)
    assert_close(prior.scale, SCALE)


def test_with_one_cluster_the_loss_is_that_of_a_plain_vae() -> None:
    model, x = vade(1), torch.randn(6, 2)
    loss = model.loss(x, generator=torch.Generator().manual_seed(0))
    posterior = model.encode(x)
    z = posterior.mean + posterior.stddev * torch.randn(
        6, 2, generator=torch.Generator().manual_seed(0)
    )
    prior = Independent(Normal(MEAN[:1], SCALE[:1]), 1)
    plain = kl_divergence(posterior, prior) - log_likelihood(model.decode(z), x)
    assert_close(loss, plain, atol=1e-5, rtol=1e-5)


def test_no_other_posterior_of_clusters_has_a_better_bound_and_one_has_this() -> None:
    model, x = vade(), torch.zeros(1, 2)
    posterior = model.encode(x)
    expected = model.prior().expected_log_joint(posterior.base_dist)[0]  # type: ignore[attr-defined]
    best = expected.logsumexp(-1)

    def bound(q: Tensor) -> Tensor:
        return (q * expected).sum(-1) + torch.special.entr(q).sum(-1)

    others = torch.rand(500, 3, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert (bound(others) < best).all()
    assert_close(bound(expected.softmax(-1)), best)


def test_the_loss_is_a_bound_that_a_wide_view_confirms() -> None:
    model = vade()
    x = model.prior().sample(torch.Size([300])) + 0.5 * torch.randn(300, 2)
    truth = log_evidence(x)
    torch.manual_seed(0)
    bound = torch.stack([-model.loss(x) for _ in range(20)]).mean(0)
    # The posterior says the same of every row, so that the bound is far below for most of them.
    assert (bound < truth + 4.0 * 20**-0.5).all()
    assert (truth - bound).mean() > 1.0


def log_evidence(x: Tensor) -> Tensor:
    """Return the exact log p(x) of :func:`vade`, whose noise has a deviation of one half."""
    each = Normal(MEAN, (SCALE.square() + 0.25).sqrt()).log_prob(x.unsqueeze(-2)).sum(-1)
    return (each + WEIGHTS.log()).logsumexp(-1)


def test_a_full_posterior_is_refused() -> None:
    model = vade()
    full = MultivariateNormal(torch.zeros(1, 2), torch.eye(2))
    with pytest.raises(TypeError, match="independent Gaussians for clusters, got Multivariate"):
        model.loss(torch.zeros(1, 2), posterior=full)
    with pytest.raises(ValueError, match="num_clusters must be at least 1, got 0"):
        VaDE(Body(), 2, 0)


# q(c | x_o) of a linear-Gaussian mixture


@final
class ClusteredLinear(VAE):
    """A linear decoder of clustered z; its answers are mixtures in closed form."""

    def __init__(self) -> None:
        super().__init__()
        linear = linear_gaussian(5, 2, dtype=torch.float64)
        self.weight, self.bias, self.noise = (
            t.detach() for t in (linear.weight, linear.bias, linear.log_noise.exp())
        )

    def prior(self) -> GaussianClusters:
        return GaussianClusters(WEIGHTS.log().double(), MEAN.double(), SCALE.double())

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        raise NotImplementedError

    def decode(self, z: Tensor) -> Distribution:
        return Normal(z @ self.weight.T + self.bias, self.noise)

    def log_clusters(self, x: Tensor, observed: Tensor) -> Tensor:
        """Return the exact log p(c | x_o) of one row, from covariances of x."""
        seen = observed.nonzero().squeeze(1)
        weight, noise = self.weight[seen], self.noise[seen].square().diag()
        log_each = []
        for c in range(3):
            mean = weight @ MEAN[c].double() + self.bias[seen]
            covariance = weight @ SCALE[c].double().square().diag() @ weight.T + noise
            given = MultivariateNormal(mean, covariance).log_prob(x[seen]) if len(seen) else 0.0
            log_each.append(WEIGHTS[c].double().log() + given)
        return torch.stack([torch.as_tensor(value) for value in log_each]).log_softmax(-1)


@final
class ExactMixture(PartialEncoder):
    """The exact q(z | x_o), a mixture of Gaussians, from precisions of z."""

    def __init__(self, vae: ClusteredLinear) -> None:
        super().__init__()
        self.held = [vae]

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        vae = self.held[0]
        ratio = observed / vae.noise.square()
        precision = SCALE.double().pow(-2).diag_embed()[None] + torch.einsum(
            "bf,fi,fj->bij", ratio, vae.weight, vae.weight
        ).unsqueeze(1)
        pulled = torch.einsum("bf,fi->bi", ratio * (x - vae.bias), vae.weight).unsqueeze(1)
        covariance = torch.linalg.inv(precision)
        own = (MEAN.double() / SCALE.double().square()) + pulled
        mean = (covariance @ own.unsqueeze(-1)).squeeze(-1)
        logits = torch.stack([vae.log_clusters(*row) for row in zip(x, observed, strict=True)])
        return MixtureSameFamily(Categorical(logits=logits), MultivariateNormal(mean, covariance))


def test_the_clusters_of_partial_rows_are_those_of_the_closed_form() -> None:
    vae = ClusteredLinear()
    model, draws = MatchedVAE(vae, ExactMixture(vae)), 4_000
    torch.manual_seed(0)
    x = vae.decode(vae.prior().sample(torch.Size([40]))).sample()
    observed = torch.rand(40, 5) < 0.5
    observed[0] = False
    found = cluster_probabilities(model, x, observed, draws)
    exact = torch.stack([vae.log_clusters(*row) for row in zip(x, observed, strict=True)]).exp()
    # p(c | z) lies between 0 and 1, so that its deviation is at most that of a coin of its mean.
    error = (exact * (1.0 - exact) / draws).sqrt() + 1e-4
    assert ((found - exact).abs() < 4.5 * error).all()
    assert_close(found.sum(-1), torch.ones(40).double())
    assert_close(exact[0].float(), WEIGHTS)
    assert entropy(exact).mean() < entropy(exact[:1])[0]


def test_only_a_prior_of_clusters_has_clusters() -> None:
    plain = linear_gaussian()
    with pytest.raises(TypeError, match="prior must be a mixture of clusters, got Multivariate"):
        cluster_probabilities(
            MatchedVAE(plain, nn.Identity()), torch.zeros(1, 6), torch.ones(1, 6) > 0
        )  # type: ignore[arg-type]


def test_a_cluster_that_is_taken_for_granted_gives_a_looser_bound() -> None:
    model, x = vade(), torch.randn(6, 2)
    posterior = model.encode(x)
    with torch.no_grad():
        best = model.loss(x, posterior=posterior, generator=torch.Generator().manual_seed(0))
        each = torch.stack(
            [
                model.loss(
                    x,
                    posterior=posterior,
                    generator=torch.Generator().manual_seed(0),
                    clusters=torch.full((6,), c),
                )
                for c in range(3)
            ]
        )
    # log sum exp over clusters, by its definition.
    base = independent_gaussians(posterior)
    log_each = model.prior().expected_log_joint(base)
    assert torch.allclose(each.mT - best[:, None], log_each.logsumexp(-1, True) - log_each)
    assert (each > best).all()


def test_the_match_of_a_posterior_with_clusters_is_that_of_both() -> None:
    model = vade()
    head = ClusteredHead(4, 3, mixture_net(2, 2, 8, 1, 4))
    approx, z = head(torch.randn(5, 4)), torch.randn(2, 5, 2)
    share = model.prior().log_joint(z).softmax(-1)
    expected = -sum(share[..., c] * approx.log_joint(z)[..., c] for c in range(3))
    assert torch.allclose(model.match_at(approx, z), expected, atol=1e-5)
    assert (model.match_at(approx, z) >= -approx.log_prob(z)).all()  # it asks for more
    plain = Independent(Normal(torch.zeros(5, 2), 1.0), 1)
    assert torch.equal(model.match_at(plain, z), -plain.log_prob(z))


def test_certainty_costs_what_z_leaves_open_of_the_cluster() -> None:
    model, x, seed = vade(), torch.randn(6, 2), 0
    clusters = torch.tensor([0, 1, 2, 0, 1, 2]) % len(model.logits)
    posterior = model.encode(x)

    def loss(certainty: float) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return model.loss(
            x, posterior=posterior, generator=generator, clusters=clusters, certainty=certainty
        )

    with torch.no_grad():
        z, _ = draw_scored(posterior, torch.Generator().manual_seed(seed))
        left = -model.prior().log_clusters(z).gather(1, clusters[:, None])[:, 0]
        assert_close(loss(2.0) - loss(0.0), 2.0 * left, atol=1e-4, rtol=1e-4)


def test_what_the_posterior_tells_of_clusters_is_not_drawn() -> None:
    torch.manual_seed(0)
    vae = vade()
    head = ClusteredHead(8, len(vae.logits), mixture_net(2, 2, 16, 1, 8))
    model = MatchedVAE(vae, MaskedEncoder(nn.Linear(4, 8), head))
    x, observed = 0.1 * torch.randn(30, 2), torch.rand(30, 2) < 0.5
    with torch.no_grad():
        head.told.mul_(4.0)
        latent = model.given(x, observed).latent
        assert isinstance(latent, ClusteredMixture)
        places = AutoregressiveMixture(head.net, latent.contexts[0]).sample(torch.Size([500]))
        vae.set_clusters(latent.log_weights[0].exp(), places.mean(0), 0.5 * places.std(0))
        z = latent.sample(torch.Size([20_000]))
        told = vae.prior().log_clusters(z).softmax(-1)
    few = cluster_probabilities(model, x, observed, 16)
    many = cluster_probabilities(model, x, observed, 4_096)
    error = told.std(0) / 20_000**0.5
    # Both average the same: five standard errors of plain draws, and the lattice's own.
    assert ((many - told.mean(0)).abs() < 5.0 * error + 2e-3).all()
    with torch.no_grad():
        lattice = from_noise(latent, quasi_uniform(16, 5, 0, x.device))
        plain = vae.prior().log_clusters(lattice).softmax(-1).mean(0)
    assert_close(few.sum(-1), torch.ones(30))
    assert (few - many).abs().mean() < (plain - many).abs().mean()
