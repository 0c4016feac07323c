"""Hierarchies to which a square of pixels is one."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from postmatch.nets.hierarchical import LevelEncoder
from postmatch.nets.hierarchy_layout import HierarchyLayout
from small_hierarchies import SMALL, images, moved, parts

CELLS = dataclasses.replace(SMALL, cell=2)


def gathered(image: Tensor) -> Tensor:
    """Return the pixels of each square as channels, ``(rows, height, width, channels)``."""
    return F.pixel_unshuffle(image.movedim(-1, 1), 2).movedim(1, -1)


@torch.no_grad()
def test_an_encoder_of_squares_is_one_of_images_that_have_their_pixels_as_channels() -> None:
    torch.manual_seed(0)
    encoder, other = LevelEncoder(CELLS, 3), LevelEncoder(SMALL, 4 * 3)
    weights = encoder.state_dict()
    # Of each channel six rows of six pixels, which are three by three squares of two by two.
    squares = weights["first.weight"].unflatten(1, (3, 3, 2, 3, 2))
    weights["first.weight"] = squares.movedim((3, 5), (2, 3)).flatten(1)
    other.load_state_dict(weights)
    image = torch.randn(2, 16, 16, 3)
    for found, expected in zip(encoder(image), other(gathered(image)), strict=True):
        assert_close(found, expected)


@torch.no_grad()
def test_a_square_of_outputs_is_that_of_its_place() -> None:
    torch.manual_seed(0)
    vae, _ = parts(moved(CELLS))
    latents = vae.top.split(torch.randn(2, vae.top.latent_size))
    bottom = vae.top.descend(2, lambda i, *_: latents[i])
    outputs = vae.top.outputs(bottom)
    narrow = vae.top.last(vae.top.levels[-1](*bottom))  # (rows, 8, 8, 4 * maps)
    assert_close(gathered(outputs.movedim(1, -1)), narrow, atol=0.0, rtol=0.0)


@torch.no_grad()
def test_images_are_as_many_times_larger_than_the_largest_level() -> None:
    torch.manual_seed(0)
    model = moved(CELLS)
    x, observed = images(3, size=16)
    assert CELLS.image_size == 16
    assert model.given(x, observed).sample(2).shape == (2, *x.shape)
    with pytest.raises(ValueError, match=r"x must be \(batch, 1, 16, 16\), got \(3, 1, 8, 8\)"):
        model.vae.encode(x[..., :8, :8])


def test_a_square_has_at_least_one_pixel() -> None:
    with pytest.raises(ValueError, match="cell must be at least 1, got 0"):
        HierarchyLayout("8x1", "8x1", 16, 8, 2, cell=0)
