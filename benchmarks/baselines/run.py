"""Train and judge a peer on the rows and masks that our own densities are judged by.

Usage: POSTMATCH_DATA=... python benchmarks/baselines/run.py --dataset gas --method vaeac

Writes results/uci-<dataset>-<method>.json and prints the same object as one JSON line.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from circuit import circuit
from flow import maf, nsf
from gaussian import gaussian, gaussian_mixture
from partial_vae import partial_vae
from postmatch.data.uci import NAMES, load
from postmatch.models import device_of
from postmatch.recipes.results import provenance, write_result
from postmatch.recipes.scores import MASK_SEEDS
from postmatch.recipes.uci import config_of
from postmatch.recipes.uci_run import in_model_units, result_path
from postmatch.training.plan import Progress
from postmatch.training.progress import progress_bar
from protocol import Outcome, Task
from vaeac import vaeac

METHODS: dict[str, Callable[[Task], Outcome]] = {
    "vaeac": vaeac,
    "partial_vae": partial_vae,
    "gaussian": gaussian,
    "gaussian_mixture": gaussian_mixture,
    "circuit": circuit,
    "nsf": nsf,
    "maf": maf,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    arguments = parse(argv)
    try:
        with progress_bar(f"{arguments.method} on {arguments.dataset}") as show:
            task = task_of(arguments, show)
            outcome = METHODS[arguments.method](task)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    result = result_of(arguments.method, task, outcome)
    write_result(result_path(arguments.output, arguments.dataset, arguments.method), result)
    print(json.dumps(result))
    return 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=NAMES, default="gas")
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--steps", type=int, help="fewer updates, or iterations, than usual")
    parser.add_argument("--max-minutes", type=float, default=0.0, help="of training; 0: no limit")
    parser.add_argument("--test-rows", type=int, default=10_000, help="judged at most")
    parser.add_argument("--samples", type=int, default=1_000, help="draws of z per row, even")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto")
    parser.add_argument("-o", "--output", type=Path, default=Path("results"), metavar="DIR")
    arguments = parser.parse_args(argv)
    if arguments.samples < 2 or arguments.samples % 2:
        parser.error(f"--samples must be an even number, got {arguments.samples}")
    for name in ("steps", "test_rows"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    try:
        arguments.device = device_of(arguments.device)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def task_of(arguments: argparse.Namespace, show: Callable[[Progress], None]) -> Task:
    """Return the task, with our best model's settings for sizes and rates."""
    config = config_of(arguments.dataset, "best")
    if arguments.steps is not None:
        config = dataclasses.replace(config, steps=arguments.steps)
    rows, log_scale = in_model_units(load(arguments.dataset), arguments.device)
    return Task(
        dataclasses.replace(rows, test=rows.test[: arguments.test_rows]),
        log_scale,
        config,
        arguments.seed,
        60.0 * arguments.max_minutes,
        arguments.samples,
        show,
    )


def result_of(method: str, task: Task, outcome: Outcome) -> dict[str, Any]:
    """Return what is written: the object that our own recipe writes, and a note."""
    return {
        "experiment": "uci",
        "dataset": task.config.dataset,
        "model": outcome.model,
        "preset": method,
        "config": outcome.config,
        "seed": task.seed,
        "mask_seeds": list(MASK_SEEDS),
        **provenance(task.rows.test.device),
        "train_minutes": round(outcome.report.seconds / 60.0, 3),
        "steps": outcome.report.steps,
        "best_step": outcome.report.best_step,
        "parameters": outcome.parameters,
        "num_samples": outcome.num_samples,
        "rows": outcome.rows,
        "metrics": outcome.metrics,
        "note": outcome.note,
    }


if __name__ == "__main__":
    sys.exit(main())
