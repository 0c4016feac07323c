"""Filling images: the paper's section 5.2, on MNIST, Omniglot and CelebA."""

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, final, get_args

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
from postmatch.training.checkpoints import Checkpoints, run_on
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Precision, Progress, Report, plan_of
from postmatch.training.schedules import RateSchedule
from postmatch.training.signals import signals_noted
from postmatch.vaes.hierarchical import hierarchical_vae

Dataset = Literal["mnist", "omniglot", "celeba"]
Model = Literal["conv", "vqvae", "vdvae", "vdvae-paper"]
DATASETS: tuple[Dataset, ...] = get_args(Dataset)
MODELS: tuple[Model, ...] = get_args(Model)

_JUDGED = 1_000  # images that choose the weights
_MASKS: dict[Dataset, Callable[[], MaskDistribution]] = {
    "mnist": mnist_masks,
    "omniglot": omniglot_masks,
    "celeba": celeba_masks,
}
CHANNELS: dict[Dataset, int] = {"mnist": 1, "omniglot": 1, "celeba": 3}
SIZES: dict[Dataset, int] = {"mnist": 28, "omniglot": 28, "celeba": 64}


@final
@dataclass(frozen=True)
class Config:
    """Everything that decides what is trained.

    Args:
        dataset: Which images.
        model: Which VAE.
        encoder: Layout of a hierarchy's way up; see :class:`HierarchyLayout`.
        decoder: Layout of its way down.
        width: Channels of a hierarchy.
        bottleneck: Channels inside its blocks.
        latent_channels: Of each of its latent images.
        components: Mixture components of a pixel, or of an entry of a plain VAE's z.
        latent_size: Length of a plain VAE's z.
        num_codes: Vectors in the codebook of a VQ-VAE.
        code_size: Their length.
        code_width: Channels of its networks.
        code_cell: Side of the square of pixels that a code stands for.
        code_window: Side of the square of pixels that decides it; 0 for that of a deep network.
        context_width: Channels of the network that tells the posterior of the image.
        context_hidden: Those inside its blocks; 0 for half as many.
        context_blocks: How many blocks it has of each size, the largest first.
        fine_width: Its channels of the size of the images; 0 for none.
        fine_blocks: Its blocks there.
        posterior_width: Channels of the PixelCNN of the posterior.
        posterior_blocks: Its blocks.
        prior_width: Channels of the PixelCNN of the prior.
        prior_blocks: Its blocks.
        dropout: In both.
        mirrored: Whether half of the training images are mirrored.
        shift: By how many pixels they are moved at most.
        steps: How many updates.
        batch_size: Images per update.
        orthogonal_rate: Of steps that are orthogonal matrices; 0 for steps of Adam.
        orthogonal: Which matrices take these.
        average: Decay of the running average of the weights.
        keep_best: Whether held-out images choose the weights.
        compiled: Whether a GPU's networks are compiled, which pays after some thousand steps.
    """

    dataset: Dataset
    model: Model
    encoder: str = ""
    decoder: str = ""
    width: int = 192
    bottleneck: int = 48
    latent_channels: int = 16
    components: int = 10
    latent_size: int = 32
    num_codes: int = 128
    code_size: int = 64
    code_width: int = 64
    code_cell: int = 2
    code_window: int = 0
    context_width: int = 112
    context_hidden: int = 0
    context_blocks: Sequence[int] = (2, 2, 2, 2)
    fine_width: int = 0
    fine_blocks: int = 2
    posterior_width: int = 80
    posterior_blocks: int = 7
    prior_width: int = 56
    prior_blocks: int = 5
    dropout: float = 0.2
    mirrored: bool = False
    shift: int = 0
    steps: int = 30_000
    batch_size: int = 128
    learning_rate: float = 1e-3
    orthogonal_rate: float = 0.0
    orthogonal: Literal["square", "any"] = "any"
    schedule: RateSchedule = "cosine"
    final_rate: float = 0.01
    warmup: int = 200
    second_moment: float = 0.99
    weight_decay: float = 0.01
    clip_norm: float = 200.0
    average: float = 0.999
    keep_best: bool = True
    precision: Precision = "bfloat16"
    compiled: bool = False


