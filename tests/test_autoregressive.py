"""The autoregressive mixture: a normalised density, and draws that follow it."""

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.testing import assert_close

from postmatch.distributions.autoregressive import AutoregressiveMixture, mixture_net, split_mixture
from postmatch.distributions.noise import from_noise, noise_size


def build(size: int, context_size: int = 0, roughness: float = 4.0) -> AutoregressiveMixture:
    """Return a mixture with strong dependence between entries, for three rows if conditional."""
    net = mixture_net(size, num_components=3, width=12, num_blocks=1, context_size=context_size)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.mul_(roughness)
    return AutoregressiveMixture(net, torch.randn(3, context_size) if context_size else None)


def plane(reach: float, points: int) -> tuple[Tensor, Tensor]:
    edge = torch.linspace(-reach, reach, points)
    return edge, torch.cartesian_prod(edge, edge)


@torch.no_grad()
def test_the_density_integrates_to_one_in_two_dimensions() -> None:
    edge, grid = plane(20.0, 501)
    for row in range(3):
        mixture = build(2, context_size=4, roughness=1.5)
        assert mixture.context is not None
        alone = AutoregressiveMixture(mixture.net, mixture.context[row])
        total = alone.log_prob(grid).exp().sum() * (edge[1] - edge[0]) ** 2
        assert total.item() == pytest.approx(1.0, abs=2e-3)


@torch.no_grad()
def test_one_pass_equals_the_product_of_sequential_conditionals() -> None:
    mixture = build(4, context_size=2)
    z = torch.randn(5, 3, 4)
    total = torch.zeros(5, 3)
    for i in range(4):
        so_far = z.clone()
        so_far[..., i:] = 99.0  # the conditional of entry i knows the entries before it alone
        logits, mean, scale = split_mixture(mixture.net(so_far, mixture.context)[..., i], dim=-1)
        conditional = MixtureSameFamily(Categorical(logits=logits), Normal(mean, scale))
        total += conditional.log_prob(z[..., i])
    assert_close(mixture.log_prob(z), total, atol=1e-4, rtol=1e-5)


@torch.no_grad()
def test_draws_follow_the_density_entry_by_entry() -> None:
    mixture = build(3, context_size=2)
    drawn = mixture.sample(torch.Size([5000]))  # (samples, batch, size)
    parameters = mixture.net(drawn, mixture.context).mT  # components last, as torch has them
    logits, mean, scale = split_mixture(parameters, dim=-1)
    conditionals = MixtureSameFamily(Categorical(logits=logits), Normal(mean, scale))
    # Through its own conditional distribution function every entry becomes uniform, apart from all
    # others; the largest deviation of 5,000 uniforms exceeds 1.95 / sqrt(5000) once in a thousand.
    place = conditionals.cdf(drawn).flatten(1)  # (samples, batch * size)
    expected = (torch.arange(5000) + 0.5) / 5000
    deviation = (place.sort(0).values - expected[:, None]).abs().max()
    assert deviation < 1.95 / math.sqrt(5000)
    correlation = torch.corrcoef(place.T) - torch.eye(9)
    assert correlation.abs().max() < 4.0 / math.sqrt(5000)
    # And the entries do depend on each other.
    assert (torch.corrcoef(drawn.flatten(1).T) - torch.eye(9)).abs().max() > 0.2


@torch.no_grad()
def test_the_mean_surprise_of_draws_is_the_entropy_of_the_density() -> None:
    mixture = build(2, roughness=1.5)
    edge, grid = plane(20.0, 501)
    log_prob = mixture.log_prob(grid)
    entropy = -(log_prob.exp() * log_prob).sum() * (edge[1] - edge[0]) ** 2
    surprise = -mixture.log_prob(mixture.sample(torch.Size([20_000])))
    assert (surprise.mean() - entropy).abs() < 4.0 * surprise.std() / math.sqrt(20_000) + 1e-3


