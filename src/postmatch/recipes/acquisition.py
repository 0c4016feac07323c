"""Which pixel to look at next: the paper's section 5.5, on MNIST of 16 x 16 pixels."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, final, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.acquisition import Acquirer, AmortisedGain, LookaheadGain, SampledGain
from postmatch.acquisition_fitting import (
    AcquisitionPlan,
    falls_at_means,
    fit_amortised,
    fit_lookahead,
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
_LOOKAHEAD = (32, 32, 16)  # images, pixels and draws per update, as in the paper
_SHARES = {"model": 0.45, "amortised": 0.35, "lookahead": 0.2}  # of the time for training


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
        batch_size: Images per update.
        learning_rate: At first.
        gain_batch_size: Images per update of the network that tells gains.
        num_offers: Pixels whose gain an update looks at.
        num_samples: Draws of what would be seen, per image and update.
        walking: The part of these images of which is seen what the network itself has chosen.
        most: The part of the pixels that is observed in training, at most.
    """

    network: Network = "mlp"
    latent_size: int = 10
    objective: Objective = "bound"
    steps: int = 200_000
    gain_steps: int = 60_000
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
    vae = ConvVAE(encoder(config, 1), DiagonalHead(features, size), decoder, size)
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
    plan = plan_for(config, config.steps, seconds["model"])
    reports = {"model": _fit_model(config, model, small, plan, seed, show)}
    plan = plan_for(config, config.gain_steps, seconds["amortised"])
    sizes = (config.gain_batch_size, config.num_offers, config.num_samples)
    how = AcquisitionPlan(plan, *sizes, walking=config.walking)
    reports["amortised"] = fit_amortised(
        amortised, model, small, masks(config), how, teacher=falls_at_means, seed=seed, show=show
    )
    plan = plan_for(config, config.gain_steps, seconds["lookahead"])
    how = AcquisitionPlan(plan, *_LOOKAHEAD)
    reports["lookahead"] = fit_lookahead(
        lookahead, model, small, masks(config), how, seed=seed, show=show
    )
    return Fitted(model.eval(), amortised.eval(), lookahead.eval(), reports)


@final
class RandomOrder(Acquirer):
    """Pixels in any order, another for each image.

    Args:
        offers: What can be measured.
        seed: Of the orders.
    """

    def __init__(self, offers: Offers, seed: int = 0) -> None:
        super().__init__(offers)
        self.generator = torch.Generator().manual_seed(seed)

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:  # noqa: ARG002
        """Return random numbers."""
        return torch.rand(len(x), len(self.offers.costs), generator=self.generator).to(x.device)


@final
class FixedOrder(Acquirer):
    """The same order for all images.

    Args:
        offers: What can be measured.
        order: Numbers of offers, best first; those left out come last.
    """

    def __init__(self, offers: Offers, order: Tensor) -> None:
        super().__init__(offers)
        gains = torch.zeros(len(offers.costs))
        gains[order.cpu()] = torch.arange(len(order), 0.0, -1.0)
        self.gains = gains

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:  # noqa: ARG002
        """Return how early an offer comes."""
        return self.gains.to(x.device).expand(len(x), -1)


@torch.no_grad()
def best_fixed_order(acquirer: Acquirer, x: Tensor, num_steps: int) -> Tensor:
    """Return the offers that tell most on average, one after the other, ``(steps,)``.

    Args:
        acquirer: Tells the gains.
        x: Complete rows to average over.
        num_steps: How many offers.
    """
    reveals, order = acquirer.offers.reveals.to(x.device), []
    observed = torch.zeros(len(x), *reveals.shape[1:], dtype=torch.bool, device=x.device)
    for _ in range(num_steps):
        order.append(int(acquirer(x, observed).mean(0).argmax()))
        observed = observed | reveals[order[-1]]
    return torch.tensor(order)


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


def _fit_model(
    config: Config,
    model: MatchedVAE,
    images: Tensor,
    plan: Plan,
    seed: int,
    show: Callable[[Progress], None] | None,
) -> Report:
    generator = torch.Generator(images.device).manual_seed(seed)
    some, size = masks(config), min(config.batch_size, len(images))

    def loss(_: Tensor) -> Losses:
        drawn = torch.randint(len(images), (size,), generator=generator, device=images.device)
        x = images[drawn]
        observed = some.sample(x.shape, generator)
        losses = model.bound_losses if config.objective == "bound" else model.losses
        return losses(x, None, observed, generator=generator)

    return train(model, loss, plan, generators=[generator], show=show)


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
