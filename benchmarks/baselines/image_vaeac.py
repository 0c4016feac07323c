"""VAEAC of images: a conditional VAE for every mask (Ivanov, Figurnov and Vetrov, 2019).

Written from the paper's description (arXiv 1806.02382): z is one vector, and the generator reads
what is observed by skip connections from the network of the prior. Pixels are those of our own
hierarchies, mixtures of discretised logistics.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence
from torch.nn import functional as F

from postmatch.distributions.discretised import DiscretisedLogistics, num_logistic_maps
from postmatch.distributions.noise import draw, from_noise, noise_size, quasi_uniform
from postmatch.nets.linear import Linear
from postmatch.partial import DiagonalHead
from postmatch.randomness import seeded
from postmatch.recipes.image_batches import ImageBatches
from postmatch.recipes.inpainting import masks_of
from postmatch.recipes.inpainting_config import CHANNELS, DATASETS, SIZES, Dataset
from postmatch.recipes.inpainting_scores import DRAWS, Decoder, Imputer, filled
from postmatch.training.checkpoints import Checkpoints, run_on
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Precision, Progress, Report, plan_of
from postmatch.training.schedules import RateSchedule, monotonic
from postmatch.training.signals import signals_noted
from postmatch.vaes.base import log_likelihood
from vaeac import log_hyperprior

JUDGED = 1_000  # held-out images that choose the weights, as many as in our own recipe
_NARROW = 32  # channels of the maps next to z


@final
@dataclass(frozen=True)
class Config:
    """Everything that decides what is trained; the training is that of our own hierarchies.

    That of faces has twice their orthogonal rate, which this model bears and they do not.

    Args:
        dataset: Which images.
        widths: Channels of the maps of each size; each has half the side of the one before.
        num_blocks: Residual blocks per size.
        latent_size: Length of z.
        components: Logistics per pixel.
        kl_warmup: The part of training over which the weight of the divergence rises.
        steps: How many updates.
        batch_size: Images per update.
        orthogonal_rate: Of steps that are orthogonal matrices; 0 for steps of Adam.
        orthogonal: Which matrices take these.
        average: Decay of the running average of the weights.
        mirrored: Whether half of the training images are mirrored.
        shift: By how many pixels they are moved at most.
    """

    dataset: Dataset
    widths: Sequence[int]
    num_blocks: int = 2
    latent_size: int = 64
    components: int = 10
    kl_warmup: float = 0.05
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
    mirrored: bool = False
    shift: int = 0
    precision: Precision = "tf32"


def config_of(dataset: Dataset) -> Config:
    """Return settings with about as many parameters as our hierarchy of these images has."""
    if dataset not in DATASETS:
        raise ValueError(f"dataset must be one of {', '.join(DATASETS)}, got {dataset!r}")
    if dataset == "celeba":
        return Config(
            dataset,
            (64, 128, 160, 160),
            latent_size=128,
            steps=100_000,
            batch_size=32,
            orthogonal_rate=0.01,
            mirrored=True,
        )
    shift = 0 if dataset == "mnist" else 1
    return Config(dataset, (64, 128, 160), steps=100_000, orthogonal_rate=0.005, shift=shift)


@final
class ResidualBlock(nn.Module):
    """Two 3x3 convolutions that are added to what they read, GELU before each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)  # so that what a deep stack reads gets through at first

    def forward(self, x: Tensor) -> Tensor:
        """Return maps of the same shape."""
        correction: Tensor = self.second(F.gelu(self.first(F.gelu(x))))
        return x + correction


