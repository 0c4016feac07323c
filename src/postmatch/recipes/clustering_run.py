"""From images to accuracies by how much of them is seen, over several seeds."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import Tensor

from postmatch.clustering import cluster_probabilities
from postmatch.data.images import Images, load_images
from postmatch.masks import Bernoulli
from postmatch.metrics import calibration_error, cluster_accuracy, matched_clusters
from postmatch.recipes.clustering import (
    Config,
    Dataset,
    Fitted,
    assignments,
    config_of,
    fit,
    read,
)
from postmatch.recipes.results import provenance, write_result
from postmatch.training.plan import Progress
from postmatch.vaes.vade import VaDE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FRACTIONS = tuple(i / 40 for i in range(41))
SEEDS = (0, 1, 2, 3, 4)
_AT_ONCE = 500  # images
_FEW = 0.2  # of the pixels
Whole = NDArray[np.int64]


def run(
    dataset: Dataset,
    folder: Path,
    *,
    config: Config | None = None,
    seeds: Sequence[int] = SEEDS,
    fractions: Sequence[float] = FRACTIONS,
    test_rows: int | None = None,
    max_seconds: float = 0.0,
    jobs: int = 1,
    device: torch.device | str = "cpu",
    show: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Train and judge one model per seed; write ``clustering-<dataset>.json`` and a PNG.

    Every seed is reported. Labels are read after a training, to name its clusters and to judge it.

    Args:
        dataset: Which images.
        folder: Where the result goes.
        config: What is trained; ours if None.
        seeds: Of the trainings.
        fractions: Of the pixels that are seen.
        test_rows: At most so many images are judged; None for all.
        max_seconds: Train each seed no longer than this; 0 for no limit.
        jobs: Seeds that are trained side by side, each in a process of its own.
        device: Where.
        show: Told of the progress of each part, if there is one job.
    """
    config = config_of(dataset) if config is None else config
    about = _About(dataset, config, tuple(fractions), test_rows, max_seconds, str(device))
    facts = {
        "experiment": "clustering",
        "dataset": dataset,
        "config": dataclasses.asdict(config),
        "seeds": list(seeds),
        "side_by_side": jobs,
        **provenance(torch.device(device)),
        "fractions": list(fractions),
    }
    runs: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    for found in _each(seeds, about, jobs, show):  # what is known is written, come what may
        runs = sorted([*runs, found], key=lambda run: seeds.index(run["seed"]))
        result = facts | {"runs": runs, "metrics": _summary(runs, fractions)}
        path = folder / f"clustering-{dataset}.json"
        write_result(path, result)
        figure_of(result).savefig(path.with_suffix(".png"), dpi=120)
    return result


def _each(
    seeds: Sequence[int],
    about: "_About",
    jobs: int,
    show: Callable[[Progress], None] | None,
) -> Iterator[dict[str, Any]]:
    """Yield what each seed gives, when it is known."""
    if jobs == 1:
        yield from (_one(seed, about, show) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_one, seed, about) for seed in seeds]
        for future in as_completed(futures):
            yield future.result()


class _About(NamedTuple):
    """What all seeds share; see :func:`run`."""

    dataset: Dataset
    config: Config
    fractions: Sequence[float]
    test_rows: int | None
    max_seconds: float
    device: str


def _one(
    seed: int, about: _About, show: Callable[[Progress], None] | None = None
) -> dict[str, Any]:
    """Train and judge one model."""
    dataset, config, fractions, test_rows, max_seconds, device = about
    data = load_images(dataset)
    images = data.train.to(device)
    fitted = fit(config, images, seed=seed, max_seconds=max_seconds, show=show)
    report, parts = fitted.clusters, _parts(fitted)
    return {
        "seed": seed,
        "train_minutes": round(sum(part.seconds for part in parts) / 60.0, 3),
        "steps": [part.steps for part in parts],
        "attempts": len(report.losses),
        "losses": report.losses,
        "shares": report.shares[report.kept],
        **_judged(fitted, data, fractions, test_rows, torch.device(device)),
    }


def _parts(fitted: Fitted) -> list[Any]:
    return [
        fitted.clusters.codes,
        *fitted.clusters.groups,
        *fitted.clusters.clusters,
        fitted.match,
    ]


