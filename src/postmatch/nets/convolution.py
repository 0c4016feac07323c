"""Convolutions of images whose last axis is the channels, as a GPU reads them."""

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.nets.kernels import can_fuse
from postmatch.nets.linear import GradientPlaces, fill_bias, places_of, value_of

_SETTING = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)  # stride, padding, dilation, and the rest
_MOST_CHANNELS = 64  # of which a kernel can hold three sums in its registers
_MANY_PIXELS = 50_000  # below that, cuDNN is as fast


@final
class Convolution(nn.Module):
    """A 3x3 convolution that keeps the size.

    Its weight is ``(out, 3, 3, in)``: in the order that a GPU wants, and still so when training has
    laid all weights end to end.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 3, 3, channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(rows, height, width, channels)``."""
        return _convolution(x, self.weight, self.bias)

    def without_bias(self, x: Tensor) -> Tensor:
        """Return the linear part of it."""
        return _convolution(x, self.weight, None)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    places = places_of(weight)
    if places is None:
        return _convolve(x, value_of(weight), None if bias is None else value_of(bias))
    found: Tensor = _Convolution.apply(x, weight, bias, places)  # type: ignore[no-untyped-call]
    return found


@final
class _Convolution(torch.autograd.Function):
    """A convolution whose backward pass fills the places of its weight and bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, places: GradientPlaces
    ) -> Tensor:
        """Return the images."""
        value = places.value(weight)
        x = x.to(value.dtype)
        ctx.save_for_backward(x, value)
        ctx.places, ctx.weight, ctx.bias = places, weight, bias
        return _convolve(x, value, None if bias is None else places.value(bias))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the input alone."""
        x, value = ctx.saved_tensors
        places, gradient = ctx.places, gradient.contiguous().to(x.dtype)
        places.read.append(gradient)
        with places.beside(ctx.weight, gradient, x), torch.no_grad():
            found = _weight_gradient(gradient, x, value)
            places.place(ctx.weight, x.dtype).add_(found)
            if ctx.bias is not None:
                fill_bias(places, ctx.bias, gradient.flatten(0, 2))
        needed: Tensor | None = None
        if ctx.needs_input_grad[0]:
            across = [t.movedim(-1, 1) for t in (gradient, x, value)]
            needed, _, _ = torch.ops.aten.convolution_backward(
                *across, None, *_SETTING, [True, False, False]
            )
            needed = needed.movedim(1, -1)
        return needed, None, None, None


def _weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of a weight, ``(out, 3, 3, in)``."""
    many = x.shape[:-1].numel() >= _MANY_PIXELS and x.shape[-1] <= _MOST_CHANNELS
    if many and can_fuse(x) and x.dtype == torch.bfloat16:
        from postmatch.nets.convolution_kernels import weight_gradient

        return weight_gradient(gradient, x.contiguous())
    across = [t.movedim(-1, 1) for t in (gradient, x, weight)]
    _, found, _ = torch.ops.aten.convolution_backward(
        *across, None, *_SETTING, [False, True, False]
    )
    moved: Tensor = found.movedim(1, -1)
    return moved


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found = F.conv2d(x.movedim(-1, 1), weight.movedim(-1, 1), bias, padding=1)
    return found.movedim(1, -1)