@final
class Encoder(nn.Module):
    """From an image to a Gaussian of z, and to maps of features on the way.

    Args:
        in_channels: Of the images and their mask together.
        size: Height and width of the images.
        config: Holds the sizes of the network.
    """

    def __init__(self, in_channels: int, size: int, config: Config) -> None:
        super().__init__()
        sizes = itertools.pairwise([in_channels, *config.widths])
        self.stages = nn.ModuleList(
            _stage(nn.Conv2d(fan_in, fan_out, 3, 2 if i else 1, 1), config.num_blocks)
            for i, (fan_in, fan_out) in enumerate(sizes)
        )
        self.last = nn.Conv2d(config.widths[-1], _NARROW, 1)
        area = _coarsest(size, config) ** 2
        self.head = DiagonalHead(_NARROW * area, config.latent_size)

    def forward(self, image: Tensor) -> tuple[Distribution, list[Tensor]]:
        """Return the Gaussian, batch shape ``(batch,)``, and the maps, those of one size each."""
        state = image.contiguous(memory_format=torch.channels_last)  # as a GPU reads it
        maps: list[Tensor] = []
        for stage in self.stages:
            state = stage(state)
            maps.append(state)
        return self.head(F.gelu(self.last(F.gelu(state))).flatten(1)), maps


@final
class Generator(nn.Module):
    """From z and the maps of an encoder to the parameters of pixels.

    Args:
        out_channels: Parameters of a pixel.
        size: Height and width of the images.
        config: Holds the sizes of the network.
    """

    def __init__(self, out_channels: int, size: int, config: Config) -> None:
        super().__init__()
        area = _coarsest(size, config) ** 2
        self.first = Linear(config.latent_size, _NARROW * area)
        sizes = itertools.pairwise([_NARROW, *reversed(config.widths)])
        self.stages = nn.ModuleList(
            _stage(nn.Conv2d(fan_in + width, width, 3, 1, 1), config.num_blocks)
            for fan_in, width in sizes
        )
        self.last = nn.Conv2d(config.widths[0], out_channels, 1)

    def forward(self, z: Tensor, maps: Sequence[Tensor]) -> Tensor:
        """Return ``(batch, out_channels, height, width)``."""
        state = self.first(z).view(len(z), _NARROW, *maps[-1].shape[2:])
        for stage, seen in zip(self.stages, reversed(maps), strict=True):
            larger = F.interpolate(state, seen.shape[2:])
            state = stage(torch.cat([seen, larger], dim=1))
        outputs: Tensor = self.last(F.gelu(state))
        return outputs


