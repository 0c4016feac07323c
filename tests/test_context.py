"""What a grid is told of an image, and what its codes see of one."""

import pytest
import torch
from torch.testing import assert_close

from postmatch.nets.context import ContextNet
from postmatch.nets.residual_conv import LocalEncoder, ResidualConvDecoder, ResidualConvEncoder


@pytest.mark.parametrize(
    ("size", "factor", "fine"), [(28, 2, (0, 0)), (28, 2, (6, 2)), (28, 4, (6, 1)), (64, 4, (0, 0))]
)
def test_every_place_sees_all_of_the_image(size: int, factor: int, fine: tuple[int, int]) -> None:
    torch.manual_seed(0)
    net, x = (
        ContextNet(2, 8, 4, (2, 1, 1, 2), factor, fine).double(),
        torch.randn(6, 2, size, size).double(),
    )
    x.requires_grad_()
    told = net(x)
    assert told.shape == (6, 8, size // factor, size // factor)
    for row, column in ((0, 0), (-1, 0), (size // factor // 2, 1)):
        (slope,) = torch.autograd.grad(told[..., row, column].sum(), x, retain_graph=True)
        assert (slope.abs().amax((0, 1)) > 0).all()  # for one image or another


@pytest.mark.parametrize("factor", [2, 4])
def test_grids_are_smaller_by_the_factor_and_back(factor: int) -> None:
    encoder = ResidualConvEncoder(3, 8, 5, factor=factor)
    decoder = ResidualConvDecoder(5, 8, 3, factor=factor)
    grid = encoder(torch.randn(2, 3, 12, 8))
    assert grid.shape == (2, 5, 12 // factor, 8 // factor)
    assert decoder(grid).shape == (2, 3, 12, 8)


@pytest.mark.parametrize(("window", "factor"), [(2, 2), (4, 2), (4, 4), (8, 4)])
def test_a_local_feature_sees_its_square_and_nothing_else(window: int, factor: int) -> None:
    torch.manual_seed(0)
    encoder = LocalEncoder(3, 8, 5, window, factor).double()
    x = torch.randn(4, 3, 24, 16).double().requires_grad_()
    grid = encoder(x)
    assert grid.shape == (4, 5, 24 // factor, 16 // factor)
    row, column, margin = 2, 1, (window - factor) // 2
    (slope,) = torch.autograd.grad(grid[..., row, column].sum(), x)
    seen = torch.zeros(24, 16, dtype=torch.bool)
    top, left = row * factor - margin, column * factor - margin
    seen[top : top + window, left : left + window] = True
    assert_close(slope.abs().amax((0, 1)) > 0, seen)


def test_windows_that_do_not_fit_are_refused() -> None:
    for window in (2, 5):
        wanted = f"window must be even and at least factor 4, got {window}"
        with pytest.raises(ValueError, match=wanted):
            LocalEncoder(3, 8, 5, window)
    with pytest.raises(ValueError, match=r"sides must be multiples of 4, got \(12, 10\)"):
        LocalEncoder(3, 8, 5, 4)(torch.randn(2, 3, 12, 10))


def test_sides_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sides must be multiples of 4, got \(12, 10\)"):
        ResidualConvEncoder(3, 8, 5)(torch.randn(2, 3, 12, 10))
    for build in (ResidualConvEncoder, ResidualConvDecoder):
        with pytest.raises(ValueError, match="factor must be 2 or 4, got 3"):
            build(3, 8, 5, factor=3)


def test_blocks_are_counted_size_by_size() -> None:
    net = ContextNet(1, 8, 4, (4, 3, 2, 1))
    assert [len(stack.inner) for stack in net.down] == [4, 3, 2, 1]
    assert [len(stack.inner) for stack in net.up] == [2, 3, 4]
    with pytest.raises(ValueError, match="num_blocks must be 4 numbers, got 3"):
        ContextNet(1, 8, 4, (1, 1, 1))


def test_blocks_of_the_size_of_the_images_come_first() -> None:
    net = ContextNet(1, 8, 4, (1, 1, 1, 1), 2, (6, 3))
    seen = net.fine(torch.randn(2, 1, 12, 8))
    assert seen.shape == (2, 6, 12, 8)
    assert [module.weight.shape[:2] for module in net.fine[1].inner] == 3 * [(6, 6)]
    assert not list(ContextNet(1, 8, 4, (1, 1, 1, 1)).fine.parameters())


def test_an_image_is_told_apart_from_its_neighbours() -> None:
    torch.manual_seed(0)
    net, x = ContextNet(1, 8, 4, (1, 1, 1, 1)), torch.randn(3, 1, 28, 28)
    assert_close(net(x)[1:2], net(x[1:2]))
