"""A VAE with its partial encoder, and the answers it gives."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from postmatch.distributions.noise import (
    choose_component,
    draw_scored,
    from_noise,
    noise_size,
    quasi_uniform,
)
from postmatch.distributions.shared import shared_draws, shared_parts
from postmatch.distributions.stratified import StratifiedMixture
from postmatch.doors import check_asked, check_scored
from postmatch.importance import effective_size, in_parts, pareto_k
from postmatch.objectives import elbo
from postmatch.partial import PartialEncoder
from postmatch.randomness import seeded
from postmatch.streams import Branch
from postmatch.vaes.base import (
    VAE,
    log_likelihood,
    log_likelihood_of_each,
    log_weights,
    over_features,
)


@final
class MatchedVAE(nn.Module):
    r"""A VAE and the partial encoder that was matched to it.

    Args:
        vae: Any VAE.
        partial: :math:`q_\theta(z \mid x_o)`.
    """

    def __init__(self, vae: VAE, partial: PartialEncoder) -> None:
        super().__init__()
        self.vae, self.partial = vae, partial

    def given(self, x: Tensor, observed: Tensor) -> "Conditional":
        """Return the distribution of what is hidden, given what is observed.

        Args:
            x: ``(batch, *features)``; hidden entries may hold anything, NaN included.
            observed: Which features are seen, bool, of the shape of the decoder's ``log_prob``.

        Raises:
            TypeError: If one of them is no tensor.
            ValueError: If one of them cannot be meant.
        """
        check_asked(self.vae, x, observed)
        return Conditional(self.vae, self.partial, x, observed)

    def losses(
        self,
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
        """Return the mean training losses of the two parts, ``vae`` and ``match``.

        Args:
            x: A batch of rows.
            available: What the rows really hold; None means everything.
            observed: What the partial encoder may see; what is not available is hidden anyway.
            beta: Weight of the VAE's KL term.
            train_vae: Train the VAE too; otherwise only the match is returned. Freeze a pretrained
                VAE with ``requires_grad_(False)``, or weight decay will change it all the same.
            train_target: Let the match reach the VAE's encoder.
            num_samples: Draws of z per row in the match.
            generator: Of the noise; torch's global state otherwise.
        """
        each = self.vae.losses_with(
            self.partial,
            x,
            available,
            observed if available is None else observed & available,
            beta=beta,
            train_vae=train_vae,
            train_target=train_target,
            num_samples=num_samples,
            generator=generator,
        )
        return {name: loss.mean() for name, loss in each.items()}

    def bound_losses(
        self,
        x: Tensor,
        available: Tensor | None,
        observed: Tensor,
        *,
        beta: float | Tensor = 1.0,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        r"""Return mean losses that train the VAE, too, to be asked conditional questions.

        Beside the VAE's negative ELBO, ``vae``, stands a bound on what :meth:`Conditional.sample`
        draws from, ``conditional``: an ELBO of the hidden part, whose prior is
        :math:`q_\theta(z \mid x_o)`.

        .. math:: -\log p_\phi(x_u \mid z) + \beta \left[ \log q_\psi(z \mid x)
            - \log q_\theta(z \mid x_o) \right], \qquad z \sim q_\psi(z \mid x)

        In θ its gradient is that of the match (theorem 3.1). Encoder and decoder learn to be
        matched; the encoder's entropy, which a match with ``train_target`` leaves out, keeps z from
        shrinking to a point, whose density is high for nothing. Arguments are those of
        :meth:`losses`; the VAE must be one that is trained by its ELBO.
        """
        if available is not None:
            observed = observed & available
        branch = Branch(x.device)
        with branch.beside(x, observed):
            approx = self.partial(x, observed)
        posterior = self.vae.encode(x, available)
        z, log_z = draw_scored(posterior, generator)
        with branch.beside(z):
            log_approx = approx.log_prob(z)
        log_each = log_likelihood_of_each(self.vae.decode(z), x, available)
        log_x, log_hidden = (
            over_features(each, x) for each in (log_each, log_each.masked_fill(observed, 0.0))
        )
        whole = elbo(log_x, z, posterior, self.vae.prior(), beta=beta, log_posterior=log_z)
        part = log_hidden - beta * (log_z - branch.join(log_approx))
        return {"vae": -whole.mean(), "conditional": -part.mean()}


@final
@dataclass(frozen=True)
class RatioEstimate:
    """The paper's estimate of a conditional log-likelihood, with its signs of trouble."""

    value: Tensor
    effective_sample_size: Tensor
    """The smaller of the two estimates' effective sample sizes, per row."""
    pareto_k: Tensor
    """The larger of the two estimates' tail shapes; see :func:`~postmatch.importance.pareto_k`."""


@final
@dataclass(frozen=True)
class GapEstimate:
    """Rows drawn from a model, and bounds on their conditional log-likelihood."""

    x: Tensor
    below: Tensor
    above: Tensor

    @property
    def value(self) -> Tensor:
        """How far the bounds are apart, per row; not far below 0, since they share draws."""
        return self.above - self.below


