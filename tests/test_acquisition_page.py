"""The table of what choices are worth: differences of the same seeds, the better way up."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from render_acquisition import table


def line(way: str, seed: int, *curve: float, measure: str = "accuracy") -> dict[str, Any]:
    names = {"table": "yeast", "start": 1, "measure": measure}
    return names | {"way": way, "seed": seed, "curve": [0.0, *curve]}


def lines(measure: str = "accuracy") -> list[dict[str, Any]]:
    """Return two seeds, in another order for each way, in which the second is easier."""
    found = [
        line("target gain", 7, 0.5, 0.6, measure=measure),
        line("target gain", 3, 0.7, 0.9, measure=measure),
    ]
    for way in ("fixed", "random"):
        found.append(line(way, 3, 0.68, 0.9, measure=measure))
        found.append(line(way, 7, 0.46, 0.6, measure=measure))
    return found


def test_scores_stand_with_what_they_are_ahead_by_and_its_standard_error() -> None:
    head, _, score, fixed, _ = table(lines())
    assert head == "| table | known |  | 1 | 2 |"
    assert score == "| yeast, accuracy | one column | score | 0.600 | 0.750 |"
    # Differences of 2 and 4 points: their deviation is the root of 2, and half of that is an error.
    assert fixed == "|  |  | ahead of the fixed order | +3.0 ± 1.0 | +0.0 ± 0.0 |"


def test_a_smaller_error_is_ahead() -> None:
    _, _, _, fixed, _ = table(lines("rmse"))
    assert fixed.startswith("|  |  | ahead of the fixed order | -3.0 ± 1.0 |")


def test_ways_without_the_same_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="yeast: all ways of choosing must have the same seeds"):
        table(lines()[:-1])
