"""The training loop: what it keeps, when it stops, what it skips; and a seed decides it all."""

import itertools
import math
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from linear_gaussian import ExactPartial, draw_rows, exact_model, linear_gaussian
from postmatch.training import run
from postmatch.training.averaging import WeightAverage
from postmatch.training.engine import train
from postmatch.training.plan import Plan, Progress, Report

TARGET = torch.tensor([1.0, -2.0, 3.0])


class Point(nn.Module):
    """Three numbers to be trained, a matrix beside them, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(3))
        self.matrix = nn.Parameter(torch.ones(2, 2))
        self.fixed = nn.Parameter(torch.ones(2), requires_grad=False)

    def distance(self) -> dict[str, Tensor]:
        return {"value": (self.value - TARGET).square().sum(), "matrix": self.matrix.square().sum()}


def plan(steps: int, **settings: float) -> Plan:
    defaults: dict[str, float] = {
        "learning_rate": 0.05,
        "warmup": 1,
        "weight_decay": 0.0,
        "average": 0.9,
        "validate_every": 10,
    }
    return Plan(steps=steps, **{**defaults, **settings})  # type: ignore[arg-type]


# The running average


def test_the_average_follows_its_recursion_with_a_faster_start() -> None:
    parameter = nn.Parameter(torch.tensor([0.0]))
    average = WeightAverage([parameter], decay=0.5)
    expected = 0.0
    for update, value in enumerate([4.0, -2.0, 8.0, 1.0, 1.0, 5.0, 2.0, 9.0, 3.0], start=1):
        parameter.data.fill_(value)
        average.update(torch.tensor(average.next_pull()))
        decay = min(0.5, (1.0 + update) / (10.0 + update))
        expected = decay * expected + (1.0 - decay) * value
        assert average.copy()[0].item() == pytest.approx(expected, rel=1e-5)


def test_the_average_takes_the_parameters_place_for_a_while_and_gives_it_back() -> None:
    parameter = nn.Parameter(torch.tensor([0.0]))
    average = WeightAverage([parameter], decay=0.5)
    parameter.data.fill_(11.0)
    average.update(torch.tensor(average.next_pull()))  # decay 2 / 11
    with average.applied():
        assert parameter.item() == pytest.approx(9.0)
    assert parameter.item() == 11.0
    with pytest.raises(RuntimeError, match="inside"), average.applied():
        raise RuntimeError("inside")
    assert parameter.item() == 11.0
    assert average.copy()[0].item() == pytest.approx(9.0)


def test_a_copy_of_the_average_stays_as_it_was_and_can_be_loaded() -> None:
    parameter = nn.Parameter(torch.tensor([0.0]))
    average = WeightAverage([parameter], decay=0.5)
    kept = average.copy()
    parameter.data.fill_(5.0)
    average.update(torch.tensor(average.next_pull()))
    assert kept[0].item() == 0.0
    average.load(kept)
    assert parameter.item() == 0.0


# The loop


def test_training_reaches_the_minimum_and_leaves_the_average_there() -> None:
    point = Point()
    report = train(point, lambda _: point.distance(), plan(300))
    assert_close(point.value.detach(), TARGET, atol=1e-2, rtol=0.0)
    assert_close(point.matrix.detach(), torch.zeros(2, 2), atol=1e-2, rtol=0.0)
    assert torch.equal(point.fixed, torch.ones(2))
    assert (report.steps, report.stopped_by, report.skipped) == (300, "steps", 0)
    assert not point.training


def shown_weights(loss: Callable[[float], dict[str, Tensor]], point: Point) -> list[Tensor]:
    """Return the weights at the start of every step of a run, then those it leaves behind."""
    shown = []

    def watched(fraction: float) -> dict[str, Tensor]:
        shown.append(point.value.detach().clone())
        return loss(fraction)

    train(point, watched, plan(30, average=0.0))
    return [*shown, point.value.detach().clone()]


def test_what_training_leaves_is_the_average_of_its_weights() -> None:
    plain, point = Point(), Point()
    weights = shown_weights(lambda _: plain.distance(), plain)
    train(point, lambda _: point.distance(), plan(30, average=0.8))
    average = weights[0]
    for update, value in enumerate(weights[1:], start=1):
        decay = min(0.8, (1.0 + update) / (10.0 + update))
        average = decay * average + (1.0 - decay) * value
    assert_close(point.value.detach(), average)
    assert (average - weights[-1]).abs().min() > 0.005


def test_the_best_validated_weights_are_kept() -> None:
    point, scores, shown = Point(), iter([3.0, 1.0, 2.0, math.nan, 1.5]), []

    def validate() -> float:
        shown.append(point.value.detach().clone())
        return next(scores)

    report = train(point, lambda _: point.distance(), plan(50), validate=validate)
    assert torch.equal(point.value, shown[1])
    assert (report.best_step, report.best_validation) == (20, 1.0)
    assert [step for step, _ in report.history] == [10, 20, 30, 40, 50]
    assert report.stopped_by == "steps"


def test_validation_sees_averaged_weights_in_evaluation_without_gradients() -> None:
    point, modes = Point(), []

    def loss(_: Tensor) -> dict[str, Tensor]:
        modes.append(("loss", point.training, torch.is_grad_enabled()))
        return point.distance()

    def validate() -> float:
        modes.append(("validate", point.training, torch.is_grad_enabled()))
        lagging.append(point.value[2].item())
        return 0.0

    lagging: list[float] = []
    train(point, loss, plan(20, average=0.999), validate=validate)
    assert set(modes) == {("loss", True, True), ("validate", False, False)}
    plain = Point()
    train(plain, lambda _: plain.distance(), plan(20, average=0.0))
    assert 0.0 < lagging[-1] < plain.value[2].item()  # the average trails the last weights


def test_patience_counts_validations_without_improvement() -> None:
    point, scores = Point(), iter([5.0, 4.0, 4.5, 3.0, 3.1, 3.2, 3.3, 0.0])
    report = train(
        point, lambda _: point.distance(), plan(200, patience=3), validate=lambda: next(scores)
    )
    assert (report.stopped_by, report.steps, report.best_step) == ("patience", 70, 40)
    assert len(report.history) == 7


class Clock:
    """Time that passes one second per batch."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_time_limit_ends_training_having_lowered_the_rate_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, point, fractions = Clock(), Point(), []
    monkeypatch.setattr(run.time, "monotonic", clock.monotonic)

    def loss(fraction: Tensor) -> dict[str, Tensor]:
        clock.now += 1.0
        fractions.append(fraction.item())
        return point.distance()

    report = train(point, loss, plan(1000, max_seconds=20.0), validate=lambda: 1.0)
    assert (report.stopped_by, report.steps, report.seconds) == ("time", 20, 20.0)
    assert report.history == [(10, 1.0), (20, 1.0)]  # the last weights are judged as well
    assert fractions == pytest.approx([step / 20 for step in range(20)])


