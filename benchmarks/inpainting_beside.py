"""Train models of images side by side on one device, and judge them by the same classifier.

Usage: POSTMATCH_DATA=... python benchmarks/inpainting_beside.py celeba-vqvae celeba-vaeac \
           --max-minutes 16 -o build/beside
       POSTMATCH_DATA=... python benchmarks/inpainting_beside.py mnist-conv --steps 2 --test-rows 24

Each model has a process of its own, which runs the command that docs/images.md names for it, so
that all have the same minutes of the same device. A GPU takes turns with them, unless NVIDIA's MPS
runs, which `nvidia-cuda-mps-control -d` starts: then it works on several at once, and two models of
faces took a quarter more steps in a minute. The classifiers are trained before all else.
Results, pictures and `<model>.log` go to the folder, weights to weights/ in it. Prints one JSON
line for each model that was judged, in the form of the lines of results/inpainting_beside.jsonl;
ends with 1 if any was not, having let the others go on.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from postmatch.models import device_of
from postmatch.recipes.image_judging import Judging, classifier_of
from postmatch.recipes.inpainting_config import DATASETS, MODELS
from postmatch.recipes.inpainting_run import result_path

PEER = "vaeac"
NAMES = [f"{dataset}-{model}" for dataset in DATASETS for model in (*MODELS, PEER)]
SCORES = ("psnr", "psnr_per_sample", "precision", "recall")
LAST = 5  # lines of a log that are told if a command fails


def main(argv: Sequence[str] | None = None) -> int:
    """Train and judge what the command line names."""
    arguments = parse(argv)
    folder, device = arguments.output, device_of(arguments.device)
    folder.mkdir(parents=True, exist_ok=True)
    for dataset in {name.partition("-")[0] for name in arguments.names}:
        classifier_of(dataset, folder, Judging().classifier_steps, device)
    failed = run_all({name: command(name, arguments) for name in arguments.names}, folder)
    for name in arguments.names:
        if name not in failed:
            print(json.dumps(line_of(name, folder, len(arguments.names))), flush=True)
    return 1 if failed else 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="DATASET-MODEL")
    parser.add_argument("--max-minutes", type=float, default=0.0, help="of training; 0: no limit")
    parser.add_argument("--steps", type=int, help="fewer updates than usual")
    parser.add_argument("--test-rows", type=int, help="test images judged; all if not given")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/beside"), metavar="DIR")
    arguments = parser.parse_args(argv)
    if len(set(arguments.names)) < len(arguments.names):
        parser.error("each model can be named once")
    return arguments


def command(name: str, arguments: argparse.Namespace) -> list[str]:
    """Return what trains and judges a model."""
    dataset, _, model = name.partition("-")
    words = ["-m", "postmatch", "reproduce", "inpainting", "--model", model]
    if model == PEER:
        words = [str(Path(__file__).parent / "baselines" / "image_run.py")]
    words += ["--dataset", dataset, "--device", arguments.device, "-o", str(arguments.output)]
    words += ["--max-minutes", str(arguments.max_minutes)]
    for option in ("steps", "test_rows"):
        if (value := getattr(arguments, option)) is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    return [sys.executable, *words]


def run_all(commands: Mapping[str, Sequence[str]], folder: Path) -> set[str]:
    """Run all commands at once, wait for them, and return the names of those that failed."""
    # Each takes all cores otherwise, and waits for those of the others.
    threads = max(1, (os.cpu_count() or 1) // len(commands))
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    running: dict[str, subprocess.Popen[bytes]] = {}
    for name, words in commands.items():
        with log_of(name, folder).open("wb") as log:
            running[name] = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
    try:
        failed = {name for name, process in running.items() if process.wait()}
    finally:  # an interruption ends them all, and they save what they have
        for process in running.values():
            process.terminate()
            process.wait()
    for name in sorted(failed):
        last = log_of(name, folder).read_text(errors="replace").splitlines()[-LAST:]
        print("\n".join([f"{name} failed:", *last]), file=sys.stderr)
    return failed


def log_of(name: str, folder: Path) -> Path:
    """Return where a command's output goes."""
    return folder / f"{name}.log"


def line_of(name: str, folder: Path, count: int) -> dict[str, Any]:
    """Return the scores of a model, one of so many side by side."""
    dataset, _, model = name.partition("-")
    result = json.loads(result_path(folder, dataset, model).read_text())
    keys = [f"{prefix}{score}" for prefix in ("", "drawn_") for score in SCORES]
    scores = {k: result["metrics"][k] for key in keys for k in (key, f"{key}_std")}
    told = {key: result[key] for key in ("mask_seeds", "seed", "commit", "hardware", "torch")}
    return {
        "benchmark": "beside",
        "dataset": dataset,
        "model": model,
        "minutes": result["train_minutes"],
        "side_by_side": count,
        "steps": result["steps"],
        **scores,
        "images": result["rows"]["test"],
        "extractor": result["extractor"]["digest"],
        **told,
    }


if __name__ == "__main__":
    sys.exit(main())
