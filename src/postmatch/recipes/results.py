"""The files of a result: its numbers, all that tells where they come from, and the weights."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from postmatch.folders import to_json

M = TypeVar("M", bound=nn.Module)


def provenance(device: torch.device) -> dict[str, str]:
    """Return the commit and the hardware that a result comes from."""
    return {"commit": commit(), "hardware": hardware(device), "torch": torch.__version__}


def commit() -> str:
    """Return the short hash of the source's checkout, or what ``POSTMATCH_COMMIT`` says."""
    if named := os.environ.get("POSTMATCH_COMMIT"):  # a copy of the tree without its history
        return named
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def hardware(device: torch.device) -> str:
    """Return the name of the GPU, or of the processor and its number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name, information = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        name = names[0] if names else name
    return f"{name}, {os.cpu_count()} cores"


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON, whole or not at all."""
    _write(path, to_json(result))


def read_result(path: Path, weights: Path) -> dict[str, Any]:
    """Return the result of a training whose weights were kept.

    Raises:
        FileNotFoundError: If one of them is missing.
    """
    for needed in (path, weights):
        if not needed.exists():
            raise FileNotFoundError(f"{needed} is not there: train the model before it is judged")
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def write_weights(path: Path, model: nn.Module) -> None:
    """Write a model's tensors in half precision; what is judged is what was written.

    One that holds larger numbers than half precision knows, as sums over many rows do, stays as it
    is.
    """
    small = {name: _halved(value).cpu() for name, value in model.state_dict().items()}
    _write(path, safetensors.save({name: value.contiguous() for name, value in small.items()}))


def read_weights(path: Path, model: M) -> M:
    """Return a model with the tensors of a file.

    Raises:
        ValueError: If they are not those of this model.
    """
    try:
        model.load_state_dict(safetensors.load(path.read_bytes()))
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} does not hold the weights of this model: {reason}") from None
    return model


def _halved(value: Tensor) -> Tensor:
    half = value.half()
    return half if torch.equal(half.isfinite(), value.isfinite()) else value


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
