"""Which feature to measure next: what each is expected to tell, at what price."""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.noise import from_noise, noise_size, quasi_uniform
from postmatch.nets.mlp import LinearFirst
from postmatch.partial import MaskedEncoder
from postmatch.randomness import seeded

SAMPLES = 50  # as many as in the paper
_ON_CPU, _ON_GPU = 1 << 11, 1 << 16  # rows that are encoded together: as a cache holds, or memory
_NOTHING = torch.finfo(torch.float32).min  # above -inf alone


@final
class Offers:
    """What can be measured: features or groups of them that come together, and what they cost.

    Features that no offer has cannot be bought.

    Args:
        reveals: What each offer shows, bool, ``(offers, *features)``.
        costs: One positive number per offer; all cost 1 by default.
    """

    def __init__(self, reveals: Tensor, costs: Sequence[float] | Tensor | None = None) -> None:
        if reveals.dtype != torch.bool or reveals.dim() < 2:
            raise ValueError("reveals must be bool with one row of features for each offer")
        if not reveals.flatten(1).any(1).all():
            raise ValueError("reveals must show at least one feature in each offer")
        count = len(reveals)
        prices = torch.ones(count) if costs is None else torch.as_tensor(costs, dtype=torch.float32)
        if prices.shape != (count,):
            raise ValueError(f"costs must have one entry for each of {count} offers")
        if not (prices > 0).all() or not prices.isfinite().all():
            raise ValueError("costs must be positive and finite")
        self._keep(reveals, prices)

    def _keep(self, reveals: Tensor, costs: Tensor, *, single: bool | None = None) -> None:
        self.reveals, self.costs = reveals, costs
        if single is None:  # each feature on its own, in order: the usual case, and the fastest
            size = reveals[0].numel()
            alone = torch.eye(size, dtype=torch.bool, device=reveals.device)
            single = len(reveals) == size and torch.equal(reveals.flatten(1), alone)
            self.equal = bool((costs == 1.0).all())
        self.single = single

    @classmethod
    def each(
        cls, features: Sequence[int], costs: Sequence[float] | Tensor | None = None
    ) -> "Offers":
        """Return offers of one feature each.

        Args:
            features: The shape of a row's mask.
            costs: Of the features, in order.
        """
        count = math.prod(features)
        return cls(torch.eye(count, dtype=torch.bool).view(count, *features), costs)

    @classmethod
    def of(
        cls,
        groups: Sequence[Sequence[int]],
        num_features: int,
        costs: Sequence[float] | Tensor | None = None,
    ) -> "Offers":
        """Return offers of groups of columns.

        Args:
            groups: The columns of each.
            num_features: How many columns there are.
            costs: Of the groups, in order.
        """
        reveals = torch.zeros(len(groups), num_features, dtype=torch.bool)
        for row, group in zip(reveals, groups, strict=True):
            for column in group:
                if not 0 <= column < num_features:
                    raise ValueError(f"groups must name columns 0 to {num_features - 1}: {column}")
                row[column] = True
        return cls(reveals, costs)

    @classmethod
    def trusted(cls, reveals: Tensor, costs: Tensor) -> "Offers":
        """Return offers that need no checks, which would make a GPU wait."""
        offers = cls.__new__(cls)
        offers._keep(reveals, costs, single=False)
        offers.equal = False
        return offers

    def open(self, observed: Tensor) -> Tensor:
        """Return which offers would show anything new, ``(batch, offers)``."""
        if self.single:
            return ~observed.flatten(1)
        hidden = (~observed).flatten(1).to(torch.float32)
        return hidden @ self.reveals.flatten(1).to(hidden).mT > 0.0


class Acquirer(nn.Module, abc.ABC):
    """Tells what each offer is expected to teach about a row.

    Args:
        offers: What can be measured.
    """

    def __init__(self, offers: Offers) -> None:
        super().__init__()
        self.offers = offers

    @abc.abstractmethod
    def expected(self, x: Tensor, observed: Tensor) -> Tensor:
        """Return the expected gain of each offer in nats, ``(batch, offers)``, whatever is open."""

    @torch.no_grad()
    def forward(self, x: Tensor, observed: Tensor) -> Tensor:
        """Return the expected gain of each offer, ``(batch, offers)``; -inf where nothing is new.

        Args:
            x: Rows, ``(batch, *features)``; what is not observed may be anything.
            observed: What is observed of them.
        """
        gains = self.expected(x, observed)
        return gains.masked_fill(~self.offers.open(observed), -math.inf)


