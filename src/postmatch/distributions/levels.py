"""Gaussians of a hierarchy's level, by what networks say of them: means and raw scales."""

from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from postmatch.distributions.gaussian import Gaussian
from postmatch.nets.kernels import can_fuse

MIN_SCALE = 1e-5


class Compared(NamedTuple):
    """One Gaussian beside another."""

    kl: Tensor
    """The divergence, summed over all axes but the first."""
    z: Tensor | None
    """A draw, if there is noise for it."""


def level_gaussian(outputs: Tensor) -> Gaussian:
    """Return independent Gaussians from means and raw scales side by side."""
    mean, raw = outputs.chunk(2, dim=-1)
    return Gaussian(mean, F.softplus(raw) + MIN_SCALE)


def compared(target: Tensor, approx: Tensor, noise: Tensor | None = None) -> Compared:
    r"""Return the divergence from one Gaussian to another and a draw of the first.

    .. math:: \sum \tfrac12 (r^2 + d^2 - 1) - \log r, \qquad z = m + s \epsilon

    Here r is the ratio of the scales and d the distance of the means in scales of the second. Each
    level does this twice: derivatives are in closed form, since autograd would make several times
    the passes over memory, and on a GPU one kernel does it all.

    Args:
        target: Means and raw scales side by side, ``(rows, ..., 2 * channels)``.
        approx: The same of the other one.
        noise: Standard normal, ``(rows, ..., channels)``; None for no draw.
    """
    found = _Compared.apply(target, approx, noise)  # type: ignore[no-untyped-call]
    return Compared(*found)


@final
class _Compared(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, target: Tensor, approx: Tensor, noise: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return one divergence per row, and a draw."""
        ctx.save_for_backward(target, approx, noise)
        ctx.set_materialize_grads(False)
        if can_fuse(target):
            from postmatch.distributions.level_kernels import compare

            return compare(target, approx, noise, MIN_SCALE)
        q, p = level_gaussian(target), level_gaussian(approx)
        ratio, distance = q.scale / p.scale, (q.loc - p.loc) / p.scale
        each = torch.addcmul(ratio.square(), distance, distance)
        each = torch.add(each - 1.0, ratio.log(), alpha=-2.0)
        z = None if noise is None else torch.addcmul(q.loc, q.scale, noise)
        return 0.5 * each.flatten(1).sum(1), z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_kl: Tensor | None, of_z: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the derivatives that are asked for."""
        target, approx, noise = ctx.saved_tensors
        of_kl = target.new_zeros(len(target)) if of_kl is None else of_kl
        if can_fuse(target):
            from postmatch.distributions.level_kernels import compare_backward

            wanted = ctx.needs_input_grad
            return *compare_backward(target, approx, noise, of_kl, of_z, wanted, MIN_SCALE), None
        q, p = level_gaussian(target), level_gaussian(approx)
        ratio, distance = q.scale / p.scale, (q.loc - p.loc) / p.scale
        each = of_kl.view(-1, *[1] * (ratio.dim() - 1)) / p.scale
        pull = each * distance
        found: list[Tensor | None] = [None] * 3
        if ctx.needs_input_grad[0]:
            of_mean, of_scale = pull, each * (ratio - ratio.reciprocal())
            if of_z is not None:
                of_mean, of_scale = of_mean + of_z, torch.addcmul(of_scale, of_z, noise)
            found[0] = _of_outputs(of_mean, of_scale, target)
        if ctx.needs_input_grad[1]:
            of_scale = each * (1.0 - ratio.square() - distance.square())
            found[1] = _of_outputs(-pull, of_scale, approx)
        return tuple(found)


def _of_outputs(of_mean: Tensor, of_scale: Tensor, outputs: Tensor) -> Tensor:
    raw = outputs.chunk(2, dim=-1)[1]
    return torch.cat([of_mean, of_scale * raw.sigmoid()], dim=-1)
