"""Sets of images, from small files in the formats of their publishers."""

import gzip
import hashlib
import io
import os
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from postmatch.data import images
from postmatch.data.images import load_images


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder for all sets."""
    monkeypatch.setenv("POSTMATCH_DATA", str(tmp_path))
    for name in images.NAMES:
        (tmp_path / name).mkdir()
    return tmp_path


def idx(array: NDArray[np.uint8]) -> bytes:
    """Return an array of bytes in the idx format."""
    return (
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + bytes(array)
    )


@pytest.fixture
def digits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, NDArray[np.uint8]]:
    """Write MNIST's four files, two of them compressed, expect them, and return their arrays."""
    random = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": random.integers(0, 256, (9, 4, 5)),
        "train-labels-idx1-ubyte": random.integers(0, 10, 9),
        "t10k-images-idx3-ubyte": random.integers(0, 256, (6, 4, 5)),
        "t10k-labels-idx1-ubyte": random.integers(0, 10, 6),
    }
    arrays = {file: array.astype(np.uint8) for file, array in arrays.items()}
    for file, array in arrays.items():
        content = idx(array)
        digest = hashlib.sha256(content).hexdigest()
        monkeypatch.setitem(images.SHA256["mnist"], file, digest)
        if file.startswith("train"):
            (folder / "mnist" / f"{file}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / "mnist" / file).write_bytes(content)
    return arrays


def test_idx_files_are_read_compressed_or_not(digits: dict[str, NDArray[np.uint8]]) -> None:
    found = load_images("mnist")
    for split, file in (("train", "train"), ("test", "t10k")):
        x, labels = getattr(found, split), getattr(found, f"{split}_labels")
        assert (x.dtype, labels.dtype) == (torch.uint8, torch.int64)
        assert np.array_equal(x.numpy(), digits[f"{file}-images-idx3-ubyte"][:, None])
        assert np.array_equal(labels.numpy(), digits[f"{file}-labels-idx1-ubyte"])


def test_a_split_is_read_when_asked_for_and_once(
    folder: Path, digits: dict[str, NDArray[np.uint8]]
) -> None:
    found = load_images("mnist")
    (folder / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"damaged")
    first = found.test
    (folder / "mnist" / "t10k-images-idx3-ubyte").unlink()
    assert found.test is first
    assert len(found.test_labels) == 6
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz cannot be read"):
        _ = found.train


def test_files_of_digits_that_are_cut_short_or_others_are_refused(
    folder: Path, digits: dict[str, NDArray[np.uint8]]
) -> None:
    packed, plain = (
        folder / "mnist" / "train-images-idx3-ubyte.gz",
        folder / "mnist" / "t10k-images-idx3-ubyte",
    )
    whole, content = packed.read_bytes(), plain.read_bytes()
    packed.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz cannot be read .* cut short"):
        _ = load_images("mnist").train
    plain.write_bytes(content[:-7])
    with pytest.raises(
        ValueError,
        match=r"t10k-images-idx3-ubyte: expected 136 bytes, as its header says, found 129",
    ):
        _ = load_images("mnist").test
    for odd in (b"", content[:10], bytes((0, 0, 13, 3)) + content[4:], idx(np.zeros(9, np.uint8))):
        plain.write_bytes(odd)
        with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte must begin with the header"):
            _ = load_images("mnist").test
    plain.write_bytes(idx(digits["t10k-images-idx3-ubyte"][::-1]))
    with pytest.raises(ValueError, match=r"sha256 of its decompressed content must be"):
        _ = load_images("mnist").test


def test_digits_under_the_name_of_fashion_are_refused(
    folder: Path, digits: dict[str, NDArray[np.uint8]]
) -> None:
    for path in (folder / "mnist").iterdir():
        (folder / "fashion_mnist" / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match=r"fashion_mnist/train-images.* must be c59f468a"):
        _ = load_images("fashion_mnist").train


def picture(pixels: NDArray[np.uint8] | NDArray[np.bool_], form: str) -> bytes:
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.fromarray(pixels).save(buffer, form, **({"quality": 95} if form == "JPEG" else {}))
    return buffer.getvalue()


def write_zip(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def write_drawings(path: Path, rows: NDArray[np.bool_]) -> dict[str, NDArray[np.generic]]:
    count = len(rows)
    drawings = np.random.default_rng(0).integers(0, 256, (count, 28, 28)).astype(np.uint8)
    arrays = {
        "images": drawings,
        "character": np.arange(count, dtype=np.uint16) // 2,
        "background": rows,
    }
    np.savez_compressed(path, **arrays)
    return arrays


def test_prepared_drawings_are_split_by_their_mark(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "omniglot" / "omniglot_28.npz"
    arrays = write_drawings(path, np.array([True, False, True, True, False]))
    monkeypatch.setattr(images, "OMNIGLOT_ROWS", {"train": 3, "test": 2})
    found = load_images("omniglot")
    assert np.array_equal(found.train.numpy(), arrays["images"][[0, 2, 3], None])
    assert np.array_equal(found.test.numpy(), arrays["images"][[1, 4], None])
    assert found.train_labels.tolist() == [0, 1, 1]
    assert found.test_labels.tolist() == [0, 2]
    monkeypatch.setattr(images, "OMNIGLOT_ROWS", {"train": 4, "test": 2})
    with pytest.raises(ValueError, match=r"omniglot_28.npz: expected 4 drawings .* found 3"):
        _ = load_images("omniglot").train
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"omniglot_28.npz cannot be read: it is cut short"):
            _ = load_images("omniglot").train


def test_official_drawings_are_averaged_over_boxes_and_numbered_by_character(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "OMNIGLOT_ROWS", {"train": 5, "test": 2})
    paper = np.ones((105, 105), bool)
    inked = paper.copy()
    inked[:17, 60:] = False  # 4 x 12 boxes of 3.75 x 3.75 pixels, and half of a row of boxes
    background = {
        "images_background/Greek/character02/0002_02.png": paper,
        "images_background/Greek/character02/0002_01.png": inked,
        "images_background/Greek/character01/0001_01.png": paper,
        "images_background/Arcadian/character02/0003_01.png": paper,
        "images_background/Arcadian/character01/0009_01.png": paper,
    }
    evaluation = {
        "images_evaluation/Angelic/character01/1_01.png": paper,
        "images_evaluation/Angelic/character03/2_01.png": inked,
    }
    for file, members in (("background", background), ("evaluation", evaluation)):
        content = {name: picture(pixels, "PNG") for name, pixels in members.items()}
        shadow = {"__MACOSX/images/._0002_01.png": b"a shadow", "notes.txt": b"other"}
        write_zip(folder / "omniglot" / f"images_{file}.zip", content | shadow)
    (folder / "omniglot" / "omniglot_28.npz").write_bytes(b"never read")
    found = load_images("omniglot")
    assert found.train_labels.tolist() == [0, 1, 2, 3, 3]  # Arcadian 1 and 2, Greek 1 and 2
    assert found.test_labels.tolist() == [4, 5]
    drawing = torch.zeros(28, 28, dtype=torch.uint8)
    drawing[:4, 16:] = 255
    drawing[4, 16:] = 128  # two of the four pixels whose centres lie in a box
    blank = torch.zeros_like(drawing)
    assert torch.equal(found.train, torch.stack([blank, blank, blank, drawing, blank])[:, None])
    assert torch.equal(found.test, torch.stack([blank, drawing])[:, None])


def flat(colour: tuple[int, int, int], height: int, width: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.array(colour, np.uint8), (height, width, 3)).copy()


def colours(x: torch.Tensor) -> list[list[int]]:
    """Return the colour of flat images, rounded to tens, for JPEG changes them a little."""
    assert (x.float().std((2, 3)) < 3.0).all()
    return (x.float().mean((2, 3)) / 10.0).round().mul(10.0).int().tolist()


FACES = {1: (200, 10, 10), 4: (10, 200, 10), 17: (10, 10, 200), 30: (100, 50, 0), 9: (0, 0, 0)}


def write_faces(folder: Path, *, side: int = 64, split_of_30: str = "test") -> None:
    for file, own in (("train_0", (17, 1)), ("train_1", (4,)), ("test", (30,))):
        faces = {f"{i:06d}.jpg": picture(flat(FACES[i], side, side), "JPEG") for i in own}
        write_zip(folder / "celeba" / f"celeba64_{file}.zip", faces)
    lines = ["image_id,identity,split", "1,5,train", "4,6,train", "9,6,val", "17,5,train"]
    lines.append(f"30,8,{split_of_30}")
    (folder / "celeba" / "index.csv").write_text("\n".join(lines) + "\n")


def test_prepared_faces_come_in_the_order_of_their_numbers(folder: Path) -> None:
    write_faces(folder)
    found = load_images("celeba")
    assert (found.train.dtype, found.train.shape) == (torch.uint8, (3, 3, 64, 64))
    assert colours(found.train) == [[200, 10, 10], [10, 200, 10], [10, 10, 200]]
    assert colours(found.test) == [[100, 50, 0]]
    with pytest.raises(ValueError, match="the images of celeba have no labels"):
        _ = found.test_labels


def test_prepared_faces_that_are_not_what_they_should_be_are_refused(folder: Path) -> None:
    write_faces(folder, split_of_30="train")
    with pytest.raises(ValueError, match=r"000030.jpg must be marked test in index.csv, got train"):
        _ = load_images("celeba").test
    write_faces(folder, side=32)
    with pytest.raises(ValueError, match=r"celeba64_train_0.zip/000001.jpg cannot be read .* size"):
        _ = load_images("celeba").train
    write_faces(folder)
    path = folder / "celeba" / "celeba64_test.zip"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"celeba64_test.zip cannot be read .* cut short"):
        _ = load_images("celeba").test
    content = picture(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8), "JPEG")
    write_zip(path, {"000030.jpg": content[:2000]})
    with pytest.raises(ValueError, match=r"celeba64_test.zip/000030.jpg cannot be read"):
        _ = load_images("celeba").test


