"""The peers of the scoreboard against closed forms, numerical integrals and other derivations."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, MultivariateNormal, Normal, kl_divergence
from torch.testing import assert_close

from linear_gaussian import (
    ExactPartial,
    LinearGaussianVAE,
    draw_rows,
    exact_conditional,
    exact_log_conditional,
    exact_log_evidence,
    exact_model,
    linear_gaussian,
    marginal,
)
from postmatch.conditioning import MatchedVAE
from postmatch.metrics import nrmse
from postmatch.randomness import seeded
from postmatch.recipes.scores import MASK_SEEDS, Judging, conditional_scores, masks_of
from postmatch.vaes.base import log_likelihood
from small_baselines import LATENT, hand_made_circuit, standard_error, task_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "baselines"))

import flow
import gaussian
import partial_vae
import vaeac
from gaussian import ExactMixture
from vaeac import VAEAC


def mixture(components: int = 3, features: int = 4) -> ExactMixture:
    """Return a fixed mixture with components of different shapes."""
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(components, features, features, generator=generator).double()
    covariances = root @ root.mT + 0.2 * torch.eye(features).double()
    means = 2.0 * torch.randn(components, features, generator=generator).double()
    return ExactMixture(torch.tensor([0.2, 0.5, 0.3]).double()[:components], means, covariances)


# The exact ones


def test_a_gaussian_has_the_conditionals_of_the_linear_gaussian_model() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, observed = draw_rows(vae, 100)
    mean, covariance = marginal(vae)
    answer = ExactMixture(mean.new_ones(1), mean[None], covariance[None]).given(x, observed)
    assert_close(answer.log_prob(x), exact_log_conditional(vae, x, observed), atol=1e-9, rtol=0.0)
    assert_close(answer.impute(), exact_conditional(vae, x, observed)[0], atol=1e-9, rtol=0.0)


def conditional_of_row(model: ExactMixture, x: Tensor, seen: Tensor) -> tuple[float, Tensor]:
    """Return log density and mean of a row's hidden part, from each component's own conditional."""
    o, u = seen.nonzero()[:, 0], (~seen).nonzero()[:, 0]
    log_share, log_hidden, means = [], [], []
    for k, weight in enumerate(model.weights):
        mean, covariance = model.means[k], model.covariances[k]
        gain = covariance[u][:, o] @ torch.linalg.inv(covariance[o][:, o])
        center = mean[u] + gain @ (x[o] - mean[o])
        spread = covariance[u][:, u] - gain @ covariance[o][:, u]
        own = MultivariateNormal(mean[o], covariance[o][:, o]).log_prob(x[o])
        log_share.append(weight.log() + own)
        log_hidden.append(MultivariateNormal(center, spread).log_prob(x[u]))
        means.append(center)
    share = torch.stack(log_share).log_softmax(0)
    log_prob = torch.logsumexp(share + torch.stack(log_hidden), 0).item()
    return log_prob, (share.exp()[:, None] * torch.stack(means)).sum(0)


def test_a_mixture_has_the_conditionals_that_are_found_row_by_row() -> None:
    model = mixture()
    x = 2.0 * torch.randn(60, 4).double()
    observed = torch.rand(60, 4) < 0.5
    observed[0], observed[1] = False, True
    answer = model.given(x, observed)
    log_prob, imputed = answer.log_prob(x), answer.impute()
    partly = (observed.any(1) & ~observed.all(1)).nonzero()[:, 0].tolist()
    assert len(partly) > 40
    for i in partly:
        truth, mean = conditional_of_row(model, x[i], observed[i])
        assert log_prob[i].item() == pytest.approx(truth, abs=1e-9)
        assert_close(imputed[i, ~observed[i]], mean, atol=1e-9, rtol=0.0)
        assert torch.equal(imputed[i, observed[i]], x[i, observed[i]])
    # Nothing seen: the mixture itself. Everything seen: nothing is left to tell.
    parts = zip(model.means, model.covariances, strict=True)
    joint = torch.stack([MultivariateNormal(m, c).log_prob(x[0]) for m, c in parts])
    assert_close(log_prob[0], torch.logsumexp(model.weights.log() + joint, 0))
    assert_close(imputed[0], model.weights @ model.means)
    assert log_prob[1].item() == pytest.approx(0.0, abs=1e-12)
    assert torch.equal(imputed[1], x[1])


def test_a_mixtures_conditional_integrates_to_one() -> None:
    model = mixture(components=2)
    grid = torch.linspace(-40.0, 40.0, 4001).double()
    for hidden in range(4):
        x = torch.randn(4).double().repeat(len(grid), 1)
        x[:, hidden] = grid
        observed = torch.ones_like(x, dtype=torch.bool)
        observed[:, hidden] = False
        density = model.given(x, observed).log_prob(x).exp()
        assert torch.trapezoid(density, grid).item() == pytest.approx(1.0, abs=1e-6)


def test_validation_rows_choose_the_number_of_components() -> None:
    # Three narrow clusters; thirty of them learn what is chance in 400 rows.
    center = 4.0 * torch.randn(3, 5)
    which = torch.randint(3, (1000,))
    x = center[which] + 0.5 * torch.randn(1000, 5)
    task = task_of(x)
    best, report = gaussian.fit_mixture(task, choices=(1, 3, 30, 100))
    assert len(best.model.weights) == 3
    assert [number for number, _ in report.history] == [1, 3, 30]  # the first that is worse ends it
    truth = ExactMixture(
        torch.ones(3).double() / 3, center.double(), 0.25 * torch.eye(5).double().repeat(3, 1, 1)
    )
    test = task.rows.test
    observed = masks_of(test, 0)
    exact, found = (m.given(test, observed).log_prob(test) for m in (truth, best.model))
    loss = exact - found
    # A maximum of likelihood loses half a nat in all of its rows for each number, of which 62 here.
    assert -3.0 * standard_error(loss) < loss.mean() < 31 / 400 + 3.0 * standard_error(loss)


# VAEAC


@final
class ExactProposal(nn.Module):
    """The posterior of a linear-Gaussian model, spoiled as its encoder is, in VAEAC's place."""

    def __init__(self, vae: LinearGaussianVAE) -> None:
        super().__init__()
        self.held = [vae]

    def forward(self, inputs: Tensor) -> Distribution:
        return self.held[0].encode(inputs.chunk(2, dim=-1)[0])


