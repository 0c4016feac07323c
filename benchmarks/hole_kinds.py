"""Tell which holes decide a PSNR: those without a stroke, single pixels, or areas.

Usage: POSTMATCH_DATA=... python benchmarks/hole_kinds.py omniglot --models vdvae vqvae vaeac
       POSTMATCH_DATA=... python benchmarks/hole_kinds.py mnist --models vqvae --images 50

Prints one JSON line for each model; results/hole_kinds.jsonl is what docs/images.md reads. Test
images are drawn at random, with one draw of masks, the same for all models. Shipped models are
judged; of peers, and of faces, those whose results and weights are in results/.

Of every kind of hole stand `images`, how many there are, and `psnr`, that of the mean of ten draws.
`error` is the squared error of a pixel that the mean of very many draws would have, and `spread`
the variance of draws: they are equal if draws are what the truth might be. With ten draws, the mean
has an error of `error + spread / 10`. `imputed` is the PSNR of what `impute` returns, which is the
mean of 32 draws that are spread evenly, so that it comes close to that of very many.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from postmatch import zoo
from postmatch.data.images import load_images
from postmatch.image_metrics import psnr
from postmatch.models import device_of
from postmatch.randomness import seeded
from postmatch.recipes.inpainting import masks_of
from postmatch.recipes.inpainting_config import DATASETS, Dataset
from postmatch.recipes.inpainting_run import read_model, result_path, weights_path
from postmatch.recipes.inpainting_scores import DRAWS, Filler, Imputer, decoder, filler, imputer
from postmatch.recipes.results import provenance

sys.path.insert(0, str(Path(__file__).parent / "baselines"))

import image_run
import image_vaeac

MODELS = ("vdvae", "vqvae", "vaeac")
TRAINED = ("train_minutes", "steps", "commit")  # what is told of a training
RATIOS = {"psnr", "imputed"}
AT_ONCE = 50  # images
ALTERNATING = 0.2  # the part of neighbours that differ, above which a mask is of single pixels


def main(argv: Sequence[str] | None = None) -> None:
    """Fill, tell apart and print."""
    arguments = parse(argv)
    device = device_of(arguments.device)
    x, observed = asked(arguments.dataset, arguments.images, device)
    for name in arguments.models:
        fill, impute, trained = model_of(arguments.dataset, name, arguments.results, device)
        found = {"benchmark": "hole_kinds", "dataset": arguments.dataset, "model": name}
        found |= {"trained": {each: trained[each] for each in TRAINED}, "draws": DRAWS}
        found |= {"kinds": by_kind(fill, impute, x, observed)} | provenance(device)
        print(json.dumps(found), flush=True)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's arguments."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", choices=DATASETS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["vdvae", "vqvae"])
    parser.add_argument("--images", type=int, default=1_000, help="how many are filled at most")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where others are")
    parser.add_argument("--device", default="auto", help="cuda, cpu, or auto")
    return parser.parse_args(argv)


def asked(dataset: Dataset, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return test images and what is observed of them."""
    images = load_images(dataset).test
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:count]
    x = images[chosen] / 255.0
    observed = masks_of(dataset).sample((len(x), 1, *x.shape[2:]), torch.Generator().manual_seed(0))
    return x.to(device), observed.to(device)


def model_of(
    dataset: Dataset, model: str, folder: Path, device: torch.device
) -> tuple[Filler, Imputer, dict[str, Any]]:
    """Return what fills images, by draws and at best, and the result it comes with."""
    if (name := f"{dataset}-{model}") in zoo.names():
        shipped = zoo.pretrained(name, device=device)
        return filler(decoder(shipped)), imputer(shipped), zoo.describe(name)
    files = (place(folder, dataset, model) for place in (result_path, weights_path))
    if model == image_run.MODEL:
        result, peer = image_run.read_model(*files, device)
        return filler(image_vaeac.decoder(peer)), image_vaeac.imputer(peer), result
    result, ours = read_model(*files, device)
    return filler(decoder(ours)), imputer(ours), result


def kinds_of(x: Tensor, observed: Tensor) -> dict[str, Tensor]:
    """Return which images have which kind of hole."""
    blank = (x * ~observed).flatten(1).sum(1) == 0.0
    turns = (observed[:, :, 1:] != observed[:, :, :-1]).float().flatten(1).mean(1)
    pixels = (turns > ALTERNATING) & ~blank
    return {"blank": blank, "pixels": pixels, "areas": ~blank & ~pixels}


@torch.no_grad()
def by_kind(
    fill: Filler, impute: Imputer, x: Tensor, observed: Tensor
) -> dict[str, dict[str, Any]]:
    """Return how well holes of each kind are filled; see above."""
    blocks = zip(torch.split(x, AT_ONCE), torch.split(observed, AT_ONCE), strict=True)
    with seeded(0):
        found = [scores_of(fill(own, seen), impute(own, seen), own) for own, seen in blocks]
    every = {name: torch.cat([each[name] for each in found]) for name in found[0]}
    kinds = {"all": torch.ones(len(x), dtype=torch.bool, device=x.device)} | kinds_of(x, observed)
    return {kind: summary(every, own) for kind, own in kinds.items()}


def scores_of(filled: Tensor, imputed: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Return the scores of each image; ``filled`` is ``(draws, images, ...)``."""
    spread = filled.var(0).flatten(1).mean(1)
    of_mean = (filled - x).mean(0).square().flatten(1).mean(1)
    ratios = {"psnr": psnr(filled, x), "imputed": psnr(imputed[None], x)}
    return ratios | {"error": of_mean - spread / len(filled), "spread": spread}


def summary(every: dict[str, Tensor], own: Tensor) -> dict[str, Any]:
    """Return means over some of the images; one without any error has no PSNR."""
    chosen = {name: values[own] for name, values in every.items()}
    for name in RATIOS & chosen.keys():
        chosen[name] = chosen[name][chosen[name].isfinite()]
    means = {name: float(v.mean()) if len(v) else None for name, v in chosen.items()}
    return {"images": int(own.sum())} | means


if __name__ == "__main__":
    main()
