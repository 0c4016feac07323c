"""Trainings of two parts: what each is told, and what is told of both."""

import dataclasses
from pathlib import Path

import pytest
from torch.testing import assert_close

from postmatch.recipes.phases import below, between, joined, parted
from postmatch.training.checkpoints import Checkpoints
from postmatch.training.plan import Plan, Progress, Report

PLAN = Plan(
    40, learning_rate=0.1, orthogonal_rate=0.2, orthogonal="any", warmup=7, second_moment=0.9,
    validate_every=3, patience=5, slack=0.5, max_seconds=300.0, precision="bfloat16",
)  # fmt: skip


@pytest.mark.parametrize(
    ("first", "steps", "seconds"),
    [(0.25, (10, 30), (75.0, 225.0)), (0.5, (20, 20), (150.0, 150.0)), (0.9, (36, 4), (270.0, 30))],
)
def test_two_parts_share_steps_and_time_and_nothing_else(
    first: float, steps: tuple[int, int], seconds: tuple[float, float]
) -> None:
    parts = parted(PLAN, first)
    assert tuple(part.steps for part in parts) == steps
    assert_close([part.max_seconds for part in parts], [float(each) for each in seconds])
    for part in parts:
        assert dataclasses.replace(part, steps=40, max_seconds=300.0) == PLAN


def test_without_a_limit_of_time_neither_part_has_one() -> None:
    early, late = parted(Plan(10), 0.3)
    assert early.max_seconds == late.max_seconds == 0.0


@pytest.mark.parametrize(
    ("steps", "first", "expected"),
    [(10, 0.01, (1, 9)), (10, 0.99, (10, 1)), (1, 0.5, (1, 1)), (2, 0.3, (1, 1))],
)
def test_each_part_has_a_step_at_least(steps: int, first: float, expected: tuple[int, int]) -> None:
    early, late = parted(Plan(steps), first)
    assert (early.steps, late.steps) == expected


def test_states_of_a_part_go_to_a_folder_in_that_of_both(tmp_path: Path) -> None:
    both = Checkpoints(tmp_path / "both", "these images", every_seconds=7.0, keep=3)
    assert below(both, "early") == dataclasses.replace(both, folder=tmp_path / "both" / "early")
    assert below(None, "early") is None


def test_progress_of_a_part_is_told_as_that_of_both() -> None:
    told: list[Progress] = []
    show = between(0.25, 0.75, told.append)
    assert show is not None
    parts = [Progress(f, 3, 2.0, {"vae": 1.0}, 4.0, 2, 1) for f in (0.0, 0.5, 1.0)]
    for part in parts:
        show(part)
    assert [progress.fraction for progress in told] == [0.25, 0.5, 0.75]
    as_told = [
        dataclasses.replace(p, fraction=q.fraction) for p, q in zip(told, parts, strict=True)
    ]
    assert as_told == parts
    assert between(0.25, 0.75, None) is None


@pytest.mark.parametrize("start", [0.1, 0.3, 0.5, 0.65, 0.7])
def test_the_end_of_the_last_part_is_the_end_of_all(start: float) -> None:
    told: list[Progress] = []
    show = between(start, 1.0, told.append)
    assert show is not None
    show(Progress(1.0, 3, 2.0, {}, None))
    assert told[0].fraction == 1.0


def test_a_report_of_both_counts_all_steps_and_seconds_and_keeps_what_the_second_found() -> None:
    first = Report(30, 12.0, "steps", 20, 5.0, 3, 1, history=[(20, 5.0), (30, 6.0)])
    second = Report(10, 3.5, "time", 8, 1.0, 2, 0, history=[(8, 1.0)])
    assert joined(first, second) == Report(40, 15.5, "time", 38, 1.0, 5, 1, history=[(38, 1.0)])
