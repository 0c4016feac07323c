"""The partial VAE: one set encoder for every mask (the model of EDDI, Ma et al., 2019).

Written from the paper's description.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.gaussian import Gaussian
from postmatch.nets.linear import Linear
from postmatch.nets.precision import full_precision
from postmatch.partial import DiagonalHead, PartialEncoder, SetEncoder
from postmatch.randomness import seeded
from postmatch.recipes.scores import Judging, conditional_scores
from postmatch.training.plan import Losses
from postmatch.vaes.base import VAE, or_everything
from protocol import SHAPES, Outcome, Task, fit, number_of_parameters

EMBEDDING_SIZE = 64  # of a feature's name; the paper's has 10


@final
class PartialVAE(VAE):
    r"""Rows of real numbers, one standard deviation per feature, and one encoder for all masks.

    Args:
        encoder: :math:`q(z \mid x_o)`; all that is available counts as observed.
        decoder: From z to the means of the features, ``(..., features)``.
        latent_size: Length of z, which is standard normal.
        num_features: How many features a row has.
    """

    def __init__(
        self, encoder: PartialEncoder, decoder: nn.Module, latent_size: int, num_features: int
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.latent_size = encoder, decoder, latent_size
        self.log_scale = nn.Parameter(torch.zeros(num_features))

    def prior(self) -> Distribution:
        """Return the standard normal."""
        zero = self.log_scale.new_zeros(self.latent_size)
        return Independent(Gaussian(zero, torch.ones_like(zero)), 1, validate_args=False)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        """Return q(z | x) given what is available."""
        distribution: Distribution = self.encoder(x, or_everything(available, x))
        return distribution

    def decode(self, z: Tensor) -> Distribution:
        """Return independent Gaussians."""
        return Gaussian(full_precision(self.decoder(z)), self.log_scale.exp())

    def losses(
        self, x: Tensor, observed: Tensor, beta: float | Tensor, generator: torch.Generator
    ) -> Losses:
        """Return mean negative ELBOs of the rows' observed parts and of the complete rows."""
        partial = self.loss(x, observed, beta=beta, generator=generator)
        whole = self.loss(x, beta=beta, generator=generator)
        return {"partial": partial.mean(), "whole": whole.mean()}


def build(task: Task) -> PartialVAE:
    """Return an untrained model with networks of our own model's sizes."""
    c, features = task.config, task.num_features
    net, head = task.body(EMBEDDING_SIZE, c.blocks), DiagonalHead(c.width, c.latent_size)
    encoder = SetEncoder(features, EMBEDDING_SIZE, net, head)
    decoder = nn.Sequential(task.body(c.latent_size, c.decoder_blocks), Linear(c.width, features))
    return PartialVAE(encoder, decoder, c.latent_size, features)


def partial_vae(task: Task) -> Outcome:
    """Train and judge the model."""
    with seeded(task.seed):
        vae = build(task).to(task.rows.train.device)
    report = fit(task, vae, vae.losses)
    model, test, count = MatchedVAE(vae, vae.encoder), task.rows.test, task.num_samples
    how = Judging(num_samples=count, ratio_samples=(max(2, count // 10), count, 10 * count))
    scores = conditional_scores(model, test, task.log_scale, how)
    return Outcome(
        "PartialVAE",
        task.settings(*SHAPES, embedding_size=EMBEDDING_SIZE),
        number_of_parameters(vae),
        report,
        scores,
        "scored by the estimators of postmatch; q(z | x) and q(z | x_o) are one set encoder",
        task.used | {"ratio": min(len(test), how.ratio_rows)},
        task.num_samples,
    )
