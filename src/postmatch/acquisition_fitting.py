"""Training of networks that tell what to measure next, for a model that stays as it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.distributions import Normal

from postmatch.acquisition import Acquirer, AmortisedGain, LookaheadGain
from postmatch.conditioning import Conditional, MatchedVAE
from postmatch.entropies import entropies_after, entropy
from postmatch.masks import MaskDistribution
from postmatch.objectives import draws_to_match
from postmatch.offers import Offers
from postmatch.training.engine import train
from postmatch.training.plan import Losses, Plan, Progress, Report

Read = Callable[[Tensor], Tensor]
Teacher = Callable[[MatchedVAE, Conditional, Offers, int, torch.Generator], Tensor]
"""From a model, some rows, offers, a number of samples and noise to gains that are right on
average, ``(batch, offers)``."""


@final
@dataclass(frozen=True)
class AcquisitionPlan:
    """How a network is trained.

    Args:
        plan: How long and how fast.
        batch_size: Rows per step.
        num_offers: Offers that a step looks at, drawn at random for all of its rows.
        num_samples: Draws of what would be seen, per row and step.
        walking: The part of the rows whose masks the network's own choices led to, one after the
            other; those of the others are random.
        walk_steps: Choices after which such a row is left for another.
    """

    plan: Plan
    batch_size: int = 64
    num_offers: int = 32
    num_samples: int = 4
    walking: float = 0.0
    walk_steps: int = 30


def falls_in_entropy(
    model: MatchedVAE,
    given: Conditional,
    offers: Offers,
    num_samples: int,
    generator: torch.Generator,
) -> Tensor:
    r"""Return :math:`H(q(z \mid x_o)) - H(q(z \mid x_o, x_i))`, a mean over some drawn x_i."""
    return _falls_in_entropy(
        model, given, given.sample_from(_fresh(num_samples, len(given.x), generator)), offers
    )


def falls_at_means(
    model: MatchedVAE,
    given: Conditional,
    offers: Offers,
    num_samples: int,
    generator: torch.Generator,
) -> Tensor:
    """Return the same where means of the decoder are seen, as ``SampledGain(means=True)`` does."""
    decoded = model.vae.decode(draws_to_match(given.latent, num_samples, generator))
    seen = torch.where(given.observed, given.x, decoded.mean)
    return _falls_in_entropy(model, given, seen, offers)


def _falls_in_entropy(
    model: MatchedVAE, given: Conditional, seen: Tensor, offers: Offers
) -> Tensor:
    at_once = seen[..., 0].numel() * len(offers.costs)
    later = entropies_after(model, seen, given.observed, offers, at_once)
    return entropy(given.latent, given.x)[:, None] - later.mean(0)


def fit_amortised(
    acquirer: AmortisedGain,
    model: MatchedVAE,
    rows: Tensor,
    masks: MaskDistribution,
    how: AcquisitionPlan,
    *,
    teacher: Teacher = falls_in_entropy,
    available: Tensor | None = None,
    read: Read = lambda x: x,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    r"""Regress a network on gains, each of really drawn features.

    .. math:: \mathbb{E} \left[ f_i(x_o) - g_i(x_o) \right]^2, \qquad
        g_i = H\left(q(z \mid x_o)\right) - H\left(q(z \mid x_o, x_i)\right), \quad
        x_i \sim p(x_i \mid x_o)

    Args:
        acquirer: What is trained.
        model: A matched VAE, which stays as it is.
        rows: As they are stored, on the device to train on.
        masks: What is observed in training.
        how: How long.
        teacher: Tells the gains; falls in the entropy of z by default.
        available: What the rows hold, without what is never to be seen, such as a target; None for
            everything.
        read: From rows as they are stored to what the model reads.
        seed: Of batches, masks and draws.
        show: Told of the progress.
    """

    def loss(x: Tensor, observed: Tensor, generator: torch.Generator) -> Tensor:
        return gain_loss(acquirer, model, x, observed, how, teacher, generator)

    return _fit(acquirer, loss, model, rows, masks, how, available, read, seed, show)


def gain_loss(
    acquirer: AmortisedGain,
    model: MatchedVAE,
    x: Tensor,
    observed: Tensor,
    how: AcquisitionPlan,
    teacher: Teacher,
    generator: torch.Generator,
) -> Tensor:
    """Return what :func:`fit_amortised` minimises, of some rows; no gradient reaches the model."""
    picked, some = _some(acquirer.offers, how.num_offers, generator)
    with torch.no_grad():
        gain = teacher(model, model.given(x, observed), some, how.num_samples, generator)
    told = acquirer.expected(x, observed)[:, picked]
    return _mean_of_open((told - gain).square(), some, observed)


def fit_lookahead(
    acquirer: LookaheadGain,
    model: MatchedVAE,
    rows: Tensor,
    masks: MaskDistribution,
    how: AcquisitionPlan,
    *,
    available: Tensor | None = None,
    read: Read = lambda x: x,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> Report:
    r"""Match lookahead posteriors as the paper does, with means of the decoder for what is seen.

    .. math:: -\mathbb{E} \log q^{(i)}(z' \mid x_o), \qquad z' \sim q(z \mid x_o, x_i)

    Arguments are those of :func:`fit_amortised`, which has a teacher besides.
    """

    def loss(x: Tensor, observed: Tensor, generator: torch.Generator) -> Tensor:
        picked, some = _some(acquirer.offers, how.num_offers, generator)
        samples, count = how.num_samples, len(picked)
        with torch.no_grad():
            z = draws_to_match(model.given(x, observed).latent, samples, generator)
            means = torch.where(observed, x, model.vae.decode(z).mean)  # (samples, batch, ...)
            then = observed[:, None] | some.reveals  # (batch, offers, ...)
            rows = means[:, :, None].expand(*means.shape[:2], count, *means.shape[2:])
            mask = then.expand(samples, *then.shape)
            latent = model.given(rows.flatten(0, 2), mask.flatten(0, 2)).latent
            drawn = torch.unflatten(
                draws_to_match(latent, 1, generator)[0], 0, (samples, len(x), count)
            )
        told = acquirer.posteriors(x, observed)
        chosen = Normal(told.loc[:, picked], told.scale[:, picked], validate_args=False)
        log_each: Tensor = chosen.log_prob(drawn)  # type: ignore[no-untyped-call]
        cost = -log_each.sum(-1).mean(0)
        return _mean_of_open(cost, some, observed)

    return _fit(acquirer, loss, model, rows, masks, how, available, read, seed, show)


def _fit(
    acquirer: AmortisedGain | LookaheadGain,
    loss_of: Callable[[Tensor, Tensor, torch.Generator], Tensor],
    model: MatchedVAE,
    rows: Tensor,
    masks: MaskDistribution,
    how: AcquisitionPlan,
    available: Tensor | None,
    read: Read,
    seed: int,
    show: Callable[[Progress], None] | None,
) -> Report:
    model.eval().requires_grad_(False)
    acquirer.offers = acquirer.offers.on(rows.device)
    generator = torch.Generator(rows.device).manual_seed(seed)
    size, shape = min(how.batch_size, len(rows)), acquirer.offers.reveals.shape[1:]
    walks = Walks(round(how.walking * size), how.walk_steps, acquirer, len(rows), generator)

    def loss(_: Tensor) -> Losses:
        drawn = torch.randint(len(rows), (size,), generator=generator, device=rows.device)
        observed = masks.sample(torch.Size([size, *shape]), generator)
        drawn, observed = walks.instead_of(drawn, observed)
        x = read(rows[drawn])
        if available is not None:
            observed = observed & available[drawn]
        cost = loss_of(x, observed, generator)
        walks.go_on(x, observed)
        return {"gain": cost}

    return train(acquirer, loss, how.plan, generators=[generator], show=show)


@final
class Walks:
    """Rows on their way from nothing observed to what an acquirer's choices lead to.

    Args:
        count: How many rows.
        num_steps: Choices per row; each row starts somewhere on its way.
        acquirer: Chooses.
        num_rows: Of all the rows there are.
        generator: Of rows, and of what the first of them have observed.
    """

    def __init__(
        self,
        count: int,
        num_steps: int,
        acquirer: Acquirer,
        num_rows: int,
        generator: torch.Generator,
    ) -> None:
        self.acquirer, self.num_steps, self.num_rows = acquirer, num_steps, num_rows
        self.generator, device = generator, generator.device
        self.reveals = acquirer.offers.reveals.to(device)
        self.row = self._rows(count)
        self.steps = torch.arange(count, device=device) % (num_steps + 1)
        self.observed = torch.zeros(count, *self.reveals.shape[1:], dtype=torch.bool, device=device)

    def instead_of(self, row: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows and masks of which the first are those on their way."""
        count = len(self.row)
        return torch.cat([self.row, row[count:]]), torch.cat([self.observed, observed[count:]])

    def go_on(self, x: Tensor, observed: Tensor) -> None:
        """Take one choice for each row; others take the place of those that have had all."""
        count = len(self.row)
        if count == 0:
            return
        best = self.acquirer(x[:count], observed[:count]).argmax(1)
        self.steps += 1
        ended = self.steps > self.num_steps
        self.steps.masked_fill_(ended, 0)
        self.row.copy_(torch.where(ended, self._rows(count), self.row))
        still = ~ended.view(-1, *[1] * (observed.dim() - 1))
        self.observed.copy_((self.observed | self.reveals[best]) & still)

    def _rows(self, count: int) -> Tensor:
        return torch.randint(
            self.num_rows, (count,), generator=self.generator, device=self.generator.device
        )


def _some(offers: Offers, count: int, generator: torch.Generator) -> tuple[Tensor, Offers]:
    """Return the numbers of some offers, drawn at random, and these offers."""
    noise = torch.rand(len(offers.costs), generator=generator, device=generator.device)
    picked = noise.argsort()[:count]
    features = picked if offers.single else None
    return picked, Offers.trusted(offers.reveals[picked], offers.costs[picked], features)


def _fresh(num_samples: int, batch: int, generator: torch.Generator) -> Callable[[int], Tensor]:
    """Return a source of uniforms, ``(samples, batch, size)``."""

    def noise(size: int) -> Tensor:
        shape = (num_samples, batch, size)
        return torch.rand(shape, generator=generator, device=generator.device)

    return noise


def _mean_of_open(cost: Tensor, offers: Offers, observed: Tensor) -> Tensor:
    """Return the mean over offers that would show anything new, ``(batch, offers)``."""
    counted = offers.open(observed).to(cost.dtype)
    return (cost * counted).sum() / counted.sum().clamp_min(1.0)
