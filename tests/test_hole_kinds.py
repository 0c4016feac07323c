"""The benchmark of holes tells them apart, and errors from spread."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from postmatch.conditioning import MatchedVAE
from postmatch.recipes.inpainting_config import Dataset
from small_codes import small_model

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import hole_kinds


def test_holes_are_told_apart_by_what_is_in_them_and_by_their_shape() -> None:
    x = torch.zeros(4, 1, 28, 28)
    x[:, :, 5, 5] = 1.0
    observed = torch.ones(4, 1, 28, 28, dtype=torch.bool)
    observed[0, :, 14:] = False  # a half without the stroke
    observed[1, :, :14] = False
    single = torch.rand(28, 28, generator=torch.Generator().manual_seed(0)) < 0.5
    single[5, 5] = False
    observed[2:] = single
    observed[3, :, 5, 5] = True  # single pixels, and none of the stroke
    kinds = hole_kinds.kinds_of(x, observed)
    found = {kind: own.tolist() for kind, own in kinds.items()}
    assert found == {
        "blank": [True, False, False, True],
        "pixels": [False, False, True, False],
        "areas": [False, True, False, False],
    }


def test_error_and_spread_are_those_of_the_draws_whatever_their_number() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(2_000, 1, 4, 4)
    drawn = 0.3 + 0.2 * torch.randn(10, *x.shape, generator=generator)
    scores = hole_kinds.scores_of(drawn, x + 0.1, x)
    assert_close(scores["imputed"], torch.full((2_000,), 20.0))
    # 32,000 pixels: four standard errors of the means are .0011 and .0004.
    assert_close(scores["error"].mean(), torch.tensor(0.09), atol=1.1e-3, rtol=0.0)
    assert_close(scores["spread"].mean(), torch.tensor(0.04), atol=4e-4, rtol=0.0)


def test_images_without_an_error_have_no_ratio() -> None:
    every = {"psnr": torch.tensor([20.0, torch.inf, 30.0]), "error": torch.tensor([0.2, 0.0, 0.1])}
    every["imputed"] = torch.tensor([torch.inf, 21.0, 31.0])
    found = hole_kinds.summary(every, torch.tensor([True, True, False]))
    assert found == {"images": 2, "psnr": 20.0, "imputed": 21.0, "error": pytest.approx(0.1)}
    nothing = hole_kinds.summary(every, torch.zeros(3, dtype=torch.bool))
    assert nothing == {"images": 0, "psnr": None, "imputed": None, "error": None}


def test_every_model_has_a_line_about_the_same_images(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def some(_: Dataset, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        x = torch.rand(count, 1, 28, 28, device=device)
        return x, x > 0.5

    def one(
        _: Dataset, model: str, *_rest: object
    ) -> tuple[hole_kinds.Filler, hole_kinds.Imputer, dict[str, Any]]:
        def fill(x: Tensor, observed: Tensor) -> Tensor:
            seen.append((model, x.sum().item()))
            return torch.where(observed, x, 0.0).expand(3, *x.shape)

        def impute(x: Tensor, observed: Tensor) -> Tensor:
            return torch.where(observed, x, x + 0.01)

        told = {"train_minutes": 2.5, "steps": 70, "commit": "abc1234", "seed": 0}
        return fill, impute, told

    monkeypatch.setattr(hole_kinds, "asked", some)
    monkeypatch.setattr(hole_kinds, "model_of", one)
    hole_kinds.main(["omniglot", "--models", "vqvae", "vaeac", "--images", "60", "--device", "cpu"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["model"] for line in lines] == ["vqvae", "vaeac"]
    trained = {"train_minutes": 2.5, "steps": 70, "commit": "abc1234"}
    assert [line["trained"] for line in lines] == [trained, trained]
    assert [line["kinds"]["all"]["images"] for line in lines] == [60, 60]
    assert lines[0]["kinds"] == lines[1]["kinds"]
    assert [total for model, total in seen if model == "vqvae"] == [t for _, t in seen[2:]]
    assert lines[0]["kinds"]["all"]["spread"] == 0.0
    assert 40.0 < lines[0]["kinds"]["all"]["imputed"] < 50.0  # 40 where all pixels are hidden


def test_a_model_that_is_not_shipped_is_read_from_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def read(*files: Path | torch.device) -> tuple[dict[str, Any], MatchedVAE]:
        asked.append(files)
        return {"steps": 7}, small_model(channels=3)

    monkeypatch.setattr(hole_kinds, "read_model", read)
    device = torch.device("cpu")
    fill, impute, result = hole_kinds.model_of("celeba", "vqvae", tmp_path, device)
    name = "inpainting-celeba-vqvae"
    kept = tmp_path / "weights" / f"{name}.safetensors"
    assert asked == [(tmp_path / f"{name}.json", kept, device)]
    assert result == {"steps": 7}
    x = torch.rand(2, 3, 12, 12)
    assert fill(x, torch.ones(2, 1, 12, 12, dtype=torch.bool)).shape == (10, 2, 3, 12, 12)
    assert torch.equal(impute(x, torch.ones(2, 1, 12, 12, dtype=torch.bool)), x)
    *_, shipped = hole_kinds.model_of("mnist", "vqvae", tmp_path, device)
    assert shipped["name"] == "mnist-vqvae"
    assert len(asked) == 1
