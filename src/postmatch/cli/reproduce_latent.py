"""``postmatch reproduce mnist-latent``: what a partial image leaves open, seen in z."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table as Grid

from postmatch.cli.groups import Running
from postmatch.cli.reproduce_options import (
    MaxMinutes,
    PictureFolder,
    check_alone,
    check_output,
    lacking,
)
from postmatch.cli.session import session

LATENT_EXAMPLES = """
    postmatch reproduce mnist-latent
    postmatch reproduce mnist-latent --plane --max-minutes 10 -o figures
    postmatch reproduce mnist-latent --plane --draw-only -o figures
"""


def mnist_latent(
    running: Running,
    plane: Annotated[
        bool,
        typer.Option(
            "--plane", help="The paper's figure 1: 3, 5 and 8 alone, and a z of length 2."
        ),
    ] = False,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Fewer updates than the paper has.")
    ] = None,
    max_minutes: MaxMinutes = 0.0,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Draw what the weights that are kept in DIR say.")
    ] = False,
    output: PictureFolder = Path("results"),
) -> None:
    """Train the paper's VAE of MNIST and draw where q(z | x_o) lies; POSTMATCH_DATA names the data.

    Black dots are draws of q(z | x_o) among the encoded test images, coloured by digit. A map of a
    z that is longer than 2 needs the extra postmatch[umap], and all pictures postmatch[plot];
    weights are kept before they are drawn. With --draw-only, --seed is that of draws and map.
    """
    from postmatch.models import device_of
    from postmatch.recipes import mnist_latent_run
    from postmatch.training.progress import progress_bar

    with session(running) as here:
        device = device_of(running.device)
        if draw_only:
            check_alone("--draw-only", {"--steps": steps, "--max-minutes": max_minutes})
        check_output(output)
        if not draw_only:
            for text in lacking("matplotlib", *([] if plane else ["umap"])):
                here.warn(f"{text}; until then weights are kept, and --draw-only draws them later")
            with progress_bar("Training", quiet=here.quiet) as show:
                mnist_latent_run.train(
                    output,
                    plane=plane,
                    steps=steps,
                    seed=running.seed,
                    max_seconds=60.0 * max_minutes,
                    device=device,
                    show=show,
                )
        result = mnist_latent_run.draw(output, plane=plane, seed=running.seed, device=device)
        here.settle()
        here.show(_shares(result))
        here.say(f"Written to {output}.")
        here.result(result)


def _shares(result: dict[str, Any]) -> Grid:
    """Return which digits the draws of each panel belong to."""
    views = result["metrics"]["views"]
    digits = list(views[0]["shares"])
    grid = Grid(box=box.SIMPLE_HEAD, title="Digits that draws of q(z | x_o) belong to, in percent")
    grid.add_column("image")
    grid.add_column("seen")
    for digit in digits:
        grid.add_column(digit, justify="right")
    for view in views:
        cells = [f"{100.0 * view['shares'][digit]:.0f}" for digit in digits]
        grid.add_row(f"{view['image']} ({view['digit']})", view["seen"], *cells)
    return grid
