"""Which feature to measure next: what each is expected to tell, at what price."""

import abc
import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from postmatch.conditioning import MatchedVAE
from postmatch.entropies import entropies_after, entropy
from postmatch.offers import Offers
from postmatch.partial import MaskedEncoder

SAMPLES = 50  # as many as in the paper
_NOTHING = torch.finfo(torch.float32).min  # above -inf alone


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
        single = self.offers.single  # then what is observed needs not be turned round twice
        closed = observed.flatten(1) if single else ~self.offers.open(observed)
        return gains.masked_fill(closed, -math.inf)


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
        means: See means of the decoder at draws of z, as the paper's code does, and no draws of the
            decoder: a grey pixel is like the former, not like black or white.
    """

    def __init__(
        self,
        model: MatchedVAE,
        offers: Offers,
        num_samples: int = SAMPLES,
        at_once: int = 0,
        seed: int = 0,
        *,
        means: bool = False,
    ) -> None:
        super().__init__(offers)
        self.model, self.num_samples, self.at_once, self.seed = model, num_samples, at_once, seed
        self.means = means

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:
        """See the base."""
        given = self.model.given(x, observed)
        if self.means:
            decoded = given.marginals(self.num_samples, self.seed).mean
            seen = torch.where(observed, given.x, decoded)  # (samples, batch, *features)
        else:
            seen = given.shared_samples(self.num_samples, self.seed)
        later = entropies_after(self.model, seen, observed, self.offers, self.at_once)
        return entropy(given.latent, x)[:, None] - later.mean(0)


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
        gains: Tensor = self.net(MaskedEncoder.side_by_side(x, observed))
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
        out = self.net(MaskedEncoder.side_by_side(x, observed))
        mean, raw = torch.unflatten(out, 1, (len(self.offers.costs), -1)).chunk(2, dim=-1)
        scale = nn.functional.softplus(raw) + 1e-5
        return Normal(mean, scale, validate_args=False)

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:
        """Return entropies with their sign turned: larger ones tell less."""
        each: Tensor = self.posteriors(x, observed).entropy()  # type: ignore[no-untyped-call]
        return -each.sum(-1)


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
    idle = ~(most >= max(price, _NOTHING))  # NaN is worth nothing
    gain = most if offers.equal else gains.gather(1, best[:, None])[:, 0]
    return Choice(best.masked_fill_(idle, -1), gain.masked_fill_(idle, 0.0))


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
