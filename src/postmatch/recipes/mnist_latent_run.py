"""From MNIST to pictures of what partial images leave open."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from postmatch.data.images import load_images
from postmatch.recipes.latent_figure import draw_views, to_plane
from postmatch.recipes.mnist_latent import (
    DRAWS,
    FIGURE_1,
    PANELS,
    Config,
    Panel,
    View,
    fit,
    look,
    places,
)
from postmatch.recipes.results import provenance, write_result
from postmatch.training.plan import Progress, Report

_HALVES = ((0, 14), (14, 28))


def run(
    folder: Path,
    *,
    plane: bool = False,
    steps: int | None = None,
    seed: int = 0,
    max_seconds: float = 0.0,
    device: torch.device | str = "cpu",
    show: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Train, look, draw; write ``mnist-latent.json`` or ``mnist-latent-plane.json`` and a PNG.

    Args:
        folder: Where they go.
        plane: Whether z has a length of 2, for the digits 3, 5 and 8 alone.
        steps: Fewer updates than the paper has.
        seed: Of training, draws and map.
        max_seconds: Train no longer than this; 0 for no limit.
        device: Where.
        show: Told of the progress.
    """
    device = torch.device(device)
    config = FIGURE_1 if plane else Config()
    config = config if steps is None else dataclasses.replace(config, steps=steps)
    data = load_images("mnist")
    of_digits = torch.isin(data.train_labels, torch.tensor(config.digits))
    train = data.train[of_digits].to(device)
    model, report = fit(config, train, seed=seed, max_seconds=max_seconds, show=show)
    model.eval()
    shown = torch.isin(data.test_labels, torch.tensor(config.digits))
    where, labels = places(model, data.test[shown].to(device)), data.test_labels[shown]
    panels = _halves_of_a_three(data.test_labels) if plane else PANELS
    views = [
        look(model, panel, data.test[panel.image].to(device), where, labels, seed)
        for panel in panels
    ]
    flat, drawn = to_plane(where.cpu(), [view.z for view in views], seed)
    name = "mnist-latent-plane" if plane else "mnist-latent"
    result = {
        "experiment": "mnist-latent",
        "dataset": "mnist",
        "model": type(model.vae).__name__,
        "seed": seed,
        **provenance(device),
        **_training(config, report),
        "parameters": sum(p.numel() for p in model.parameters()),
        "num_samples": DRAWS,
        "rows": {"train": len(train), "test": len(where)},
        "metrics": {"views": _told(panels, views, data.test_labels)},
    }
    folder.mkdir(parents=True, exist_ok=True)
    draw_views(flat, labels, views, drawn).savefig(folder / f"{name}.png", dpi=110)
    write_result(folder / f"{name}.json", result)
    return result


def _halves_of_a_three(labels: Tensor) -> tuple[Panel, ...]:
    """Return panels of the first 3, of which nothing or a half is seen."""
    three = int((labels == 3).nonzero()[0])
    sides = [Panel(three, columns=half) for half in reversed(_HALVES)]
    return (Panel(three, rows=(0, 0)), *sides, *(Panel(three, rows=half) for half in _HALVES))


def _training(config: Config, report: Report) -> dict[str, Any]:
    return {
        "config": dataclasses.asdict(config),
        "steps": report.steps,
        "train_minutes": round(report.seconds / 60.0, 3),
    }


def _told(panels: tuple[Panel, ...], views: list[View], labels: Tensor) -> list[dict[str, Any]]:
    return [
        {
            "image": panel.image,
            "digit": int(labels[panel.image]),
            "seen": panel.told(),
            "shares": {str(digit): share for digit, share in view.shares.items()},
        }
        for panel, view in zip(panels, views, strict=True)
    ]
