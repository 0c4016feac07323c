"""Filling images, from the data to the result."""

import dataclasses
import json
import math
import signal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors
from torch import Tensor

from postmatch.cli import main
from postmatch.data.images import Images
from postmatch.recipes import image_judging, inpainting, inpainting_run
from postmatch.recipes.features import fit_classifier
from postmatch.recipes.image_judging import Judging
from postmatch.recipes.inpainting import build, fit
from postmatch.recipes.inpainting_config import MODELS, Config, Dataset, Model, config_of
from postmatch.recipes.inpainting_run import (
    evaluate,
    read_model,
    result_path,
    train,
    weights_path,
)
from postmatch.recipes.results import read_weights, write_weights
from postmatch.training.plan import Progress
from postmatch.vaes.vq import Codebook

SMALL = {"encoder": "28x1,28d4,7d7,1x1", "decoder": "1x1,7m1,28m7", "width": 12, "bottleneck": 4}
CODES = {
    "num_codes": 8, "code_size": 4, "code_width": 8, "context_width": 8, "context_hidden": 4,
    "posterior_width": 8, "posterior_blocks": 2, "prior_width": 8, "prior_blocks": 2,
}  # fmt: skip


def blots(split: str) -> tuple[Tensor, Tensor]:
    """Return images of a bright half, and which half it is."""
    rows = 60 if split == "train" else 30
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(40, (rows, 1, 28, 28), generator=generator, dtype=torch.uint8)
    kind = torch.arange(rows) % 2
    images[kind == 0, :, :14] += 200
    images[kind == 1, :, 14:] += 200
    return images, kind


