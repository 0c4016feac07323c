"""The benchmark of settings trains what it is told and judges what it trained."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

from postmatch.image_masks import HiddenHalf
from postmatch.recipes.inpainting import build
from small_zoo import small_config

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import image_settings

TINY = dataclasses.replace(small_config("mnist", "vqvae"), batch_size=4, steps=6)


def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (12, 1, 28, 28), generator=generator, dtype=torch.uint8)


def test_settings_have_the_type_of_those_they_replace() -> None:
    told = (
        "num_codes=7",
        "dropout=.5",
        "compiled=False",
        "context_blocks=[1,2,1,1]",
        "orthogonal=any",
    )
    found = dict(image_settings.change(TINY, one) for one in told)
    assert found == {
        "num_codes": 7,
        "dropout": 0.5,
        "compiled": False,
        "context_blocks": [1, 2, 1, 1],
        "orthogonal": "any",
    }
    for wrong in ("num_code=7", "num_codes=x", "num_codes"):
        with pytest.raises(SystemExit, match="--with"):
            image_settings.change(TINY, wrong)


def test_a_line_tells_what_was_changed_and_how_images_were_filled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image_settings, "config_of", lambda *_: TINY)
    monkeypatch.setattr(image_settings, "training_images", lambda *_: (images(), images()[:5]))
    image_settings.main(["mnist", "--with", "num_codes=3", "--images", "4", "--device", "cpu"])
    line = json.loads(capsys.readouterr().out)
    assert (line["changed"], line["images"], line["steps"]) == ({"num_codes": 3}, 4, 6)
    assert line["psnr"] >= line["psnr_per_sample"]
    assert 0 < line["nats"] < 14 * 14 * 10


def test_a_model_without_codes_is_told_of_by_its_fillings_alone() -> None:
    config = small_config("mnist", "vdvae")
    found = image_settings.judged(build(config), images(), config)
    assert {*found} == {"psnr", "psnr_per_sample", "images"}


def test_true_codes_are_decoded_where_pixels_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_settings, "masks_of", lambda _: HiddenHalf("left"))
    torch.manual_seed(0)
    model, x = build(TINY).eval(), images() / 255.0
    found = image_settings.judged(model, images(), TINY)
    with torch.no_grad():
        decoded = model.vae.decode(model.vae.encode(x).sample()).mean.clamp(0.0, 1.0)
    error = (decoded - x)[..., :14].square().flatten(1).mean(1) / 2  # the other half has none
    assert found["psnr_of_true_codes"] == pytest.approx(float(-10 * error.log10().mean()), abs=1e-3)
    assert found["images"] == 12
