"""Shipped models: found by name, described by their results, and stocked only if fit to be."""

import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import torch as safetensors

import postmatch
from postmatch import zoo
from postmatch.data.images import load_images
from postmatch.image_metrics import psnr
from postmatch.recipes.inpainting import masks_of
from postmatch.recipes.inpainting_config import MODELS
from postmatch.recipes.inpainting_scores import decoder, filler
from postmatch.recipes.results import read_weights, write_result
from small_zoo import build, result_of, ship, small_config, write_model

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import stock_zoo
from stock_zoo import stock

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that shipped models are looked for in."""
    place = tmp_path / "zoo"
    place.mkdir()
    monkeypatch.setattr(zoo, "FOLDER", place)
    return place


def picture() -> tuple[torch.Tensor, torch.Tensor]:
    """Return an image of noise and its left half."""
    observed = torch.zeros(1, 1, 28, 28, dtype=torch.bool)
    observed[..., :14] = True
    return torch.rand(1, 1, 28, 28), observed


@pytest.mark.parametrize("model", MODELS)
def test_a_shipped_model_answers_as_the_one_that_was_written(folder: Path, model: str) -> None:
    name = ship(folder, "mnist", model)
    ship(folder, "omniglot", model)  # whose weights are others
    loaded = postmatch.pretrained(name, device="cpu")
    written = read_weights(folder / f"{name}.safetensors", build(small_config("mnist", model)))
    written.eval()
    x, observed = picture()
    with torch.no_grad():
        torch.manual_seed(1)
        expected = written.given(x, observed).draws(3)
        torch.manual_seed(1)
        drawn = loaded.given(x, observed).draws(3)
    assert torch.equal(drawn, expected)
    assert torch.equal(drawn[..., :14], x[None, ..., :14].expand(3, -1, -1, -1, -1))
    assert not any(part.training for part in loaded.modules())


def test_names_are_of_complete_pairs_in_order(folder: Path) -> None:
    assert zoo.names() == []
    ship(folder, "omniglot", "vdvae")
    ship(folder, "mnist", "vqvae")
    (folder / "mnist-conv.json").write_text("{}")
    (folder / "mnist-vdvae.safetensors").touch()
    assert zoo.names() == ["mnist-vqvae", "omniglot-vdvae"]


def test_a_description_is_the_result_with_images_and_bytes(folder: Path) -> None:
    name = ship(folder, "omniglot", "vqvae", steps=123)
    told = zoo.describe(name)
    size = len((folder / f"{name}.safetensors").read_bytes())
    known = {"name": name, "image_shape": [1, 28, 28], "bytes": size}
    assert told == known | result_of("omniglot", "vqvae", steps=123)


@pytest.mark.parametrize("ask", [zoo.describe, zoo.pretrained])
def test_a_name_that_no_model_has_is_told_with_those_there_are(
    ask: Callable[[str], object], folder: Path
) -> None:
    with pytest.raises(ValueError, match=r"^name: no models are shipped with this installation"):
        ask("mnist-vdvae")
    ship(folder, "mnist", "vdvae")
    ship(folder, "omniglot", "vdvae")
    there = "there are mnist-vdvae, omniglot-vdvae"
    text = (
        f"name: no shipped model is named 'omniglot-vdve': {there}; did you mean 'omniglot-vdvae'?"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        ask("omniglot-vdve")
    with pytest.raises(ValueError, match=f"named '../zoo/mnist-vdvae': {there}"):
        ask("../zoo/mnist-vdvae")
    with pytest.raises(ValueError, match=f"named 'xyz': {there}$"):
        ask("xyz")


def test_weights_of_another_model_are_refused(folder: Path) -> None:
    name = ship(folder, "mnist", "vqvae")
    other = ship(folder, "mnist", "vdvae")
    shutil.copy(folder / f"{other}.safetensors", folder / f"{name}.safetensors")
    with pytest.raises(ValueError, match="does not hold the weights of this model"):
        postmatch.pretrained(name)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a folder with the results of two small models."""
    place = tmp_path / "results"
    for name in ("mnist-vdvae", "omniglot-vqvae"):
        experiment = f"inpainting-{name}"
        weights = place / "weights" / f"{experiment}.safetensors"
        write_model(place / f"{experiment}.json", weights, *name.split("-"))
    return place


def test_stocking_copies_results_and_weights_to_the_bit(folder: Path, results: Path) -> None:
    sizes = stock(["mnist-vdvae", "omniglot-vqvae"], results, folder)
    assert zoo.names() == ["mnist-vdvae", "omniglot-vqvae"]
    assert sizes == {path.name: path.stat().st_size for path in folder.iterdir()}
    for name in zoo.names():
        result, weights = f"inpainting-{name}.json", f"weights/inpainting-{name}.safetensors"
        assert (folder / f"{name}.json").read_bytes() == (results / result).read_bytes()
        assert (folder / f"{name}.safetensors").read_bytes() == (results / weights).read_bytes()


