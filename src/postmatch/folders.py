"""Folders that appear with all of their files or not at all, and say if a file is not the same."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Files = dict[str, bytes]
MODEL_FILES = ("config.json", "table.json", "weights.safetensors")
CARD = "README.md"


def write_beside(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files to a hidden folder beside ``folder``, safe on the disk, and return it.

    The caller renames it to ``folder``, in one step that cannot be seen half done, or removes it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    partial.mkdir()
    try:
        for name, data in files.items():
            _write(partial / name, data)
    except BaseException:  # also Ctrl-C
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return partial


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def digest(data: bytes) -> str:
    """Return what tells a file from any other."""
    return hashlib.sha256(data).hexdigest()


def to_json(data: Any) -> bytes:
    """Return JSON for people to read, too."""
    text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def parsed(data: bytes, name: str) -> dict[str, Any]:
    """Return the object in a JSON file, or raise ValueError."""
    try:
        content = json.loads(data)
    except ValueError:
        raise ValueError(f"{name} is damaged: it does not read as JSON") from None
    if not isinstance(content, dict):
        raise ValueError(f"{name} is damaged: it must hold an object")
    return content
