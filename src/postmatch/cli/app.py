"""The commands, and how they are called."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from postmatch.cli import (
    acquire,
    cluster,
    describe,
    export,
    fit,
    impute,
    inpaint,
    report,
    reproduce,
    reproduce_acquisition,
    reproduce_clustering,
    reproduce_inpainting,
    reproduce_latent,
    sample,
    score,
    zoo,
)
from postmatch.cli.groups import expanded

app = typer.Typer(
    name="postmatch",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(command: Callable[..., None], examples: str, to: typer.Typer = app) -> None:
    lines = [line.strip() for line in examples.strip().splitlines()]
    epilog = "Examples:\n\n" + "\n\n".join(f"`{line}`" for line in lines)
    to.command(epilog=epilog)(expanded(command))


_add(impute.impute, impute.EXAMPLES)
_add(fit.fit, fit.EXAMPLES)
_add(sample.sample, sample.EXAMPLES)
_add(score.score, score.EXAMPLES)
_add(describe.describe, describe.EXAMPLES)
_add(report.report, report.EXAMPLES)
_add(cluster.cluster, cluster.EXAMPLES)
_add(acquire.acquire, acquire.EXAMPLES)
_add(export.export, export.EXAMPLES)
_add(inpaint.inpaint, inpaint.EXAMPLES)
_add(zoo.models, zoo.EXAMPLES)

experiments = typer.Typer(no_args_is_help=True, help="Run an experiment of the paper.")
_add(reproduce.uci, reproduce.UCI_EXAMPLES, experiments)
_add(reproduce_inpainting.inpainting, reproduce_inpainting.INPAINTING_EXAMPLES, experiments)
_add(reproduce_latent.mnist_latent, reproduce_latent.LATENT_EXAMPLES, experiments)
_add(reproduce_clustering.clustering, reproduce_clustering.CLUSTERING_EXAMPLES, experiments)
_add(reproduce_acquisition.acquisition, reproduce_acquisition.ACQUISITION_EXAMPLES, experiments)
app.add_typer(experiments, name="reproduce")


def _version(wanted: bool) -> None:
    if wanted:
        from postmatch import __version__

        print(f"postmatch {__version__}")
        raise typer.Exit


@app.callback(epilog="postmatch COMMAND --help says more, with examples.")
def postmatch(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Fill the holes of a table, with uncertainty you can trust.

    postmatch impute table.csv
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if os.environ.get("RANK", "0") != "0" and words[:1] != ["fit"]:
        return 0  # torchrun started several processes, and only a fit shares its work
    try:
        app(words, prog_name="postmatch")
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    return 0
