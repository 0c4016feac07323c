"""The photographs of BSDS300, in grey, and patches of them."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from postmatch.data.publishers import expect, readable

Photograph = NDArray[np.uint8]  # (height, width)

COUNTS = {"train": 200, "test": 100}
# Of the pictures in the order of their names, each as its name, a zero byte and its content; not of
# the archive, whose compression says nothing.
SHA256 = "44584b06a9d2f22028d345f087f99d2428a5b6c410e8bede069770a60a8a24ef"

_SIDE = 8  # of a patch


def read_tar(path: Path) -> tuple[list[Photograph], list[Photograph]]:
    """Return the photographs to learn from and to judge by, from ``BSDS300-images.tgz``.

    The archive is read from front to back. No link in it is followed, and nothing is unpacked.

    Raises:
        ValueError: If it is cut short, or its pictures are not Berkeley's.
    """
    found: dict[str, bytes] = {}
    with readable(path, "the archive of BSDS300's images"), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            place = PurePosixPath(member.name)
            split = place.parent.name
            is_picture = place.suffix == ".jpg" and not place.name.startswith(".")
            if member.isfile() and is_picture and split in COUNTS:
                file = archive.extractfile(member)
                assert file is not None  # only links and folders have none
                found[f"BSDS300/images/{split}/{place.name}"] = file.read()
    digest = hashlib.sha256()
    pictures: dict[str, list[bytes]] = {split: [] for split in COUNTS}
    for name, content in sorted(found.items()):
        digest.update(name.encode() + b"\0" + content)
        pictures[PurePosixPath(name).parent.name].append(content)
    for split, count in COUNTS.items():
        expect(path, f"pictures in images/{split}", count, len(pictures[split]))
    if digest.hexdigest() != SHA256:
        raise ValueError(
            f"{path}: the sha256 of its pictures must be {SHA256}, got {digest.hexdigest()}"
        )
    return [_grey(x) for x in pictures["train"]], [_grey(x) for x in pictures["test"]]


def read_zip(path: Path) -> tuple[list[Photograph], list[Photograph]]:
    """Return the photographs in the folders ``train`` and ``test`` of a zip archive."""
    with readable(path, "an archive of photographs"), zipfile.ZipFile(path) as archive:
        names = sorted(archive.namelist())
        seen = [archive.read(name) for name in names if name.startswith("train/")]
        unseen = [archive.read(name) for name in names if name.startswith("test/")]
    return [_grey(x) for x in seen], [_grey(x) for x in unseen]


def draw_patches(
    images: list[Photograph], count: int, random: np.random.Generator
) -> NDArray[np.float32]:
    """Return 8 x 8 pixels from random places of random images, less their mean and the last one.

    They are dequantised by uniform noise, and in units of the whole range of grey.
    """
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


def _grey(content: bytes) -> Photograph:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ModuleNotFoundError("BSDS needs Pillow: pip install 'postmatch[images]'") from None
    return np.asarray(Image.open(io.BytesIO(content)).convert("L"))
