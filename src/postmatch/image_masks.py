"""Which pixels of an image are observed: halves, squares, rectangles, boxes, smooth patterns."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

import torch
from torch import Tensor

from postmatch.masks import Bernoulli, MaskDistribution, Mixture

__all__ = [
    "HiddenBoxes",
    "HiddenCentre",
    "HiddenHalf",
    "HiddenRectangle",
    "HiddenSquare",
    "NothingObserved",
    "RandomPattern",
    "celeba_masks",
    "mnist_masks",
    "omniglot_masks",
]

Side = Literal["left", "top", "right", "bottom"]
SIDES: tuple[Side, ...] = get_args(Side)
Box = tuple[int, int, int, int]

# Parts of an aligned face, such as the eyes or the mouth, in 64 x 64 pixels.
_FACE_BOXES: tuple[Box, ...] = (
    (26, 58, 17, 36),
    (26, 58, 29, 48),
    (26, 37, 15, 50),
    (26, 37, 15, 34),
    (26, 37, 31, 50),
    (43, 62, 20, 44),
)
_ROUNDING = 1e-6
_PHASES = 50  # of a crop at whole pixels, at a resolution of .06
_AT_ONCE = 512  # patterns that are enlarged together


@final
@dataclass(frozen=True)
class NothingObserved(MaskDistribution):
    """Observe nothing, whatever the shape."""

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return False everywhere."""
        return torch.zeros(tuple(shape), dtype=torch.bool, device=generator.device)


@final
@dataclass(frozen=True)
class HiddenHalf(MaskDistribution):
    """Hide one half of the image, rounded down when its side is odd."""

    side: Side

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise ValueError(f"side must be one of {', '.join(SIDES)}, got {self.side!r}")

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return the same half for every row."""
        _, height, width = _sizes(shape)
        observed = torch.ones(tuple(shape), dtype=torch.bool, device=generator.device)
        if self.side == "left":
            observed[..., : width // 2] = False
        elif self.side == "right":
            observed[..., width - width // 2 :] = False
        elif self.side == "top":
            observed[..., : height // 2, :] = False
        else:
            observed[..., height - height // 2 :, :] = False
        return observed


@final
@dataclass(frozen=True)
class HiddenSquare(MaskDistribution):
    """Hide a square at a random place, any place where it fits being equally likely.

    The code published with the paper never lets it touch the last row or column. This one may; as
    many pixels are hidden either way.

    Args:
        size: Its side; half the shorter side of the image, rounded down, if None.
    """

    size: int | None = None

    def __post_init__(self) -> None:
        _check_size(self.size)

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return rows whose squares are placed independently."""
        batch, height, width = _sizes(shape)
        size = _square(self.size, height, width)
        top, left = (
            torch.randint(length - size + 1, (batch,), generator=generator, device=generator.device)
            for length in (height, width)
        )
        return _outside(height, width, top, top + size, left, left + size)


