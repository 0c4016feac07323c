"""Which blocks and levels a hierarchy of latent images has, told by short strings."""

import re
from dataclasses import dataclass
from typing import NamedTuple, final


class Block(NamedTuple):
    """A block on the way up: the size that it works at, and by how much it then shrinks it."""

    size: int
    shrink: int


class Place(NamedTuple):
    """A level on the way down: its size, and the smaller one that it starts from, or None."""

    size: int
    source: int | None


@final
@dataclass(frozen=True)
class HierarchyLayout:
    """How many blocks and levels of which size a hierarchy has, and how wide they are.

    Args:
        encoder: Such as ``28x6,28d2,14x4``: six blocks at 28 x 28 pixels, one after which the size
            is halved, rounded down, and four at 14 x 14.
        decoder: Such as ``14x4,28m14,28x6``: four levels at 14 x 14, one at 28 x 28 that starts
            from what there is at 14 x 14, and six more.
        width: Channels of the states that blocks add to.
        bottleneck: Channels inside a block.
        latent_channels: Channels of the latent image of each level.
    """

    encoder: str
    decoder: str
    width: int
    bottleneck: int
    latent_channels: int

    def __post_init__(self) -> None:
        for name in ("width", "bottleneck", "latent_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        blocks, places = self.blocks, self.places
        if blocks[0].size != places[-1].size:
            raise ValueError(
                f"decoder must end at the size that encoder begins with, {blocks[0].size}, "
                f"got {places[-1].size}"
            )
        unseen = {place.size for place in places} - {block.size for block in blocks}
        if unseen:
            raise ValueError(f"encoder must have blocks of each size of decoder, not of {unseen}")

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks on the way up, largest first."""
        found: list[Block] = []
        for part, size, kind, number in _parts(self.encoder, "encoder", "xd"):
            due = found[-1].size // found[-1].shrink if found else size
            if size != due:
                raise ValueError(f"encoder must go on at size {due} with {part}, got {size}")
            found += [Block(size, 1)] * number if kind == "x" else [Block(size, number)]
        return tuple(found)

    @property
    def places(self) -> tuple[Place, ...]:
        """The levels on the way down, smallest first."""
        found: list[Place] = []
        for part, size, kind, number in _parts(self.decoder, "decoder", "xm"):
            here = found[-1].size if found else None
            if kind == "m" and (number != here or size <= number):
                raise ValueError(f"decoder must grow from size {here} with {part}, got {number}")
            if kind == "x" and here not in (None, size):
                raise ValueError(f"decoder must go on at size {here} with {part}, got {size}")
            found += [Place(size, None)] * number if kind == "x" else [Place(size, number)]
        return tuple(found)


def _parts(layout: str, name: str, kinds: str) -> list[tuple[str, int, str, int]]:
    found = []
    for part in layout.split(","):
        match = re.fullmatch(rf"([1-9]\d*)([{kinds}])([1-9]\d*)", part.strip())
        if match is None:
            wanted = " or ".join(f"28{kind}2" for kind in kinds)
            raise ValueError(f"{name} must be parts such as {wanted} and commas, got {part!r}")
        found.append((part, int(match[1]), match[2], int(match[3])))
    return found
