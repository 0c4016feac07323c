"""Trained models of images that are shipped with the package, and how they were made and judged.

Each is two files of this folder: ``<name>.json``, its result as ``postmatch reproduce inpainting``
writes it, and ``<name>.safetensors``, the weights in half precision that the result is about.
``benchmarks/stock_zoo.py`` puts them here.
"""

import difflib
from pathlib import Path
from typing import Any

import torch

from postmatch.conditioning import MatchedVAE
from postmatch.folders import parsed
from postmatch.models import device_of
from postmatch.recipes.inpainting_config import CHANNELS, SIZES
from postmatch.recipes.inpainting_run import read_model

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the names of the shipped models."""
    results = sorted(FOLDER.glob("*.json"))
    return [path.stem for path in results if path.with_suffix(".safetensors").exists()]


def describe(name: str) -> dict[str, Any]:
    """Return the result of a shipped model, with the shape of its images and the file's size.

    Raises:
        ValueError: If no shipped model has this name.
    """
    path, weights = _files(name)
    result = parsed(path.read_bytes(), path.name)
    size = SIZES[result["dataset"]]
    shape = [CHANNELS[result["dataset"]], size, size]
    return {"name": name, "image_shape": shape, "bytes": weights.stat().st_size, **result}


def pretrained(name: str, *, device: str | torch.device = "auto") -> MatchedVAE:
    """Return a trained model of images that is shipped with this package, ready to be asked.

    It takes ``x`` in [0, 1], ``(batch, channels, height, width)``, and ``observed``,
    ``(batch, 1, height, width)``: ``pretrained(name).given(x, observed).draws(6)``.

    Args:
        name: One of those that ``postmatch models`` lists, such as ``mnist-vdvae``.
        device: Where it shall answer; ``auto`` is a GPU if there is one.

    Raises:
        ValueError: If no shipped model has this name.
    """
    _, model = read_model(*_files(name), device_of(device))
    return model


def unknown(name: str) -> str:
    """Return the message about a name that no shipped model has, with those that come close."""
    there = names()
    if not there:
        return f"no models are shipped with this installation, so none is named {name!r}"
    close = difflib.get_close_matches(name, there, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no shipped model is named {name!r}: there are {', '.join(there)}{hint}"


def _files(name: str) -> tuple[Path, Path]:
    """Return where the result and the weights of a shipped model are."""
    if name not in names():
        raise ValueError(f"name: {unknown(name)}")
    return FOLDER / f"{name}.json", FOLDER / f"{name}.safetensors"