@final
class ExactGenerator(nn.Module):
    """The decoder of a linear-Gaussian model, in VAEAC's place."""

    def __init__(self, vae: LinearGaussianVAE) -> None:
        super().__init__()
        self.held = [vae]

    def forward(self, inputs: Tensor) -> Tensor:
        decoded = self.held[0].decode(inputs[..., :LATENT])
        raw = torch.log(torch.expm1(decoded.scale - vaeac.MIN_SCALE))  # what softplus undoes
        return torch.cat([decoded.mean, raw.expand_as(decoded.mean)], dim=-1)


def exact_vaeac(vae: LinearGaussianVAE) -> VAEAC:
    """Return a VAEAC whose every part is exact, so that its density is that of the model."""
    return VAEAC(ExactProposal(vae), ExactPartial(vae), ExactGenerator(vae))


def test_vaeac_is_exact_with_one_draw_when_its_parts_are() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 100)
    answer = exact_vaeac(vae).given(x, observed)
    # Every weight p(x_u | z) p(z | x_o) / p(z | x) is the density itself.
    truth = exact_log_conditional(vae, x, observed)
    assert_close(answer.log_prob(x, num_samples=1).double(), truth, atol=1e-4, rtol=0.0)
    assert_close(answer.log_prob_gap(num_samples=1), torch.zeros(100), atol=1e-4, rtol=0.0)
    mean, spread = exact_conditional(vae, x, observed)
    error = (answer.impute() - mean)[~observed]
    variance = spread.diagonal(dim1=1, dim2=2)[~observed]
    assert (error.square() / variance).mean().sqrt() < 1.0 / math.sqrt(32)  # of independent draws
    assert torch.equal(answer.impute()[observed], x[observed])


