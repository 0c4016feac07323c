"""How uncertain z is, now and after one more measurement."""

from typing import final

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.noise import from_noise, noise_size, quasi_uniform
from postmatch.nets.mlp import LinearFirst
from postmatch.offers import Offers
from postmatch.partial import MaskedEncoder
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
    count, at_once = len(offers.reveals), at_once or (_ON_GPU if seen.is_cuda else _ON_CPU)
    total, rows = samples * batch * count, _Rows(model, seen, observed, offers)
    found = seen.new_empty(total)
    for start in range(0, total, at_once):
        row = torch.arange(start, min(start + at_once, total), device=seen.device)
        latent = rows.encoded(row // count, row % count)
        found[start : start + len(row)] = entropy(latent, seen)
    return found.view(samples, batch, count)


def _two_valued(seen: Tensor, observed: Tensor, offers: Offers) -> bool:
    """Return whether each offer shows one number, and that is always 0 or 1."""
    if not offers.single or observed.shape[1:] != seen.shape[2:]:
        return False
    return bool(((seen == 0.0) | (seen == 1.0) | observed).all())


@final
class _Rows:
    """Rows with one more offer shown: each draw with each offer, encoded on demand."""

    def __init__(self, model: MatchedVAE, seen: Tensor, observed: Tensor, offers: Offers) -> None:
        self.model, self.offers, self.batch = model, offers, len(observed)
        self.x, self.observed = seen.flatten(0, 1), observed
        # Where each offer is one number, only two numbers of what a network reads change with it.
        partial, features = model.partial, offers.features
        single = features is not None and observed.shape[1:] == seen.shape[2:]
        self.features = None if features is None else features.to(seen.device)
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
        assert self.features is not None
        inputs, size, offer = self.before[row], self.x[0].numel(), self.features[offer]
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
