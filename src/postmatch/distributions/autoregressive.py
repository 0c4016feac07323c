"""Autoregressive Gaussian mixtures over a vector."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Distribution, constraints
from torch.nn import functional as F

from postmatch.distributions.noise import (
    choose_component,
    from_noise,
    noise_size,
    standard_normal,
)
from postmatch.nets.made import MaskedResidualNet

_MIN_SCALE = 1e-4


@final
class AutoregressiveMixture(Distribution):
    r"""Vectors whose entries are Gaussian mixtures given the entries before them.

    .. math:: p(z) = \prod_i \sum_k w_{ik} N(z_i; m_{ik}, s_{ik}^2), \qquad w, m, s = f(z_{<i})

    Args:
        net: Gives three numbers per component for each entry: logit, mean and raw scale.
        context: ``(*batch, context_size)``, or None for a single, unconditional distribution.
        batch_shape: Batch shape when there is no context.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector
    has_rsample = False

    def __init__(
        self,
        net: MaskedResidualNet,
        context: Tensor | None = None,
        batch_shape: Sequence[int] = (),
    ) -> None:
        self.net, self.context = net, context
        shape = torch.Size(batch_shape) if context is None else context.shape[:-1]
        super().__init__(shape, torch.Size([net.size]), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "AutoregressiveMixture":
        """Return the same distribution for a larger batch."""
        batch_shape = torch.Size(batch_shape)
        context = self.context
        if context is not None:
            context = context.expand(*batch_shape, context.shape[-1])
        return AutoregressiveMixture(self.net, context, batch_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each vector, all conditionals in one pass."""
        logits, mean, scale = split_mixture(self.net(value, self.context), dim=-2)
        return mixture_log_prob(value, logits, mean, scale).sum(-1)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw vectors, ``(*sample_shape, *batch, size)``."""
        shape = torch.Size(sample_shape) + self.batch_shape + torch.Size([2 * self.net.size])
        with torch.no_grad():
            return self.from_noise(torch.rand(shape, device=self.net.first.weight.device))

    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws from two uniforms per entry: one picks the component, one the value."""
        batch: torch.Size = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            uniform.shape[:-1], self.batch_shape
        )
        uniform = torch.unflatten(uniform, -1, (self.net.size, 2))

        def choose(i: int, out: Tensor) -> Tensor:
            logits, mean, scale = split_mixture(out, dim=0)
            k = choose_component(logits, uniform[..., i, 0], dim=0).unsqueeze(0)
            noise = standard_normal(uniform[..., i, 1])
            return mean.gather(0, k)[0] + scale.gather(0, k)[0] * noise

        return self.net.generate(batch, self.context, choose)


def mixture_net(
    latent_size: int, num_components: int, width: int, num_blocks: int, context_size: int = 0
) -> MaskedResidualNet:
    """Return a masked network for autoregressive mixtures, whose components start out spread."""
    net = MaskedResidualNet(latent_size, 3 * num_components, width, num_blocks, context_size)
    with torch.no_grad():
        logits, mean, raw = net.last.bias.view(3, num_components, latent_size)
        logits.fill_(0.0)
        mean.copy_(torch.linspace(-1.5, 1.5, num_components)[:, None].expand_as(mean))
        raw.fill_(0.5)
    return net


def split_mixture(out: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split an axis into the components' logits, means and positive scales."""
    logits, mean, raw = out.chunk(3, dim)
    return logits, mean, F.softplus(raw) + _MIN_SCALE


def mixture_log_prob(z: Tensor, logits: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return the log density of each entry of ``z``; components are the last but one axis.

    There, sums over components run along whole vectors; as the last axis, a handful of components
    would be summed one number at a time.
    """
    log_prob: Tensor = _MixtureLogProb.apply(z, logits, mean, scale)  # type: ignore[no-untyped-call]
    return log_prob


class _MixtureLogProb(torch.autograd.Function):
    """The log density of a Gaussian mixture with its derivatives in closed form.

    Autograd would go back through every operation of two sums of exponentials, and keep what each
    of them saw: three times the passes over memory.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, logits: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Return the log density of each entry."""
        distance = (z.unsqueeze(-2) - mean) / scale
        log_each = torch.addcmul(logits - scale.log(), distance, distance, value=-0.5)
        log_sum, log_total = log_each.logsumexp(-2), logits.logsumexp(-2)
        ctx.save_for_backward(logits, scale, distance, log_each, log_sum, log_total)
        ctx.shapes = z.shape, logits.shape, mean.shape, scale.shape
        return log_sum - log_total - 0.5 * math.log(2.0 * math.pi)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return the derivatives, by the share of each component in the density."""
        logits, scale, distance, log_each, log_sum, log_total = ctx.saved_tensors
        gradient = gradient.unsqueeze(-2)
        share = (log_each - log_sum.unsqueeze(-2)).exp() * gradient
        prior = (logits - log_total.unsqueeze(-2)).exp() * gradient
        d_mean = share * distance / scale
        d_scale = torch.addcmul(-share / scale, d_mean, distance)
        each = (-d_mean.sum(-2), share - prior, d_mean, d_scale)
        return tuple(d.sum_to_size(shape) for d, shape in zip(each, ctx.shapes, strict=True))


@noise_size.register
def _(distribution: AutoregressiveMixture) -> int | None:
    return 2 * distribution.net.size


@from_noise.register
def _(distribution: AutoregressiveMixture, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)
