"""The five sets of real vectors on which densities are compared: POWER to BSDS300."""

import io
import zipfile
from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from postmatch.data.places import data_folder

Name = Literal["power", "gas", "hepmass", "miniboone", "bsds"]
NAMES: tuple[Name, ...] = get_args(Name)

_SIDE = 8  # of a patch
_VALIDATION_IMAGES = 20
_PATCHES = {"train": 1_000_000, "val": 50_000, "test": 250_000}


@final
@dataclass(frozen=True)
class Splits:
    """Rows to learn from, to choose by and to judge by, each ``(rows, features)``."""

    train: Tensor
    val: Tensor
    test: Tensor


def load(name: Name, *, most_rows: int | None = None) -> Splits:
    """Return one of the sets, from the folder that ``POSTMATCH_DATA`` names.

    All but BSDS are standardised by their training rows. BSDS patches keep the scale in which their
    likelihoods are published, and are drawn afresh from the photographs, by a fixed seed.

    Args:
        name: Which.
        most_rows: No more training rows than this.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    if name == "bsds":
        counts = {**_PATCHES, "train": min(_PATCHES["train"], most_rows or _PATCHES["train"])}
        return _patches(counts)
    with np.load(data_folder("uci") / f"{name}.npz") as arrays:
        parts = {key: torch.from_numpy(arrays[key]) for key in ("train", "val", "test")}
    return Splits(parts["train"][:most_rows], parts["val"], parts["test"])


def _patches(counts: dict[str, int], seed: int = 0) -> Splits:
    """Return patches of 8 x 8 grey pixels, their mean taken away, without the last pixel."""
    path = data_folder("bsds300") / "bsds300_jpg.zip"
    random = np.random.default_rng(seed)
    with zipfile.ZipFile(path) as archive:
        seen, unseen = (_photographs(archive, split) for split in ("train", "test"))
    order = random.permutation(len(seen))
    images = {
        "train": [seen[i] for i in order[_VALIDATION_IMAGES:]],
        "val": [seen[i] for i in order[:_VALIDATION_IMAGES]],
        "test": unseen,
    }
    drawn = {key: torch.from_numpy(_draw(images[key], counts[key], random)) for key in images}
    return Splits(**drawn)


def _photographs(archive: zipfile.ZipFile, split: str) -> list[NDArray[np.uint8]]:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ModuleNotFoundError("BSDS needs Pillow: pip install 'postmatch[images]'") from None
    names = sorted(name for name in archive.namelist() if name.startswith(f"{split}/"))
    return [np.asarray(Image.open(io.BytesIO(archive.read(n))).convert("L")) for n in names]


def _draw(
    images: list[NDArray[np.uint8]], count: int, random: np.random.Generator
) -> NDArray[np.float32]:
    """Return patches from random places of random images, dequantised by uniform noise."""
    which, size = random.integers(len(images), size=count), _SIDE * _SIDE
    patches = np.empty((count, _SIDE, _SIDE), np.uint8)
    for i, image in enumerate(images):
        own = np.flatnonzero(which == i)
        places = (random.integers(length - _SIDE + 1, size=len(own)) for length in image.shape)
        row, column = places
        patches[own] = np.lib.stride_tricks.sliding_window_view(image, (_SIDE, _SIDE))[row, column]
    x = (patches.reshape(count, size) + random.random((count, size))) / 256.0
    x -= x.mean(1, keepdims=True)
    return x[:, :-1].astype(np.float32)
