"""Latent images of a hierarchy, laid end to end in one vector."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from postmatch.distributions.gaussian import Gaussian
from postmatch.distributions.levels import compared, level_gaussian
from postmatch.distributions.noise import from_noise, noise_size, standard_normal
from postmatch.nets.hierarchical import Bottom, LevelEncoder, TopDown
from postmatch.streams import Branch


@final
class Hierarchy(Distribution):
    r"""Vectors of all levels' latent images, each Gaussian given those above it.

    .. math:: p(z) = \prod_i N(z_i; m_i, s_i^2), \qquad m_i, s_i = f_i(z_{<i}, e_i)

    The state that f reads is the same for prior, posterior and partial posterior: that of the
    generating network. Samples are rows of one batch for it, while evidence e stays as it is.

    Args:
        top: The generating network.
        encoder: Whose heads read the evidence; None for the prior, which the network itself tells.
        evidence: For each level, ``(batch, size, size, bottleneck)``.
        borrowed: Whether the network belongs to another model: no gradient then reaches it, nor
            passes through it, which leaves none to draws.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector

    def __init__(
        self,
        top: TopDown,
        encoder: LevelEncoder | None = None,
        evidence: Sequence[Tensor] = (),
        *,
        borrowed: bool = False,
    ) -> None:
        self.top, self.encoder, self.evidence = top, encoder, tuple(evidence)
        self.borrowed, self.has_rsample = borrowed, not borrowed
        batch_shape = self.evidence[0].shape[:1] if self.evidence else torch.Size()
        super().__init__(batch_shape, torch.Size([top.latent_size]), validate_args=False)

    def level(self, i: int, features: Tensor, own: Tensor) -> Gaussian:
        """Return the distribution of a latent image; see :meth:`TopDown.descend`."""
        return level_gaussian(own if self.encoder is None else self.outputs(i, features))

    def outputs(self, i: int, features: Tensor) -> Tensor:
        """Return its means and raw scales if there is evidence for them."""
        assert self.encoder is not None
        return self.encoder.outputs(i, features, self.evidence[i])

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each vector, from one pass down."""
        shape = self._leading(value)
        rows = value.expand(*shape, -1).reshape(shape.numel(), self.top.latent_size)
        latents = self.top.split(rows)
        log_levels: list[Tensor] = []
        wanted = torch.is_grad_enabled()

        def choose(i: int, features: Tensor, own: Tensor) -> Tensor:
            with torch.set_grad_enabled(wanted):
                log_each = self.level(i, features, own).log_prob(latents[i])
                log_levels.append(log_each.flatten(1).sum(1))
            return latents[i]

        with torch.set_grad_enabled(wanted and not self.borrowed):
            self.top.descend(len(rows), choose)
        return torch.stack(log_levels).sum(0).view(shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors, ``(*sample_shape, *batch, latent_size)``."""
        with torch.no_grad():
            return self.from_normal(self._noise(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors with a gradient."""
        if self.borrowed:
            raise NotImplementedError("no gradient passes through a network that is borrowed")
        return self.from_normal(self._noise(sample_shape))

    def from_normal(self, noise: Tensor) -> Tensor:
        """Return draws as a function of standard normal noise, ``(..., batch or 1, size)``."""
        shape = self._leading(noise)
        rows = noise.expand(*shape, -1).reshape(shape.numel(), self.top.latent_size)
        noises = self.top.split(rows)
        drawn: list[Tensor] = []

        def choose(i: int, features: Tensor, own: Tensor) -> Tensor:
            level = self.level(i, features, own)
            drawn.append(torch.addcmul(level.loc, level.scale, noises[i]))
            return drawn[i]

        self.top.descend(len(rows), choose)
        return torch.cat([z.flatten(1) for z in drawn], dim=1).view(*shape, self.top.latent_size)

    def _leading(self, value: Tensor) -> torch.Size:
        """Return the axes before the last, of a value and the batch together."""
        shape: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            value.shape[:-1], self.batch_shape
        )
        return shape

    def _noise(self, sample_shape: Any) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        return torch.randn(shape, device=self.top.last.linear.weight.device)


class Trace(NamedTuple):
    """What one pass down at draws of the posterior tells."""

    bottom: Bottom
    kl: list[Tensor]
    """From posterior to prior, ``(rows,)`` for each level."""
    match: list[Tensor]
    """From posterior to partial posterior, likewise; empty without one, and made on the branch."""


def trace(
    posterior: Hierarchy,
    noise: Tensor,
    partial: Hierarchy | None = None,
    branch: Branch | None = None,
) -> Trace:
    r"""Go down once with a draw of the posterior, and compare it at each level on the way.

    .. math:: \mathrm{KL}\left( q_\psi(z_i \mid z_{<i}, x) \,\|\, p(z_i \mid z_{<i}) \right), \qquad
        \mathrm{KL}\left( q_\psi(z_i \mid z_{<i}, x) \,\|\, q_\theta(z_i \mid z_{<i}, x_o) \right)

    The second trains θ alone: neither the posterior nor the state gets a gradient from it.

    Args:
        posterior: :math:`q_\psi(z \mid x)`.
        noise: Standard normal, ``(rows, latent_size)``; rows are a multiple of the batch.
        partial: :math:`q_\theta(z \mid x_o)`.
        branch: Where it is compared, beside the way down, which does not wait for it.
    """
    branch = Branch(noise.device) if branch is None else branch
    noises = posterior.top.split(noise)
    kl: list[Tensor] = []
    match: list[Tensor] = []
    beside = Branch(noise.device)  # a level's posterior does not wait for its prior
    targets: list[Tensor] = []

    def ahead(i: int, features: Tensor) -> None:
        with beside.beside(features):
            targets.append(posterior.outputs(i, features))

    def choose(i: int, features: Tensor, own: Tensor) -> Tensor:
        target = beside.join(targets[i])
        divergence, z = compared(target, own, noises[i])
        kl.append(divergence)
        if partial is not None:
            used = [t.detach() for t in (features, target)]
            with torch.set_grad_enabled(partial.evidence[i].requires_grad), branch.beside(*used):
                approx = partial.outputs(i, used[0])
                match.append(compared(used[1], approx).kl)
        assert z is not None
        return z

    return Trace(posterior.top.descend(len(noise), choose, ahead), kl, match)


@noise_size.register
def _(distribution: Hierarchy) -> int | None:
    return distribution.top.latent_size


@from_noise.register
def _(distribution: Hierarchy, uniform: Tensor) -> Tensor:
    return distribution.from_normal(standard_normal(uniform))