def config_of(dataset: Dataset, model: Model) -> Config:
    """Return our settings; ``vdvae-paper`` has the paper's levels, and ours fewer large ones."""
    if dataset not in DATASETS:
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {dataset!r}")
    if model not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {model!r}")
    if model == "conv":
        if dataset == "celeba":
            raise ValueError("the plain convolutional VAE is for images of 28 x 28 in grey")
        return Config(dataset, model, steps=80_000, batch_size=256, precision="tf32")
    if model == "vqvae":
        how: dict[str, Any] = {"orthogonal_rate": 0.005, "clip_norm": 5.0, "compiled": True}
        how |= {"code_window": 2, "context_width": 120, "context_hidden": 120}
        how |= {
            "context_blocks": (2, 2, 1, 1),
            "posterior_width": 64,
            "posterior_blocks": 6,
            "prior_width": 48,
        }
        codes = Config(dataset, model, steps=100_000, precision="tf32", **how)
        if dataset == "mnist":
            return dataclasses.replace(codes, dropout=0.1)
        if dataset == "omniglot":
            return dataclasses.replace(codes, num_codes=256, fine_width=48, shift=1)
        more: dict[str, Any] = {"num_codes": 512, "code_width": 128, "context_blocks": (2, 2, 2, 2)}
        more |= {"fine_width": 48, "mirrored": True}
        return dataclasses.replace(codes, **more, batch_size=64)
    if model == "vdvae-paper":
        if dataset == "celeba":
            raise ValueError("the paper's hierarchy of vdvae-paper is that of 28 x 28 pixels")
        return Config(
            dataset,
            model,
            encoder="28x6,28d2,14x4,14d2,7x2,7d2,3x2,3d2,1x2",
            decoder="1x2,3m1,3x2,7m3,7x2,14m7,14x4,28m14,28x6",
        )
    if dataset == "celeba":
        return Config(
            dataset,
            model,
            encoder="64x3,64d2,32x6,32d2,16x4,16d2,8x3,8d2,4x2,4d4,1x2",
            decoder="1x2,4m1,4x2,8m4,8x4,16m8,16x6,32m16,32x8,64m32,64x4",
            batch_size=32,
            orthogonal_rate=0.01,
            mirrored=True,
        )
    return Config(
        dataset,
        model,
        encoder="28x2,28d2,14x4,14d2,7x4,7d2,3x2,3d2,1x2",
        decoder="1x2,3m1,3x2,7m3,7x4,14m7,14x5,28m14,28x2",
        steps=100_000,
        orthogonal_rate=0.005,
        shift=0 if dataset == "mnist" else 1,
    )


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
            context=(c.context_width, c.context_hidden or c.context_width // 2, c.context_blocks),
            fine=(c.fine_width, c.fine_blocks),
            posterior=(c.posterior_width, c.posterior_blocks),
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
        train_all = fit_codes if config.model == "vqvae" else _fit_together
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


def _fit_together(
    model: MatchedVAE,
    batch: ImageBatches,
    held_out: Tensor,
    masks: MaskDistribution,
    plan: Plan,
    **how: Any,
) -> Report:
    """Train VAE and partial encoder at once; arguments are those of :func:`fit_codes`."""
    generator = batch.generator

    def losses_of(x: Tensor, noise: torch.Generator) -> Losses:
        observed = masks.sample((len(x), 1, *x.shape[2:]), noise)
        return model.losses(x, None, observed, generator=noise)

    def validate() -> float:
        fixed = torch.Generator(generator.device).manual_seed(0)
        parts = torch.split(held_out, batch.size)
        found = [sum(losses_of(part / 255.0, fixed).values()) * len(part) for part in parts]
        return float(sum(found)) / len(held_out)

    return train(
        model,
        lambda _: losses_of(batch(), generator),
        plan,
        validate=validate if len(held_out) else None,
        generators=[generator],
        **how,
    )
