"""Convolutional networks of a hierarchy of latent images: up from the image, and down again.

Tensors are ``(rows, height, width, channels)``, in which a 1x1 convolution is a linear layer and a
larger one finds its input as a GPU reads it. Of the tensors that are as wide as the network there
are few passes: whatever several layers read is computed once, and only narrow ones are joined.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.nets.convolution import Convolution
from postmatch.nets.fused import activated, forked, gelu, mapped
from postmatch.nets.hierarchy_layout import HierarchyLayout, Place
from postmatch.nets.linear import Linear


@final
class Outputs(nn.Module):
    """A linear layer that computes in float32, whatever came before it.

    What it returns are parameters of densities, which tell more values apart than bfloat16 can.
    """

    def __init__(self, in_size: int, out_size: int) -> None:
        super().__init__()
        self.linear = Linear(in_size, out_size)
        _initialise(self.linear)

    def forward(self, x: Tensor) -> Tensor:
        """Return the affine map of ``x``."""
        return mapped(self.linear, x)


@final
class Trunk(nn.Module):
    """From wide features, activated already, to the narrow ones inside a bottleneck."""

    def __init__(self, width: int, bottleneck: int, size: int) -> None:
        super().__init__()
        self.first = Linear(width, bottleneck)
        self.second, self.third = _inner(bottleneck, size), _inner(bottleneck, size)
        for layer in (self.first, self.second, self.third):
            _initialise(layer)

    def forward(self, features: Tensor, evidence: Tensor | None = None) -> Tensor:
        """Return ``(rows, height, width, bottleneck)``, activated.

        Args:
            features: ``(rows, height, width, width)``.
            evidence: What is added inside; rows are a multiple of those of the evidence.
        """
        hidden = activated(self.first, features, evidence)
        return activated(self.third, activated(self.second, hidden))


@final
class Bottleneck(nn.Module):
    """A residual block: wide states plus what comes out of a narrow network.

    Args:
        layout: Of the hierarchy.
        size: Height and width of its images.
        scale: Of its correction at the start.
    """

    def __init__(self, layout: HierarchyLayout, size: int, scale: float) -> None:
        super().__init__()
        self.trunk = Trunk(layout.width, layout.bottleneck, size)
        self.last = Linear(layout.bottleneck, layout.width)
        _initialise(self.last, scale)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` plus its correction."""
        features, x = forked(x)
        correction: Tensor = self.last(self.trunk(features))
        return x + correction