def small(dataset: Dataset, model: Model) -> Config:
    return dataclasses.replace(
        config_of(dataset, model),
        **SMALL,
        **CODES,
        latent_channels=2,
        components=2,
        batch_size=8,
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, having made images and models small."""
    monkeypatch.setattr(image_judging, "load_images", lambda name: Images(name, blots))
    monkeypatch.setattr(inpainting_run, "config_of", small)
    return tmp_path


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_trained_judged_and_judged_again(folder: Path, model: Model) -> None:
    pytest.importorskip("PIL")
    parts: list[float] = []
    train("mnist", model, folder, steps=4, show=lambda p: parts.append(p.fraction))
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    how = Judging(test_rows=24, mask_seeds=(0,), classifier_steps=3)
    found = evaluate("mnist", model, folder, how)
    path = folder / f"inpainting-mnist-{model}.json"
    assert json.loads(path.read_text()) == found
    assert found["rows"] == {"train": 54, "test": 24}
    assert found["steps"] == found["config"]["steps"] == 4
    assert set(found["parameters"]) == {"vae", "partial"}
    assert 3.0 < found["metrics"]["psnr"] < 40.0
    assert 0.0 < found["metrics"]["recall"] <= 1.0
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    kept = folder / "weights" / "features-mnist-3.safetensors"
    assert sha256(kept.read_bytes()).hexdigest().startswith(found["extractor"]["digest"])
    again = evaluate("mnist", model, folder, how)
    assert again["metrics"] == found["metrics"]
    assert again["extractor"] == found["extractor"]


def test_a_judging_that_is_cut_off_leaves_what_it_has_unless_more_is_there(folder: Path) -> None:
    pytest.importorskip("PIL")
    path = folder / "inpainting-mnist-conv.json"
    train("mnist", "conv", folder, steps=2)
    how = Judging(test_rows=24, mask_seeds=(3, 4), classifier_steps=3)

    def cut_off(part: float) -> None:
        if part < 1.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate("mnist", "conv", folder, how, show=cut_off)
    left = json.loads(path.read_text())
    assert left["mask_seeds"] == [3]
    both = evaluate("mnist", "conv", folder, how)
    assert both["mask_seeds"] == [3, 4]
    for name in ("psnr", "drawn_recall"):  # the mean of both is as far from each
        assert abs(both["metrics"][name] - left["metrics"][name]) == pytest.approx(
            both["metrics"][f"{name}_std"]
        )
    with pytest.raises(KeyboardInterrupt):
        evaluate("mnist", "conv", folder, how, show=cut_off)
    assert json.loads(path.read_text()) == both
    alone = dataclasses.replace(how, mask_seeds=(3,))
    assert evaluate("mnist", "conv", folder, alone)["metrics"] == left["metrics"]
    assert json.loads(path.read_text())["mask_seeds"] == [3]


def test_training_goes_on_from_what_was_kept(folder: Path) -> None:
    train("mnist", "vdvae", folder, steps=4)
    kept = folder / "weights" / "inpainting-mnist-vdvae.safetensors"
    first = safetensors.load(kept.read_bytes())
    train("mnist", "vdvae", folder, steps=3, go_on=True)
    second = safetensors.load(kept.read_bytes())
    result = json.loads((folder / "inpainting-mnist-vdvae.json").read_text())
    assert (result["steps"], result["trainings"]) == (7, 2)
    assert result["config"]["learning_rate"] == config_of("mnist", "vdvae").learning_rate
    apart = [float((second[n].float() - first[n].float()).abs().max()) for n in first]
    fresh = build(small("mnist", "vdvae")).state_dict()
    far = [float((fresh[n] - first[n].float()).abs().max()) for n in first]
    assert 0.0 < max(apart) < 0.2 * max(far)


@pytest.mark.parametrize(("model", "cut_at"), [("vdvae", 0.5), ("vqvae", 0.2), ("vqvae", 0.8)])
def test_a_training_that_was_cut_off_goes_on_where_it_was(
    folder: Path, model: Model, cut_at: float
) -> None:
    unfinished = folder / "unfinished"
    fractions: list[float] = []

    def cut_off(progress: Progress) -> None:
        fractions.append(progress.fraction)
        if progress.fraction >= cut_at and not unfinished.with_suffix(".cut").exists():
            unfinished.with_suffix(".cut").touch()
            signal.raise_signal(signal.SIGINT)

    train("mnist", model, folder / "whole", steps=70)
    with pytest.raises(KeyboardInterrupt):
        train("mnist", model, folder, steps=70, checkpoints=unfinished, show=cut_off)
    assert fractions.pop() < 1.0
    begun = len(fractions)
    train("mnist", model, folder, steps=70, checkpoints=unfinished, show=cut_off)
    assert fractions[begun] > cut_at
    kept = f"weights/inpainting-mnist-{model}.safetensors"
    assert (folder / kept).read_bytes() == (folder / "whole" / kept).read_bytes()
    result = json.loads((folder / f"inpainting-mnist-{model}.json").read_text())
    assert result["steps"] == 70


def test_sums_that_half_precision_cannot_hold_are_kept_in_full(tmp_path: Path) -> None:
    book, path = Codebook(3, 2), tmp_path / "weights.safetensors"
    book.sums[0, 1] = 1e6
    write_weights(path, book)
    kept = safetensors.load(path.read_bytes())
    assert kept["vectors"].dtype == torch.float16
    assert read_weights(path, Codebook(3, 2)).sums[0, 1] == 1e6


def test_training_brings_a_hierarchy_near_what_can_be_foretold() -> None:
    images, _ = blots("train")
    config = dataclasses.replace(
        small("mnist", "vdvae"), steps=80, warmup=5, average=0.9, learning_rate=1e-2,
        precision="float32",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inpainting, "_JUDGED", 20)
        _, report = fit(config, images, images[:20])
    floor = 28 * 28 * math.log(40.0)  # the noise of each pixel, which nothing foretells
    assert floor < report.best_validation < floor + 0.4 * (report.history[0][1] - floor)


def test_the_command_tells_scores_of_means_and_of_drawn_pixels_beside_those_quoted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = {"psnr": 21.25, "psnr_per_sample": 19.5, "precision": 0.975, "recall": 0.5}
    metrics = scores | {f"drawn_{name}": value / 2.0 for name, value in scores.items()}
    asked: list[Judging] = []

    def judged(dataset: str, model: str, _: Path, how: Judging, **_rest: Any) -> dict[str, Any]:
        asked.append(how)
        return {"dataset": dataset, "model": model, "metrics": metrics}

    monkeypatch.setattr(inpainting_run, "evaluate", judged)
    words = ["reproduce", "inpainting", "--model", "vqvae", "--test-rows", "20"]
    assert main([*words, "--evaluate-only", "-o", str(folder)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["postmatch,", "vqvae", "21.250", "19.500", "0.975", "0.500"] in rows
    own = ["pixels", "drawn,", "too", "10.625", "9.750", "0.487", "0.250"]
    assert own in rows
    assert ["VQ-VAE", "+", "PM", "(quoted)", "19.981", "0.989", "0.993"] in rows
    assert asked == [Judging(20)]


def test_what_cannot_be_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "inpainting", "-o", str(folder)]
    assert main([*words, "--evaluate-only"]) == 1
    assert "inpainting-mnist-vdvae.json is not there: train" in capsys.readouterr().err
    with pytest.raises(ValueError, match="dataset must be one of mnist, omniglot, celeba, got 'x'"):
        config_of("x", "vdvae")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"model must be one of .*, got 'y'"):
        config_of("mnist", "y")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="28 x 28 in grey"):
        config_of("celeba", "conv")
    for model in ("conv", "vqvae"):
        with pytest.raises(ValueError, match="guess must be 0 or more, got -1"):
            dataclasses.replace(config_of("mnist", model), guess=-1.0)
        with pytest.raises(ValueError, match=f"guess is a setting of hierarchies, and {model} is"):
            dataclasses.replace(config_of("mnist", model), guess=1.0)


def test_a_setting_that_is_gone_is_passed_over_unless_a_result_used_it(folder: Path) -> None:
    train("mnist", "vdvae", folder, steps=2)
    path, weights = (where(folder, "mnist", "vdvae") for where in (result_path, weights_path))
    result = json.loads(path.read_text())
    for back in ("", "14x1"):
        path.write_text(json.dumps(result | {"config": result["config"] | {"back": back}}))
        if back:
            with pytest.raises(ValueError, match="config has back='14x1', a setting that is gone"):
                read_model(path, weights, torch.device("cpu"))
        else:
            read_model(path, weights, torch.device("cpu"))


def test_faces_have_a_hierarchy_of_their_own() -> None:
    model = build(dataclasses.replace(config_of("celeba", "vdvae"), width=8, bottleneck=4))
    x = torch.rand(1, 3, 64, 64)
    losses = model.losses(x, None, torch.rand(1, 1, 64, 64) < 0.5)
    assert all(loss.isfinite() for loss in losses.values())


def test_without_labels_a_classifier_learns_how_images_are_turned() -> None:
    images, _ = blots("train")
    top = images[::2]
    classifier = fit_classifier(top, None, steps=40, batch_size=16)
    with torch.no_grad():
        for quarter in range(4):
            found = classifier(top.rot90(quarter, (2, 3)) / 255.0).argmax(1)
            assert (found == quarter).double().mean() > 0.9


@pytest.mark.parametrize(
    ("device", "tools", "compiled"),
    [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)],
)
def test_networks_are_compiled_on_a_gpu_if_there_is_a_compiler(
    device: str, tools: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inpainting, "find_spec", lambda name: name == "triton" or None)
    monkeypatch.setattr(inpainting.shutil, "which", lambda name: name if tools else None)
    assert inpainting._can_compile(torch.device(device)) == compiled
