"""What might be measured tells of some features, or of z: from the mixture that predicts them."""

import functools
import math
from collections.abc import Callable, Sequence
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

SAMPLES, DRAWS = 64, 256  # of what would be seen and of the target, and of z
_LEAST_LOG = -1e4  # what is less likely than this is as good as impossible; 0 * inf is not a number
_AT_ONCE = 1 << 21  # densities that are in memory together


@final
class MixtureGain(Acquirer):
    r"""What each offer is expected to tell of a target, or of z, from predictions of both.

    Given z, features are independent. So draws :math:`z_k \sim q(z \mid x_o)` that are weighed by
    :math:`w_k \propto p(x_i \mid z_k)` predict as if :math:`x_i` were seen, and nothing is encoded
    twice:

    .. math:: I(x_t; x_i \mid x_o) = \mathbb{E}_{x_i, x_t \mid x_o} [r \log r - r + 1], \qquad
        r = \frac{p(x_t \mid x_i, x_o)}{p(x_t \mid x_o)}
        = \frac{\sum_k w_k\, p(x_t \mid z_k)}{\frac1K \sum_k p(x_t \mid z_k)}

    with :math:`x_i` and :math:`x_t` drawn apart. Levels of a single target are summed over. Of z,
    whose draws were as likely as each other, it tells :math:`\mathbb{E} [\log K - H(w)]`. Few draws
    take chance for knowledge, twice as much with half as many: the halves tell by how much.

    Args:
        model: A matched VAE.
        offers: What can be measured, nothing of the target.
        target: Features that are asked about, bool, of the shape of a row's mask; None for z.
        num_samples: Draws of what would be seen and of the target, each.
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
        counts = (self.num_draws, self.num_samples, self.num_samples)
        rows = max(1, _AT_ONCE // (counts[0] * counts[1] * observed[0].numel()))

        def part(start: int) -> Tensor:
            given = self.model.given(x[start : start + rows], observed[start : start + rows])
            noise = _EvenNoise(counts, self.seed, x.device)
            return gains_from(given, self.offers, self.target, noise, counts)

        return torch.cat([part(start) for start in range(0, len(x), rows)])


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
class _EvenNoise:
    """Even noise that all rows share; what is asked for later has axes of its own."""

    def __init__(self, counts: Sequence[int], seed: int, device: torch.device) -> None:
        self.counts, self.seed, self.device, self.used = counts, seed, device, 0

    def __call__(self, size: int) -> Tensor:
        start, self.used = self.used, self.used + size
        return even_noise(self.counts, self.used, self.seed, self.device)[..., start:]


def even_noise(counts: Sequence[int], size: int, seed: int, device: torch.device) -> Tensor:
    """Return uniforms, ``(samples, 1, size)``, in parts each of which is evenly spread.

    The parts know nothing of each other. Parts of one even set would keep out of each other's way.
    """
    parts = [quasi_uniform(n, size, seed + i, device) for i, n in enumerate(counts)]
    return torch.cat(parts)


@torch.no_grad()
def gains_from(
    given: Conditional, offers: Offers, target: Tensor | None, noise: Noise, counts: Sequence[int]
) -> Tensor:
    """Return what each offer is expected to tell, ``(batch, offers)``; see :class:`MixtureGain`.

    Args:
        given: What is known of some rows.
        offers: What can be measured.
        target: What is asked about; None for z.
        noise: Of all draws.
        counts: How many of them are of z, an even number; of what would be seen; of the target.
    """
    parts = given.marginals_from(noise, counts)
    decoded, size = parts[0], noise_size(parts[0])
    if size is None:
        raise TypeError(f"{type(decoded).__name__} has no from_noise; register one for it")
    uniform = torch.split(noise(size), list(counts))
    seen = torch.where(given.observed, given.x, from_noise(parts[1], uniform[1]))
    log_seen = _in_halves(_of_offers(decoded.log_prob(seen[:, None]), given.observed, offers))
    if target is None:
        return _about_latent(log_seen)
    hidden = target.to(seen.device) & ~given.observed  # (batch, *features)
    levels = _levels(decoded, target, hidden)
    if levels is not None:
        return _about(log_seen, levels, all_levels=True)
    log_each = decoded.log_prob(from_noise(parts[2], uniform[2])[:, None])
    log_each = log_each.clamp_min(_LEAST_LOG).masked_fill(~hidden, 0.0).flatten(3).sum(3)
    points = log_each.permute(2, 0, 1)  # (batch, points, draws)
    return _about(log_seen, _in_halves(points.contiguous()), all_levels=False)


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
        counts = (num_draws, num_samples, num_samples)
        return gains_from(given, offers, target, _moved(counts, len(given.x), generator), counts)

    return teach


def _moved(counts: tuple[int, ...], batch: int, generator: torch.Generator) -> Noise:
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


def _levels(decoded: Distribution, target: Tensor, hidden: Tensor) -> Tensor | None:
    """Return the log probability of each level given draws of z, ``(batch, levels, 2, draws)``.

    None unless the target is one column of levels.
    """
    columns = target.flatten().nonzero()
    if not isinstance(decoded, MixedColumns) or len(columns) != 1:
        return None
    column = int(columns)
    if decoded.layout.specs[column].kind == "number":
        return None
    log_level = decoded.probs(column).log().clamp_min(_LEAST_LOG)  # (draws, batch, levels)
    shown = ~hidden[:, [column]]
    return _in_halves(log_level.masked_fill(shown, 0.0).permute(1, 2, 0).contiguous())


def _about(log_seen: Tensor, log_point: Tensor, *, all_levels: bool) -> Tensor:
    """Return what is told of the target.

    Args:
        log_seen: As in :func:`_about_latent`.
        log_point: Log densities of values of the target, ``(batch, points, 2, draws)``.
        all_levels: Whether they are all that there are, rather than draws.
    """
    draws = log_point.shape[-1]
    weight = log_seen.softmax(-1).movedim(-2, 2)  # (batch, offers, 2, seen, draws)
    share = log_seen.logsumexp(-1).softmax(-1).movedim(-1, 2)  # of the halves
    log_total = log_point.logsumexp(-1).mT[:, None, :, None]  # (batch, 1, 2, 1, points)
    relative = draws * log_point.softmax(-1).permute(0, 2, 3, 1)[:, None]
    ratio = weight @ relative  # (batch, offers, 2, seen, points)
    whole = (share[..., None] * 2.0 * log_total.softmax(2) * ratio).sum(2)
    chance = log_total.exp() / draws if all_levels else ratio.new_full((1, 1, 2, 1, 1), 1.0)
    count = 1 if all_levels else ratio.shape[-1]
    told = (chance.mean(2) * _divergence(whole)).sum(-1).mean(-1)
    in_halves = (chance * _divergence(ratio)).sum(-1).mean((-1, -2))
    return (2.0 * told - in_halves) / count


def _divergence(ratio: Tensor) -> Tensor:
    r"""Return :math:`r \log r - r + 1`, which is never negative, and 0 where r is 1."""
    found: Tensor = torch.special.xlogy(ratio, ratio) - ratio + 1.0
    return found
