"""What a layout says of a hierarchy."""

import dataclasses

import pytest
import torch

from postmatch.nets.hierarchy_layout import Block, HierarchyLayout, Place
from postmatch.vaes.hierarchical import hierarchical_vae
from small_hierarchies import SMALL

MNIST = HierarchyLayout(
    "28x6,28d2,14x4,14d2,7x2,7d2,3x2,3d2,1x2",
    "1x2,3m1,3x2,7m3,7x2,14m7,14x4,28m14,28x6",
    width=192,
    bottleneck=48,
    latent_channels=16,
)


def test_a_layout_says_blocks_and_levels() -> None:
    assert SMALL.blocks == (Block(8, 1), Block(8, 2), Block(4, 1), Block(4, 4), Block(1, 1))
    assert SMALL.places == (*[Place(1, None)] * 2, Place(4, 1), Place(4, None), Place(8, 4))
    assert [p.size for p in MNIST.places] == [1] * 2 + [3] * 3 + [7] * 3 + [14] * 5 + [28] * 7


@pytest.mark.parametrize(
    ("encoder", "decoder", "message"),
    [
        ("8y1", "8x1", r"encoder must be parts such as 28x2 or 28d2 and commas, got '8y1'"),
        ("8x0", "8x1", r"encoder must be parts .*, got '8x0'"),
        ("8x1,,4x1", "8x1", r"encoder must be parts .*, got ''"),
        ("8x1", "8d2", r"decoder must be parts such as 28x2 or 28m2 and commas, got '8d2'"),
        ("8d2,8x1", "8x1", r"encoder must go on at size 4 with 8x1, got 8"),
        ("8d2,4x1", "4x1,8x1", r"decoder must go on at size 4 with 8x1, got 8"),
        ("8d2,4x1", "4x1,8m2", r"decoder must grow from size 4 with 8m2, got 2"),
        ("8d2,4x1", "8m4", r"decoder must grow from size None with 8m4, got 4"),
        ("8d2,4x1", "4x1", r"decoder must end at the size that encoder begins with, 8, got 4"),
        ("8x1", "4x1,8m4", r"encoder must have blocks of each size of decoder, not of \{4\}"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(encoder: str, decoder: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HierarchyLayout(encoder, decoder, 16, 8, 2)


@pytest.mark.parametrize("name", ["width", "bottleneck", "latent_channels"])
def test_sizes_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        dataclasses.replace(SMALL, **{name: 0})  # type: ignore[arg-type]


def test_the_papers_layout_has_the_papers_size() -> None:
    with torch.device("meta"):
        vae, partial = hierarchical_vae(MNIST)
    sizes = [sum(p.numel() for p in part.parameters()) for part in (vae, partial)]
    assert vae.top.latent_size == 16 * sum(p.size**2 for p in MNIST.places) == 106_304
    # Published: 7,266,942. There, partial posteriors have full covariances, 120 outputs more at
    # each of 20 levels; z comes in with a bias beside another, and the image has a gain and a bias.
    assert sum(sizes) == 7_266_942 - 20 * 120 * 49 - 20 * 192 - 2 * 192 == 7_145_118
