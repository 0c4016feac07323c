"""The scores of one answer to one table with holes."""

import numpy as np
import pandas as pd
from scipy.stats import t

from holes import Holes
from peers import Answer
from postmatch.metrics import (
    accuracy,
    as_points,
    categorical_crps,
    coverage,
    crps,
    energy_distance,
    interval_width,
    nrmse,
)

LEVELS = (0.5, 0.9)
QUANTILES = (0.05, 0.25, 0.75, 0.95)


def score(answer: Answer, holes: Holes) -> dict[str, float]:
    """Return the metrics of an answer; those that do not apply are left out."""
    check(answer, holes)
    numbers, categories, hidden = holes.numbers, holes.categories, holes.hidden
    metrics = {"energy_distance": _energy(answer, holes)}
    crps_numbers = [_number_crps(answer, holes, c) for c in numbers if hidden[c].any()]
    crps_categories = [_category_crps(answer, holes, c) for c in categories if hidden[c].any()]
    metrics["crps"] = float(np.mean(crps_numbers + crps_categories))
    if numbers:
        judged = (f[numbers].to_numpy() for f in (answer.point, holes.truth, hidden))
        metrics["nrmse"] = nrmse(*judged)
        metrics["crps_numbers"] = float(np.mean(crps_numbers))
    if categories:
        judged = (f[categories].to_numpy() for f in (answer.point, holes.truth, hidden))
        metrics["accuracy"] = accuracy(*judged)
        metrics["crps_categories"] = float(np.mean(crps_categories))
    if numbers and (answer.quantiles is not None or len(answer.draws) > 1):
        metrics |= _intervals(answer, holes)
    return metrics


def check(answer: Answer, holes: Holes) -> None:
    """Refuse an answer that leaves a hole or touches what a row showed."""
    shown = holes.test.notna().to_numpy()
    for frame in (answer.point, *answer.draws):
        if frame[holes.truth.columns].isna().to_numpy().any():
            raise ValueError("a completed table still has holes")
        same = frame[holes.truth.columns].to_numpy() == holes.test.to_numpy()
        if not same[shown].all():
            raise ValueError("a completed table changed observed cells")


def _number_crps(answer: Answer, holes: Holes, column: str) -> float:
    rows = holes.hidden[column].to_numpy()
    draws = np.array([draw[column].to_numpy(float)[rows] for draw in answer.draws])
    truth = holes.truth[column].to_numpy(float)
    scale = np.nanstd(truth)
    return crps(draws, truth[rows]) / (scale if scale > 0 else 1.0)


def _category_crps(answer: Answer, holes: Holes, column: str) -> float:
    rows = holes.hidden[column].to_numpy()
    draws = np.array([draw[column].to_numpy(object)[rows] for draw in answer.draws])
    return categorical_crps(draws, holes.truth[column].to_numpy(object)[rows])


def _energy(answer: Answer, holes: Holes) -> float:
    """Return the mean energy distance between a completed table and the true one.

    Cells nobody knows are put at the origin in both.
    """
    levels = {c: pd.unique(holes.truth[c].dropna()) for c in holes.categories}
    known = holes.truth.notna()

    def parts(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        numbers = frame[holes.numbers].where(known[holes.numbers]).to_numpy(float)
        codes = np.empty((len(frame), len(holes.categories)), int)
        for i, c in enumerate(holes.categories):
            # A category that the truth never shows is one more level, not an unknown cell.
            code = pd.Categorical(frame[c], categories=levels[c]).codes.astype(int)
            code[code < 0] = len(levels[c])
            codes[:, i] = np.where(known[c], code, -1)
        return numbers, codes

    truth = parts(holes.truth)
    widest = np.append(truth[1], [[len(levels[c]) for c in holes.categories]], axis=0)

    def points(frame: pd.DataFrame) -> np.ndarray:
        numbers, codes = parts(frame)
        # One extra row gives every table the same coordinates; it is cut off again.
        codes = np.append(codes, widest[-1:], axis=0)
        numbers = np.append(numbers, np.zeros((1, numbers.shape[1])), axis=0)
        return as_points(numbers, codes, truth)[:-1]

    true = points(holes.truth)
    return float(np.mean([energy_distance(points(d), true, paired=True) for d in answer.draws]))


def _intervals(answer: Answer, holes: Holes) -> dict[str, float]:
    """Return coverage and width, in standard deviations, over all hidden numeric cells."""
    metrics = {}
    for level in LEVELS:
        lower, upper = _ends(answer, holes, level)
        covered, widths = [], []
        for c in holes.numbers:
            rows, truth = holes.hidden[c].to_numpy(), holes.truth[c].to_numpy(float)
            if not rows.any():
                continue
            ends = lower[c].to_numpy(float)[rows], upper[c].to_numpy(float)[rows]
            scale = np.nanstd(truth)
            covered.append(coverage(*ends, truth[rows]) * rows.sum())
            widths.append(interval_width(*ends) / (scale if scale > 0 else 1.0))
        cells = holes.hidden[holes.numbers].to_numpy().sum()
        metrics[f"coverage_{level * 100:.0f}"] = float(np.sum(covered) / cells)
        metrics[f"width_{level * 100:.0f}"] = float(np.mean(widths))
    return metrics


def _ends(answer: Answer, holes: Holes, level: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return interval ends: quantiles of the method, or Student's prediction interval of draws.

    A fifth and a tenth of five draws are no use as quantiles; mean and spread are.
    """
    if answer.quantiles is not None:
        low, high = (1 - level) / 2, (1 + level) / 2
        return answer.quantiles[round(low, 2)], answer.quantiles[round(high, 2)]
    draws = np.array([draw[holes.numbers].to_numpy(float) for draw in answer.draws])
    m = len(draws)
    margin = t.ppf((1 + level) / 2, m - 1) * draws.std(0, ddof=1) * np.sqrt(1 + 1 / m)
    middle = draws.mean(0)
    return tuple(pd.DataFrame(middle + s * margin, columns=holes.numbers) for s in (-1, 1))
