"""Draw docs/img/scaling.svg from the lines of scaling.py, and from nothing else."""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from scaling import SIZES

WAYS = {"ms_per_step": "ours, one pass", "standin_ms_per_step": "stand-in, one pass per latent"}
FORMATS = {"parquet": "Parquet", "csv": "CSV"}
USUAL = {"precision": "float32", "compiled": False}
KEY = ("what", "batch", "latent", "command", "format", "rows")
STABLE = {"svg.hashsalt": "scaling", "font.size": 9.0}  # equal results give equal files
PLAIN = FuncFormatter(lambda value, _: f"{value:,g}" if value >= 10_000 else f"{value:g}")


def main() -> None:
    """Render the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", type=Path, default=Path("results/performance.jsonl"))
    parser.add_argument("--output", type=Path, default=Path("docs/img/scaling.svg"))
    parser.add_argument("--shape", default="power", help="of the model whose steps are drawn")
    parser.add_argument("--device", default="cpu", help="that took the steps, as in their lines")
    arguments = parser.parse_args()
    steps = {"shape": arguments.shape, "device": arguments.device} | USUAL
    lines = latest(arguments.input, steps)
    for what in SIZES:
        if not lines[what]:
            parser.error(f"{arguments.input} has no line of scaling.py --what {what}")
    with mpl.rc_context(STABLE):
        figure = Figure(figsize=(11.0, 3.9), layout="constrained")
        batch, latent, memory = figure.subplots(1, 3)
        title = f"Training step, {all_of(lines['batch'], 'latent')} latents"
        draw_steps(batch, lines["batch"], "batch", "rows of a batch", title)
        title = f"Training step, batches of {all_of(lines['latent'], 'batch')}"
        draw_steps(latent, lines["latent"], "latent", "latents", title)
        title = f"Command line, {all_of(lines['memory'], 'columns')} columns"
        draw_memory(memory, lines["memory"], title)
        figure.supxlabel(provenance(lines), fontsize=6.5, color="0.4")
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(arguments.output, dpi=150, metadata={"Date": None})


def latest(path: Path, steps: dict[str, object]) -> dict[str, list[dict]]:
    """Return the results of each kind in a file, only the last of those run twice.

    Args:
        path: The file.
        steps: What the lines about training steps must say; those about memory need not.
    """
    found = {}
    for line in map(json.loads, path.read_text().splitlines()):
        if line["benchmark"] != "scaling":
            continue
        if line["what"] == "memory" or steps.items() <= line.items():
            found[tuple(line.get(k) for k in KEY)] = line
    kinds = defaultdict(list)
    for line in found.values():
        kinds[line["what"]].append(line)
    return kinds


def draw_steps(axes: Axes, lines: list[dict], what: str, label: str, title: str) -> None:
    """Draw the time of a step, both ways, against one of its sizes."""
    for field, way in WAYS.items():
        points = sorted((line[what], line[field]) for line in lines)
        axes.plot(*zip(*points, strict=True), "o-", label=way)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PLAIN)
    axes.margins(y=0.2)
    axes.legend(loc="upper left")
    dress(axes, title, label, "milliseconds per step", {line[what] for line in lines})


def draw_memory(axes: Axes, lines: list[dict], title: str) -> None:
    """Draw the peak memory of commands against rows, from zero, and the size of the table."""
    series = defaultdict(list)
    for line in lines:
        name = f"{line['command']}, {FORMATS[line['format']]}"
        series[name].append((line["rows"], line["peak_mib"]))
    for name, points in series.items():
        axes.plot(*zip(*sorted(points), strict=True), "o-", label=name)
    table = sorted({(line["rows"], line["table_mib"]) for line in lines})
    axes.plot(*zip(*table, strict=True), "--", color="0.5", label="the table itself, as numbers")
    axes.set_ylim(bottom=0.0)
    axes.legend(loc="center left")
    dress(axes, title, "rows of the table", "peak resident memory, MiB", {x for x, _ in table})


def dress(axes: Axes, title: str, x: str, y: str, sizes: set[int]) -> None:
    """Label the axes, and give every size a mark on a logarithmic one."""
    axes.set(title=title, xlabel=x, ylabel=y, xscale="log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(sizes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(PLAIN)
    axes.grid(color="0.9")


def all_of(lines: list[dict], field: str) -> str:
    """Return the values of a field that should be one."""
    return ", ".join(map(str, sorted({line[field] for line in lines})))


def provenance(lines: dict[str, list[dict]]) -> str:
    """Return what made the results, a line for each machine and commit."""
    fields = ("device", "hardware", "torch", "commit")
    made = {tuple(line[field] for field in fields) for kind in lines.values() for line in kind}
    return "\n".join(
        f"{device}; {hardware}; torch {torch}; commit {commit}"
        for device, hardware, torch, commit in sorted(made)
    )


if __name__ == "__main__":
    main()
