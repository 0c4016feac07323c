"""Steps that a GPU plays back: the same as on a CPU, with fresh noise, and honest about failure."""

import gc
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from postmatch.recipes.uci import FEATURES, build, config_of
from postmatch.training.checkpoints import Checkpoints
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Report
from postmatch.training.run import Run
from postmatch.training.update import computed_in

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
PLAN = Plan(60, learning_rate=1e-2, warmup=5, average=0.9, orthogonal_rate=1e-2)


class Problem:
    """A small regression, with rows, noise and a generator on one device."""

    def __init__(self, device: str, *, noise: float = 0.0, layers: int = 2) -> None:
        torch.manual_seed(0)
        parts = [nn.Linear(16, 16) for _ in range(layers)]
        self.net = nn.Sequential(*[m for part in parts for m in (part, nn.SiLU())]).to(device)
        self.x = torch.randn(64, 16).to(device)
        self.generator = torch.Generator(device).manual_seed(1)
        self.noise = noise
        self.draws: list[Tensor] = []

    def loss(self, fraction: Tensor) -> Losses:
        """Return one part that fades in, so that the fraction matters, and one with noise."""
        drawn = torch.randn(self.x.shape, generator=self.generator, device=self.x.device)
        x = self.x + self.noise * drawn
        out = self.net(x)
        self.latest = drawn
        return {"fit": (out - 2.0 * self.x).square().mean(), "size": fraction * out.abs().mean()}

    def train(self, plan: Plan = PLAN, **settings: object) -> Report:
        """Train as the package does."""
        return train(self.net, self.loss, plan, generators=[self.generator], **settings)  # type: ignore[arg-type]

    def weights(self) -> list[Tensor]:
        """Return what was learned."""
        return [p.detach().cpu() for p in self.net.parameters()]


@GPU
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_a_recorded_run_learns_what_a_cpu_learns(precision: str) -> None:
    here, there = Problem("cpu"), Problem("cuda")
    here.train()
    report = there.train(replace(PLAN, precision=precision))  # type: ignore[arg-type]
    tolerance = 1e-4 if precision == "float32" else 2e-2
    for mine, theirs in zip(here.weights(), there.weights(), strict=True):
        assert_close(mine, theirs, atol=tolerance, rtol=0.0)
    assert (report.steps, report.skipped) == (60, 0)


@GPU
def test_every_replay_draws_fresh_noise_and_a_seed_decides_it() -> None:
    def noise_of_steps() -> list[Tensor]:
        problem, seen = Problem("cuda", noise=0.1), []
        run = Run(problem.net, problem.loss, PLAN, [problem.generator])
        for _ in range(12):
            run.step()
            seen.append(problem.latest.clone())
        assert run.update.recorded.graph is not None
        return seen

    first, second = noise_of_steps(), noise_of_steps()
    for i, drawn in enumerate(first):
        assert torch.equal(drawn, second[i])
        assert abs(drawn.mean().item()) < 4.0 / 1024**0.5
        for earlier in first[:i]:
            assert not torch.equal(drawn, earlier)


@GPU
def test_a_step_that_cannot_be_recorded_warns_once_and_still_learns() -> None:
    problem, plain = Problem("cuda"), Problem("cuda")

    def loss(fraction: Tensor) -> Losses:
        assert fraction.item() >= 0.0  # asks the device, which a recording cannot
        return problem.loss(fraction)

    with pytest.warns(RuntimeWarning, match="cannot be recorded") as told:
        train(problem.net, loss, PLAN, generators=[problem.generator])
    assert len(told) == 1
    plain.train()
    for mine, theirs in zip(problem.weights(), plain.weights(), strict=True):
        assert_close(mine, theirs, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_that_is_not_finite_changes_nothing_but_the_counts(device: str) -> None:
    problem = Problem(device)
    spoiled = torch.zeros((), device=device)

    def loss(fraction: Tensor) -> Losses:
        return {**problem.loss(fraction), "spoiled": problem.net(problem.x).sum() * spoiled}

    run = Run(problem.net, loss, PLAN, [problem.generator])
    for _ in range(8):
        run.step()
    before = {name: value.clone() for name, value in run.update.named().items()}
    spoiled.fill_(torch.nan)
    run.step()
    after = run.update.named()
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        "skipped",
        "skipped_in_a_row",
    }
    assert (int(after["skipped"]), int(after["skipped_in_a_row"])) == (1, 1)
    spoiled.fill_(0.0)
    run.step()
    assert (int(run.update.skipped), int(run.update.in_a_row)) == (1, 0)
    assert not torch.equal(run.update.named()["weights.0"], before["weights.0"])


