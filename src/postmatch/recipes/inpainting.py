"""Filling images: the paper's section 5.2, on MNIST, Omniglot and CelebA."""

import dataclasses
import functools
import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.image_masks import celeba_masks, mnist_masks, omniglot_masks
from postmatch.masks import MaskDistribution
from postmatch.nets.hierarchy_layout import HierarchyLayout
from postmatch.randomness import seeded
from postmatch.recipes import mnist_latent
from postmatch.recipes.image_batches import ImageBatches
from postmatch.recipes.inpainting_codes import code_model, fit_codes
from postmatch.recipes.inpainting_config import CHANNELS, SIZES, Config, Dataset
from postmatch.recipes.inpainting_jointly import fit_jointly
from postmatch.training.checkpoints import Checkpoints, run_on
from postmatch.training.plan import Plan, Progress, Report, plan_of
from postmatch.training.signals import signals_noted
from postmatch.vaes.hierarchical import hierarchical_vae

_JUDGED = 1_000  # images that choose the weights
_MASKS: dict[Dataset, Callable[[], MaskDistribution]] = {
    "mnist": mnist_masks,
    "omniglot": omniglot_masks,
    "celeba": celeba_masks,
}


def masks_of(dataset: Dataset) -> MaskDistribution:
    """Return what is observed of images, in training and in tests."""
    return _MASKS[dataset]()


def build(config: Config) -> MatchedVAE:
    """Return the untrained model."""
    c = config
    if c.model == "conv":
        plain = mnist_latent.Config(latent_size=c.latent_size, components=c.components)
        return mnist_latent.build(plain)
    if c.model == "vqvae":
        return code_model(
            channels=CHANNELS[c.dataset],
            size=SIZES[c.dataset],
            factor=c.code_cell,
            window=c.code_window,
            num_codes=c.num_codes,
            code_size=c.code_size,
            width=c.code_width,
            components=c.code_components,
            context=(c.context_width, c.context_hidden or c.context_width // 2, c.context_blocks),
            fine=(c.fine_width, c.fine_blocks),
            posterior=(c.posterior_width, c.posterior_blocks, c.posterior_head),
            prior=(c.prior_width, c.prior_blocks),
            dropout=c.dropout,
        )
    layout = HierarchyLayout(c.encoder, c.decoder, c.width, c.bottleneck, c.latent_channels)
    return MatchedVAE(*hierarchical_vae(layout, CHANNELS[c.dataset], c.components))


def fit(
    config: Config,
    images: Tensor,
    held_out: Tensor,
    *,
    model: MatchedVAE | None = None,
    seed: int = 0,
    max_seconds: float = 0.0,
    checkpoints: Path | None = None,
    show: Callable[[Progress], None] | None = None,
) -> tuple[MatchedVAE, Report]:
    """Train a VAE of images together with its match.

    Ctrl-C and SIGTERM end it after the step at hand, having saved if there are checkpoints.

    Args:
        config: What is trained.
        images: uint8, ``(rows, channels, height, width)``, on the device to train on.
        held_out: The same; the weights that tell these best are kept.
        model: One of this config to go on with; None for a fresh one.
        seed: Decides weights, batches, masks and noise.
        max_seconds: Stop after this time; 0 for no limit.
        checkpoints: A folder to save to every minute, and to go on from if it holds anything.
        show: Told of the progress now and then.
    """
    device = images.device
    generator = torch.Generator(device).manual_seed(seed)
    places = None if checkpoints is None else Checkpoints(checkpoints, run_on(images, seed))
    with seeded(seed), signals_noted() as noted:
        model = (build(config) if model is None else model).to(device)
        how: dict[str, Any] = {"checkpoints": places, "stop": noted, "show": show}
        together = functools.partial(fit_jointly, guess=config.guess)
        train_all = fit_codes if config.model == "vqvae" else together
        how_drawn = (config.batch_size, generator, config.mirrored, config.shift)
        report = train_all(
            model,
            ImageBatches(images, *how_drawn),
            held_out[: _JUDGED if config.keep_best else 0],
            masks_of(config.dataset),
            plan_on(device, config, max_seconds),
            **how,
        )
    noted.follow()
    return model, report


def plan_on(device: torch.device, config: Config, max_seconds: float = 0.0) -> Plan:
    """Return how a model is trained on a device, compiled if the config asks and it can be."""
    compiled = config.compiled and _can_compile(device)
    return dataclasses.replace(plan_of(config, max_seconds), compiled=compiled)


def _can_compile(device: torch.device) -> bool:
    """Return whether networks can be compiled: for a GPU, by Triton, which asks a C compiler."""
    compilers = (os.environ.get("CC", "cc"), "gcc", "clang")
    found = find_spec("triton") is not None and any(map(shutil.which, compilers))
    return device.type == "cuda" and found
