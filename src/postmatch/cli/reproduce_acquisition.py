"""``postmatch reproduce acquisition``: which pixel to look at next."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table as Grid

from postmatch.cli.groups import Running
from postmatch.cli.reproduce_options import PictureFolder, check_output
from postmatch.cli.session import session

ACQUISITION_EXAMPLES = """
    postmatch reproduce acquisition --network mlp
    postmatch reproduce acquisition --network conv -o figures
"""
_SHOWN = (0, 5, 10, 15, 20, 25, 30)


def acquisition(
    running: Running,
    network: Annotated[str, typer.Option(metavar="NAME", help="mlp or conv.")] = "mlp",
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Fewer updates of each part than usual.")
    ] = None,
    max_minutes: Annotated[
        float, typer.Option(metavar="M", min=0.0, help="Of training, all parts; 0: no limit.")
    ] = 0.0,
    test_rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many test images are looked at.")
    ] = 1_000,
    output: PictureFolder = Path("results"),
) -> None:
    """Choose pixels of MNIST one by one, in every way; POSTMATCH_DATA names the folder of mnist/.

    Sampled gains are the paper's, amortised ones ours; lookahead posteriors are its short cut.
    Beside them stand the best fixed order and a random one.
    """
    from postmatch.models import device_of
    from postmatch.recipes import acquisition_run
    from postmatch.recipes.acquisition import NETWORKS, Config
    from postmatch.training.progress import progress_bar

    with session(running) as here:
        if network not in NETWORKS:
            raise ValueError(f"--network must be one of {', '.join(NETWORKS)}, got {network!r}")
        check_output(output, "matplotlib")
        config = Config(network=network)
        if steps is not None:
            config = dataclasses.replace(config, steps=steps, joint_steps=steps, gain_steps=steps)
        with progress_bar("Training", quiet=here.quiet) as show:
            result = acquisition_run.run(
                output,
                config=config,
                test_rows=test_rows,
                seed=running.seed,
                max_seconds=60.0 * max_minutes,
                device=device_of(running.device),
                show=show,
            )
        here.settle()
        here.show(_errors(result))
        here.say(f"Written to {output}.")
        here.result(result)


def _errors(result: dict[str, Any]) -> Grid:
    """Return the error of every way after some pixels."""
    grid = Grid(box=box.SIMPLE_HEAD, title="root mean square error by pixels looked at")
    grid.add_column("chosen by")
    for count in _SHOWN:
        grid.add_column(str(count), justify="right")
    for way, values in result["curves"].items():
        grid.add_row(way, *(f"{values[c]:.3f}" if c < len(values) else "" for c in _SHOWN))
    return grid
