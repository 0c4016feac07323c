"""Print the table of docs/acquisition.md: what each row's own choices are worth, by target.

Usage: python benchmarks/render_acquisition.py results/acquisition-tables.jsonl

Scores are means over seeds. What they are ahead by is the mean over seeds of differences between
ways of choosing, the same rows and the same start, with its standard error: points of accuracy, or
hundredths of a standard deviation of the target.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

OWN, OTHERS = "target gain", {"fixed": "the fixed order", "random": "random orders"}
KNOWN = ("nothing", "one column", "two columns")
Curves = dict[tuple[str, int], dict[str, dict[int, list[float]]]]  # by table and start, way, seed


def main() -> int:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="what acquisition_tables.py wrote")
    lines = [line for path in parser.parse_args().results for line in path.read_text().splitlines()]
    print("\n".join(table([json.loads(line) for line in lines if line])))
    return 0


def table(results: Iterable[dict[str, Any]]) -> list[str]:
    """Return the lines of a table in Markdown.

    Raises:
        ValueError: If a way of choosing lacks a seed that another has.
    """
    measures: dict[str, str] = {}
    curves: Curves = defaultdict(lambda: defaultdict(dict))
    for each in results:
        measures[each["table"]] = each["measure"]
        curves[each["table"], each["start"]][each["way"]][each["seed"]] = each["curve"][1:]
    steps = range(1, 1 + max(len(c) for ways in curves.values() for c in ways[OWN].values()))
    lines = [_row("table", "known", "", *map(str, steps)), "|---" * (3 + len(steps)) + "|"]
    named = ""
    for (name, start), ways in curves.items():
        title = "" if name == named else f"{name}, {measures[name]}"
        named = name
        own = _by_seed(ways[OWN], ways[OWN], name)
        lines.append(_row(title, KNOWN[start], "score", *(f"{mean:.3f}" for mean in own.mean(0))))
        for way, called in OTHERS.items():
            other = _by_seed(ways[way], ways[OWN], name)
            sign = -100.0 if measures[name] == "rmse" else 100.0
            cells = [_with_error(ahead) for ahead in (sign * (own - other)).T]
            lines.append(_row("", "", f"ahead of {called}", *cells))
    return lines


def _by_seed(curves: dict[int, list[float]], like: dict[int, list[float]], name: str) -> np.ndarray:
    if curves.keys() != like.keys():
        raise ValueError(f"{name}: all ways of choosing must have the same seeds")
    return np.array([curves[seed] for seed in sorted(like)])


def _with_error(values: np.ndarray) -> str:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{values.mean() + 0.0:+.1f} ± {error:.1f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
