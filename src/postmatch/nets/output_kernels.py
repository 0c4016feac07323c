"""The last, narrow layer of a network, forward and back in one pass each; needs Triton.

From 128 images of 28 x 28 pixels and 48 channels in bfloat16 to 32 numbers in float32, a product of
its own would first have to read all of its input once more to turn it into float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 128  # of a product
_PROGRAMS = 264  # on the way back, at most: each adds its sums to the same few numbers


@triton.jit
def _map(
    x, weight, bias, out, rows,
    inputs: tl.constexpr, outputs: tl.constexpr,
    wide: tl.constexpr, tall: tl.constexpr, at_once: tl.constexpr,
):  # fmt: skip
    """Store ``x @ weight.T + bias``."""
    row = tl.program_id(0) * at_once + tl.arange(0, at_once)
    channel, output = tl.arange(0, wide), tl.arange(0, tall)
    inside, real, wanted = row < rows, channel < inputs, output < outputs
    factor = tl.load(
        weight + output[None, :] * inputs + channel[:, None],
        mask=real[:, None] & wanted[None, :],
        other=0.0,
    )
    at = row[:, None] * inputs + channel[None, :]
    value = tl.load(x + at, mask=inside[:, None] & real[None, :], other=0.0).to(tl.float32)
    found = tl.dot(value, factor, input_precision="tf32")
    found += tl.load(bias + output, mask=wanted, other=0.0)[None, :]
    at = row[:, None] * outputs + output[None, :]
    tl.store(out + at, found, mask=inside[:, None] & wanted[None, :])


@triton.jit
def _map_back(
    gradient, x, weight, out, weight_place, bias_place, rows, programs,
    inputs: tl.constexpr, outputs: tl.constexpr,
    wide: tl.constexpr, tall: tl.constexpr, at_once: tl.constexpr, turns: tl.constexpr,
):  # fmt: skip
    """Store the gradient of ``x``, and add those of weight and bias to their places."""
    channel, output = tl.arange(0, wide), tl.arange(0, tall)
    real, wanted = channel < inputs, output < outputs
    both = wanted[:, None] & real[None, :]
    weight_at = output[:, None] * inputs + channel[None, :]
    factor = tl.load(weight + weight_at, mask=both, other=0.0)
    product = tl.zeros((tall, wide), tl.float32)
    total = tl.zeros((tall,), tl.float32)
    for turn in range(turns):
        row = (turn * programs + tl.program_id(0)) * at_once + tl.arange(0, at_once)
        inside = row < rows
        at = row[:, None] * outputs + output[None, :]
        told = tl.load(gradient + at, mask=inside[:, None] & wanted[None, :], other=0.0)
        at = row[:, None] * inputs + channel[None, :]
        here = inside[:, None] & real[None, :]
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        found = tl.dot(told, factor, input_precision="tf32")
        tl.store(out + at, found.to(out.dtype.element_ty), mask=here)
        product = tl.dot(tl.trans(told), value, product, input_precision="tf32")
        total += tl.sum(told, 0)
    tl.atomic_add(weight_place + weight_at, product, mask=both)
    tl.atomic_add(bias_place + output, total, mask=wanted)


def mapped(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``x @ weight.T + bias`` in float32, factors rounded to 10 bits.

    Args:
        x: ``(..., inputs)``, contiguous, of any precision.
        weight: ``(outputs, inputs)``, float32, as is ``bias``; both sides short.
        bias: ``(outputs,)``.
    """
    outputs, inputs = weight.shape
    out = torch.empty(*x.shape[:-1], outputs, dtype=torch.float32, device=x.device)
    rows = x.numel() // inputs
    _map[(triton.cdiv(rows, _ROWS),)](
        x, weight, bias, out, rows, inputs, outputs, *_padded(inputs, outputs), _ROWS
    )
    return out


def mapped_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, weight_place: Tensor, bias_place: Tensor
) -> Tensor:
    """Return the gradient of x, in its precision, and add those of weight and bias to places.

    Args:
        gradient: Of what :func:`mapped` returned, contiguous, float32.
        x: What it was given.
        weight: Likewise.
        weight_place: Of the weight's shape, float32.
        bias_place: Of the bias's shape, float32.
    """
    outputs, inputs = weight.shape
    out, rows = torch.empty_like(x), x.numel() // inputs
    programs = min(triton.cdiv(rows, _ROWS), _PROGRAMS)
    _map_back[(programs,)](
        gradient, x, weight, out, weight_place, bias_place, rows, programs,
        inputs, outputs, *_padded(inputs, outputs), _ROWS, triton.cdiv(rows, programs * _ROWS),
    )  # fmt: skip
    return out


def _padded(inputs: int, outputs: int) -> tuple[int, int]:
    """Return sides of products, which are powers of two."""
    wide, tall = (max(16, triton.next_power_of_2(size)) for size in (inputs, outputs))
    return wide, tall
