"""How uncertain z is, now and after one more measurement."""

import abc
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.noise import from_noise, noise_size, quasi_uniform
from postmatch.nets.mlp import LinearFirst
from postmatch.offers import Offers
from postmatch.partial import GaussianHead, MaskedEncoder
from postmatch.randomness import seeded

_ON_CPU, _ON_GPU = 1 << 11, 1 << 16  # rows that are encoded together: as a cache holds, or memory


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


@torch.no_grad()
def entropies_after(
    model: MatchedVAE, seen: Tensor, observed: Tensor, offers: Offers, at_once: int = 0
) -> Tensor:
    r"""Return :math:`H(q(z \mid x_o, x_i))` of every draw and offer, ``(samples, batch, offers)``.

    Draws of black and white pixels hold each of two values many times; each is encoded once.

    Args:
        model: A matched VAE.
        seen: What would be seen, ``(samples, batch, *features)``.
        observed: What is observed already, ``(batch, *features)``.
        offers: What each would show.
        at_once: Rows that are encoded together, at most; 0 for as many as the device likes.
    """
    samples, batch, *_ = seen.shape
    if samples > 2 and _two_valued(seen, observed, offers):
        ends = torch.stack([torch.where(observed, seen[0], value) for value in (0.0, 1.0)])
        low, high = entropies_after(model, ends, observed, offers, at_once)
        return torch.where(seen.flatten(2) == 0.0, low, high)
    found = seen.new_empty(samples, batch, len(offers.reveals))
    rows = _rows(model, seen, observed, offers)
    for block in _blocks(found.shape, at_once or (_ON_GPU if seen.is_cuda else _ON_CPU)):
        found[block] = rows.entropies(*block)
    return found


def _two_valued(seen: Tensor, observed: Tensor, offers: Offers) -> bool:
    """Return whether each offer shows one number, and that is always 0 or 1."""
    if not offers.single or observed.shape[1:] != seen.shape[2:]:
        return False
    return bool(((seen == 0.0) | (seen == 1.0) | observed).all())


def _blocks(shape: Sequence[int], at_once: int) -> Iterator[tuple[slice, slice, slice]]:
    """Cut ``(samples, batch, offers)`` into blocks: offers are kept together, and then samples."""
    samples, batch, offers = shape
    most_offers = min(offers, at_once)
    most_samples = at_once // most_offers
    most_rows = max(1, most_samples // samples)
    for offer, row, sample in itertools.product(
        _cuts(offers, most_offers), _cuts(batch, most_rows), _cuts(samples, most_samples)
    ):
        yield sample, row, offer


def _cuts(size: int, most: int) -> list[slice]:
    return [slice(start, start + most) for start in range(0, size, most)]


class _Rows(abc.ABC):
    """Rows with one more offer shown: each draw with each offer, encoded on demand."""

    @abc.abstractmethod
    def entropies(self, samples: slice, rows: slice, offers: slice) -> Tensor:
        """Return those of q(z | x_o, x_i) for some of the draws, rows and offers."""


def _rows(model: MatchedVAE, seen: Tensor, observed: Tensor, offers: Offers) -> _Rows:
    partial, features = model.partial, offers.features
    single = observed.shape[1:] == seen.shape[2:]  # no feature has several numbers
    if features is None or not single or not isinstance(partial, MaskedEncoder):
        return _AnyRows(model, seen, observed, offers)
    before = partial.side_by_side(seen[0], observed)
    features = features.to(seen.device)
    shown = seen.flatten(2)[..., features]  # (samples, batch, offers)
    if isinstance(partial.net, LinearFirst):
        return _LinearRows(partial.net, partial.head, before, shown, features)
    return _MaskedRows(partial, before, shown, features)


@final
@dataclass(frozen=True)
class _AnyRows(_Rows):
    """Of any model and offers."""

    model: MatchedVAE
    seen: Tensor
    observed: Tensor
    offers: Offers

    def entropies(self, samples: slice, rows: slice, offers: slice) -> Tensor:
        """See the base."""
        reveals = self.offers.reveals[offers].to(self.seen.device)
        then = self.observed[rows, None] | reveals  # (batch, offers, *features)
        x = self.seen[samples, rows, None]
        shape = torch.Size([*x.shape[:2], then.shape[1]])
        x, then = x.expand(*shape, *x.shape[3:]), then.expand(*shape, *then.shape[2:])
        latent = self.model.given(x.flatten(0, 2), then.flatten(0, 2)).latent
        return entropy(latent, x).view(shape)


@final
@dataclass(frozen=True)
class _MaskedRows(_Rows):
    """Where each offer is one number, only two numbers of what a network reads change with it."""

    partial: MaskedEncoder
    before: Tensor
    shown: Tensor
    features: Tensor

    def entropies(self, samples: slice, rows: slice, offers: slice) -> Tensor:
        """See the base."""
        shown, before = self.shown[samples, rows, offers, None], self.before[rows]
        inputs = before[:, None].repeat(len(shown), 1, shown.shape[2], *[1] * (before.dim() - 1))
        flat = inputs.view(*shown.shape[:3], -1)
        place = self.features[offers, None].expand_as(shown)
        flat.scatter_(3, place, shown)
        flat.scatter_(3, place + flat.shape[3] // 2, 1.0)
        features = self.partial.net(inputs.view(-1, *before.shape[1:]))
        return _entropies(self.partial.head, features, shown).view(shown.shape[:3])


@final
class _LinearRows(_Rows):
    """Where the network begins with a linear layer, what changes is added to what that returns."""

    def __init__(
        self, net: LinearFirst, head: nn.Module, before: Tensor, shown: Tensor, features: Tensor
    ) -> None:
        self.net, self.head, self.shown = net, head, shown
        self.before = net.first(before.flatten(1))
        of_value, of_mask = net.first.weight.chunk(2, dim=1)
        self.of_value, self.of_mask = (w.mT[features].contiguous() for w in (of_value, of_mask))

    def entropies(self, samples: slice, rows: slice, offers: slice) -> Tensor:
        """See the base."""
        shown = self.shown[samples, rows, offers, None]
        start = self.before[rows, None] + self.of_mask[offers]  # (batch, offers, width)
        hidden = torch.addcmul(start, shown, self.of_value[offers])
        features = self.net.after_first(hidden.flatten(0, 2))
        return _entropies(self.head, features, shown).view(shown.shape[:3])


def _entropies(head: nn.Module, features: Tensor, like: Tensor) -> Tensor:
    if isinstance(head, GaussianHead):
        return head.entropy(features)
    return entropy(head(features), like)
