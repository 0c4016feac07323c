"""The five sets of real vectors on which densities are compared: POWER to BSDS300."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final, get_args

import numpy as np
import torch
from torch import Tensor

from postmatch.data.official import SOURCES, read
from postmatch.data.photographs import draw_patches, read_tar, read_zip
from postmatch.data.places import data_folder

Name = Literal["power", "gas", "hepmass", "miniboone", "bsds"]
NAMES: tuple[Name, ...] = get_args(Name)

_VALIDATION_IMAGES = 20
_PATCHES = {"train": 1_000_000, "val": 50_000, "test": 250_000}
_BERKELEY = (
    'BSDS300-images.tgz of "The Berkeley Segmentation Dataset and Benchmark" '
    "(eecs.berkeley.edu), as it is"
)


@final
@dataclass(frozen=True)
class Splits:
    """Rows to learn from, to choose by and to judge by, each ``(rows, features)``."""

    train: Tensor
    val: Tensor
    test: Tensor


def load(name: Name, *, most_rows: int | None = None) -> Splits:
    """Return one of the sets, from the folder that ``POSTMATCH_DATA`` names.

    The files that the publishers ship are read where they are there (``postmatch.data.official``
    tells what is done to them): those of the UCI repository in ``uci/``, and Berkeley's photographs
    in ``bsds300/``. Else a prepared part of the set is: ``uci/<name>.npz``, or
    ``bsds300/bsds300_jpg.zip``.

    All but BSDS are standardised. BSDS patches keep the scale in which their likelihoods are
    published, and are drawn afresh from the photographs, by a fixed seed.

    Args:
        name: Which.
        most_rows: No more training rows than this.

    Raises:
        FileNotFoundError: If neither is there; it says what to download, and where to put it.
        ValueError: If an official file is cut short or is not what it should be.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    if name == "bsds":
        counts = {**_PATCHES, "train": min(_PATCHES["train"], most_rows or _PATCHES["train"])}
        return _patches(counts)
    folder = _folder("uci", wanted=str(SOURCES[name]))
    arrays = read(name, folder)
    if arrays is None:
        path = folder / f"{name}.npz"
        if not path.is_file():
            raise _missing(folder, path.name, str(SOURCES[name]))
        with np.load(path) as prepared:
            arrays = {key: prepared[key] for key in ("train", "val", "test")}
    parts = {key: torch.from_numpy(arrays[key]) for key in ("train", "val", "test")}
    return Splits(parts["train"][:most_rows], parts["val"], parts["test"])


def _patches(counts: dict[str, int], seed: int = 0) -> Splits:
    """Return patches, those for validation from photographs that no other patch comes from."""
    folder = _folder("bsds300", wanted=_BERKELEY)
    official, prepared = folder / "BSDS300-images.tgz", folder / "bsds300_jpg.zip"
    if official.is_file():
        seen, unseen = read_tar(official)
    elif prepared.is_file():
        seen, unseen = read_zip(prepared)
    else:
        raise _missing(folder, prepared.name, _BERKELEY)
    random = np.random.default_rng(seed)
    order = random.permutation(len(seen))
    images = {
        "train": [seen[i] for i in order[_VALIDATION_IMAGES:]],
        "val": [seen[i] for i in order[:_VALIDATION_IMAGES]],
        "test": unseen,
    }
    drawn = {
        key: torch.from_numpy(draw_patches(images[key], counts[key], random)) for key in images
    }
    return Splits(**drawn)


def _folder(name: str, *, wanted: str) -> Path:
    try:
        return data_folder(name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; put into {name}/ {wanted}") from None


def _missing(folder: Path, prepared: str, wanted: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"{folder} holds neither the official files nor {prepared}; put into it {wanted}"
    )
