"""The folder of a fit that may be cut off: what it was asked for, and whether to go on with it."""

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from postmatch.folders import parsed, to_json

OPTIONS = "options.json"


def check_folder(folder: Path | None, *, resume: bool) -> None:
    """Raise where a fit would go on without a folder, or overwrite one that was cut off."""
    if folder is None:
        if resume:
            raise ValueError("resume needs checkpoints, the folder to go on from")
    elif not resume and folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} holds an unfinished training: resume it, or remove the folder")


def keep_options(folder: Path, options: Mapping[str, Any], *, resume: bool) -> None:
    """Write down what a fit is asked for; raise if one that goes on began with something else."""
    path, now = folder / OPTIONS, {name: _plain(value) for name, value in options.items()}
    if not resume:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_json(now))
        return
    began = parsed(path.read_bytes(), OPTIONS) if path.exists() else now
    for name, value in now.items():
        if began.get(name) != value:
            raise ValueError(
                f"{name}: the fit in {folder} began with {_said(began.get(name))} and not with "
                f"{_said(value)}; repeat the options it began with"
            )


def _plain(value: Any) -> Any:
    """Return what JSON gives back unchanged; of a collection without members, nothing."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()} or None
    if isinstance(value, Collection) and not isinstance(value, str):
        return [_plain(item) for item in value] or None
    return value


def _said(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
