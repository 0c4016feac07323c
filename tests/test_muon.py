"""Orthogonal steps: what they are, and that the loop takes them for square matrices only."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from postmatch.training.engine import train
from postmatch.training.flat import flatten
from postmatch.training.muon import Muon, orthogonalised
from postmatch.training.plan import Plan


def test_singular_values_come_near_one_and_their_vectors_stay() -> None:
    torch.manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(5, 32, 32))
    v, _ = torch.linalg.qr(torch.randn(5, 32, 32))
    values = torch.logspace(0, -2, 32)
    found = orthogonalised(u @ torch.diag(values) @ v.mT)
    inside = u.mT @ found @ v
    diagonal = inside.diagonal(dim1=-2, dim2=-1)
    assert_close(inside, torch.diag_embed(diagonal), atol=1e-4, rtol=0.0)
    # A hundredfold difference shrinks to a tenfold one, around 1.
    assert diagonal.min() > 0.18
    assert diagonal.max() < 1.9


def test_the_size_of_a_gradient_does_not_matter_and_zeros_stay_zeros() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(2, 16, 16)
    # Three polynomials magnify what is rounded, on some processors more, by 8.3 * 4.1 * 3.9.
    both = orthogonalised(1000.0 * gradient), orthogonalised(gradient)
    assert_close(*both, atol=1e-4, rtol=0.0)
    assert not orthogonalised(torch.zeros(1, 16, 16)).any()


def test_a_step_is_momentum_made_orthogonal_after_decay() -> None:
    torch.manual_seed(0)
    matrix, gradient = torch.randn(1, 16, 16), torch.randn(1, 16, 16)
    start, first, second = matrix.clone(), gradient.clone(), torch.randn(1, 16, 16)
    muon = Muon([matrix], [gradient])
    muon.step(torch.tensor(0.1), torch.tensor(0.01), torch.tensor(True))
    expected = 0.99 * start - 0.1 * orthogonalised(1.95 * first)
    assert_close(matrix, expected)
    gradient.copy_(second)
    muon.step(torch.tensor(0.1), torch.tensor(0.0), torch.tensor(True))
    momentum = 0.95 * first + second
    assert_close(matrix, expected - 0.1 * orthogonalised(second + 0.95 * momentum))


def ill_conditioned(rate: float) -> float:
    """Fit a linear map whose inputs differ a hundredfold in size; return the loss."""
    torch.manual_seed(0)
    net = nn.Linear(32, 32)
    scale = torch.logspace(0, -2, 32)
    truth = torch.randn(32, 32)
    generator = torch.Generator().manual_seed(0)

    def loss(_: float) -> dict[str, Tensor]:
        x = torch.randn(64, 32, generator=generator) * scale
        return {"square": (net(x) - x @ truth.T).square().mean()}

    plan = Plan(200, learning_rate=1e-2, orthogonal_rate=rate, warmup=1, weight_decay=0.0)
    train(net, loss, plan)
    return ((net.weight.detach() - truth) * scale).square().mean().item()


def test_orthogonal_steps_learn_small_directions_too() -> None:
    assert ill_conditioned(rate=0.2) < 0.2 * ill_conditioned(rate=0.0)


def test_square_matrices_are_kept_apart_by_their_size() -> None:
    net = nn.Sequential(nn.Linear(3, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1))
    flats = flatten(net, squares_apart=True)
    assert sorted((flat.kind.side, len(flat.parameters)) for flat in flats) == [
        (0, 2),
        (0, 4),
        (32, 2),
    ]
    assert all(flat.kind.side == 0 for flat in flatten(net))


@pytest.mark.parametrize("rate", [0.0, 0.01])
def test_a_module_of_square_matrices_alone_can_be_trained(rate: float) -> None:
    net = nn.Linear(16, 16, bias=False)
    before = net.weight.detach().clone()
    train(net, lambda _: {"size": net.weight.square().sum()}, Plan(5, orthogonal_rate=rate))
    assert not torch.equal(net.weight, before)
