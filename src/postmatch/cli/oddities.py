"""Rows that a model finds unlikely, and which of their cells make them so."""

import math
import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from postmatch.cli.wording import written
from postmatch.models import TableModel

NORMAL_WIDTH = 3.29  # of the central 90 % of a normal distribution, in standard deviations
ODD = 4.5  # nats below the best value, as three standard deviations are


@final
@dataclass(frozen=True)
class Oddity:
    """A row, counted from 1, its log-likelihood, and its oddest cells in words."""

    row: int
    score: float
    why: str


def oddities(model: TableModel, data: Any, most: int, seed: int) -> list[Oddity]:
    """Return the rows with the lowest log-likelihood, worst first."""
    worst = model.unlikely(data, most, seed=seed)
    if not worst:
        return []
    rows = data.take([row for row, _ in worst])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cells that cannot be used, scoring told already
        reasons = _reasons(model, rows, seed)
    return [
        Oddity(row + 1, score, _words(found))
        for (row, score), found in zip(worst, reasons, strict=True)
    ]


def _reasons(model: TableModel, rows: Any, seed: int) -> list[list[tuple[float, str]]]:
    """Return, for each row, how odd each of its cells is, and why in words."""
    x, observed = model.table.encode(rows)
    reasons: list[list[tuple[float, str]]] = [[] for _ in range(rows.num_rows)]
    for index, column in enumerate(model.table.modelled):
        if [c.name for c in model.table.modelled].count(column.name) > 1:
            continue
        said = model.predict(rows, column.name, seed=seed)
        cells = np.asarray(column.decode(x[:, index].double().numpy(), clip=False))
        low, high = said.quantiles([0.05, 0.95]) if column.is_number else (None, None)
        for place in np.flatnonzero(observed[:, index].numpy()).tolist():
            if low is not None and high is not None:
                middle, width = (low[place] + high[place]) / 2, high[place] - low[place]
                far = (cells[place] - middle) / max(width / NORMAL_WIDTH, column.unit, 1e-12)
                usual = f"{written(column, low[place])} to {written(column, high[place])}"
                text = f"{column.name} {written(column, cells[place])}, not {usual}"
                reasons[place].append((far**2 / 2, text))
            elif said.probabilities is not None:
                chances = said.probabilities[place]
                chance = float(chances[int(x[place, index])])
                surprise = math.log(max(float(chances.max()), 1e-12) / max(chance, 1e-12))
                best = written(column, int(chances.argmax()))
                text = f"{column.name} {cells[place]}, not {best}"
                reasons[place].append((surprise, text))
    return reasons


def _words(reasons: list[tuple[float, str]]) -> str:
    odd = [text for surprise, text in sorted(reasons, reverse=True) if surprise >= ODD]
    return "; ".join(odd[:2]) or "the combination, no single cell"
