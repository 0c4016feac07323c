"""The benchmark of filling an image: what it times, and what it tells."""

import json
import sys
from pathlib import Path

import pytest
import torch

from postmatch import zoo
from small_zoo import ship

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import inpaint_speed


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    ship(tmp_path, "mnist", "vdvae")
    ship(tmp_path, "omniglot", "vqvae")
    return tmp_path


def test_half_of_one_image_is_drawn_as_often_as_asked() -> None:
    for name in zoo.names():
        drawn = inpaint_speed.filling(name, 4, torch.device("cpu"))()
        assert drawn.shape == (4, 1, 1, 28, 28)
        spread = drawn.std(0)[0, 0] > 0.0
        assert not spread[:, :14].any()
        assert spread[:, 14:].any()


def test_each_model_has_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        inpaint_speed, "median_ms", lambda ways, seconds: dict.fromkeys(ways, 7.0 * seconds)
    )
    inpaint_speed.main(["--seconds", "2", "--draws", "3", "--threads", "1"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["model"] for line in lines] == zoo.names()
    assert all((line["ms"], line["draws"], line["seed"]) == (28.0, 3, 0) for line in lines)
