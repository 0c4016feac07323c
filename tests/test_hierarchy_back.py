"""The way back of an encoder of partly seen images, which tells levels of what is far away."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from postmatch.nets.hierarchical import LevelEncoder
from postmatch.nets.hierarchy_layout import HierarchyLayout
from postmatch.vaes.hierarchical import hierarchical_vae
from small_hierarchies import images, moved, parts

# 32 pixels a side, of which a level at the image's own size sees few on the way up.
LARGE = HierarchyLayout("32x1,32d2,16x1,16d16,1x1", "1x1,16m1,32m16", 8, 4, 1)
BACK = dataclasses.replace(LARGE, back="16x1,32x1")


def moved_encoder(layout: HierarchyLayout, *, partly: bool = True) -> LevelEncoder:
    """Return an encoder whose layers all matter."""
    encoder = LevelEncoder(layout, 2, partly=partly)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return encoder


def far_gradient(encoder: LevelEncoder, level: int) -> Tensor:
    """Return how the evidence of a level's first corner depends on the image's last corner."""
    image = torch.randn(1, 32, 32, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(encoder(image)[level][0, 0, 0].sum(), image)
    return gradient[0, -1, -1]


@pytest.mark.parametrize("level", [1, 2])
def test_levels_are_told_of_what_is_far_away_by_a_way_back_alone(level: int) -> None:
    torch.manual_seed(0)
    assert (far_gradient(moved_encoder(LARGE), level) == 0.0).all()
    assert (far_gradient(moved_encoder(BACK), level) != 0.0).all()


def test_sizes_that_the_way_back_leaves_out_are_told_of_what_is_near() -> None:
    torch.manual_seed(0)
    some = moved_encoder(dataclasses.replace(LARGE, back="16x1"))
    assert (far_gradient(some, 1) != 0.0).all()
    assert (far_gradient(some, 2) == 0.0).all()


@torch.no_grad()
def test_a_way_back_adds_each_smaller_map_to_the_larger_one_on_the_way() -> None:
    torch.manual_seed(0)
    encoder, image = moved_encoder(BACK), torch.randn(2, 32, 32, 2)
    seen: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda *told: seen.append(told[2])) for block in encoder.blocks
    ]
    evidence = encoder(image)
    for hook in hooks:
        hook.remove()
    smallest, medium, large = seen[4], seen[3], seen[1]

    def grown(state: Tensor, size: int) -> Tensor:
        return F.interpolate(state.movedim(-1, 1), (size, size)).movedim(1, -1)

    medium = encoder.back["16"](medium + grown(smallest, 16))
    large = encoder.back["32"](large + grown(medium, 32))
    for size, state, found in zip((1, 16, 32), (smallest, medium, large), evidence, strict=True):
        told = encoder.shares[str(size)](F.gelu(state, approximate="tanh"))
        assert_close(found, told)


def test_only_the_encoder_of_partly_seen_images_has_a_way_back() -> None:
    vae, partial = hierarchical_vae(BACK)
    assert list(partial.encoder.back) == ["16", "32"]
    assert not vae.encoder.back


@pytest.mark.parametrize("junk", [0.0, 1e6, float("nan")])
@torch.no_grad()
def test_hidden_pixels_are_never_read_on_a_way_back(junk: float) -> None:
    torch.manual_seed(0)
    _, partial = parts(moved(dataclasses.replace(LARGE, back="16x2,32x1")))
    x, observed = images(2, size=32)
    expected = partial.hierarchy(x, observed).evidence
    for found, wanted in zip(
        partial.hierarchy(x.masked_fill(~observed, junk), observed).evidence, expected, strict=True
    ):
        assert_close(found, wanted)
