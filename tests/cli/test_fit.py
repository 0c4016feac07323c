"""What ``postmatch fit`` keeps, and what it writes on the way."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors import torch as safetensors

from cli.conftest import Call
from postmatch import load

QUICK = ("--quick", "--steps", 5)


def test_tensorboard_gets_a_run_per_model(people: Path, call: Call) -> None:
    result = call("fit", people, "--steps", 5, "--tensorboard", "logs/runs")
    assert result.exit_code == 0, result.output
    assert "tensorboard --logdir logs/runs" in result.stderr
    members = load("people.model").facts["members"]
    runs = sorted(path.parent.name for path in Path("logs/runs").glob("*/events.out.tfevents.*"))
    assert runs == [f"member-{i}" for i in range(members)]


def test_tensorboard_that_is_not_installed_is_told_before_anything_is_fitted(
    people: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    result = call("fit", people, *QUICK, "--tensorboard", "runs")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: --tensorboard needs the package tensorboard: pip install 'postmatch[tensorboard]'\n"
    )
    assert [path.name for path in Path().iterdir()] == ["people.csv"]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("people.model", "is in people.model"),
        ("people.model/runs", "is in people.model"),
        ("people.model.unfinished", "is in people.model.unfinished"),
        ("people.csv", "people.csv is a file"),
    ],
)
def test_a_place_that_tensorboard_cannot_have_is_told_at_once(
    place: str, words: str, people: Path, call: Call
) -> None:
    result = call("fit", people, *QUICK, "--tensorboard", place)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert [path.name for path in Path().iterdir()] == ["people.csv"]


def test_slim_keeps_the_same_model_in_half_precision(people: Path, call: Call) -> None:
    assert call("fit", people, *QUICK, "-o", "full").exit_code == 0
    result = call("fit", people, *QUICK, "-o", "slim", "--slim")
    assert result.exit_code == 0, result.output
    assert "kept in slim, in half precision" in result.stderr
    assert json.loads(Path("slim/config.json").read_text())["slim"] is True
    full, slim = (safetensors.load_file(f"{name}/weights.safetensors") for name in ("full", "slim"))
    learned = dict(load("full").model.named_parameters())
    for name, value in full.items():
        assert torch.equal(slim[name], value.half() if name in learned else value)
    assert call("impute", people, "-m", "slim", "--quiet").exit_code == 0


def test_help_shows_how_to_slim_a_model_and_to_watch_a_fit(call: Call) -> None:
    text = call("fit", "--help").stdout
    assert "postmatch fit people.csv --tensorboard runs" in text
    assert "postmatch fit people.csv --slim" in text
