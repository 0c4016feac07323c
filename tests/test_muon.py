"""Orthogonal steps: what they are, and which matrices the loop takes them for."""

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


@pytest.mark.parametrize("shape", [(3, 16, 40), (3, 40, 16)])
def test_the_shorter_side_of_a_matrix_is_made_orthogonal(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(shape)))
    assert values.shape == (3, 16)
    assert values.min() > 0.18
    assert values.max() < 1.9


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


def test_a_step_that_widens_is_longer() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(1, 64, 16)
    wide, tall = torch.zeros(1, 16, 64), torch.zeros(1, 64, 16)
    muon = Muon([wide, tall], [gradient.mT.contiguous(), gradient])
    muon.step(torch.tensor(0.1), torch.tensor(0.0), torch.tensor(True))
    assert_close(tall, 2.0 * wide.mT)


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
    flats = flatten(net, apart="square")
    found = {(flat.kind.sides, flat.kind.is_matrix): len(flat.parameters) for flat in flats}
    assert found == {(None, True): 2, (None, False): 4, ((32, 32), True): 2}
    assert all(flat.kind.sides is None for flat in flatten(net))


def test_any_matrices_are_kept_apart_but_narrow_ones() -> None:
    net = nn.ModuleList([nn.Linear(20, 40), nn.Conv2d(20, 32, 3), nn.Conv2d(1, 32, 3)])
    flats = flatten(net, apart="any")
    found = {(flat.kind.sides, flat.kind.is_matrix): len(flat.parameters) for flat in flats}
    expected = {((40, 20), True): 1, ((32, 180), True): 1, (None, True): 1, (None, False): 3}
    assert found == expected


def test_a_convolution_learns_by_orthogonal_steps() -> None:
    torch.manual_seed(0)
    net, truth = nn.Conv2d(16, 32, 3), nn.Conv2d(16, 32, 3)
    x = torch.randn(32, 16, 6, 6)
    wanted = truth(x).detach()
    plan = Plan(300, learning_rate=1e-2, orthogonal_rate=0.05, orthogonal="any", warmup=1)
    train(net, lambda _: {"square": (net(x) - wanted).square().mean()}, plan)
    assert (net.weight - truth.weight).square().mean() < 0.05 * truth.weight.square().mean()


def test_only_known_shapes_are_asked_for() -> None:
    with pytest.raises(ValueError, match="orthogonal must be square or any"):
        Plan(1, orthogonal="round")  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0.0, 0.01])
def test_a_module_of_square_matrices_alone_can_be_trained(rate: float) -> None:
    net = nn.Linear(16, 16, bias=False)
    before = net.weight.detach().clone()
    train(net, lambda _: {"size": net.weight.square().sum()}, Plan(5, orthogonal_rate=rate))
    assert not torch.equal(net.weight, before)
