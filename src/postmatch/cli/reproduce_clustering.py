"""``postmatch reproduce clustering``: clusters of images that are seen in part."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table as Grid

from postmatch.cli.groups import Running
from postmatch.cli.reproduce_options import PictureFolder, TestImages, check_output
from postmatch.cli.session import session

CLUSTERING_EXAMPLES = """
    postmatch reproduce clustering --dataset mnist
    postmatch reproduce clustering --dataset fashion_mnist --seeds 2 -o figures
    postmatch reproduce clustering --seeds 5 --jobs 5 --device cuda
"""
_SHOWN = (0.05, 0.1, 0.2, 0.5, 1.0)


def clustering(
    running: Running,
    dataset: Annotated[str, typer.Option(metavar="NAME", help="mnist or fashion_mnist.")] = "mnist",
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many trainings, from --seed on.")
    ] = 5,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Fewer updates of each part than usual.")
    ] = None,
    max_minutes: Annotated[
        float, typer.Option(metavar="M", min=0.0, help="Of training, per seed; 0: no limit.")
    ] = 0.0,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Seeds that are trained side by side.")
    ] = 1,
    test_rows: TestImages = None,
    output: PictureFolder = Path("results"),
) -> None:
    """Cluster images, then tell clusters from parts of images; POSTMATCH_DATA names the data.

    Labels are read after a training, to name its clusters and to judge it. Beside Posterior
    Matching stands the paper's baseline, a network that learned the clusters of complete images.
    """
    from postmatch.models import device_of
    from postmatch.recipes import clustering_run
    from postmatch.recipes.clustering import DATASETS, config_of
    from postmatch.training.progress import progress_bar

    with session(running) as here:
        if dataset not in DATASETS:
            raise ValueError(f"--dataset must be one of {', '.join(DATASETS)}, got {dataset!r}")
        check_output(output, "matplotlib")
        config, which = config_of(dataset), tuple(range(running.seed, running.seed + seeds))
        if steps is not None:
            parts = {f"{part}_steps": steps for part in ("code", "group", "cluster", "match")}
            config = dataclasses.replace(config, **parts)  # type: ignore[arg-type]
        with progress_bar("Training", quiet=here.quiet) as show:
            result = clustering_run.run(
                dataset,
                output,
                config=config,
                seeds=which,
                test_rows=test_rows,
                max_seconds=60.0 * max_minutes,
                jobs=jobs,
                device=device_of(running.device),
                show=show,
            )
        here.settle()
        here.show(_curves(result))
        here.say(f"Written to {output}.")
        here.result(result)


def _curves(result: dict[str, Any]) -> Grid:
    """Return the median accuracy of both methods at some fractions."""
    import numpy as np

    grid = Grid(box=box.SIMPLE_HEAD, title=f"{result['dataset']}: accuracy, median over seeds")
    grid.add_column("pixels seen")
    fractions = [f for f in result["fractions"] if any(abs(f - s) < 1e-9 for s in _SHOWN)]
    for fraction in fractions:
        grid.add_column(f"{fraction:.0%}", justify="right")
    at = [result["fractions"].index(fraction) for fraction in fractions]
    for method, name in (("ours", "Posterior Matching"), ("supervised", "supervised")):
        curves = [run["curves"][f"{method}_accuracy"] for run in result["runs"]]
        grid.add_row(name, *(f"{value:.3f}" for value in np.median(curves, 0)[at]))
    return grid
