"""The partial VAE: one set encoder for every mask (the model of EDDI, Ma et al., 2019).

Written from the paper's description.
"""

import functools

import torch
from torch import Tensor, nn

from postmatch.conditioning import MatchedVAE
from postmatch.nets.linear import Linear
from postmatch.partial import DiagonalHead, SetEncoder
from postmatch.randomness import seeded
from postmatch.recipes.scores import Judging, conditional_scores
from postmatch.training.plan import Losses
from postmatch.vaes.base import VAE
from postmatch.vaes.gaussian import GaussianVAE
from protocol import SHAPES, Outcome, Task, fit, number_of_parameters

EMBEDDING_SIZE = 64  # of a feature's name; the paper's has 10


def losses(
    vae: VAE,
    x: Tensor,
    observed: Tensor,
    beta: float | Tensor,
    generator: torch.Generator,
) -> Losses:
    """Return mean negative ELBOs of the rows' observed parts and of the complete rows."""
    partial = vae.loss(x, observed, beta=beta, generator=generator)
    whole = vae.loss(x, beta=beta, generator=generator)
    return {"partial": partial.mean(), "whole": whole.mean()}


def build(task: Task) -> GaussianVAE:
    """Return an untrained model with networks of our own model's sizes.

    Its encoder takes what is available for what is observed, its prior is standard normal, and each
    feature has a standard deviation of its own.
    """
    c, features = task.config, task.num_features
    net, head = task.body(EMBEDDING_SIZE, c.blocks), DiagonalHead(c.width, c.latent_size)
    encoder = SetEncoder(features, EMBEDDING_SIZE, net, head)
    decoder = nn.Sequential(task.body(c.latent_size, c.decoder_blocks), Linear(c.width, features))
    return GaussianVAE(encoder, decoder, c.latent_size, num_features=features)


def partial_vae(task: Task) -> Outcome:
    """Train and judge the model."""
    with seeded(task.seed):
        vae = build(task).to(task.rows.train.device)
    report = fit(task, vae, functools.partial(losses, vae))
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
