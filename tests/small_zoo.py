"""Untrained, small models of images, with the files of trained ones."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from postmatch.recipes.inpainting import build
from postmatch.recipes.inpainting_config import Config, config_of
from postmatch.recipes.results import write_result, write_weights

TEST_ROWS = {"mnist": 10_000, "omniglot": 13_180, "celeba": 4_640}
SMALL = {
    "encoder": "28x1,28d4,7d7,1x1", "decoder": "1x1,7m1,28m7", "width": 12, "bottleneck": 4,
    "latent_channels": 2, "components": 2, "latent_size": 3, "num_codes": 8, "code_size": 4,
    "code_width": 8, "posterior_width": 8, "posterior_blocks": 2, "context_width": 8,
    "context_hidden": 4, "prior_width": 8, "prior_blocks": 2,
}  # fmt: skip


def small_config(dataset: Any, model: Any) -> Config:
    return dataclasses.replace(config_of(dataset, model), **SMALL)


def result_of(dataset: str, model: str, **changes: Any) -> dict[str, Any]:
    """Return what a training and a judgement would tell, with the numbers of neither."""
    config = dataclasses.asdict(small_config(dataset, model))
    return {
        "experiment": "inpainting",
        "dataset": dataset,
        "model": model,
        "config": json.loads(json.dumps(config)),  # without tuples, as it would be read
        "seed": 7,
        "commit": "abc1234",
        "hardware": "Some GPU",
        "train_minutes": 12.345,
        "steps": 30_000,
        "parameters": {"vae": 4_540_000, "partial": 2_110_000},
        "rows": {"train": 54_000, "test": TEST_ROWS[dataset]},
        "mask_seeds": [0, 1, 2, 3, 4],
        "metrics": {"psnr": 21.2345, "precision": 0.9876, "recall": 0.9765},
    } | changes


def write_model(result: Path, weights: Path, dataset: str, model: str, **changes: Any) -> None:
    """Write the two files of a model; each pair of data set and kind has weights of its own."""
    torch.manual_seed(len(dataset) + 10 * len(model))
    write_weights(weights, build(small_config(dataset, model)))
    write_result(result, result_of(dataset, model, **changes))


def ship(folder: Path, dataset: str, model: str, **changes: Any) -> str:
    """Put a model into a folder as shipped ones are, and return its name."""
    name = f"{dataset}-{model}"
    result, weights = (folder / f"{name}.{suffix}" for suffix in ("json", "safetensors"))
    write_model(result, weights, dataset, model, **changes)
    return name
