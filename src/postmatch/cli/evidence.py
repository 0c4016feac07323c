"""What a report shows, as numbers: draws for the holes, and how hidden cells were told."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from postmatch.fitting import JUDGED_ROWS, held_out_cells, held_out_loss
from postmatch.models import TableModel
from postmatch.randomness import seeded
from postmatch.tables import Column
from postmatch.tabular import FitOptions, members_of
from postmatch.threads import one_thread

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MOST_ROWS = 2_000  # that draws are made for
NUM_DRAWS = 200
_MOST_NUMBERS = 1 << 22  # in one layer of one block of draws


@final
@dataclass(frozen=True, eq=False)
class ColumnEvidence:
    """Cells of one column whose true value is known, with what the model said of them.

    Args:
        column: Which.
        truth: ``(cells,)``, in the user's units or codes of levels.
        best: The best guess of each, the same.
        draws: ``(samples, cells)``, the same.
        simple: What knowing only the column says: its mean, or its most common level.
        spread: Standard deviation of the column; 0 for levels.
    """

    column: Column
    truth: Floats
    best: Floats
    draws: Floats
    simple: float
    spread: float

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
        low, high = np.quantile(self.draws, [0.05, 0.95], axis=0)
        return float(((low <= self.truth) & (self.truth <= high)).mean())

    def ranks(self, seed: int) -> Floats:
        """Return where the truth lies among the draws, in [0, 1]; ties are split at random.

        Uniform if, and only if, the distributions are right on average.
        """
        below, ties = (self.draws < self.truth).sum(0), (self.draws == self.truth).sum(0)
        chance = np.random.default_rng(seed).random(len(self.truth))
        ranks: Floats = (below + chance * (ties + 1)) / (len(self.draws) + 1)
        return ranks

    def confidence(self) -> tuple[Floats, Bools]:
        """Return the probability of each best level, and whether it was right."""
        return (self.draws == self.best).mean(0), self.best == self.truth

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
            "columns": {
                c.column.name: {
                    "cells": len(c.truth),
                    "measure": "rmse" if c.column.is_number else "error_rate",
                    "error": c.error,
                    "error_of_mean_or_mode": c.simple_error,
                    "covered": c.covered if c.column.is_number else None,
                }
                for c in self.columns
            },
        }


@one_thread()
@torch.inference_mode()
def judge(
    model: TableModel,
    x: Tensor,
    observed: Tensor,
    seed: int,
    num_draws: int = NUM_DRAWS,
    most_rows: int = MOST_ROWS,
) -> Evidence:
    """Hide cells with a known value, and compare what the model says with them."""
    hidden = held_out(model, x, observed)
    fresh = hidden is not None
    if hidden is None:
        hidden = held_out_cells(observed, FitOptions(), seed)
    rows, seen = _some(hidden.any(1).nonzero()[:, 0], most_rows, seed), observed & ~hidden
    guesses = best_guesses(model, x, seen, rows)
    drawn = draw_holes(model, x, seen, rows, num_draws, seed)
    found = []
    for index, column in enumerate(model.table.modelled):
        cells = hidden[rows, index]
        if cells.any():
            truth, best, draws = (part[..., cells, index] for part in (x[rows], guesses, drawn))
            known = in_units(column, x[observed[:, index], index])
            found.append(
                ColumnEvidence(
                    column,
                    in_units(column, truth),
                    in_units(column, best, answer=True),
                    in_units(column, draws, answer=True),
                    float(known.mean()) if column.is_number else _most_common(known),
                    float(known.std()) if column.is_number else 0.0,
                )
            )
    return Evidence(tuple(found), fresh)


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
    losses = [held_out_loss(member, *parts) for member in members_of(model.model)]
    same = math.isclose(-sum(losses) / len(losses), score, rel_tol=1e-3, abs_tol=1e-4)
    return hidden if same else None


@one_thread()
@torch.inference_mode()
def draw_holes(
    model: TableModel, x: Tensor, observed: Tensor, rows: Tensor, num_draws: int, seed: int
) -> Tensor:
    """Return completed rows, ``(samples, rows, columns)``."""
    drawn = []
    with seeded(seed):
        for part in blocks(model, len(rows), num_draws):
            here = rows[part]
            given = model.model.given(x[here].to(model.device), observed[here].to(model.device))
            drawn.append(given.sample(num_draws).cpu())
    return torch.cat(drawn, 1) if drawn else torch.zeros(num_draws, 0, x.shape[1])


@one_thread()
@torch.inference_mode()
def best_guesses(model: TableModel, x: Tensor, observed: Tensor, rows: Tensor) -> Tensor:
    """Return the best completed rows, ``(rows, columns)``."""
    best = torch.zeros(len(rows), x.shape[1])
    for part in blocks(model, len(rows), 64):
        here = rows[part]
        given = model.model.given(x[here].to(model.device), observed[here].to(model.device))
        best[part] = given.impute().cpu()
    return best


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


def blocks(model: TableModel, rows: int, num_draws: int) -> Iterator[slice]:
    """Yield parts of the rows, such that the draws of one part have a moderate size."""
    widest = max(model.config.width, 20 * len(model.table.modelled))
    step = max(1, _MOST_NUMBERS // (widest * num_draws))
    for start in range(0, rows, step):
        yield slice(start, start + step)


def _some(rows: Tensor, most: int, seed: int) -> Tensor:
    if len(rows) <= most:
        return rows
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most]
    return rows[chosen.sort().values]


def _most_common(codes: Any) -> float:
    return float(np.bincount(codes.astype(np.int64)).argmax())
