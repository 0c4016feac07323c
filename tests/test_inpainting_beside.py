"""Models of images that are trained side by side: what is run, and what is told of it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import inpainting_beside as beside

RESULTS = Path(__file__).parents[1] / "results"


def test_all_commands_run_at_once_and_one_that_fails_leaves_the_others_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Either ends only when the other has begun.
    waits = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\n" + (
        "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)\n"
    )
    one, other = (str(tmp_path / name) for name in ("one", "other"))
    commands = {
        "good": [sys.executable, "-c", waits + "print('well')", one, other],
        "bad": [sys.executable, "-c", waits + "sys.exit('no such thing')", other, one],
    }
    assert beside.run_all(commands, tmp_path) == {"bad"}
    assert (tmp_path / "good.log").read_text() == "well\n"
    assert capsys.readouterr().err == "bad failed:\nno such thing\n"


def test_commands_are_those_that_train_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(beside, "classifier_of", lambda *what: asked.append(what[:2]))
    monkeypatch.delenv("POSTMATCH_DATA", raising=False)
    words = ["mnist-vqvae", "mnist-vaeac", "--steps", "2", "--test-rows", "24"]
    code = beside.main([*words, "--max-minutes", "0.5", "--device", "cpu", "-o", str(tmp_path)])
    # All options are understood, and what is missing is the data.
    assert code == 1
    said = capsys.readouterr()
    assert said.err.count("POSTMATCH_DATA is not set") == 2
    assert "mnist-vqvae failed" in said.err
    assert "mnist-vaeac failed" in said.err
    assert said.out == ""
    assert asked == [("mnist", tmp_path)]


@pytest.mark.parametrize("model", ["vqvae", "vaeac"])
def test_a_line_tells_of_a_result(model: str) -> None:
    result = json.loads((RESULTS / f"inpainting-mnist-{model}.json").read_text())
    line = beside.line_of(f"mnist-{model}", RESULTS, 4)
    assert (line["dataset"], line["model"], line["side_by_side"]) == ("mnist", model, 4)
    assert line["drawn_psnr_std"] == result["metrics"]["drawn_psnr_std"]
    assert line["recall"] == result["metrics"]["recall"]
    assert line["extractor"] == result["extractor"]["digest"]
    known = json.loads((RESULTS / "inpainting_beside.jsonl").read_text().splitlines()[1])
    assert set(known) <= set(line)  # what the page reads


def test_a_model_is_not_named_twice(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        beside.parse(["mnist-vdvae", "mnist-vdvae"])
    assert "each model can be named once" in capsys.readouterr().err
