"""Options that several of the ``postmatch reproduce`` commands have, and what they must fit."""

from collections.abc import Mapping
from importlib.util import find_spec
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

_PICTURES = {
    "PIL": "picture files need Pillow: pip install 'postmatch[images]'",
    "matplotlib": "pictures need matplotlib: pip install 'postmatch[plot]'",
    "umap": "a map of the latent space needs UMAP: pip install 'postmatch[umap]'",
}


def lacking(*modules: str) -> list[str]:
    """Return what to install for the pictures of a command, of modules that are not there."""
    return [_PICTURES[name] for name in modules if not _there(name)]


def check_output(folder: Path, *modules: str) -> None:
    """Make the folder of a result, so that what would fail after a training fails before it.

    Args:
        folder: Where the result goes.
        modules: What its pictures are drawn with.

    Raises:
        ValueError: If it is no folder.
        ModuleNotFoundError: If a module is not there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"--output must be a folder, and {folder} is not one") from None
    if missing := lacking(*modules):
        raise ModuleNotFoundError("; ".join(missing))


def check_alone(flag: str, others: Mapping[str, object]) -> None:
    """Raise if options of a training stand beside a flag that trains nothing.

    Args:
        flag: Its name.
        others: The options by name; those that are None, zero or False were not given.
    """
    if given := [name for name, value in others.items() if value]:
        raise ValueError(f"{flag} trains nothing, so that {', '.join(given)} cannot be asked for")


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # what tests put in the place of one that is missing
        return False
