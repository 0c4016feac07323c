"""The file of a result: its numbers, and all that one needs to know where they come from."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from postmatch.folders import to_json


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
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(to_json(result))
    part.replace(path)
