"""``postmatch export``: a model that chooses what to measure, without PyTorch."""

from pathlib import Path
from typing import Annotated, Any

import typer

from postmatch.cli.acquiring import Acquiring
from postmatch.cli.files import Source, check_writable_place
from postmatch.cli.groups import FittedModel, OptionalTable, Reading, Running
from postmatch.cli.models import loaded
from postmatch.cli.session import session

EXAMPLES = """
    postmatch export people.csv -m people.model --onnx people.onnx --target income
    postmatch export people.csv -m people.model --onnx people.onnx --cost scan=40 --cannot name
    postmatch export -m people.model --onnx people.onnx        learns from rows of the model's own
"""
DRAWN_ROWS = 4_000


def export(
    model: FittedModel,
    onnx: Annotated[
        Path, typer.Option("--onnx", metavar="DIR", help="A folder for the ONNX files.")
    ],
    reading: Reading,
    acquiring: Acquiring,
    running: Running,
    table: OptionalTable = None,
    steps: Annotated[
        int, typer.Option(metavar="N", min=1, help="How long the network of gains is trained.")
    ] = 1_000,
) -> None:
    """Write a model as ONNX files, for machines without PyTorch.

    First one more network is trained, on the rows of TABLE, to tell at once what each measurement
    is expected to teach; then that network, the encoder of partly known rows and the decoder are
    written. postmatch.fast.FastAcquirer reads them with ONNX Runtime, and chooses in microseconds.
    """
    with session(running) as here:
        from postmatch.table_export import export_table
        from postmatch.training.progress import progress_bar

        _check_folder(onnx)
        learned = loaded(here, model)
        asks = acquiring.acquirer(learned, running.seed)
        rows: Any = (
            learned.draw(DRAWN_ROWS, seed=running.seed)
            if table is None
            else Source(table, reading).read().data
        )
        with progress_bar("Learning gains", quiet=here.quiet) as show:
            fitted = asks.fit(rows, steps=steps, seed=running.seed, show=show)
        export_table(onnx, fitted)
        here.finish(str(onnx))


def _check_folder(folder: Path) -> None:
    """Raise unless files can be written there, before minutes go into training."""
    place = folder.resolve()
    if place.exists() and not place.is_dir():
        raise typer.BadParameter(f"{folder} is a file; --onnx wants the name of a folder")
    above = next(parent for parent in (place, *place.parents) if parent.exists())
    check_writable_place(above / "acquirer.json", folder)
