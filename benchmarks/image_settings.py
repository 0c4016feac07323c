"""Tell what a change of a model's settings is worth: short trainings, judged by held-out images.

Usage: python benchmarks/image_settings.py mnist --minutes 3.3 --with code_window=2 num_codes=256
       python benchmarks/image_settings.py mnist --model vdvae --with orthogonal_rate=0
       python benchmarks/image_settings.py mnist --minutes 0.2 --images 20

Prints one JSON line; results/codes.jsonl holds some. Training images that it does not learn from
are filled, ten times each: `psnr` is that of the mean, `psnr_per_sample` that of single draws. Of a
VQ-VAE, `psnr_of_true_codes` is what a posterior that never errs would reach, and `nats` how much
the posterior leaves to tell of an image's codes. Trainings side by side share a device, so compare
only those that ran together; `--side-by-side` notes how many did.
"""

import argparse
import ast
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.image_metrics import psnr, psnr_per_sample
from postmatch.models import device_of
from postmatch.objectives import match
from postmatch.randomness import seeded
from postmatch.recipes.image_judging import training_images
from postmatch.recipes.inpainting import fit, masks_of
from postmatch.recipes.inpainting_config import DATASETS, MODELS, SIZES, Config, config_of
from postmatch.recipes.inpainting_scores import decoder, filler
from postmatch.recipes.results import provenance
from postmatch.vaes.vq import VQVAE

AT_ONCE = 500 * 28 * 28  # pixels


def main(argv: Sequence[str] | None = None) -> None:
    """Train, judge and print."""
    arguments = parse(argv)
    config = config_of(arguments.dataset, arguments.model)
    changed = dict(change(config, told) for told in arguments.changed)
    config = dataclasses.replace(config, **changed)
    device = device_of(arguments.device)
    images, held_out = training_images(config.dataset, device)
    model, report = fit(
        config, images, held_out, seed=arguments.seed, max_seconds=60.0 * arguments.minutes
    )
    found = {
        "benchmark": "image_settings",
        "dataset": config.dataset,
        "model": config.model,
        "changed": changed,
        "minutes": arguments.minutes,
        "side_by_side": arguments.side_by_side,
        "steps": report.steps,
        "seed": arguments.seed,
    }
    found |= judged(model, held_out[: arguments.images], config) | provenance(device)
    print(json.dumps(found), flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", choices=DATASETS)
    parser.add_argument("--model", choices=MODELS, default="vqvae")
    parser.add_argument("--with", dest="changed", nargs="+", default=[], metavar="NAME=VALUE")
    parser.add_argument("--minutes", type=float, default=3.3)
    parser.add_argument("--images", type=int, default=2_000, help="how many are filled at most")
    parser.add_argument("--side-by-side", type=int, default=1, help="trainings on this device")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto")
    return parser.parse_args(argv)


def change(config: Config, told: str) -> tuple[str, Any]:
    """Return name and value of a setting, ``name=value``, of the type that it has."""
    name, _, value = told.partition("=")
    known = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    if name not in known:
        raise SystemExit(f"--with: there is no setting {name!r}")
    if isinstance(known[name], str):
        return name, value
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise SystemExit(f"--with: {name} must be like {known[name]!r}, got {value!r}") from None


@torch.no_grad()
def judged(model: MatchedVAE, images: Tensor, config: Config) -> dict[str, Any]:
    """Return how well images are filled, and how much of codes, if there are any, is left open."""
    model.eval()
    size = SIZES[config.dataset]
    generator = torch.Generator().manual_seed(0)
    found: dict[str, list[Tensor]] = {}
    with seeded(0):
        for block in torch.split(images, AT_ONCE // size**2):
            x = block / 255.0
            observed = masks_of(config.dataset).sample((len(x), 1, size, size), generator)
            observed = observed.to(x.device)
            filled = filler(decoder(model))(x, observed)
            each = {"psnr": psnr(filled, x), "psnr_per_sample": psnr_per_sample(filled, x)}
            if isinstance(model.vae, VQVAE):
                each |= of_codes(model, x, observed)
            for name, values in each.items():
                found.setdefault(name, []).append(values)
    every = {name: torch.cat(values) for name, values in found.items()}
    means = {name: round(float(v[v.isfinite()].mean()), 3) for name, v in every.items()}
    return means | {"images": len(images)}


def of_codes(model: MatchedVAE, x: Tensor, observed: Tensor) -> dict[str, Tensor]:
    """Return what true codes would reach, and what the posterior leaves to tell of them."""
    codes = model.vae.encode(x)
    true = model.vae.decode(codes.sample()).mean.clamp(0.0, 1.0)
    return {
        "psnr_of_true_codes": psnr(torch.where(observed, x, true)[None], x),
        "nats": match(codes, model.partial(x, observed)),
    }


if __name__ == "__main__":
    main()
