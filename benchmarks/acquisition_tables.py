"""Predict a column of labelled tables after a few measurements, chosen in several ways.

Usage: POSTMATCH_DATA=... python benchmarks/acquisition_tables.py --tables yeast --seeds 31

Of the rows, 70 % are for the model and for the ways of choosing. A model knows its own rows too
well to tell from them what is worth measuring, so it is fitted three times more, each time without
a third of them, and network and fixed order learn from what these models make of rows that they
have not seen. Of the others everything is hidden, or everything but one or two random columns; rows
of small tables start with up to four such choices, one after another. After each of five
measurements the target is predicted by the model's own p(y | x_o), and what differs is what was
measured; cells that a row lacks cannot be. Where nothing is known all rows are alike, so that the
first choice cannot be better than the best fixed one. Prints and writes one JSON line per table,
seed, start and way of choosing: accuracy and nats that are missing, or the error of numbers.
"""

import argparse
import json
import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from holes import read_table
from postmatch import TableModel, TableModelConfig, fit_table, load, save
from postmatch.cross_fitting import Fold, cross_fitted
from postmatch.recipes.results import provenance
from postmatch.table_acquiring import TableAcquirer, table_acquirer

TABLES = {
    "yeast": "site",
    "parkinsons": "x20",
    "adult": "income",
    "concrete": "x8",
    "german_credit": "x20",
    "wine_red": "x11",
    "bike": "x17",
    "protein": "x9",
}
LEFT_OUT = {"bike": ("x15", "x16")}  # which add up to the target
MODEL_STEPS = {"concrete": 4_000, "german_credit": 3_000}
DEFAULT_STEPS = 1_500
SEEDS, STEPS, TEST_SHARE, FOLDS = (31, 32, 33, 34, 35), 5, 0.3, 3
STARTS, MOST_COPIES = (0, 1, 2), 4  # columns that are known of each row, chosen at random
NETWORK_STEPS = 1_500
MOST_ROWS, TEST_ROWS, ORDER_ROWS, ORDER_DRAWS = 20_000, 4_000, 1_000, 16
WAYS = ("random", "fixed", "target gain")


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--models", type=Path, help="a folder to keep fitted models in")
    parser.add_argument("--output", type=Path, default=Path("results/acquisition-tables.jsonl"))
    arguments = parser.parse_args()
    if "POSTMATCH_DATA" not in os.environ:
        parser.error("POSTMATCH_DATA must name the folder that holds tabular/")
    about, lines = provenance(torch.device("cpu")), []
    for table in arguments.tables:
        for seed in arguments.seeds:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # levels that only the test rows have
                told = judged(table, seed, arguments.models)
            for each in told:
                lines.append(json.dumps({"table": table, "seed": seed} | each | about))
                print(lines[-1], flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("\n".join([*lines, ""]))
    return 0


def judged(name: str, seed: int, models: Path | None) -> list[dict[str, Any]]:
    """Return how well the target is told after each measurement, for each way of choosing."""
    table, numbers, categories = read_table(name, MOST_ROWS)
    table = table.drop(columns=list(LEFT_OUT.get(name, ())))
    order = np.random.default_rng([crc32(name.encode()), seed]).permutation(len(table))
    cut = round(TEST_SHARE * len(table))
    train = table.iloc[np.sort(order[cut:])].reset_index(drop=True)
    test = table.iloc[order[:cut][:TEST_ROWS]].reset_index(drop=True)
    kinds = {"numeric": numbers, "categorical": categories}
    columns = {kind: [c for c in names if c in table] for kind, names in kinds.items()}
    folder = models and models / f"{name}-{seed}"
    steps, began = MODEL_STEPS.get(name, DEFAULT_STEPS), time.perf_counter()
    model = _fitted(train, columns, steps, seed, folder and folder / "model")
    folds = _folds(model, train, seed, folder)
    sampled = table_acquirer(model, target=TABLES[name], seed=seed)
    fitted = time.perf_counter()
    most = min(1.0, (STEPS + max(STARTS)) / len(model.table.modelled))
    gains = sampled.fit(train, folds=folds, most_known=most, steps=NETWORK_STEPS, seed=seed)
    learned = time.perf_counter()
    others = _some_rows(folds, train, _place(sampled), seed)
    x, there = model.table.encode(test)
    kept = there[:, _place(sampled)]  # only rows whose target is known can be judged
    once, lines = Rows(x[kept], there[kept], _place(sampled)), []
    number = model.table.modelled[once.place].is_number
    for start in STARTS:
        rows = _copied(once) if start else once  # which all start alike from nothing
        known = _some(rows, start, seed)
        masks = {
            "random": _in_random_order(rows, known, seed),
            "fixed": _in_fixed_order(others, rows, known),
            "target gain": _chosen(gains, rows, known),
        }
        for way in WAYS:
            curve = [_score(model, rows, each) for each in masks[way]]
            lines.append({"start": start, "way": way, "curve": curve})
            if not number:
                lost = [_loss(model, rows, each) for each in masks[way]]
                lines[-1]["nats"] = lost
    about = {
        "target": TABLES[name],
        "measure": "rmse" if number else "accuracy",
        "all_known": _score(model, once, once.there),
        "train_rows": len(train),
        "choice_rows": len(train),
        "folds": len(folds),
        "rows": len(once.x),
        "model_seconds": round(fitted - began, 1),
        "network_seconds": round(learned - fitted, 1),
    }
    return [line | about for line in lines]


@dataclass(frozen=True)
class Rows:
    """Encoded rows, what they hold, and the place of the target."""

    x: Tensor
    there: Tensor
    place: int


def _copied(rows: Rows) -> Rows:
    copies = max(1, min(MOST_COPIES, TEST_ROWS // len(rows.x)))
    return Rows(rows.x.repeat(copies, 1), rows.there.repeat(copies, 1), rows.place)


def _fitted(
    train: Any, columns: dict[str, list[str]], steps: int, seed: int, folder: Path | None
) -> TableModel:
    """Return a model of moderate size: the benchmark compares choices, all by the same model."""
    if folder is not None and folder.is_dir():
        return load(folder, device="cpu")
    size = min(16, sum(len(names) for names in columns.values()) + 2)
    config = TableModelConfig(latent_size=size, mask_blocks=1, latent_components=4)
    model = fit_table(train, **columns, config=config, max_steps=steps, seed=seed, device="cpu")
    if folder is not None:
        save(model, folder)
    return model


def _folds(model: TableModel, train: Any, seed: int, folder: Path | None) -> list[Fold]:
    """Return models that have each not seen a part of the rows."""
    if folder is not None and (folder / "rows.npz").is_file():
        rows = np.load(folder / "rows.npz")
        return [Fold(load(folder / k, device="cpu"), torch.tensor(rows[k])) for k in rows.files]
    folds = cross_fitted(model, train, FOLDS, seed=seed)
    if folder is not None:
        names = [f"fold-{i}" for i in range(len(folds))]
        for name, fold in zip(names, folds, strict=True):
            save(fold.model, folder / name)
        kept = {name: fold.rows.numpy() for name, fold in zip(names, folds, strict=True)}
        np.savez(folder / "rows.npz", **kept)
    return folds


def _place(asks: TableAcquirer) -> int:
    assert asks.offers.asked is not None
    return int(asks.offers.asked.nonzero())


def _score(model: TableModel, rows: Rows, known: Tensor) -> float:
    """Return the accuracy of levels, or the error of numbers in units of their deviation."""
    told, truth = _predicted(model, rows, known), rows.x[:, rows.place]
    if model.table.modelled[rows.place].is_number:
        return float((told - truth).square().mean().sqrt() / truth.std())
    return float((told == truth).float().mean())


def _predicted(model: TableModel, rows: Rows, known: Tensor, num_samples: int = 32) -> Tensor:
    hidden = torch.arange(known.shape[1]) == rows.place
    return model.rows.points(rows.x, known & ~hidden, num_samples)[:, rows.place]


def _some(rows: Rows, count: int, seed: int) -> Tensor:
    """Return so many columns of each row, the target not among them."""
    return (_order_of_each(rows, seed + 1_000) < count) & rows.there


def _order_of_each(rows: Rows, seed: int) -> Tensor:
    """Return a random rank of each cell; the target's is last, after those of cells that lack."""
    noise = torch.rand(rows.there.shape, generator=torch.Generator().manual_seed(seed))
    noise[~rows.there] = 2.0
    noise[:, rows.place] = 3.0
    return noise.argsort(1).argsort(1)


def _bought(rank: Tensor, rows: Rows, known: Tensor) -> Tensor:
    """Return what is known after each step if cells are bought by rank that are there and new."""
    rank = rank.masked_fill(known | ~rows.there, rank.shape[1]).argsort(1).argsort(1)
    return torch.stack([known | (rank < k) & rows.there for k in range(STEPS + 1)])


def _in_random_order(rows: Rows, known: Tensor, seed: int) -> Tensor:
    return _bought(_order_of_each(rows, seed), rows, known)


def _chosen(gains: TableAcquirer, rows: Rows, known: Tensor) -> Tensor:
    """Return the same where each row's gains choose."""
    states, offers = [known], gains.offers.offers
    for _ in range(STEPS):
        best = gains.gains(rows.x, states[-1])
        best = best.masked_fill(~offers.open(states[-1] | ~rows.there), -torch.inf).argmax(1)
        states.append(states[-1] | offers.reveals[best] & rows.there)
    return torch.stack(states)


def _some_rows(
    folds: list[Fold], data: Any, place: int, seed: int
) -> list[tuple[TableModel, Rows]]:
    """Return some rows of each fold that hold the target, with the model that has not seen them."""
    x, there = folds[0].model.table.encode(data)
    generator, some = torch.Generator().manual_seed(seed), []
    for fold in folds:
        told = fold.rows[there[fold.rows, place]]
        pick = told[torch.randperm(len(told), generator=generator)[: ORDER_ROWS // len(folds)]]
        some.append((fold.model, Rows(x[pick], there[pick], place)))
    return some


def _in_fixed_order(others: list[tuple[TableModel, Rows]], rows: Rows, known: Tensor) -> Tensor:
    """Return the same for one order for all rows, the best for some others, greedily.

    They start as the rows do; what each further column brings is measured on them, by models that
    have not seen them: the log-likelihood of levels, the squared error of numbers.
    """
    count, columns = int(known[0].sum()), range(rows.x.shape[1])
    starts = [_some(part, count, i) for i, (_, part) in enumerate(others)]

    def loss(bought: list[int]) -> float:
        seen = torch.tensor([i in bought for i in columns])
        return sum(
            len(part.x) * _loss(model, part, part.there & (start | seen))
            for (model, part), start in zip(others, starts, strict=True)
        )

    order: list[int] = []
    for _ in range(STEPS + count):
        losses = {c: loss([*order, c]) for c in columns if c not in (*order, rows.place)}
        order.append(min(losses, key=losses.__getitem__))
    rank = torch.tensor([*order, *(i for i in columns if i not in order)]).argsort()
    rank[rows.place] = len(rank)
    return _bought(rank.expand_as(known), rows, known)


def _loss(model: TableModel, rows: Rows, known: Tensor) -> float:
    truth = rows.x[:, [rows.place]]
    if model.table.modelled[rows.place].is_number:
        told = _predicted(model, rows, known, ORDER_DRAWS)
        return float((told - truth[:, 0]).square().mean())
    hidden = torch.arange(known.shape[1]) == rows.place
    chances = model.rows.chances(rows.x, known & ~hidden, rows.place, ORDER_DRAWS)
    return float(-chances.gather(1, truth.long()).clamp_min(1e-6).log().mean())


if __name__ == "__main__":
    sys.exit(main())
