"""VAEAC: a conditional VAE for every mask (Ivanov, Figurnov and Vetrov, 2019, arXiv 1806.02382).

Written from the paper's description. Where its networks have skip connections from the prior to
the generator, here the generator is given the visible values and their mask.
"""

import math
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, kl_divergence
from torch.nn import functional as F

from postmatch.distributions.gaussian import Gaussian
from postmatch.distributions.noise import draw, from_noise, noise_size, quasi_uniform
from postmatch.nets.linear import Linear
from postmatch.nets.precision import full_precision
from postmatch.partial import DiagonalHead, MaskedEncoder, PartialEncoder
from postmatch.randomness import seeded
from postmatch.recipes.scores import IMPUTATION_DRAWS, parts
from postmatch.training.plan import Losses
from postmatch.vaes.base import log_likelihood
from protocol import SHAPES, Answer, Outcome, Task, fit, masked_scores, number_of_parameters

MIN_SCALE = 1e-4  # of a feature, as in our own decoders
PRIOR_SPREAD = 1e4  # the paper's sigma_mu
PRIOR_WEIGHT = 1e-4  # the paper's sigma_sigma


@final
class VAEAC(nn.Module):
    r"""The model :math:`p(x_u \mid x_o) = \int p(x_u \mid z, x_o)\, p(z \mid x_o)\, dz`.

    Args:
        proposal: From values and mask side by side, ``(batch, 2 * features)``, to q(z | x, mask).
        prior: :math:`p(z \mid x_o)`.
        generator: From z, visible values and mask side by side to means and raw scales of the
            features, ``(..., 2 * features)``.
    """

    def __init__(self, proposal: nn.Module, prior: PartialEncoder, generator: nn.Module) -> None:
        super().__init__()
        self.proposal, self.prior, self.generator = proposal, prior, generator

    def propose(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return q(z | x, mask) of complete rows, batch shape ``(batch,)``."""
        distribution: Distribution = self.proposal(torch.cat([x, observed.to(x.dtype)], dim=1))
        return distribution

    def generate(self, z: Tensor, x: Tensor, observed: Tensor) -> Distribution:
        """Return p(x | z, x_o, mask), one Gaussian per feature; samples of z lead."""
        visible = x.masked_fill(~observed, 0.0)
        evidence = torch.cat([visible, observed.to(x.dtype)], dim=1)
        inputs = torch.cat([z, evidence.expand(*z.shape[:-1], -1)], dim=-1)
        mean, raw = full_precision(self.generator(inputs)).chunk(2, dim=-1)
        return Gaussian(mean, F.softplus(raw) + MIN_SCALE)

    def given(self, x: Tensor, observed: Tensor) -> "VAEACAnswer":
        """Return the distribution of what is hidden; hidden entries may hold anything."""
        return VAEACAnswer(self, x, observed)

    def losses(
        self, x: Tensor, observed: Tensor, beta: float | Tensor, generator: torch.Generator
    ) -> Losses:
        r"""Return the mean of the negative conditional bound, and what holds the prior in place.

        .. math:: -\mathbb{E}_{q(z \mid x)} \log p(x_u \mid z, x_o)
            + \beta\, \mathrm{KL}\left( q(z \mid x) \,\|\, p(z \mid x_o) \right)
        """
        prior, proposal = self.prior(x, observed), self.propose(x, observed)
        z = draw(proposal, (), generator)
        log_hidden = log_likelihood(self.generate(z, x, observed), x, ~observed)
        bound = log_hidden - beta * kl_divergence(proposal, prior)
        return {"bound": -bound.mean(), "prior": -log_hyperprior(prior).mean()}


def log_hyperprior(prior: Distribution) -> Tensor:
    r"""Return the log density of the prior's parameters, without constants, of each row.

    They have a wide normal and a flat gamma distribution, which alone keep them from growing
    without limit (the paper's section on the prior in latent space).

    .. math:: \sum_j -\frac{\mu_j^2}{2 \sigma_\mu^2} + \sigma_\sigma (\log \sigma_j - \sigma_j)
    """
    mean, scale = prior.mean, prior.stddev
    each = -0.5 * (mean / PRIOR_SPREAD).square() + PRIOR_WEIGHT * (scale.log() - scale)
    return each.sum(-1)


@final
class VAEACAnswer(Answer):
    r"""The distribution :math:`p(x_u \mid x_o)` of a batch of partly observed rows."""

    def __init__(self, model: VAEAC, x: Tensor, observed: Tensor) -> None:
        self.model, self.observed = model, observed
        self.x = x.masked_fill(~observed, 0.0)
        self.latent: Distribution = model.prior(self.x, observed)

    @torch.no_grad()
    def log_prob(self, x: Tensor, num_samples: int) -> Tensor:
        r"""Bound the log density from below by draws of the proposal.

        .. math:: \log \frac1K \sum_k \frac{p(x_u \mid z_k, x_o)\, p(z_k \mid x_o)}{q(z_k \mid x)},
            \qquad z_k \sim q(z \mid x)
        """
        x = torch.where(self.observed, self.x, x)
        proposal = self.model.propose(x, self.observed)
        return self._bound(x, proposal, proposal.sample(torch.Size([num_samples])))

    @torch.no_grad()
    def log_prob_gap(self, num_samples: int) -> Tensor:
        """Tell how loose the bound is, as ``postmatch.conditioning`` does.

        Rows drawn from this very model come with an exact posterior draw of z, which turns the
        bound from below into one from above (Grosse et al., 2015).
        """
        drawn = self.latent.sample(torch.Size([1]))
        generated = self.model.generate(drawn, self.x, self.observed).sample()[0]
        x = torch.where(self.observed, self.x, generated)
        proposal = self.model.propose(x, self.observed)
        z = proposal.sample(torch.Size([num_samples]))
        replaced = torch.cat([drawn, z[1:]])
        return self._bound(x, proposal, replaced) - self._bound(x, proposal, z)

    @torch.no_grad()
    def impute(self) -> Tensor:
        """Return the means of draws of z from the prior, as many and by the noise that ours has."""
        size = noise_size(self.latent)
        assert size is not None
        noise = quasi_uniform(IMPUTATION_DRAWS, size, 0, self.x.device)
        z = from_noise(self.latent, noise.to(self.x.dtype))
        mean = self.model.generate(z, self.x, self.observed).mean.mean(0)
        return torch.where(self.observed, self.x, mean)

    def _bound(self, x: Tensor, proposal: Distribution, z: Tensor) -> Tensor:
        log_hidden = log_likelihood(self.model.generate(z, x, self.observed), x, ~self.observed)
        log_weight = log_hidden + self.latent.log_prob(z) - proposal.log_prob(z)
        return log_weight.logsumexp(0) - math.log(len(z))


def build(task: Task) -> VAEAC:
    """Return an untrained model with networks of our own model's sizes."""
    c, features = task.config, task.num_features

    def encoder() -> tuple[nn.Module, nn.Module]:
        return task.body(2 * features, c.blocks), DiagonalHead(c.width, c.latent_size)

    generator = nn.Sequential(
        task.body(c.latent_size + 2 * features, c.decoder_blocks), Linear(c.width, 2 * features)
    )
    return VAEAC(nn.Sequential(*encoder()), MaskedEncoder(*encoder()), generator)


def vaeac(task: Task) -> Outcome:
    """Train and judge the model."""
    with seeded(task.seed):
        model = build(task).to(task.rows.train.device)
    report = fit(task, model, model.losses)
    blocks = [list(parts(task.rows.test, count)) for count in (task.num_samples, IMPUTATION_DRAWS)]
    return Outcome(
        "VAEAC",
        task.settings(*SHAPES, prior_spread=PRIOR_SPREAD, prior_weight=PRIOR_WEIGHT),
        number_of_parameters(model),
        report,
        masked_scores(model.given, task, *blocks),
        "log_prob is the importance-weighted lower bound with draws from the proposal q(z | x)",
        task.used,
        task.num_samples,
    )