@final
class LevelEncoder(nn.Module):
    """From an image to what each level of a hierarchy is told of it, and how levels use that.

    Args:
        layout: Of the hierarchy.
        in_channels: Of the images.
    """

    tensors_only = True  # from tensors to tensors, so that it can be compiled

    def __init__(self, layout: HierarchyLayout, in_channels: int) -> None:
        super().__init__()
        self.layout = layout
        blocks, width, inner = layout.blocks, layout.width, layout.bottleneck
        self.shrinks = [block.shrink for block in blocks]
        self.sizes = [place.size for place in layout.places]
        self.bottleneck = inner
        self.first = Linear(9 * in_channels, width)
        _initialise(self.first)
        scale = math.sqrt(1.0 / len(blocks))
        self.blocks = nn.ModuleList(Bottleneck(layout, block.size, scale) for block in blocks)
        # All levels of one size read the same features: one layer serves them at once.
        levels = Counter(self.sizes)
        shares = {str(s): Linear(width, n * inner, bias=False) for s, n in levels.items()}
        self.shares = nn.ModuleDict(shares)
        trunks = [Trunk(width, inner, size) for size in self.sizes]
        heads = [Outputs(inner, 2 * layout.latent_channels) for _ in self.sizes]
        self.trunks, self.heads = nn.ModuleList(trunks), nn.ModuleList(heads)
        for layer in [*shares.values(), *(trunk.first for trunk in trunks)]:
            _initialise(layer, math.sqrt(0.5))  # two layers are summed

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return the evidence for each level, ``(batch, height, width, bottleneck)``.

        Args:
            image: ``(batch, height, width, in_channels)``.
        """
        state = self.first(_neighbourhoods(image.to(self.first.weight.dtype)))
        states: dict[int, Tensor] = {}
        for block, shrink in zip(self.blocks, self.shrinks, strict=True):
            state = block(state)
            states[state.shape[1]] = state  # the last of each size is what levels read
            if shrink > 1:
                state = _Shrunk.apply(state, shrink)  # type: ignore[no-untyped-call]
        # Levels of one size follow each other, smallest first, and so do sizes here.
        return tuple(
            part
            for size, share in self.shares.items()
            for part in torch.split(share(gelu(states[int(size)])), self.bottleneck, dim=-1)
        )

    def outputs(self, level: int, features: Tensor, evidence: Tensor) -> Tensor:
        """Return ``(rows, height, width, 2 * latent_channels)`` in float32.

        Args:
            level: Which.
            features: The state on the way down, activated, ``(rows, height, width, width)``.
            evidence: For this level; rows are a multiple of its own.
        """
        found: Tensor = self.heads[level](self.trunks[level](features, evidence))
        return found


@final
class Level(nn.Module):
    """A level on the way down: what it expects of its latent image, and what it makes of it.

    Args:
        layout: Of the hierarchy.
        size: Height and width of its images.
    """

    def __init__(self, layout: HierarchyLayout, size: int) -> None:
        super().__init__()
        width, inner, latent = layout.width, layout.bottleneck, layout.latent_channels
        scale = math.sqrt(1.0 / len(layout.places))
        self.trunk = Trunk(width, inner, size)
        self.own = Outputs(inner, 2 * latent)
        self.update = Linear(inner + latent, width)
        self.merge = Bottleneck(layout, size, scale)
        _initialise(self.update, scale * math.sqrt(1.0 + inner / latent))  # seen from z alone
        with torch.no_grad():  # before training, a level expects the same whatever came before it
            self.own.linear.weight.zero_()
            self.update.weight[:, :inner] = 0.0

    def forward(self, state: Tensor, hidden: Tensor, z: Tensor) -> Tensor:
        """Return the state after this level.

        Args:
            state: Before it, ``(rows, height, width, width)``.
            hidden: What the level's own trunk makes of it.
            z: The latent image.
        """
        # Two narrow tensors side by side cost less than two wide ones to add up.
        update = self.update(torch.cat([hidden, z.to(hidden.dtype)], dim=-1))
        merged: Tensor = self.merge(state + update)
        return merged


class Bottom(NamedTuple):
    """Where a pass down stands when its last latent image is chosen."""

    state: Tensor
    hidden: Tensor
    z: Tensor


Choice = Callable[[int, Tensor, Tensor], Tensor]
Ahead = Callable[[int, Tensor], None]


@final
class TopDown(nn.Module):
    """The generating half of a hierarchy: from latent images, smallest first, to an image.

    Args:
        layout: Of the hierarchy.
        num_outputs: Numbers returned for each pixel.
    """

    def __init__(self, layout: HierarchyLayout, num_outputs: int) -> None:
        super().__init__()
        self.places, self.latent_channels = layout.places, layout.latent_channels
        self.lengths = [p.size * p.size * layout.latent_channels for p in self.places]
        self.latent_size = sum(self.lengths)
        sizes = {place.size for place in self.places}
        starts = {str(s): nn.Parameter(torch.zeros(s, s, layout.width)) for s in sorted(sizes)}
        self.starts = nn.ParameterDict(starts)
        self.levels = nn.ModuleList(Level(layout, place.size) for place in self.places)
        self.last = Outputs(layout.width, num_outputs)

    def split(self, z: Tensor) -> list[Tensor]:
        """Return the latent images, ``(..., size, size, channels)``, in ``(..., latent_size)``."""
        shapes = [(place.size, place.size, self.latent_channels) for place in self.places]
        parts = zip(torch.split(z, self.lengths, dim=-1), shapes, strict=True)
        return [torch.unflatten(part, -1, shape) for part, shape in parts]

    def descend(self, rows: int, choose: Choice, ahead: Ahead | None = None) -> Bottom:
        """Go down the levels, whose latent images are ``choose(i, features, own)``.

        Args:
            rows: How many images.
            choose: From the number of a level, its state, activated, and its own outputs for each
                position, ``(rows, size, size, 2 * latent_channels)``, to its latent image.
            ahead: Told the number and the state before the level's own outputs are computed, for
                work that need not wait for them.
        """
        levels = [level for level in self.levels if isinstance(level, Level)]
        at: Bottom | None = None
        for i, (place, level) in enumerate(zip(self.places, levels, strict=True)):
            if at is None:
                state = self._start(place).expand(rows, -1, -1, -1)
            else:
                state = levels[i - 1](*at)
            if place.source is not None:
                state = (_grown(state, place.size) + self._start(place)).contiguous()
            features, state = forked(state)
            if ahead is not None:
                ahead(i, features)
            hidden = level.trunk(features)
            at = Bottom(state, hidden, choose(i, features, level.own(hidden)))
        assert at is not None
        return at

    def outputs(self, bottom: Bottom) -> Tensor:
        """Return what the image is made from, ``(rows, num_outputs, height, width)``, float32."""
        outputs: Tensor = self.last(self.levels[-1](*bottom))
        return outputs.movedim(-1, 1)

    def _start(self, place: Place) -> Tensor:
        """Return the state before the first level of a size, in the precision of the network."""
        start: Tensor = self.starts[str(place.size)]
        device = start.device.type
        # A sum with float32 is float32, and twice as long to read from there on.
        halved = torch.is_autocast_enabled(device)
        return start.to(torch.get_autocast_dtype(device)) if halved else start


def _grown(x: Tensor, size: int) -> Tensor:
    """Return larger images in which each pixel is the nearest of the smaller ones."""
    with torch.autocast(x.device.type, enabled=False):  # which would make it float32
        return F.interpolate(x.movedim(-1, 1), (size, size)).movedim(1, -1)


@final
class _Shrunk(torch.autograd.Function):
    """Means of squares of pixels; torch's own takes five times as long to go back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: int) -> Tensor:
        """Return images smaller by this factor, rounded down."""
        ctx.by, ctx.sizes = by, x.shape[1:3]
        return F.avg_pool2d(x.movedim(-1, 1), by).movedim(1, -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return each gradient where its square is, and none where squares did not fit."""
        each = (gradient / ctx.by**2).movedim(-1, 1)
        with torch.autocast(gradient.device.type, enabled=False):  # as in _grown
            grown = F.interpolate(each, scale_factor=ctx.by)
        rest = [size - got for size, got in zip(ctx.sizes, grown.shape[2:], strict=True)]
        return F.pad(grown, (0, rest[1], 0, rest[0])).movedim(1, -1), None


def _inner(bottleneck: int, size: int) -> Linear | Convolution:
    """Return the layer inside a bottleneck; of two pixels in a row there is no neighbourhood."""
    return Convolution(bottleneck) if size > 2 else Linear(bottleneck, bottleneck)


def _initialise(layer: Linear | Convolution, scale: float = 1.0) -> None:
    """Draw the weights of a layer so that its outputs have this part of its inputs' scale."""
    std = scale / math.sqrt(layer.weight[0].numel())
    nn.init.trunc_normal_(layer.weight, std=std, a=-2.0 * std, b=2.0 * std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _neighbourhoods(image: Tensor) -> Tensor:
    """Return each pixel with its eight neighbours, ``(rows, height, width, 9 * channels)``."""
    padded = F.pad(image, (0, 0, 1, 1, 1, 1))
    return padded.unfold(1, 3, 1).unfold(2, 3, 1).flatten(3)