@pytest.mark.parametrize("place", [0, 1, 2, 5, 40])
def test_a_picture_whose_compressed_bytes_are_damaged_is_named(folder: Path, place: int) -> None:
    write_faces(folder)
    path = folder / "celeba" / "celeba64_test.zip"
    name = "000030.jpg"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, picture(flat(FACES[30], 64, 64), "JPEG"))
    content = bytearray(path.read_bytes())
    start = 30 + len(name)  # behind the local header
    content[start + place : start + place + 4] = b"\xff" * 4
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"celeba64_test.zip/000030.jpg cannot be read"):
        _ = load_images("celeba").test


def write_official_faces(folder: Path) -> None:
    members = {}
    for number, colour in FACES.items():
        pixels = flat((255, 255, 255), 218, 178)
        pixels[45:173, 25:153] = colour
        # PNG, whatever the suffix says: no edge is blurred.
        members[f"img_align_celeba/{number:06d}.jpg"] = picture(pixels, "PNG")
    write_zip(folder / "celeba" / "img_align_celeba.zip", members)
    parts = {1: 0, 4: 0, 9: 1, 17: 2, 30: 2}
    lines = "".join(f"{number:06d}.jpg {part}\n" for number, part in parts.items())
    (folder / "celeba" / "list_eval_partition.txt").write_text(lines)


