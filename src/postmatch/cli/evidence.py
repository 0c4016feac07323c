"""What a report shows, as numbers: draws for the holes, and how hidden cells were told."""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from postmatch.cli.wording import labelled
from postmatch.fitting import JUDGED_ROWS, held_out_cells, held_out_loss
from postmatch.metrics import coverage
from postmatch.models import TableModel
from postmatch.tables import Column
from postmatch.tabular import FitOptions
from postmatch.threads import one_thread

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MOST_ROWS = 2_000  # that draws are made for
MOST_JUDGED = 600  # rows that a model is judged by, in seconds
NUM_DRAWS = 200
ENDS = (0.05, 0.95)  # of a 90 % interval


@final
@dataclass(frozen=True, eq=False)
class ColumnEvidence:
    """Cells of one column whose true value is known, with what the model said of them.

    Args:
        column: Which.
        label: Its name, or another if several columns have that name.
        truth: ``(cells,)``, in the user's units or codes of levels, as are all but ``sure``.
        best: What would have been filled in.
        sure: The probability of that, of levels.
        ends: Of the 90 % intervals of numbers, ``(2, cells)``.
        draws: ``(samples, cells)``.
        simple: What knowing only the column says: its mean, or its most common level.
    """

    column: Column
    label: str
    truth: Floats
    best: Floats
    sure: Floats
    ends: Floats
    draws: Floats
    simple: float

    @property
    def error(self) -> float:
        """Root mean squared error, or the share of wrong levels."""
        return self._error(self.best)

    @property
    def simple_error(self) -> float:
        """The same for the simple answer."""
        return self._error(np.full_like(self.truth, self.simple))

    @property
    def covered(self) -> float:
        """The share of truth inside the 90 % interval."""
        low, high = self.ends
        return coverage(low, high, self.truth)

    def ranks(self, seed: int) -> Floats:
        """Return where the truth lies among the draws, in [0, 1]; ties are split at random.

        Uniform if, and only if, the distributions are right on average.
        """
        below, ties = (self.draws < self.truth).sum(0), (self.draws == self.truth).sum(0)
        chance = np.random.default_rng(seed).random(len(self.truth))
        ranks: Floats = (below + chance * (ties + 1)) / (len(self.draws) + 1)
        return ranks

    def to_json(self) -> dict[str, Any]:
        """Return the scores, as plain JSON."""
        number = self.column.is_number
        return {
            "cells": len(self.truth),
            "measure": "rmse" if number else "error_rate",
            "unit": "days" if self.column.kind == "date" else None,
            "error": self.error,
            "error_of_mean_or_mode": self.simple_error,
            "covered": self.covered if number else None,
        }

    def _error(self, guess: Floats) -> float:
        if self.column.is_number:
            return float(np.sqrt(np.mean((guess - self.truth) ** 2)))
        return float((guess != self.truth).mean())


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """How well cells with a known value were told.

    Args:
        columns: Those with at least one such cell.
        fresh: Whether the model was never trained on these cells.
    """

    columns: tuple[ColumnEvidence, ...]
    fresh: bool

    @property
    def cells(self) -> int:
        """How many cells were judged."""
        return sum(len(column.truth) for column in self.columns)

    @property
    def covered(self) -> float:
        """The share of numbers inside their 90 % intervals; NaN without numbers."""
        numbers = [c for c in self.columns if c.column.is_number]
        cells = sum(len(c.truth) for c in numbers)
        return sum(c.covered * len(c.truth) for c in numbers) / cells if cells else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the scores, for the facts of a model."""
        return {
            "cells": self.cells,
            "covered": self.covered if math.isfinite(self.covered) else None,
            "columns": {column.label: column.to_json() for column in self.columns},
        }


@final
@dataclass(frozen=True, eq=False)
class Answers:
    """What the model says of the holes of a few rows.

    Args:
        best: What is filled in, ``(rows, columns)`` of x.
        quantiles: At 5, 25, 75 and 95 %, ``(4, rows, columns)`` of x.
        chances: Of a column's levels by its place in x, ``(rows, levels)``.
    """

    best: Tensor
    quantiles: Tensor
    chances: dict[int, Tensor]


def answers(model: TableModel, x: Tensor, observed: Tensor, seed: int) -> Answers:
    """Return what the model says of some rows, the same that ``impute`` fills in and lists."""
    levels = [i for i, spec in enumerate(model.table.specs) if spec.kind != "number"]
    return Answers(
        model.rows.points(x, observed, seed=seed),
        model.rows.quantiles(x, observed, (0.05, 0.25, 0.75, 0.95), seed=seed),
        {i: model.rows.chances(x, observed, i, seed=seed) for i in levels},
    )


def judge(
    model: TableModel, x: Tensor, observed: Tensor, seed: int, num_draws: int = NUM_DRAWS
) -> Evidence:
    """Hide cells with a known value, and compare what the model says with them."""
    hidden = held_out(model, x, observed)
    fresh = hidden is not None
    if hidden is None:
        hidden = held_out_cells(observed, FitOptions(), seed)
    rows = _some(hidden.any(1).nonzero()[:, 0], MOST_JUDGED, seed)
    asked = x[rows], (observed & ~hidden)[rows]
    best = model.rows.points(*asked, seed=seed)
    sure = model.rows.probabilities(*asked, best, seed=seed)
    ends = model.rows.quantiles(*asked, ENDS, seed=seed)
    draws = model.rows.draws(*asked, num_draws, seed)
    found = []
    for index, (column, label) in enumerate(labelled(model.table)):
        cells = hidden[rows, index]
        if cells.any():
            known = in_units(column, x[observed[:, index], index])
            answers = (
                in_units(column, part[..., cells, index], answer=True)
                for part in (best, ends, draws)
            )
            said = dict(zip(("best", "ends", "draws"), answers, strict=True))
            found.append(
                ColumnEvidence(
                    column,
                    label,
                    truth=in_units(column, x[rows][cells, index]),
                    sure=sure[cells, index].double().numpy(),
                    simple=float(known.mean()) if column.is_number else _most_common(known),
                    **said,
                )
            )
    return Evidence(tuple(found), fresh)


@one_thread()
@torch.inference_mode()
def held_out(model: TableModel, x: Tensor, observed: Tensor) -> Tensor | None:
    """Return the cells the model was never trained on, if they can be told.

    Training holds cells out, by a seed, and keeps how well they were told. Cells that give that
    very score again are the same; with another table or on another device they do not.
    """
    score, rows, seed = (model.facts.get(key) for key in ("held_out_log_prob", "rows", "seed"))
    if score is None or rows != len(x) or not isinstance(seed, int):
        return None
    hidden = held_out_cells(observed.to(model.device), FitOptions(), seed).cpu()
    judged = hidden.any(1).nonzero()[:, 0][:JUDGED_ROWS]
    if not len(judged):
        return None
    parts = [part[judged].to(model.device) for part in (x, observed & ~hidden, hidden)]
    loss = held_out_loss(model.model, *parts)
    same = math.isclose(-loss, score, rel_tol=1e-3, abs_tol=1e-4)
    return hidden if same else None


def telling_rows(observed: Tensor, rows: Tensor, most: int) -> Tensor:
    """Return rows whose holes are in different columns, and not too many of them, in order."""
    hidden = ~observed[rows]
    shown = torch.zeros(hidden.shape[1])
    chosen: list[int] = []
    for _ in range(min(most, len(rows))):
        # A hole counts for less the more often its column is shown; above four holes a row tires.
        worth = (hidden / (1 + 3 * shown)).sum(1) - (hidden.sum(1) - 4).clamp(min=0).double()
        worth[chosen] = -torch.inf
        best = int(worth.argmax())
        chosen.append(best)
        shown += hidden[best]
    return rows[sorted(chosen)]


def rows_with_holes(observed: Tensor, seed: int, most: int = MOST_ROWS) -> Tensor:
    """Return rows that have a hole, at random where there are too many."""
    return _some((~observed).any(1).nonzero()[:, 0], most, seed)


def in_units(column: Column, x: Tensor, *, answer: bool = False) -> Floats:
    """Return one column of x in the user's units, levels as their codes.

    Args:
        column: Which.
        x: Any shape.
        answer: Whether the model said it, rather than the table: answers keep to the range seen.
    """
    values: Floats = x.double().numpy()
    if column.is_number:
        values = column.decode(values, clip=answer)
    return values


def _some(rows: Tensor, most: int, seed: int) -> Tensor:
    if len(rows) <= most:
        return rows
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most]
    return rows[chosen.sort().values]


def _most_common(codes: Any) -> float:
    return float(np.bincount(codes.astype(np.int64)).argmax())
