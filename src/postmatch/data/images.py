"""Sets of small images, as the whole numbers they are stored in: MNIST to CelebA."""

import csv
import hashlib
import io
import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from postmatch.data.places import data_folder
from postmatch.data.publishers import UNREADABLE, Place, expect, find, readable

Name = Literal["mnist", "fashion_mnist", "omniglot", "celeba"]
Split = Literal["train", "test"]
NAMES: tuple[Name, ...] = get_args(Name)
Pixels = NDArray[np.uint8]
Reader = Callable[[Split], tuple[Tensor, Tensor | None]]

# Of what the files hold when decompressed: how they were compressed says nothing.
SHA256: dict[Name, dict[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte": (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
        ),
        "train-labels-idx1-ubyte": (
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
        ),
        "t10k-images-idx3-ubyte": (
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
        ),
        "t10k-labels-idx1-ubyte": (
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
        ),
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
        ),
        "train-labels-idx1-ubyte": (
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
        ),
        "t10k-images-idx3-ubyte": (
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
        ),
        "t10k-labels-idx1-ubyte": (
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
        ),
    },
}
OMNIGLOT_ROWS: dict[Split, int] = {"train": 19_280, "test": 13_180}
CELEBA_ROWS: dict[Split, int] = {"train": 162_770, "test": 19_962}  # of the official archive
WANTED: dict[Name, str] = {
    "mnist": (
        "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
        't10k-labels-idx1-ubyte.gz of "The MNIST database of handwritten digits" '
        "(yann.lecun.com/exdb/mnist), as they are"
    ),
    "fashion_mnist": (
        "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
        "t10k-labels-idx1-ubyte.gz of Fashion-MNIST "
        "(github.com/zalandoresearch/fashion-mnist, data/fashion), as they are"
    ),
    "omniglot": (
        "images_background.zip and images_evaluation.zip of Omniglot "
        "(github.com/brendenlake/omniglot, python), as they are"
    ),
    "celeba": (
        'img_align_celeba.zip and list_eval_partition.txt of "Large-scale CelebFaces Attributes '
        '(CelebA) Dataset" (mmlab.ie.cuhk.edu.hk/projects/CelebA.html), as they are'
    ),
}

_PREPARED_CELEBA: dict[Split, tuple[str, ...]] = {
    "train": ("celeba64_train_0.zip", "celeba64_train_1.zip"),
    "test": ("celeba64_test.zip",),
}
_OFFICIAL_OMNIGLOT: dict[Split, str] = {
    "train": "images_background.zip",
    "test": "images_evaluation.zip",
}
_OFFICIAL_CELEBA = ("img_align_celeba.zip", "list_eval_partition.txt")
_FACE = (25, 45, 153, 173)  # left, upper, right, lower: 128 x 128 of 178 x 218 pixels
_FACE_SIZE, _DRAWING_SIZE = 64, 28


@final
@dataclass(frozen=True, eq=False)
class Images:
    """Images to learn from and to judge by: uint8, ``(rows, channels, height, width)``.

    Each split is read, checked and decoded when it is first asked for, then kept. A file that is
    damaged or is not the publisher's raises a ValueError then.
    """

    name: Name
    read: Reader

    @property
    def train(self) -> Tensor:
        """The images to learn from."""
        return self._train[0]

    @property
    def test(self) -> Tensor:
        """The images to judge by."""
        return self._test[0]

    @property
    def train_labels(self) -> Tensor:
        """The classes of the images to learn from, int64, ``(rows,)``."""
        return self._labels(self._train[1])

    @property
    def test_labels(self) -> Tensor:
        """The classes of the images to judge by, int64, ``(rows,)``."""
        return self._labels(self._test[1])

    @cached_property
    def _train(self) -> tuple[Tensor, Tensor | None]:
        return self.read("train")

    @cached_property
    def _test(self) -> tuple[Tensor, Tensor | None]:
        return self.read("test")

    def _labels(self, labels: Tensor | None) -> Tensor:
        if labels is None:
            raise ValueError(f"the images of {self.name} have no labels")
        return labels


