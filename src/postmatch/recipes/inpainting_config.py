"""What is trained to fill images: which images, which models, and all their settings."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

from postmatch.training.plan import Precision
from postmatch.training.schedules import RateSchedule

Dataset = Literal["mnist", "omniglot", "celeba"]
Model = Literal["conv", "vqvae", "vdvae", "vdvae-paper"]
DATASETS: tuple[Dataset, ...] = get_args(Dataset)
MODELS: tuple[Model, ...] = get_args(Model)
CHANNELS: dict[Dataset, int] = {"mnist": 1, "omniglot": 1, "celeba": 3}
SIZES: dict[Dataset, int] = {"mnist": 28, "omniglot": 28, "celeba": 64}

# Settings that were tried and taken out again, and what they are where a result does not use them.
_GONE = {"back": "", "context_dropout": 0.0, "turned": False}


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
        code_components: Mixture components of its pixels; 0 if these are Gaussian.
        code_cell: Side of the square of pixels that a code stands for.
        code_window: Side of the square of pixels that decides it; 0 for that of a deep network.
        context_width: Channels of the network that tells the posterior of the image.
        context_hidden: Those inside its blocks; 0 for half as many.
        context_blocks: How many blocks it has of each size, the largest first.
        fine_width: Its channels of the size of the images; 0 for none.
        fine_blocks: Its blocks there.
        posterior_width: Channels of the PixelCNN of the posterior.
        posterior_blocks: Its blocks.
        posterior_head: Units of its layer before the logits, which what tells it of the image
            reaches without its blocks; 0 for none.
        prior_width: Channels of the PixelCNN of the prior.
        prior_blocks: Its blocks.
        dropout: In both.
        guess: Weight of the pixels that the partial encoder of a hierarchy guesses as it learns.
        mirrored: Whether half of the training images are mirrored.
        shift: By how many pixels they are moved at most.
        steps: How many updates.
        batch_size: Images per update.
        orthogonal_rate: Of steps that are orthogonal matrices; 0 for steps of Adam.
        orthogonal: Which matrices take these.
        average: Decay of the running average of the weights.
        keep_best: Whether held-out images choose the weights.
        compiled: Whether a GPU's networks are compiled, which pays after some thousand steps.

    Raises:
        ValueError: If ``guess`` is negative, or set for another model than a hierarchy.
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
    code_components: int = 0
    code_cell: int = 2
    code_window: int = 0
    context_width: int = 112
    context_hidden: int = 0
    context_blocks: Sequence[int] = (2, 2, 2, 2)
    fine_width: int = 0
    fine_blocks: int = 2
    posterior_width: int = 80
    posterior_blocks: int = 7
    posterior_head: int = 0
    prior_width: int = 56
    prior_blocks: int = 5
    dropout: float = 0.2
    guess: float = 0.0
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

    def __post_init__(self) -> None:
        if self.guess < 0.0:
            raise ValueError(f"guess must be 0 or more, got {self.guess}")
        if self.guess and self.model in ("conv", "vqvae"):
            raise ValueError(f"guess is a setting of hierarchies, and {self.model} is none")


def still_there(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a result tells, without those that are gone and it did not use.

    Raises:
        ValueError: If it used one that is gone.
    """
    for name, unused in _GONE.items():
        if told.get(name, unused) != unused:
            raise ValueError(
                f"config has {name}={told[name]!r}, a setting that is gone; the commit that the "
                "result names has it"
            )
    return {name: value for name, value in told.items() if name not in _GONE}


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
        return _codes(dataset)
    if model == "vdvae":
        return _hierarchy(dataset)
    if dataset == "celeba":
        raise ValueError("the paper's hierarchy of vdvae-paper is that of 28 x 28 pixels")
    return Config(
        dataset,
        model,
        encoder="28x6,28d2,14x4,14d2,7x2,7d2,3x2,3d2,1x2",
        decoder="1x2,3m1,3x2,7m3,7x2,14m7,14x4,28m14,28x6",
    )


def _codes(dataset: Dataset) -> Config:
    """Return the settings of VQ-VAEs."""
    all_have = Config(
        dataset,
        "vqvae",
        code_window=2,
        context_width=120,
        context_hidden=120,
        context_blocks=(2, 2, 1, 1),
        fine_width=48,
        posterior_width=64,
        posterior_blocks=6,
        prior_width=48,
        steps=100_000,
        orthogonal_rate=0.005,
        clip_norm=5.0,
        precision="tf32",
        compiled=True,
    )
    if dataset == "mnist":
        return dataclasses.replace(all_have, dropout=0.1)
    if dataset == "omniglot":
        return dataclasses.replace(
            all_have, num_codes=256, code_components=10, dropout=0.1, shift=1
        )
    return dataclasses.replace(
        all_have,
        num_codes=512,
        code_width=128,
        context_width=192,
        context_hidden=192,
        context_blocks=(2, 2, 2, 2),
        fine_width=64,
        posterior_width=80,
        posterior_head=256,
        dropout=0.1,
        mirrored=True,
        batch_size=64,
        precision="bfloat16",
    )


def _hierarchy(dataset: Dataset) -> Config:
    """Return the settings of VDVAEs."""
    if dataset == "celeba":
        return Config(
            dataset,
            "vdvae",
            encoder="64x2,64d2,32x6,32d2,16x6,16d2,8x4,8d2,4x2,4d4,1x2",
            decoder="1x2,4m1,4x2,8m4,8x5,16m8,16x9,32m16,32x9,64m32",
            guess=1.0,
            steps=100_000,
            batch_size=32,
            orthogonal_rate=0.005,
            mirrored=True,
        )
    return Config(
        dataset,
        "vdvae",
        encoder="28x2,28d2,14x4,14d2,7x4,7d2,3x2,3d2,1x2",
        decoder="1x2,3m1,3x2,7m3,7x4,14m7,14x5,28m14,28x2",
        steps=100_000,
        orthogonal_rate=0.005,
        shift=0 if dataset == "mnist" else 1,
    )
