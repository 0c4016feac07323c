"""A layer, its bias and its activation, in as few passes over memory as possible."""

from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from postmatch.nets.convolution import Convolution
from postmatch.nets.kernels import can_fuse
from postmatch.nets.linear import GradientPlaces, Linear, linear, places_of
from postmatch.nets.precision import full_precision

_NARROW = 64  # channels, in and out, of a layer that our own kernels serve


def gelu(x: Tensor) -> Tensor:
    """Return the activation of a hierarchy's networks."""
    return F.gelu(x, approximate="tanh")


def forked(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the activation of a state, and the state for what else reads it.

    In training on a GPU, their gradients meet in one pass.
    """
    if x.requires_grad and can_fuse(x):
        activation, same = _Forked.apply(x)  # type: ignore[no-untyped-call]
        return activation, same
    return gelu(x), x


def activated(layer: Linear | Convolution, x: Tensor, more: Tensor | None = None) -> Tensor:
    """Return the activation of what a layer returns.

    In training on a GPU, bias, ``more`` and activation are one pass, and so are its gradient and
    that of the bias.

    Args:
        layer: With a bias.
        x: ``(rows, height, width, channels)``.
        more: Added before the activation; ``rows`` are a multiple of its own.
    """
    places = places_of(layer.weight)
    if places is not None and can_fuse(x):
        hidden = layer.without_bias(x)
        more = None if more is None else more.to(hidden.dtype).expand_as(hidden)
        out: Tensor = _Activated.apply(hidden, layer.bias, more, places)  # type: ignore[no-untyped-call]
        return out
    hidden = layer(x)
    if more is not None:
        times = len(hidden) // max(1, len(more))
        hidden = (torch.unflatten(hidden, 0, (times, len(more))) + more).flatten(0, 1)
    return gelu(hidden)


def mapped(layer: Linear, x: Tensor) -> Tensor:
    """Return what a layer returns, in float32, of an input of any precision.

    In training on a GPU, a narrow layer reads bfloat16 as it is, and its backward pass is one pass
    over memory.
    """
    weight, bias = layer.weight, layer.bias
    places, halved = places_of(weight), x.dtype == torch.bfloat16
    if places is not None and halved and can_fuse(x) and max(weight.shape) <= _NARROW:
        out: Tensor = _Mapped.apply(x, weight, bias, places)  # type: ignore[no-untyped-call]
        return out
    with torch.autocast(x.device.type, enabled=False):
        return linear(full_precision(x), full_precision(weight), full_precision(bias))


@final
class _Activated(torch.autograd.Function):
    """gelu(x + bias + more), whose backward pass fills the place of the bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor, more: Tensor | None, places: GradientPlaces
    ) -> Tensor:
        """Return the activation."""
        from postmatch.nets.fused_kernels import gelu_forward

        x, value = x.contiguous(), places.value(bias)
        more = None if more is None else more.contiguous()
        ctx.save_for_backward(x, value, more)
        ctx.places, ctx.bias = places, bias
        return gelu_forward(x, value, more)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs, which are the same."""
        from postmatch.nets.fused_kernels import gelu_backward

        x, value, more = ctx.saved_tensors
        places: GradientPlaces = ctx.places
        place = places.places[ctx.bias]
        found = gelu_backward(gradient.contiguous(), x, value, more, place)
        return found, None, None if more is None else found, None


@final
class _Forked(torch.autograd.Function):
    """gelu(x) and x, whose gradients become one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both."""
        x = x.contiguous()
        ctx.save_for_backward(x)
        return gelu(x), x.view_as(x)

    @staticmethod
    def backward(ctx: Any, activated: Tensor, same: Tensor) -> Tensor:
        """Return the gradient of x."""
        from postmatch.nets.fused_kernels import forked_backward

        (x,) = ctx.saved_tensors
        return forked_backward(activated.contiguous(), same.contiguous(), x)


@final
class _Mapped(torch.autograd.Function):
    """A narrow linear layer, whose backward pass fills the places of its weight and bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, places: GradientPlaces
    ) -> Tensor:
        """Return the map, in float32."""
        from postmatch.nets.output_kernels import mapped

        x = x.contiguous()
        ctx.save_for_backward(x, weight.detach())
        ctx.place = places.places[weight], places.places[bias]  # type: ignore[index]
        return mapped(x, weight.detach(), bias.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the input alone."""
        from postmatch.nets.output_kernels import mapped_backward

        x, weight = ctx.saved_tensors
        return mapped_backward(gradient.contiguous(), x, weight, *ctx.place), None, None, None