def load_images(name: Name) -> Images:
    """Return a set of images, from the folder that ``POSTMATCH_DATA`` names.

    - ``mnist``, ``fashion_mnist``: 60,000 and 10,000 of 28 x 28 in grey, ten classes; the idx files
      of their publishers, compressed or not.
    - ``omniglot``: 19,280 drawings of 28 x 28, ink 255, and 13,180 of other alphabets; the class is
      the character, 0 to 963 and 964 to 1622. The official archives, whose 105 x 105 pixels are
      averaged over boxes, or else the prepared ``omniglot_28.npz``.
    - ``celeba``: faces of 64 x 64 in colour, no labels, in the order of their numbers. The official
      archive, of which rows 45 to 172 and columns 25 to 152 are averaged two by two, or else
      prepared parts of it, ``celeba64_*.zip`` with ``index.csv``. Pillow decodes them.

    Raises:
        FileNotFoundError: If a file is missing; it says what to download, and where to put it.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    try:
        folder = data_folder(name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; put into {name}/ {WANTED[name]}") from None
    if name == "omniglot":
        return Images(name, _omniglot(folder))
    if name == "celeba":
        return Images(name, _celeba(folder))
    return Images(name, _digits(name, folder))


def _digits(name: Name, folder: Path) -> Reader:
    """Return the reader of idx files."""
    places = {file: find(folder, (f"{file}.gz", file), ()) for file in SHA256[name]}
    lacking = [f"{file}.gz" for file, place in places.items() if place is None]
    if lacking:
        raise _missing(folder, " and ".join(lacking), name)

    def read(split: Split) -> tuple[Tensor, Tensor | None]:
        prefix = "train" if split == "train" else "t10k"
        parts = []
        for file, axes in ((f"{prefix}-images-idx3-ubyte", 3), (f"{prefix}-labels-idx1-ubyte", 1)):
            place = places[file]
            assert place is not None
            parts.append(_read_idx(place, axes, SHA256[name][file]))
        images, labels = parts
        expect(folder, f"{split} labels, one for each image", len(images), len(labels))
        return images[:, None], labels.long()

    return read


def _read_idx(place: Place, axes: int, sha256: str) -> Tensor:
    """Return the bytes that an idx file holds, in the shape that its header gives."""
    with readable(place, "an idx file of MNIST's format"), place.opened() as file:
        content = bytearray(file.read())
    start = 4 + 4 * axes
    if len(content) < start or content[:4] != bytes((0, 0, 8, axes)):
        raise ValueError(
            f"{place} must begin with the header of an idx file of bytes with {axes} axes, "
            f"got {bytes(content[:4])!r} and {len(content)} bytes in all"
        )
    shape = np.frombuffer(content, ">u4", axes, 4).tolist()
    expect(place, "bytes, as its header says", start + math.prod(shape), len(content))
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(
            f"{place}: the sha256 of its decompressed content must be {sha256}, got {found}"
        )
    return torch.frombuffer(content, dtype=torch.uint8, offset=start).view(*shape)


def _omniglot(folder: Path) -> Reader:
    """Return the reader of the official archives or of the prepared file."""
    official = {split: folder / file for split, file in _OFFICIAL_OMNIGLOT.items()}
    prepared = folder / "omniglot_28.npz"
    if all(path.is_file() for path in official.values()):
        return lambda split: _draw(official, split)
    if prepared.is_file():
        return lambda split: _read_drawings(prepared, split)
    lacking = " and ".join(path.name for path in official.values() if not path.is_file())
    raise _missing(folder, f"{lacking} (and {prepared.name})", "omniglot")


def _draw(archives: dict[Split, Path], split: Split) -> tuple[Tensor, Tensor]:
    """Return the drawings in an official archive, and the numbers of their characters."""
    names = {key: _pictures(path, ".png") for key, path in archives.items()}
    characters = sorted({_character(key, name) for key in names for name in names[key]})
    own = sorted(names[split], key=lambda name: (_character(split, name), name))
    expect(archives[split], "drawings", OMNIGLOT_ROWS[split], len(own))
    images = _decode([(archives[split], name) for name in own], _drawing, (1, _DRAWING_SIZE))
    number = {character: i for i, character in enumerate(characters)}
    return images, torch.tensor([number[_character(split, name)] for name in own])


def _character(split: Split, name: str) -> tuple[bool, str, str]:
    """Return what tells a drawing's character: split, alphabet, folder; training comes first."""
    place = PurePosixPath(name)
    return split == "test", place.parent.parent.name, place.parent.name


def _drawing(picture: Any) -> Pixels:
    from PIL import Image

    ink = picture.convert("L").point(lambda level: 255 - level)
    small = ink.resize((_DRAWING_SIZE, _DRAWING_SIZE), Image.Resampling.BOX)
    return np.asarray(small)[None]


