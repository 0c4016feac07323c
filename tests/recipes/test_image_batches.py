"""Batches of training images: which images, and what may be done to them."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from postmatch.recipes.image_batches import ImageBatches, moved


def images(rows: int = 5) -> Tensor:
    return torch.randint(1, 256, (rows, 2, 4, 3), generator=torch.Generator().manual_seed(0)).byte()


def batches(size: int, seed: int = 1, **changes: bool | int) -> ImageBatches:
    generator = torch.Generator().manual_seed(seed)
    return ImageBatches(images(), size, generator, **changes)  # type: ignore[arg-type]


def test_a_batch_is_of_the_images_and_follows_the_generator() -> None:
    batch = batches(4)()
    assert batch.shape == (4, 2, 4, 3)
    known = images() / 255.0
    assert all((known == image).flatten(1).all(1).any() for image in batch)
    assert_close(batch, batches(4)())
    assert not torch.equal(batch, batches(4, seed=2)())


def test_a_batch_has_no_more_images_than_there_are() -> None:
    assert len(batches(99)()) == 5


def test_half_of_the_images_are_mirrored() -> None:
    draw, known = batches(5, mirrored=True), images() / 255.0
    drawn = torch.cat([draw() for _ in range(200)])
    as_is, turned = (
        (drawn[:, None] == these).flatten(2).all(2).any(1) for these in (known, known.flip(-1))
    )
    assert (as_is ^ turned).all()
    assert abs(turned.float().mean() - 0.5) < 4 * 0.5 / 1_000**0.5  # four standard errors


def test_images_are_moved_each_by_its_own_way_and_their_edges_repeated() -> None:
    x = torch.arange(1.0, 13.0).view(1, 1, 3, 4).repeat(3, 1, 1, 1)
    found = moved(x, torch.tensor([0, 1, -2]), torch.tensor([0, -1, 2]), most=2)
    assert_close(found[0], x[0])
    assert_close(found[1, 0], torch.tensor([[2.0, 3, 4, 4], [2, 3, 4, 4], [6, 7, 8, 8]]))
    assert_close(found[2, 0], torch.tensor([9.0, 9, 9, 10]).expand(3, -1))


@pytest.mark.parametrize("shift", [1, 2])
def test_every_shift_comes_up(shift: int) -> None:
    draw = batches(5, shift=shift)
    drawn = torch.cat([draw() for _ in range(100)])
    padded = torch.nn.functional.pad(images() / 255.0, (shift,) * 4, mode="replicate")
    ways = [(i, j) for i in range(2 * shift + 1) for j in range(2 * shift + 1)]
    found = torch.stack(
        [(drawn[:, None] == padded[:, :, i : i + 4, j : j + 3]).flatten(2).all(2).any(1)
         for i, j in ways]
    )  # fmt: skip
    assert found.any(0).all()
    assert found.any(1).all()
