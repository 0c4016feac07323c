"""``postmatch inpaint``."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from postmatch import zoo
from postmatch.cli import main
from postmatch.image_files import read_image, write_image
from small_zoo import ship, write_model

pytest.importorskip("PIL.Image")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the result of an untrained, small hierarchy."""
    path = tmp_path / "small.json"
    write_model(path, tmp_path / "weights" / "small.safetensors", "mnist", "vdvae")
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that shipped models are looked for in."""
    place = tmp_path / "zoo"
    place.mkdir()
    monkeypatch.setattr(zoo, "FOLDER", place)
    return place


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Return a picture of grey noise."""
    pixels = torch.randint(256, (1, 28, 28), dtype=torch.uint8)
    write_image(tmp_path / "image.png", pixels)
    return tmp_path / "image.png"


def half(tmp_path: Path) -> Path:
    """Return a mask whose right half is the hole."""
    mask = torch.zeros(1, 28, 28, dtype=torch.uint8)
    mask[..., 14:] = 255
    write_image(tmp_path / "mask.png", mask)
    return tmp_path / "mask.png"


def ask(image: Path, model: Path | str, *words: str) -> int:
    output = str(image.with_name("out.png"))
    return main(["inpaint", str(image), "-m", str(model), "-o", output, "-q", *words])


def filled(image: Path, number: int) -> Tensor:
    return read_image(image.with_name(f"out.{number}.png"), 1)[0]


