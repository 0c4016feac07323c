"""Fill ordinary tables, ours and what users would pick instead, and judge the hidden cells.

Usage: POSTMATCH_DATA=... python benchmarks/imputation.py --tables abalone --seeds 0 --methods knn

Prints and appends one JSON line per table, seed, mechanism and method.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch

from holes import MECHANISMS, NOT_AT_RANDOM, TABLES, make_holes
from postmatch.recipes import results

METHODS = (
    "mean",
    "knn",
    "bayesian_ridge",
    "bayesian_ridge_draws",
    "pmm",
    "extra_trees",
    "postmatch",
)
SEEDS = (0, 1, 2)


class Task(NamedTuple):
    """One line of the results."""

    table: str
    seed: int
    mechanism: str
    method: str


def main() -> int:
    """Run what the command line asks for and is not there yet."""
    arguments = parse()
    # Before any worker imports NumPy or torch, which read it once.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
    tasks = choose(arguments)
    if not arguments.force:
        tasks = [task for task in tasks if task not in finished(arguments.output)]
    about = {"commit": results.commit(), "hardware": hardware(arguments), "versions": versions()}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    failures, start = 0, time.perf_counter()
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(work, task): task for task in tasks}
        for count, future in enumerate(as_completed(running), 1):
            result = future.result()
            if "error" in result:
                failures += 1
                print(result["error"], file=sys.stderr)
            else:
                line = json.dumps(running[future]._asdict() | result | about)
                print(line, flush=True)
                with arguments.output.open("a") as file:
                    file.write(line + "\n")
            elapsed = time.perf_counter() - start
            name = " ".join(map(str, running[future]))
            print(f"[{count}/{len(tasks)}, {elapsed:.0f} s] {name}", file=sys.stderr, flush=True)
    return 1 if failures else 0


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=TABLES, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--mechanisms", nargs="+", default=MECHANISMS, choices=MECHANISMS)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--output", type=Path, default=Path("results/imputation.jsonl"))
    parser.add_argument("--force", action="store_true", help="run again what is there already")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    arguments = parser.parse_args()
    if "POSTMATCH_DATA" not in os.environ:
        parser.error("POSTMATCH_DATA must name the folder that holds tabular/")
    if not choose(arguments):
        parser.error(f"mar and mnar are run with seed 0 on {', '.join(NOT_AT_RANDOM)} only")
    return arguments


def choose(arguments: argparse.Namespace) -> list[Task]:
    """Return the tasks asked for, such that the first results are the most useful ones."""
    return [
        Task(table, seed, mechanism, method)
        for mechanism in arguments.mechanisms
        for seed in arguments.seeds
        for method in arguments.methods
        for table in arguments.tables
        if mechanism == "mcar" or (seed == 0 and table in NOT_AT_RANDOM)
    ]


def finished(output: Path) -> set[Task]:
    """Return the tasks whose results are in a file."""
    if not output.exists():
        return set()
    lines = map(json.loads, output.read_text().splitlines())
    return {Task(*(line[field] for field in Task._fields)) for line in lines}


def work(task: Task) -> dict[str, Any]:
    """Run one task in a process of its own; an error comes back as text."""
    try:
        from ours import postmatch
        from peers import PEERS
        from scoring import score

        holes = make_holes(task.table, task.seed, task.mechanism)
        answer = (PEERS | {"postmatch": postmatch})[task.method](holes, task.seed)
        seconds = {"fit": answer.fit_seconds, "transform": answer.transform_seconds}
        return {
            "rows": {"train": len(holes.train), "test": len(holes.test)},
            "metrics": score(answer, holes),
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
        }
    except Exception:  # whatever it is, the other tasks go on
        return {"error": f"{' '.join(map(str, task))} failed\n{traceback.format_exc()}"}


def hardware(arguments: argparse.Namespace) -> str:
    """Return the processor and how much of it one task had."""
    processor = results.hardware(torch.device("cpu"))
    return f"{processor}, {arguments.threads} threads, {arguments.jobs} jobs"


def versions() -> dict[str, str]:
    """Return the versions of what computes."""
    names = ("numpy", "pandas", "scikit-learn", "torch")
    return {name: importlib.metadata.version(name) for name in names}


if __name__ == "__main__":
    sys.exit(main())
