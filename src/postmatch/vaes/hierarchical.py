"""The VAE of images with a hierarchy of latent images (Child, 2021)."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.distributions.discretised import DiscretisedLogistics, num_logistic_maps
from postmatch.distributions.hierarchy import Hierarchy, Trace, trace
from postmatch.nets.hierarchical import LevelEncoder, TopDown
from postmatch.nets.hierarchy_layout import HierarchyLayout
from postmatch.partial import PartialEncoder
from postmatch.partial_hierarchy import HierarchicalEncoder
from postmatch.streams import Branch
from postmatch.vaes.base import VAE, log_likelihood, require_complete, require_images


@final
class HierarchicalVAE(VAE):
    r"""Images of 256 levels, whose z is all latent images of a hierarchy in one vector.

    .. math:: p(x) = \int p(x \mid z) \prod_i p(z_i \mid z_{<i})\, dz, \qquad
        q_\psi(z \mid x) = \prod_i q_\psi(z_i \mid z_{<i}, x)

    Args:
        encoder: What each level is told of x.
        top: The generating network, whose own outputs are the prior.
        channels: Of the images, whose values are whole levels of 0 to 255 over 255.
    """

    def __init__(self, encoder: LevelEncoder, top: TopDown, channels: int) -> None:
        super().__init__()
        self.encoder, self.top, self.channels = encoder, top, channels
        self.image_shape = (channels, top.places[-1].size, top.places[-1].size)

    def prior(self) -> Hierarchy:
        """Return the distribution of z by the generating network alone."""
        return Hierarchy(self.top)

    def encode(self, x: Tensor, available: Tensor | None = None) -> Hierarchy:
        """Return q(z | x) of complete images."""
        require_complete(available)
        require_images(self.image_shape, x)
        image = (2.0 * x - 1.0).movedim(1, -1)
        return Hierarchy(self.top, self.encoder, self.encoder(image))

    def decode(self, z: Tensor) -> Distribution:
        """Return the distribution of each pixel."""
        rows = z.reshape(z.shape[:-1].numel(), z.shape[-1])
        latents = self.top.split(rows)
        outputs = self.top.outputs(self.top.descend(len(rows), lambda i, *_: latents[i]))
        return DiscretisedLogistics(outputs.view(*z.shape[:-1], *outputs.shape[1:]), self.channels)

    def loss(
        self,
        x: Tensor,
        available: Tensor | None = None,
        *,
        beta: float | Tensor = 1.0,
        posterior: Distribution | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the negative ELBO of each row, its divergences in closed form; see the base."""
        posterior = self.encode(x, available) if posterior is None else posterior
        assert isinstance(posterior, Hierarchy)
        return self._loss(trace(posterior, self._noise(x, generator)), x, beta)

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
        guess: Callable[[Hierarchy], Tensor] | None = None,
    ) -> dict[str, Tensor]:
        r"""Return :meth:`loss` of each row, ``vae``, and the match, from one pass down.

        .. math:: \sum_i \mathrm{KL}\left( q_\psi(z_i \mid z_{<i}, x)
            \,\|\, q_\theta(z_i \mid z_{<i}, x_o) \right), \qquad z \sim q_\psi(z \mid x)

        is ``match``, whose gradient reaches the partial encoder alone (paper, appendix D): it never
        trains the VAE, and one draw is all it takes. A loss of what else the partial posterior is
        asked, ``guess``, is returned by that name. See the base.
        """
        if not isinstance(partial, HierarchicalEncoder):
            raise TypeError(f"partial must be a HierarchicalEncoder, got {type(partial).__name__}")
        if train_target or num_samples != 1:
            raise ValueError("a hierarchy is matched without train_target, and from one draw")
        branch = Branch(x.device)
        with branch.beside(x, observed):
            approx = partial.hierarchy(x, observed)
            guessed = None if guess is None else guess(approx)
        with torch.set_grad_enabled(train_vae and torch.is_grad_enabled()):
            traced = trace(self.encode(x, available), self._noise(x, generator), approx, branch)
        with branch.beside():
            matched = torch.stack(traced.match).sum(0)
        losses = {"vae": self._loss(traced, x, beta)} if train_vae else {}
        losses["match"] = branch.join(matched)
        if guessed is not None:
            losses["guess"] = branch.join(guessed)
        return losses

    def _loss(self, traced: Trace, x: Tensor, beta: float | Tensor) -> Tensor:
        decoded = DiscretisedLogistics(self.top.outputs(traced.bottom), self.channels)
        return beta * torch.stack(traced.kl).sum(0) - log_likelihood(decoded, x)

    def _noise(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        return torch.randn(len(x), self.top.latent_size, generator=generator, device=x.device)


def hierarchical_vae(
    layout: HierarchyLayout, channels: int = 1, num_components: int = 10
) -> tuple[HierarchicalVAE, HierarchicalEncoder]:
    """Return an untrained VAE of images and a partial encoder for it."""
    top = TopDown(layout, num_logistic_maps(channels, num_components))
    vae = HierarchicalVAE(LevelEncoder(layout, channels), top, channels)
    return vae, HierarchicalEncoder(top, LevelEncoder(layout, channels + 1))
