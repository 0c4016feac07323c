"""Layers that put their gradients where training wants them."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.streams import beside, new_streams

_STREAMS = 4  # beside the main one, for gradients of parameters


class _Local(threading.local):
    places: "GradientPlaces | None" = None


_local = _Local()


class Half(NamedTuple):
    """A parameter in half precision, and where gradients of that precision are added."""

    value: Tensor
    gradient: Tensor


@final
class GradientPlaces:
    """Where the gradients of some parameters are added, without going through autograd.

    The gradient of a layer's weights is needed by nothing before the end of the backward pass. So
    in a recording of a GPU it is computed beside the pass, which then waits for little else than
    the gradients of activations; and everywhere a product adds straight to the sum it belongs to.

    Args:
        places: A tensor of zeros for each parameter, of its shape.
        halves: The same in half precision, with the values, if layers compute in it: turned into
            it all at once, which takes one pass in place of one for each layer. Parameters that
            are not trained may have values here, and no places.
    """

    def __init__(
        self,
        places: Mapping[nn.Parameter, Tensor],
        halves: Mapping[nn.Parameter, Half] | None = None,
    ) -> None:
        self.places, self.halves = dict(places), dict(halves or {})
        self.number = {parameter: i for i, parameter in enumerate(self.places)}
        self.ones: dict[tuple[int, torch.dtype], Tensor] = {}
        self.streams: list[torch.cuda.Stream] = []
        # What is read beside the backward pass. Autograd adds into a gradient that nobody else
        # holds, such as that of a residual connection, and would do so while it is being read.
        self.read: list[Tensor] = []

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Let linear layers that run inside the block fill the places in its backward pass."""
        if not self.places:  # nor may a compiler, which looks at all that it meets, meet this
            yield
            return
        device = next(iter(self.places.values())).device
        self.streams = new_streams(device, _STREAMS)
        before, _local.places = _local.places, self
        try:
            yield
        finally:
            _local.places = before
            for stream in self.streams:
                with beside(stream):  # one that had no work must be part of the recording, too
                    pass
                torch.cuda.current_stream(stream.device).wait_stream(stream)
            self.streams, self.read = [], []

    def value(self, parameter: Tensor) -> Tensor:
        """Return the values to compute with, of the precision that is wanted here."""
        half = self.halves.get(parameter)  # type: ignore[call-overload]
        wanted = half is not None and torch.is_autocast_enabled(parameter.device.type)
        return half.value if wanted else parameter.detach()

    def place(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """Return where gradients of a parameter are added, those of this precision if possible."""
        half = self.halves.get(parameter)  # type: ignore[call-overload]
        if half is not None and half.gradient.dtype == dtype:
            return half.gradient  # type: ignore[no-any-return]
        return self.places[parameter]  # type: ignore[index]

    def ones_like_rows(self, rows: Tensor) -> Tensor:
        """Return a one for each row; kept, since every layer of every step asks for them."""
        key = len(rows), rows.dtype
        if key not in self.ones:
            self.ones[key] = rows.new_ones(len(rows))
        return self.ones[key]

    @contextmanager
    def beside(self, weight: Tensor, *used: Tensor) -> Iterator[None]:
        """Do what is inside the block beside the rest of the backward pass, if that is recorded.

        What is done for one weight is done in order, so that a layer may be used twice.
        """
        if not self.streams:
            yield
            return
        number = self.number[weight]  # type: ignore[index]
        with beside(self.streams[number % len(self.streams)], *used):
            yield


@final
class Linear(nn.Linear):
    """torch's linear layer, except for where its gradients go in training."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the affine map of ``x``."""
        return linear(x, self.weight, self.bias)

    def without_bias(self, x: Tensor) -> Tensor:
        """Return the linear part of it."""
        return linear(x, self.weight, None)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None = None) -> Tensor:
    """Return the affine map of ``x`` by a weight of which a mask may hold some entries at zero."""
    places = places_of(weight)
    if places is None:
        weight, bias = value_of(weight), None if bias is None else value_of(bias)
        return F.linear(x, weight if mask is None else weight * mask, bias)
    masked = places.value(weight) if mask is None else weight.detach() * mask
    mapped: Tensor = _Linear.apply(x, masked, weight, bias, mask, places)  # type: ignore[no-untyped-call]
    return mapped


def places_of(weight: Tensor) -> GradientPlaces | None:
    """Return where the gradient of a layer's weight is to go now, None for autograd's own way."""
    places = _local.places
    if places is None or weight not in places.places or not torch.is_grad_enabled():
        return None
    return places


def value_of(parameter: Tensor) -> Tensor:
    """Return a parameter, or if it is not trained its value of the precision wanted here."""
    places = _local.places
    return parameter if places is None or parameter.requires_grad else places.value(parameter)


class _Linear(torch.autograd.Function):
    """A linear map whose backward pass fills the places of its weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        masked: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mask: Tensor | None,
        places: GradientPlaces,
    ) -> Tensor:
        """Return the map."""
        ctx.save_for_backward(x, masked, mask)
        ctx.places, ctx.weight, ctx.bias = places, weight, bias
        return F.linear(x, masked, None if bias is None else places.value(bias))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the input alone."""
        x, masked, mask = ctx.saved_tensors
        gradient = gradient.contiguous()
        ctx.places.read.append(gradient)
        with ctx.places.beside(ctx.weight, gradient, x), torch.no_grad():
            _fill(ctx, _rows_of(gradient), _rows_of(x), mask)
        needed = gradient @ masked.to(gradient.dtype) if ctx.needs_input_grad[0] else None
        return needed, None, None, None, None, None


def _fill(ctx: Any, gradient: Tensor, x: Tensor, mask: Tensor | None) -> None:
    """Add to the sums of weight and bias."""
    place, x = ctx.places.place(ctx.weight, gradient.dtype), x.to(gradient.dtype)
    if mask is None and gradient.dtype == place.dtype:
        place.addmm_(gradient.mT, x)
    else:
        found = (gradient.mT @ x).to(place.dtype)
        place.add_(found) if mask is None else place.addcmul_(found, mask)
    if ctx.bias is not None:
        fill_bias(ctx.places, ctx.bias, gradient)


def fill_bias(places: GradientPlaces, bias: Tensor, gradient: Tensor) -> None:
    """Add the sum of all rows of a gradient to the place of a bias."""
    place, ones = places.place(bias, gradient.dtype), places.ones_like_rows(gradient)
    if gradient.dtype == place.dtype:
        place.addmv_(gradient.mT, ones)
    else:
        place.add_(gradient.mT @ ones)


def _rows_of(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])