@final
class ImageVAEAC(nn.Module):
    r"""The model :math:`p(x_u \mid x_o) = \int p(x_u \mid z, x_o)\, p(z \mid x_o)\, dz` of images.

    Values are in [0, 1], and ``observed`` is ``(batch, 1, height, width)``.

    Args:
        proposal: From complete images and their mask to q(z | x, mask).
        prior: From visible pixels and their mask to p(z | x_o), and to maps of features.
        generator: From z and these maps to parameters of pixels.
        channels: Of the images.
    """

    def __init__(
        self, proposal: Encoder, prior: Encoder, generator: Generator, channels: int
    ) -> None:
        super().__init__()
        self.proposal, self.prior, self.generator = proposal, prior, generator
        self.channels = channels

    def propose(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return q(z | x, mask) of complete images."""
        proposal: Distribution = self.proposal(_with_mask(2.0 * x - 1.0, observed))[0]
        return proposal

    def read(self, x: Tensor, observed: Tensor) -> tuple[Distribution, list[Tensor]]:
        """Return p(z | x_o, mask) and maps of features; hidden pixels may hold anything."""
        visible = (2.0 * x - 1.0).masked_fill(~observed, 0.0)
        found: tuple[Distribution, list[Tensor]] = self.prior(_with_mask(visible, observed))
        return found

    def generate(self, z: Tensor, maps: Sequence[Tensor]) -> Distribution:
        """Return p(x | z, x_o, mask), of which pixels are independent."""
        return DiscretisedLogistics(self.generator(z, maps), self.channels)

    def losses(
        self, x: Tensor, observed: Tensor, beta: float | Tensor, generator: torch.Generator
    ) -> Losses:
        r"""Return the mean of the negative conditional bound, and what holds the prior in place.

        .. math:: -\mathbb{E}_{q(z \mid x)} \log p(x_u \mid z, x_o)
            + \beta\, \mathrm{KL}\left( q(z \mid x) \,\|\, p(z \mid x_o) \right)
        """
        proposal, (prior, maps) = self.propose(x, observed), self.read(x, observed)
        z = draw(proposal, (), generator)
        log_hidden = log_likelihood(self.generate(z, maps), x, ~observed)
        bound = log_hidden - beta * kl_divergence(proposal, prior)
        return {"bound": -bound.mean(), "prior": -log_hyperprior(prior).mean()}


def decoder(model: ImageVAEAC, num_draws: int = DRAWS) -> Decoder:
    """Return what decodes draws of z from the prior."""

    def decode(x: Tensor, observed: Tensor) -> Distribution:
        prior, maps = model.read(x, observed)
        drawn = prior.sample(torch.Size([num_draws]))
        # One by one, since all draws of an image share its maps.
        outputs = torch.stack([model.generator(z, maps) for z in drawn])
        return DiscretisedLogistics(outputs, model.channels)

    return decode


def imputer(model: ImageVAEAC, num_draws: int = 32) -> Imputer:
    """Return what completes images by draws of z that are spread as evenly as those of our own."""

    @torch.no_grad()
    def impute(x: Tensor, observed: Tensor) -> Tensor:
        prior, maps = model.read(x, observed)
        size = noise_size(prior)
        assert size is not None
        drawn = from_noise(prior, quasi_uniform(num_draws, size, 0, x.device))
        means = [model.generate(z, maps).mean for z in drawn]
        return filled(x, observed, torch.stack(means).mean(0))

    return impute


def build(config: Config) -> ImageVAEAC:
    """Return the untrained model."""
    channels, size = CHANNELS[config.dataset], SIZES[config.dataset]
    proposal, prior = (Encoder(channels + 1, size, config) for _ in range(2))
    generator = Generator(num_logistic_maps(channels, config.components), size, config)
    return ImageVAEAC(proposal, prior, generator, channels)


def fit(
    config: Config,
    images: Tensor,
    held_out: Tensor,
    *,
    seed: int = 0,
    max_seconds: float = 0.0,
    checkpoints: Path | None = None,
    show: Callable[[Progress], None] | None = None,
) -> tuple[ImageVAEAC, Report]:
    """Train the model as our own recipe trains its models; arguments are those of the recipe."""
    device = images.device
    with seeded(seed):
        model = build(config).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    batch = ImageBatches(images, config.batch_size, generator, config.mirrored, config.shift)
    masks, kl_weight, held_out = (
        masks_of(config.dataset),
        monotonic(config.kl_warmup),
        held_out[:JUDGED],
    )

    def losses_of(x: Tensor, beta: float | Tensor, noise: torch.Generator) -> Losses:
        observed = masks.sample((len(x), 1, *x.shape[2:]), noise)
        return model.losses(x, observed, beta, noise)

    def validate() -> float:
        fixed = torch.Generator(device).manual_seed(0)
        parts = torch.split(held_out, config.batch_size)
        found = [sum(losses_of(part / 255.0, 1.0, fixed).values()) * len(part) for part in parts]
        return float(sum(found)) / len(held_out)

    with signals_noted() as noted:
        report = train(
            model,
            lambda fraction: losses_of(batch(), kl_weight(fraction), generator),
            plan_of(config, max_seconds),
            validate=validate,
            generators=[generator],
            checkpoints=checkpoints and Checkpoints(checkpoints, run_on(images, seed)),
            stop=noted,
            show=show,
        )
    noted.follow()
    return model, report


def _with_mask(x: Tensor, observed: Tensor) -> Tensor:
    return torch.cat([x, observed.to(x.dtype)], dim=1)


def _stage(first: nn.Conv2d, num_blocks: int) -> nn.Sequential:
    """Return the network of one size, whose first layer reads what is around it."""
    nn.init.kaiming_normal_(first.weight, nonlinearity="linear")
    return nn.Sequential(first, *(ResidualBlock(first.out_channels) for _ in range(num_blocks)))


def _coarsest(size: int, config: Config) -> int:
    """Return the side of the smallest maps."""
    factor = 1 << (len(config.widths) - 1)
    if size % factor:
        raise ValueError(f"images must have a side that is a multiple of {factor}, got {size}")
    return size // factor
