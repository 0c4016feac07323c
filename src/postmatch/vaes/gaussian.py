"""The plain VAE of real vectors."""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent

from postmatch.distributions.autoregressive import AutoregressiveMixture
from postmatch.distributions.gaussian import Gaussian
from postmatch.nets.made import MaskedResidualNet
from postmatch.nets.precision import full_precision
from postmatch.partial import PartialEncoder
from postmatch.vaes.base import VAE, or_everything


@final
class GaussianVAE(VAE):
    r"""Rows of real numbers whose standard deviation is learned: :math:`p(x \mid z)` of the paper.

    Args:
        encoder: From rows, holes allowed, to q(z | x).
        decoder: From z to the means of the features, ``(..., features)``.
        latent_size: Length of z.
        prior_net: A masked network for an autoregressive mixture prior; None for a standard normal.
        scale: The standard deviation of the features before training.
        num_features: How many of them have a standard deviation of their own; None for one in all.
    """

    def __init__(
        self,
        encoder: PartialEncoder,
        decoder: nn.Module,
        latent_size: int,
        prior_net: MaskedResidualNet | None = None,
        scale: float = 1.0,
        num_features: int | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.prior_net = encoder, decoder, prior_net
        self.latent_size = latent_size
        shape = () if num_features is None else (num_features,)
        self.log_scale = nn.Parameter(torch.full(shape, math.log(scale)))

    def prior(self) -> Distribution:
        """Return the learned prior, or the standard normal."""
        if self.prior_net is not None:
            return AutoregressiveMixture(self.prior_net)
        zero = self.log_scale.new_zeros(self.latent_size)
        return Independent(Gaussian(zero, torch.ones_like(zero)), 1, validate_args=False)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return q(z | x) given what is available."""
        distribution: Distribution = self.encoder(x, or_everything(available, x))
        return distribution

    def decode(self, z: Tensor) -> Distribution:
        """Return independent Gaussians."""
        return Gaussian(full_precision(self.decoder(z)), self.log_scale.exp())
