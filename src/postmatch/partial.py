"""Encoders of partly observed rows, and the heads that turn their features into distributions."""

import abc
import math
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal
from torch.nn import functional as F

from postmatch.distributions.autoregressive import AutoregressiveMixture
from postmatch.distributions.clustered import ClusteredMixture
from postmatch.nets.linear import Linear
from postmatch.nets.made import MaskedResidualNet
from postmatch.nets.precision import full_precision

_MIN_SCALE = 1e-4


class PartialEncoder(nn.Module, abc.ABC):
    """An encoder that sees some of the features."""

    @abc.abstractmethod
    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        r"""Return :math:`q_\theta(z \mid x_o)`; hidden entries of ``x`` may hold anything."""


@final
class MaskedEncoder(PartialEncoder):
    r"""A network on the visible values and their mask, then a head that returns a distribution.

    Args:
        net: From values and mask side by side along the first axis of features, to what the head
            reads: ``(batch, 2 * columns)`` of a table, ``(batch, channels + 1, ...)`` of an image.
        head: From features to :math:`q(z \mid x_o)`.
    """

    def __init__(self, net: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.net, self.head = net, head

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return the head's distribution."""
        return self.read(self.side_by_side(x, observed))

    @staticmethod
    def side_by_side(x: Tensor, observed: Tensor) -> Tensor:
        """Return what the network reads."""
        # where, not x * observed: hidden values may be NaN, and NaN * 0 is NaN.
        return torch.cat([torch.where(observed, x, 0.0), observed.to(x.dtype)], dim=1)

    def read(self, seen: Tensor) -> Distribution:
        """Return the head's distribution of values and mask that stand side by side."""
        distribution: Distribution = self.head(self.net(seen))
        return distribution


@final
class FeatureEncoder(PartialEncoder):
    r"""A network on features that already know what is hidden, then a head.

    Args:
        features: From ``(x, observed)`` to features, such as those of a table's columns.
        net: From these features to those that the head reads.
        head: From features to :math:`q(z \mid x_o)`.
    """

    def __init__(self, features: nn.Module, net: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.net, self.head = features, net, head

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return the head's distribution."""
        distribution: Distribution = self.head(self.net(self.features(x, observed)))
        return distribution


@final
class SetEncoder(PartialEncoder):
    r"""The sum of one embedding per observed feature, then a network and a head.

    Each feature is embedded from its value and its own learned name; hidden ones add nothing.

    Args:
        num_features: How many features a row has.
        embedding_size: Length of names and embeddings.
        net: From the sum of embeddings to the features that the head reads.
        head: From features to :math:`q(z \mid x_o)`.
    """

    def __init__(
        self, num_features: int, embedding_size: int, net: nn.Module, head: nn.Module
    ) -> None:
        super().__init__()
        self.names = nn.Parameter(torch.randn(num_features, embedding_size))
        self.embed = nn.Sequential(
            nn.Linear(2 * embedding_size + 1, embedding_size),
            nn.SiLU(),
            nn.Linear(embedding_size, embedding_size),
        )
        self.net, self.head = net, head

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return the head's distribution."""
        value = x.masked_fill(~observed, 0.0).flatten(1).unsqueeze(-1)  # (batch, features, 1)
        names = self.names.expand(len(x), -1, -1)
        each = self.embed(torch.cat([value, value * names, names], dim=-1))
        hidden = ~observed.flatten(1).unsqueeze(-1)
        total = each.masked_fill(hidden, 0.0).sum(1)
        distribution: Distribution = self.head(self.net(total))
        return distribution


class GaussianHead(nn.Module, abc.ABC):
    """Features to a Gaussian, by a layer whose outputs are its mean, its raw scales, and others.

    Scales are the diagonal of the Cholesky factor.
    """

    linear: Linear
    latent_size: int

    @abc.abstractmethod
    def forward(self, features: Tensor) -> Distribution:
        """Return the Gaussian, batch shape ``(batch,)``."""

    def entropy(self, features: Tensor) -> Tensor:
        r"""Return its entropy, ``(batch,)``, for which nothing but the scales is computed.

        .. math:: \sum_i \left( \log s_i + \tfrac12 \log 2 \pi e \right)
        """
        own = slice(self.latent_size, 2 * self.latent_size)
        raw = F.linear(features, self.linear.weight[own], self.linear.bias[own])
        log_scale = _scale(full_precision(raw)).log()
        return log_scale.sum(-1) + self.latent_size * 0.5 * math.log(2.0 * math.pi * math.e)


def _scale(raw: Tensor) -> Tensor:
    return F.softplus(raw) + _MIN_SCALE


@final
class DiagonalHead(GaussianHead):
    """Features to a Gaussian with independent entries."""

    def __init__(self, in_size: int, latent_size: int) -> None:
        super().__init__()
        self.latent_size = latent_size
        self.linear = Linear(in_size, 2 * latent_size)

    def forward(self, features: Tensor) -> Distribution:
        """Return the Gaussian, batch shape ``(batch,)``."""
        mean, raw = full_precision(self.linear(features)).chunk(2, dim=-1)
        return Independent(Normal(mean, _scale(raw), validate_args=False), 1)


@final
class FullGaussianHead(GaussianHead):
    """Features to a Gaussian with a full covariance, by its Cholesky factor."""

    place: Tensor

    def __init__(self, in_size: int, latent_size: int) -> None:
        super().__init__()
        self.latent_size = latent_size
        self.linear = Linear(in_size, latent_size + latent_size * (latent_size + 1) // 2)
        row, column = torch.tril_indices(latent_size, latent_size, -1).unbind()
        diagonal = torch.arange(latent_size) * (latent_size + 1)
        place = torch.cat([diagonal, row * latent_size + column])  # in the flattened factor
        self.register_buffer("place", place, persistent=False)

    def forward(self, features: Tensor) -> Distribution:
        """Return the Gaussian, batch shape ``(batch,)``."""
        size = self.latent_size
        outputs = full_precision(self.linear(features))
        mean, diagonal, below = outputs.tensor_split([size, 2 * size], dim=-1)
        entries = torch.cat([_scale(diagonal), below], dim=-1)
        zero = entries.new_zeros(*entries.shape[:-1], size * size)
        lower = torch.unflatten(zero.index_copy(-1, self.place, entries), -1, (size, size))
        return MultivariateNormal(mean, scale_tril=lower, validate_args=False)


@final
class AutoregressiveHead(nn.Module):
    """Features to an autoregressive Gaussian mixture, all conditionals in one pass."""

    def __init__(self, net: MaskedResidualNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, features: Tensor) -> Distribution:
        """Return the mixture, batch shape ``(batch,)``."""
        return AutoregressiveMixture(self.net, features)


@final
class ClusteredHead(nn.Module):
    """Features to the probability of each cluster, and to an autoregressive mixture given it.

    Args:
        in_size: Length of the features, which the net takes for its context.
        num_clusters: How many clusters there are.
        net: Of the mixtures.
        own: So many of the first features are learned for the clusters alone, as by a classifier;
            0 if all features serve both, of which z then has by far the larger say.
    """

    def __init__(
        self, in_size: int, num_clusters: int, net: MaskedResidualNet, own: int = 0
    ) -> None:
        super().__init__()
        self.own, self.net = own, net
        self.linear = Linear(own or in_size, num_clusters)
        self.told = nn.Parameter(torch.randn(num_clusters, in_size))

    def forward(self, features: Tensor) -> Distribution:
        """Return the mixture, batch shape ``(batch,)``."""
        own, others = features.tensor_split([self.own], dim=-1)
        logits = full_precision(self.linear(own if self.own else others))
        context = torch.cat([own.detach(), others], dim=-1).unsqueeze(-2) + self.told
        return ClusteredMixture(logits, self.net, context)
