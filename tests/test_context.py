"""What a grid is told of an image."""

import pytest
import torch
from torch.testing import assert_close

from postmatch.nets.context import ContextNet
from postmatch.nets.residual_conv import ResidualConvDecoder, ResidualConvEncoder


@pytest.mark.parametrize(("size", "factor"), [(28, 2), (28, 4), (64, 4)])
def test_every_place_sees_all_of_the_image(size: int, factor: int) -> None:
    torch.manual_seed(0)
    net, x = ContextNet(2, 8, 4, 2, factor).double(), torch.randn(6, 2, size, size).double()
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


def test_sides_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sides must be multiples of 4, got \(12, 10\)"):
        ResidualConvEncoder(3, 8, 5)(torch.randn(2, 3, 12, 10))
    for build in (ResidualConvEncoder, ResidualConvDecoder):
        with pytest.raises(ValueError, match="factor must be 2 or 4, got 3"):
            build(3, 8, 5, factor=3)


def test_an_image_is_told_apart_from_its_neighbours() -> None:
    torch.manual_seed(0)
    net, x = ContextNet(1, 8, 4, 1), torch.randn(3, 1, 28, 28)
    assert_close(net(x)[1:2], net(x[1:2]))
