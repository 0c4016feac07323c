"""Independent features, each a mixture of Gaussians."""

from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.distributions.autoregressive import mixture_log_prob, split_mixture
from postmatch.distributions.noise import (
    choose_component,
    from_noise,
    noise_size,
    standard_normal,
)


@final
class GaussianMixtures(Distribution):
    r"""Real features that are independent of each other: :math:`p(x_i) = \sum_k w_{ik} N(x_i)`.

    Args:
        outputs: Logits, means and raw scales of the components, ``(*batch, 3 * components,
            features)``. One component is a Gaussian.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(self, outputs: Tensor) -> None:
        self.logits, self.means, self.scales = split_mixture(outputs, dim=-2)
        shape = outputs.shape[:-2] + outputs.shape[-1:]
        super().__init__(shape, torch.Size(), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Return the mean of each feature."""
        return (self.logits.softmax(-2) * self.means).sum(-2)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of each feature."""
        return mixture_log_prob(value, self.logits, self.means, self.scales)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw rows, ``(*sample_shape, *batch, features)``."""
        shape = torch.Size(sample_shape) + self.batch_shape[:-1]
        size = 2 * self.batch_shape[-1]
        with torch.no_grad():
            return self.from_noise(torch.rand(*shape, size, device=self.means.device))

    def from_noise(self, uniform: Tensor) -> Tensor:
        """Return draws from two uniforms per feature: one picks the component, one the value."""
        uniform = torch.unflatten(uniform, -1, (-1, 2))
        k = choose_component(self.logits, uniform[..., 0], dim=-2).unsqueeze(-2)
        shape = (*k.shape[:-2], *self.means.shape[-2:])
        mean, scale = (t.expand(shape).gather(-2, k).squeeze(-2) for t in (self.means, self.scales))
        return mean + scale * standard_normal(uniform[..., 1])


@noise_size.register
def _(distribution: GaussianMixtures) -> int | None:
    return 2 * distribution.batch_shape[-1]


@from_noise.register
def _(distribution: GaussianMixtures, uniform: Tensor) -> Tensor:
    return distribution.from_noise(uniform)
