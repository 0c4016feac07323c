"""Options that several of the ``postmatch reproduce`` commands have."""

from pathlib import Path
from typing import Annotated

import typer

MaxMinutes = Annotated[
    float, typer.Option(metavar="M", min=0.0, help="Train no longer than this; 0: no limit.")
]
TestImages = Annotated[
    int | None, typer.Option(metavar="N", min=20, help="How many test images are judged.")
]
EvaluateOnly = Annotated[
    bool, typer.Option("--evaluate-only", help="Judge the weights that are kept in DIR.")
]
CheckpointFolder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Save there every minute, and go on from what it holds."),
]
ResultFolder = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Where the result goes.")
]
PictureFolder = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Where result and picture go.")
]
