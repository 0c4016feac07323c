"""The paper's objectives: functions from distributions to one value per row."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from postmatch.distributions.noise import draw


def elbo(
    log_x: Tensor,
    z: Any,
    posterior: Distribution,
    prior: Distribution,
    *,
    beta: float | Tensor = 1.0,
    log_posterior: Tensor | None = None,
) -> Tensor:
    r"""Evidence lower bound at draws of z (paper, section 2).

    .. math:: \log p_\phi(x \mid z) - \beta \left[ \log q_\psi(z \mid x) - \log p(z) \right]

    Args:
        log_x: :math:`\log p_\phi(x \mid z)`, ``(..., batch)``.
        z: The draws of :math:`q_\psi(z \mid x)` at which it was taken.
        posterior: :math:`q_\psi(z \mid x)`.
        prior: :math:`p(z)`.
        beta: Weight of the KL term, 1 for a bound.
        log_posterior: :math:`\log q_\psi(z \mid x)`, if it is known from the draw.
    """
    if log_posterior is None:
        log_posterior = posterior.log_prob(z)
    return log_x - beta * (log_posterior - prior.log_prob(z))


def match(
    target: Distribution,
    approx: Distribution,
    *,
    train_target: bool = False,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Posterior Matching loss of each row, from draws of z (paper, eq. 2 and 5).

    .. math:: \mathcal{L}_{PM} = -\mathbb{E}_{z \sim q_\psi(z \mid x)} \log q_\theta(z \mid x_o)

    Args:
        target: :math:`q_\psi(z \mid x)`.
        approx: :math:`q_\theta(z \mid x_o)`; it needs ``log_prob`` only.
        train_target: Let the gradient reach the encoder through z.
        num_samples: How many z to average over.
        generator: Of the noise; torch's global state otherwise.
    """
    z = draws_to_match(target, num_samples, generator, train_target=train_target)
    return -approx.log_prob(z).mean(0)


def draws_to_match(
    target: Distribution,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
    *,
    train_target: bool = False,
) -> Tensor:
    """Draw what :func:`match` compares at, ``(samples, batch, *latent)``; see there."""
    if train_target and not target.has_rsample:
        raise ValueError(
            f"train_target needs draws with a gradient, which {type(target).__name__} lacks"
        )
    with torch.set_grad_enabled(train_target and torch.is_grad_enabled()):
        return draw(target, (num_samples,), generator)


def match_kl(target: Distribution, approx: Distribution) -> Tensor:
    r"""Posterior Matching loss of each row in closed form (paper, eq. 3).

    .. math:: \mathrm{KL}\left( q_\psi(z \mid x) \,\|\, q_\theta(z \mid x_o) \right)

    It differs from :func:`match` by the entropy of the target, so their gradients in θ agree.

    Raises:
        NotImplementedError: If torch knows no closed form for the two families.
    """
    return kl_divergence(target, approx)