@final
class Conditional:
    r"""The distribution :math:`p(x_u \mid x_o)` of a batch of partly observed rows."""

    def __init__(self, vae: VAE, partial: PartialEncoder, x: Tensor, observed: Tensor) -> None:
        self.vae = vae
        self.x, self.observed = x.masked_fill(~observed, 0.0), observed
        self.latent: Distribution = partial(x, observed)  # q(z | x_o), the only encoding

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What these answers take for granted that the VAE does not tell, such as a likelihood."""
        return self.vae.assumptions

    def __repr__(self) -> str:
        told = "".join(f"; assumes {each}" for each in self.assumptions)
        return f"Conditional({len(self.x)} rows of {tuple(self.x.shape[1:])}{told})"

    @torch.no_grad()
    def sample(self, num_samples: int) -> Tensor:
        """Draw completed rows, ``(samples, batch, *features)``, with observed values as given."""
        drawn = self.vae.decode(self.latent.sample(torch.Size([num_samples]))).sample()
        return torch.where(self.observed, self.x, drawn)

    @torch.no_grad()
    def sample_from(self, noise: Callable[[int], Tensor]) -> Tensor:
        """Draw completed rows as :meth:`sample` does, from the caller's own noise.

        Args:
            noise: From how many uniforms a draw needs to fresh ones, ``(samples, batch, number)``;
                asked first for z, then for the features.
        """
        decoded = self.vae.decode(_from_fresh(self.latent, noise))
        return torch.where(self.observed, self.x, _from_fresh(decoded, noise))

    @torch.no_grad()
    def marginals_from(
        self, noise: Callable[[int], Tensor], counts: Sequence[int]
    ) -> list[Distribution]:
        """Return the decoder's distributions at draws of z from the caller's noise, in parts.

        Args:
            noise: As in :meth:`sample_from`, asked for z.
            counts: How many draws each part has.
        """
        z = _from_fresh(self.latent, noise)
        return [self.vae.decode(part) for part in torch.split(z, list(counts))]

    @torch.no_grad()
    def draws(self, num_samples: int) -> Tensor:
        """Return the decoder's means for draws of z, ``(samples, batch, *features)``."""
        means = self.vae.decode(self.latent.sample(torch.Size([num_samples]))).mean
        return torch.where(self.observed, self.x, means)

    @torch.no_grad()
    def impute(self, num_samples: int = 32, seed: int = 0) -> Tensor:
        """Return the best completed rows, ``(batch, *features)``: means, or most probable levels.

        All rows share one set of quasi-random noise, so neither the order nor the company of rows
        changes the answer, and few samples do the work of many.
        """
        decoded = self.marginals(num_samples, seed)
        return torch.where(self.observed, self.x, self.vae.point(decoded))

    @torch.no_grad()
    def quantiles(self, levels: Sequence[float], num_samples: int = 256, seed: int = 0) -> Tensor:
        """Return quantiles of each feature's own conditional, ``(levels, batch, *features)``.

        Rows share their noise, as in :meth:`impute`.
        """
        if not all(0.0 <= level <= 1.0 for level in levels):
            raise ValueError(f"levels must lie in [0, 1], got {list(levels)}")
        x = self.shared_samples(num_samples, seed)
        at = torch.tensor(list(levels), device=x.device, dtype=x.dtype)
        if not x.numel():  # of which torch knows no quantiles
            return x.new_empty(len(at), *self.x.shape)
        return torch.where(self.observed, self.x, torch.quantile(x, at, dim=0))

    @torch.no_grad()
    def shared_samples(self, num_samples: int, seed: int = 0) -> Tensor:
        """Draw as :meth:`sample` does, but all rows share one set of quasi-random noise."""
        decoded = self.marginals(num_samples, seed)
        first, more = noise_size(self.latent), noise_size(decoded)
        if first is None or more is None:
            with seeded(seed + 1):  # not the noise that z has got
                x = decoded.sample()
        else:
            # Asking for more axes of the same noise changes none of the first ones, which z has.
            uniform = quasi_uniform(num_samples, first + more, seed, self.x.device)
            x = from_noise(decoded, uniform[..., first:])
        return torch.where(self.observed, self.x, x)

    @torch.no_grad()
    def marginals(self, num_samples: int = 32, seed: int = 0) -> Distribution:
        """Return the decoder's distributions at shared draws of z, ``(samples, batch, ...)``.

        Their average over samples is each feature's own conditional distribution. A latent without
        ``from_noise`` draws independent noise from torch's global state, seeded for that moment;
        with one, nothing global is touched and threads may ask at once.
        """
        return self.vae.decode(shared_draws(self.latent, num_samples, seed, self.x))

    @torch.no_grad()
    def log_prob(
        self,
        x: Tensor,
        available: Tensor | None = None,
        num_samples: int = 100,
        seed: int | None = None,
        at_once: int = 0,
    ) -> Tensor:
        r"""Bound :math:`\log p_{\theta\phi}(x_u \mid x_o)` from below, the density of ``sample``.

        .. math:: \log \frac1K \sum_k \frac{p(x_u \mid z_k)\, q_\theta(z_k \mid x_o)}{r(z_k)},
            \qquad z_k \sim r = \tfrac12 q_\psi(z \mid x) + \tfrac12 q_\theta(z \mid x_o)

        Args:
            x: Rows whose hidden part is scored, ``(batch, *features)``.
            available: Which cells of ``x`` are real; hidden cells that are not are left out.
            num_samples: K, an even number.
            seed: Of noise that all rows share, as in :meth:`impute`; None for independent draws.
            at_once: How many draws are decoded together, an even number; 0 for all, or, with a
                seed, for at most 1,024. With a seed it changes no more than rounding.
        """
        check_scored(x, self.x)
        if not len(x):  # which torch's normal distributions of several variables fail at
            return x.new_empty(0)
        hidden = ~self.observed if available is None else ~self.observed & available
        proposal = self._proposal(x, available)
        draws: Iterable[Tensor]
        if seed is None:
            counts = in_parts(num_samples, at_once, multiple=2)
            draws = (proposal.sample(torch.Size([count])) for count in counts)
        else:
            draws = shared_parts(proposal, num_samples, seed, x, at_once)
        found = [self._log_weights(x, hidden, proposal, z) for z in draws]
        return torch.cat(found).logsumexp(0) - math.log(num_samples)

    @torch.no_grad()
    def log_prob_gap(self, num_samples: int = 100, at_once: int = 0) -> GapEstimate:
        r"""Tell how loose :meth:`log_prob` is, by a bound from above beside it.

        The rows scored are draws of this very model, :math:`z^* \sim q_\theta(z \mid x_o)` and
        :math:`x_u \sim p(x_u \mid z^*)`, so that :math:`z^*` is an exact posterior draw. In the
        place of one of the K draws, of a part of r that is chosen in proportion to its density
        there, it turns the bound from below into one from above (Grosse et al., 2015). On average
        the truth lies between them.
        """
        drawn = self.latent.sample(torch.Size([1]))
        x = torch.where(self.observed, self.x, self.vae.decode(drawn).sample()[0])
        proposal, counts = self._proposal(x, None), in_parts(num_samples, at_once, multiple=2)
        draws = (proposal.sample(torch.Size([count])) for count in counts)
        log_weight = torch.cat([self._log_weights(x, ~self.observed, proposal, z) for z in draws])
        exact = self._log_weights(x, ~self.observed, proposal, drawn)[0]
        log_parts = torch.stack([part.log_prob(drawn)[0] for part in proposal.parts], dim=-1)
        uniform = torch.rand(len(x), device=x.device, dtype=log_parts.dtype)
        part = choose_component(log_parts, uniform, dim=-1)
        place = part * proposal.samples_of_each(counts[0])
        replaced = log_weight.index_put((place, torch.arange(len(x), device=x.device)), exact)
        below, above = (w.logsumexp(0) - math.log(num_samples) for w in (log_weight, replaced))
        return GapEstimate(x, below, above)

    @torch.no_grad()
    def log_prob_ratio(
        self,
        x: Tensor,
        available: Tensor | None = None,
        num_samples: int = 100,
        at_once: int = 0,
    ) -> RatioEstimate:
        r"""Estimate :math:`\log p_\phi(x) - \log p_\phi(x_o)` as in the paper (appendix B).

        It is no bound: a poor :math:`q_\theta` lowers the second term and so raises the result.
        """
        check_scored(x, self.x)
        everything = torch.ones_like(self.observed)
        known = everything if available is None else self.observed | available
        x = torch.where(self.observed, self.x, x)
        asked = ((self._encode(x, available), known), (self.latent, self.observed))
        whole, part = (
            log_weights(self.vae, r, x, counted, num_samples, at_once) for r, counted in asked
        )
        value = whole.logsumexp(0) - part.logsumexp(0)
        return RatioEstimate(
            value,
            torch.minimum(effective_size(whole), effective_size(part)),
            torch.maximum(pareto_k(whole), pareto_k(part)),
        )

    def _proposal(self, x: Tensor, available: Tensor | None) -> StratifiedMixture:
        """Return r, which knows the hidden part of x as well."""
        return StratifiedMixture([self._encode(x, available), self.latent])

    def _log_weights(self, x: Tensor, hidden: Tensor, proposal: Distribution, z: Tensor) -> Tensor:
        """Return weights of draws of r for the hidden features, ``(samples, batch)``."""
        log_x = log_likelihood(self.vae.decode(z), x, hidden)
        return log_x + self.latent.log_prob(z) - proposal.log_prob(z)

    def _encode(self, x: Tensor, available: Tensor | None) -> Distribution:
        if available is None:
            return self.vae.encode(torch.where(self.observed, self.x, x))
        known = self.observed | available
        return self.vae.encode(torch.where(self.observed, self.x, x), known)


def _from_fresh(distribution: Distribution, noise: Callable[[int], Tensor]) -> Tensor:
    size = noise_size(distribution)
    if size is None:
        raise TypeError(f"{type(distribution).__name__} has no from_noise; register one for it")
    return from_noise(distribution, noise(size))
