"""Networks that tell what each measurement of a table's row is expected to bring."""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from postmatch.distributions.columns import ColumnSpec
from postmatch.nets.columns import ColumnFeatures
from postmatch.nets.linear import Linear
from postmatch.nets.mlp import ResidualMLP

_WIDTH, _BLOCKS = 128, 2
_MASK_WIDTH = 64


class GainParts(NamedTuple):
    """What a gain is made of, each ``(batch, offers)``.

    Args:
        by_values: Depends on all that is seen of a row; how far it is trusted is learned.
        by_mask: Depends on which cells are seen alone.
    """

    by_values: Tensor
    by_mask: Tensor


@final
class TableGainNet(nn.Module):
    r"""From values and mask side by side, by way of features of columns, to gains.

    .. math:: c_i f_i(x_o) + h_i(o)

    Args:
        specs: The columns.
        num_offers: How many gains.
    """

    def __init__(self, specs: Sequence[ColumnSpec], num_offers: int) -> None:
        super().__init__()
        self.features = ColumnFeatures(specs)
        self.body = ResidualMLP(self.features.num_features, _WIDTH, _BLOCKS)
        self.last = Linear(_WIDTH, num_offers)
        last = Linear(_MASK_WIDTH, num_offers)
        self.by_mask = nn.Sequential(Linear(len(specs), _MASK_WIDTH), nn.GELU(), last)
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        self.trust = nn.Parameter(torch.ones(num_offers))

    def forward(self, seen: Tensor) -> Tensor:
        """Return ``(batch, offers)``."""
        by_values, by_mask = self.parts(seen)
        return self.trust * by_values + by_mask

    def parts(self, seen: Tensor) -> GainParts:
        """Return what gains are made of."""
        x, mask = seen.chunk(2, dim=1)
        return GainParts(self.last(self.body(self.features(x, mask > 0.5))), self.by_mask(mask))
