"""Models of pythae as VAEs that can be asked here."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Distribution

from postmatch.distributions.gaussian import Gaussian
from postmatch.vaes.external import ExternalVAE, from_functions

_EDGE = 1e-6  # keeps a probability from being certain


def from_pythae(model: nn.Module, example: Tensor, *, scale: float | None = None) -> ExternalVAE:
    """Return a plain, a beta, a total correlation or an importance weighted VAE of pythae.

    A model that was trained with binary cross entropy has Bernoulli features; around the output of
    others stands a Gaussian, fitted to the example.

    Args:
        model: A ``VAE``, ``BetaVAE``, ``DisentangledBetaVAE``, ``BetaTCVAE``, ``FactorVAE`` or
            ``IWAE``, whose q(z | x) is Gaussian as its encoder says, and p(z) standard normal.
        example: Complete rows, ``(batch, *features)``.
        scale: Standard deviation of the Gaussian, if it shall not be fitted.

    Raises:
        ImportError: If pythae is not installed.
        TypeError: If the model is none of these.
    """
    _check_kind(model)
    config: Any = model.model_config
    zero = torch.zeros(config.latent_dim, device=next(model.parameters()).device)

    def encode(x: Tensor) -> Distribution:
        told = model.encoder(x)  # type: ignore[operator]
        return Gaussian(told.embedding, (0.5 * told.log_covariance).exp())

    def decode(z: Tensor) -> Distribution | Tensor:
        means: Tensor = model.decoder(z).reconstruction  # type: ignore[operator]
        means = means.reshape(len(z), *example.shape[1:])
        if config.reconstruction_loss == "bce":
            return Bernoulli(means.float().clamp(_EDGE, 1.0 - _EDGE), validate_args=False)
        return means

    prior = Gaussian(zero, torch.ones_like(zero))
    return from_functions(encode, decode, prior, example, module=model, scale=scale)


def _check_kind(model: nn.Module) -> None:
    try:
        from pythae import models
    except ImportError:
        raise ImportError(
            "pythae is an extra: install it with pip install 'postmatch[pythae]'"
        ) from None
    names = ("VAE", "BetaVAE", "DisentangledBetaVAE", "BetaTCVAE", "FactorVAE", "IWAE")
    # Not isinstance: models derived from these have posteriors that their encoder does not tell.
    if type(model) not in [getattr(models, name) for name in names]:
        known = ", ".join(names)
        raise TypeError(f"model must be one of {known} of pythae, got {type(model).__name__}")
