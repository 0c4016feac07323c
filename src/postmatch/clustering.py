r"""Which cluster a partly observed row belongs to: q(c | x_o) of a VAE with a mixture prior."""

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
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

    Given z the clusters are exact; rows share their noise, so that neither the order nor the
    company of rows changes the answer.

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
    else:
        z = from_noise(latent, quasi_uniform(num_samples, size, seed, x.device).to(x.dtype))
    return prior.log_clusters(z).softmax(-1).mean(0)


def entropy(probabilities: Tensor) -> Tensor:
    """Return how uncertain each row's cluster is, in nats, ``(batch,)``."""
    each: Tensor = torch.special.entr(probabilities)
    return each.sum(-1)
