"""A VAE of real vectors whose features have a shape of their own."""

from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from postmatch.distributions.autoregressive import AutoregressiveMixture
from postmatch.distributions.mixtures import GaussianMixtures
from postmatch.nets.made import MaskedResidualNet
from postmatch.nets.precision import full_precision
from postmatch.partial import PartialEncoder
from postmatch.vaes.base import VAE, or_everything


@final
class MixtureVAE(VAE):
    r"""Rows of real numbers; given z, each feature is a mixture with its own scales.

    Args:
        encoder: From rows, holes allowed, to q(z | x).
        decoder: From z to ``(..., 3 * components * features)``: logits, means and raw scales.
        prior_net: A masked network for the autoregressive mixture over z.
        num_features: How many features a row has.
    """

    def __init__(
        self,
        encoder: PartialEncoder,
        decoder: nn.Module,
        prior_net: MaskedResidualNet,
        num_features: int,
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.prior_net = encoder, decoder, prior_net
        self.num_features = num_features

    def prior(self) -> Distribution:
        """Return the autoregressive mixture over z."""
        return AutoregressiveMixture(self.prior_net)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return q(z | x) given what is available."""
        distribution: Distribution = self.encoder(x, or_everything(available, x))
        return distribution

    def decode(self, z: Tensor) -> Distribution:
        """Return independent mixtures."""
        outputs = full_precision(self.decoder(z))
        return GaussianMixtures(torch.unflatten(outputs, -1, (-1, self.num_features)))