@final
class SampledGain(Acquirer):
    r"""The expected fall in the entropy of z, over draws of what would be seen (paper, eq. 6).

    .. math:: H\left(q(z \mid x_o)\right)
        - \mathbb{E}_{x_i \sim p(x_i \mid x_o)} H\left(q(z \mid x_o, x_i)\right)

    Args:
        model: A matched VAE.
        offers: What can be measured.
        num_samples: Draws of what would be seen.
        at_once: Rows that are encoded together, at most; 0 for as many as the device likes.
        seed: Of the draws, which all rows share.
    """

    def __init__(
        self,
        model: MatchedVAE,
        offers: Offers,
        num_samples: int = SAMPLES,
        at_once: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(offers)
        self.model, self.num_samples, self.at_once, self.seed = model, num_samples, at_once, seed

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:
        """See the base."""
        given = self.model.given(x, observed)
        seen = given.shared_samples(self.num_samples, self.seed)  # (samples, batch, *features)
        later = entropies_after(self.model, seen, observed, self.offers, self.at_once)
        return entropy(given.latent, x)[:, None] - later.mean(0)


@torch.no_grad()
def entropies_after(
    model: MatchedVAE, seen: Tensor, observed: Tensor, offers: Offers, at_once: int = 0
) -> Tensor:
    r"""Return :math:`H(q(z \mid x_o, x_i))` of every draw and offer, ``(samples, batch, offers)``.

    Args:
        model: A matched VAE.
        seen: What would be seen, ``(samples, batch, *features)``.
        observed: What is observed already, ``(batch, *features)``.
        offers: What each would show.
        at_once: Rows that are encoded together, at most; 0 for as many as the device likes.
    """
    samples, batch, *_ = seen.shape
    count, at_once = len(offers.reveals), at_once or (_ON_GPU if seen.is_cuda else _ON_CPU)
    total, rows = samples * batch * count, _Rows(model, seen, observed, offers)
    found = seen.new_empty(total)
    for start in range(0, total, at_once):
        row = torch.arange(start, min(start + at_once, total), device=seen.device)
        latent = rows.encoded(row // count, row % count)
        found[start : start + len(row)] = entropy(latent, seen)
    return found.view(samples, batch, count)


@final
class _Rows:
    """Rows with one more offer shown: each draw with each offer, encoded on demand."""

    def __init__(self, model: MatchedVAE, seen: Tensor, observed: Tensor, offers: Offers) -> None:
        self.model, self.offers, self.batch = model, offers, len(observed)
        self.x, self.observed = seen.flatten(0, 1), observed
        # Where each offer is one number, only two numbers of what a network reads change with it.
        partial = model.partial
        single = offers.single and observed.shape[1:] == seen.shape[2:]
        self.before: Tensor | None = None
        self.weight: Tensor | None = None
        if single and isinstance(partial, MaskedEncoder):
            self.before = partial.side_by_side(self.x[: self.batch], observed)
            if isinstance(partial.net, LinearFirst):
                self.before = partial.net.first(self.before.flatten(1))
                self.weight = partial.net.first.weight.mT.contiguous()

    def encoded(self, draw: Tensor, offer: Tensor) -> Distribution:
        """Return q(z | x_o, x_i).

        Args:
            draw: Numbers of draws and rows, ``(rows,)``, those of the first draw first.
            offer: What each is shown.
        """
        row = draw % self.batch
        partial = self.model.partial
        if self.before is None or not isinstance(partial, MaskedEncoder):
            shown = self.observed[row] | self.offers.reveals.to(offer.device)[offer]
            return self.model.given(self.x[draw], shown).latent
        inputs, size = self.before[row], self.x[0].numel()
        value = self.x.flatten(1)[draw, offer]
        if self.weight is not None:
            assert isinstance(partial.net, LinearFirst)
            inputs += self.weight[size + offer]
            hidden = inputs.addcmul_(self.weight[offer], value[:, None])
            found: Distribution = partial.head(partial.net.after_first(hidden))
            return found
        flat = inputs.flatten(1)
        flat.scatter_(1, offer[:, None], value[:, None])
        flat.scatter_(1, offer[:, None] + size, 1.0)
        return partial.read(inputs)


@final
class AmortisedGain(Acquirer):
    r"""One network that tells the expected gain of all offers at once.

    It is regressed on the falls in entropy that :class:`SampledGain` averages, each of one draw of
    what would be seen: the mean is what least squares learn.

    Args:
        net: From visible values and their mask, side by side along the first axis of features, to
            ``(batch, offers)``.
        offers: What can be measured.
    """

    def __init__(self, net: nn.Module, offers: Offers) -> None:
        super().__init__(offers)
        self.net = net

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:
        """See the base."""
        visible = x.masked_fill(~observed, 0.0)
        gains: Tensor = self.net(torch.cat([visible, observed.to(x.dtype)], dim=1))
        return gains


@final
class LookaheadGain(Acquirer):
    r"""The paper's lookahead posteriors: a Gaussian for each feature that might be seen (eq. 7).

    Each is matched to draws of :math:`q(z \mid x_o, x_i)` over many :math:`x_i`, so that at best it
    is their average, which is :math:`q(z \mid x_o)` for every i. What its entropies still tell
    comes from feeding means of the decoder in place of draws. Here to be compared with.

    Args:
        net: As in :class:`AmortisedGain`, to ``(batch, offers * 2 * latent_size)``.
        offers: What can be measured.
    """

    def __init__(self, net: nn.Module, offers: Offers) -> None:
        super().__init__(offers)
        self.net = net

    def posteriors(self, x: Tensor, observed: Tensor) -> Normal:
        """Return the Gaussians, ``(batch, offers, latent_size)``."""
        visible = x.masked_fill(~observed, 0.0)
        out = self.net(torch.cat([visible, observed.to(x.dtype)], dim=1))
        mean, raw = torch.unflatten(out, 1, (len(self.offers.costs), -1)).chunk(2, dim=-1)
        scale = nn.functional.softplus(raw) + 1e-5
        return Normal(mean, scale, validate_args=False)

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:
        """Return entropies with their sign turned: larger ones tell less."""
        each: Tensor = self.posteriors(x, observed).entropy()  # type: ignore[no-untyped-call]
        return -each.sum(-1)


def entropy(
    distribution: Distribution, like: Tensor, num_samples: int = 64, seed: int = 0
) -> Tensor:
    """Return the entropy of each row's distribution in nats, in closed form for Gaussians.

    Others' are means over draws of z with noise that all rows share, so that differences between
    rows are far more certain than each of them.

    Args:
        distribution: Of z, batch shape ``(batch,)``.
        like: Any tensor where the draws shall be, of their precision.
        num_samples: Draws.
        seed: Of their noise.
    """
    base = distribution.base_dist if isinstance(distribution, Independent) else distribution
    if isinstance(base, Normal | MultivariateNormal):
        exact: Tensor = distribution.entropy()
        return exact
    size = noise_size(distribution)
    if size is None:
        with seeded(seed):
            z = distribution.sample(torch.Size([num_samples]))
    else:
        noise = quasi_uniform(num_samples, size, seed, like.device).to(like.dtype)
        z = from_noise(distribution, noise)
    return -distribution.log_prob(z).mean(0)


@final
@dataclass(frozen=True)
class Choice:
    """The best offer for each row.

    Args:
        offer: Its number, ``(batch,)``; -1 where nothing is worth its price.
        gain: What it is expected to tell, in nats, ``(batch,)``; 0 where nothing is bought.
    """

    offer: Tensor
    gain: Tensor


def choose(
    acquirer: Acquirer,
    x: Tensor,
    observed: Tensor,
    *,
    price: float = 0.0,
    money: Tensor | None = None,
) -> Choice:
    """Return the offer with the largest expected gain per cost.

    Args:
        acquirer: Tells the gains.
        x: Rows; what is not observed may be anything.
        observed: What is observed of them.
        price: Nats that a unit of cost must bring; whatever brings less is left.
        money: What each row may still spend, ``(batch,)``; None for no limit.
    """
    gains, offers = acquirer(x, observed), acquirer.offers
    value = gains if offers.equal else gains / offers.costs.to(x.device)
    if money is not None:
        value = value.masked_fill(offers.costs.to(x.device) > money[:, None], -math.inf)
    most, best = value.max(1)
    worth = most >= max(price, _NOTHING)
    gain = most if offers.equal else gains.gather(1, best[:, None])[:, 0]
    return Choice(best.where(worth, -1), gain.where(worth, 0.0))


@final
@dataclass(frozen=True)
class Trajectory:
    """What was bought, step by step.

    Args:
        offers: Numbers of offers, ``(batch, steps)``; -1 after the last.
        gains: What each was expected to tell, in nats.
        observed: What was known before each step and after the last, ``(steps + 1, batch, ...)``.
    """

    offers: Tensor
    gains: Tensor
    observed: Tensor


@torch.no_grad()
def acquire(
    acquirer: Acquirer,
    x: Tensor,
    observed: Tensor,
    num_steps: int,
    *,
    budget: float = math.inf,
    price: float = -math.inf,
) -> Trajectory:
    """Buy for whole rows what the acquirer chooses, as if the rest of them were hidden.

    Args:
        acquirer: Chooses.
        x: Complete rows; of what is not observed, only what is bought is ever looked at.
        observed: What is known at the start.
        num_steps: How many offers are bought, at most.
        budget: What a row may spend in all.
        price: Nats that a unit of cost must bring.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    reveals, costs = (t.to(x.device) for t in (acquirer.offers.reveals, acquirer.offers.costs))
    money, states, bought, gains = x.new_full((len(x),), budget), [observed], [], []
    for _ in range(num_steps):
        hidden = x.masked_fill(~observed, 0.0)
        choice = choose(acquirer, hidden, observed, price=price, money=money)
        some, offer = choice.offer >= 0, choice.offer.clamp_min(0)
        new = reveals[offer] & some.view(-1, *[1] * (observed.dim() - 1))
        observed, money = observed | new, money - costs[offer] * some
        states.append(observed)
        bought.append(choice.offer)
        gains.append(choice.gain)
    return Trajectory(torch.stack(bought, 1), torch.stack(gains, 1), torch.stack(states))
