"""Picture files: images and masks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from postmatch.image_files import check_output, read_image, read_masks, write_image
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


@pytest.mark.parametrize("orientation", range(10))  # 1 to 8 say something
def test_photographs_are_read_upright_as_viewers_show_them(
    tmp_path: Path, orientation: int
) -> None:
    image, operations = (pytest.importorskip(f"PIL.{name}") for name in ("Image", "ImageOps"))
    picture = image.fromarray(np.array([[0, 255, 0], [255, 255, 0]], np.uint8))
    told = image.Exif()
    told[274] = orientation
    picture.save(tmp_path / "photo.png", exif=told)
    with image.open(tmp_path / "photo.png") as saved:
        upright = torch.from_numpy(np.array(operations.exif_transpose(saved)))
    found, opaque = read_image(tmp_path / "photo.png", 1)
    assert torch.equal(found[0], upright)
    assert opaque.shape == found.shape
    assert torch.equal(read_masks(tmp_path / "photo.png")[0, 0], upright == 0)


def test_what_a_camera_noted_may_be_damaged_if_its_pixels_are_whole(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    picture, told = image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3)), image.Exif()
    told[274], told[282] = 6, 72.0  # its side, and pixels per inch
    whole = told.tobytes()
    for place in range(6, len(whole)):  # the header of the notes and all of them
        notes = whole[:place] + b"\xff" + whole[place + 1 :]
        picture.save(tmp_path / "photo.png", exif=notes)
        assert sorted(read_image(tmp_path / "photo.png", 1)[0].flatten()) == list(range(6))


def test_a_picture_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "large.png", np.zeros((5, 5)))
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 10)
    with pytest.raises(ValueError, match=r"large.png is too large: .* \(25 pixels\) exceeds"):
        read_image(path, 1)


def test_pictures_that_are_no_masks_are_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    first = save(tmp_path / "first.png", np.zeros((2, 3)))
    other = save(tmp_path / "other.png", np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"first.png has 3 x 2 pixels, .*other.png has 3 x 3"):
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
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ValueError, match=r"text.png is not a picture of a format that is known"):
        read_masks(tmp_path / "text.png")


def test_a_damaged_picture_is_an_error_of_its_own_name_or_still_a_picture(tmp_path: Path) -> None:
    whole = save(tmp_path / "whole.png", np.random.default_rng(0).integers(0, 255, (9, 9)))
    content, told = whole.read_bytes(), []
    for place in range(len(content)):
        damaged = tmp_path / "damaged.png"
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        try:
            read_image(damaged, 1)
        except ValueError as error:
            told.append(str(error))
    assert len(told) > len(content) // 2
    assert all(message.startswith(f"{damaged} ") for message in told)


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr"])
def test_other_colours_of_8_bits_are_read(tmp_path: Path, mode: str) -> None:
    levels = np.repeat(np.array([[0, 255], [100, 30]])[..., None], 3, axis=2)
    suffix = "jpg" if mode == "CMYK" else "tif"
    found, opaque = read_image(save(tmp_path / f"other.{suffix}", levels, mode), 1)
    assert (found[0].int() - torch.tensor(levels[..., 0])).abs().max() < 40  # compressed
    assert opaque.all()


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
    with pytest.raises(OSError, match=r"image.xbm cannot be written: cannot write mode RGB"):
        write_image(tmp_path / "image.xbm", image)
    assert [file.name for file in tmp_path.iterdir()] == ["image.png"]


def test_formats_that_keep_every_pixel_are_told_from_those_that_do_not(tmp_path: Path) -> None:
    image, exact = torch.randint(256, (3, 24, 24), dtype=torch.uint8), []
    for suffix in ("png", "PNG", "bmp", "tif", "tiff", "jpg", "webp", "gif"):
        path = tmp_path / f"image.{suffix}"
        check_output(path)
        write_image(path, image)
        if torch.equal(read_image(path, 3)[0], image):
            check_output(path, exact=True)
            exact.append(suffix)
        else:
            with pytest.raises(
                ValueError, match=rf"\.{suffix} must end in \.png, .* keep every pixel"
            ):
                check_output(path, exact=True)
    assert exact == ["png", "PNG", "bmp", "tif", "tiff"]


def test_where_nothing_can_be_written_is_told_before(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    for name in ("image", "image.xyz", "image.csv"):
        with pytest.raises(ValueError, match=f"{name} must end in .png or another suffix"):
            check_output(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*absent"):
        check_output(tmp_path / "absent" / "image.png")


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
