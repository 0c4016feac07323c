"""Tables with holes whose content is known: what every method of the benchmark is given."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd

TABLES = (
    "abalone",
    "adult",
    "bike",
    "breast_cancer",
    "concrete",
    "german_credit",
    "mushroom",
    "parkinsons",
    "phoneme",
    "protein",
    "wine_white",
    "yeast",
)
FIRST_ROWS = {"adult": 8000, "bike": 8000, "protein": 8000}
NOT_AT_RANDOM = ("abalone", "adult", "concrete", "wine_white")
MECHANISMS = ("mcar", "mar", "mnar")
HIDDEN_SHARE, TEST_SHARE = 0.3, 0.3


@dataclass(frozen=True)
class Holes:
    """A table cut into training and test rows, with cells hidden in both."""

    train: pd.DataFrame
    """Training rows as a method sees them: floats and strings, NaN and None where hidden."""
    test: pd.DataFrame
    truth: pd.DataFrame
    """The test rows before cells were hidden; the table's own gaps are still gaps."""
    hidden: pd.DataFrame
    """bool, like ``truth``: cells hidden here whose content is known. These are judged."""
    numbers: list[str]
    categories: list[str]


def make_holes(name: str, seed: int, mechanism: str) -> Holes:
    """Return a table with 30 % of its cells hidden and 30 % of its rows kept for the test."""
    table, numbers, categories = read_table(name)
    generator = np.random.default_rng([crc32(name.encode()), seed, MECHANISMS.index(mechanism)])
    known = table.notna().to_numpy()
    hidden = _choose(table, numbers, mechanism, generator) & known
    seen = table.where(~hidden, None)
    seen[numbers] = seen[numbers].astype(float)
    order = generator.permutation(len(table))
    cut = round(len(table) * TEST_SHARE)
    test, train = np.sort(order[:cut]), np.sort(order[cut:])
    return Holes(
        train=seen.iloc[train].reset_index(drop=True),
        test=seen.iloc[test].reset_index(drop=True),
        truth=table.iloc[test].reset_index(drop=True),
        hidden=pd.DataFrame(hidden[test], columns=table.columns),
        numbers=numbers,
        categories=categories,
    )


def read_table(
    name: str, most_rows: int | None = None
) -> tuple[pd.DataFrame, list[str], list[str]]:
    """Return a table and the names of its numeric columns and of its categorical ones.

    Numeric and integer columns come as floats; boolean, categorical and ordered ones as strings.
    """
    folder = Path(os.environ["POSTMATCH_DATA"]) / "tabular"
    kinds = json.loads((folder / "tables.json").read_text())[name]["columns"]
    numbers = [c for c, kind in kinds.items() if kind in ("numeric", "integer")]
    categories = [c for c in kinds if c not in numbers]
    table = pd.read_csv(
        folder / f"{name}.csv.gz",
        nrows=most_rows or FIRST_ROWS.get(name),
        dtype=dict.fromkeys(categories, str) | dict.fromkeys(numbers, float),
        keep_default_na=False,
        na_values=[""],
    )[list(kinds)]
    # Plain objects: a string column with None for a hole, as read by any version of pandas.
    table[categories] = table[categories].astype(object).where(table[categories].notna(), None)
    return table, numbers, categories


def _choose(
    table: pd.DataFrame, numbers: list[str], mechanism: str, generator: np.random.Generator
) -> np.ndarray:
    """Choose cells to hide: ``(rows, columns)``, True is hidden.

    mcar: every cell with the same probability.
    mar: three columns in ten keep everything; the others hide cells with a probability that is
        logistic in a random direction of those, as in Muzellec et al. (ICML 2020).
    mnar: every column hides cells with a probability that is logistic in their own value.
    """
    rows, columns = table.shape
    uniform = generator.uniform(size=table.shape)
    if mechanism == "mcar":
        return uniform < HIDDEN_SHARE
    values = np.column_stack([_value(table[c], c in numbers, generator) for c in table])
    if mechanism == "mnar":
        logits = values * generator.choice([-1.0, 1.0], columns)
        return uniform < _probability(logits, HIDDEN_SHARE)
    kept = generator.permutation(columns)[: max(1, round(0.3 * columns))]
    others = np.setdiff1d(np.arange(columns), kept)
    logits = values[:, kept] @ generator.normal(size=(len(kept), len(others)))
    hidden = np.zeros((rows, columns), bool)
    share = HIDDEN_SHARE * columns / len(others)  # of these columns, to be 30 % of all cells
    hidden[:, others] = uniform[:, others] < _probability(logits / logits.std(0), share)
    return hidden


def _value(column: pd.Series, is_number: bool, generator: np.random.Generator) -> np.ndarray:
    """Return a standardised value per cell: a random one for each category, zero for a gap."""
    if is_number:
        value = column.to_numpy(float)
    else:
        codes, levels = pd.factorize(column)
        value = np.append(generator.normal(size=len(levels)), np.nan)[codes]
    deviation = np.nanstd(value)
    return np.nan_to_num((value - np.nanmean(value)) / (deviation if deviation > 0 else 1.0))


def _probability(logits: np.ndarray, share: float) -> np.ndarray:
    """Return the logistic function of each column, shifted so that its mean is ``share``."""
    low, high = np.full(logits.shape[1], -50.0), np.full(logits.shape[1], 50.0)
    for _ in range(60):
        middle = (low + high) / 2
        too_many = (1 / (1 + np.exp(-(logits + middle)))).mean(0) > share
        low, high = np.where(too_many, low, middle), np.where(too_many, middle, high)
    return 1 / (1 + np.exp(-(logits + low)))
