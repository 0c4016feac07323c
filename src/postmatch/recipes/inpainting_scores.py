"""How well hidden pixels are filled in: errors of the mean, and whether draws look like images."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.conditioning import MatchedVAE
from postmatch.image_metrics import precision_recall, psnr, psnr_per_sample
from postmatch.masks import MaskDistribution
from postmatch.randomness import seeded
from postmatch.recipes.scores import MASK_SEEDS, with_spread
from postmatch.vaes.base import VAE

DRAWS = 10  # of every image
_AT_ONCE = 500 * 28 * 28  # pixels of images
_ON_A_GPU = 4  # times as many, since codes that are drawn one by one leave it waiting

Decoder = Callable[[Tensor, Tensor], Distribution]
"""From images and what is observed of them to their pixels at draws of z, whose samples are
``(samples, batch, channels, height, width)``."""

Filler = Callable[[Tensor, Tensor], Tensor]
"""From images and what is observed of them to ``(samples, batch, channels, height, width)``."""

Imputer = Callable[[Tensor, Tensor], Tensor]
"""From images and what is observed of them to completed ones, ``(batch, channels, ...)``."""


def decoder(model: MatchedVAE, num_draws: int = DRAWS) -> Decoder:
    """Return what decodes draws of z given what is observed."""

    def decode(x: Tensor, observed: Tensor) -> Distribution:
        return model.vae.decode(model.given(x, observed).latent.sample(torch.Size([num_draws])))

    return decode


def zero_decoder(vae: VAE, num_draws: int = DRAWS) -> Decoder:
    """Return what the encoder of complete images makes of zeros in the place of hidden pixels.

    This is what a VAE without a partial posterior can do (the paper's appendix E).
    """

    def decode(x: Tensor, observed: Tensor) -> Distribution:
        seen = vae.encode(x.masked_fill(~observed, 0.0))
        return vae.decode(seen.sample(torch.Size([num_draws])))

    return decode


def filler(decode: Decoder) -> Filler:
    """Return what fills images with means of their pixels at draws of z."""

    @torch.no_grad()
    def fill(x: Tensor, observed: Tensor) -> Tensor:
        return filled(x, observed, decode(x, observed).mean)

    return fill


def imputer(model: MatchedVAE) -> Imputer:
    """Return what completes images as :meth:`Conditional.impute` does if it is told nothing else.

    That is by the mean of its number of draws of z, which are spread evenly.
    """

    @torch.no_grad()
    def impute(x: Tensor, observed: Tensor) -> Tensor:
        return filled(x, observed, model.given(x, observed).impute())

    return impute


def inpainting_scores(
    decode: Decoder,
    images: Tensor,
    masks: MaskDistribution,
    features: Callable[[Tensor], Tensor],
    *,
    mask_seeds: Sequence[int] = MASK_SEEDS,
    keep: Callable[[dict[str, Any], list[int]], None] | None = None,
    show: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Return scores of filled images, each with its spread over draws of masks.

    ``psnr`` is that of the mean of the draws, ``psnr_per_sample`` the mean of theirs; ``precision``
    and ``recall`` compare the images themselves with as many draws, of each image another one of
    its own, so that all take part. All are of the same draws of z, of which these are the paper's
    fillings, means of pixels. Behind ``drawn_`` stand those of pixels that were drawn as well:
    means are blurred, and close to the truth, where z has been told nothing.

    Args:
        decode: What is judged.
        images: uint8, ``(rows, channels, height, width)``.
        masks: What is observed.
        features: Of images in [0, 1], by which sets of them are compared.
        mask_seeds: One draw of masks for each.
        keep: Told after every draw of masks the scores of all so far, and their seeds.
        show: Told now and then which part of the work is done.
    """
    real, each = features(images / 255.0).cpu(), []
    for i, seed in enumerate(mask_seeds):
        with seeded(seed):
            each.append(_one_draw(decode, images, masks, features, real, seed))
        if keep is not None:
            keep(with_spread(each), list(mask_seeds[: i + 1]))
        if show is not None:
            show((i + 1) / len(mask_seeds))
    return with_spread(each)


def asked(
    images: Tensor, masks: MaskDistribution, generator: torch.Generator, count: int = 1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images in [0, 1] and what is observed of them, so many blocks at a time.

    Masks are those of each block by itself, and so the same however many come at a time.
    """
    blocks = torch.split(images, max(1, _AT_ONCE // images[0, 0].numel()))
    for start in range(0, len(blocks), count):
        group = blocks[start : start + count]
        seen = [masks.sample((len(x), 1, *x.shape[2:]), generator) for x in group]
        yield torch.cat(group) / 255.0, torch.cat(seen).to(images.device)


@torch.no_grad()
def _one_draw(
    decode: Decoder,
    images: Tensor,
    masks: MaskDistribution,
    features: Callable[[Tensor], Tensor],
    real: Tensor,
    seed: int,
) -> dict[str, float]:
    generator = torch.Generator().manual_seed(seed)
    means, drawn = _Fillings(features), _Fillings(features)
    count = _ON_A_GPU if images.is_cuda else 1
    for x, observed in asked(images, masks, generator, count):
        pixels = decode(x, observed)
        means.add(filled(x, observed, pixels.mean), x)
        drawn.add(filled(x, observed, pixels.sample()), x)
    own, other = (fillings.scores(real, seed) for fillings in (means, drawn))
    return own | {f"drawn_{name}": value for name, value in other.items()}


@final
class _Fillings:
    """What is known of images that were filled in one way, block by block."""

    def __init__(self, features: Callable[[Tensor], Tensor]) -> None:
        self.features = features
        self.of_mean: list[Tensor] = []
        self.of_each: list[Tensor] = []
        self.found: list[Tensor] = []

    def add(self, fillings: Tensor, x: Tensor) -> None:
        self.of_mean.append(psnr(fillings, x))
        self.of_each.append(psnr_per_sample(fillings, x))
        which = torch.arange(len(x), device=x.device)
        self.found.append(self.features(fillings[which % len(fillings), which]).cpu())

    def scores(self, real: Tensor, seed: int) -> dict[str, float]:
        looks = precision_recall(real, torch.cat(self.found), seed=seed)
        return {
            "psnr": _mean(self.of_mean),
            "psnr_per_sample": _mean(self.of_each),
            "precision": looks.precision,
            "recall": looks.recall,
        }


def filled(x: Tensor, observed: Tensor, pixels: Tensor) -> Tensor:
    """Return images with these pixels where none are observed, in [0, 1]."""
    return torch.where(observed, x, pixels.clamp(0.0, 1.0))


def _mean(values: Sequence[Tensor]) -> float:
    """Return the mean of what is finite: an image without any error has no ratio."""
    each = torch.cat(list(values)).double()
    finite = each[each.isfinite()]
    return float(finite.mean()) if len(finite) else math.inf
