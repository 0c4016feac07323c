"""Densities with derivatives in closed form: what torch and finite differences say."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence
from torch.testing import assert_close

from postmatch.distributions.autoregressive import mixture_log_prob
from postmatch.distributions.gaussian import Gaussian
from postmatch.training.adam import AdamW


def inputs(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("scale_shape", [(), (4, 3)])
def test_the_gaussians_density_and_derivatives_are_torchs(scale_shape: tuple[int, ...]) -> None:
    value, loc, raw = inputs((5, 4, 3), (4, 3), scale_shape)

    def log_prob(value: Tensor, loc: Tensor, raw: Tensor) -> Tensor:
        return Gaussian(loc, raw.exp()).log_prob(value)

    assert_close(log_prob(value, loc, raw), Normal(loc, raw.exp()).log_prob(value))
    assert torch.autograd.gradcheck(log_prob, (value, loc, raw))
    assert torch.autograd.gradcheck(log_prob, (value, loc.detach(), raw.detach()))


def test_a_gaussian_is_a_normal_distribution_to_torch() -> None:
    gaussian, normal = Gaussian(torch.zeros(3), torch.ones(3)), Normal(torch.ones(3), 2.0)
    expected = kl_divergence(Normal(torch.zeros(3), 1.0), normal)
    assert_close(kl_divergence(gaussian, normal), expected)
    wider = Independent(gaussian, 1).expand(torch.Size([5]))
    assert wider.log_prob(torch.zeros(5, 3)).shape == (5,)


@pytest.mark.parametrize("samples", [(), (6,)])
def test_the_mixtures_derivatives_are_those_of_finite_differences(samples: tuple[int, ...]) -> None:
    z, logits, mean, raw = inputs((*samples, 4, 3), (4, 5, 3), (4, 5, 3), (4, 5, 3))

    def log_prob(z: Tensor, logits: Tensor, mean: Tensor, raw: Tensor) -> Tensor:
        return mixture_log_prob(z, logits, mean, raw.exp())

    each = Normal(mean, raw.exp()).log_prob(z.unsqueeze(-2)) + logits.log_softmax(-2)
    assert_close(log_prob(z, logits, mean, raw), each.logsumexp(-2))
    assert torch.autograd.gradcheck(log_prob, (z, logits, mean, raw))


def test_adam_is_torchs_and_skips_what_is_not_valid() -> None:
    vector, gradient = torch.randn(50), torch.zeros(50)
    theirs = torch.nn.Parameter(vector.clone())
    reference = torch.optim.AdamW([theirs], lr=0.02, betas=(0.9, 0.99), weight_decay=0.3)
    adam = AdamW([vector], [gradient], [0.3])
    for step in range(20):
        valid = step % 7 != 3
        gradient.copy_(torch.randn(50))
        adam.step(torch.tensor(0.02), torch.tensor(valid))
        if valid:
            theirs.grad = gradient.clone()
            reference.step()
    assert_close(vector, theirs.detach())