def test_stocking_refuses_what_is_not_fit_and_then_copies_nothing(
    folder: Path, results: Path
) -> None:
    def refused(words: str, error: type[Exception] = ValueError) -> None:
        with pytest.raises(error, match=words):
            stock(["omniglot-vqvae", "mnist-vdvae"], results, folder)
        assert list(folder.iterdir()) == []

    path = results / "inpainting-mnist-vdvae.json"
    weights = results / "weights" / "inpainting-mnist-vdvae.safetensors"
    judged, halves = result_of("mnist", "vdvae"), weights.read_bytes()
    unjudged = {key: value for key, value in judged.items() if key != "metrics"}
    for result in (unjudged, judged | {"metrics": {"psnr": 20.0}}):
        write_result(path, result)
        refused("has no scores: postmatch reproduce inpainting --dataset mnist --model vdvae")
    write_result(path, judged | {"mask_seeds": [0, 1]})
    refused("has scores of 2 of 5 draws of masks: postmatch reproduce inpainting")
    write_result(path, judged | {"rows": {"train": 54_000, "test": 24}})
    refused("has scores of 24 of 10,000 test images: postmatch reproduce inpainting")
    write_result(path, judged | {"dataset": "omniglot"})
    refused("inpainting-mnist-vdvae.json is the result of omniglot-vdvae")
    write_result(path, judged)
    whole = {name: value.float() for name, value in safetensors.load(halves).items()}
    weights.write_bytes(safetensors.save(whole))
    refused("must hold half precision alone")
    shutil.copy(results / "weights" / "inpainting-omniglot-vqvae.safetensors", weights)
    refused("does not hold the weights of this model")
    weights.unlink()
    refused("inpainting-mnist-vdvae.safetensors is not there", FileNotFoundError)
    weights.write_bytes(halves)
    stock(["omniglot-vqvae", "mnist-vdvae"], results, folder)


def test_stocking_counts_what_is_shipped_already(
    folder: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sum(stock(["mnist-vdvae"], results, folder).values())
    both = sum(stock(["omniglot-vqvae"], results, folder).values())
    assert both == sum(path.stat().st_size for path in folder.iterdir()) > first
    for path in folder.glob("omniglot-*"):
        path.unlink()
    monkeypatch.setattr(stock_zoo, "MOST_BYTES", both - 1)
    with pytest.raises(ValueError, match=f"{both - 1:,} bytes can be shipped, .* be {both:,}"):
        stock(["omniglot-vqvae"], results, folder)
    assert zoo.names() == ["mnist-vdvae"]
    monkeypatch.setattr(stock_zoo, "MOST_BYTES", first)
    stock(["mnist-vdvae"], results, folder)  # one that is replaced is not counted twice


def test_the_script_says_what_is_amiss(
    folder: Path, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["stock_zoo.py", "--results", str(results), "--zoo", str(folder)]
    monkeypatch.setattr(sys, "argv", words)  # of MODELS, half are not there
    with pytest.raises(SystemExit, match=r"error: .*inpainting-omniglot-vdvae.json is not there"):
        stock_zoo.main()
    monkeypatch.setattr(sys, "argv", [*words, "mnist-vdvae"])
    stock_zoo.main()
    total = sum(path.stat().st_size for path in folder.iterdir())
    assert f'{{"bytes": {total}, "files": {{' in capsys.readouterr().out


def test_a_wheel_holds_the_shipped_models(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    source = Path("src/postmatch/zoo")
    (tmp_path / source).mkdir(parents=True)
    (tmp_path / "src/postmatch/__init__.py").touch()
    for name in ("__init__.py", "mnist-vdvae.json", "mnist-vdvae.safetensors"):
        (tmp_path / source / name).write_text(name)
    (built,) = wheel.WheelBuilder(str(tmp_path)).build(directory=str(tmp_path / "out"))
    held = zipfile.ZipFile(built).namelist()
    assert {f"postmatch/zoo/mnist-vdvae.{suffix}" for suffix in ("json", "safetensors")} < {*held}


# What follows is about the models that are really shipped, if there are any.


def test_all_that_is_shipped_fits() -> None:
    files = [p for p in zoo.FOLDER.iterdir() if p.suffix in (".json", ".safetensors")]
    assert sum(path.stat().st_size for path in files) <= stock_zoo.MOST_BYTES
    assert {path.stem for path in files} == {*zoo.names()}


@pytest.mark.parametrize("name", zoo.names())
def test_what_is_shipped_was_judged_and_answers(name: str) -> None:
    told, model = zoo.describe(name), postmatch.pretrained(name, device="cpu")
    assert {*told["metrics"]} >= stock_zoo.SCORES
    parts = {"vae": model.vae, "partial": model.partial}
    counts = {part: sum(p.numel() for p in m.parameters()) for part, m in parts.items()}
    assert counts == told["parameters"]
    values = safetensors.load((zoo.FOLDER / f"{name}.safetensors").read_bytes()).values()
    most = torch.finfo(torch.float16).max
    assert all(v.dtype == torch.float16 or v.abs().max() > most for v in values)
    x, observed = picture()
    drawn = model.given(x, observed).draws(2)
    assert torch.equal(drawn[..., :14], x[None, ..., :14].expand(2, -1, -1, -1, -1))
    assert drawn.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_scores_that_are_quoted_are_those_of_the_shipped_file(name: str) -> None:
    if not os.environ.get("POSTMATCH_DATA"):
        pytest.skip("POSTMATCH_DATA does not name the folder of real data")
    told, model = zoo.describe(name), postmatch.pretrained(name, device="cpu")
    every = load_images(told["dataset"]).test[: told["rows"]["test"]]
    x = every[torch.randperm(len(every))[:40]] / 255.0
    observed = masks_of(told["dataset"]).sample((len(x), 1, 28, 28), torch.Generator())
    with torch.no_grad():
        each = psnr(filler(decoder(model))(x, observed), x)
    each = each[each.isfinite()]
    error = float(each.std()) / len(each) ** 0.5
    assert abs(float(each.mean()) - told["metrics"]["psnr"]) < 4.0 * error
