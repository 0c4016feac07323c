"""How well hidden pixels are filled in: errors of the mean, and whether draws look like images."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.image_metrics import precision_recall, psnr, psnr_per_sample
from postmatch.masks import MaskDistribution
from postmatch.randomness import seeded
from postmatch.recipes.scores import MASK_SEEDS, with_spread
from postmatch.vaes.base import VAE

DRAWS = 10  # of every image
_AT_ONCE = 500 * 28 * 28  # pixels of images

Filler = Callable[[Tensor, Tensor], Tensor]
"""From images and what is observed of them to ``(samples, batch, channels, height, width)``."""


def filler(model: MatchedVAE, num_draws: int = DRAWS) -> Filler:
    """Return what fills images with means of the decoder at draws of z."""

    def fill(x: Tensor, observed: Tensor) -> Tensor:
        return model.given(x, observed).draws(num_draws).clamp(0.0, 1.0)

    return fill


def zero_filler(vae: VAE, num_draws: int = DRAWS) -> Filler:
    """Return what the encoder of complete images makes of zeros in the place of hidden pixels.

    This is what a VAE without a partial posterior can do (the paper's appendix E).
    """

    @torch.no_grad()
    def fill(x: Tensor, observed: Tensor) -> Tensor:
        z = vae.encode(x.masked_fill(~observed, 0.0)).sample(torch.Size([num_draws]))
        return torch.where(observed, x, vae.decode(z).mean.clamp(0.0, 1.0))

    return fill


def inpainting_scores(
    fill: Filler,
    images: Tensor,
    masks: MaskDistribution,
    features: Callable[[Tensor], Tensor],
    *,
    mask_seeds: Sequence[int] = MASK_SEEDS,
    show: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Return scores of filled images, each with its spread over draws of masks.

    ``psnr`` is that of the mean of the draws, ``psnr_per_sample`` the mean of theirs; ``precision``
    and ``recall`` compare the images themselves with as many draws, of each image another one of
    its own, so that all take part. All are of the same draws.

    Args:
        fill: What is judged.
        images: uint8, ``(rows, channels, height, width)``.
        masks: What is observed.
        features: Of images in [0, 1], by which sets of them are compared.
        mask_seeds: One draw of masks for each.
        show: Told now and then which part of the work is done.
    """
    real, each = features(images / 255.0).cpu(), []
    for i, seed in enumerate(mask_seeds):
        with seeded(seed):
            each.append(_one_draw(fill, images, masks, features, real, seed))
        if show is not None:
            show((i + 1) / len(mask_seeds))
    return with_spread(each)


@torch.no_grad()
def _one_draw(
    fill: Filler,
    images: Tensor,
    masks: MaskDistribution,
    features: Callable[[Tensor], Tensor],
    real: Tensor,
    seed: int,
) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)  # the same masks on every device
    of_mean, of_each, found = [], [], []
    for block in torch.split(images, max(1, _AT_ONCE // images[0, 0].numel())):
        x = block / 255.0
        shape = (len(x), 1, *x.shape[2:])
        observed = masks.sample(shape, generator).to(x.device)
        filled = fill(x, observed)
        of_mean.append(psnr(filled, x))
        of_each.append(psnr_per_sample(filled, x))
        which = torch.arange(len(x), device=x.device)
        found.append(features(filled[which % len(filled), which]).cpu())
    looks = precision_recall(real, torch.cat(found), seed=seed)
    return {
        "psnr": _mean(of_mean),
        "psnr_per_sample": _mean(of_each),
        "precision": looks.precision,
        "recall": looks.recall,
    }


def _mean(values: Sequence[Tensor]) -> float:
    """Return the mean of what is finite: an image without any error has no ratio."""
    each = torch.cat(list(values)).double()
    finite = each[each.isfinite()]
    return float(finite.mean()) if len(finite) else math.inf
