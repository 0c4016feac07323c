"""The partial encoder that fits a VAE: built by shapes, and set to the units of rows and z."""

import copy
import math
from typing import Any, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.encoded_rows import Targets
from postmatch.nets.columns import ColumnFeatures
from postmatch.nets.hierarchical import LevelEncoder
from postmatch.nets.mlp import ResidualMLP
from postmatch.partial import FeatureEncoder, PartialEncoder
from postmatch.partial_fields import StandardisedEncoder
from postmatch.partial_hierarchy import HierarchicalEncoder
from postmatch.partial_shapes import PartialSizes, Shapes, head_of, partial_encoder
from postmatch.vaes.base import VAE
from postmatch.vaes.hierarchical import HierarchicalVAE
from postmatch.vaes.table import TableVAE

_PLACED_ROWS = 4_096  # by which units are told
_AT_ONCE = 256
_MIN_SPREAD = 1e-6


@final
class AttachedEncoder(PartialEncoder):
    """A partial encoder that was made for a VAE, with what it takes to make it again.

    Args:
        encoder: The encoder itself.
        shapes: Of the VAE's rows and z.
        sizes: Of the encoder's networks.
        facts: How it was trained, and how well.
    """

    def __init__(
        self, encoder: PartialEncoder, shapes: Shapes, sizes: PartialSizes, facts: dict[str, Any]
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.shapes, self.sizes, self.facts = shapes, sizes, facts

    def forward(self, x: Tensor, observed: Tensor) -> Distribution:
        """Return the encoder's distribution."""
        distribution: Distribution = self.encoder(x, observed)
        return distribution


def encoder_for(vae: VAE, shapes: Shapes, sizes: PartialSizes) -> PartialEncoder:
    """Return an untrained partial encoder for a VAE, its units not yet set."""
    if isinstance(vae, HierarchicalVAE):
        own = LevelEncoder(vae.encoder.layout, vae.channels + 1)
        return HierarchicalEncoder(vae.top, own)
    x_shape = (shapes.features[0], 1, 1) if shapes.pixels else shapes.features
    z_shape = shapes.levels[0]
    if len(shapes.levels) > 1:
        z_shape = (sum(math.prod(level) for level in shapes.levels),)
    return StandardisedEncoder(
        _table_encoder(vae, z_shape, sizes) or partial_encoder(shapes, sizes),
        (torch.zeros(x_shape), torch.ones(x_shape)),
        None if shapes.num_codes else (torch.zeros(z_shape), torch.ones(z_shape)),
    )


def _table_encoder(
    vae: VAE, z_shape: tuple[int, ...], sizes: PartialSizes
) -> FeatureEncoder | None:
    """Return an encoder that reads a table's columns as its VAE does; None if it is no table."""
    if not isinstance(vae, TableVAE) or not isinstance(vae.encoder, FeatureEncoder):
        return None
    features = copy.deepcopy(vae.encoder.features)
    if not isinstance(features, ColumnFeatures):
        return None
    net = ResidualMLP(features.num_features, sizes.width, sizes.num_blocks)
    return FeatureEncoder(features, net, head_of(z_shape, 0, sizes, sizes.width, 0))


@torch.no_grad()
def set_units(partial: AttachedEncoder, targets: Targets) -> None:
    """Set the units of rows and of z to those of some of the rows."""
    encoder, rows = partial.encoder, targets.rows
    if not isinstance(encoder, StandardisedEncoder):
        return
    if not isinstance(encoder.encoder, FeatureEncoder):  # which knows the units of columns
        some = rows.part(torch.arange(min(_PLACED_ROWS, len(rows.x)), device=rows.x.device))
        _set(encoder.x_shift, encoder.x_scale, some.x, some.available)
    if encoder.z_shift is not None and encoder.z_scale is not None:
        set_units_of(targets, encoder.z_shift, encoder.z_scale)


@torch.no_grad()
def set_units_of(targets: Targets, shift: Tensor, scale: Tensor) -> None:
    """Set shift and scale to mean and standard deviation of z of some of the rows."""
    device = targets.rows.x.device
    generator = torch.Generator(device).manual_seed(0)
    index = torch.arange(min(_PLACED_ROWS, len(targets.rows.x)), device=device)
    z = [targets.draws(part, generator) for part in torch.split(index, _AT_ONCE)]
    _set(shift, scale, torch.cat(z).to(shift.dtype))


def _set(shift: Tensor, scale: Tensor, values: Tensor, seen: Tensor | None = None) -> None:
    """Set shift and scale to mean and standard deviation of what is seen of values.

    Args:
        shift: Changed in place; its axes of length 1 are averaged over.
        scale: Likewise; 1 where nothing varies.
        values: ``(rows, *shape)``.
        seen: Which of them count; None for all.
    """
    weight = torch.ones_like(values) if seen is None else seen.expand_as(values).to(values.dtype)
    size = (1, *shift.shape)
    count = weight.sum_to_size(size).clamp_min(1.0)
    mean = (weight * values).sum_to_size(size) / count
    square = (weight * (values - mean).square()).sum_to_size(size) / count
    shift.copy_(mean[0])
    scale.copy_(torch.where(square > _MIN_SPREAD**2, square.sqrt(), 1.0)[0])
