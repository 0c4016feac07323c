"""EDDI: what to measure next by a partial VAE and draws (Ma et al., 2019).

Written from the paper's description (arXiv 1809.11142): one set encoder for every mask, trained by
a bound on the density of what is observed, and a reward that is information about a target. As in
the comparison on MNIST, the target is all that is still hidden.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent, Normal, kl_divergence

from partial_vae import losses
from postmatch.acquisition import SAMPLES, Acquirer
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.pixels import Pixels
from postmatch.nets.linear import Linear
from postmatch.nets.precision import full_precision
from postmatch.offers import Offers
from postmatch.partial import DiagonalHead, PartialEncoder
from postmatch.randomness import seeded
from postmatch.recipes import acquisition
from postmatch.recipes.acquisition import HIDDEN, PIXELS, Config, masks, plan_for
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Progress, Report
from postmatch.vaes.base import VAE, or_everything

NAME_SIZE = 20  # of a feature's identity; the published code has 10
EMBEDDING_SIZE = 200  # of a feature and its value; the published code has 20


@final
class Embedding(nn.Module):
    r"""A vector for each feature and its value, by one layer on value, name and their product.

    .. math:: h_i = \max(0,\, x_i (A e_i + a) + C e_i + c) / \sqrt{d}

    The root of the number of features keeps sums of many as small as a network likes them.

    Args:
        num_features: How many features a row has.
        name_size: Length of their learned names :math:`e_i`.
        size: Length of the vectors.
    """

    def __init__(self, num_features: int, name_size: int, size: int) -> None:
        super().__init__()
        self.names = nn.Parameter(torch.randn(num_features, name_size))
        self.slope, self.start = Linear(name_size, size), Linear(name_size, size)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., features, size)`` of ``(..., features)``."""
        slope, start = self.slope(self.names), self.start(self.names)  # (features, size)
        return torch.addcmul(start, x.unsqueeze(-1), slope).relu() / len(start) ** 0.5


@final
class PointNet(PartialEncoder):
    """The sum of the observed features' vectors, then a network and a head.

    Args:
        embed: From values to a vector for each feature.
        read: From sums of vectors, ``(..., size)``, to distributions of batch shape ``(...)``.
    """

    def __init__(self, embed: nn.Module, read: nn.Module) -> None:
        super().__init__()
        self.embed, self.read = embed, read

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return what is read from the sum."""
        distribution: Distribution = self.read(self.total(x, observed))
        return distribution

    def total(self, x: Tensor, observed: Tensor) -> Tensor:
        """Return the sum of the vectors of what is observed, ``(batch, size)``."""
        each = self.embed(x.masked_fill(~observed, 0.0).flatten(1))
        return each.masked_fill(~observed.flatten(1).unsqueeze(-1), 0.0).sum(1)


@final
class PartialVAE(VAE):
    """A VAE of images in [0, 1] whose encoder takes what is available for what is observed.

    Args:
        encoder: For every mask.
        decoder: From z to logits.
        latent_size: Length of z, whose prior is standard normal.
    """

    origin: Tensor

    def __init__(self, encoder: PartialEncoder, decoder: nn.Module, latent_size: int) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.register_buffer("origin", torch.zeros(latent_size), persistent=False)

    def prior(self) -> Distribution:
        """Return the standard normal."""
        base = Normal(self.origin, torch.ones_like(self.origin), validate_args=False)
        return Independent(base, 1, validate_args=False)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return q(z | x_o) of what is available."""
        distribution: Distribution = self.encoder(x, or_everything(available, x))
        return distribution

    def decode(self, z: Tensor) -> Distribution:
        """Return independent pixels."""
        return Pixels(Bernoulli(logits=full_precision(self.decoder(z)), validate_args=False))


