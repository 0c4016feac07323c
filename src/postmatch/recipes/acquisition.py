"""Which pixel to look at next: the paper's section 5.5, on MNIST of 16 x 16 pixels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.acquisition import AmortisedGain, LookaheadGain, SampledGain
from postmatch.acquisition_fitting import (
    AcquisitionPlan,
    Walks,
    falls_at_means,
    fit_amortised,
    fit_lookahead,
    gain_loss,
)
from postmatch.conditioning import MatchedVAE
from postmatch.masks import MaskDistribution, UniformCount
from postmatch.nets.conv import ConvDecoder, ConvEncoder
from postmatch.nets.linear import Linear
from postmatch.nets.mlp import Perceptron
from postmatch.offers import Offers
from postmatch.partial import DiagonalHead, FullGaussianHead, MaskedEncoder
from postmatch.randomness import seeded
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Precision, Progress, Report
from postmatch.vaes.conv import ConvVAE

Network = Literal["mlp", "conv"]
NETWORKS: tuple[Network, ...] = get_args(Network)
Objective = Literal["bound", "match"]
SIDE = 16
PIXELS = SIDE * SIDE
HIDDEN = (50, 100, 200)  # of the paper's multilayer perceptrons
_ENCODER = ((32, 3, 1), (32, 3, 2), (64, 3, 1), (64, 3, 2), (128, 4, 1))
_DECODER = ((64, 4, 1), (64, 3, 2), (32, 3, 1), (32, 3, 2), (1, 3, 1))
_CONV_FEATURES = 128
_WALK = 30  # choices
_LOOKAHEAD = (32, 32, 16)  # images, pixels and draws per update, as in the paper
_SHARES = {"model": 0.35, "amortised": 0.15, "together": 0.4, "lookahead": 0.1}  # of the time


@final
@dataclass(frozen=True)
class Config:
    """Everything that decides what is trained.

    Args:
        network: Of encoders and decoder.
        latent_size: Length of z.
        objective: Of the model: ``bound`` trains it for conditional questions, ``match`` trains the
            VAE by its ELBO alone. Neither lets the match shrink z, as the paper's does.
        steps: Updates of the VAE and of its match.
        gain_steps: Updates of the network that tells gains, and of the lookahead posteriors.
        joint_steps: Updates of the model and of that network together, so that the model knows what
            choices lead to, and choices know the model.
        batch_size: Images per update.
        learning_rate: At first.
        gain_batch_size: Images per update of the network that tells gains.
        num_offers: Pixels whose gain an update looks at.
        num_samples: Draws of what would be seen, per image and update.
        walking: The part of the images of which is seen what the network itself has chosen, when it
            is trained.
        most: The part of the pixels that is observed in training, at most.
    """

    network: Network = "mlp"
    latent_size: int = 10
    objective: Objective = "bound"
    steps: int = 150_000
    gain_steps: int = 20_000
    joint_steps: int = 50_000
    batch_size: int = 128
    learning_rate: float = 1e-3
    gain_batch_size: int = 128
    num_offers: int = 32
    num_samples: int = 4
    walking: float = 0.5
    most: float = 0.2
    precision: Precision = "tf32"


class Fitted(NamedTuple):
    """What a training gives.

    Args:
        model: The matched VAE.
        amortised: The network that tells gains.
        lookahead: The paper's.
        reports: How the trainings went, by part.
    """

    model: MatchedVAE
    amortised: AmortisedGain
    lookahead: LookaheadGain
    reports: dict[str, Report]


def read(images: Tensor) -> Tensor:
    """Return images of 28 x 28 bytes as 16 x 16 numbers in [0, 1]."""
    return F.interpolate(images / 255.0, (SIDE, SIDE), mode="bilinear", align_corners=False)


def masks(config: Config) -> MaskDistribution:
    """Return what is observed in training: few pixels, any number of them equally likely."""
    return UniformCount(0.0, config.most)


def offers() -> Offers:
    """Return each pixel on its own."""
    return Offers.each([1, SIDE, SIDE])


def build(config: Config) -> MatchedVAE:
    """Return the untrained model."""
    size, features = config.latent_size, features_of(config)
    decoder = ConvDecoder(size, _DECODER) if config.network == "conv" else ImageDecoder(size)
    body, head = encoder(config, 1), DiagonalHead(features, size)
    vae = ConvVAE(body, head, decoder, size, image_shape=(1, SIDE, SIDE))
    return MatchedVAE(vae, MaskedEncoder(encoder(config, 2), FullGaussianHead(features, size)))


def encoder(config: Config, channels: int) -> nn.Module:
    """Return the body of an encoder of images, or of images and masks."""
    if config.network == "conv":
        return ConvEncoder(channels, _ENCODER)
    return Perceptron(channels * PIXELS, HIDDEN)


def features_of(config: Config) -> int:
    """Return how many numbers such a body gives."""
    return _CONV_FEATURES if config.network == "conv" else HIDDEN[-1]


def fit(
    config: Config,
    images: Tensor,
    *,
    seed: int = 0,
    max_seconds: float = 0.0,
    show: Callable[[Progress], None] | None = None,
) -> Fitted:
    """Train a model of images and, with it as it is, both networks that choose pixels.

    Args:
        config: What is trained.
        images: uint8, ``(rows, 1, 28, 28)``, on the device to train on.
        seed: Decides weights, batches, masks and noise.
        max_seconds: Train no longer than this in all; 0 for no limit.
        show: Told of the progress of each part.
    """
    small = torch.cat([read(part) for part in torch.split(images, 5_000)])
    count, every = features_of(config), offers()
    with seeded(seed):
        model = build(config)
        gains = nn.Sequential(encoder(config, 2), Linear(count, PIXELS))
        ahead = nn.Sequential(encoder(config, 2), Linear(count, PIXELS * 2 * config.latent_size))
    model, amortised = model.to(small.device), AmortisedGain(gains, every).to(small.device)
    lookahead = LookaheadGain(ahead, every).to(small.device)
    seconds = {part: share * max_seconds for part, share in _SHARES.items()}
    fitting = _Fitting(config, model, small, seconds, seed, show)
    reports = {
        "model": fitting.alone(),
        "amortised": fitting.amortised(amortised),
        "together": fitting.together(amortised),
        "lookahead": fitting.lookahead(lookahead),
    }
    return Fitted(model.eval(), amortised.eval(), lookahead.eval(), reports)


def sampled(model: MatchedVAE, num_samples: int = 50) -> SampledGain:
    """Return the paper's choice, by means of the decoder at draws of z."""
    return SampledGain(model, offers(), num_samples, means=True)


