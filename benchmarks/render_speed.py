"""The section of docs/images.md about speed, of lines of performance.jsonl."""

from collections.abc import Mapping, Sequence
from typing import Any

from render_scoreboard import table

Result = dict[str, Any]
SPEED = """
## How fast

Milliseconds for the fillings of one image of 28 x 28 pixels by a shipped model that is loaded
(`benchmarks/inpaint_speed.py`):

"""
CODES = """
Codes are drawn one by one. What earlier ones are worth to the network is kept, so that a code takes
the arithmetic of one place in place of the whole network's. The same weights and noise, both ways,
in milliseconds (`benchmarks/pixelcnn_sampling.py`):

"""
STEP = """
A training step of the paper's VDVAE of MNIST, with both encoders, in bfloat16, took {ms:.1f} ms on
an {hardware} (batch {batch_size}, {parameters:,} parameters, commit {commit}; the least of the
times that `benchmarks/hierarchy_step.py` has told, commit by commit).
"""


def speed_section(lines: Sequence[Result]) -> str:
    """Return what is known of speed, nothing if that is nothing.

    Args:
        lines: Of any benchmarks; of those run twice on the same, the last counts.
    """
    each = {name: [n for n in lines if n["benchmark"] == name] for name in WRITERS}
    return "".join(write(each[name]) for name, write in WRITERS.items() if each[name])


def _fillings(lines: Sequence[Result]) -> str:
    latest = {(line["model"], line["draws"], line["hardware"]): line for line in lines}
    headings = ("model", "fillings", "ms", "hardware", "commit")
    rows = [
        [n["model"], str(n["draws"]), f"{n['ms']:.0f}", n["hardware"], n["commit"]]
        for n in latest.values()
    ]
    return SPEED + "\n".join([*table(headings, rows), ""])


def _codes(lines: Sequence[Result]) -> str:
    latest = {(str(n["grid"]), n["parameters"], n["hardware"]): n for n in lines}
    headings = ("grid", "parameters", "grids at once", "kept", "one pass per code", "speed-up")
    headings = (*headings, "codes that differ", "hardware", "commit")
    rows = [
        [
            " x ".join(str(side) for side in n["grid"]),
            f"{n['parameters']:,}",
            str(n["batch"]),
            f"{n['ms_cached']:.0f}",
            f"{n['ms_naive']:,.0f}",
            f"{n['speedup']:.0f}",
            str(n["differences"]),
            n["hardware"],
            n["commit"],
        ]
        for n in latest.values()
    ]
    return CODES + "\n".join([*table(headings, rows), ""])


def _step(lines: Sequence[Result]) -> str:
    least: Mapping[str, Any] = min(lines, key=lambda line: line["ms_per_step"])
    return STEP.format(ms=least["ms_per_step"], **least)


WRITERS = {"inpaint_speed": _fillings, "pixelcnn_sampling": _codes, "hierarchy_step": _step}
