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
from postmatch.distributions.hierarchy import Hierarchy
from postmatch.image_masks import celeba_masks, mnist_masks, omniglot_masks
from postmatch.masks import MaskDistribution
from postmatch.nets.hierarchy_layout import HierarchyLayout
from postmatch.randomness import seeded
from postmatch.recipes import mnist_latent
from postmatch.recipes.guessing import Guessing
from postmatch.recipes.image_batches import ImageBatches
from postmatch.recipes.inpainting_codes import code_model, fit_codes
from postmatch.recipes.inpainting_config import CHANNELS, SIZES, Config, Dataset
from postmatch.training.checkpoints import Checkpoints, run_on
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Progress, Report, plan_of
from postmatch.training.signals import signals_noted
from postmatch.vaes.hierarchical import HierarchicalVAE, hierarchical_vae

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
            context_dropout=c.context_dropout,
        )
    sizes = (c.width, c.bottleneck, c.latent_channels)
    layout = HierarchyLayout(c.encoder, c.decoder, *sizes, c.back)
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
        together = functools.partial(_fit_together, guess=config.guess)
        train_all = fit_codes if config.model == "vqvae" else together
        how_drawn = (config.batch_size, generator, config.mirrored, config.shift, config.turned)
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


def _fit_together(
    model: MatchedVAE,
    batch: ImageBatches,
    held_out: Tensor,
    masks: MaskDistribution,
    plan: Plan,
    *,
    guess: float = 0.0,
    **how: Any,
) -> Report:
    """Train VAE and partial encoder at once; arguments are those of :func:`fit_codes`.

    With ``guess``, the weight of that, the partial encoder of a hierarchy guesses pixels, too.
    """
    generator = batch.generator
    guessing = Guessing(model, batch()).to(generator.device) if guess else None

    def losses_of(x: Tensor, noise: torch.Generator) -> Losses:
        observed = masks.sample((len(x), 1, *x.shape[2:]), noise)
        if guessing is None:
            return model.losses(x, None, observed, generator=noise)
        assert isinstance(model.vae, HierarchicalVAE)

        def guessed(posterior: Hierarchy) -> Tensor:
            return guess * guessing.loss(posterior, x, observed)

        each = model.vae.losses_with(
            model.partial, x, None, observed, generator=noise, guess=guessed
        )
        return {name: loss.mean() for name, loss in each.items()}

    def validate() -> float:
        fixed = torch.Generator(generator.device).manual_seed(0)
        parts = torch.split(held_out, batch.size)
        each = [(losses_of(part / 255.0, fixed), len(part)) for part in parts]
        found = [(losses["vae"] + losses["match"]) * rows for losses, rows in each]
        return float(sum(found)) / len(held_out)

    return train(
        guessing or model,
        lambda _: losses_of(batch(), generator),
        plan,
        validate=validate if len(held_out) else None,
        generators=[generator],
        **how,
    )
