"""Models that have each not seen a part of a table's rows."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from postmatch.fitting import fit_matched
from postmatch.models import TableModel, learnable
from postmatch.randomness import seeded
from postmatch.tabular import plan_for, table_model
from postmatch.threads import one_thread
from postmatch.training.plan import Progress


@final
@dataclass(frozen=True, eq=False)
class Fold:
    """Some rows of a table, and a model that was fitted on the others.

    Args:
        model: It shares its table, and so the units of x, with the model of all rows.
        rows: The places of the rows that it has not seen, ``(rows,)``.
    """

    model: TableModel
    rows: Tensor


def cross_fitted(
    model: TableModel,
    data: Any,
    num_folds: int = 4,
    *,
    max_steps: int | None = None,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> list[Fold]:
    """Fit the model anew without each part of its rows, so that each is judged by a stranger.

    Args:
        model: What ``fit_table`` returned for these rows: its sizes and its table are shared.
        data: The rows that it was fitted on.
        num_folds: Into how many parts they are cut, at random.
        max_steps: Of each training; by default as many as the model took.
        seed: Of the cuts, and of each training.
        show: Told of the progress now and then.
    """
    x, there = (part.to(model.device) for part in learnable(model.table, data))
    if not 2 <= num_folds <= len(x):
        raise ValueError(f"num_folds must be from 2 to the {len(x)} rows of data, got {num_folds}")
    steps = model.facts["steps"] // model.config.num_members if max_steps is None else max_steps
    _, plan, options = plan_for(model.table.specs, len(x))
    plan = dataclasses.replace(plan, steps=steps)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    folds = []
    for i in range(num_folds):
        own = torch.zeros(len(x), dtype=torch.bool)
        own[order[i::num_folds]] = True
        others = ~own.to(x.device)
        with seeded(seed), one_thread():
            fresh = table_model(model.table.specs, model.config).to(x.device)
            tell = show and _part_of(show, i, num_folds)
            fit_matched(fresh, x[others], there[others], plan, options, seed=seed, show=tell)
        facts = {"rows": int(others.sum()), "steps": steps, "seed": seed}
        fitted = TableModel(model.table, fresh, model.config, facts)
        folds.append(Fold(fitted, own.nonzero()[:, 0]))
    return folds


def _part_of(
    show: Callable[[Progress], None], part: int, num_parts: int
) -> Callable[[Progress], None]:
    """Return what tells of one training among several that follow each other."""

    def tell(progress: Progress) -> None:
        show(dataclasses.replace(progress, fraction=(part + progress.fraction) / num_parts))

    return tell
