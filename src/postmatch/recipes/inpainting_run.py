"""From a set of images to the row of the paper's table 1."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from postmatch.conditioning import MatchedVAE
from postmatch.recipes.image_judging import Judging, judge, training_images
from postmatch.recipes.inpainting import build, fit
from postmatch.recipes.inpainting_config import Config, Dataset, Model, config_of, still_there
from postmatch.recipes.inpainting_scores import decoder, filler, zero_decoder
from postmatch.recipes.results import (
    provenance,
    read_result,
    read_weights,
    write_result,
    write_weights,
)
from postmatch.training.plan import Progress, Report

_AGAIN = 0.5  # of the learning rate, where training goes on from weights
# PSNR of the mean of ten imputations, precision and recall as published.
QUOTED: dict[str, dict[Dataset, tuple[float, float, float]]] = {
    "VDVAE + PM": {
        "mnist": (21.603, 0.996, 0.996),
        "omniglot": (18.256, 0.995, 0.994),
        "celeba": (27.190, 0.995, 0.995),
    },
    "VQ-VAE + PM": {
        "mnist": (19.981, 0.989, 0.993),
        "omniglot": (17.954, 0.979, 0.973),
        "celeba": (25.531, 0.982, 0.984),
    },
    "VAEAC": {
        "mnist": (19.613, 0.877, 0.975),
        "omniglot": (17.693, 0.525, 0.926),
        "celeba": (23.656, 0.966, 0.967),
    },
}


def result_path(folder: Path, dataset: str, model: str) -> Path:
    """Return where the result of an experiment is."""
    return folder / f"inpainting-{dataset}-{model}.json"


def weights_path(folder: Path, dataset: str, model: str) -> Path:
    """Return where the weights of an experiment are."""
    return folder / "weights" / f"inpainting-{dataset}-{model}.safetensors"


def train(
    dataset: Dataset,
    model: Model,
    folder: Path,
    *,
    steps: int | None = None,
    go_on: bool = False,
    seed: int = 0,
    max_seconds: float = 0.0,
    device: torch.device | str = "cpu",
    checkpoints: Path | None = None,
    show: Callable[[Progress], None] | None = None,
) -> None:
    """Train a model, and keep its weights in half precision and a result without scores.

    Args:
        dataset: Which images.
        model: Which VAE.
        folder: The result goes to ``inpainting-<dataset>-<model>.json`` in it, the weights to
            ``weights/``.
        steps: Fewer updates than usual, with the schedules squeezed into them.
        go_on: Whether to start from what is kept in the folder, at half the learning rate; the
            result then counts the steps and minutes of all trainings.
        seed: Of the training.
        max_seconds: Train no longer than this; 0 for no limit.
        device: Where.
        checkpoints: A folder to save to every minute, and to go on from if it holds anything.
        show: Told of the progress.
    """
    device = torch.device(device)
    path, weights = (p(folder, dataset, model) for p in (result_path, weights_path))
    before, start = read_model(path, weights, device) if go_on else ({}, None)
    config = Config(**still_there(before["config"])) if go_on else config_of(dataset, model)
    config = config if steps is None else dataclasses.replace(config, steps=steps)
    part = _AGAIN if go_on else 1.0
    rates = {name: part * getattr(config, name) for name in ("learning_rate", "orthogonal_rate")}
    rows, held_out = training_images(dataset, device)
    trained, report = fit(
        dataclasses.replace(config, **rates),
        rows,
        held_out,
        model=start,
        seed=seed + before.get("trainings", 0),
        max_seconds=max_seconds,
        checkpoints=checkpoints,
        show=show,
    )
    result = {"model": model, "seed": seed, **told_of(trained, config, report, rows)}
    result |= {
        "trainings": before.get("trainings", 0) + 1,
        "train_minutes": result["train_minutes"] + before.get("train_minutes", 0.0),
        "steps": report.steps + before.get("steps", 0),
        "best_step": report.best_step + before.get("steps", 0),
    }
    write_result(path, result)  # before the weights, which old scores must not stand beside
    write_weights(weights, trained)


def told_of(model: nn.Module, config: Any, report: Report, rows: Tensor) -> dict[str, Any]:
    """Return what a result tells of a training before anything is judged.

    Args:
        model: As it was trained; the parameters of its parts are counted.
        config: A dataclass with all settings, the data set among them.
        report: Of the training.
        rows: What it was trained on, where it was.
    """
    return {
        "experiment": "inpainting",
        "dataset": config.dataset,
        "config": dataclasses.asdict(config),
        **provenance(rows.device),
        "train_minutes": round(report.seconds / 60.0, 3),
        "steps": report.steps,
        "best_step": report.best_step,
        "history": [[step, round(value, 3)] for step, value in report.history],
        "parameters": {
            name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()
        },
        "rows": {"train": len(rows)},
    }


def evaluate(
    dataset: Dataset,
    model: Model,
    folder: Path,
    how: Judging | None = None,
    *,
    device: torch.device | str = "cpu",
    show: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Judge the model that was kept in a folder, complete its result, and return it.

    A picture, ``inpainting-<dataset>-<model>.png``, shows some images, what was seen of them, what
    the VAE's own encoder makes of zeros in the holes, and draws.

    Args:
        dataset: Which images it was trained on.
        model: Which VAE it is.
        folder: What :func:`train` wrote to.
        how: With which images and masks.
        device: Where.
        show: Told which part of the work is done.

    Raises:
        FileNotFoundError: If there is nothing to judge.
    """
    path, weights = (p(folder, dataset, model) for p in (result_path, weights_path))
    device = torch.device(device)
    result, trained = read_model(path, weights, device)

    def show_some(x: Tensor, observed: Tensor) -> Tensor:
        either = zero_decoder(trained.vae, 1), decoder(trained, 6)
        return torch.cat([filler(decode)(x, observed) for decode in either])

    how = Judging() if how is None else how
    return judge(result, path, decoder(trained), show_some, how, device, show)


def read_model(
    path: Path, weights: Path, device: torch.device
) -> tuple[dict[str, Any], MatchedVAE]:
    """Return the result of a training and the model that was kept, ready to be asked.

    Raises:
        FileNotFoundError: If one of the files is missing.
        ValueError: If they do not belong together, or the result used a setting that is gone.
    """
    result = read_result(path, weights)
    model = read_weights(weights, build(Config(**still_there(result["config"]))))
    return result, model.to(device).eval()
