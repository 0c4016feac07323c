"""Mixtures of Gaussians whose components are clusters."""

import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, constraints

from postmatch.distributions.noise import (
    choose_component,
    from_noise,
    noise_size,
    standard_normal,
)


@final
class GaussianClusters(Distribution):
    r"""Vectors of one of several clusters: :math:`p(z) = \sum_c \pi_c N(z; \mu_c, \sigma_c^2)`.

    Args:
        logits: Of the weights, ``(clusters,)``.
        mean: ``(clusters, size)``.
        scale: Standard deviations, ``(clusters, size)``.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector
    has_rsample = False

    def __init__(self, logits: Tensor, mean: Tensor, scale: Tensor) -> None:
        self.log_weights, self.loc, self.scale = logits.log_softmax(-1), mean, scale
        super().__init__(torch.Size(), mean.shape[-1:], validate_args=False)

    @property
    def num_clusters(self) -> int:
        """How many clusters there are."""
        return len(self.log_weights)

    def log_joint(self, z: Tensor) -> Tensor:
        r"""Return :math:`\log \pi_c + \log N(z; \mu_c, \sigma_c^2)`, ``(..., clusters)``."""
        distance = (z.unsqueeze(-2) - self.loc) / self.scale
        return self.log_weights + _log_gaussian(distance.square(), self.scale)

    def expected_log_joint(self, posterior: Normal) -> Tensor:
        """Return the mean of :meth:`log_joint` over independent Gaussians, ``(..., clusters)``."""
        distance = (posterior.loc.unsqueeze(-2) - self.loc) / self.scale
        spread = posterior.scale.unsqueeze(-2) / self.scale
        return self.log_weights + _log_gaussian(distance.square() + spread.square(), self.scale)

    def log_clusters(self, z: Tensor) -> Tensor:
        r"""Return :math:`\log p(c \mid z)`, ``(..., clusters)``."""
        return self.log_joint(z).log_softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each vector."""
        return self.log_joint(value).logsumexp(-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors, ``(*sample_shape, size)``."""
        shape = (*torch.Size(sample_shape), 1 + self.loc.shape[-1])
        with torch.no_grad():
            return self.from_noise(torch.rand(shape, device=self.loc.device, dtype=self.loc.dtype))

    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws from uniforms, of which the first picks the cluster."""
        c = choose_component(self.log_weights.expand(*uniform.shape[:-1], -1), uniform[..., 0], -1)
        return torch.addcmul(self.loc[c], self.scale[c], standard_normal(uniform[..., 1:]))


def _log_gaussian(squares: Tensor, scale: Tensor) -> Tensor:
    constant = scale.log() + 0.5 * math.log(2.0 * math.pi)
    return -(0.5 * squares + constant).sum(-1)


@noise_size.register
def _(distribution: GaussianClusters) -> int | None:
    return 1 + distribution.loc.shape[-1]


@from_noise.register
def _(distribution: GaussianClusters, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)
