"""From images to errors by how many pixels were looked at, for every way to choose them."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from postmatch.acquisition import SAMPLES, Acquirer, acquire
from postmatch.conditioning import MatchedVAE
from postmatch.data.images import load_images
from postmatch.recipes.acquisition import (
    Config,
    Fitted,
    Network,
    fit,
    offers,
    read,
    sampled,
)
from postmatch.recipes.acquisition_pictures import figure_of, trajectories
from postmatch.recipes.orders import FixedOrder, RandomOrder, best_fixed_order
from postmatch.recipes.results import provenance, write_result
from postmatch.training.plan import Progress

STEPS = 30
TEST_ROWS = 1_000
WAYS = ("sampled", "amortised", "lookahead", "fixed", "random")
_AT_ONCE = 100  # images
_AVERAGED = 500  # training images that a fixed order is chosen by
_DRAWN = 8  # test images whose trajectories are shown


def run(
    folder: Path,
    *,
    config: Config | None = None,
    ways: Sequence[str] = WAYS,
    num_steps: int = STEPS,
    test_rows: int = TEST_ROWS,
    seed: int = 0,
    max_seconds: float = 0.0,
    device: torch.device | str = "cpu",
    show: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Train, let each way choose pixels of test images, write ``acquisition-mnist-<network>.json``.

    Args:
        folder: Where the result and its pictures go.
        config: What is trained; ours if None.
        ways: To choose, of :data:`WAYS`.
        num_steps: How many pixels are looked at.
        test_rows: The first so many test images.
        seed: Of the training, and of the random order.
        max_seconds: Train no longer than this in all; 0 for no limit.
        device: Where.
        show: Told of the progress of each part.
    """
    device, config = torch.device(device), Config() if config is None else config
    data = load_images("mnist")
    fitted = fit(config, data.train.to(device), seed=seed, max_seconds=max_seconds, show=show)
    x = read(data.test[:test_rows].to(device))
    curves: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    for way in ways:
        start = time.perf_counter()
        chooser = _chooser(way, fitted, read(data.train[:_AVERAGED].to(device)), num_steps, seed)
        curves[way] = curve(fitted.model, chooser, x, num_steps)
        seconds[way] = time.perf_counter() - start
    result = {
        "experiment": "acquisition",
        "dataset": "mnist",
        "network": config.network,
        "config": dataclasses.asdict(config),
        "seed": seed,
        **provenance(device),
        "train_minutes": {
            part: round(report.seconds / 60.0, 3) for part, report in fitted.reports.items()
        },
        "train_steps": {part: report.steps for part, report in fitted.reports.items()},
        "parameters": {
            "model": _count(fitted.model),
            "amortised": _count(fitted.amortised),
            "lookahead": _count(fitted.lookahead),
        },
        "rows": {"train": len(data.train), "test": len(x)},
        "num_samples": SAMPLES,
        "curves": curves,
        "seconds": {way: round(value, 2) for way, value in seconds.items()},
    }
    path = result_path(folder, config.network)
    write_result(path, result)
    draw(result, path)
    picture = trajectories(fitted.model, fitted.amortised, x[:_DRAWN], num_steps)
    picture.savefig(path.with_name(f"{path.stem}-trajectories.png"), dpi=120)
    return result


def result_path(folder: Path, network: Network) -> Path:
    """Return where a result is."""
    return folder / f"acquisition-mnist-{network}.json"


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the picture of a result beside it."""
    figure_of(result).savefig(path.with_suffix(".png"), dpi=120)


@torch.no_grad()
def curve(model: MatchedVAE, acquirer: Acquirer, x: Tensor, num_steps: int) -> list[float]:
    """Return the error after 0, 1, ... pixels: its root mean square over all pixels of an image.

    What was looked at has no error; the mean of 50 fillings is compared with the rest.

    Args:
        model: Fills in.
        acquirer: Chooses.
        x: Complete images.
        num_steps: How many pixels.
    """
    total = torch.zeros(num_steps + 1, dtype=torch.float64)
    for part in torch.split(x, _AT_ONCE):
        nothing = torch.zeros_like(part, dtype=torch.bool)
        path = acquire(acquirer, part, nothing, num_steps, price=-torch.inf)
        for i, observed in enumerate(path.observed):
            wrong = (model.given(part, observed).impute(SAMPLES) - part).square()
            each = wrong.masked_fill(observed, 0.0).flatten(1).mean(1).sqrt()
            total[i] += float(each.sum())
    return (total / len(x)).tolist()


def _chooser(way: str, fitted: Fitted, some: Tensor, num_steps: int, seed: int) -> Acquirer:
    if way == "sampled":
        return sampled(fitted.model)
    if way == "fixed":
        return FixedOrder(offers(), best_fixed_order(fitted.amortised, some, num_steps))
    if way == "random":
        return RandomOrder(offers(), seed)
    if way not in ("amortised", "lookahead"):
        raise ValueError(f"ways must be of {', '.join(WAYS)}, got {way!r}")
    return fitted.amortised if way == "amortised" else fitted.lookahead


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
