"""The encoder of partly observed images for a hierarchy."""

from typing import final

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.distributions.hierarchy import Hierarchy
from postmatch.nets.hierarchical import LevelEncoder, TopDown
from postmatch.partial import PartialEncoder


@final
class HierarchicalEncoder(PartialEncoder):
    r"""A network on the visible pixels and their mask, which tells each level of a hierarchy.

    .. math:: q_\theta(z \mid x_o) = \prod_i q_\theta(z_i \mid z_{<i}, x_o)

    Args:
        top: The VAE's generating network, which stays its own: it is read and never trained here.
        encoder: From images with one more channel, which says what is observed.
    """

    def __init__(self, top: TopDown, encoder: LevelEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self._borrowed = (top,)  # a module inside a tuple is no part of this one

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return the distribution over the VAE's z, batch shape ``(batch,)``."""
        return self.hierarchy(x, observed)

    def hierarchy(self, x: Tensor, observed: Tensor) -> Hierarchy:
        """Return what the call returns, by its own name."""
        visible = (2.0 * x - 1.0).masked_fill(~observed, 0.0)
        image = torch.cat([visible, observed.to(x.dtype)], dim=1).movedim(1, -1)
        return Hierarchy(self._borrowed[0], self.encoder, self.encoder(image), borrowed=True)
