"""Kernels for a GPU; importing this needs Triton, which comes with torch where there is one."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1_024  # numbers of a program, on the way forward
_ROWS = 64  # of a program at a time, on the way back
_PROGRAMS = 1_024  # on the way back, at most: each adds its sums to the same few numbers


@triton.jit
def _parts(value):
    """Return what gelu multiplies a value with, and the derivative of gelu."""
    square = value * value
    factor = tl.sigmoid(value * (1.5957691216 + 0.0713548163 * square))
    slope = 1.5957691216 + 0.2140644488 * square
    return factor, factor + value * factor * (1.0 - factor) * slope


@triton.jit
def _forward(
    x, more, bias, out, length,
    channels: tl.constexpr, has_more: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < length
    value = tl.load(x + at, mask=inside).to(tl.float32)
    value += tl.load(bias + at % channels, mask=inside).to(tl.float32)
    if has_more:
        value += tl.load(more + at, mask=inside).to(tl.float32)
    factor, _ = _parts(value)
    tl.store(out + at, (value * factor).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    gradient, x, more, bias, out, place, rows, programs,
    channels: tl.constexpr, padded: tl.constexpr, has_more: tl.constexpr,
    at_once: tl.constexpr, turns: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, padded)
    real = channel < channels
    shift = tl.load(bias + channel, mask=real).to(tl.float32)
    total = tl.zeros([padded], tl.float32)
    for turn in range(turns):
        row = (turn * programs + tl.program_id(0)) * at_once + tl.arange(0, at_once)
        at = row[:, None] * channels + channel[None, :]
        inside = (row < rows)[:, None] & real[None, :]
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
        if has_more:
            value += tl.load(more + at, mask=inside, other=0.0).to(tl.float32)
        _, slope = _parts(value)
        found = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32) * slope
        tl.store(out + at, found.to(out.dtype.element_ty), mask=inside)
        total += tl.sum(found, 0)
    tl.atomic_add(place + channel, total, mask=real)


@triton.jit
def _forked(activated, same, x, out, length, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < length
    _, slope = _parts(tl.load(x + at, mask=inside).to(tl.float32))
    found = tl.load(activated + at, mask=inside).to(tl.float32) * slope
    found += tl.load(same + at, mask=inside).to(tl.float32)
    tl.store(out + at, found.to(out.dtype.element_ty), mask=inside)


def forked_backward(activated: Tensor, same: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x from that of gelu(x) and that of x itself."""
    out, length = torch.empty_like(x), x.numel()
    _forked[(triton.cdiv(length, _BLOCK),)](activated, same, x, out, length, _BLOCK)
    return out


def gelu_forward(x: Tensor, bias: Tensor, more: Tensor | None) -> Tensor:
    """Return gelu(x + bias + more); see :func:`postmatch.nets.fused.activated`."""
    out, length = torch.empty_like(x), x.numel()
    given = x if more is None else more
    programs = (triton.cdiv(length, _BLOCK),)
    _forward[programs](x, given, bias, out, length, x.shape[-1], more is not None, _BLOCK)
    return out


def gelu_backward(
    gradient: Tensor, x: Tensor, bias: Tensor, more: Tensor | None, place: Tensor
) -> Tensor:
    """Return the gradient of x, and add its sum over rows to ``place``, float32."""
    out, channels = torch.empty_like(x), x.shape[-1]
    rows = x.numel() // channels
    programs = min(triton.cdiv(rows, _ROWS), _PROGRAMS)
    given, padded = x if more is None else more, triton.next_power_of_2(channels)
    _backward[(programs,)](
        gradient, x, given, bias, out, place, rows, programs,
        channels, padded, more is not None, _ROWS, triton.cdiv(rows, programs * _ROWS),
    )  # fmt: skip
    return out
