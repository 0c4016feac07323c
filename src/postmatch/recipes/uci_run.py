"""From the name of a data set to the row of the paper's table 2."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from postmatch.data.patches import PatchSymmetries
from postmatch.data.uci import Name, Splits, load
from postmatch.recipes.results import (
    provenance,
    read_result,
    read_weights,
    write_result,
    write_weights,
)
from postmatch.recipes.scores import MASK_SEEDS, Judging, conditional_scores
from postmatch.recipes.uci import Config, Preset, build, config_of, fit
from postmatch.training.plan import Progress

# Conditional log-likelihood and NRMSE as published; the former of PM and VAEAC by the ratio.
QUOTED: dict[str, dict[Name, tuple[float, float]]] = {
    "VAEAC": {
        "power": (-0.042, 0.880),
        "gas": (2.418, 0.574),
        "hepmass": (-10.082, 0.896),
        "miniboone": (-3.452, 0.462),
        "bsds": (74.850, 0.615),
    },
    "Posterior Matching": {
        "power": (0.246, 0.834),
        "gas": (5.964, 0.330),
        "hepmass": (-8.963, 0.857),
        "miniboone": (-3.116, 0.450),
        "bsds": (77.488, 0.573),
    },
    "ACE": {
        "power": (0.631, 0.828),
        "gas": (9.643, 0.335),
        "hepmass": (-3.859, 0.830),
        "miniboone": (0.310, 0.432),
        "bsds": (86.701, 0.525),
    },
}


def result_path(folder: Path, dataset: str, preset: str) -> Path:
    """Return where the result of an experiment is."""
    return folder / f"uci-{dataset}-{preset}.json"


def weights_path(folder: Path, dataset: str, preset: str) -> Path:
    """Return where the weights of an experiment are."""
    return folder / "weights" / f"uci-{dataset}-{preset}.safetensors"


def train(
    dataset: Name,
    preset: Preset,
    folder: Path,
    *,
    steps: int | None = None,
    seed: int = 0,
    max_seconds: float = 0.0,
    device: torch.device | str = "cpu",
    checkpoints: Path | None = None,
    show: Callable[[Progress], None] | None = None,
) -> None:
    """Train a model, and keep its weights in half precision and a result without scores.

    Args:
        dataset: Which rows.
        preset: Whose settings.
        folder: The result goes to ``uci-<dataset>-<preset>.json`` in it, the weights to
            ``weights/``.
        steps: Fewer updates than the preset has, with its schedules squeezed into them.
        seed: Of the training.
        max_seconds: Train no longer than this; 0 for no limit.
        device: Where.
        checkpoints: A folder to save to every minute, and to go on from if it holds anything.
        show: Told of the progress.
    """
    device = torch.device(device)
    config = config_of(dataset, preset)
    config = config if steps is None else dataclasses.replace(config, steps=steps)
    rows, log_scale = in_model_units(load(dataset), device)
    model, report = fit(
        config,
        rows.train,
        rows.val,
        seed=seed,
        vary=PatchSymmetries(log_scale.exp()) if config.symmetries else None,
        max_seconds=max_seconds,
        checkpoints=checkpoints,
        show=show,
    )
    result = {
        "experiment": "uci",
        "dataset": dataset,
        "model": type(model.vae).__name__,
        "preset": preset,
        "config": dataclasses.asdict(config),
        "seed": seed,
        **provenance(device),
        "train_minutes": round(report.seconds / 60.0, 3),
        "steps": report.steps,
        "best_step": report.best_step,
        "parameters": sum(p.numel() for p in model.parameters()),
        "rows": {"train": len(rows.train)},
    }
    write_result(result_path(folder, dataset, preset), result)  # before the weights, which old
    write_weights(weights_path(folder, dataset, preset), model)  # scores must not stand beside


def evaluate(
    dataset: Name,
    preset: Preset,
    folder: Path,
    *,
    test_rows: int = 10_000,
    num_samples: int = 1_000,
    device: torch.device | str = "cpu",
    show: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Judge the model that was kept in a folder, complete its result, and return it.

    Args:
        dataset: Which rows it was trained on.
        preset: By whose settings.
        folder: What :func:`train` wrote to.
        test_rows: At most so many are judged, with five draws of masks.
        num_samples: Draws of z per row; the paper's ratio also gets ten times and a tenth of it.
        device: Where.
        show: Told which part of the work is done.

    Raises:
        FileNotFoundError: If there is nothing to judge.
    """
    path, weights = (p(folder, dataset, preset) for p in (result_path, weights_path))
    result, device = read_result(path, weights), torch.device(device)
    model = read_weights(weights, build(Config(**result["config"]))).to(device).eval()
    rows, log_scale = in_model_units(load(dataset), device)
    test = rows.test[:test_rows]
    counts = sorted({max(2, num_samples // 10), num_samples, 10 * num_samples})
    start = time.monotonic()
    how = Judging(num_samples=num_samples, ratio_samples=counts)
    metrics = conditional_scores(model, test, log_scale, how, show)
    result["rows"] |= {"test": len(test), "ratio": min(len(test), how.ratio_rows)}
    result |= {
        "mask_seeds": list(MASK_SEEDS),
        "num_samples": num_samples,
        "evaluated": provenance(device) | {"seconds": round(time.monotonic() - start, 1)},
        "metrics": metrics,
    }
    write_result(path, result)
    return result


def in_model_units(rows: Splits, device: torch.device) -> tuple[Splits, torch.Tensor]:
    """Return rows whose features have a standard deviation of 1, and the logarithms of theirs."""
    scale = rows.train.std(0)
    parts = {f.name: getattr(rows, f.name) for f in dataclasses.fields(rows)}
    scaled = Splits(**{name: (part / scale).to(device) for name, part in parts.items()})
    return scaled, scale.log().to(device)