def test_official_faces_are_cropped_and_split_by_the_official_list(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "CELEBA_ROWS", {"train": 2, "test": 2})
    write_official_faces(folder)
    found = load_images("celeba")
    for x, numbers in ((found.train, (1, 4)), (found.test, (17, 30))):
        expected = torch.tensor([FACES[i] for i in numbers], dtype=torch.uint8)
        assert torch.equal(x, expected[:, :, None, None].expand(2, 3, 64, 64))
    monkeypatch.setattr(images, "CELEBA_ROWS", {"train": 2, "test": 3})
    with pytest.raises(ValueError, match=r"partition.txt: expected 3 pictures .* found 2"):
        _ = load_images("celeba").test
    monkeypatch.setattr(images, "CELEBA_ROWS", {"train": 2, "test": 2})
    write_zip(folder / "celeba" / "img_align_celeba.zip", {"img_align_celeba/000017.jpg": b""})
    with pytest.raises(ValueError, match=r"expected 0 of its pictures missing, found 1"):
        _ = load_images("celeba").test
    (folder / "celeba" / "list_eval_partition.txt").write_text("000017.jpg,2\n")
    with pytest.raises(ValueError, match="each line must name a picture and its split"):
        _ = load_images("celeba").test


def test_two_by_two_pixels_of_a_face_are_averaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "CELEBA_ROWS", {"train": 1, "test": 0})
    pixels = np.random.default_rng(0).integers(0, 256, (218, 178, 3)).astype(np.uint8)
    write_zip(folder / "celeba" / "img_align_celeba.zip", {"000001.jpg": picture(pixels, "PNG")})
    (folder / "celeba" / "list_eval_partition.txt").write_text("000001.jpg 0\n")
    face = pixels[45:173, 25:153].astype(float).reshape(64, 2, 64, 2, 3).mean((1, 3))
    found = load_images("celeba").train[0].permute(1, 2, 0).numpy()
    assert np.abs(found - face).max() <= 0.5