@final
@dataclass(frozen=True)
class HiddenCentre(MaskDistribution):
    """Hide a square in the middle.

    Args:
        size: Its side; half the shorter side of the image, rounded down, if None.
    """

    size: int | None = None

    def __post_init__(self) -> None:
        _check_size(self.size)

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return the same square for every row."""
        _, height, width = _sizes(shape)
        size = _square(self.size, height, width)
        top, left = (height - size) // 2, (width - size) // 2
        observed = torch.ones(tuple(shape), dtype=torch.bool, device=generator.device)
        observed[..., top : top + size, left : left + size] = False
        return observed


@final
@dataclass(frozen=True)
class HiddenRectangle(MaskDistribution):
    """Hide a rectangle whose opposite corners are uniform pixels, given its share of the image.

    The distribution is that of drawing two pixels per axis, both included, until the area lies in
    range, but nothing is rejected: the height and the width are drawn together from the sizes that
    are in range, by the number of pairs of corners that give them, then the place.

    Args:
        low: The least share of the image that is hidden.
        high: The largest share.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high <= 1.0:
            raise ValueError(f"0 <= low <= high <= 1 must hold, got {self.low} and {self.high}")

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return rows whose rectangles are independent."""
        batch, height, width = _sizes(shape)
        device = generator.device
        least = math.ceil(self.low * height * width - _ROUNDING)
        most = math.floor(self.high * height * width + _ROUNDING)
        if not _some_area_between(height, width, least, most):
            raise ValueError(
                f"no rectangle in {height} x {width} pixels has an area between "
                f"{self.low} and {self.high} of them"
            )
        rows, columns = (torch.arange(1, n + 1, device=device) for n in (height, width))
        area = rows[:, None] * columns
        pairs = _pairs(rows)[:, None] * _pairs(columns) * (area >= least) * (area <= most)
        edges = pairs.flatten().cumsum(0)
        size, y, x = torch.rand(
            3, batch, generator=generator, device=device, dtype=torch.float64
        ).unbind()
        index = torch.searchsorted(edges, (size * edges[-1]).long(), right=True)
        tall, wide = index // width + 1, index % width + 1
        top, left = (y * (height - tall + 1)).long(), (x * (width - wide + 1)).long()
        return _outside(height, width, top, top + tall, left, left + wide)


@final
@dataclass(frozen=True)
class HiddenBoxes(MaskDistribution):
    """Hide one of several boxes, each as likely as another.

    Args:
        boxes: Each as ``(top, bottom, left, right)``, where bottom and right are the first row and
            column that are seen again.
        height: Of the images that the boxes are for.
        width: Likewise.
    """

    boxes: tuple[Box, ...]
    height: int
    width: int

    def __post_init__(self) -> None:
        if len(self.boxes) == 0:
            raise ValueError("boxes must not be empty")
        for top, bottom, left, right in self.boxes:
            if not (0 <= top < bottom <= self.height and 0 <= left < right <= self.width):
                raise ValueError(
                    f"a box must be (top, bottom, left, right) inside {self.height} x {self.width} "
                    f"pixels, got {(top, bottom, left, right)}"
                )

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return rows whose boxes are chosen independently."""
        batch, height, width = _sizes(shape)
        if (height, width) != (self.height, self.width):
            raise ValueError(
                f"the boxes are for {self.height} x {self.width} pixels, "
                f"asked for {height} x {width}"
            )
        device = generator.device
        choice = torch.randint(len(self.boxes), (batch,), generator=generator, device=device)
        # Sums of numbers, not a table to look up: that would have to be copied to the device.
        edges = torch.zeros(4, batch, dtype=torch.long, device=device)
        for i, box in enumerate(self.boxes):
            for edge, place in zip(edges, box, strict=True):
                edge += (choice == i) * place
        return _outside(height, width, *edges)


@final
@dataclass(frozen=True)
class RandomPattern(MaskDistribution):
    """Hide what lies below a level in smooth noise: blots that cover about a quarter.

    The noise is uniform on a coarse grid, enlarged bicubically at a random phase: a crop of a huge
    enlarged field, without the field. More of them are drawn than there are rows, and those are
    kept, in the order drawn, whose hidden share lies in range. Should too few do so, the ones that
    come closest fill up the rows; at 64 x 64 pixels this befalls one call in 300 000.

    Args:
        resolution: Cells of the coarse grid per pixel.
        level: Where to cut.
        low: The least share of the image that is hidden.
        high: The largest share.
        num_candidates: How many to draw for each row, beside 64 for all of them.
    """

    resolution: float = 0.06
    level: float = 0.25
    low: float = 0.2
    high: float = 0.3
    num_candidates: int = 6

    def __post_init__(self) -> None:
        if not 0.0 < self.resolution <= 1.0:
            raise ValueError(f"resolution must lie in (0, 1], got {self.resolution}")
        if not 0.0 <= self.low <= self.high <= 1.0:
            raise ValueError(f"0 <= low <= high <= 1 must hold, got {self.low} and {self.high}")
        if self.num_candidates < 1:
            raise ValueError(f"num_candidates must be at least 1, got {self.num_candidates}")

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return rows whose patterns are independent."""
        batch, height, width = _sizes(shape)
        count, device = self.num_candidates * batch + 64, generator.device
        down, across = (_enlarging(n, self.resolution, device) for n in (height, width))
        cells = (down.shape[2], across.shape[2])
        noise = torch.rand(count, *cells, generator=generator, device=device)
        phase = torch.randint(_PHASES, (2, count), generator=generator, device=device)
        parts = [
            down[y] @ some @ across[x].mT >= self.level  # (candidates, height, width)
            for some, y, x in zip(*(t.split(_AT_ONCE) for t in (noise, *phase)), strict=True)
        ]
        share = torch.cat([1.0 - part.flatten(1).to(noise.dtype).mean(1) for part in parts])
        outside = (share - 0.5 * (self.low + self.high)).abs() - 0.5 * (self.high - self.low)
        best = outside.clamp(min=0.0).argsort(stable=True)[:batch]
        return torch.cat(parts)[best][:, None]


def mnist_masks() -> Mixture:
    """Return the masks of the paper's MNIST experiments; about .56 of the pixels are observed."""
    return _digits(HiddenRectangle(0.3, 1.0))


