"""The photographs of BSDS300 as Berkeley ships them."""

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from postmatch.data import photographs, uci


def lengths(found: uci.Splits) -> tuple[int, int, int]:
    return len(found.train), len(found.val), len(found.test)


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return small pictures by their names in the archive, and expect these."""
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    found = {}
    for split, top, count in (("train", 120, 22), ("test", 256, 3)):
        for i in range(count):
            buffer = io.BytesIO()
            pixels = random.integers(0, top, size=(20, 30, 3)).astype(np.uint8)
            image.fromarray(pixels).save(buffer, "JPEG")
            found[f"BSDS300/images/{split}/{i}.jpg"] = buffer.getvalue()
    digest = hashlib.sha256(b"".join(n.encode() + b"\0" + found[n] for n in sorted(found)))
    monkeypatch.setattr(photographs, "SHA256", digest.hexdigest())
    monkeypatch.setattr(photographs, "COUNTS", {"train": 22, "test": 3})
    monkeypatch.setattr(uci, "_PATCHES", {"train": 400, "val": 100, "test": 200})
    monkeypatch.setenv("POSTMATCH_DATA", str(tmp_path))
    (tmp_path / "bsds300").mkdir()
    return found


def write_tar(folder: Path, pictures: dict[str, bytes]) -> Path:
    """Write the archive, with other members beside the pictures, as archives have them."""
    path = folder / "bsds300" / "BSDS300-images.tgz"
    others = {
        "BSDS300/iids_train.txt": b"100075\n",
        "BSDS300/images/train/._0.jpg": b"a shadow",
        "../../outside.jpg": b"nowhere",
    }
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("BSDS300/images/test/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
        for name, content in reversed((others | pictures).items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_photographs_in_berkeleys_archive_are_those_of_the_zip(
    pictures: dict[str, bytes], tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "bsds300" / "bsds300_jpg.zip", "w") as archive:
        for name, content in pictures.items():
            archive.writestr(name.removeprefix("BSDS300/images/"), content)
    prepared = uci.load("bsds")
    write_tar(tmp_path, pictures)
    before = sorted(tmp_path.rglob("*"))
    found = uci.load("bsds")
    assert sorted(tmp_path.rglob("*")) == before
    assert lengths(found) == (400, 100, 200)
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(found, part), getattr(prepared, part))
    # Uniform noise in three colours, up to 120 and 256: test pictures vary about twice as much.
    assert found.test.std() > 1.5 * found.train.std()


def test_an_archive_of_photographs_wins_and_must_be_berkeleys(
    pictures: dict[str, bytes], tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "bsds300" / "bsds300_jpg.zip", "w") as archive:
        archive.writestr("train/0.jpg", b"never read")
    path = write_tar(tmp_path, pictures)
    assert lengths(uci.load("bsds", most_rows=50)) == (50, 100, 200)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"BSDS300-images.tgz cannot be read .* cut short"):
        uci.load("bsds")
    write_tar(tmp_path, {name: x for name, x in pictures.items() if not name.endswith("/7.jpg")})
    with pytest.raises(ValueError, match=r"expected 22 pictures in images/train, found 21"):
        uci.load("bsds")
    first, second = "BSDS300/images/train/0.jpg", "BSDS300/images/train/1.jpg"
    write_tar(tmp_path, pictures | {first: pictures[second]})
    with pytest.raises(ValueError, match="the sha256 of its pictures must be"):
        uci.load("bsds")
