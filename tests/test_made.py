"""The masked residual network: who sees whom, and generation by the arithmetic of one pass."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from postmatch.nets.made import MaskedLinear, MaskedResidualNet

SHAPES = [(1, 4, 1), (2, 2, 0), (3, 7, 2), (5, 16, 3), (4, 4, 1)]  # size, width, blocks


def build(size: int, width: int, num_blocks: int, context_size: int = 0) -> MaskedResidualNet:
    """Return a network with 2 outputs per entry and biases that are not zero."""
    return MaskedResidualNet(size, 2, width, num_blocks, context_size).double()


def jacobian_size(net: MaskedResidualNet, z: Tensor, context: Tensor | None) -> Tensor:
    """Return how much each entry's outputs move with each input, ``(size, size)``."""
    jacobian = torch.autograd.functional.jacobian(lambda v: net(v, context), z)
    return jacobian.abs().sum(0)  # (outputs, size, size) -> (size, size)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("context_size", [0, 3])
def test_output_i_moves_with_every_input_before_i_and_no_other(
    shape: tuple[int, int, int], context_size: int
) -> None:
    net = build(*shape, context_size)
    context = torch.randn(context_size).double() if context_size else None
    moves = jacobian_size(net, torch.randn(shape[0]).double(), context)
    before = torch.ones(shape[0], shape[0]).tril(-1).bool()
    assert (moves[~before] == 0.0).all()
    assert (moves[before] > 1e-6).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_context_reaches_every_output(shape: tuple[int, int, int]) -> None:
    net = build(*shape, context_size=3)
    z, context = torch.randn(shape[0]).double(), torch.randn(3).double()
    jacobian = torch.autograd.functional.jacobian(lambda c: net(z, c), context)
    assert jacobian.shape == (2, shape[0], 3)
    assert (jacobian.abs() > 1e-6).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("context_size", [0, 3])
def test_generating_equals_evaluating_the_whole_network_for_each_entry(
    shape: tuple[int, int, int], context_size: int
) -> None:
    net = build(*shape, context_size)
    context = torch.randn(6, context_size).double() if context_size else None

    def choose(i: int, out: Tensor) -> Tensor:
        return torch.sin(3.0 * out[0]) + (i + 1) * out[1]

    with torch.no_grad():
        generated = net.generate(torch.Size([6]), context, choose)
        z = torch.full((6, shape[0]), torch.nan).double()  # what is not yet chosen is never read
        for i in range(shape[0]):
            so_far = z.nan_to_num(1e3)
            z[:, i] = choose(i, net(so_far, context)[..., i].mT)
    assert_close(generated, z, atol=1e-12, rtol=1e-12)


def test_generate_hands_over_exactly_the_outputs_of_one_pass() -> None:
    net = build(4, 9, 2)
    outputs: list[Tensor] = []

    def choose(i: int, out: Tensor) -> Tensor:
        outputs.append(out)
        return out.sum(0) * (-1.0) ** i

    with torch.no_grad():
        z = net.generate(torch.Size([5]), None, choose)
        assert_close(torch.stack(outputs, dim=-1).movedim(1, 0), net(z), atol=1e-12, rtol=1e-12)


def test_leading_axes_of_z_broadcast_against_the_context() -> None:
    net = build(3, 8, 1, context_size=2)
    z, context = torch.randn(7, 5, 3).double(), torch.randn(5, 2).double()
    together = net(z, context)
    for sample in range(7):
        assert_close(together[sample], net(z[sample], context))


def test_samples_share_the_context_of_their_row_when_generating() -> None:
    net = build(3, 8, 1, context_size=2)
    context = torch.randn(5, 2).double()
    noise = torch.randn(7, 5, 3).double()
    with torch.no_grad():
        batch = torch.Size([7, 5])
        together = net.generate(batch, context, lambda i, out: out[0] + noise[..., i] * out[1])
        for sample, own in enumerate(noise):
            alone = net.generate(
                torch.Size([5]), context, lambda i, out, own=own: out[0] + own[:, i] * out[1]
            )
            assert_close(together[sample], alone)


def test_masked_weights_receive_no_gradient() -> None:
    mask = torch.tensor([[True, False, True], [False, False, True]])
    layer = MaskedLinear(mask)
    layer(torch.randn(4, 3)).sum().backward()
    gradient = layer.weight.grad
    assert gradient is not None
    assert (gradient[~mask] == 0.0).all()
    assert (gradient[mask] != 0.0).all()


def test_every_weight_that_is_not_masked_is_trained() -> None:
    net = build(4, 9, 2, context_size=3)
    net(torch.randn(64, 4).double(), torch.randn(64, 3).double()).square().sum().backward()
    for module in net.modules():
        if isinstance(module, MaskedLinear):
            gradient = module.weight.grad
            assert gradient is not None
            assert (gradient[module.mask.bool()] != 0.0).all()


def test_a_network_too_narrow_for_its_vector_is_refused() -> None:
    with pytest.raises(ValueError, match=r"width must be at least size \(5\), got 4"):
        MaskedResidualNet(5, 1, 4, 1)


def test_a_context_must_come_exactly_when_it_was_announced() -> None:
    with pytest.raises(ValueError, match="context must be given exactly when"):
        build(3, 6, 1)(torch.zeros(2, 3).double(), torch.zeros(2, 1).double())
    with pytest.raises(ValueError, match="context must be given exactly when"):
        build(3, 6, 1, context_size=2)(torch.zeros(2, 3).double())
