"""``postmatch reproduce inpainting``: how well hidden pixels are filled in."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table as Grid

from postmatch.cli.groups import Running
from postmatch.cli.reproduce_options import (
    CheckpointFolder,
    EvaluateOnly,
    MaxMinutes,
    ResultFolder,
    TestImages,
    check_alone,
    check_output,
)
from postmatch.cli.session import session

if TYPE_CHECKING:
    from postmatch.recipes.inpainting_config import Dataset

INPAINTING_EXAMPLES = """
    postmatch reproduce inpainting --dataset mnist --model vdvae --max-minutes 20
    postmatch reproduce inpainting --dataset mnist --model vdvae --max-minutes 10 --go-on
    postmatch reproduce inpainting --model vdvae --max-minutes 30 --checkpoints unfinished/
    postmatch reproduce inpainting --dataset omniglot --model conv --evaluate-only
"""


def inpainting(
    running: Running,
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="mnist, omniglot or celeba.")
    ] = "mnist",
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="conv, a plain VAE; vqvae, one of codes; vdvae, a hierarchy; or vdvae-paper, the "
            "paper's hierarchy.",
        ),
    ] = "vdvae",
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Fewer updates than usual.")
    ] = None,
    max_minutes: MaxMinutes = 0.0,
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Train the weights that are kept in DIR once more.")
    ] = False,
    test_rows: TestImages = None,
    evaluate_only: EvaluateOnly = False,
    checkpoints: CheckpointFolder = None,
    output: ResultFolder = Path("results"),
) -> None:
    """Train a VAE of images and judge how it fills holes; POSTMATCH_DATA names the data.

    PSNR is of the mean of ten draws; precision and recall compare the same draws with the images,
    by features of a small classifier, so those quoted are of other features. Pixels are means at
    draws of z, as in the paper, and in a row of their own drawn as well.
    """
    from postmatch.models import device_of
    from postmatch.recipes import inpainting_run
    from postmatch.recipes.image_judging import Judging
    from postmatch.training.plan import Progress
    from postmatch.training.progress import progress_bar

    which: tuple[Any, Any, Path] = (dataset, model, output)
    with session(running) as here:
        device = device_of(running.device)
        if evaluate_only:
            training = {"--steps": steps, "--max-minutes": max_minutes, "--go-on": go_on}
            check_alone("--evaluate-only", training | {"--checkpoints": checkpoints})
        check_output(output, "PIL")
        if not evaluate_only:
            with progress_bar("Training", quiet=here.quiet) as show:
                inpainting_run.train(
                    *which,
                    steps=steps,
                    go_on=go_on,
                    seed=running.seed,
                    max_seconds=60.0 * max_minutes,
                    device=device,
                    checkpoints=checkpoints,
                    show=show,
                )
        with progress_bar("Judging", quiet=here.quiet) as show:
            result = inpainting_run.evaluate(
                *which,
                Judging(test_rows),
                device=device,
                show=lambda part: show(Progress(part, 0, 0.0, {}, None)),
            )
        here.settle()
        here.show(_row(result))
        here.result(result)


def _row(result: dict[str, Any]) -> Grid:
    """Return the result beside what has been published."""
    from postmatch.recipes.inpainting_run import QUOTED

    name: Dataset = result["dataset"]
    grid = Grid(box=box.SIMPLE_HEAD, title=f"{name}: hidden pixels given the others")
    grid.add_column("method")
    for title in ("PSNR (dB)", "of each draw", "precision", "recall"):
        grid.add_column(title, justify="right")
    metrics = result["metrics"]
    for prefix, said in (("", f"postmatch, {result['model']}"), ("drawn_", "  pixels drawn, too")):
        own = [metrics[prefix + key] for key in ("psnr", "psnr_per_sample", "precision", "recall")]
        grid.add_row(said, *(f"{value:.3f}" for value in own))
    for method, scores in QUOTED.items():
        psnr, precision, recall = (f"{value:.3f}" for value in scores[name])
        grid.add_row(f"{method} (quoted)", psnr, "", precision, recall)
    return grid
