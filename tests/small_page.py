"""The page about images, of results that were never had."""

import sys
from pathlib import Path
from typing import Any

from small_zoo import result_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from render_images import render

ROOT = Path(__file__).parents[1]
SCORES = {
    "psnr": 21.2344,
    "psnr_std": 0.0321,
    "psnr_per_sample": 18.7654,
    "psnr_per_sample_std": 0.0456,
    "precision": 0.9136,
    "precision_std": 0.0042,
    "recall": 0.9874,
    "recall_std": 0.0016,
}
STEP = {
    "benchmark": "partial_cost",
    "dataset": "mnist",
    "model": "vdvae",
    "parameters": {"vae": 4_000, "both": 6_000},
    "ms_vae": 8.0,
    "ms_both": 10.0,
    "batch_size": 128,
    "precision": "bfloat16",
    "seed": 0,
    "commit": "abc1234",
    "hardware": "Some GPU",
}


def judged(dataset: str, model: str, **changes: Any) -> dict[str, Any]:
    result = result_of(dataset, "vdvae", metrics=SCORES)
    config = result["config"] | {"steps": 30_000}  # of which nothing else matters here
    return result | {"model": model, "config": config} | changes


def page(*results: dict[str, Any], pictures: tuple[str, ...] = (), **rest: Any) -> str:
    there = {name: f"img/{name}" for name in pictures}
    return render({(r["dataset"], r["model"]): r for r in results}, there, **rest)


def rows_of(text: str, section: str) -> list[list[str]]:
    """Return the cells of all tables below a heading, without their headings."""
    lines = text.split(f"## {section}\n")[1].split("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    rulers = [i for i, row in enumerate(cells) if row[0] == "---"]
    heads = {*rulers, *(i - 1 for i in rulers)}
    return [row for i, row in enumerate(cells) if i not in heads]


def drawn(**changes: float) -> dict[str, Any]:
    """Return scores with those of drawn pixels, which are a tenth less but for changes."""
    of_pixels = {
        f"drawn_{name}": value - (0 if name.endswith("_std") else 0.1)
        for name, value in SCORES.items()
    }
    return {"metrics": SCORES | of_pixels | changes}