def test_the_fraction_follows_the_steps_when_there_is_time() -> None:
    point, fractions = Point(), []

    def loss(fraction: Tensor) -> dict[str, Tensor]:
        fractions.append(fraction.item())
        return point.distance()

    report = train(point, loss, plan(8, max_seconds=1000.0))
    assert fractions == pytest.approx([step / 8 for step in range(8)], abs=0.01)
    assert report.stopped_by == "steps"


def spoil_some(point: Point, bad: set[int], how: str) -> Callable[[float], dict[str, Tensor]]:
    """Return a loss that is not finite, or has a gradient that is not, at some of its calls."""
    calls = iter(range(10_000))

    def loss(_: Tensor) -> dict[str, Tensor]:
        losses = point.distance()
        if next(calls) in bad:
            zero = (point.value - point.value.detach()).sum()
            losses["bad"] = zero.sqrt() if how == "gradient" else zero + math.nan
        return losses

    return loss


@pytest.mark.parametrize("how", ["loss", "gradient"])
def test_steps_that_are_not_finite_are_skipped_and_counted(how: str) -> None:
    point = Point()
    report = train(point, spoil_some(point, {3, 4, 17}, how), plan(400))
    assert report.skipped == 3
    assert report.steps == 400
    assert_close(point.value.detach(), TARGET, atol=1e-2, rtol=0.0)


