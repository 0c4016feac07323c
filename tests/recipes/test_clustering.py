"""Clusters of images, from the data to the result."""

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from postmatch.cli import main
from postmatch.data.images import Images
from postmatch.recipes import clustering, clustering_run
from postmatch.recipes.clustering import Config, read, varied
from postmatch.recipes.clustering_run import run

SMALL = Config(
    num_clusters=3, latent_size=2, components=2, code_steps=3, group_steps=3, cluster_steps=3,
    match_steps=3, batch_size=8, starts=1, attempts=1, precision="float32",
)  # fmt: skip


def blots(split: str) -> tuple[Tensor, Tensor]:
    """Return images with a bright third, and which third it is."""
    rows = 60 if split == "train" else 30
    images = torch.randint(
        40, (rows, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    kind = torch.arange(rows) % 3
    for third in range(3):
        images[kind == third, :, 9 * third : 9 * third + 9] += 200
    return images, kind


class ThreadsInPlaceOfProcesses(ThreadPoolExecutor):
    """One worker, which sees what a test has replaced."""

    def __init__(self, jobs: int, mp_context: object) -> None:
        assert jobs == 2
        assert mp_context is not None
        super().__init__(1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, having made images few."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(clustering_run, "load_images", lambda name: Images(name, blots))
    return tmp_path


def test_every_seed_is_trained_judged_and_reported(folder: Path) -> None:
    found = run("mnist", folder, config=SMALL, seeds=(4, 5), fractions=(0.0, 0.5, 1.0))
    path = folder / "clustering-mnist.json"
    assert json.loads(path.read_text()) == found
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert [each["seed"] for each in found["runs"]] == [4, 5]
    for each in found["runs"]:
        assert each["rows"] == {"train": 60, "test": 30}
        assert {len(curve) for curve in each["curves"].values()} == {3}
        assert sum(each["shares"]) == pytest.approx(1.0)
        assert each["accuracy_rematched"] >= each["accuracy"]
        # With nothing seen both say one cluster of all images, whose label a third of them has.
        assert each["curves"]["supervised_rematched"][0] == pytest.approx(1 / 3, abs=1e-6)
    worst = min(each["accuracy"] for each in found["runs"])
    assert found["metrics"]["accuracy_worst"] == worst


def test_seeds_side_by_side_are_those_one_after_the_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering_run, "ProcessPoolExecutor", ThreadsInPlaceOfProcesses)
    how = {"config": SMALL, "seeds": (1, 2), "fractions": (1.0,)}
    one, two = (run("mnist", folder, jobs=jobs, **how) for jobs in (1, 2))  # type: ignore[arg-type]
    assert [each["accuracy"] for each in two["runs"]] == [each["accuracy"] for each in one["runs"]]
    assert two["side_by_side"] == 2


def test_trained_for_longer_the_thirds_are_found(folder: Path) -> None:
    config = dataclasses.replace(
        SMALL, code_steps=40, group_steps=10, cluster_steps=10, match_steps=1, starts=3,
        learning_rate=3e-3, shift=0.0, turn=0.0, stretch=0.0,
    )  # fmt: skip
    found = run("mnist", folder, config=config, seeds=(0,), fractions=(1.0,))["runs"][0]
    assert found["accuracy"] > 0.9
    assert found["nmi"] > 0.7


def test_images_are_moved_turned_and_stretched_no_further_than_asked() -> None:
    x = torch.zeros(200, 1, 28, 28)
    x[:, :, 13:15, 13:15] = 1.0
    still = dataclasses.replace(SMALL, turn=0.0, stretch=0.0, shift=3.0)
    moved = varied(still, x, torch.Generator().manual_seed(0))
    axis = torch.arange(28.0)
    centre = (moved.sum((1, 2)) * axis).sum(-1) / moved.sum((1, 2, 3))
    apart = (centre - 13.5).abs()
    assert apart.max() < 3.01
    assert apart.max() > 2.5
    nothing = dataclasses.replace(still, shift=0.0)
    same = varied(nothing, read(blots("test")[0]), torch.Generator().manual_seed(0))
    assert torch.allclose(same, read(blots("test")[0]), atol=1e-5)
    assert not clustering._varies(nothing)


def test_masks_of_training_see_any_number_of_pixels() -> None:
    observed = clustering.masks().sample((400, 1, 28, 28), torch.Generator().manual_seed(0))
    share = observed.double().mean((1, 2, 3)).numpy()
    assert abs(np.mean(share) - 0.5) < 4.0 * np.sqrt(1 / 12 / 400)
    assert np.std(share) == pytest.approx(np.sqrt(1 / 12), rel=0.1)


def test_what_cannot_be_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "clustering", "-o", str(folder), "--dataset", "cifar"]
    assert main(words) == 1
    assert "--dataset must be one of mnist, fashion_mnist, got 'cifar'" in capsys.readouterr().err


def test_the_command_writes_and_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "clustering", "-o", str(folder), "--seeds", "1", "--steps", "1"]
    assert main([*words, "--test-rows", "20", "--device", "cpu"]) == 0
    assert "supervised" in capsys.readouterr().out
    assert json.loads((folder / "clustering-mnist.json").read_text())["seeds"] == [0]
