"""Pixels of 256 grey levels, or of as many in each colour, as mixtures of logistics."""

import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional as F

from postmatch.distributions.noise import (
    choose_component,
    from_noise,
    noise_size,
    standard_logistic,
)
from postmatch.nets.precision import full_precision

_LEVELS = 255  # steps from the lowest value of a pixel to the highest
_MIN_SCALE = math.exp(-7.0)  # where values run from -1 to 1


def num_logistic_maps(channels: int, num_components: int) -> int:
    """Return how many maps of parameters :class:`DiscretisedLogistics` takes."""
    return num_components * (1 + 2 * channels + channels * (channels - 1) // 2)


@final
class DiscretisedLogistics(Distribution):
    r"""Pixels that are independent of each other, each a mixture of rounded logistics.

    .. math:: p(x) = \sum_k w_k \prod_c \left[ \sigma\Big(\frac{x_c + \frac12 - m_{kc}}{s_{kc}}\Big)
        - \sigma\Big(\frac{x_c - \frac12 - m_{kc}}{s_{kc}}\Big) \right], \qquad
        m_{kc} = \mu_{kc} + \sum_{j < c} a_{kcj} x_j

    for levels 0 to 255, of which the first and the last take the tails (Salimans et al., 2017).
    Values are these levels over 255. A pixel counts once: ``log_prob`` has one channel.

    Args:
        outputs: ``(*batch, maps, height, width)``: logits, locations and raw scales of the
            components and, behind those, how channels depend on the ones before them; as many maps
            as :func:`num_logistic_maps` says. Half precision becomes float32.
        channels: 1 for grey images, 3 for colours.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(self, outputs: Tensor, channels: int) -> None:
        outputs, self.channels = full_precision(outputs), channels
        count, rest = divmod(outputs.shape[-3], num_logistic_maps(channels, 1))
        if rest:
            raise ValueError(
                f"outputs must have a multiple of {num_logistic_maps(channels, 1)} maps for "
                f"{channels} channels, got {outputs.shape[-3]}"
            )
        logits, *parts = torch.split(outputs, count, dim=-3)
        self.logits = logits  # (*batch, components, height, width), as is each tensor below
        self.locations = parts[:channels]
        self.scales = [F.softplus(raw) + _MIN_SCALE for raw in parts[channels : 2 * channels]]
        slopes = iter(parts[2 * channels :])
        self.slopes = [[next(slopes).tanh() for _ in range(c)] for c in range(channels)]
        shape = torch.Size([*outputs.shape[:-3], 1, *outputs.shape[-2:]])
        super().__init__(shape, torch.Size(), validate_args=False)

    @property
    def mean(self) -> Tensor:
        r"""Return the mean of each channel, ``(*batch, channels, height, width)``.

        That of a logistic clipped to the range is :math:`\int_{-1}^1 \sigma((m - t) / s)\, dt - 1`;
        rounding changes it by less than half a level. A colour takes the means of those before it.
        """
        weights = self.logits.softmax(-3)
        means: list[Tensor] = []
        for c, scale in enumerate(self.scales):
            centre = self._centre(c, means)
            above, below = F.softplus((centre + 1.0) / scale), F.softplus((centre - 1.0) / scale)
            means.append(scale * (above - below) - 1.0)
        average = torch.stack([(weights * mean).sum(-3) for mean in means], dim=-3)
        return ((average + 1.0) / 2.0).clamp(0.0, 1.0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log mass of each pixel, ``(..., *batch, 1, height, width)``."""
        level = (value.to(self.logits.dtype) * _LEVELS).round()
        each = level.unsqueeze(-3).unbind(-4)  # one per channel, (..., 1, height, width)
        signed = [_signed(one) for one in each]
        log_mass = self.logits.log_softmax(-3)
        for c, scale in enumerate(self.scales):
            log_mass = log_mass + _log_mass(each[c], self._centre(c, signed), scale)
        summed: Tensor = log_mass.logsumexp(-3, keepdim=True)
        return summed

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw images, ``(*sample_shape, *batch, channels, height, width)``."""
        shape = torch.Size(sample_shape) + self.batch_shape[:-3]
        size = noise_size(self)
        assert size is not None
        with torch.no_grad():
            return self.from_noise(torch.rand(*shape, size, device=self.logits.device))

    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws from 1 + channels uniforms per pixel, the first of which picks k."""
        area = self.logits.shape[-2:]
        uniform = torch.unflatten(uniform, -1, (1 + self.channels, *area))
        k = choose_component(self.logits, uniform[..., 0, :, :], dim=-3).unsqueeze(-3)
        drawn: list[Tensor] = []
        for c, scale in enumerate(self.scales):
            noise = standard_logistic(uniform[..., c + 1 : c + 2, :, :])
            value = _at(self._centre(c, drawn), k) + _at(scale, k) * noise
            level = ((value + 1.0) * (_LEVELS / 2)).round().clamp(0, _LEVELS)
            drawn.append(_signed(level))  # the next channel depends on what was drawn
        return ((torch.cat(drawn, dim=-3) + 1.0) * (_LEVELS / 2)).round() / _LEVELS

    def _centre(self, channel: int, before: list[Tensor]) -> Tensor:
        """Return the locations of a channel given values of those before it, -1 to 1."""
        centre = self.locations[channel]
        for slope, value in zip(self.slopes[channel], before, strict=False):
            centre = centre + slope * value
        return centre


def _log_mass(level: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
    r"""Return the log mass of a level under each component.

    With :math:`a > b` the ends of its interval,
    :math:`\sigma(a) - \sigma(b) = \sigma(a)\, \sigma(-b) (1 - e^{b - a})`: nothing cancels, however
    far out, and an end that is infinite drops out.
    """
    half = 1.0 / (_LEVELS * scale)
    distance = (_signed(level) - centre) / scale
    log_below_end = F.logsigmoid(distance + half)
    log_above_start = F.logsigmoid(half - distance)
    inside = log_below_end + log_above_start + torch.log(-torch.expm1(-2.0 * half))
    outside = torch.where(level <= 0, log_below_end, log_above_start)
    return torch.where((level <= 0) | (level >= _LEVELS), outside, inside)


def _signed(level: Tensor) -> Tensor:
    """Return a level of 0 to 255 as a value of -1 to 1."""
    return level * (2.0 / _LEVELS) - 1.0


def _at(parameter: Tensor, k: Tensor) -> Tensor:
    """Return the parameter of the chosen component."""
    shape = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        parameter.shape[:-3], k.shape[:-3]
    )
    return parameter.expand(*shape, *parameter.shape[-3:]).gather(
        -3, k.expand(*shape, *k.shape[-3:])
    )


@noise_size.register
def _(distribution: DiscretisedLogistics) -> int | None:
    return (1 + distribution.channels) * distribution.logits.shape[-2:].numel()


@from_noise.register
def _(distribution: DiscretisedLogistics, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)
