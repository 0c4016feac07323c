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
_MASK_WIDTH, _LEFT_WIDTH, _REAL_WIDTH = 64, 32, 64
_LEAST_LOG, _MOST_LOG = -12.0, 4.0  # of what there is to be told


class GainParts(NamedTuple):
    """What a gain is made of.

    Args:
        by_values: Depends on all that is seen of a row, ``(batch, offers)``; how far it is trusted
            is learned.
        by_mask: Depends on which cells are seen alone, ``(batch, offers)``.
        by_rows: Depends on all that is seen as well, ``(batch, offers)``; what rows of the table
            taught beyond the other two, and trusted by one learned factor.
        log_left: The logarithm of all that there is to be told, by the mask, ``(batch, 1)``.
    """

    by_values: Tensor
    by_mask: Tensor
    by_rows: Tensor
    log_left: Tensor


@final
class TableGainNet(nn.Module):
    r"""From values and mask side by side, by way of features of columns, to gains.

    .. math:: \ell(o) \left[ c_i f_i(x_o) + h_i(o) + \lambda g_i(x_o) \right], \qquad
        0 \le \lambda \le 1

    What there is to be told, :math:`\ell`, may fall by orders of magnitude on the way: parts of it
    are learned as well at the end as at the start.

    Args:
        specs: The columns.
        num_offers: How many gains.
    """

    def __init__(self, specs: Sequence[ColumnSpec], num_offers: int) -> None:
        super().__init__()
        self.features = ColumnFeatures(specs)
        size = self.features.num_features
        self.body, self.last = ResidualMLP(size, _WIDTH, _BLOCKS), Linear(_WIDTH, num_offers)
        self.by_mask = _from_nothing(_hidden(len(specs), _MASK_WIDTH), _MASK_WIDTH, num_offers)
        self.by_rows = _from_nothing(ResidualMLP(size, _REAL_WIDTH, 1), _REAL_WIDTH, num_offers)
        self.log_left = _from_nothing(_hidden(len(specs), _LEFT_WIDTH), _LEFT_WIDTH, 1)
        self.trust = nn.Parameter(torch.ones(num_offers))
        self.trust_in_rows = nn.Parameter(torch.zeros(()))

    def forward(self, seen: Tensor) -> Tensor:
        """Return ``(batch, offers)``."""
        parts = self.parts(seen)
        by_rows = self.trust_in_rows.clamp(0.0, 1.0) * parts.by_rows
        share = self.trust * parts.by_values + parts.by_mask + by_rows
        return parts.log_left.exp() * share

    def parts(self, seen: Tensor) -> GainParts:
        """Return what gains are made of."""
        x, mask = seen.chunk(2, dim=1)
        features = self.features(x, mask > 0.5)
        by_values = self.last(self.body(features))
        log_left = self.log_left(mask).clamp(_LEAST_LOG, _MOST_LOG)
        return GainParts(by_values, self.by_mask(mask), self.by_rows(features), log_left)


def _hidden(size: int, width: int) -> nn.Module:
    return nn.Sequential(Linear(size, width), nn.GELU())


def _from_nothing(body: nn.Module, width: int, outputs: int) -> nn.Sequential:
    """Return a network that starts out as zero."""
    last = Linear(width, outputs)
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(body, last)
