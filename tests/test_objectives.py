"""The paper's objectives against the closed forms of the linear-Gaussian VAE."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Categorical,
    Distribution,
    Independent,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    kl_divergence,
)
from torch.testing import assert_close

from linear_gaussian import (
    ExactPartial,
    LinearGaussianVAE,
    draw_rows,
    exact_log_evidence,
    exact_log_predictive,
    exact_model,
    linear_gaussian,
    spoiled,
)
from postmatch.objectives import elbo, match, match_kl
from postmatch.vaes.base import log_likelihood


def spoil(vae: LinearGaussianVAE) -> None:
    """Make the encoder wrong, so that no test passes because two posteriors coincide."""
    with torch.no_grad():
        vae.shift.copy_(torch.linspace(-0.6, 0.8, len(vae.shift)))
        vae.log_scale.fill_(math.log(0.8))


def gradients(value: Tensor, *parameters: Tensor) -> Tensor:
    parts = torch.autograd.grad(value, parameters, retain_graph=True)
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("num_samples", [1, 5])
def test_every_draw_of_the_elbo_is_the_log_evidence_when_the_posterior_is_exact(
    num_samples: int,
) -> None:
    vae = linear_gaussian()
    x, _ = draw_rows(vae, 50)
    posterior = vae.encode(x)
    z = posterior.sample(torch.Size([num_samples]))
    bound = elbo(log_likelihood(vae.decode(z), x), z, posterior, vae.prior())
    truth = exact_log_evidence(vae, x, torch.ones_like(x, dtype=torch.bool))
    assert_close(bound.double(), truth.expand(num_samples, -1), atol=1e-4, rtol=1e-5)


def test_the_elbo_falls_short_of_the_evidence_by_the_kl_to_the_exact_posterior() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, _ = draw_rows(vae, 20)
    exact = vae.encode(x)
    spoil(vae)
    posterior = vae.encode(x)
    z = posterior.sample(torch.Size([4000]))
    bound = elbo(log_likelihood(vae.decode(z), x), z, posterior, vae.prior())
    truth = exact_log_evidence(vae, x, torch.ones_like(x, dtype=torch.bool))
    error = (bound.mean(0) - (truth - kl_divergence(posterior, exact))) / (
        bound.std(0) / math.sqrt(len(z))
    )
    assert error.abs().max() < 4.0


def test_beta_weighs_the_kl_term_alone() -> None:
    posterior = Independent(Normal(torch.tensor([[0.3, -1.0]]), torch.tensor([[0.5, 2.0]])), 1)
    prior = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    z, log_x = torch.tensor([[0.7, 0.1]]), torch.tensor([-3.0])
    kl_at_z = (posterior.log_prob(z) - prior.log_prob(z)).item()
    assert elbo(log_x, z, posterior, prior, beta=0.0).item() == pytest.approx(-3.0)
    assert elbo(log_x, z, posterior, prior, beta=0.25).item() == pytest.approx(
        -3.0 - 0.25 * kl_at_z
    )


def test_match_exceeds_match_kl_by_the_entropy_of_the_target() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, observed = draw_rows(vae, 20)
    target, approx = vae.encode(x), ExactPartial(vae, 0.7, 1.0)(x, observed)
    each = torch.stack([match(target, approx, num_samples=10) for _ in range(400)])
    expected = match_kl(target, approx) + target.entropy()
    error = (each.mean(0) - expected) / (each.std(0) / math.sqrt(len(each)))
    assert error.abs().max() < 4.0


def test_one_draw_of_match_is_the_surprise_of_approx_at_a_draw_of_target() -> None:
    point = torch.tensor([[1.0, 2.0]])
    target = Independent(Normal(point, torch.full((1, 2), 1e-12)), 1)
    approx = Independent(Normal(torch.zeros(1, 2), torch.full((1, 2), 2.0)), 1)
    expected = 0.5 * (1.0 + 4.0) / 4.0 + 2.0 * math.log(2.0) + math.log(2.0 * math.pi)
    assert match(target, approx).item() == pytest.approx(expected, abs=1e-5)


def test_the_gradients_of_match_and_match_kl_in_theta_agree() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    spoil(vae)
    x, observed = draw_rows(vae, 10)
    target, partial = vae.encode(x), ExactPartial(vae, 0.7, 1.0)
    approx = partial(x, observed)
    theta = (partial.shift, partial.log_scale)
    exact = gradients(match_kl(target, approx).mean(), *theta)
    each = torch.stack(
        [gradients(match(target, approx, num_samples=5).mean(), *theta) for _ in range(300)]
    )
    error = (each.mean(0) - exact) / (each.std(0) / math.sqrt(len(each)))
    assert error.abs().max() < 4.0
    assert exact.norm() > 20.0 * each.std(0).norm() / math.sqrt(len(each))  # not all about zero


def test_match_by_sample_trains_the_target_only_when_asked() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    spoil(vae)
    x, observed = draw_rows(vae, 10)
    partial = ExactPartial(vae, 0.7, 1.0)
    stopped = match(vae.encode(x), partial(x, observed), num_samples=3).mean()
    psi = (vae.shift, vae.log_scale)
    assert torch.autograd.grad(stopped, psi, allow_unused=True) == (None, None)
    # What flows is the gradient of the cross-entropy, which has a closed form.
    target, approx = vae.encode(x), partial(x, observed)
    exact = gradients((match_kl(target, approx) + target.entropy()).mean(), *psi)
    each = torch.stack(
        [
            gradients(match(target, approx, train_target=True, num_samples=5).mean(), *psi)
            for _ in range(300)
        ]
    )
    error = (each.mean(0) - exact) / (each.std(0) / math.sqrt(len(each)))
    assert error.abs().max() < 4.0
    assert exact.norm() > 20.0 * each.std(0).norm() / math.sqrt(len(each))


def test_match_refuses_to_train_a_target_without_reparameterised_draws() -> None:
    codes = Categorical(logits=torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"train_target needs draws with a gradient.*Categorical"):
        match(codes, codes, train_target=True)
    # Its draws are enough to train the other side: uniform against uniform costs log 4.
    assert_close(match(codes, codes), torch.full((3,), math.log(4.0)))


def test_match_kl_says_so_when_there_is_no_closed_form() -> None:
    normal = Independent(Normal(torch.zeros(2), torch.ones(2)), 1)
    odd = TransformedDistribution(normal, [AffineTransform(0.0, 2.0, event_dim=1)])
    with pytest.raises(NotImplementedError):
        match_kl(normal, odd)


def given_everything(
    vae: LinearGaussianVAE, q: MultivariateNormal, x: Tensor, hidden: Tensor
) -> Distribution:
    r"""Return :math:`q_\theta(z \mid x_o, x_u) \propto p(x_u \mid z)\, q_\theta(z \mid x_o)`."""
    ratio = hidden * (-2.0 * vae.log_noise).exp()
    precision = q.precision_matrix + torch.einsum("bf,fi,fj->bij", ratio, vae.weight, vae.weight)
    residual = (x - vae.bias).masked_fill(~hidden, 0.0)
    information = torch.einsum("bij,bj->bi", q.precision_matrix, q.loc) + torch.einsum(
        "fi,bf->bi", vae.weight, ratio * residual
    )
    mean = torch.linalg.solve(precision, information)
    return MultivariateNormal(mean, precision_matrix=precision)


def expected_log_likelihood(
    vae: LinearGaussianVAE, q: MultivariateNormal, x: Tensor, hidden: Tensor
) -> Tensor:
    r"""Return :math:`E_{z \sim q} \log p(x_u \mid z)` in closed form."""
    residual = (x - q.loc @ vae.weight.T - vae.bias).square()
    spread = torch.einsum("fi,bij,fj->bf", vae.weight, q.covariance_matrix, vae.weight)
    scaled = (residual + spread) * (-2.0 * vae.log_noise).exp()
    each = -0.5 * scaled - vae.log_noise - 0.5 * math.log(2.0 * math.pi)
    return each.masked_fill(~hidden, 0.0).sum(-1)


def test_theorem_3_1_the_theta_gradients_of_equations_3_and_4_agree() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    spoil(vae)  # the theorem holds for any encoder, not for the exact one alone
    base, _ = draw_rows(vae, 1)
    observed = torch.tensor([[True, False, True, False, False, True]]).expand(2000, -1)
    with torch.no_grad():  # x_u ~ p(x_u | x_o)
        z = vae.posterior(base, observed[:1]).sample(torch.Size([2000]))[:, 0]
        x = torch.where(observed, base, vae.decode(z).sample())
        target = vae.encode(x)
    partial = ExactPartial(vae, 0.6, 1.5)
    approx = partial(x, observed)
    theta = (partial.shift, partial.log_scale)

    equation_3 = match_kl(target, approx)
    log_hidden = exact_log_predictive(vae, approx, x, ~observed)
    equation_4 = -log_hidden + kl_divergence(target, given_everything(vae, approx, x, ~observed))

    left, right = (gradients(e.mean(), *theta) for e in (equation_3, equation_4))
    assert_close(left, right, atol=1e-9, rtol=1e-9)
    assert left.abs().min() > 0.05  # they agree on something
    # The proof drops E log p(x_u | z), which has no theta in it: the values differ by just that.
    dropped = expected_log_likelihood(vae, target, x, ~observed)
    assert_close(equation_3 - equation_4, dropped, atol=1e-8, rtol=1e-8)


def test_theorem_3_1_the_exact_posterior_minimises_equation_3() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, _ = draw_rows(vae, 4000)
    observed = torch.tensor([[True, False, True, False, False, True]]).expand(4000, -1)
    partial = ExactPartial(vae)
    theta = (partial.shift, partial.log_scale)
    each = match_kl(vae.encode(x), partial(x, observed)).view(40, 100).mean(1)
    slopes = torch.stack([gradients(e, *theta) for e in each])
    # Averaged over x_u ~ p(x_u | x_o), here jointly with x_o, the slope vanishes at the exact one.
    error = slopes.mean(0) / (slopes.std(0) / math.sqrt(len(slopes)))
    assert error.abs().max() < 4.0
    for scale, shift in ((0.8, 0.0), (1.25, 0.0), (1.0, 0.5)):
        worse = match_kl(vae.encode(x), ExactPartial(vae, scale, shift)(x, observed))
        loss = worse - match_kl(vae.encode(x), partial(x, observed))
        assert loss.mean() > 5.0 * loss.std() / math.sqrt(len(loss))


def seeded_gradients(vae: LinearGaussianVAE, **options: bool) -> dict[str, dict[str, Tensor]]:
    """Return each loss's gradient in each parameter, with the same noise every time."""
    model = exact_model(vae, 0.7, 1.0)
    x, observed = draw_rows(vae, 30)
    torch.manual_seed(3)
    losses = model.losses(x, None, observed, **options)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = {}
    for key, loss in losses.items():
        parts = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        found[key] = {n: g for n, g in zip(names, parts, strict=True) if g is not None}
    return found


