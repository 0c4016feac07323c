"""The VAE of a table with columns of different types and with holes."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from postmatch.distributions.autoregressive import AutoregressiveMixture
from postmatch.distributions.columns import ColumnSpec
from postmatch.distributions.layout import ColumnLayout
from postmatch.distributions.mixed import MixedColumns
from postmatch.nets.linear import Linear
from postmatch.nets.made import MaskedResidualNet
from postmatch.nets.precision import full_precision
from postmatch.partial import PartialEncoder
from postmatch.vaes.base import VAE, or_everything


@final
class TableVAE(VAE):
    """A distribution per column, given z; a learned autoregressive prior; holes are welcome.

    Args:
        specs: What each column is.
        encoder: From rows with holes to a Gaussian over z.
        prior_net: A masked network for an autoregressive mixture over z.
        decoder: From z to features, ``(..., decoder_size)``.
        decoder_size: Length of the decoder's features.
        num_components: Mixture components of each number's distribution.
    """

    widening: Tensor

    def __init__(
        self,
        specs: Sequence[ColumnSpec],
        encoder: PartialEncoder,
        prior_net: MaskedResidualNet,
        decoder: nn.Module,
        decoder_size: int,
        num_components: int,
    ) -> None:
        super().__init__()
        self.layout = ColumnLayout(specs, num_components)
        self.encoder, self.prior_net, self.decoder = encoder, prior_net, decoder
        self.head = Linear(decoder_size, self.layout.num_outputs)
        self.register_buffer("widening", torch.ones(()))  # set by calibration
        with torch.no_grad():  # before training, z says little and columns have their marginals
            self.head.weight.mul_(0.1)
            self.head.bias.copy_(self.layout.initial_bias())

    def prior(self) -> Distribution:
        """Return the autoregressive mixture over z."""
        return AutoregressiveMixture(self.prior_net)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return the Gaussian over z given what is available."""
        distribution: Distribution = self.encoder(x, or_everything(available, x))
        return distribution

    def decode(self, z: Tensor) -> Distribution:
        """Return the columns' distributions."""
        widening = None if self.training else self.widening
        return MixedColumns(self.layout, self.parameters_of(z), widening)

    def parameters_of(self, z: Tensor) -> Tensor:
        """Return the parameters of the columns' distributions, ``(..., layout.num_outputs)``."""
        return full_precision(self.head(self.decoder(z)))

    def point(self, decoded: Distribution) -> Tensor:
        """Return means of numbers and the most probable levels, after averaging over z."""
        assert isinstance(decoded, MixedColumns)
        return decoded.point()
