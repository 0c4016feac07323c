"""Divergences and draws of a level in closed form: torch's own, with their gradients."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from postmatch.distributions.levels import compared, level_gaussian

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
ROWS, SIDE, CHANNELS = 3, 13, 5  # more numbers in a row than a kernel takes at a time


def outputs(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return two Gaussians, noise whose rows lie apart, and weights of what comes out."""
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, SIDE, SIDE, 2 * CHANNELS)
    target, approx = torch.randn(2, *shape, generator=generator).to(device).unbind()
    length = SIDE * SIDE * CHANNELS
    noise = torch.randn(ROWS, length + 7, generator=generator).to(device)[:, 7:]
    weight = torch.randn(ROWS, 1 + length, generator=generator).to(device)
    return target, approx, noise.unflatten(1, (SIDE, SIDE, CHANNELS)), weight


def by_autograd(target: Tensor, approx: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    q, p = (Normal(one.loc, one.scale) for one in map(level_gaussian, (target, approx)))
    return kl_divergence(q, p).sum((1, 2, 3)), q.mean + q.stddev * noise


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("draws", [True, False], ids=["drawn", "only compared"])
def test_divergences_and_draws_are_torchs_with_their_gradients(draws: bool, device: str) -> None:
    *both, noise, weight = outputs(device)
    leaves = [t.requires_grad_() for t in both]
    expected_kl, expected_z = by_autograd(*leaves, noise)
    kl, z = compared(*leaves, noise if draws else None)
    assert_close(kl, expected_kl, atol=1e-4, rtol=1e-5)
    expected = (expected_kl * weight[:, 0]).sum()
    found = (kl * weight[:, 0]).sum()
    if draws:
        assert z is not None
        assert_close(z, expected_z, atol=1e-5, rtol=1e-5)
        expected = expected + (expected_z.flatten(1) * weight[:, 1:]).sum()
        found = found + (z.flatten(1) * weight[:, 1:]).sum()
    else:
        assert z is None
    pairs = (torch.autograd.grad(total, leaves) for total in (found, expected))
    for mine, theirs in zip(*pairs, strict=True):
        assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_only_what_is_trained_gets_a_gradient(device: str) -> None:
    target, approx, noise, _ = outputs(device)
    for trained in range(2):
        leaves = [t.clone().requires_grad_(i == trained) for i, t in enumerate((target, approx))]
        kl, _ = compared(*leaves)
        kl.sum().backward()
        assert [leaf.grad is not None for leaf in leaves] == [trained == 0, trained == 1]
    leaf = target.clone().requires_grad_()
    _, z = compared(leaf, approx, noise)  # a draw alone, whose divergence nothing asks for
    assert z is not None
    z.sum().backward()
    mean = leaf.grad.chunk(2, dim=-1)[0]  # type: ignore[union-attr]
    assert_close(mean, torch.ones_like(mean))