@GPU
@pytest.mark.parametrize(("begun", "ended"), [("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda")])
def test_a_run_goes_on_where_it_was_cut_off_on_another_device(
    begun: str, ended: str, tmp_path: Path
) -> None:
    whole, first, second = Problem(ended), Problem(begun), Problem(ended)
    whole.train()
    cut = stop_after(25)
    report = first.train(checkpoints=Checkpoints(tmp_path, "data"), stop=cut)
    assert (report.stopped_by, report.steps) == ("interruption", 25)
    report = second.train(checkpoints=Checkpoints(tmp_path, "data"))
    assert (report.stopped_by, report.steps) == ("steps", 60)
    for mine, theirs in zip(whole.weights(), second.weights(), strict=True):
        assert_close(mine, theirs, atol=1e-4, rtol=0.0)


def stop_after(steps: int) -> Callable[[], bool]:
    """Return what tells a run to stop after so many steps."""
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked >= steps

    return stop


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_learns_nearly_the_same(device: str) -> None:
    full, half = Problem(device), Problem(device)
    full.train()
    half.train(replace(PLAN, precision="bfloat16"))
    apart = [
        (mine - theirs).abs().max().item()
        for mine, theirs in zip(full.weights(), half.weights(), strict=True)
    ]
    assert 0.0 < max(apart) < 0.1  # it did compute in half precision
    assert all(weight.dtype == torch.float32 for weight in half.weights())


def test_precision_leaves_the_callers_settings_alone() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    with computed_in("tf32", torch.device("cuda")):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == before
    with computed_in("tf32", torch.device("cpu")):
        assert torch.backends.cuda.matmul.fp32_precision == before
    with pytest.raises(ValueError, match="precision must be one of float32, tf32, bfloat16"):
        Plan(1, precision="half")  # type: ignore[arg-type]


@GPU
@pytest.mark.parametrize("bound", [False, True])
def test_what_goes_on_side_by_side_gives_the_gradients_of_one_after_the_other(bound: bool) -> None:
    # Wide networks and many rows, so that work beside the backward pass falls behind it.
    config = config_of("bsds", "best")
    rows = torch.randn(4_096, FEATURES["bsds"], device="cuda")
    plan = Plan(100, learning_rate=0.0, clip_norm=1e9, weight_decay=0.0)

    def gradients(*, recorded: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = build(config).cuda()
        losses = model.bound_losses if bound else model.losses
        generator = torch.Generator("cuda").manual_seed(1)

        def loss(_: Tensor) -> Losses:
            observed = torch.rand(rows.shape, generator=generator, device="cuda") < 0.5
            return losses(rows, None, observed, generator=generator)

        run = Run(model, loss, plan, [generator])
        run.update.recorded.recordable = recorded
        found = []
        for _ in range(10):
            run.step()
            found.append(torch.cat([flat.gradient for flat in run.update.flats]))
        assert (run.update.recorded.graph is not None) == recorded
        return found

    for mine, theirs in zip(gradients(recorded=True), gradients(recorded=False), strict=True):
        assert (mine - theirs).norm() < 1e-3 * theirs.norm()


@GPU
def test_an_old_recording_that_becomes_garbage_spoils_no_new_one() -> None:
    old = Problem("cuda")
    run = Run(old.net, old.loss, PLAN, [old.generator])
    for _ in range(8):
        run.step()
    run.itself = run  # type: ignore[attr-defined]
    del run, old
    often = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Problem("cuda").train()
    finally:
        gc.set_threshold(*often)
