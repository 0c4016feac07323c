"""The contract that every VAE fulfils."""

import abc
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from postmatch.distributions.noise import draw_scored
from postmatch.importance import in_parts
from postmatch.objectives import draws_to_match, elbo
from postmatch.partial import PartialEncoder
from postmatch.streams import Branch

Latent = Any  # a vector, a grid of codes, a tuple of levels: nobody but its VAE looks inside


class VAE(nn.Module, abc.ABC):
    r"""A latent variable model :math:`p(x) = \int p_\phi(x \mid z)\, p(z)\, dz` with an encoder."""

    assumptions: tuple[str, ...] = ()
    """What is taken for granted on behalf of a model that does not tell it; empty if it does."""
    image_shape: tuple[int, ...] | None = None
    """Channels, height and width where rows are images of one size, whose features are pixels."""

    @abc.abstractmethod
    def prior(self) -> Distribution:
        r"""Return :math:`p(z)`."""

    @abc.abstractmethod
    def encode(self, x: Tensor, available: Tensor | None = None) -> Distribution:
        r"""Return :math:`q_\psi(z \mid x)` given what is available of x, batch shape ``(batch,)``.

        Raises:
            ValueError: If the model needs complete rows and ``available`` has holes.
        """

    @abc.abstractmethod
    def decode(self, z: Latent) -> Distribution:
        r"""Return :math:`p_\phi(x \mid z)`; its ``log_prob`` has one value per feature.

        Where a value is unknown, ``log_prob`` is asked at zero and its answer dropped, so it must
        be finite there.
        """

    def point(self, decoded: Distribution) -> Tensor:
        """Return the best single value of each feature, averaged over samples, the first axis."""
        return decoded.mean.mean(0)

    def loss(
        self,
        x: Tensor,
        available: Tensor | None = None,
        *,
        beta: float | Tensor = 1.0,
        posterior: Distribution | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        r"""Return this model's own training loss of each row: by default the negative ELBO.

        Args:
            x: A batch of rows; entries that are not available may hold anything.
            available: What the rows really hold, like ``observed``; None means everything.
            beta: Weight of the KL term.
            posterior: ``self.encode(x, available)``, if the caller has it already.
            generator: Of the noise; torch's global state otherwise.
        """
        posterior = self.encode(x, available) if posterior is None else posterior
        z, log_z = draw_scored(posterior, generator)
        log_x = log_likelihood(self.decode(z), x, available)
        return -elbo(log_x, z, posterior, self.prior(), beta=beta, log_posterior=log_z)

    def losses_with(
        self,
        partial: PartialEncoder,
        x: Tensor,
        available: Tensor | None,
        observed: Tensor,
        *,
        beta: float | Tensor = 1.0,
        train_vae: bool = True,
        train_target: bool = False,
        num_samples: int = 1,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Return :meth:`loss` of each row, ``vae``, and that of the match beside it, ``match``.

        A model overrides it that can have both from one pass. Arguments are those of
        :meth:`MatchedVAE.losses <postmatch.conditioning.MatchedVAE.losses>`, but ``observed`` holds
        nothing that is not available.
        """
        branch = Branch(x.device)
        with branch.beside(x, observed):
            approx = partial(x, observed)
        with torch.set_grad_enabled(train_vae and torch.is_grad_enabled()):
            target = self.encode(x, available)
        z = draws_to_match(target, num_samples, generator, train_target=train_target)
        with branch.beside(z):
            matched = self.match_at(approx, z).mean(0)
        if not train_vae:
            return {"match": branch.join(matched)}
        loss = self.loss(x, available, beta=beta, posterior=target, generator=generator)
        return {"vae": loss, "match": branch.join(matched)}

    def match_at(self, approx: Distribution, z: Tensor) -> Tensor:
        r"""Return what the match costs at draws of z, :math:`-\log q_\theta(z \mid x_o)`.

        A model overrides it whose latent is more than z.
        """
        return -approx.log_prob(z)

    @torch.no_grad()
    def log_evidence(
        self,
        x: Tensor,
        available: Tensor | None = None,
        num_samples: int = 100,
        at_once: int = 0,
    ) -> Tensor:
        r"""Bound :math:`\log p_\phi(x)` from below by draws of the posterior (Burda et al., 2016).

        .. math:: \log \frac1K \sum_k \frac{p(x \mid z_k)\, p(z_k)}{q_\psi(z_k \mid x)},
            \qquad z_k \sim q_\psi(z \mid x)

        Args:
            x: Rows, ``(batch, *features)``.
            available: Which of their cells are real; None for all.
            num_samples: K.
            at_once: How many of them are in memory together; 0 for all.
        """
        posterior = self.encode(x, available)
        log_weight = log_weights(self, posterior, x, available, num_samples, at_once)
        return log_weight.logsumexp(0) - math.log(num_samples)


def log_weights(
    vae: VAE,
    proposal: Distribution,
    x: Tensor,
    counted: Tensor | None,
    num_samples: int,
    at_once: int = 0,
) -> Tensor:
    """Return weights for the evidence of the counted features, ``(samples, batch)``.

    Args:
        vae: Whose evidence.
        proposal: What z is drawn from.
        x: ``(batch, *features)``.
        counted: Which features count; None means all.
        num_samples: How many weights there are for each row.
        at_once: How many draws are in memory together; 0 for all.
    """
    found = []
    for count in in_parts(num_samples, at_once):
        z = proposal.sample(torch.Size([count]))
        log_x = log_likelihood(vae.decode(z), x, counted)
        found.append(log_x + vae.prior().log_prob(z) - proposal.log_prob(z))
    return torch.cat(found)


def log_likelihood(decoded: Distribution, x: Tensor, counted: Tensor | None = None) -> Tensor:
    r"""Return :math:`\sum_i \log p(x_i \mid z)` over the counted features, ``(..., batch)``.

    Args:
        decoded: :math:`p(x \mid z)` with one value per feature; samples lead.
        x: ``(batch, *features)``; entries that do not count may hold anything.
        counted: Which features count, bool; None means all.
    """
    return over_features(log_likelihood_of_each(decoded, x, counted), x)


def log_likelihood_of_each(
    decoded: Distribution, x: Tensor, counted: Tensor | None = None
) -> Tensor:
    r"""Return :math:`\log p(x_i \mid z)`, 0 where a feature does not count; see above."""
    if counted is None:
        return decoded.log_prob(x)
    return decoded.log_prob(x.masked_fill(~counted, 0.0)).masked_fill(~counted, 0.0)


def over_features(log_each: Tensor, x: Tensor) -> Tensor:
    """Return the sum over the features of rows ``x``, ``(..., batch)``."""
    return log_each.flatten(log_each.dim() - x.dim() + 1).sum(-1)


def or_everything(available: Tensor | None, x: Tensor) -> Tensor:
    """Return what is available of x; if that is not said, all of it."""
    return torch.ones_like(x, dtype=torch.bool) if available is None else available


def require_images(shape: tuple[int, ...] | None, x: Tensor) -> None:
    """Raise unless rows are images of this shape, if one is told."""
    if shape is not None and x.shape[1:] != shape:
        raise ValueError(f"x must be (batch, {', '.join(map(str, shape))}), got {tuple(x.shape)}")


def require_complete(available: Tensor | None) -> None:
    """Raise for rows with holes, on behalf of a VAE whose encoder cannot take them."""
    if available is not None and not bool(torch.all(available)):
        raise ValueError("available must be all True: this VAE's encoder needs complete rows")
