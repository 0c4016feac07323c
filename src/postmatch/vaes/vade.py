"""A VAE whose prior is a mixture of Gaussians, so that z tells of clusters (Jiang et al., 2017)."""

from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal
from torch.nn import functional as F

from postmatch.distributions.clustered import ClusteredMixture
from postmatch.distributions.clusters import GaussianClusters
from postmatch.distributions.noise import draw_scored
from postmatch.vaes.base import VAE, log_likelihood

_MIN_SCALE = 1e-3


@final
class VaDE(VAE):
    r"""Another VAE with a prior of clusters: :math:`p(z) = \sum_c \pi_c N(z; \mu_c, \sigma_c^2)`.

    Args:
        body: Whose encoder and decoder these are, of images, of a table, of anything; z is a
            vector and q(z | x) independent Gaussians. Its own prior is not asked.
        latent_size: Length of z.
        num_clusters: How many clusters there are.
    """

    def __init__(self, body: VAE, latent_size: int, num_clusters: int) -> None:
        super().__init__()
        if num_clusters < 1:
            raise ValueError(f"num_clusters must be at least 1, got {num_clusters}")
        self.body = body
        self.logits = nn.Parameter(torch.zeros(num_clusters))
        self.mean = nn.Parameter(torch.randn(num_clusters, latent_size))
        self.raw_scale = nn.Parameter(_raw(torch.ones(num_clusters, latent_size)))

    def prior(self) -> GaussianClusters:
        """Return the mixture."""
        return GaussianClusters(self.logits, self.mean, F.softplus(self.raw_scale) + _MIN_SCALE)

    @torch.no_grad()
    def set_clusters(self, weights: Tensor, mean: Tensor, scale: Tensor) -> None:
        """Start from these clusters, such as those of a mixture that was fitted to codes.

        Args:
            weights: ``(clusters,)``, positive.
            mean: ``(clusters, latent_size)``.
            scale: Standard deviations, ``(clusters, latent_size)``.
        """
        self.logits.copy_(weights.log())
        self.mean.copy_(mean)
        self.raw_scale.copy_(_raw(scale))

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return q(z | x) of the body."""
        return self.body.encode(x, available)

    def decode(self, z: Tensor) -> Distribution:
        """Return p(x | z) of the body."""
        return self.body.decode(z)

    def point(self, decoded: Distribution) -> Tensor:
        """Return what the body takes for its best guess."""
        return self.body.point(decoded)

    def loss(
        self,
        x: Tensor,
        available: Tensor | None = None,
        *,
        beta: float | Tensor = 1.0,
        posterior: Distribution | None = None,
        generator: torch.Generator | None = None,
        clusters: Tensor | None = None,
        certainty: float = 0.0,
    ) -> Tensor:
        r"""Return the negative bound on log p(x) of each row, with a posterior of clusters, too.

        .. math:: \mathbb{E}_q \log p(x \mid z) + \beta \Big[ \log \sum_c \exp \mathbb{E}_q
            \log \big( \pi_c N(z; \mu_c, \sigma_c^2) \big) - \mathbb{E}_q \log q(z \mid x) \Big]

        The middle term is what :math:`q(z \mid x)\, q(c \mid x)` gives at the best
        :math:`q(c \mid x)`, in closed form; VaDE takes that of a draw of z, which is noisier and
        no better. See the base.

        Args:
            x: Rows.
            available: What is known of them.
            beta: Weight of all but the likelihood.
            posterior: q(z | x), if it is known.
            generator: Of the noise.
            clusters: The cluster that each row is taken to be in, ``(batch,)``: a looser bound.
            certainty: Weight of :math:`-\mathbb{E}_q \log p(c \mid z)`, on top of the bound, which
                alone does not mind clusters that overlap.
        """
        posterior = self.encode(x, available) if posterior is None else posterior
        base = independent_gaussians(posterior)
        z, _ = draw_scored(posterior, generator)
        log_x = log_likelihood(self.decode(z), x, available)
        log_each = self.prior().expected_log_joint(base)
        if clusters is None:
            log_prior, share = log_each.logsumexp(-1), log_each.softmax(-1)
        else:
            log_prior = log_each.gather(-1, clusters[:, None]).squeeze(-1)
            share = F.one_hot(clusters, log_each.shape[-1]).to(log_each.dtype)
        entropy: Tensor = base.entropy().sum(-1)  # type: ignore[no-untyped-call]
        bound = log_x + beta * (log_prior + entropy)
        if certainty:
            bound = bound + certainty * (share * self.prior().log_clusters(z)).sum(-1)
        return -bound

    def match_at(self, approx: Distribution, z: Tensor) -> Tensor:
        r"""Return what the match of z and of its cluster costs, where both are asked for.

        .. math:: -\sum_c p(c \mid z) \log q_\theta(z, c \mid x_o)

        Clusters are known given z, so a posterior that tells them first learns them directly.
        """
        if not isinstance(approx, ClusteredMixture):
            return super().match_at(approx, z)
        share = self.prior().log_clusters(z).exp().detach()
        return -(share * approx.log_joint(z)).sum(-1)


def independent_gaussians(posterior: Distribution) -> Normal:
    """Return the Gaussians of the entries of z.

    Raises:
        TypeError: If a posterior has others.
    """
    base = posterior.base_dist if isinstance(posterior, Independent) else posterior
    if not isinstance(base, Normal):
        raise TypeError(
            f"q(z | x) must be independent Gaussians for clusters, got {type(base).__name__}"
        )
    return base


def _raw(scale: Tensor) -> Tensor:
    """Return what softplus turns into a scale."""
    above = (scale - _MIN_SCALE).clamp_min(1e-6)
    return above + torch.log(-torch.expm1(-above))