def _read_drawings(path: Path, split: Split) -> tuple[Tensor, Tensor]:
    """Return the drawings of the prepared file."""
    what = "the prepared drawings of Omniglot"
    if not zipfile.is_zipfile(path):  # NumPy would take it for a pickle
        raise ValueError(f"{path} cannot be read: it is cut short, or not {what}")
    with readable(path, what), np.load(path) as arrays:
        own = arrays["background"] == (split == "train")
        images, labels = arrays["images"][own], arrays["character"][own]
    expect(path, f"drawings to {split} with", OMNIGLOT_ROWS[split], len(images))
    return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64))


def _celeba(folder: Path) -> Reader:
    """Return the reader of the official archive or of the prepared ones."""
    archive, partition = (folder / file for file in _OFFICIAL_CELEBA)
    if archive.is_file() and partition.is_file():
        return lambda split: (_crop_faces(archive, partition, split), None)
    index = folder / "index.csv"
    parts = {split: [folder / f for f in files] for split, files in _PREPARED_CELEBA.items()}
    lacking = [p.name for p in (index, *parts["train"], *parts["test"]) if not p.is_file()]
    if not lacking:
        return lambda split: (_read_faces(parts[split], index, split), None)
    official = " and ".join(p.name for p in (archive, partition) if not p.is_file())
    raise _missing(folder, f"{official} (and {', '.join(lacking)})", "celeba")


def _crop_faces(archive: Path, partition: Path, split: Split) -> Tensor:
    """Return the faces of the official archive, cropped and reduced."""
    lines = [line.split() for line in partition.read_text().splitlines() if line.strip()]
    if not all(len(line) == 2 and line[1] in "012" for line in lines):
        raise ValueError(f"{partition}: each line must name a picture and its split, 0, 1 or 2")
    wanted = "0" if split == "train" else "2"  # 1 is for validation
    own = sorted(name for name, part in lines if part == wanted)
    expect(partition, f"pictures to {split} with", CELEBA_ROWS[split], len(own))
    members = {PurePosixPath(name).name: name for name in _pictures(archive, ".jpg")}
    expect(archive, "of its pictures missing", 0, sum(name not in members for name in own))
    return _decode([(archive, members[name]) for name in own], _crop, (3, _FACE_SIZE))


def _crop(picture: Any) -> Pixels:
    # Twice as small: bilinear interpolation without antialiasing is the mean of two by two pixels.
    small = picture.convert("RGB").crop(_FACE).reduce(2)
    return np.asarray(small).transpose(2, 0, 1)


def _read_faces(archives: Sequence[Path], index: Path, split: Split) -> Tensor:
    """Return the faces of prepared archives, all of which the index must put into this split."""
    with index.open(newline="") as file:
        splits = {int(row["image_id"]): row["split"] for row in csv.DictReader(file)}
    numbered = sorted(
        (int(PurePosixPath(name).stem), path, name)
        for path in archives
        for name in _pictures(path, ".jpg")
    )
    for number, path, name in numbered:
        if splits.get(number) != split:
            raise ValueError(
                f"{path}/{name} must be marked {split} in {index.name}, got {splits.get(number)}"
            )
    return _decode([(path, name) for _, path, name in numbered], _face, (3, _FACE_SIZE))


def _face(picture: Any) -> Pixels:
    return np.asarray(picture.convert("RGB")).transpose(2, 0, 1)


def _pictures(path: Path, suffix: str) -> list[str]:
    """Return the pictures in a zip archive, less the shadows that some systems add."""
    with readable(path, f"a zip archive of {suffix} files"), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return [n for n in names if n.endswith(suffix) and not PurePosixPath(n).name.startswith(".")]


def _decode(
    places: Sequence[tuple[Path, str]], prepare: Callable[[Any], Pixels], form: tuple[int, int]
) -> Tensor:
    """Return the pictures at these places in zip archives, of ``form`` channels and side."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "decoding images needs Pillow: pip install 'postmatch[images]'"
        ) from None
    channels, side = form
    x = np.empty((len(places), channels, side, side), np.uint8)
    archives = {path: zipfile.ZipFile(path) for path in {path for path, _ in places}}
    try:
        for row, (path, name) in zip(x, places, strict=True):
            try:
                row[:] = prepare(Image.open(io.BytesIO(archives[path].read(name))))
            except (OSError, ValueError, SyntaxError, *UNREADABLE) as error:
                raise ValueError(
                    f"{path}/{name} cannot be read ({error}): it is damaged, "
                    f"or not a picture of the size expected"
                ) from error
    finally:
        for archive in archives.values():
            archive.close()
    return torch.from_numpy(x)


def _missing(folder: Path, lacking: str, name: Name) -> FileNotFoundError:
    return FileNotFoundError(f"{folder} lacks {lacking}; put into it {WANTED[name]}")