def test_pixels_outside_the_hole_come_back_bit_for_bit(
    tmp_path: Path, image: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mask = half(tmp_path)
    assert ask(image, model, "--mask", str(mask), "-n", "3", "--each", "--json") == 0
    told = json.loads(capsys.readouterr().out)["output"]
    assert [Path(place).name for place in told] == ["out.png", *(f"out.{i}.png" for i in (1, 2, 3))]
    before, _ = read_image(image, 1)
    draws = [filled(image, i) for i in (1, 2, 3)]
    for after in draws:
        assert torch.equal(after[..., :14], before[..., :14])
    assert not torch.equal(draws[0], draws[1])
    gallery, _ = read_image(tmp_path / "out.png", 3)
    assert gallery.shape == (3, 4 * 28 + 2, 4 * (4 * 28 + 2))
    # A seed gives the same answer again.
    assert ask(image, model, "--mask", str(mask), "-n", "3", "--each") == 0
    assert torch.equal(filled(image, 2), draws[1])


def test_a_colour_or_transparent_pixels_mark_the_hole(
    tmp_path: Path, image: Path, model: Path
) -> None:
    grey, _ = read_image(image, 3)
    pink = grey.clone()
    pink[:, :10] = torch.tensor([255, 0, 255], dtype=torch.uint8).view(3, 1, 1)
    write_image(tmp_path / "pink.png", pink)
    clear = torch.cat([grey, torch.full_like(grey[:1], 255)])
    clear[3, :10] = 0
    write_image(tmp_path / "clear.png", clear)
    assert ask(tmp_path / "pink.png", model, "--hole", "#ff00ff", "-n", "1", "--each") == 0
    first = filled(image, 1)
    assert ask(tmp_path / "clear.png", model, "-n", "1", "--each") == 0
    assert torch.equal(filled(image, 1), first)
    assert torch.equal(first[:, 10:], grey[:1, 10:])


def test_a_shipped_model_fills_as_its_files_do(
    tmp_path: Path, image: Path, model: Path, folder: Path
) -> None:
    words = ("--mask", str(half(tmp_path)), "-n", "2", "--each")
    ship(folder, "mnist", "vdvae")  # with the weights that model has
    ship(folder, "mnist", "vqvae")
    assert ask(image, model, *words) == 0
    by_file = [filled(image, i) for i in (1, 2)]
    assert ask(image, "mnist-vdvae", *words) == 0
    assert all(torch.equal(filled(image, i + 1), by_file[i]) for i in range(2))
    assert ask(image, "mnist-vqvae", *words) == 0
    assert not torch.equal(filled(image, 1), by_file[0])


def test_a_file_goes_before_a_shipped_model_of_its_name_but_a_folder_does_not(
    tmp_path: Path, image: Path, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--mask", str(half(tmp_path)), "-n", "1", "--each")
    monkeypatch.chdir(tmp_path)
    name = ship(folder, "mnist", "vqvae")
    Path(name).mkdir()
    assert ask(image, name, *words) == 0
    shipped = filled(image, 1)
    Path(name).rmdir()
    model.rename(name)
    Path("weights/small.safetensors").rename(f"weights/{name}.safetensors")
    assert ask(image, name, *words) == 0
    assert not torch.equal(filled(image, 1), shipped)
    assert ask(image, Path(name).resolve(), *words) == 0
    by_path = filled(image, 1)
    assert ask(image, name, *words) == 0
    assert torch.equal(filled(image, 1), by_path)


def test_a_model_that_is_neither_a_file_nor_shipped_is_told_in_one_line(
    tmp_path: Path, image: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(model: str) -> str:
        assert ask(image, model, "--mask", str(half(tmp_path))) == 1
        return capsys.readouterr().err

    assert told("mnist-vdvae") == (
        "error: --model: there is no file mnist-vdvae, and no models are shipped with this "
        "installation, so none is named 'mnist-vdvae'\n"
    )
    ship(folder, "mnist", "vdvae")
    assert told("mnist-vdva") == (
        "error: --model: there is no file mnist-vdva, and no shipped model is named 'mnist-vdva': "
        "there are mnist-vdvae; did you mean 'mnist-vdvae'?\n"
    )
    assert not (tmp_path / "out.png").exists()


def test_help_names_both_kinds_of_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inpaint", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--mask mask.png --model mnist-vdvae -n 6 -o out.png" in text
    assert "-m faces/inpainting-celeba-vdvae.json" in text


def test_what_cannot_be_filled_is_told(
    tmp_path: Path, image: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str, of: Path = image, by: Path = model) -> str:
        assert ask(of, by, *words) == 1
        return capsys.readouterr().err.replace("\n", " ")

    mask = str(half(tmp_path))
    assert "is hidden: say where the hole is" in told()
    assert "give one of them" in told("--mask", mask, "--hole", "ff00ff")
    assert "--hole must be a colour such as ff00ff, got 'pink'" in told("--hole", "pink")
    model.with_name("bare.json").write_bytes(model.read_bytes())
    assert "bare.safetensors is not there" in told("--mask", mask, by=tmp_path / "bare.json")
    for wrong in (model.parent / "weights" / "small.safetensors", image):
        assert f"{wrong} is no result of postmatch reproduce inpainting" in told(by=wrong)
    dark = tmp_path / "dark.png"
    write_image(dark, torch.full((1, 28, 28), 1, dtype=torch.uint8))
    assert "dark.png has no white pixel, which is where the hole is; its lightest has 1 of" in told(
        "--mask", str(dark)
    )
    write_image(tmp_path / "large.png", torch.zeros(1, 64, 32, dtype=torch.uint8))
    large = str(tmp_path / "large.png")
    assert "--mask must have the size of" in told("--mask", large)
    assert "28 x 28 pixels for this model, got 32 x 64" in told(
        "--hole", "000000", of=tmp_path / "large.png"
    )
    first = image.rename(tmp_path / "again.1.png")
    again = str(tmp_path / "again.png")
    for read, words in (
        (first, ("-o", str(first))),
        (first, ("-o", mask)),
        (first, ("-o", again, "--each")),
    ):
        before = {path: path.read_bytes() for path in (first, Path(mask))}
        assert "would be written over" in told("--mask", mask, *words, of=read)
        assert {path: path.read_bytes() for path in before} == before
    first.rename(image)
    lossy = str(tmp_path / "out.jpg")
    assert "which keep every pixel as it is, got .jpg" in told(
        "--mask", mask, "--each", "-o", lossy
    )
    assert "there is no folder" in told("--mask", mask, "-o", str(tmp_path / "absent" / "out.png"))
    assert not (tmp_path / "out.png").exists()


def test_images_of_another_kind_than_the_model_has_learned_are_filled_with_a_warning(
    tmp_path: Path, image: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def warned(pixels: Tensor) -> str:
        write_image(tmp_path / "odd.png", pixels.to(torch.uint8))
        assert ask(tmp_path / "odd.png", model, "--mask", str(half(tmp_path)), "-n", "1") == 0
        return capsys.readouterr().err

    dark = torch.full((3, 28, 28), 30)
    assert warned(dark) == ""
    assert "odd.png is light, and the model has learned white strokes" in warned(255 - dark)
    hidden = dark.clone()
    hidden[0, :, 20:] = 90
    assert warned(hidden) == ""  # in the hole, where nothing is read
    dark[0, :, :5] = 90
    assert "odd.png is coloured, and the model is of grey images" in warned(dark)
