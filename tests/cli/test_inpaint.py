"""``postmatch inpaint``."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from postmatch.cli import main
from postmatch.image_files import read_image, write_image
from postmatch.recipes.inpainting import build, config_of
from postmatch.recipes.results import write_result, write_weights

pytest.importorskip("PIL.Image")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the result of an untrained, small hierarchy."""
    config = dataclasses.replace(
        config_of("mnist", "vdvae"), encoder="28x1,28d4,7d7,1x1", decoder="1x1,7m1,28m7",
        width=12, bottleneck=4, latent_channels=2, components=2,
    )  # fmt: skip
    torch.manual_seed(0)
    write_weights(tmp_path / "weights" / "small.safetensors", build(config))
    result = {"dataset": "mnist", "config": dataclasses.asdict(config)}
    write_result(tmp_path / "small.json", result)
    return tmp_path / "small.json"


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


def ask(image: Path, model: Path, *words: str) -> int:
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
    assert "is not there" in told("--mask", mask, by=tmp_path / "absent.json")
    write_image(tmp_path / "large.png", torch.zeros(1, 64, 32, dtype=torch.uint8))
    large = str(tmp_path / "large.png")
    assert "--mask must have the size of" in told("--mask", large)
    assert "28 x 28 pixels for this model, got 64 x 32" in told(
        "--hole", "000000", of=tmp_path / "large.png"
    )
    assert not (tmp_path / "out.png").exists()
