"""What might be measured tells of some features, or of z: from the mixture that predicts them."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.acquisition import Acquirer
from postmatch.conditioning import Conditional, MatchedVAE
from postmatch.distributions.mixed import MixedColumns
from postmatch.distributions.noise import from_noise, noise_size, quasi_uniform
from postmatch.offers import Offers

Noise = Callable[[int], Tensor]
"""From how many uniforms a draw needs to fresh ones, ``(samples, batch or 1, number)``."""

SAMPLES, DRAWS = 64, 256  # of what would be seen, and of z
_FEWEST = 16  # at least one draw of z in so many agrees with what would be seen
_HALVINGS = 6  # of how sharply it is seen, at most
_LEAST_LOG = -1e4  # what is less likely than this is as good as impossible; 0 * inf is not a number
_TINY = 1e-12
_AT_ONCE = 1 << 21  # densities that are in memory together


@final
class MixtureGain(Acquirer):
    r"""What each offer is expected to tell of a target, or of z, from predictions of both.

    Given z, features are independent. So draws :math:`z_k \sim q(z \mid x_o)` that are weighed by
    :math:`w_k \propto p(x_i \mid z_k)` predict as if :math:`x_i` were seen, and nothing is encoded
    twice. Of a target of levels it is told

    .. math:: I(x_t; x_i \mid x_o) = H(x_t \mid x_o) - \mathbb{E}_{x_i} H(x_t \mid x_i, x_o), \qquad
        p(x_t \mid x_i, x_o) = \sum_k w_k\, p(x_t \mid z_k)

    with all levels summed over; of a number the same, with :math:`\frac12 \log` of its variance for
    its entropy, as of a Gaussian: what is told of its last digits does not count. Of several
    features it is the sum of what is told of each. Of z, whose draws were as likely as each other,
    it is :math:`\mathbb{E} [\log K - H(w)]`.

    Few draws take chance for knowledge. It is twice as much with half as many, so the halves tell
    by how much; and where a number is predicted so sharply that hardly any draw would agree with
    it, it counts as seen less sharply, so that a sixteenth of the draws agree.

    Args:
        model: A matched VAE.
        offers: What can be measured, nothing of the target.
        target: Features that are asked about, bool, of the shape of a row's mask; None for z.
        num_samples: Draws of what would be seen.
        num_draws: Draws of z, an even number; a power of two spreads them most evenly.
        seed: Of the draws, which all rows share.
    """

    def __init__(
        self,
        model: MatchedVAE,
        offers: Offers,
        target: Tensor | None = None,
        num_samples: int = SAMPLES,
        num_draws: int = DRAWS,
        seed: int = 0,
    ) -> None:
        super().__init__(offers)
        check_target(offers, target)
        self.model, self.target, self.seed = model, target, seed
        self.num_samples, self.num_draws = num_samples, num_draws

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:
        """See the base."""
        counts = (self.num_draws, self.num_samples)
        rows = max(1, _AT_ONCE // (counts[0] * counts[1] * observed[0].numel()))

        def part(start: int) -> Tensor:
            given = self.model.given(x[start : start + rows], observed[start : start + rows])
            return gains_from(given, self.offers, self.target, self.draws(given))

        return torch.cat([part(start) for start in range(0, len(x), rows)])

    def draws(self, given: Conditional) -> "MixtureDraws":
        """Return the draws of some rows that their gains are taken from."""
        counts = (self.num_draws, self.num_samples)
        return mixture_draws(given, EvenNoise(counts, self.seed, given.x.device), counts)


def check_target(offers: Offers, target: Tensor | None) -> None:
    """Raise unless a target is one, and no offer shows any of it."""
    if target is None:
        return
    shape = offers.reveals.shape[1:]
    if target.dtype != torch.bool or target.shape != shape or not target.any():
        raise ValueError(f"target must be bool of shape {tuple(shape)} and name a feature")
    if (offers.reveals & target.to(offers.reveals.device)).any():
        raise ValueError("offers must show nothing of the target; see Offers.without")


@final
class EvenNoise:
    """Even noise that all rows share; what is asked for later has axes of its own."""

    def __init__(self, counts: Sequence[int], seed: int, device: torch.device) -> None:
        self.counts, self.seed, self.device, self.used = counts, seed, device, 0

    def __call__(self, size: int) -> Tensor:
        """Return uniforms, ``(samples, 1, size)``."""
        start, self.used = self.used, self.used + size
        return even_noise(self.counts, self.used, self.seed, self.device)[..., start:]


def even_noise(counts: Sequence[int], size: int, seed: int, device: torch.device) -> Tensor:
    """Return uniforms, ``(samples, 1, size)``, in parts each of which is evenly spread.

    The parts know nothing of each other. Parts of one even set would keep out of each other's way.
    """
    parts = [quasi_uniform(n, size, seed + i, device) for i, n in enumerate(counts)]
    return torch.cat(parts)


@final
@dataclass(frozen=True)
class MixtureDraws:
    """What gains are taken from.

    Args:
        decoded: The decoder's distributions at draws of z, an even number.
        drawn: A draw of the features from each, ``(draws, batch, *features)``.
        seen: What would be seen, from other draws of z, ``(samples, batch, *features)``.
    """

    decoded: Distribution
    drawn: Tensor
    seen: Tensor


@torch.no_grad()
def mixture_draws(given: Conditional, noise: Noise, counts: Sequence[int]) -> MixtureDraws:
    """Return draws of rows.

    Args:
        given: What is known of them.
        noise: Of all draws.
        counts: How many of them are of z, and of what would be seen.
    """
    decoded, origin = given.marginals_from(noise, counts)
    size = noise_size(decoded)
    if size is None:
        raise TypeError(f"{type(decoded).__name__} has no from_noise; register one for it")
    parts = zip((decoded, origin), torch.split(noise(size), list(counts)), strict=True)
    drawn, seen = (
        torch.where(given.observed, given.x, from_noise(each, uniform)) for each, uniform in parts
    )
    return MixtureDraws(decoded, drawn, seen)


@torch.no_grad()
def gains_from(
    given: Conditional, offers: Offers, target: Tensor | None, draws: MixtureDraws
) -> Tensor:
    """Return what each offer is expected to tell, ``(batch, offers)``; see :class:`MixtureGain`.

    Args:
        given: What is known of some rows.
        offers: What can be measured.
        target: What is asked about; None for z.
        draws: Of these rows.
    """
    decoded, seen = draws.decoded, draws.seen
    log_seen = _of_offers(decoded.log_prob(seen[:, None]), given.observed, offers)
    if target is None:
        return _about_latent(_in_halves(log_seen))
    log_seen = _in_halves(_less_sharp(log_seen))
    drawn = draws.drawn.flatten(2)  # (draws, batch, features)
    hidden = (target.to(seen.device) & ~given.observed).flatten(1)
    gains = log_seen.new_zeros(log_seen.shape[:2])
    for feature in target.flatten().nonzero()[:, 0].tolist():
        probs = _levels(decoded, feature)  # (draws, batch, levels)
        told = (
            _about_number(log_seen, _in_halves(drawn[..., feature].mT))
            if probs is None
            else _about_levels(log_seen, _in_halves(probs.permute(1, 2, 0).contiguous()))
        )
        gains += told * hidden[:, [feature]]
    return gains


def _less_sharp(log_weight: Tensor) -> Tensor:
    """Return log weights, flattened where too few draws, the last axis, have most of the weight."""
    fewest = log_weight.shape[-1] / _FEWEST
    power = torch.ones_like(log_weight[..., :1])
    for _ in range(_HALVINGS):
        weight = (power * log_weight).softmax(-1)
        agreeing = 1.0 / weight.square().sum(-1, keepdim=True)
        power = torch.where(agreeing < fewest, 0.5 * power, power)
    return power * log_weight


def mixture_teacher(
    target: Tensor | None = None, num_draws: int = 128
) -> Callable[[MatchedVAE, Conditional, Offers, int, torch.Generator], Tensor]:
    """Return what teaches the gains of :class:`MixtureGain` to a network.

    Args:
        target: Features that are asked about; None for z.
        num_draws: Draws of z, of which too few would teach something else.
    """

    def teach(
        _: MatchedVAE,
        given: Conditional,
        offers: Offers,
        num_samples: int,
        generator: torch.Generator,
    ) -> Tensor:
        counts = (num_draws, num_samples)
        noise = moved_noise(counts, len(given.x), generator)
        return gains_from(given, offers, target, mixture_draws(given, noise, counts))

    return teach


def moved_noise(counts: tuple[int, ...], batch: int, generator: torch.Generator) -> Noise:
    """Return a source of even noise, moved for each row and part by as much as chance tells."""
    device, asked = generator.device, 0

    def noise(size: int) -> Tensor:
        nonlocal asked
        asked += size
        even = _even(counts, asked, device)[..., asked - size :]
        move = torch.rand((len(counts), batch, size), generator=generator, device=device)
        parts = zip(torch.split(even, list(counts)), move, strict=True)
        return torch.cat([part + by for part, by in parts]) % 1.0

    return noise


@functools.lru_cache(maxsize=16)
def _even(counts: tuple[int, ...], size: int, device: torch.device) -> Tensor:
    """Return even noise, made once: a GPU would wait for it in every step."""
    return even_noise(counts, size, 0, device)


def _of_offers(log_each: Tensor, observed: Tensor, offers: Offers) -> Tensor:
    """Return the log density of what each offer would show, ``(batch, offers, seen, draws)``.

    Args:
        log_each: Of each feature, ``(seen, draws, batch, *features)``.
        observed: What needs no more showing.
        offers: What each shows.
    """
    new = log_each.clamp_min(_LEAST_LOG).masked_fill(observed, 0.0).flatten(3)
    if not offers.single:
        new = new @ offers.reveals.flatten(1).to(new).mT
    return new.permute(2, 3, 0, 1).contiguous()


def _in_halves(log_each: Tensor) -> Tensor:
    """Split draws of z, the last axis, in two: ``(..., 2, draws)``."""
    return torch.unflatten(log_each, -1, (2, -1))


def _about_latent(log_seen: Tensor) -> Tensor:
    """Return what is told of z, whose draws are as likely as each other before.

    Args:
        log_seen: Of what would be seen given draws of z, ``(batch, offers, seen, 2, draws)``.
    """
    whole, half = (_unevenness(each) for each in (log_seen.flatten(-2), log_seen))
    return (2.0 * whole - half.mean(-1)).mean(-1)


def _unevenness(log_weight: Tensor) -> Tensor:
    r"""Return :math:`\log K - H(w)` of weights that are not normalised yet."""
    log_share = log_weight.log_softmax(-1)
    return (log_share.exp() * log_share).sum(-1) + math.log(log_share.shape[-1])


def _levels(decoded: Distribution, feature: int) -> Tensor | None:
    """Return the probability of each level of a feature, or None if it is a number."""
    if not isinstance(decoded, MixedColumns) or decoded.layout.specs[feature].kind == "number":
        return None
    return decoded.probs(feature)


def _about_levels(log_seen: Tensor, probs: Tensor) -> Tensor:
    """Return what is told of a feature of levels.

    Args:
        log_seen: As in :func:`_about_latent`.
        probs: Of the levels given draws of z, ``(batch, levels, 2, draws)``.
    """
    weight = log_seen.softmax(-1)  # (batch, offers, seen, 2, draws)
    share = log_seen.logsumexp(-1).softmax(-1)[..., None]  # of the halves
    half = torch.einsum("bosnk,blnk->bosnl", weight, probs)
    whole = (share * half).sum(-2)
    before = probs.mean(-1).mT  # (batch, 2, levels)
    told = _entropy(before.mean(1))[:, None] - _entropy(whole).mean(-1)
    in_halves = _entropy(before)[:, None] - _entropy(half).mean(2)
    return 2.0 * told - in_halves.mean(-1)


def _entropy(probs: Tensor) -> Tensor:
    each: Tensor = torch.special.xlogy(probs, probs)
    return -each.sum(-1)


def _about_number(log_seen: Tensor, drawn: Tensor) -> Tensor:
    """Return what is told of a number, as of a Gaussian.

    Args:
        log_seen: As in :func:`_about_latent`.
        drawn: The number at draws of z, ``(batch, 2, draws)``.
    """
    whole, half = log_seen.flatten(-2), log_seen.movedim(-2, 2)  # (batch, offers, 2, seen, draws)
    drawn = drawn - drawn.mean((1, 2), keepdim=True)
    told = _log_deviation_less(whole, drawn.flatten(1)[:, None, None])
    in_halves = _log_deviation_less(half, drawn[:, None, :, None])
    return 2.0 * told - in_halves.mean(-1)


def _log_deviation_less(log_weight: Tensor, drawn: Tensor) -> Tensor:
    """Return by how much the log of a standard deviation falls, on average over what is seen."""
    evenly = torch.zeros_like(log_weight[..., :1, :])
    before, then = (_variance(each.softmax(-1), drawn) for each in (evenly, log_weight))
    return 0.5 * (before.log()[..., 0] - then.log().mean(-1))


def _variance(weight: Tensor, drawn: Tensor) -> Tensor:
    """Return the variance of weighed draws, the last axis, right for as many as agree."""
    mean = (weight * drawn).sum(-1, keepdim=True)
    spread = (weight * (drawn - mean).square()).sum(-1)
    return (spread / (1.0 - weight.square().sum(-1)).clamp_min(_TINY)).clamp_min(_TINY)