def test_a_skipped_step_changes_no_weight() -> None:
    point = Point()
    weights = shown_weights(spoil_some(point, {2, 29}, "gradient"), point)
    still = [torch.equal(a, b) for a, b in itertools.pairwise(weights)]
    assert [step for step, same in enumerate(still) if same] == [2, 29]


def test_steps_that_stay_not_finite_raise() -> None:
    point = Point()
    with pytest.raises(FloatingPointError, match=r"50 steps in a row.*at step 50$"):
        train(point, spoil_some(point, set(range(100)), "loss"), plan(400))
    # Going back is no help if not one step is finite after it.
    point = Point()
    with (
        pytest.warns(UserWarning, match=r"at step 53; going on from the averaged weights"),
        pytest.raises(FloatingPointError, match=r"at step 103$"),
    ):
        train(point, spoil_some(point, set(range(3, 400)), "loss"), plan(400))


def test_a_good_step_starts_the_count_anew() -> None:
    point = Point()
    with pytest.warns(UserWarning, match="at step 91;"):
        report = train(point, spoil_some(point, set(range(95)) - {40}, "loss"), plan(400))
    assert (report.returns, report.skipped) == (1, 94)


@pytest.mark.filterwarnings("ignore:.*not finite")
def test_a_run_that_lost_its_way_goes_back_thrice_and_no_more() -> None:
    def spoilt(times: int) -> Report:
        bad = {100 * i + j for i in range(1, times + 1) for j in range(50)}
        return train(point, spoil_some(point, bad, "gradient"), plan(600))

    point = Point()
    assert spoilt(3).returns == 3
    assert_close(point.value.detach(), TARGET, atol=0.05, rtol=0.0)
    point = Point()
    with pytest.raises(FloatingPointError, match=r"at step 450$"):
        spoilt(4)


@pytest.mark.filterwarnings("ignore:.*not finite")
def test_a_run_goes_on_from_its_average_without_momentum_at_half_the_rates() -> None:
    """One that cannot be finite where weights are large, which a rate too high makes them."""
    cliff, seen = Point(), []

    def loss(_: Tensor) -> dict[str, Tensor]:
        seen.append(cliff.value.detach().clone())
        over = cliff.value[0] > 2.0
        return {"up": -cliff.value[0] * torch.where(over, math.nan, 1.0)}

    settings = plan(200, learning_rate=0.1, schedule="constant", warmup=0, average=0.9)
    report = train(cliff, loss, settings)
    heights = torch.stack(seen)[:, 0]
    first = int((heights > 2.0).nonzero()[0])
    back = heights[first + 50]
    assert report.returns >= 1
    assert heights[first : first + 50].unique().numel() == 1  # where it was stuck
    assert 1.0 < back < 2.0  # the average lags behind
    stride, before = heights[first + 51] - back, heights[first - 1] - heights[first - 2]
    assert_close(stride, 0.5 * before, rtol=0.1, atol=0.0)


@pytest.mark.parametrize(("clip_norm", "stalled"), [(5.0, False), (1e12, True)])
def test_one_wild_gradient_stalls_a_run_unless_it_is_clipped(
    clip_norm: float, stalled: bool
) -> None:
    point, seen = Point(), []

    def loss(_: Tensor) -> dict[str, Tensor]:
        seen.append(point.value.detach().clone())
        wild = 1e6 if len(seen) == 3 else 1.0
        return {name: wild * value for name, value in point.distance().items()}

    train(point, loss, plan(120, clip_norm=clip_norm))
    # Adam divides by the size of recent gradients, in which a wild one lingers.
    moved = (seen[60] - seen[40]).norm()
    assert bool(moved < 0.1) == stalled
    assert bool(moved > 0.5) != stalled


