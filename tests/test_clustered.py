"""Posteriors that tell the cluster first, and groups of codes to start from."""

import numpy as np
import pytest
import torch
from torch import Tensor

from postmatch import cluster_starts
from postmatch.cluster_starts import StartKind, start_of
from postmatch.distributions.autoregressive import AutoregressiveMixture, mixture_net
from postmatch.distributions.clustered import ClusteredMixture
from postmatch.distributions.noise import from_noise, noise_size, quasi_uniform
from postmatch.metrics import cluster_accuracy
from postmatch.partial import ClusteredHead


@pytest.fixture
def mixture() -> ClusteredMixture:
    torch.manual_seed(3)
    head = ClusteredHead(8, 3, mixture_net(2, 2, 16, 1, 8))
    with torch.no_grad():
        head.told.mul_(2.0)
        distribution = head(torch.randn(4, 8))
    assert isinstance(distribution, ClusteredMixture)
    return distribution


def test_the_density_integrates_to_one_and_draws_follow_it(mixture: ClusteredMixture) -> None:
    grid = torch.linspace(-12.0, 12.0, 481)
    z = torch.cartesian_prod(grid, grid)
    with torch.no_grad():
        density = mixture.log_prob(z[:, None].expand(-1, 4, -1)).exp() * (grid[1] - grid[0]) ** 2
    assert torch.allclose(density.sum(0), torch.ones(4), atol=1e-2)
    torch.manual_seed(0)
    drawn = mixture.sample(torch.Size([20_000]))
    exact = torch.einsum("nb,ni->bi", density, z) / density.sum(0)[:, None]
    error = drawn.std(0) / 20_000**0.5
    # Four standard errors, and what the grid leaves open.
    assert ((drawn.mean(0) - exact).abs() < 4.0 * error + 2e-2).all()


def test_the_joint_is_that_of_each_cluster(mixture: ClusteredMixture) -> None:
    z = torch.randn(5, 4, 2)
    with torch.no_grad():
        joint = mixture.log_joint(z)
        for c in range(3):
            own = AutoregressiveMixture(mixture.net, mixture.contexts[:, c])
            expected = mixture.log_weights[:, c] + own.log_prob(z)
            assert torch.allclose(joint[..., c], expected, atol=1e-5)


def test_rows_do_not_change_each_other(mixture: ClusteredMixture) -> None:
    size = noise_size(mixture)
    assert size == 5
    uniform = quasi_uniform(32, size, 0, torch.device("cpu"))
    with torch.no_grad():
        every = from_noise(mixture, uniform)
        alone = ClusteredMixture(mixture.log_weights[2:3], mixture.net, mixture.contexts[2:3])
        assert torch.allclose(from_noise(alone, uniform)[:, 0], every[:, 2], atol=1e-5)
        wide = mixture.expand((7, 4))
        assert wide.log_prob(torch.zeros(7, 4, 2)).shape == (7, 4)


def moons(count: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return two bent groups, one inside the bend of the other."""
    random = np.random.default_rng(0)
    angle, label = np.pi * random.random(count), random.integers(2, size=count)
    first = np.stack([np.cos(angle), np.sin(angle)], 1)
    x = np.where(label[:, None] == 0, first, [1.0, 0.5] - first)
    return x + noise * random.normal(size=(count, 2)), label


@pytest.mark.parametrize(("kind", "least", "most"), [("connected", 0.98, 1.0), ("mixture", 0, 0.9)])
def test_groups_that_hang_together_are_found_whatever_their_shape(
    kind: StartKind, least: float, most: float
) -> None:
    codes, label = moons(600, 0.05)
    start = start_of(kind, codes, 2, num_starts=3)
    assert least <= cluster_accuracy(start.groups, label) <= most
    assert start.weights.sum() == pytest.approx(1.0)
    for c in range(2):
        own = codes[start.groups == c]
        if kind == "connected":
            assert start.mean[c] == pytest.approx(own.mean(0))
            assert start.scale[c] == pytest.approx(own.std(0), abs=0.01)


def test_codes_that_were_not_looked_at_go_with_their_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes, label = moons(900, 0.05)
    monkeypatch.setattr(cluster_starts, "_ROWS", 300)
    start = start_of("connected", codes, 2, num_starts=3)
    assert start.groups.shape == (900,)
    assert cluster_accuracy(start.groups, label) > 0.97


@pytest.mark.parametrize("kind", ["connected", "mixture"])
def test_few_and_equal_codes_are_no_trouble(kind: StartKind) -> None:
    codes = np.repeat(np.array([[0.0, 1.0], [5.0, 1.0], [9.0, 1.0]]), 4, axis=0)
    start = start_of(kind, codes, 3, num_starts=2)
    parts: list[Tensor] = [torch.from_numpy(np.asarray(part)) for part in start]
    assert all(torch.isfinite(part).all() for part in parts)
    assert (start.scale > 0).all()


def test_features_of_the_clusters_are_learned_for_them_alone() -> None:
    torch.manual_seed(0)
    head = ClusteredHead(8, 3, mixture_net(2, 2, 16, 1, 8), own=5)
    features, z = torch.randn(4, 8, requires_grad=True), torch.randn(4, 2)
    distribution = head(features)
    given = AutoregressiveMixture(distribution.net, distribution.contexts[:, 1])
    (of_z,) = torch.autograd.grad(given.log_prob(z).sum(), features, retain_graph=True)
    (of_c,) = torch.autograd.grad(distribution.log_weights[:, 1].sum(), features)
    assert (of_z[:, :5] == 0.0).all()
    assert (of_z[:, 5:] != 0.0).any()
    assert (of_c[:, :5] != 0.0).any()
    assert (of_c[:, 5:] == 0.0).all()
