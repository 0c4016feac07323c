"""The plain VAE of images."""

from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution, Independent

from postmatch.distributions.gaussian import Gaussian
from postmatch.distributions.pixels import Pixels
from postmatch.nets.precision import full_precision
from postmatch.vaes.base import VAE, require_complete


@final
class ConvVAE(VAE):
    r"""Images in [0, 1]; given z, each value is the probability of ink.

    .. math:: \log p(x \mid z) = \sum_i x_i \log \mu_i + (1 - x_i) \log (1 - \mu_i)

    A grey value counts as that part of a drop of ink, as in the paper; so this is a density of
    black and white images alone, and of others a score.

    Args:
        encoder: From images to features.
        head: From features to q(z | x).
        decoder: From z to logits, ``(..., channels, height, width)``.
        latent_size: Length of z, whose prior is standard normal.
        image_shape: Channels, height and width of all images, if rows are to be checked.
    """

    origin: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        decoder: nn.Module,
        latent_size: int,
        image_shape: tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.encoder, self.head, self.decoder = encoder, head, decoder
        self.register_buffer("origin", torch.zeros(latent_size), persistent=False)

    def prior(self) -> Distribution:
        """Return the standard normal."""
        base = Gaussian(self.origin, torch.ones_like(self.origin))
        return Independent(base, 1, validate_args=False)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return q(z | x) of complete images."""
        require_complete(available)
        distribution: Distribution = self.head(self.encoder(x))
        return distribution

    def decode(self, z: Tensor) -> Distribution:
        """Return independent pixels."""
        return Pixels(Bernoulli(logits=full_precision(self.decoder(z)), validate_args=False))
