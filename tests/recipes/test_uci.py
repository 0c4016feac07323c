"""The density comparison: its data, its settings, and scores against closed forms."""

import dataclasses
import io
import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from linear_gaussian import draw_rows, exact_log_conditional, exact_log_evidence, exact_model
from linear_gaussian import linear_gaussian as linear_gaussian_vae
from postmatch.cli import main
from postmatch.data import uci as data
from postmatch.data.patches import PatchSymmetries
from postmatch.recipes import uci_run
from postmatch.recipes.scores import Judging, conditional_scores, masks_of
from postmatch.recipes.uci import FEATURES, PRESETS, build, config_of


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of small data, and make it the one that is read."""
    random = np.random.default_rng(0)
    (tmp_path / "uci").mkdir()
    for name in ("power", "gas"):
        shape = {"train": 160, "val": 60, "test": 80}
        mixed = random.normal(size=(FEATURES[name], FEATURES[name]))
        rows = {k: (random.normal(size=(n, len(mixed))) @ mixed) for k, n in shape.items()}
        arrays = {k: (v / rows["train"].std(0)).astype(np.float32) for k, v in rows.items()}
        np.savez(tmp_path / "uci" / f"{name}.npz", **arrays)
    monkeypatch.setenv("POSTMATCH_DATA", str(tmp_path))
    return tmp_path


def test_a_command_trains_judges_and_writes_the_result(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", "gas", "--preset", "best", "--samples", "4", "--json", "-q"]
    code = main(["reproduce", "uci", *words, "--steps", "4", "-o", str(folder / "results")])
    told = json.loads(capsys.readouterr().out)
    written = json.loads((folder / "results" / "uci-gas-best.json").read_text())
    assert code == 0
    assert told == written
    assert written["rows"] == {"train": 160, "test": 80, "ratio": 80}
    assert written["config"]["steps"] == written["steps"] == 4
    names = ("log_prob", "log_prob_gap", "nrmse", "log_prob_ratio_40", "pareto_k_40")
    for name in (*names, "joint_log_prob", "reconstruction", "match_kl", "prior_kl"):
        assert math.isfinite(written["metrics"][name])
    assert written["metrics"]["nrmse_std"] > 0.0
    # The weights that were kept give the same scores again.
    code = main(["reproduce", "uci", *words, "--evaluate-only", "-o", str(folder / "results")])
    again = json.loads(capsys.readouterr().out)
    assert code == 0
    timed = ("impute_microseconds", "impute_microseconds_std")
    for each in (again, told):
        for name in timed:
            del each["metrics"][name]
    assert again["metrics"] == told["metrics"]
    assert again["train_minutes"] == told["train_minutes"]


def test_two_hundred_steps_tell_hidden_features_from_seen_ones(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", "gas", "--steps", "200", "--samples", "20", "--json", "-q"]
    assert main(["reproduce", "uci", *words, "-o", str(folder / "results")]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    rows = data.load("gas")
    alone = torch.distributions.Normal(rows.train.mean(0), rows.train.std(0)).log_prob(rows.test)
    # Half of the features are hidden, and each is a standard normal if nothing is known of it.
    assert metrics["log_prob"] > 0.5 * alone.sum(1).mean() + 0.5
    assert metrics["nrmse"] < 0.9


def test_what_is_not_there_or_not_known_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "uci", "--dataset", "iris"]) == 1
    assert "must be one of power, gas" in capsys.readouterr().err
    kept = ["--dataset", "gas", "--evaluate-only", "-o", str(folder / "nothing")]
    assert main(["reproduce", "uci", *kept]) == 1
    assert "uci-gas-best.json is not there: train the model" in capsys.readouterr().err
    assert main(["reproduce", "uci", "--preset", "worst"]) == 1
    assert "must be one of paper, published-code, best" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="bsds300 is not there"):
        data.load("bsds")
    monkeypatch.delenv("POSTMATCH_DATA")
    with pytest.raises(FileNotFoundError, match="POSTMATCH_DATA is not set"):
        data.load("gas")


def test_patches_have_no_mean_and_come_from_their_own_split(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    (folder / "bsds300").mkdir()
    with zipfile.ZipFile(folder / "bsds300" / "bsds300_jpg.zip", "w") as archive:
        for split, top, count in (("train", 120, 22), ("test", 256, 3)):
            for i in range(count):
                pixels = random.integers(0, top, size=(20, 30)).astype(np.uint8)
                buffer = io.BytesIO()
                image.fromarray(pixels).save(buffer, "PNG")
                archive.writestr(f"{split}/{i}.png", buffer.getvalue())
    found = data._patches({"train": 400, "val": 100, "test": 200})
    assert [part.shape for part in (found.train, found.val, found.test)] == [
        (400, 63),
        (100, 63),
        (200, 63),
    ]
    again = data._patches({"train": 400, "val": 100, "test": 200})
    assert torch.equal(found.train, again.train)
    # The last pixel is what the others leave of a mean of zero, so it lies in the same range.
    assert found.train.sum(1).abs().max() < 0.5
    # Uniform grey levels up to 120 and 256, in units of 256: standard deviations of .135 and .289.
    assert found.train.std().item() == pytest.approx(120 / 256 / 12**0.5, rel=0.05)
    assert found.test.std().item() == pytest.approx(1.0 / 12**0.5, rel=0.05)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", data.NAMES)
def test_every_preset_builds_a_model_of_its_data(name: data.Name, preset: str) -> None:
    config = config_of(name, preset)  # type: ignore[arg-type]
    model = build(config)
    x = torch.randn(4, FEATURES[name])
    losses = model.losses(x, None, torch.rand_like(x) < 0.5)
    assert all(torch.isfinite(loss) for loss in losses.values())
    counts = {("power", "paper"): 1_551_999, ("power", "published-code"): 880_183}
    if (name, preset) in counts:
        found = sum(p.numel() for p in model.parameters())
        assert found == pytest.approx(counts[name, preset], rel=0.01)


def test_scores_of_an_exact_model_are_the_truth_in_the_users_units() -> None:
    vae = linear_gaussian_vae()
    x, _ = draw_rows(vae, 400)
    log_scale = torch.linspace(-1.0, 1.0, 6)
    seeds = (3, 4)
    how = Judging(mask_seeds=seeds, num_samples=400, ratio_samples=(2, 8))
    scores = conditional_scores(exact_model(vae), x, log_scale, how)
    truths = []
    for seed in seeds:
        observed = masks_of(x, seed)
        units = ((~observed) * log_scale).sum(1)
        truths.append((exact_log_conditional(vae, x, observed) - units).mean().item())
    truth = sum(truths) / 2
    # The mean of 800 bounds, each within 2 / sqrt(400) of its truth.
    assert scores["log_prob"] == pytest.approx(truth, abs=4.0 * 2.0 / math.sqrt(400 * 800))
    assert scores["log_prob_ratio_2"] == pytest.approx(truth, abs=1e-3)
    assert scores["log_prob_ratio_8"] == pytest.approx(truth, abs=1e-3)
    assert scores["effective_sample_size_8"] == pytest.approx(8.0, rel=1e-3)
    assert -0.01 < scores["log_prob_gap"] < 0.02
    # At exact posteriors every draw of z gives the truth, as the difference of the two.
    assert scores["reconstruction"] - scores["match_kl"] == pytest.approx(truth, abs=1e-3)
    joint = exact_log_evidence(vae, x, torch.ones_like(x, dtype=torch.bool)) - log_scale.sum()
    assert scores["joint_log_prob"] == pytest.approx(joint.mean().item(), abs=1e-3)
    assert 0.2 < scores["nrmse"] < 1.0


def test_the_ratio_of_few_rows_is_told_for_all_of_them() -> None:
    vae = linear_gaussian_vae()
    x, _ = draw_rows(vae, 400)
    how = Judging(mask_seeds=(3,), num_samples=400, ratio_samples=(2,), ratio_rows=20)
    scores = conditional_scores(exact_model(vae), x, torch.zeros(6), how)
    truth = exact_log_conditional(vae, x, masks_of(x, 3))
    # The ratio is exact here, so what is left is the noise of 400 and of 20 bounds, each within
    # 2 / sqrt(400) of its truth; 20 rows by themselves would be off by far more.
    error = 2.0 / math.sqrt(400 * 20)
    assert scores["log_prob_ratio_2"] == pytest.approx(truth.mean().item(), abs=4.0 * error)
    assert abs(truth[:20].mean() - truth.mean()) > 4.0 * error
    spread = truth.std().item() / math.sqrt(400)
    assert scores["log_prob_error"] == pytest.approx(spread, rel=0.05)


@pytest.mark.parametrize(("name", "turned"), [("bsds", True), ("gas", False)])
def test_patches_alone_are_turned_in_training(
    name: data.Name, turned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = torch.randn(20, FEATURES[name])
    monkeypatch.setattr(uci_run, "load", lambda _: data.Splits(rows, rows, rows))
    told: dict[str, object] = {}

    def fit(*_: object, **words: object) -> None:
        told.update(words)
        raise InterruptedError

    monkeypatch.setattr(uci_run, "fit", fit)
    with pytest.raises(InterruptedError):
        uci_run.train(name, "best", tmp_path)
    assert isinstance(told["vary"], PatchSymmetries) == turned


def test_every_batch_is_varied() -> None:
    seen: list[torch.Tensor] = []

    def vary(x: torch.Tensor, _: torch.Generator) -> torch.Tensor:
        seen.append(x)
        return torch.full_like(x, math.nan)

    config = dataclasses.replace(config_of("gas", "best"), steps=60, batch_size=4, keep_best=False)
    rows = torch.randn(8, FEATURES["gas"])
    with pytest.raises(FloatingPointError):  # what was varied is what is learned from
        uci_run.fit(config, rows, rows, vary=vary)
    assert all(x.shape == (4, 8) for x in seen)