def test_missing_files_are_named_with_where_to_get_them(
    folder: Path, digits: dict[str, NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"lacks t10k-labels-idx1-ubyte.gz; put into it train-.*\(yann.lecun.com",
    ):
        load_images("mnist")
    with pytest.raises(FileNotFoundError, match=r"lacks train-images.*zalandoresearch"):
        load_images("fashion_mnist")
    with pytest.raises(
        FileNotFoundError, match=r"lacks images_background.zip and .*omniglot_28.npz.*brendenlake"
    ):
        load_images("omniglot")
    write_faces(folder)
    (folder / "celeba" / "celeba64_train_1.zip").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"lacks img_align_celeba.zip .*\(and celeba64_train_1.zip\);.*mmlab",
    ):
        load_images("celeba")
    (folder / "omniglot").rmdir()
    with pytest.raises(FileNotFoundError, match=r"is not there.*put into omniglot/ images_back"):
        load_images("omniglot")
    monkeypatch.delenv("POSTMATCH_DATA")
    with pytest.raises(
        FileNotFoundError, match=r"POSTMATCH_DATA is not set.*put into mnist/ train"
    ):
        load_images("mnist")


def test_other_names_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"one of mnist, fashion_mnist, omniglot, celeba, got 'cif"
    ):
        load_images("cifar")


def test_pillow_is_asked_for_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_faces(folder)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs Pillow: pip install 'postmatch\[images\]"
    ):
        _ = load_images("celeba").test


def real(name: str) -> images.Images:
    """Return a real set, or skip."""
    if not os.environ.get("POSTMATCH_DATA"):
        pytest.skip("POSTMATCH_DATA does not name the folder of real data")
    try:
        return load_images(name)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("name", "mean"), [("mnist", 0.1307), ("fashion_mnist", 0.2860)])
def test_real_digits_have_their_published_sizes_and_mean(name: str, mean: float) -> None:
    found = real(name)
    assert found.train.shape == (60_000, 1, 28, 28)
    assert found.test.shape == (10_000, 1, 28, 28)
    assert found.test_labels.bincount(minlength=10).sum() == 10_000
    assert abs(found.train.sum() / found.train.numel() / 255.0 - mean) < 5e-5
    if name == "mnist":
        assert found.test_labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


def test_real_drawings_are_twenty_of_each_character_in_light_ink() -> None:
    found = real("omniglot")
    assert found.train.shape == (19_280, 1, 28, 28)
    assert found.test.shape == (13_180, 1, 28, 28)
    assert (found.train_labels.bincount() == 20).all()
    assert (found.test_labels.bincount()[964:] == 20).all()
    assert (found.test == 0).double().mean() > 0.7  # most is paper


def test_real_faces_are_of_people_not_noise() -> None:
    pytest.importorskip("PIL.Image")
    x = real("celeba").test.float()
    assert x.shape[1:] == (3, 64, 64)
    mean = x.mean(0)
    skin = mean[:, 28:40, 24:40].mean((1, 2))
    assert skin[0] > skin[1] > skin[2]  # more red than blue
    mirrored = mean.flip(2)
    assert (mean - mirrored).abs().mean() < 5.0  # aligned faces are symmetric on average