@final
class EddiReward(Acquirer):
    r"""Expected information about all else that is hidden, by draws (Ma et al., equation 9).

    .. math:: \mathbb{E}\, \mathrm{KL}\left( q(z \mid x_o, x_i) \,\|\, q(z \mid x_o) \right)
        - \mathbb{E}\, \mathrm{KL}\left( q(z \mid x_o, x_u)
        \,\|\, q(z \mid x_o, x_{u \setminus i}) \right), \qquad x_u \sim p(x_u \mid x_o)

    Vectors of a set are added and taken away, so that none is embedded twice for the same draw.

    Args:
        model: With a set encoder.
        offers: Each feature on its own.
        num_samples: Draws of what is hidden.
        seed: Of the draws, which all rows share.
        means: See means of the decoder at draws of z, as our own choice of grey pixels does.
    """

    def __init__(
        self,
        model: MatchedVAE,
        offers: Offers,
        num_samples: int = SAMPLES,
        seed: int = 0,
        *,
        means: bool = False,
    ) -> None:
        super().__init__(offers)
        if not isinstance(model.partial, PointNet) or not offers.single:
            raise TypeError("EddiReward needs a PointNet and offers of one feature each")
        self.model, self.encoder, self.num_samples = model, model.partial, num_samples
        self.seed, self.means = seed, means

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:
        """See the base."""
        encoder, hidden = self.encoder, ~observed.flatten(1).unsqueeze(-1)
        given, how = self.model.given(x, observed), (self.num_samples, self.seed)
        drawn = given.marginals(*how).mean if self.means else given.shared_samples(*how)
        known = encoder.total(x, observed)[:, None]  # (batch, 1, size)
        now = encoder.read(known)
        reward = x.new_zeros(hidden.shape[:2])
        for row in drawn:  # one by one: a draw has as many encodings as features
            each = encoder.embed(row.flatten(1))  # (batch, features, size)
            whole = known + each.masked_fill(~hidden, 0.0).sum(1, keepdim=True)
            alone = kl_divergence(encoder.read(known + each), now)
            at_last = kl_divergence(encoder.read(whole), encoder.read(whole - each))
            reward += alone - at_last
        return reward / self.num_samples


def build(config: Config) -> MatchedVAE:
    """Return the untrained model, with networks of our own perceptrons' sizes."""
    sizes = (EMBEDDING_SIZE, *HIDDEN)
    layers = [part for fans in pairwise(sizes) for part in (Linear(*fans), nn.ReLU())]
    read = nn.Sequential(*layers, DiagonalHead(HIDDEN[-1], config.latent_size))
    encoder = PointNet(Embedding(PIXELS, NAME_SIZE, EMBEDDING_SIZE), read)
    vae = PartialVAE(encoder, acquisition.ImageDecoder(config.latent_size), config.latent_size)
    return MatchedVAE(vae, encoder)


def fit(
    config: Config,
    images: Tensor,
    *,
    seed: int = 0,
    max_seconds: float = 0.0,
    show: Callable[[Progress], None] | None = None,
) -> tuple[MatchedVAE, Report]:
    """Train the model for as long as our own, with the same masks and on complete images, too.

    Without the latter, the reward would ask the encoder about sets it has never seen.

    Args:
        config: Of our own model.
        images: ``(rows, 1, 16, 16)``, in [0, 1], on the device to train on.
        seed: Decides weights, batches, masks and noise.
        max_seconds: Train no longer than this; 0 for no limit.
        show: Told of the progress.
    """
    with seeded(seed):
        model = build(config).to(images.device)
    generator = torch.Generator(images.device).manual_seed(seed)
    some, size = masks(config), min(config.batch_size, len(images))

    def loss(_: Tensor) -> Losses:
        drawn = torch.randint(len(images), (size,), generator=generator, device=images.device)
        x = images[drawn]
        return losses(model.vae, x, some.sample(x.shape, generator), 1.0, generator)

    plan = plan_for(config, config.steps, max_seconds)
    return model, train(model.vae, loss, plan, generators=[generator], show=show)
