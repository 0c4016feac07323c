"""Trainings of two parts, one after the other, that share steps, time and checkpoints."""

import dataclasses
from collections.abc import Callable

from postmatch.training.checkpoints import Checkpoints
from postmatch.training.plan import Plan, Progress, Report


def parted(plan: Plan, first: float) -> tuple[Plan, Plan]:
    """Return plans for both parts, of which the first has this share of steps and time."""
    steps = max(1, round(first * plan.steps))
    shares = ((steps, first), (max(1, plan.steps - steps), 1.0 - first))
    early, late = (
        dataclasses.replace(plan, steps=count, max_seconds=share * plan.max_seconds)
        for count, share in shares
    )
    return early, late


def below(checkpoints: Checkpoints | None, name: str) -> Checkpoints | None:
    """Return where the states of one part go."""
    if checkpoints is None:
        return None
    return dataclasses.replace(checkpoints, folder=checkpoints.folder / name)


def between(
    start: float, end: float, show: Callable[[Progress], None] | None
) -> Callable[[Progress], None] | None:
    """Return what tells of one part as a part of all."""
    if show is None:
        return None

    def told(progress: Progress) -> None:
        fraction = start + (end - start) * progress.fraction
        show(dataclasses.replace(progress, fraction=fraction))

    return told


def joined(first: Report, second: Report) -> Report:
    """Return the report of the second part, with what adds up of both: steps, seconds, mishaps.

    Its best step and its history, too, are counted from the start of the first.
    """
    return dataclasses.replace(
        second,
        best_step=first.steps + second.best_step,
        history=[(first.steps + step, score) for step, score in second.history],
        steps=first.steps + second.steps,
        seconds=first.seconds + second.seconds,
        skipped=first.skipped + second.skipped,
        returns=first.returns + second.returns,
    )
