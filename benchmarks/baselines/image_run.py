"""Train VAEAC on images, and judge it by the images, masks and features that judge our own models.

Usage: POSTMATCH_DATA=... python benchmarks/baselines/image_run.py --dataset mnist --max-minutes 20

Writes results/inpainting-<dataset>-vaeac.json, a picture beside it, and the weights to
results/weights/; prints the result as one JSON line. With --evaluate-only it judges the weights
that are there.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from image_vaeac import Config, ImageVAEAC, build, config_of, decoder, fit
from postmatch.models import device_of
from postmatch.recipes.image_judging import Judging, judge, training_images
from postmatch.recipes.inpainting_config import DATASETS, Dataset, still_there
from postmatch.recipes.inpainting_run import result_path, told_of, weights_path
from postmatch.recipes.inpainting_scores import filler
from postmatch.recipes.results import read_result, read_weights, write_result, write_weights
from postmatch.training.plan import Progress
from postmatch.training.progress import progress_bar

MODEL = "vaeac"
FEWEST_ROWS = 20  # clusters that precision and recall are made of


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    arguments = parse(argv)
    which = (arguments.dataset, arguments.output)
    try:
        if not arguments.evaluate_only:
            with progress_bar(f"Training on {arguments.dataset}") as show:
                train(
                    *which,
                    steps=arguments.steps,
                    seed=arguments.seed,
                    max_seconds=60.0 * arguments.max_minutes,
                    device=arguments.device,
                    checkpoints=arguments.checkpoints,
                    show=show,
                )
        with progress_bar("Judging") as show:
            result = evaluate(
                *which,
                test_rows=arguments.test_rows,
                device=arguments.device,
                show=lambda part: show(Progress(part, 0, 0.0, {}, None)),
            )
    except (FileNotFoundError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=DATASETS, default="mnist")
    parser.add_argument("--steps", type=int, help="fewer updates than usual")
    parser.add_argument("--max-minutes", type=float, default=0.0, help="of training; 0: no limit")
    parser.add_argument("--test-rows", type=int, help="test images judged; all if not given")
    parser.add_argument("--evaluate-only", action="store_true", help="judge the weights in DIR")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="save there, go on from it")
    parser.add_argument("-o", "--output", type=Path, default=Path("results"), metavar="DIR")
    arguments = parser.parse_args(argv)
    for name, least in (("steps", 1), ("test_rows", FEWEST_ROWS)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    try:
        arguments.device = device_of(arguments.device)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def train(
    dataset: Dataset,
    folder: Path,
    *,
    steps: int | None = None,
    seed: int = 0,
    max_seconds: float = 0.0,
    device: torch.device,
    checkpoints: Path | None = None,
    show: Callable[[Progress], None] | None = None,
) -> None:
    """Train the model, and keep its weights in half precision and a result without scores.

    Arguments are those of ``postmatch.recipes.inpainting_run.train``.
    """
    config = config_of(dataset)
    config = config if steps is None else dataclasses.replace(config, steps=steps)
    rows, held_out = training_images(dataset, device)
    trained, report = fit(
        config,
        rows,
        held_out,
        seed=seed,
        max_seconds=max_seconds,
        checkpoints=checkpoints,
        show=show,
    )
    result = {"model": MODEL, "seed": seed, **told_of(trained, config, report, rows)}
    write_result(result_path(folder, dataset, MODEL), result)  # before the weights, as ours
    write_weights(weights_path(folder, dataset, MODEL), trained)


def evaluate(
    dataset: Dataset,
    folder: Path,
    *,
    test_rows: int | None = None,
    device: torch.device,
    show: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Judge the model that was kept in a folder, complete its result, and return it.

    Arguments are those of ``postmatch.recipes.inpainting_run.evaluate``.
    """
    path = result_path(folder, dataset, MODEL)
    result, model = read_model(path, weights_path(folder, dataset, MODEL), device)
    shown = filler(decoder(model, 6))
    return judge(result, path, decoder(model), shown, Judging(test_rows), device, show)


def read_model(
    path: Path, weights: Path, device: torch.device
) -> tuple[dict[str, Any], ImageVAEAC]:
    """Return the result of a training and the model that was kept, ready to be asked."""
    result = read_result(path, weights)
    model = read_weights(weights, build(Config(**still_there(result["config"]))))
    return result, model.to(device).eval()


if __name__ == "__main__":
    sys.exit(main())
