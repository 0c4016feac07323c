"""Kernels for a GPU; importing this needs Triton, which comes with torch where there is one."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1_024  # numbers of a program, all of one row


@triton.jit
def _softplus(raw):
    return tl.maximum(raw, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(raw)))


@triton.jit
def _places(length, channels: tl.constexpr, block: tl.constexpr):
    """Return which numbers of a row are a program's, and where their means are among outputs."""
    inner = tl.program_id(1) * block + tl.arange(0, block)
    mean = tl.program_id(0) * length * 2 + (inner // channels) * 2 * channels + inner % channels
    return inner, inner < length, mean


@triton.jit
def _read(outputs, mean, inside, channels: tl.constexpr, smallest: tl.constexpr):
    raw = tl.load(outputs + mean + channels, mask=inside, other=0.0)
    loc = tl.load(outputs + mean, mask=inside, other=0.0)
    return loc, _softplus(raw) + smallest, tl.sigmoid(raw)


@triton.jit
def _compare(
    target, approx, noise, z, sums, length, row_of_noise,
    channels: tl.constexpr, smallest: tl.constexpr, drawn: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    inner, inside, mean = _places(length, channels, block)
    m, s, _ = _read(target, mean, inside, channels, smallest)
    to_m, to_s, _ = _read(approx, mean, inside, channels, smallest)
    ratio, distance = s / to_s, (m - to_m) / to_s
    each = 0.5 * (ratio * ratio + distance * distance - 1.0) - tl.log(ratio)
    part = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(sums + part, tl.sum(tl.where(inside, each, 0.0), 0))
    if drawn:
        epsilon = tl.load(noise + tl.program_id(0) * row_of_noise + inner, mask=inside, other=0.0)
        tl.store(z + tl.program_id(0) * length + inner, m + s * epsilon, mask=inside)


@triton.jit
def _compare_backward(
    target, approx, noise, of_kl, of_z, of_target, of_approx, length, row_of_noise,
    channels: tl.constexpr, smallest: tl.constexpr, drawn: tl.constexpr,
    wants_target: tl.constexpr, wants_approx: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    inner, inside, mean = _places(length, channels, block)
    m, s, slope = _read(target, mean, inside, channels, smallest)
    to_m, to_s, to_slope = _read(approx, mean, inside, channels, smallest)
    ratio, distance = s / to_s, (m - to_m) / to_s
    each = tl.load(of_kl + tl.program_id(0)) / to_s
    if wants_target:
        of_mean, of_scale = each * distance, each * (ratio - 1.0 / ratio)
        if drawn:
            pull = tl.load(of_z + tl.program_id(0) * length + inner, mask=inside, other=0.0)
            at = tl.program_id(0) * row_of_noise + inner
            of_mean += pull
            of_scale += pull * tl.load(noise + at, mask=inside, other=0.0)
        tl.store(of_target + mean, of_mean, mask=inside)
        tl.store(of_target + mean + channels, of_scale * slope, mask=inside)
    if wants_approx:
        spread = each * (1.0 - ratio * ratio - distance * distance)
        tl.store(of_approx + mean, -each * distance, mask=inside)
        tl.store(of_approx + mean + channels, spread * to_slope, mask=inside)


def compare(
    target: Tensor, approx: Tensor, noise: Tensor | None, smallest: float
) -> tuple[Tensor, Tensor | None]:
    """Return divergences and draws; see :func:`postmatch.distributions.levels.compared`."""
    rows, channels = len(target), target.shape[-1] // 2
    length = target[0].numel() // 2
    parts = triton.cdiv(length, _BLOCK)
    sums = target.new_empty(rows, parts)
    z = None if noise is None else target.new_empty(*target.shape[:-1], channels)
    noise, row = _rows(noise, target)
    _compare[(rows, parts)](
        target.contiguous(), approx.contiguous(), noise, sums if z is None else z, sums, length,
        row, channels, smallest, z is not None, _BLOCK,
    )  # fmt: skip
    return sums.sum(1), z


def compare_backward(
    target: Tensor,
    approx: Tensor,
    noise: Tensor | None,
    of_kl: Tensor,
    of_z: Tensor | None,
    wanted: Sequence[bool],
    smallest: float,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the derivatives that are wanted, of target and of approx."""
    channels, length = target.shape[-1] // 2, target[0].numel() // 2
    target, approx = target.contiguous(), approx.contiguous()
    found = [torch.empty_like(target) if wants else None for wants in wanted[:2]]
    noise, row = _rows(noise, target)
    _compare_backward[(len(target), triton.cdiv(length, _BLOCK))](
        target, approx, noise, of_kl.contiguous(), target if of_z is None else of_z.contiguous(),
        *(target if one is None else one for one in found), length, row, channels, smallest,
        of_z is not None, *wanted[:2], _BLOCK,
    )  # fmt: skip
    return found[0], found[1]


def _rows(noise: Tensor | None, like: Tensor) -> tuple[Tensor, int]:
    """Return noise whose rows each lie in one piece, and how far apart they are."""
    if noise is None:
        return like, 0
    if noise.dim() > 1 and not noise[0].is_contiguous():
        noise = noise.contiguous()
    return noise, noise.stride(0)