def test_matrices_decay_and_vectors_do_not() -> None:
    point = Point()
    with torch.no_grad():
        point.value.copy_(TARGET)
    settings = plan(40, weight_decay=0.5, average=0.0)
    train(point, lambda _: {"none": 0.0 * (point.value.sum() + point.matrix.sum())}, settings)
    assert torch.equal(point.value, TARGET)
    assert (point.matrix < 0.75).all()
    assert (point.matrix > 0.0).all()


def test_a_frozen_vae_is_left_as_it_was_to_the_bit() -> None:
    vae = linear_gaussian().requires_grad_(False)
    model = exact_model(vae, 0.7, 1.0)
    before = {name: p.clone() for name, p in vae.state_dict().items()}
    x, observed = draw_rows(vae, 64)
    train(
        model,
        lambda _: model.losses(x, None, observed, train_vae=False),
        plan(150, weight_decay=0.5),
    )
    assert all(torch.equal(p, before[name]) for name, p in vae.state_dict().items())
    # And the partial encoder went where it should: to the exact posterior, shift 0 and scale 1.
    assert isinstance(model.partial, ExactPartial)
    assert model.partial.shift.norm() < 0.3
    assert model.partial.log_scale.abs() < 0.15


def noisy_run(seed: int) -> tuple[Tensor, list[tuple[int, float]]]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.SiLU(), nn.Linear(8, 1))
    x = torch.randn(256, 4)
    y = x.prod(1, keepdim=True)

    def loss(_: Tensor) -> dict[str, Tensor]:
        rows = torch.randint(256, (32,))
        return {"square": (net(x[rows]) - y[rows]).square().mean()}

    def validate() -> float:
        return (net(x) - y).square().mean().item()

    report = train(net, loss, plan(50, weight_decay=0.01), validate=validate)
    return torch.cat([p.detach().flatten() for p in net.parameters()]), report.history


def test_a_seed_reproduces_a_run_bit_for_bit() -> None:
    (first, history), (again, same) = noisy_run(1), noisy_run(1)
    assert torch.equal(first, again)
    assert history == same
    assert not torch.equal(noisy_run(2)[0], first)


def test_whoever_watches_is_told_of_the_progress_up_to_its_end() -> None:
    point, told = Point(), []
    train(point, lambda _: point.distance(), plan(35), validate=lambda: 7.0, show=told.append)
    assert all(isinstance(progress, Progress) for progress in told)
    assert told[-1].fraction == 1.0
    assert told[-1].step == 35
    assert told[-1].validation == 7.0
    assert set(told[-1].losses) == {"value", "matrix"}
    assert told[-1].losses["value"] < told[0].losses["value"]
    assert [p.fraction for p in told] == sorted(p.fraction for p in told)


def test_with_slack_the_latest_weights_near_the_best_are_kept() -> None:
    point, scores, shown = Point(), iter([5.0, 3.0, 1.0, 1.4, math.nan, 1.6]), []

    def validate() -> float:
        shown.append(point.value.detach().clone())
        return next(scores)

    report = train(point, lambda _: point.distance(), plan(50, slack=0.125), validate=validate)
    assert torch.equal(point.value, shown[3])  # 1.4 gives back a tenth of what 1.0 gained over 5.0
    assert (report.best_step, report.best_validation) == (30, 1.4)


class Doubled(nn.Module):
    """A network that may be compiled."""

    tensors_only = True

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


def test_networks_are_compiled_for_batches_and_not_for_what_is_held_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths: list[int] = []

    def compiler(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        lengths.extend(len(each) for each in inputs if each.dim())
        return graph.forward

    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", partialmethod(compiled, backend=compiler))
    torch.compiler.reset()
    net = Doubled()
    batch, held_out = torch.ones(5), torch.ones(3)
    report = train(
        net,
        lambda _: {"loss": (net(batch) - 2.0).square().mean()},
        plan(40, compiled=True),
        validate=lambda: (net(held_out) - 2.0).square().mean().item(),
    )
    assert lengths == [5]
    assert report.best_validation < 0.5
    net(held_out)  # its own code again
    assert lengths == [5]
