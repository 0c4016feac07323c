"""A prior that is learned for a VAE that is trained already."""

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from postmatch.attached_encoder import set_units_of
from postmatch.attaching import checked_shapes, checked_vae
from postmatch.distributions.affine import Affine
from postmatch.distributions.autoregressive import AutoregressiveMixture, mixture_net
from postmatch.distributions.codes import CodeGrid
from postmatch.distributions.fields import LatentField
from postmatch.encoded_rows import checked_rows, targets_of
from postmatch.nets.made import MaskedResidualNet
from postmatch.nets.pixelcnn import PixelCNN
from postmatch.partial_shapes import PartialSizes, Shapes
from postmatch.randomness import seeded
from postmatch.row_training import VALIDATIONS, facts_of, train_on_rows
from postmatch.training.plan import Losses, Plan, Progress
from postmatch.untouched import untouched
from postmatch.vaes.base import VAE
from postmatch.vaes.external import in_float32
from postmatch.vaes.hierarchical import HierarchicalVAE
from postmatch.vaes.with_prior import WithPrior

_MAP_AXES = 3


@final
class LearnedPrior(nn.Module):
    """An autoregressive distribution over z, which a call returns.

    Args:
        shapes: Of z: a vector, a map, a grid of codes; several levels are one vector.
        sizes: Of the networks.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shapes: Shapes, sizes: PartialSizes) -> None:
        super().__init__()
        self.facts: dict[str, Any] = {}
        latent = shapes.levels[0]
        if len(shapes.levels) > 1:
            latent = (sum(math.prod(level) for level in shapes.levels),)
        self.codes, self.grid = shapes.num_codes, None
        self.each: MaskedResidualNet | None = None
        if self.codes or len(latent) == _MAP_AXES:
            self.grid = PixelCNN(
                self.codes or sizes.grid_width,
                (latent[-2], latent[-1]),
                sizes.grid_width,
                sizes.grid_blocks,
                channels=0 if self.codes else latent[0],
            )
        if not self.codes:
            size = math.prod(latent) if self.grid is None else latent[0]
            width = max(size, sizes.head_width if self.grid is None else sizes.grid_width)
            told = 0 if self.grid is None else sizes.grid_width
            self.each = mixture_net(size, sizes.components, width, sizes.head_blocks, told)
        self.register_buffer("shift", torch.zeros(latent))
        self.register_buffer("scale", torch.ones(latent))

    def forward(self) -> Distribution:
        """Return p(z)."""
        if self.each is None:
            assert self.grid is not None
            return CodeGrid(self.grid)
        if self.grid is None:
            return Affine(AutoregressiveMixture(self.each), self.shift, self.scale)
        return Affine(LatentField(self.grid, self.each), self.shift, self.scale)


def fit_prior(
    vae: VAE,
    data: Tensor,
    *,
    available: Tensor | None = None,
    steps: int = 4_000,
    max_seconds: float = 0.0,
    batch_size: int = 256,
    learning_rate: float = 3e-3,
    sizes: PartialSizes | None = None,
    seed: int = 0,
    show: Callable[[Progress], None] | None = None,
) -> WithPrior:
    r"""Return a VAE with an autoregressive prior, fitted to the z of these rows.

    .. math:: \max_p\; \mathbb{E}_x \mathbb{E}_{z \sim q_\psi(z \mid x)} \log p(z)

    which raises the evidence lower bound by as much as it raises this, and makes unconditional
    draws of z like those that rows have. The VAE itself stays as it is; the result shares it.
    Arguments are those of :func:`~postmatch.attaching.attach`.

    Raises:
        TypeError: If ``vae`` is no VAE, or one whose z cannot have another prior.
        ValueError: If the data do not fit it.
    """
    asked = in_float32(checked_vae(vae))
    if isinstance(asked, HierarchicalVAE):
        raise TypeError("a HierarchicalVAE has a learned prior, which its decoder is made of")
    sizes = PartialSizes() if sizes is None else sizes
    with untouched(asked), seeded(seed), torch.inference_mode(False), torch.enable_grad():
        rows = checked_rows(asked, data, available, seed)
        learned = LearnedPrior(checked_shapes(asked, rows), sizes).to(rows.x.device)
        targets = targets_of(asked, rows)
        if not learned.codes:
            set_units_of(targets, learned.shift, learned.scale)

        def losses(index: Tensor, generator: torch.Generator) -> Losses:
            return {"prior": -learned().log_prob(targets.draws(index, generator)).mean()}

        plan = Plan(
            steps=steps,
            learning_rate=learning_rate,
            validate_every=max(1, steps // VALIDATIONS),
            max_seconds=max_seconds,
            precision="tf32",
        )
        named = {"batch_size": batch_size, "seed": seed, "label": "fitting the prior"}
        report = train_on_rows(learned, losses, rows, plan, show=show, **named)  # type: ignore[arg-type]
        learned.facts |= facts_of(report, rows, seed)
    result = WithPrior(asked, learned)
    result.training = False  # not eval(), which would reach the VAE
    return result
