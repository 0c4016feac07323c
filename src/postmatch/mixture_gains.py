"""What might be measured tells of some features, or of z: from the mixture that predicts them."""

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
from postmatch.distributions.noise import quasi_uniform
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
            noises = [_EvenNoise(n, self.seed + i, x.device) for i, n in enumerate(counts)]
            return gains_from(given, self.offers, self.target, noises)

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
    """Evenly spread uniforms that all rows share; what is asked for later has axes of its own."""

    def __init__(self, num_samples: int, seed: int, device: torch.device) -> None:
        self.num_samples, self.seed, self.device, self.used = num_samples, seed, device, 0

    def __call__(self, size: int) -> Tensor:
        start, self.used = self.used, self.used + size
        return quasi_uniform(self.num_samples, self.used, self.seed, self.device)[..., start:]


@torch.no_grad()
def gains_from(
    given: Conditional, offers: Offers, target: Tensor | None, noises: Sequence[Noise]
) -> Tensor:
    """Return what each offer is expected to tell, ``(batch, offers)``; see :class:`MixtureGain`.

    Args:
        given: What is known of some rows.
        offers: What can be measured.
        target: What is asked about; None for z.
        noises: Of z, an even number of draws; of what would be seen; and of the target.
    """
    decoded, seen = given.marginals_from(noises[0]), given.sample_from(noises[1])
    log_seen = _in_halves(_of_offers(decoded.log_prob(seen[:, None]), given.observed, offers))
    if target is None:
        return _about_latent(log_seen)
    points = _points(given, decoded, target.to(seen.device), noises[2])
    return _about(log_seen, points)


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


@final
@dataclass(frozen=True)
class _Points:
    """Values of the target.

    Args:
        log_each: Their log density given draws of z, ``(batch, points, 2, draws)``.
        all_levels: Whether they are all that there are, rather than draws.
    """

    log_each: Tensor
    all_levels: bool


def _points(given: Conditional, decoded: Distribution, target: Tensor, noise: Noise) -> _Points:
    hidden = target & ~given.observed  # (batch, *features)
    columns = target.nonzero()
    if isinstance(decoded, MixedColumns) and len(columns) == 1:
        column = int(columns)
        if decoded.layout.specs[column].kind != "number":
            log_level = decoded.probs(column).log().clamp_min(_LEAST_LOG)  # (draws, batch, levels)
            log_each = log_level.masked_fill(~hidden[:, [column]], 0.0).permute(1, 2, 0)
            return _Points(_in_halves(log_each.contiguous()), all_levels=True)
    drawn = given.drawn_from(given.marginals_from(noise), noise)
    log_each = decoded.log_prob(drawn[:, None]).clamp_min(_LEAST_LOG)
    log_each = log_each.masked_fill(~hidden, 0.0).flatten(3).sum(3)  # (points, draws, batch)
    return _Points(_in_halves(log_each.permute(2, 0, 1).contiguous()), all_levels=False)


def _about(log_seen: Tensor, points: _Points) -> Tensor:
    """Return what is told of the target.

    Args:
        log_seen: As in :func:`_about_latent`.
        points: Of the target.
    """
    weight = log_seen.softmax(-1)  # (batch, offers, seen, 2, draws)
    share = log_seen.logsumexp(-1).softmax(-1)  # of the halves
    log_total = points.log_each.logsumexp(-1)  # (batch, points, 2)
    relative = points.log_each.softmax(-1) * points.log_each.shape[-1]
    left = weight.movedim(-2, 2)  # (batch, offers, 2, seen, draws)
    ratio = left @ relative.permute(0, 2, 3, 1)[:, None]  # (batch, offers, 2, seen, points)
    shares = share.movedim(-1, 2)[..., None] * (2.0 * log_total.softmax(-1)).mT[:, None, :, None]
    whole = (shares * ratio).sum(2)  # (batch, offers, seen, points)
    if points.all_levels:
        half_chance = log_total.exp() / points.log_each.shape[-1]
        chance = half_chance.mean(-1)[:, None, None]
        half_chance = half_chance.mT[:, None, :, None]
    else:
        chance = half_chance = ratio.new_full((), 1.0 / ratio.shape[-1])
    told = (chance * _divergence(whole)).sum(-1).mean(-1)
    in_halves = (half_chance * _divergence(ratio)).sum(-1).mean((-1, -2))
    return 2.0 * told - in_halves


def _divergence(ratio: Tensor) -> Tensor:
    r"""Return :math:`r \log r - r + 1`, which is never negative, and 0 where r is 1."""
    found: Tensor = torch.special.xlogy(ratio, ratio) - ratio + 1.0
    return found