@final
class ImageDecoder(nn.Module):
    """From z to logits of an image, by a perceptron."""

    def __init__(self, latent_size: int) -> None:
        super().__init__()
        self.body, self.last = Perceptron(latent_size, HIDDEN), Linear(HIDDEN[-1], PIXELS)

    def forward(self, z: Tensor) -> Tensor:
        """Return ``(..., 1, 16, 16)``."""
        pixels: Tensor = self.last(self.body(z.reshape(-1, z.shape[-1])))
        return pixels.view(*z.shape[:-1], 1, SIDE, SIDE)


@final
@dataclass(frozen=True)
class _Fitting:
    """The parts of a training, in order."""

    config: Config
    model: MatchedVAE
    images: Tensor
    seconds: dict[str, float]
    seed: int
    show: Callable[[Progress], None] | None

    def alone(self) -> Report:
        """Train the model on random masks."""
        images = self.images
        generator = torch.Generator(images.device).manual_seed(self.seed)
        shape = (min(self.config.batch_size, len(images)),)

        def loss(_: Tensor) -> Losses:
            x = images[torch.randint(len(images), shape, generator=generator, device=images.device)]
            return self._losses(x, masks(self.config).sample(x.shape, generator), generator)

        plan = plan_for(self.config, self.config.steps, self.seconds["model"])
        return train(self.model, loss, plan, generators=[generator], show=self.show)

    def amortised(self, acquirer: AmortisedGain) -> Report:
        """Train the network that tells gains."""
        how = self._how(plan_for(self.config, self.config.gain_steps, self.seconds["amortised"]))
        about = (acquirer, self.model, self.images, masks(self.config), how)
        return fit_amortised(*about, teacher=falls_at_means, seed=self.seed, show=self.show)

    def together(self, acquirer: AmortisedGain) -> Report:
        """Train both on what is chosen, and on random masks."""
        config, images = self.config, self.images
        generator = torch.Generator(images.device).manual_seed(self.seed + 1)
        plan = plan_for(config, config.joint_steps, self.seconds["together"])
        how, size = self._how(plan), min(config.gain_batch_size, len(images))
        walks = Walks(round(how.walking * size), _WALK, acquirer, len(images), generator)
        self.model.requires_grad_(True)

        def loss(_: Tensor) -> Losses:
            drawn = torch.randint(len(images), (size,), generator=generator, device=images.device)
            observed = masks(config).sample(images[drawn].shape, generator)
            drawn, observed = walks.instead_of(drawn, observed)
            x = images[drawn]
            about = (acquirer, self.model, x, observed, how, falls_at_means, generator)
            found = self._losses(x, observed, generator) | {"gain": gain_loss(*about)}
            walks.go_on(x, observed)
            return found

        both = nn.ModuleList([self.model, acquirer])
        return train(both, loss, plan, generators=[generator], show=self.show)

    def lookahead(self, acquirer: LookaheadGain) -> Report:
        """Train the paper's posteriors."""
        config = self.config
        plan = plan_for(config, config.gain_steps, self.seconds["lookahead"])
        how = AcquisitionPlan(plan, *_LOOKAHEAD)
        about = (acquirer, self.model, self.images, masks(config), how)
        return fit_lookahead(*about, seed=self.seed, show=self.show)

    def _losses(self, x: Tensor, observed: Tensor, generator: torch.Generator) -> Losses:
        bound = self.config.objective == "bound"
        losses = self.model.bound_losses if bound else self.model.losses
        return losses(x, None, observed, generator=generator)

    def _how(self, plan: Plan) -> AcquisitionPlan:
        config = self.config
        sizes = (config.gain_batch_size, config.num_offers, config.num_samples)
        return AcquisitionPlan(plan, *sizes, walking=config.walking, walk_steps=_WALK)


def plan_for(config: Config, steps: int, max_seconds: float = 0.0) -> Plan:
    """Return how long and how fast a part is trained."""
    return Plan(
        steps,
        learning_rate=config.learning_rate,
        schedule="cosine",
        final_rate=0.01,
        warmup=100,
        weight_decay=0.0,
        average=0.999,
        max_seconds=max_seconds,
        precision=config.precision,
    )