@torch.no_grad()
def test_shapes_follow_torch_and_rows_keep_their_own_context() -> None:
    mixture = build(3, context_size=2)
    assert (mixture.batch_shape, mixture.event_shape) == ((3,), (3,))
    drawn = mixture.sample(torch.Size([4000]))
    assert drawn.shape == (4000, 3, 3)
    assert mixture.sample().shape == (3, 3)
    assert mixture.context is not None
    for row in range(3):
        alone = AutoregressiveMixture(mixture.net, mixture.context[row])
        assert_close(alone.log_prob(drawn[:, row]), mixture.log_prob(drawn)[:, row])
        again = alone.sample(torch.Size([4000]))
        error = (drawn[:, row].var(0) + again.var(0)).div(4000).sqrt()
        assert ((drawn[:, row].mean(0) - again.mean(0)).abs() < 4.0 * error).all()


@torch.no_grad()
@pytest.mark.parametrize("context_size", [0, 2])
def test_expanding_repeats_the_distribution(context_size: int) -> None:
    mixture = build(2, context_size)
    wide = mixture.expand(torch.Size([5, 3]))
    assert wide.batch_shape == (5, 3)
    z = torch.randn(5, 3, 2)
    assert_close(wide.log_prob(z), mixture.log_prob(z))
    assert wide.sample(torch.Size([4])).shape == (4, 5, 3, 2)


@torch.no_grad()
def test_noise_shared_by_rows_gives_equal_rows_equal_draws() -> None:
    mixture = build(3, context_size=2)
    assert mixture.context is not None
    twice = AutoregressiveMixture(mixture.net, mixture.context[[0, 1, 0]])
    size = noise_size(twice)
    assert size == 6
    drawn = from_noise(twice, torch.rand(50, 1, size))
    assert drawn.shape == (50, 3, 3)
    assert torch.equal(drawn[:, 0], drawn[:, 2])
    assert (drawn[:, 0] - drawn[:, 1]).abs().max() > 0.1


@torch.no_grad()
def test_each_entry_rises_with_its_own_uniform() -> None:
    # A draw is an inverse distribution function: within a component, more noise is more value.
    mixture = build(1, roughness=1.0)
    uniform = torch.linspace(0.01, 0.99, 50)
    noise = torch.stack([torch.full_like(uniform, 0.5), uniform], dim=1)
    drawn = mixture.from_noise(noise)[:, 0]
    logits, mean, scale = split_mixture(mixture.net(torch.zeros(1, 1))[0, :, 0], dim=-1)
    k = Categorical(logits=logits).probs.cumsum(0).tolist()
    component = sum(edge <= 0.5 for edge in k)
    assert_close(drawn, Normal(mean[component], scale[component]).icdf(uniform))


def test_its_log_prob_trains_the_network_and_the_context() -> None:
    mixture = build(3, context_size=2)
    context = torch.randn(8, 2, requires_grad=True)
    target = torch.randn(8, 3)
    loss = -AutoregressiveMixture(mixture.net, context).log_prob(target).mean()
    gradients = torch.autograd.grad(loss, [context, *mixture.net.parameters()])
    assert all(g.isfinite().all() and g.abs().max() > 0.0 for g in gradients)


def test_far_values_have_finite_log_prob_and_gradient() -> None:
    mixture = build(2, roughness=1.0)
    z = torch.tensor([[1e4, -1e4], [0.0, 1e4]], requires_grad=True)
    log_prob = mixture.log_prob(z)
    (gradient,) = torch.autograd.grad(log_prob.sum(), z)
    assert log_prob.isfinite().all()
    assert gradient.isfinite().all()
    assert (log_prob < -1e6).all()


@torch.no_grad()
def test_components_start_out_spread_over_the_prior_range() -> None:
    net = mixture_net(2, num_components=4, width=8, num_blocks=1)
    drawn = AutoregressiveMixture(net).sample(torch.Size([4000]))
    assert drawn.mean(0).abs().max() < 0.5
    assert ((drawn.std(0) > 0.8) & (drawn.std(0) < 2.5)).all()
