"""Where data sets are."""

import os
from pathlib import Path

VARIABLE = "POSTMATCH_DATA"


def data_folder(name: str) -> Path:
    """Return the folder of a data set inside the one that ``POSTMATCH_DATA`` names.

    Raises:
        FileNotFoundError: If the variable is not set or the folder is not there.
    """
    root = os.environ.get(VARIABLE)
    if not root:
        raise FileNotFoundError(
            f"{VARIABLE} is not set: it should name a folder that holds {name}/"
        )
    folder = Path(root) / name
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there; {VARIABLE} should name its parent")
    return folder
