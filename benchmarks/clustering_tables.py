"""Cluster labelled tables from all columns and from half of them, ours and simpler ways.

Usage: POSTMATCH_DATA=... python benchmarks/clustering_tables.py --tables penguins --seeds 0

Every method is fitted to the rows as they are, told the number of classes and nothing else of the
labels; then each row's cluster is asked for from all of its cells, and from a random half of them.
Prints and writes one JSON line per table, method and seed.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.mixture import GaussianMixture

from holes import read_table
from postmatch import PosteriorMatchingClusterer
from postmatch.metrics import as_points, cluster_accuracy, matched_clusters
from postmatch.recipes.results import provenance

TABLES = {"penguins": "species", "mushroom": "x0", "yeast": "site"}
SEEDS, MASK_SEEDS = (0, 1, 2), (0, 1, 2, 3, 4)
FLOOR = 1e-3  # of a variance: indicators of rare levels have almost none

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Tell = Callable[[pd.DataFrame], Whole]


class Points:
    """Rows as points: numbers standardised, levels as indicators, what is hidden at its mean.

    Args:
        table: The rows that means and scales are those of.
        numbers: Names of its numeric columns.
    """

    def __init__(self, table: pd.DataFrame, numbers: list[str]) -> None:
        self.numbers = numbers
        self.levels = {c: sorted(table[c].dropna().unique()) for c in table if c not in numbers}
        self.like = self._parts(table)
        raw, seen = self._raw(table)
        self.mean = np.where(seen, raw, 0.0).sum(0) / np.maximum(1, seen.sum(0))

    def __call__(self, table: pd.DataFrame) -> tuple[Floats, NDArray[np.bool_]]:
        """Return points, and which of their coordinates are known."""
        raw, seen = self._raw(table)
        return np.where(seen, raw, self.mean), seen

    def _raw(self, table: pd.DataFrame) -> tuple[Floats, NDArray[np.bool_]]:
        width = [len(levels) for levels in self.levels.values()]
        there = table.notna()
        wide = [np.repeat(there[[c]], n, 1) for c, n in zip(self.levels, width, strict=True)]
        return as_points(*self._parts(table), self.like), np.hstack([there[self.numbers], *wide])

    def _parts(self, table: pd.DataFrame) -> tuple[Floats, Whole]:
        codes = [pd.Categorical(table[c], levels).codes for c, levels in self.levels.items()]
        together = np.stack(codes, 1) if codes else np.empty((len(table), 0))
        return table[self.numbers].to_numpy(float), together.astype(np.int64)


def kmeans(table: pd.DataFrame, numbers: list[str], count: int, seed: int) -> Tell:
    """Return k-means, which sees hidden cells at their mean."""
    points = Points(table, numbers)
    model = KMeans(count, n_init=10, random_state=seed).fit(points(table)[0])
    return lambda rows: model.predict(points(rows)[0])


def gaussian_mixture(table: pd.DataFrame, numbers: list[str], count: int, seed: int) -> Tell:
    """Return a mixture with full covariances, which sees hidden cells at their mean."""
    return _mixture("full", table, numbers, count, seed)


def diagonal_mixture(table: pd.DataFrame, numbers: list[str], count: int, seed: int) -> Tell:
    """Return a mixture with diagonal covariances, which sees hidden cells at their mean."""
    return _mixture("diag", table, numbers, count, seed)


def diagonal_mixture_exact(table: pd.DataFrame, numbers: list[str], count: int, seed: int) -> Tell:
    """Return the same mixture, but asked about the known cells alone, which is exact for it."""
    points = Points(table, numbers)
    model = _fitted("diag", points(table)[0], count, seed)
    scale = np.sqrt(model.covariances_)

    def tell(rows: pd.DataFrame) -> Whole:
        x, seen = points(rows)
        log_each = [norm.logpdf(x, m, s) for m, s in zip(model.means_, scale, strict=True)]
        log_joint = [(log * seen).sum(1) for log in log_each] + np.log(model.weights_)[:, None]
        return log_joint.argmax(0)

    return tell


def postmatch(table: pd.DataFrame, numbers: list[str], count: int, seed: int) -> Tell:
    """Return ours."""
    categories = [c for c in table if c not in numbers]
    model = PosteriorMatchingClusterer(count, categorical=categories, random_state=seed)
    return model.fit(table).predict


METHODS = (kmeans, gaussian_mixture, diagonal_mixture, diagonal_mixture_exact, postmatch)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--output", type=Path, default=Path("results/clustering-tables.jsonl"))
    arguments = parser.parse_args()
    if "POSTMATCH_DATA" not in os.environ:
        parser.error("POSTMATCH_DATA must name the folder that holds tabular/")
    about, lines = provenance(torch.device("cpu")), []
    for table in arguments.tables:
        for method in METHODS:
            for seed in arguments.seeds:
                told = {"table": table, "method": method.__name__, "seed": seed}
                lines.append(json.dumps(told | judged(table, method, seed) | about))
                print(lines[-1], flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("\n".join([*lines, ""]))
    return 0


def judged(name: str, method: Callable[..., Tell], seed: int) -> dict[str, Any]:
    """Return how well clusters are told, from all columns and from halves of them."""
    table, numbers, _ = read_table(name)
    labels, classes = pd.factorize(table[TABLES[name]])
    table = table.drop(columns=TABLES[name])
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # columns that say nothing
        tell = method(table, numbers, len(classes), seed)
    seconds = time.perf_counter() - start
    whole = tell(table)
    names = matched_clusters(whole, labels)  # from all columns, once
    halves = [_scores(tell(hidden(table, s)), labels, names, whole) for s in MASK_SEEDS]
    each = {key: [half[key] for half in halves] for key in halves[0]}
    return {
        "rows": len(table),
        "classes": len(classes),
        "all": _scores(whole, labels, names),
        "half": {key: float(np.mean(values)) for key, values in each.items()},
        "half_std": {key: float(np.std(values)) for key, values in each.items()},
        "mask_seeds": list(MASK_SEEDS),
        "fit_seconds": round(seconds, 2),
    }


def hidden(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return rows of which half of the cells, chosen at random in each, are hidden."""
    rank = np.random.default_rng(seed).random(table.shape).argsort(1).argsort(1)
    return table.where(rank >= table.shape[1] // 2)


def _scores(
    clusters: Whole, labels: Whole, names: Whole, whole: Whole | None = None
) -> dict[str, float]:
    """Return scores against labels, and how often the cluster is that of the whole row."""
    scores = {
        "accuracy": cluster_accuracy(clusters, labels, names),
        "nmi": float(normalized_mutual_info_score(labels, clusters)),
        "ari": float(adjusted_rand_score(labels, clusters)),
    }
    return scores if whole is None else scores | {"agreement": float(np.mean(clusters == whole))}


def _mixture(kind: str, table: pd.DataFrame, numbers: list[str], count: int, seed: int) -> Tell:
    points = Points(table, numbers)
    model = _fitted(kind, points(table)[0], count, seed)
    return lambda rows: model.predict(points(rows)[0])


def _fitted(kind: str, points: Floats, count: int, seed: int) -> GaussianMixture:
    mixture = GaussianMixture(
        count, covariance_type=kind, n_init=10, max_iter=300, reg_covar=FLOOR, random_state=seed
    )
    return mixture.fit(points)


if __name__ == "__main__":
    sys.exit(main())