def test_vaeacs_bound_stays_below_the_truth_and_closes_with_draws() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 1000, num_observed=3)
    truth = exact_log_conditional(vae, x, observed)
    with torch.no_grad():
        vae.shift.fill_(0.5)  # only the proposal is spoiled
    answer = exact_vaeac(vae).given(x, observed)
    few, many = (answer.log_prob(x, count).double() - truth for count in (2, 400))
    assert few.mean() < -3.0 * standard_error(few)
    assert abs(many.mean()) < 0.01 + 3.0 * standard_error(many)
    gaps = [answer.log_prob_gap(count) for count in (2, 400)]
    # On rows of the model, the gap from both sides is wider than that from below.
    assert gaps[0].mean() - 3.0 * standard_error(gaps[0]) > -few.mean()
    assert abs(gaps[1].mean()) < 0.02 + 3.0 * standard_error(gaps[1])


def test_vaeacs_loss_is_the_negative_truth_when_its_parts_are_exact() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 4000)
    model = exact_vaeac(vae)
    losses, free = (
        model.losses(x, observed, beta, torch.Generator().manual_seed(0)) for beta in (1.0, 0.0)
    )
    truth = -exact_log_conditional(vae, x, observed).mean()
    # A row's error is that of log p(x_u | z) at one draw of z.
    with torch.no_grad():
        z = model.propose(x, observed).sample((2,))
        log_hidden = log_likelihood(vae.decode(z), x, ~observed)
        error = log_hidden.var(0).mean().sqrt().item() / math.sqrt(len(x))
    assert losses["bound"].item() == pytest.approx(truth.item(), abs=4.0 * error)
    divergence = kl_divergence(model.propose(x, observed), model.prior(x, observed)).mean()
    assert_close(losses["bound"] - free["bound"], divergence)
    prior = model.prior(x, observed)
    mean, scale = prior.mean, prior.covariance_matrix.diagonal(dim1=1, dim2=2).sqrt()
    held = (mean.square() / 2e8 - 1e-4 * (scale.log() - scale)).sum(1).mean()
    assert_close(losses["prior"], held)


def test_trained_vaeac_comes_near_the_truth_from_below() -> None:
    vae = linear_gaussian(num_features=4, latent_size=2)
    x, _ = draw_rows(vae, 3000)
    task = task_of(x)
    with seeded(0):
        model = vaeac.build(task)
    vaeac.fit(task, model, model.losses)
    test, observed = draw_rows(vae, 1000, seed=2)
    found = model.given(test, observed).log_prob(test, num_samples=100).double()
    excess = found - exact_log_conditional(vae, test, observed)
    assert excess.mean() < -3.0 * standard_error(excess)
    mean, covariance = marginal(vae)
    each = Normal(mean, covariance.diagonal().sqrt()).log_prob(test.double())
    gain = found - each.masked_fill(observed, 0.0).sum(1)  # over features on their own
    assert gain.mean() > 3.0 * standard_error(gain)
    assert -excess.mean() < gain.mean()  # nearer to the truth than to these


# The partial VAE


def test_the_partial_vaes_loss_is_the_log_likelihood_when_z_says_nothing() -> None:
    x = torch.randn(50, 3)
    observed = torch.rand(50, 3) < 0.5
    model = partial_vae.build(task_of(torch.randn(700, 3)))
    with torch.no_grad():
        model.log_scale.copy_(torch.tensor([0.3, -0.2, 0.1]))
        for layer in (model.encoder.head.linear, model.decoder[-1]):
            layer.weight.zero_()
            layer.bias.zero_()
        # Then q(z | x_o) is the prior.
        model.encoder.head.linear.bias[LATENT:] = math.log(math.expm1(1.0 - 1e-4))
    losses = partial_vae.losses(model, x, observed, 1.0, torch.Generator().manual_seed(0))
    each = -Normal(torch.zeros(3), model.log_scale.exp()).log_prob(x)
    assert_close(losses["whole"], each.sum(1).mean())
    assert_close(losses["partial"], (each * observed).sum(1).mean())


