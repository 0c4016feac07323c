"""Picture files: images and masks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from postmatch.image_files import read_image, read_masks, write_image
from postmatch.masks import Pattern


def save(path: Path, levels: object, mode: str | None = None) -> Path:
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(np.asarray(levels, np.uint8))
    (picture.convert(mode) if mode else picture).save(path)
    return path


def test_light_pixels_of_a_picture_are_holes(tmp_path: Path) -> None:
    levels = np.array([[0, 255, 127], [128, 10, 200]])
    holes = torch.tensor([[0, 1, 0], [1, 0, 1]]).bool()
    grey = save(tmp_path / "grey.png", levels)
    coloured = save(tmp_path / "coloured.png", np.repeat(levels[..., None], 3, axis=2))
    opaque = save(tmp_path / "opaque.png", levels, "RGBA")
    black_and_white = save(tmp_path / "two.png", np.where(holes, 255, 0), "1")
    observed = read_masks([grey, str(coloured), opaque, black_and_white])
    assert torch.equal(observed, ~holes.expand(4, 1, 2, 3))
    assert torch.equal(read_masks(grey), observed[:1])
    drawn = Pattern(observed).sample((5, 1, 2, 3), torch.Generator())
    assert torch.equal(drawn, ~holes.expand(5, 1, 2, 3))


def test_pictures_that_are_no_masks_are_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    first = save(tmp_path / "first.png", np.zeros((2, 3)))
    other = save(tmp_path / "other.png", np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"first.png has 2 x 3 pixels, .*other.png has 3 x 3"):
        read_masks([first, other])
    with pytest.raises(ValueError, match="at least one file"):
        read_masks([])
    clear = np.zeros((2, 3, 4))
    save(tmp_path / "clear.png", clear)
    with pytest.raises(ValueError, match=r"clear.png is transparent in places"):
        read_masks(tmp_path / "clear.png")
    image.fromarray(np.zeros((2, 3), np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match=r"deep.png must have 8 bits a colour, got mode I"):
        read_masks(tmp_path / "deep.png")
    whole = save(tmp_path / "cut.png", np.random.default_rng(0).integers(0, 255, (50, 50)))
    whole.write_bytes(whole.read_bytes()[:800])
    with pytest.raises(ValueError, match=r"cut.png cannot be read .* cut short"):
        read_masks(whole)
    with pytest.raises(FileNotFoundError):
        read_masks(tmp_path / "absent.png")


def test_pillow_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"need Pillow: pip install 'postmatch\[images\]"):
        read_masks(tmp_path / "any.png")


def test_an_image_comes_back_as_it_was_written(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    for channels in (1, 3):
        image = torch.randint(256, (channels, 5, 7), dtype=torch.uint8)
        write_image(tmp_path / "image.png", image)
        found, opaque = read_image(tmp_path / "image.png", channels)
        assert torch.equal(found, image)
        assert opaque.shape == (1, 5, 7)
        assert opaque.all()
    assert [file.name for file in tmp_path.iterdir()] == ["image.png"]
    with pytest.raises(ValueError, match=r"image.xyz cannot be written: unknown file extension"):
        write_image(tmp_path / "image.xyz", image)


def test_grey_and_colour_are_turned_into_each_other(tmp_path: Path) -> None:
    levels = np.array([[0, 255], [100, 7]])
    grey, _ = read_image(save(tmp_path / "grey.png", levels), 3)
    assert torch.equal(grey, torch.tensor(levels, dtype=torch.uint8).expand(3, 2, 2))
    coloured = save(tmp_path / "coloured.png", np.repeat(levels[..., None], 3, axis=2))
    assert torch.equal(read_image(coloured, 1)[0][0], torch.tensor(levels, dtype=torch.uint8))


def test_transparent_pixels_are_told(tmp_path: Path) -> None:
    pixels = np.full((2, 2, 4), 255)
    pixels[0, 1, 3] = 0
    _, opaque = read_image(save(tmp_path / "clear.png", pixels), 1)
    assert opaque.tolist() == [[[True, False], [True, True]]]
