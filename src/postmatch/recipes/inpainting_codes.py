"""A VQ-VAE of images, its partial posterior and its prior, one after another."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.discretised import num_logistic_maps
from postmatch.image_masks import NothingObserved
from postmatch.masks import MaskDistribution, Mixture
from postmatch.nets.context import ContextNet
from postmatch.nets.pixelcnn import PixelCNN
from postmatch.nets.residual_conv import (
    LocalEncoder,
    MapAndSummary,
    ResidualConvDecoder,
    ResidualConvEncoder,
)
from postmatch.objectives import match
from postmatch.partial import MaskedEncoder
from postmatch.partial_codes import CodeGridHead
from postmatch.recipes.guessing import Guessing
from postmatch.recipes.image_batches import ImageBatches
from postmatch.recipes.phases import below, between, joined, parted
from postmatch.training.checkpoints import Checkpoints
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Progress, Report
from postmatch.vaes.vq import VQVAE, Codebook

_NOTHING = 0.05  # how often the partial encoder sees nothing, which is the prior's question
_FIRST = 0.12  # the part of the time that goes to the VQ-VAE, whose steps are short
_PRIOR_SHARE = 0.25  # of a batch; the prior is the smaller question


def code_model(
    channels: int,
    size: int,
    factor: int,
    window: int,
    num_codes: int,
    code_size: int,
    width: int,
    components: int,
    context: tuple[int, int, Sequence[int]],
    fine: tuple[int, int],
    posterior: tuple[int, int, int],
    prior: tuple[int, int],
    dropout: float,
) -> MatchedVAE:
    """Return an untrained VQ-VAE with its partial encoder and its prior.

    Args:
        channels: Of the images.
        size: Their height and width.
        factor: By which those of the grid of codes are smaller.
        window: Side of the square of pixels that a code depends on; 0 for as much as residual
            convolutions see.
        num_codes: How many vectors the codebook has.
        code_size: Their length.
        width: Channels of the VQ-VAE's networks.
        components: Of the mixture of logistics that a pixel is; 0 for Gaussian pixels.
        context: Of the network that tells the posterior of the image, its channels, those inside
            its blocks, and how many blocks it has of each size.
        fine: Its channels and blocks of the size of the images.
        posterior: Channels and blocks of its PixelCNN, and units of the layer before its logits.
        prior: Channels and blocks of the prior's.
        dropout: In both.
    """
    grid = (size // factor, size // factor)
    encoder: nn.Module = ResidualConvEncoder(channels, width, code_size, factor=factor)
    if window:
        encoder = LocalEncoder(channels, 2 * width, code_size, window, factor)
    maps = num_logistic_maps(channels, components) if components else channels
    vae = VQVAE(
        encoder,
        ResidualConvDecoder(code_size, width, maps, factor=factor),
        Codebook(num_codes, code_size),
        PixelCNN(num_codes, grid, *prior, dropout=dropout),
        logistic_channels=channels if components else 0,
        image_shape=(channels, size, size),
    )
    told = {"vector_size": context[0], "map_channels": context[0], "head_width": posterior[2]}
    net = PixelCNN(num_codes, grid, *posterior[:2], **told, dropout=dropout)
    features = ContextNet(channels + 1, *context, factor, fine)
    mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return MatchedVAE(vae, MaskedEncoder(MapAndSummary(features, mean), CodeGridHead(net)))


def fit_codes(
    model: MatchedVAE,
    batch: ImageBatches,
    held_out: Tensor,
    masks: MaskDistribution,
    plan: Plan,
    *,
    checkpoints: Checkpoints | None = None,
    stop: Callable[[], bool] | None = None,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    """Train the VQ-VAE, then, with it as it is, partial posterior and prior together.

    Args:
        model: What :func:`code_model` returns, on the device of the images.
        batch: Draws images.
        held_out: uint8; the posterior that tells these best is kept, or if none the last.
        masks: What is observed.
        plan: Of both parts, which share its steps and its time.
        checkpoints: Where to save the state of each part.
        stop: Asked after every step whether to save and end early.
        show: Told of the progress.
    """
    assert isinstance(model.vae, VQVAE)
    vae, generator = model.vae, batch.generator

    def reconstruct(_: Tensor) -> Losses:
        return {"vae": vae.loss(batch(), generator=generator).mean()}

    _train_only(model, vae.encoder, vae.decoder)
    if vae.log_scale is not None:
        vae.log_scale.requires_grad_(True)
    # The codebook follows the encoder as it is, not an average of it, so that is what is kept.
    early, late = parted(plan, _FIRST)
    first = train(
        vae,
        reconstruct,
        dataclasses.replace(early, average=0.0, compiled=False),
        generators=[generator],
        show=between(0.0, _FIRST, show),
        checkpoints=below(checkpoints, "codes"),
        stop=stop,
    )
    if first.stopped_by == "interruption":
        model.requires_grad_(True)
        return first
    second = _fit_posterior(
        model,
        vae,
        batch,
        [part for part in torch.split(held_out, batch.size) if len(part)],
        masks,
        late,
        generator=generator,
        show=between(_FIRST, 1.0, show),
        checkpoints=below(checkpoints, "posterior"),
        stop=stop,
    )
    model.requires_grad_(True)
    return joined(first, second)


def _fit_posterior(
    model: MatchedVAE,
    vae: VQVAE,
    batch: Callable[[], Tensor],
    held_out: Sequence[Tensor],
    masks: MaskDistribution,
    plan: Plan,
    *,
    generator: torch.Generator,
    **how: Any,
) -> Report:
    """Train partial posterior and prior on the codes of a VQ-VAE that stays as it is."""
    more_masks = Mixture((masks, NothingObserved()), (1.0 - _NOTHING, _NOTHING))
    guessing = Guessing(model, batch()).to(generator.device)

    def losses_of(x: Tensor, noise: torch.Generator) -> Losses:
        observed = more_masks.sample((len(x), 1, *x.shape[2:]), noise)
        posterior = model.partial(x, observed)
        few = x[: math.ceil(_PRIOR_SHARE * len(x))]
        return {
            "match": match(vae.encode(x), posterior, generator=noise).mean(),
            "guess": guessing.loss(posterior, x, observed).mean(),
            "prior": match(vae.encode(few), vae.prior()).mean(),
        }

    def validate() -> float:
        fixed = torch.Generator(generator.device).manual_seed(0)
        found = [losses_of(part / 255.0, fixed)["match"] * len(part) for part in held_out]
        return float(sum(found)) / sum(len(part) for part in held_out)

    assert vae.prior_net is not None
    _train_only(model, model.partial, vae.prior_net)
    return train(
        guessing,
        lambda _: losses_of(batch(), generator),
        plan,
        validate=validate if held_out else None,
        generators=[generator, torch.default_generator],  # which dropout draws from
        **how,
    )


def _train_only(model: nn.Module, *parts: nn.Module) -> None:
    model.requires_grad_(False)
    for part in parts:
        part.requires_grad_(True)
