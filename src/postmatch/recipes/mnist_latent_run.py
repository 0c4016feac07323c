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
    build,
    fit,
    look,
    places,
)
from postmatch.recipes.results import (
    provenance,
    read_result,
    read_weights,
    write_result,
    write_weights,
)
from postmatch.training.plan import Progress

_HALVES = ((0, 14), (14, 28))
_THREE = 9027  # a test image; an 8 might have its right half as well, and a 5 its lower one


def result_path(folder: Path, *, plane: bool) -> Path:
    """Return where the result is; its picture is beside it."""
    return folder / ("mnist-latent-plane.json" if plane else "mnist-latent.json")


def weights_path(folder: Path, *, plane: bool) -> Path:
    """Return where the weights are."""
    return folder / "weights" / result_path(folder, plane=plane).with_suffix(".safetensors").name


def train(
    folder: Path,
    *,
    plane: bool = False,
    steps: int | None = None,
    seed: int = 0,
    max_seconds: float = 0.0,
    device: torch.device | str = "cpu",
    show: Callable[[Progress], None] | None = None,
) -> None:
    """Train a model, and keep its weights in half precision and a result that tells nothing yet.

    Args:
        folder: Where they go: ``mnist-latent.json`` or ``mnist-latent-plane.json``, the weights to
            ``weights/``.
        plane: Whether z has a length of 2, for the digits 3, 5 and 8 alone.
        steps: Fewer updates than the paper has.
        seed: Of the training.
        max_seconds: Train no longer than this; 0 for no limit.
        device: Where.
        show: Told of the progress.
    """
    device = torch.device(device)
    config = FIGURE_1 if plane else Config()
    config = config if steps is None else dataclasses.replace(config, steps=steps)
    data = load_images("mnist")
    images = data.train[torch.isin(data.train_labels, torch.tensor(config.digits))].to(device)
    model, report = fit(config, images, seed=seed, max_seconds=max_seconds, show=show)
    result = {
        "experiment": "mnist-latent",
        "dataset": "mnist",
        "model": type(model.vae).__name__,
        "seed": seed,
        **provenance(device),
        "config": dataclasses.asdict(config),
        "steps": report.steps,
        "train_minutes": round(report.seconds / 60.0, 3),
        "parameters": sum(p.numel() for p in model.parameters()),
        "rows": {"train": len(images)},
    }
    write_result(result_path(folder, plane=plane), result)
    write_weights(weights_path(folder, plane=plane), model)


def draw(
    folder: Path, *, plane: bool = False, seed: int = 0, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Look at what was kept in a folder, draw it, complete its result, and return it.

    Args:
        folder: What :func:`train` wrote to; a PNG goes beside the result.
        plane: As it was trained.
        seed: Of draws and map.
        device: Where.

    Raises:
        FileNotFoundError: If there is nothing to look at.
        ModuleNotFoundError: If UMAP is needed and not installed.
    """
    device, path = torch.device(device), result_path(folder, plane=plane)
    weights = weights_path(folder, plane=plane)
    result = read_result(path, weights)
    config = Config(**result["config"])
    model = read_weights(weights, build(config)).to(device).eval()
    data = load_images("mnist")
    shown = torch.isin(data.test_labels, torch.tensor(config.digits))
    where, labels = places(model, data.test[shown].to(device)), data.test_labels[shown]
    panels = _halves_of(_THREE) if plane else PANELS
    views = [
        look(model, panel, data.test[panel.image].to(device), where, labels, seed)
        for panel in panels
    ]
    flat, drawn = to_plane(where.cpu(), [view.z for view in views], seed)
    draw_views(flat, labels, views, drawn).savefig(path.with_suffix(".png"), dpi=110)
    result |= {
        "num_samples": DRAWS,
        "draw_seed": seed,
        "rows": result["rows"] | {"test": len(where)},
        "metrics": {"views": _told(panels, views, data.test_labels)},
    }
    write_result(path, result)
    return result


def _halves_of(image: int) -> tuple[Panel, ...]:
    """Return panels of a test image of which nothing or a half is seen."""
    sides = [Panel(image, columns=half) for half in reversed(_HALVES)]
    return (Panel(image, rows=(0, 0)), *sides, *(Panel(image, rows=half) for half in _HALVES))


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
