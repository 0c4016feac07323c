"""The command that trains and judges the peers of the scoreboard."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from postmatch.recipes.uci import FEATURES

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "baselines"))

import flow
import run

MODELS = {
    "vaeac": "VAEAC",
    "partial_vae": "PartialVAE",
    "gaussian": "Gaussian",
    "gaussian_mixture": "GaussianMixture",
    "circuit": "Circuit",
    "nsf": "NSF",
    "maf": "MAF",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of small data, and make it the one that is read."""
    random = np.random.default_rng(0)
    mixed = random.normal(size=(FEATURES["gas"], FEATURES["gas"]))
    counts = {"train": 300, "val": 60, "test": 40}
    rows = {k: (random.normal(size=(n, len(mixed))) @ mixed) for k, n in counts.items()}
    (tmp_path / "uci").mkdir()
    arrays = {name: part.astype(np.float32) for name, part in rows.items()}
    np.savez(tmp_path / "uci" / "gas.npz", **arrays)
    monkeypatch.setenv("POSTMATCH_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("method", run.METHODS)
def test_the_script_trains_judges_and_writes_the_result(
    folder: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    if method in flow.TRANSFORMS:
        pytest.importorskip("zuko")
    if method == "circuit":
        pytest.importorskip("spflow")
    words = ["--method", method, "--steps", "3", "--test-rows", "30", "--samples", "4"]
    code = run.main([*words, "--seed", "5", "--device", "cpu", "-o", str(folder / "results")])
    (line,) = capsys.readouterr().out.splitlines()
    written = json.loads((folder / "results" / f"uci-gas-{method}.json").read_text())
    assert code == 0
    assert json.loads(line) == written
    about = {key: written[key] for key in ("experiment", "dataset", "model", "preset", "seed")}
    assert about == {
        "experiment": "uci",
        "dataset": "gas",
        "model": MODELS[method],
        "preset": method,
        "seed": 5,
    }
    assert written["rows"]["train"] == 300
    assert written["rows"]["test"] == 30
    names = (
        {"joint_log_prob"} if method in flow.TRANSFORMS else {"log_prob", "log_prob_std", "nrmse"}
    )
    assert names <= written["metrics"].keys()
    assert all(math.isfinite(value) for value in written["metrics"].values())
    trained = method in ("vaeac", "partial_vae", "nsf")
    assert not trained or written["steps"] == written["config"]["plan"]["steps"] == 3


def test_the_scripts_gaussian_is_that_of_the_training_rows(folder: Path) -> None:
    run.main(["--method", "gaussian", "--device", "cpu", "-o", str(folder / "results")])
    written = json.loads((folder / "results" / "uci-gas-gaussian.json").read_text())
    with np.load(folder / "uci" / "gas.npz") as arrays:
        train, test = (torch.from_numpy(arrays[name]).double() for name in ("train", "test"))
    # In the user's units from the start, whose densities no change of units may touch.
    truth = MultivariateNormal(train.mean(0), torch.cov(train.T, correction=0)).log_prob(test)
    joint = written["metrics"]["joint_log_prob"]
    assert joint == pytest.approx(truth.mean().item(), abs=1e-3)


def test_a_missing_spflow_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "spn", raising=False)
    monkeypatch.setitem(sys.modules, "spflow.learn", None)
    assert run.main(["--method", "circuit", "--device", "cpu", "-o", str(folder)]) == 1
    assert "circuit needs spflow: pip install 'postmatch[circuits]'" in capsys.readouterr().err


def test_a_missing_zuko_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "zuko", None)
    monkeypatch.setitem(sys.modules, "zuko.flows", None)
    assert run.main(["--method", "nsf", "--device", "cpu", "-o", str(folder)]) == 1
    assert "nsf needs zuko: pip install 'postmatch[flows]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples", "3"], "--samples must be an even number, got 3"),
        (["--test-rows", "0"], "--test-rows must be at least 1, got 0"),
        (["--device", "abacus"], "device must be auto, cpu, cuda or mps, got 'abacus'"),
    ],
)
def test_what_cannot_be_asked_for_is_told(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    with pytest.raises(SystemExit):
        run.main(["--method", "gaussian", *words])
    assert message in capsys.readouterr().err