def test_joint_training_with_flowing_gradients_reaches_the_encoder_from_both_losses() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    spoil(vae)
    found = seeded_gradients(vae, train_target=True)
    for key in ("vae", "match"):
        assert found[key]["vae.shift"].norm() > 0.1
        assert found[key]["vae.log_scale"].abs() > 0.1
    assert found["match"]["partial.shift"].norm() > 0.1
    assert "partial.shift" not in found["vae"]


def test_joint_training_with_stopped_gradients_reaches_the_partial_encoder_alone() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    spoil(vae)
    stopped, flowing = seeded_gradients(vae), seeded_gradients(vae, train_target=True)
    assert set(stopped["match"]) == {"partial.shift", "partial.log_scale"}
    # The VAE's own loss, and what theta receives, are the same as when gradients flow.
    for name in ("partial.shift", "partial.log_scale"):
        assert_close(stopped["match"][name], flowing["match"][name])
    for name, gradient in flowing["vae"].items():
        assert_close(stopped["vae"][name], gradient)


def test_training_against_a_frozen_vae_leaves_it_untouched() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    spoil(vae)
    assert {k: set(v) for k, v in seeded_gradients(vae, train_vae=False).items()} == {
        "match": {"partial.shift", "partial.log_scale"}
    }
    model = exact_model(vae, 0.7, 1.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, observed = draw_rows(vae, 30)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model.losses(x, None, observed, train_vae=False)["match"].backward()
        optimiser.step()
    for name, parameter in model.named_parameters():
        if name.startswith("vae."):
            assert torch.equal(parameter, before[name]), name
        else:
            assert (parameter - before[name]).norm() > 0.1, name


def test_the_frozen_target_is_the_encoder_of_the_whole_row() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    spoil(vae)
    x, observed = draw_rows(vae, 30)
    model = exact_model(vae, 0.7, 1.0)
    losses = [model.losses(x, None, observed, train_vae=False, num_samples=50) for _ in range(50)]
    each = torch.stack([loss["match"] for loss in losses]).detach()
    target, approx = vae.encode(x), model.partial(x, observed)
    expected = (match_kl(target, approx) + target.entropy()).mean()
    assert (each.mean() - expected).abs() < 4.0 * each.std() / math.sqrt(len(each))


def test_spoiling_means_what_it_says() -> None:
    exact = MultivariateNormal(torch.zeros(1, 2), scale_tril=torch.tensor([[2.0, 0.0], [1.0, 3.0]]))
    moved = spoiled(exact, torch.tensor([3.0, 0.0]), torch.tensor(math.log(0.7)))
    assert_close(moved.loc, torch.tensor([[6.0, 3.0]]))
    assert_close(moved.covariance_matrix, 0.49 * exact.covariance_matrix)
