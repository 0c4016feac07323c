"""Partial encoders for any VAE, by the shapes of its rows and of its z."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from postmatch.distributions.autoregressive import mixture_net
from postmatch.distributions.reshaped import EndToEnd
from postmatch.nets.image_features import ImageFeatures, VectorOf
from postmatch.nets.mlp import ResidualMLP, WithInput
from postmatch.nets.pixelcnn import PixelCNN
from postmatch.partial import AutoregressiveHead, MaskedEncoder
from postmatch.partial_codes import CodeGridHead
from postmatch.partial_fields import FieldHead, LadderHead
from postmatch.vaes.base import VAE
from postmatch.vaes.vq import VQVAE

_SMALLEST_GRID = 4  # side of the map that a vector is made of
_MAP_AXES, _GRID_AXES = 3, 2


@final
@dataclass(frozen=True)
class Shapes:
    """What a partial encoder must know of a VAE.

    Args:
        features: Shape of a row.
        pixels: Whether a feature is a pixel with all of its channels.
        levels: Shapes of the levels of z, mostly one.
        num_codes: How many codes there are if z is a grid of them; 0 for numbers.
    """

    features: tuple[int, ...]
    pixels: bool
    levels: tuple[tuple[int, ...], ...]
    num_codes: int = 0


@final
@dataclass(frozen=True)
class PartialSizes:
    """How large the networks of a partial encoder are.

    Args:
        width: Hidden units of the encoder of rows; of images, the length of their summary.
        num_blocks: Its residual blocks; of images, those at each size.
        channels: Of the convolutions of images.
        components: Mixture components of each number of z.
        head_width: Hidden units of the network over a vector z.
        head_blocks: Its residual blocks.
        grid_width: Channels of the network over a map or a grid of codes.
        grid_blocks: Its blocks.
    """

    width: int = 256
    num_blocks: int = 2
    channels: int = 64
    components: int = 8
    head_width: int = 256
    head_blocks: int = 2
    grid_width: int = 64
    grid_blocks: int = 5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def shapes_of(vae: VAE, x: Tensor, available: Tensor | None = None) -> Shapes:
    """Return what a partial encoder must know of a VAE, from its answers to complete rows.

    Raises:
        TypeError: If it returns what is no distribution.
        ValueError: If its shapes do not fit, or its answers are not finite.
    """
    posterior = vae.encode(x, available)
    _check_distribution(posterior, "encode")
    if posterior.batch_shape != x.shape[:1]:
        came = tuple(posterior.batch_shape)
        raise ValueError(f"encode must tell of each of {len(x)} rows, got batch shape {came}")
    z = posterior.sample(torch.Size([1]))
    decoded = vae.decode(z)
    _check_distribution(decoded, "decode")
    log_each = decoded.log_prob(x)
    pixels = x.dim() > 2 and log_each.shape[1:] == (len(x), 1, *x.shape[2:])
    if log_each.shape[1:] != x.shape and not pixels:
        raise ValueError(
            f"decode must have one log_prob for each feature of {tuple(x.shape)}, got shape "
            f"{tuple(log_each.shape[1:])}"
        )
    for name, value in (("encode", z), ("decode", log_each)):
        if not value.isfinite().all():
            raise ValueError(f"{name} must tell finite numbers of the data, got NaN or infinite")
    features, latent = tuple(x.shape[1:]), tuple(z.shape[2:])
    if not z.is_floating_point():
        if len(latent) != _GRID_AXES:
            raise ValueError(f"codes must be a grid, (height, width), got shape {latent}")
        return Shapes(features, pixels, (latent,), num_codes_of(vae))
    if isinstance(posterior, EndToEnd):
        return Shapes(features, pixels, tuple(tuple(shape) for shape in posterior.shapes))
    return Shapes(features, pixels, (latent,))


def num_codes_of(vae: VAE) -> int:
    """Return how many codes there are, by the support of the prior.

    Raises:
        ValueError: If it does not tell.
    """
    if isinstance(vae, VQVAE):  # which may not have a prior yet
        return len(vae.codebook.vectors)
    prior = vae.prior()
    support = prior.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if not isinstance(support, constraints.integer_interval):
        raise ValueError(
            f"the prior of a grid of codes must tell how many there are by its support, got "
            f"{type(prior).__name__} with {support}"
        )
    return int(support.upper_bound) + 1


def _check_distribution(told: object, name: str) -> None:
    if not isinstance(told, Distribution):
        raise TypeError(f"{name} must return a Distribution, got {type(told).__name__}")


def partial_encoder(shapes: Shapes, sizes: PartialSizes) -> MaskedEncoder:
    """Return an untrained partial encoder of rows and z in standard units.

    A vector z is an autoregressive mixture; a map, an autoregressive one along its positions; a
    grid of codes, a PixelCNN; of several levels, each is one of the first two given those before
    it. Other shapes of z are taken for vectors.
    """
    image = len(shapes.features) == _MAP_AXES
    alone = len(shapes.levels) == 1
    latent = shapes.levels[0]
    of_grid = alone and (shapes.num_codes > 0 or len(latent) == _MAP_AXES)
    spatial = sizes.channels if image and of_grid else 0  # channels of a map for the head
    context = sizes.width
    if image:
        rows, columns = shapes.features[1:]
        least = (min(_SMALLEST_GRID, rows), min(_SMALLEST_GRID, columns))
        grid = (latent[-2], latent[-1]) if of_grid else least
        channels = shapes.features[0] + (1 if shapes.pixels else shapes.features[0])
        features = ImageFeatures(
            channels, (rows, columns), grid, sizes.channels, sizes.num_blocks, sizes.width
        )
        net: nn.Module = features if spatial else VectorOf(features)
    else:
        count = 2 * math.prod(shapes.features)
        body = WithInput(ResidualMLP(count, sizes.width, sizes.num_blocks))
        net, context = nn.Sequential(nn.Flatten(), body), sizes.width + count
    if alone:
        return MaskedEncoder(net, head_of(latent, shapes.num_codes, sizes, context, spatial))
    return MaskedEncoder(net, _ladder(shapes.levels, sizes, context))


def _ladder(levels: Sequence[tuple[int, ...]], sizes: PartialSizes, context: int) -> LadderHead:
    before, contexts = 0, []
    for level in levels:
        contexts.append(ResidualMLP(context + before, sizes.width, 1))
        before += math.prod(level)
    heads = [head_of(level, 0, sizes, sizes.width, 0) for level in levels]
    return LadderHead(levels, contexts, heads)


def head_of(
    latent: tuple[int, ...], num_codes: int, sizes: PartialSizes, context: int, spatial: int
) -> nn.Module:
    """Return the head over a z of this shape, or over codes, given a vector and maybe a map."""
    width, components = sizes.head_width, sizes.components
    if num_codes == 0 and len(latent) != _MAP_AXES:
        size = math.prod(latent)
        net = mixture_net(size, components, max(width, size), sizes.head_blocks, context)
        return AutoregressiveHead(net)
    channels = latent[0] if num_codes == 0 else 0
    grid = PixelCNN(
        num_codes or sizes.grid_width,
        (latent[-2], latent[-1]),
        sizes.grid_width,
        sizes.grid_blocks,
        vector_size=context,
        map_channels=spatial,
        channels=channels,
    )
    if num_codes:
        return CodeGridHead(grid)
    within = max(sizes.grid_width, channels)
    told = sizes.grid_width + spatial
    return FieldHead(grid, mixture_net(channels, components, within, 1, told))