# What all share


def networks() -> dict[str, Callable[[Tensor, Tensor], Any]]:
    task = task_of(torch.randn(700, 4))
    with seeded(1):
        net, vae = vaeac.build(task), partial_vae.build(task)
    return {
        "gaussian_mixture": mixture().given,
        "vaeac": net.given,
        "partial_vae": MatchedVAE(vae, vae.encoder).given,
    }


@pytest.mark.parametrize("junk", [1e6, float("nan")])
@pytest.mark.parametrize("method", ["gaussian_mixture", "circuit", "vaeac", "partial_vae"])
def test_no_method_reads_hidden_values(method: str, junk: float) -> None:
    given = hand_made_circuit()[0].given if method == "circuit" else networks()[method]
    x = torch.randn(20, 4)
    observed = torch.rand(20, 4) < 0.5
    answers = [given(rows, observed) for rows in (x, x.masked_fill(~observed, junk))]
    found = []
    for answer in answers:
        with seeded(2):
            found.append((answer.log_prob(x, num_samples=4), answer.impute()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert torch.isfinite(found[0][1]).all()


def test_peers_are_judged_by_the_masks_and_units_of_our_own_models() -> None:
    vae = linear_gaussian()
    x, _ = draw_rows(vae, 1000)
    log_scale = torch.linspace(-1.0, 1.0, 6)
    task = task_of(x, log_scale=log_scale)
    mean, covariance = marginal(vae)
    scores = gaussian.exact_scores(
        ExactMixture(mean.new_ones(1), mean[None], covariance[None]), task
    )
    test = task.rows.test
    ours = conditional_scores(
        exact_model(vae), test, log_scale, Judging(num_samples=2, ratio_samples=(2,))
    )
    for name in ("log_prob", "log_prob_std"):  # the ratio of exact posteriors is exact
        assert scores[name] == pytest.approx(ours[name.replace("prob", "prob_ratio_2")], abs=1e-3)
    assert scores["joint_log_prob"] == pytest.approx(ours["joint_log_prob"], abs=1e-3)
    everything = torch.ones_like(test, dtype=torch.bool)
    joint = exact_log_evidence(vae, test, everything).mean() - log_scale.double().sum()
    assert scores["joint_log_prob"] == pytest.approx(joint.item(), abs=1e-6)
    errors = []
    for seed in MASK_SEEDS:
        observed = masks_of(test, seed)
        errors.append(nrmse(exact_conditional(vae, test, observed)[0], test, ~observed))
    assert scores["nrmse"] == pytest.approx(np.mean(errors), abs=1e-6)
    assert scores["nrmse_std"] == pytest.approx(np.std(errors), abs=1e-6)
    assert "log_prob_gap" not in scores


# The flow


@pytest.mark.parametrize("kind", flow.TRANSFORMS)
def test_a_flows_density_integrates_to_one(kind: flow.Kind) -> None:
    pytest.importorskip("zuko")
    torch.manual_seed(0)
    model = flow.build(num_features=2, width=8, blocks=1, kind=kind)
    grid = torch.linspace(-7.0, 7.0, 281)
    x = torch.cartesian_prod(grid, grid)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)  # or the density has spikes between the points of the grid
        density = model.log_prob(x).exp().view(281, 281)
    volume = torch.trapezoid(torch.trapezoid(density, grid), grid).item()
    # Splines have kinks in their curvature, so the rule's error falls with the square of the step.
    assert volume == pytest.approx(1.0, abs=0.05**2)
    untrained = Normal(0.0, 1.0).log_prob(x).sum(1).exp().view(281, 281)
    assert (density - untrained).abs().max() > 0.05  # it is not the identity