def omniglot_masks() -> Mixture:
    """Return the masks of the paper's Omniglot experiments; about .60 are observed."""
    return _digits(HiddenRectangle(0.1, 0.6))


def celeba_masks() -> Mixture:
    """Return the masks of the paper's CelebA experiments, for 64 x 64; about .65 are observed."""
    various = Mixture(
        (RandomPattern(), Bernoulli(0.2), HiddenCentre(), *(HiddenHalf(side) for side in SIDES)),
        (2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0),
    )
    faces = HiddenBoxes(_FACE_BOXES, 64, 64)
    return Mixture((various, faces, HiddenRectangle(0.3, 1.0)), (1.0, 1.0, 2.0))


def _digits(rectangle: HiddenRectangle) -> Mixture:
    parts = (Bernoulli(0.5), *(HiddenHalf(side) for side in SIDES), HiddenSquare(), rectangle)
    return Mixture(parts, (2.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0))


def _sizes(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return batch, height and width."""
    if len(shape) != 4 or shape[1] != 1 or min(shape[2:]) < 1:
        raise ValueError(f"shape must be (batch, 1, height, width), got {tuple(shape)}")
    return shape[0], shape[2], shape[3]


def _check_size(size: int | None) -> None:
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1, got {size}")


def _square(size: int | None, height: int, width: int) -> int:
    """Return the side of a square that fits."""
    if size is None:
        return min(height, width) // 2
    if size > min(height, width):
        raise ValueError(f"a square of size {size} does not fit into {height} x {width} pixels")
    return size


def _outside(
    height: int, width: int, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor
) -> Tensor:
    """Return True outside a box per row, ``(batch, 1, height, width)``; edges are ``(batch,)``."""
    y, x = (torch.arange(n, device=top.device) for n in (height, width))
    rows = (y >= top[:, None]) & (y < bottom[:, None])  # (batch, height)
    columns = (x >= left[:, None]) & (x < right[:, None])  # (batch, width)
    return ~(rows[:, None, :, None] & columns[:, None, None, :])


def _pairs(lengths: Tensor) -> Tensor:
    """Return how many ordered pairs of pixels of a line span each of the lengths 1, 2, ..., n."""
    return (len(lengths) - lengths + 1) * (1 + (lengths > 1).long())


@functools.lru_cache
def _some_area_between(height: int, width: int, least: int, most: int) -> bool:
    return any(
        least <= tall * wide <= most
        for tall in range(1, height + 1)
        for wide in range(1, width + 1)
    )


def _enlarging(pixels: int, resolution: float, device: torch.device) -> Tensor:
    r"""Return the weights of bicubic interpolation at each phase, ``(phases, pixels, cells)``.

    .. math:: w(t) = \begin{cases} \tfrac{3}{2}|t|^3 - \tfrac{5}{2}|t|^2 + 1 & |t| \le 1 \\
        -\tfrac{1}{2}|t|^3 + \tfrac{5}{2}|t|^2 - 4|t| + 2 & 1 < |t| \le 2 \end{cases}
    """
    phase = torch.arange(_PHASES, device=device) / _PHASES
    pixel = torch.arange(pixels, device=device) * resolution + 1.0
    cell = torch.arange(math.floor((pixels - 1) * resolution + 1.0) + 4, device=device)
    t = ((phase[:, None] + pixel)[..., None] - cell).abs().clamp(max=2.0)
    near = (1.5 * t - 2.5) * t.square() + 1.0
    far = ((-0.5 * t + 2.5) * t - 4.0) * t + 2.0
    return torch.where(t <= 1.0, near, far)
