"""Copy trained and judged models of images into the package, to be shipped with it.

Usage: python benchmarks/stock_zoo.py                  the models in MODELS
       python benchmarks/stock_zoo.py mnist-vdvae mnist-conv --results results

`mnist-vdvae` is results/inpainting-mnist-vdvae.json and
results/weights/inpainting-mnist-vdvae.safetensors, as `postmatch reproduce inpainting` leaves them.
All are copied or none: a result without scores or with those of a judging that was cut off or of a
part of the test images, one of another model, weights that are not in half precision though it
could hold them, and more than 40 MB in all are refused. Prints one JSON line, the bytes of every
file.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import torch as safetensors

from postmatch import zoo
from postmatch.recipes.inpainting_run import read_model, result_path, weights_path
from postmatch.recipes.scores import MASK_SEEDS

MODELS = ("mnist-vdvae", "omniglot-vdvae", "mnist-vqvae", "omniglot-vqvae")
MOST_BYTES = 40_000_000
LARGEST_HALF = torch.finfo(torch.float16).max  # less than a codebook's sums over many images
SCORES = {"psnr", "precision", "recall"}
TEST_ROWS = {"mnist": 10_000, "omniglot": 13_180}


def main() -> None:
    """Copy, and print what is shipped now."""
    arguments = parse()
    try:
        sizes = stock(arguments.names or MODELS, arguments.results, arguments.zoo)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(json.dumps({"bytes": sum(sizes.values()), "files": sizes}))


def parse() -> argparse.Namespace:
    """Return the options."""
    assert __doc__ is not None
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("names", nargs="*", metavar="NAME", help=f"by default {', '.join(MODELS)}")
    options.add_argument("--results", type=Path, default=Path("results"))
    options.add_argument("--zoo", type=Path, default=zoo.FOLDER)
    return options.parse_args()


def stock(names: Sequence[str], results: Path, folder: Path) -> dict[str, int]:
    """Copy models from a folder of results, and return the bytes of all files that are shipped.

    Raises:
        FileNotFoundError: If a result or its weights are missing.
        ValueError: If one of them cannot be shipped; then nothing is copied.
    """
    files: dict[str, bytes] = {}
    for name in names:
        result, weights = files_of(name, results)
        files |= {f"{name}.safetensors": weights, f"{name}.json": result}
    there = [path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".safetensors")]
    sizes = {path.name: path.stat().st_size for path in there}
    sizes |= {name: len(content) for name, content in files.items()}
    total = sum(sizes.values())
    if total > MOST_BYTES:
        raise ValueError(f"{MOST_BYTES:,} bytes can be shipped, and these would be {total:,}")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return sizes


def files_of(name: str, results: Path) -> tuple[bytes, bytes]:
    """Return the result and the weights of a model that can be shipped."""
    dataset, _, model = name.partition("-")
    path, weights = (place(results, dataset, model) for place in (result_path, weights_path))
    result, _ = read_model(path, weights, torch.device("cpu"))
    if (result["dataset"], result["model"]) != (dataset, model):
        raise ValueError(f"{path} is the result of {result['dataset']}-{result['model']}")
    how = f"postmatch reproduce inpainting --dataset {dataset} --model {model} --evaluate-only"
    if not set(result.get("metrics", ())) >= SCORES:
        raise ValueError(f"{path} has no scores: {how} finds them")
    if (count := len(result["mask_seeds"])) < len(MASK_SEEDS):
        raise ValueError(
            f"{path} has scores of {count} of {len(MASK_SEEDS)} draws of masks: {how} finds all"
        )
    if (rows := result["rows"]["test"]) != TEST_ROWS.get(dataset, rows):
        raise ValueError(
            f"{path} has scores of {rows:,} of {TEST_ROWS[dataset]:,} test images: {how} finds all"
        )
    content = weights.read_bytes()
    for key, value in safetensors.load(content).items():
        if value.dtype != torch.float16 and value.abs().max() <= LARGEST_HALF:
            raise ValueError(f"{weights} must hold half precision alone, and not so {key}")
    return path.read_bytes(), content


if __name__ == "__main__":
    main()
