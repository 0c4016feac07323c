"""Several table VAEs as one: an ensemble is a VAE whose latent also names a member."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from postmatch.distributions.members import MemberMixture
from postmatch.distributions.mixed import MixedColumns
from postmatch.partial import PartialEncoder
from postmatch.vaes.base import VAE
from postmatch.vaes.table import TableVAE


@final
class TableEnsemble(VAE):
    r"""The mixture :math:`p(x) = \frac1M \sum_m p_m(x)` of table VAEs with the same columns.

    Its latent is :math:`(m, z)`; every contract of a VAE then holds as it stands, and a question
    costs no more than to one member, since each draw asks one of them.
    """

    widening: Tensor

    def __init__(self, members: Sequence[TableVAE]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.layout = members[0].layout
        self.register_buffer("widening", torch.ones(()))  # set by calibration

    @property
    def tables(self) -> list[TableVAE]:
        """The members."""
        return [member for member in self.members if isinstance(member, TableVAE)]

    def prior(self) -> Distribution:
        """Return the members' priors, each with the same weight."""
        return MemberMixture([member.prior() for member in self.tables])

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return the members' posteriors, each with the same weight.

        The exact posterior over members would weigh them by their evidence; a posterior without
        that knowledge is still a valid proposal, and the one that training would match.
        """
        return MemberMixture([member.encode(x, available) for member in self.tables])

    def decode(self, z: Tensor) -> Distribution:
        """Return the columns' distributions, each row decoded by its own member."""
        rows = z.reshape(-1, z.shape[-1])
        parameters = rows.new_empty(len(rows), self.layout.num_outputs)
        for m, member in enumerate(self.tables):
            own = (rows[:, 0] == m).nonzero().squeeze(1)
            parameters[own] = member.parameters_of(rows[own, 1:])
        widening = None if self.training else self.widening
        return MixedColumns(self.layout, parameters.view(*z.shape[:-1], -1), widening)

    def point(self, decoded: Distribution) -> Tensor:
        """Return means of numbers and the most probable levels, after averaging over draws."""
        return self.tables[0].point(decoded)


@final
class EnsembleEncoder(PartialEncoder):
    r"""The members' partial posteriors :math:`q_m(z \mid x_o)`, each with the same weight."""

    def __init__(self, members: Sequence[PartialEncoder]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def encoders(self) -> list[PartialEncoder]:
        """The members."""
        return [member for member in self.members if isinstance(member, PartialEncoder)]

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return the distribution of member and vector."""
        return MemberMixture([member(x, observed) for member in self.encoders])
