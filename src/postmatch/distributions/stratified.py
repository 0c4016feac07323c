"""Equal mixtures of distributions, sampled by strata."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.distributions.noise import from_noise, noise_size


@final
class StratifiedMixture(Distribution):
    r"""The mixture :math:`\frac1M \sum_m r_m(z)`, with the same number of draws from each part.

    The draws are not independent, but their average estimates the expectation under the mixture
    without bias and with less variance than independent ones.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, parts: Sequence[Distribution]) -> None:
        self.parts = tuple(parts)
        first = self.parts[0]
        super().__init__(first.batch_shape, first.event_shape, validate_args=False)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw ``(samples, *batch, *event)``; samples must be a multiple of the number of parts."""
        (num_samples,) = torch.Size(sample_shape)
        each = torch.Size([self.samples_of_each(num_samples)])
        return torch.cat([part.sample(each) for part in self.parts])

    def samples_of_each(self, num_samples: int) -> int:
        """Return how many of the draws are each part's."""
        each, rest = divmod(num_samples, len(self.parts))
        if rest:
            raise ValueError(
                f"num_samples must be a multiple of {len(self.parts)}, got {num_samples}"
            )
        return each

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density of the mixture."""
        log_parts = torch.stack([part.log_prob(value) for part in self.parts])
        return log_parts.logsumexp(0) - math.log(len(self.parts))


@noise_size.register
def _(distribution: StratifiedMixture) -> int | None:
    sizes = [noise_size(part) for part in distribution.parts]
    return None if None in sizes else max(size for size in sizes if size is not None)


@from_noise.register
def _(distribution: StratifiedMixture, uniform: Tensor) -> Tensor:
    each = distribution.samples_of_each(len(uniform))
    own = uniform.reshape(len(distribution.parts), each, *uniform.shape[1:])
    return torch.cat(
        [
            from_noise(part, noise[..., : noise_size(part)])
            for part, noise in zip(distribution.parts, own, strict=True)
        ]
    )