@torch.no_grad()
def _judged(
    fitted: Fitted,
    data: Images,
    fractions: Sequence[float],
    test_rows: int | None,
    device: torch.device,
) -> dict[str, Any]:
    """Return scores with everything observed, and of each fraction for both methods.

    Clusters are named once, on complete training images; ``rematched`` has them named anew at each
    fraction on the test images themselves, as the paper does.
    """
    model, images = fitted.model, data.test[:test_rows].to(device)
    assert isinstance(model.vae, VaDE)
    labels, train_labels = (_whole(t) for t in (data.test_labels[:test_rows], data.train_labels))
    names = matched_clusters(_whole(assignments(model.vae, data.train.to(device))), train_labels)
    complete = _whole(assignments(model.vae, images))
    found: dict[str, Any] = {
        "rows": {"train": len(data.train), "test": len(images)},
        "accuracy": cluster_accuracy(complete, labels, names),
        "accuracy_rematched": cluster_accuracy(complete, labels),
        "nmi": float(normalized_mutual_info_score(labels, complete)),
        "ari": float(adjusted_rand_score(labels, complete)),
    }
    curves: dict[str, list[float]] = {}
    for i, fraction in enumerate(fractions):
        ours, theirs = _told(fitted, images, fraction, seed=i)
        best = {"ours": ours.argmax(1), "supervised": theirs.argmax(1)}
        for method, clusters in best.items():
            scores = {
                "accuracy": cluster_accuracy(clusters, labels, names),
                "rematched": cluster_accuracy(clusters, labels),
                "nmi": float(normalized_mutual_info_score(labels, clusters)),
                "ari": float(adjusted_rand_score(labels, clusters)),
            }
            for name, value in scores.items():
                curves.setdefault(f"{method}_{name}", []).append(value)
        curves.setdefault("ours_calibration_error", []).append(calibration_error(ours, complete))
    return found | {"curves": curves}


def _told(
    fitted: Fitted, images: Tensor, fraction: float, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return probabilities of clusters by the partial posterior, and by the supervised baseline."""
    generator = torch.Generator().manual_seed(seed)  # the same masks on every device
    ours, theirs = [], []
    for block in torch.split(images, _AT_ONCE):
        x = read(block)
        observed = Bernoulli(fraction).sample(x.shape, generator).to(x.device)
        ours.append(cluster_probabilities(fitted.model, x, observed))
        seen = torch.cat([x * observed, observed.to(x.dtype)], dim=1)
        theirs.append(fitted.supervised(seen).softmax(-1))
    together = (torch.cat(each).double().cpu().numpy() for each in (ours, theirs))
    return next(together), next(together)


def _summary(runs: Sequence[dict[str, Any]], fractions: Sequence[float]) -> dict[str, float]:
    accuracy = np.array([run["accuracy"] for run in runs])
    ours, theirs = (
        np.array([run["curves"][f"{method}_accuracy"] for run in runs])
        for method in ("ours", "supervised")
    )
    errors = np.array([run["curves"]["ours_calibration_error"] for run in runs])
    few = np.array(fractions) < _FEW
    return {
        "accuracy_median": float(np.median(accuracy)),
        "accuracy_worst": float(accuracy.min()),
        "worst_behind_supervised": float((theirs - ours).mean(0).max()),
        "ahead_below_a_fifth": float((ours - theirs)[:, few].mean()) if few.any() else 0.0,
        "calibration_error": float(errors.mean()),
        "calibration_error_worst_fraction": float(errors.mean(0).max()),
    }


def figure_of(result: dict[str, Any]) -> "Figure":
    """Return accuracy by the part that is seen, and the lead over the supervised baseline.

    Each seed is a thin line.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    accuracy, lead = figure.subplots(1, 2)
    ours, theirs = (
        np.array([run["curves"][f"{method}_accuracy"] for run in result["runs"]])
        for method in ("ours", "supervised")
    )
    fractions = result["fractions"]
    _draw(accuracy, fractions, ours, "tab:blue", "Posterior Matching")
    _draw(accuracy, fractions, theirs, "tab:orange", "supervised by the clusters")
    accuracy.set(ylabel="accuracy", title=result["dataset"])
    accuracy.legend(loc="lower right", frameon=False)
    lead.axhline(0.0, color="tab:orange", linewidth=0.8)
    _draw(lead, fractions, 100.0 * (ours - theirs), "tab:blue", "")
    lead.set(ylabel="points", title="Posterior Matching ahead of supervised")
    figure.supxlabel("part of the pixels that is seen")
    return figure


def _draw(
    axes: "Axes", fractions: Sequence[float], curves: NDArray[np.float64], colour: str, name: str
) -> None:
    """Draw the curve of each seed, and their mean."""
    for curve in curves:
        axes.plot(fractions, curve, color=colour, alpha=0.25, linewidth=0.8)
    axes.plot(fractions, curves.mean(0), color=colour, label=name)


def _whole(values: Tensor) -> Whole:
    return np.asarray(values.cpu().numpy(), np.int64)
