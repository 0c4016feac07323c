"""How the time of a training step, and the memory of an answer, grow with their sizes.

Usage: python benchmarks/scaling.py --what batch >> results/performance.jsonl

Prints one JSON line per point. ``batch`` and ``latent`` time a step of the paper's UCI model as
train_step.py does, ours against one pass per latent entry, with other numbers of rows or of
latents. ``memory`` runs the command line on tables of more and more rows, a process for each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch

from postmatch.conditioning import MatchedVAE
from postmatch.models import fit_table
from postmatch.recipes.uci import FEATURES, Config, build
from postmatch.saving import save
from postmatch.tabular import TableModelConfig
from postmatch.training.plan import Plan
from shapes import (
    SHAPES,
    Published,
    median_ms,
    parser,
    prepare,
    provenance,
    steady_ms,
)
from train_step import stepper

SIZES = {
    "batch": tuple(2**k for k in range(6, 13)),
    "latent": tuple(2**k for k in range(2, 7)),
    "memory": (10_000, 30_000, 100_000, 300_000),
}
COLUMNS, HOLES, FITTED_ROWS = 20, 1e-4, 500
# Scoring takes its time whatever the file's format, and both commands read in the same way.
ANSWERS = (("score", "parquet"), ("impute", "parquet"), ("impute", "csv"))
SMALL = TableModelConfig(
    latent_size=4,
    width=32,
    num_blocks=1,
    prior_width=32,
    head_width=32,
    mask_blocks=1,
    latent_components=2,
    column_components=2,
)
# A process inherits the peak of the one that started it, so a small one stands between.
BETWEEN = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
PEAK_UNITS = 1 if sys.platform == "darwin" else 1 << 10  # bytes of ru_maxrss
FIELDS = {"batch": "batch_size", "latent": "latent_size"}


def main() -> None:
    """Measure and print."""
    arguments = parse()
    device = prepare(arguments)
    if arguments.what == "memory":
        device, lines = torch.device("cpu"), memory(arguments)
    else:
        lines = steps(arguments, device)
    for line in lines:
        about = {"benchmark": "scaling", "what": arguments.what}
        print(json.dumps(about | line | provenance(arguments, device)), flush=True)


def parse() -> argparse.Namespace:
    """Return the command line's arguments."""
    options = parser(__doc__, seconds=8.0)
    options.add_argument("--what", choices=SIZES, required=True)
    options.add_argument("--sizes", nargs="+", type=int, metavar="N", help="in place of the usual")
    arguments = options.parse_args()
    arguments.sizes = arguments.sizes or SIZES[arguments.what]
    return arguments


def steps(arguments: argparse.Namespace, device: torch.device) -> Iterator[dict[str, object]]:
    """Yield the time of a step for each number of rows or of latents."""
    for size in arguments.sizes:
        shape = replace(SHAPES[arguments.shape], **{FIELDS[arguments.what]: size})
        times = step_ms(shape, arguments, device)
        yield {
            "shape": arguments.shape,
            "batch": shape.batch_size,
            "latent": shape.latent_size,
            "ms_per_step": round(times["ours"], 3),
            "standin_ms_per_step": round(times["standin"], 3),
            "speedup": round(times["standin"] / times["ours"], 2),
            "precision": arguments.precision,
            "compiled": arguments.compiled,
        }


def step_ms(shape: Config, arguments: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Return the time of a step, ours and the stand-in's."""
    model, twin = build(shape).to(device), build(shape).to(device)
    twin.load_state_dict(model.state_dict())
    published = MatchedVAE(twin.vae, Published(twin.partial))  # type: ignore[arg-type]
    x = torch.randn(20_000, FEATURES[shape.dataset], device=device)
    plan = Plan(
        10**6, learning_rate=1e-6, precision=arguments.precision, compiled=arguments.compiled
    )
    ways = {"ours": model, "standin": published}
    taken = {name: stepper(way, x, shape.batch_size, plan) for name, way in ways.items()}
    times = median_ms(taken, arguments.seconds)
    if device.type == "cuda":  # it works ahead of the host, which one step at a time cannot show
        times["ours"] = steady_ms(taken["ours"], 1_000)
    return times


def memory(arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield the peak memory of each command for each number of rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(fit_table(table(FITTED_ROWS), config=SMALL, max_steps=2), folder / "model")
        for rows in arguments.sizes:
            whole = table(rows)
            # As pyarrow writes it unless told otherwise, up to a million rows are one row group.
            pyarrow.parquet.write_table(whole, folder / "table.parquet")
            pyarrow.csv.write_csv(whole, folder / "table.csv")
            for command, suffix in ANSWERS:
                start = time.perf_counter()
                peak = peak_mib(command, suffix, folder, arguments.threads)
                yield {
                    "command": command,
                    "format": suffix,
                    "rows": rows,
                    "columns": COLUMNS,
                    "table_mib": round(whole.nbytes / 2**20, 1),
                    "peak_mib": round(peak, 1),
                    "seconds": round(time.perf_counter() - start, 1),
                }


def table(rows: int) -> pa.Table:
    """Return correlated numbers with few holes, which take longer to fill than to read."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, COLUMNS)) + random.normal(size=(rows, 1))
    x[random.random(x.shape) < HOLES] = np.nan
    return pa.table({f"c{i}": pa.array(x[:, i], from_pandas=True) for i in range(COLUMNS)})


def peak_mib(command: str, suffix: str, folder: Path, threads: int) -> float:
    """Return the peak resident memory of one command that answers about the table."""
    words = [command, f"table.{suffix}", "--model", "model", "--output", f"answer.{suffix}"]
    words += ["--quiet", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", BETWEEN, sys.executable, "-m", "postmatch", *words],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return int(done.stdout) * PEAK_UNITS / 2**20


if __name__ == "__main__":
    main()
