"""``postmatch models``."""

import json
from pathlib import Path

import pytest

from cli.conftest import Call
from postmatch import zoo
from small_zoo import result_of, ship


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder that shipped models are looked for in."""
    place = tmp_path / "zoo"
    place.mkdir()
    monkeypatch.setattr(zoo, "FOLDER", place)
    return place


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_an_installation_without_models_says_so(folder: Path, call: Call) -> None:
    told = call("models", "--quiet")
    assert (told.exit_code, told.stdout) == (0, "No models are shipped with this installation.\n")
    assert json.loads(call("models", "--json").stdout) == {"models": []}


def test_models_are_listed_with_scores_and_training(folder: Path, call: Call) -> None:
    metrics = {"psnr": 17.9541, "precision": 0.9, "recall": 0.88888}
    ship(folder, "omniglot", "vqvae", metrics=metrics, rows={"test": 13_180}, seed=3)
    ship(folder, "mnist", "vdvae")
    ship(folder, "mnist", "conv", hardware="NVIDIA H200", commit="fedcba9", train_minutes=0.25)
    sizes = [f"{(folder / f'{n}.safetensors').stat().st_size / 1e6:.1f} MB" for n in zoo.names()]
    told = call("models")
    assert told.exit_code == 0
    assert lines(told.stdout) == [
        "Shipped models",
        "name images kind file",
        f"mnist-conv mnist, 28 x 28, grey plain, one latent vector {sizes[0]}",
        f"mnist-vdvae mnist, 28 x 28, grey hierarchy of latent images {sizes[1]}",
        f"omniglot-vqvae omniglot, 28 x 28, grey grid of codes {sizes[2]}",
        "",
        "Parameters, and scores of filled test images",
        "name VAE q(z | x_o) PSNR (dB) precision recall of images",
        "mnist-conv 4.54 M 2.11 M 21.235 0.988 0.977 10,000",
        "mnist-vdvae 4.54 M 2.11 M 21.235 0.988 0.977 10,000",
        "omniglot-vqvae 4.54 M 2.11 M 17.954 0.900 0.889 13,180",
        "",
        "How they were trained",
        "name steps minutes on seed commit",
        "mnist-conv 30,000 0.2 NVIDIA H200 7 fedcba9",
        "mnist-vdvae 30,000 12.3 Some GPU 7 abc1234",
        "omniglot-vqvae 30,000 12.3 Some GPU 3 abc1234",
    ]


def test_every_setting_is_there_for_programs(folder: Path, call: Call) -> None:
    ship(folder, "mnist", "vdvae")
    ship(folder, "omniglot", "vdvae")
    (first, second) = json.loads(call("models", "--json").stdout)["models"]
    assert (first["name"], second["name"]) == ("mnist-vdvae", "omniglot-vdvae")
    assert first["bytes"] == (folder / "mnist-vdvae.safetensors").stat().st_size
    result = result_of("omniglot", "vdvae")
    assert {key: second[key] for key in result} == result


def test_a_damaged_description_is_told_in_one_line(folder: Path, call: Call) -> None:
    name = ship(folder, "mnist", "vdvae")
    (folder / f"{name}.json").write_text("{")
    told = call("models")
    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr == "error: mnist-vdvae.json is damaged: it does not read as JSON\n"


def test_help_has_examples(call: Call) -> None:
    text = call("models", "--help").stdout
    assert "Examples:" in text
    assert text.count("postmatch models") >= 3  # with its usage
    assert "postmatch inpaint" in text
