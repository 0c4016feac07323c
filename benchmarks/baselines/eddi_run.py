"""Train EDDI on MNIST of 16 x 16 pixels, and add its errors to those of our own ways to choose.

Usage: POSTMATCH_DATA=... python benchmarks/baselines/eddi_run.py -o results

Completes DIR/acquisition-mnist-mlp.json, which ``postmatch reproduce acquisition`` wrote, and draws
the picture beside it again; prints what was added as one JSON line.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from eddi import EMBEDDING_SIZE, NAME_SIZE, EddiReward, fit
from postmatch.data.images import load_images
from postmatch.models import device_of
from postmatch.recipes.acquisition import Config, offers, read
from postmatch.recipes.acquisition_run import curve, draw, result_path
from postmatch.recipes.results import provenance, write_result
from postmatch.training.plan import Progress
from postmatch.training.progress import progress_bar

WAY = "eddi"


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    arguments = parse(argv)
    try:
        with progress_bar("Training EDDI") as show:
            added = run(
                arguments.output,
                steps=arguments.steps,
                seed=arguments.seed,
                max_seconds=60.0 * arguments.max_minutes,
                device=arguments.device,
                show=show,
            )
    except (FileNotFoundError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(added))
    return 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help="fewer updates than our own model had")
    parser.add_argument("--max-minutes", type=float, default=0.0, help="of training; 0: no limit")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto")
    parser.add_argument("-o", "--output", type=Path, default=Path("results"), metavar="DIR")
    arguments = parser.parse_args(argv)
    if arguments.steps is not None and arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    try:
        arguments.device = device_of(arguments.device)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def run(
    folder: Path,
    *,
    steps: int | None = None,
    seed: int = 0,
    max_seconds: float = 0.0,
    device: torch.device,
    show: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Train EDDI for as long as our own model, let it choose for the same images, add its errors.

    Args:
        folder: Where the result of our own ways is.
        steps: Fewer updates than our own model had.
        seed: Of the training.
        max_seconds: Train no longer than this; 0 for no limit.
        device: Where.
        show: Told of the progress of the training.

    Raises:
        FileNotFoundError: If there is no such result.
    """
    path = result_path(folder, "mlp")
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there: run postmatch reproduce acquisition first")
    result = json.loads(path.read_text())
    config = Config(**result["config"])
    if steps is not None:
        config = dataclasses.replace(config, steps=steps)
    data = load_images("mnist")
    images = torch.cat([read(part.to(device)) for part in torch.split(data.train, 5_000)])
    model, report = fit(config, images, seed=seed, max_seconds=max_seconds, show=show)
    x, start = read(data.test[: result["rows"]["test"]].to(device)), time.perf_counter()
    chooser, num_steps = (
        EddiReward(model, offers(), means=True),
        len(result["curves"]["amortised"]) - 1,
    )
    result["curves"][WAY] = curve(model, chooser, x, num_steps)
    result["seconds"][WAY] = round(time.perf_counter() - start, 2)
    result["train_minutes"][WAY] = round(report.seconds / 60.0, 3)
    result["parameters"][WAY] = sum(p.numel() for p in model.parameters())
    result[WAY] = {
        "steps": report.steps,
        "seed": seed,
        "name_size": NAME_SIZE,
        "embedding_size": EMBEDDING_SIZE,
        **provenance(device),
    }
    write_result(path, result)
    draw(result, path)
    return {"curve": result["curves"][WAY], **result[WAY]}


if __name__ == "__main__":
    sys.exit(main())
