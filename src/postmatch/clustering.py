r"""Which cluster a partly observed row belongs to: q(c | x_o) of a VAE with a mixture prior."""

import torch
from torch import Tensor
from torch.nn import functional as F

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.clustered import ClusteredMixture
from postmatch.distributions.clusters import GaussianClusters
from postmatch.distributions.noise import from_noise, noise_size, quasi_uniform
from postmatch.randomness import seeded

SAMPLES = 50  # as many as in the paper


@torch.no_grad()
def cluster_probabilities(
    model: MatchedVAE,
    x: Tensor,
    observed: Tensor,
    num_samples: int = SAMPLES,
    seed: int = 0,
) -> Tensor:
    r"""Return the probability of each cluster, ``(batch, clusters)``.

    .. math:: q(c \mid x_o) = \mathbb{E}_{z \sim q_\theta(z \mid x_o)}\, p(c \mid z)

    Given z the clusters are exact, and where the posterior tells them first, it is only the
    difference between what it tells and :math:`p(c \mid z)` that is averaged over draws. Rows
    share their noise, so that neither the order nor the company of rows changes the answer.

    Args:
        model: Of a VAE whose prior is :class:`GaussianClusters`.
        x: Rows, ``(batch, *features)``; what is not observed may be anything.
        observed: What is observed of them.
        num_samples: Draws of z.
        seed: Of their noise.

    Raises:
        TypeError: If the prior has no clusters.
    """
    prior = model.vae.prior()
    if not isinstance(prior, GaussianClusters):
        raise TypeError(
            f"the VAE's prior must be a mixture of clusters, got {type(prior).__name__}"
        )
    latent = model.given(x, observed).latent
    size = noise_size(latent)
    if size is None:
        with seeded(seed):
            z = latent.sample(torch.Size([num_samples]))
        return prior.log_clusters(z).softmax(-1).mean(0)
    uniform = quasi_uniform(num_samples, size, seed, x.device).to(x.dtype)
    if not isinstance(latent, ClusteredMixture):
        return prior.log_clusters(from_noise(latent, uniform)).softmax(-1).mean(0)
    z, drawn = latent.drawn_with_clusters(uniform)
    counted = F.one_hot(drawn, prior.num_clusters).to(x.dtype).mean(0)
    told = prior.log_clusters(z).softmax(-1).mean(0) + latent.log_weights.exp() - counted
    kept = told.clamp_min(0.0)
    return kept / kept.sum(-1, keepdim=True)


def entropy(probabilities: Tensor) -> Tensor:
    """Return how uncertain each row's cluster is, in nats, ``(batch,)``."""
    each: Tensor = torch.special.entr(probabilities)
    return each.sum(-1)
