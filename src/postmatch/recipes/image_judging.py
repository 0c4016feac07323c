"""The same training images, test images, masks and features for every model of images."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from postmatch.data.images import load_images
from postmatch.image_files import write_image
from postmatch.randomness import seeded
from postmatch.recipes.features import Classifier, features_of, kept_classifier
from postmatch.recipes.gallery import gallery
from postmatch.recipes.inpainting import masks_of
from postmatch.recipes.inpainting_config import Dataset
from postmatch.recipes.inpainting_scores import DRAWS, Decoder, Filler, inpainting_scores
from postmatch.recipes.results import provenance, write_result
from postmatch.recipes.scores import MASK_SEEDS
from postmatch.training.update import computed_in

_HELD_OUT = 2_000  # training images that choose the weights
_SHOWN = 8  # images in a gallery


@final
@dataclass(frozen=True)
class Judging:
    """How a model of images is judged.

    Args:
        test_rows: At most so many are judged; None for all.
        mask_seeds: One draw of masks for each.
        classifier_steps: Updates of the classifier whose features tell precision and recall.
    """

    test_rows: int | None = None
    mask_seeds: Sequence[int] = MASK_SEEDS
    classifier_steps: int = 3_000


def training_images(dataset: Dataset, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return images to learn from and images that choose the weights, uint8."""
    images = load_images(dataset).train.to(device)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(device)
    held_out = images[order[: min(_HELD_OUT, len(images) // 10)]]
    return images[order[len(held_out) :]], held_out


def classifier_of(
    dataset: Dataset, folder: Path, steps: int, device: torch.device
) -> tuple[Classifier, dict[str, Any]]:
    """Return the classifier that judges all models of a folder of results, and what it is.

    It is kept in ``weights/`` there, and trained if that has none.
    """
    data = load_images(dataset)
    labels = None if dataset == "celeba" else data.train_labels  # faces have none
    kept = folder / "weights" / f"features-{dataset}-{steps}.safetensors"
    classifier, digest = kept_classifier(kept, data.train.to(device), labels, steps=steps)
    learned = "turns" if labels is None else "labels"
    return classifier, {"learned": learned, "steps": steps, "digest": digest}


def judge(
    result: dict[str, Any],
    path: Path,
    decode: Decoder,
    show_some: Filler,
    how: Judging,
    device: torch.device,
    show: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Complete the result of a training by scores, write it, and return it.

    It is written after every draw of masks, so that a judging that is cut off leaves what it has,
    unless a result of more draws is there. A picture beside it shows some images, what was seen of
    them, and what a model made of that. The classifier whose features tell precision and recall is
    kept in ``weights/`` beside the result, so that all models of a folder are judged by the same.

    Args:
        result: What is known of the training; its ``dataset`` decides images and masks.
        path: Where it goes.
        decode: What is judged.
        show_some: What is shown.
        how: With which images and masks.
        device: Where.
        show: Told which part of the work is done.
    """
    dataset: Dataset = result["dataset"]
    start = time.monotonic()
    classifier, extractor = classifier_of(dataset, path.parent, how.classifier_steps, device)
    images = load_images(dataset).test[: how.test_rows].to(device)
    enough = min(len(result.get("mask_seeds", ())), len(how.mask_seeds))
    rows = result["rows"] | {"test": len(images)}
    result |= {"rows": rows, "num_samples": DRAWS, "extractor": extractor}

    def keep(metrics: dict[str, Any], mask_seeds: list[int]) -> None:
        seconds = round(time.monotonic() - start, 1)
        evaluated = provenance(device) | {"seconds": seconds}
        result.update(mask_seeds=mask_seeds, evaluated=evaluated, metrics=metrics)
        if len(mask_seeds) >= enough:
            write_result(path, result)

    with computed_in("tf32", device):
        inpainting_scores(
            decode,
            images,
            masks_of(dataset),
            lambda x: features_of(classifier, x),
            mask_seeds=how.mask_seeds,
            keep=keep,
            show=show,
        )
    _write_picture(path.with_suffix(".png"), show_some, images[:_SHOWN], dataset)
    return result


@torch.no_grad()
def _write_picture(path: Path, show_some: Filler, images: Tensor, dataset: Dataset) -> None:
    x = images / 255.0
    generator = torch.Generator().manual_seed(0)
    observed = masks_of(dataset).sample((len(x), 1, *x.shape[2:]), generator).to(x.device)
    with seeded(0):
        write_image(path, gallery(x, observed, list(show_some(x, observed))))
