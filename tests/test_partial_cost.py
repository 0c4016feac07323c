"""What the benchmark of the partial posterior's cost counts, and what its steps train."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from postmatch.conditioning import MatchedVAE
from postmatch.recipes.inpainting import build
from postmatch.recipes.inpainting_config import MODELS, Config
from small_zoo import small_config

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import partial_cost

CPU = torch.device("cpu")


def tiny(model: str) -> Config:
    return dataclasses.replace(small_config("mnist", model), batch_size=2, precision="float32")


def part_of(name: str) -> str:
    return "prior" if name.startswith("vae.prior_net") else name.split(".")[0]


@pytest.mark.parametrize("name", MODELS)
def test_each_step_trains_what_it_is_named_after(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[MatchedVAE] = []

    def remember(config: Config) -> MatchedVAE:
        models.append(build(config))
        return models[-1]

    monkeypatch.setattr(partial_cost, "build", remember)
    steps = partial_cost.steps_of(tiny(name), CPU)
    wanted = {"vae": {"vae"}, "both": {"vae", "partial"}, "partial": {"partial"}}
    assert [*steps] == ["vae", "partial" if name == "vqvae" else "both"]
    for model, (what, step) in zip(models, steps.items(), strict=True):
        before = {key: value.clone() for key, value in model.state_dict().items()}
        for _ in range(3):
            step()
        after = model.state_dict()  # with the codebook, which no gradient moves
        changed = {key for key in before if not torch.equal(before[key], after[key])}
        assert {part_of(key) for key in changed} == wanted[what]
        learning = {key for key, p in model.named_parameters() if p.requires_grad}
        assert {part_of(key) for key in learning} == wanted[what]


def test_a_line_for_each_model_tells_its_parameters_and_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(partial_cost, "config_of", lambda _, model: small_config("mnist", model))
    clock = iter(range(1, 100))
    monkeypatch.setattr(
        partial_cost, "median_ms", lambda steps, _: {name: float(next(clock)) for name in steps}
    )
    words = ["--models", "vqvae", "vdvae", "--batch-size", "3", "--precision", "float32"]
    partial_cost.main([*words, "--device", "cpu"])
    codes, levels = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    for line in (codes, levels):
        assert line["benchmark"] == "partial_cost"
        assert (line["batch_size"], line["precision"]) == (3, "float32")
        assert {"commit", "hardware", "torch", "seed"} <= {*line}
        model = build(small_config("mnist", line["model"]))
        parts = {name: count(getattr(model, name)) for name in ("vae", "partial")}
        assert line["parameters"]["vae"] == parts["vae"]
        assert line["parameters"]["both"] == parts["vae"] + parts["partial"]
    assert (codes["ms_vae"], codes["ms_partial"]) == (1.0, 2.0)
    assert (levels["ms_vae"], levels["ms_both"]) == (3.0, 4.0)
    assert "ms_both" not in codes
    assert 0 < codes["parameters"]["prior"] < codes["parameters"]["vae"]
    assert "prior" not in levels["parameters"]


def count(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


def test_times_are_those_of_each_step_in_milliseconds() -> None:
    steps = {"vae": lambda: time.sleep(0.002), "both": lambda: time.sleep(0.012)}
    found = dict(partial_cost.times(steps, CPU, num_steps=1, seconds=0.0))
    assert 2.0 <= found["vae"] < found["both"]
    assert found["both"] >= 12.0
