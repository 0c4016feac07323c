"""Vectors whose cluster is told first, and then the vector itself."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from postmatch.distributions.autoregressive import AutoregressiveMixture
from postmatch.distributions.noise import choose_component, from_noise, noise_size
from postmatch.nets.made import MaskedResidualNet


@final
class ClusteredMixture(Distribution):
    r"""An autoregressive mixture for each cluster: :math:`q(z) = \sum_c q(c)\, q(z \mid c)`.

    Args:
        logits: Of the clusters, ``(*batch, clusters)``.
        net: Of the mixtures.
        contexts: What it is told of each cluster, ``(*batch, clusters, context_size)``.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector
    has_rsample = False

    def __init__(self, logits: Tensor, net: MaskedResidualNet, contexts: Tensor) -> None:
        self.log_weights, self.net, self.contexts = logits.log_softmax(-1), net, contexts
        super().__init__(logits.shape[:-1], torch.Size([net.size]), validate_args=False)

    @property
    def num_clusters(self) -> int:
        """How many clusters there are."""
        return self.log_weights.shape[-1]

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ClusteredMixture":
        """Return the same distribution for a larger batch."""
        shape = torch.Size(batch_shape)
        contexts = self.contexts.expand(*shape, *self.contexts.shape[-2:])
        return ClusteredMixture(self.log_weights.expand(*shape, -1), self.net, contexts)

    def log_joint(self, z: Tensor) -> Tensor:
        r"""Return :math:`\log q(c) + \log q(z \mid c)`, ``(..., clusters)``."""
        each = AutoregressiveMixture(self.net, self.contexts)
        return self.log_weights + each.log_prob(z.unsqueeze(-2).expand(*z.shape[:-1], *self._each))

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each vector."""
        return self.log_joint(value).logsumexp(-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors, ``(*sample_shape, *batch, size)``."""
        shape = torch.Size(sample_shape) + self.batch_shape + torch.Size([1 + 2 * self.net.size])
        with torch.no_grad():
            return self.from_noise(torch.rand(shape, device=self.log_weights.device))

    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws from uniforms, of which the first picks the cluster."""
        return self.drawn_with_clusters(uniform)[0]

    def drawn_with_clusters(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Return such draws, and the number of the cluster that each was drawn from."""
        batch: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            uniform.shape[:-1], self.batch_shape
        )
        first = uniform[..., 0].expand(batch)
        c = choose_component(self.log_weights.expand(*batch, -1), first, -1)
        size = self.contexts.shape[-1]
        place = c[..., None, None].expand(*batch, 1, size)
        context = self.contexts.expand(*batch, -1, size).gather(-2, place).squeeze(-2)
        return AutoregressiveMixture(self.net, context).from_noise(uniform[..., 1:]), c

    @property
    def _each(self) -> tuple[int, int]:
        return self.num_clusters, self.net.size


@noise_size.register
def _(distribution: ClusteredMixture) -> int | None:
    return 1 + 2 * distribution.net.size


@from_noise.register
def _(distribution: ClusteredMixture, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)
