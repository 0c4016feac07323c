"""Runs that are cut off: what was saved is enough to end with the same weights, bit for bit."""

import json
import random
import signal
import time
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from postmatch.training.checkpoints import FACTS, LOG, TENSORS, Checkpoints
from postmatch.training.engine import train
from postmatch.training.plan import Plan, Report

STEPS = 60


def run(
    folder: Path | None,
    *,
    stop_at: int = 0,
    steps: int = STEPS,
    rate: float = 0.01,
    broken_steps: int = 1,
) -> tuple[dict[str, Tensor], Report]:
    """Train a small net with all that a run can have; stop it early if told to."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 16), nn.BatchNorm1d(16))
    net.append(nn.Linear(16, 1))
    x = torch.randn(128, 4)
    generator = torch.Generator().manual_seed(5)
    taken = 0

    def loss(fraction: float) -> dict[str, Tensor]:
        nonlocal taken
        taken += 1
        rows = torch.randint(128, (16,), generator=generator)
        here = x[rows] + 0.01 * torch.randn(16, 4, generator=generator)
        bad = 20 / STEPS <= fraction < (20 + broken_steps) / STEPS
        broken = torch.tensor(float("nan") if bad else 0.0)
        return {"square": (net(here) - here.prod(1, keepdim=True)).square().mean() + broken}

    def validate() -> float:
        return float(net(x).square().mean())

    plan = Plan(
        steps, learning_rate=rate, orthogonal_rate=0.02, average=0.9, validate_every=7, slack=0.01
    )
    report = train(
        net,
        loss,
        plan,
        validate=validate,
        generators=[generator],
        checkpoints=None if folder is None else Checkpoints(folder, every_seconds=0.0),
        stop=lambda: taken == stop_at,
    )
    return net.state_dict(), report


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("stop_at", [1, 19, 20, 21, 35, 59])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path, stop_at: int) -> None:
    whole, report = run(None)
    _, first = run(tmp_path, stop_at=stop_at)
    assert (first.stopped_by, first.steps) == ("interruption", stop_at)
    weights, again = run(tmp_path)
    assert_same(weights, whole)
    assert (again.steps, again.skipped, again.history) == (STEPS, 1, report.history)
    assert (again.best_step, again.best_validation) == (report.best_step, report.best_validation)


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parametrize("stop_at", [23, 25, 40])
def test_a_run_that_went_back_goes_on_as_if_it_had_not_been_stopped(
    tmp_path: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postmatch.training.run._MOST_SKIPPED", 5)
    whole, report = run(None, broken_steps=5)
    assert report.returns == 1
    run(tmp_path, stop_at=stop_at, broken_steps=5)
    weights, again = run(tmp_path, broken_steps=5)
    assert_same(weights, whole)
    assert (again.skipped, again.returns) == (5, 1)


def test_a_run_that_had_ended_is_not_run_again(tmp_path: Path) -> None:
    whole, report = run(tmp_path)
    weights, again = run(tmp_path)
    assert_same(weights, whole)
    assert again.stopped_by == report.stopped_by == "steps"
    assert again.steps == STEPS


def test_saving_changes_nothing(tmp_path: Path) -> None:
    assert_same(run(tmp_path)[0], run(None)[0])


def test_the_last_two_states_are_kept(tmp_path: Path) -> None:
    run(tmp_path)
    kept = sorted(path.name for path in tmp_path.glob("step-*"))
    assert kept == ["step-0000000059", "step-0000000060"]


@pytest.mark.parametrize("file", [TENSORS, FACTS])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_state_is_told_and_the_one_before_is_used(
    tmp_path: Path, file: str, damage: str
) -> None:
    whole, _ = run(None)
    run(tmp_path, stop_at=30)
    path = tmp_path / "step-0000000030" / file
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.unlink()
    with pytest.warns(UserWarning, match=r"step-0000000030 cannot be used"):
        weights, _ = run(tmp_path)
    assert_same(weights, whole)


def test_a_state_of_another_plan_is_refused_and_left_alone(tmp_path: Path) -> None:
    run(tmp_path, stop_at=30)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match="another model, another plan"):
        run(tmp_path, rate=0.02)
    assert sorted(tmp_path.iterdir()) == before


def test_clearing_starts_over(tmp_path: Path) -> None:
    run(tmp_path, stop_at=30)
    Checkpoints(tmp_path).clear()
    assert Checkpoints(tmp_path).load() is None
    assert run(tmp_path)[1].steps == STEPS


def killed(folder: Path, steps: int) -> None:
    """Run to the end, and keep the weights, unless this is killed before."""
    torch.set_num_threads(1)
    weights, _ = run(folder / "run", steps=steps)
    save_file(weights, folder / "end.safetensors")


def start(folder: Path, steps: int) -> BaseProcess:
    """Run in a process of its own, forked from one that has imported all it needs."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["test_checkpoints", "torch._dynamo"])
    target = import_module("test_checkpoints").killed
    process = context.Process(target=target, args=(folder, steps))
    process.start()
    return process


@pytest.mark.slow
def test_a_run_killed_ten_times_at_any_moment_ends_with_the_same_weights(tmp_path: Path) -> None:
    steps, moment = 900, random.Random(0)
    whole, _ = run(None, steps=steps)
    for _ in range(10):
        process = start(tmp_path, steps)
        begun = latest(tmp_path / "run")
        while latest(tmp_path / "run") == begun and process.is_alive():
            time.sleep(0.01)  # until it has come further than the one before
        time.sleep(moment.uniform(0.0, 0.3))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it ended by itself"
    reached = latest(tmp_path / "run")
    assert 0 < reached < steps
    process = start(tmp_path, steps)
    process.join()
    assert process.exitcode == 0
    assert_same(load_file(tmp_path / "end.safetensors"), whole)


def latest(folder: Path) -> int:
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
    return max(steps, default=0)


def test_the_log_follows_the_run_also_when_it_is_resumed(tmp_path: Path) -> None:
    run(tmp_path, stop_at=59)
    with (tmp_path / LOG).open("a") as file:
        file.write('{"step": 100}\n{"st')  # after the last state, and cut off
    run(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [line["step"] for line in lines] == [50, 60]
    assert lines[-1].keys() == {"step", "seconds", "square", "validation"}
