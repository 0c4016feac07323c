"""Patches of photographs, turned and mirrored."""

import itertools

import torch
from torch import Tensor

from postmatch.data.patches import PatchSymmetries


def whole(x: Tensor) -> Tensor:
    """Return the 8 x 8 pixels of patches whose mean is zero, given the first 63."""
    return torch.cat([x, -x.sum(1, keepdim=True)], dim=1).view(-1, 8, 8)


def test_patches_take_all_eight_positions_and_no_other() -> None:
    one = torch.randn(63, generator=torch.Generator().manual_seed(0))
    scale = torch.linspace(0.5, 2.0, 63)
    x = (one / scale).expand(800, 63)
    found = whole(PatchSymmetries(scale)(x, torch.Generator().manual_seed(1)) * scale)
    picture = whole(one[None])[0]
    counts = []
    for quarters, mirrored in itertools.product(range(4), (False, True)):
        turned = picture.rot90(quarters)
        expected = turned.flip(1) if mirrored else turned
        counts.append(int((found - expected).abs().amax((1, 2)).lt(1e-4).sum()))
    assert sum(counts) == 800
    # Each is drawn 100 times, with a standard deviation of 9.4.
    assert min(counts) > 100 - 4 * 9.4
    assert max(counts) < 100 + 4 * 9.4


def test_a_seed_gives_the_same_patches_again() -> None:
    x, symmetries = torch.randn(20, 63), PatchSymmetries(torch.ones(63))
    first, again = (symmetries(x, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
