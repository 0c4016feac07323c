"""Linear layers that put their gradients where training wants them."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.streams import beside, new_streams

_STREAMS = 4  # beside the main one, for gradients of parameters


class _Local(threading.local):
    places: "GradientPlaces | None" = None


_local = _Local()


@final
class GradientPlaces:
    """Where the gradients of some parameters are added, without going through autograd.

    The gradient of a layer's weights is needed by nothing before the end of the backward pass. So
    in a recording of a GPU it is computed beside the pass, which then waits for little else than
    the gradients of activations; and everywhere a product adds straight to the sum it belongs to.

    Args:
        places: A tensor of zeros for each parameter, of its shape.
    """

    def __init__(self, places: Mapping[nn.Parameter, Tensor]) -> None:
        self.places = dict(places)
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


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None = None) -> Tensor:
    """Return the affine map of ``x`` by a weight of which a mask may hold some entries at zero."""
    places = _local.places
    masked = weight if mask is None else weight * mask
    if places is None or weight not in places.places or not torch.is_grad_enabled():
        return F.linear(x, masked, bias)
    mapped: Tensor = _Linear.apply(x, masked.detach(), weight, bias, mask, places)  # type: ignore[no-untyped-call]
    return mapped


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
        return F.linear(x, masked, bias)

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
    place = ctx.places.places[ctx.weight]
    across = gradient.mT
    if mask is None and gradient.dtype == x.dtype == place.dtype:
        place.addmm_(across, x)
    else:
        found = (across @ x.to(gradient.dtype)).to(place.dtype)
        place.add_(found) if mask is None else place.addcmul_(found, mask)
    if ctx.bias is not None:
        place, ones = ctx.places.places[ctx.bias], ctx.places.ones_like_rows(gradient)
        if gradient.dtype == place.dtype:
            place.addmv_(across, ones)
        else:
            place.add_(across @ ones)


def _rows_of(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])
