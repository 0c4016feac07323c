"""Draws of which all rows share the noise, a part of them at a time if they are many."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributions import Distribution

from postmatch.distributions.noise import from_noise, noise_size, quasi_uniform
from postmatch.distributions.stratified import StratifiedMixture
from postmatch.importance import in_parts
from postmatch.randomness import seeded

_BLOCK = 1_024  # draws whose noise is spread evenly together, and in memory together


def shared_draws(distribution: Distribution, num_samples: int, seed: int, x: Tensor) -> Tensor:
    """Return draws of which all rows x share the noise, ``(samples, batch, *event)``.

    A distribution without ``from_noise`` draws independent noise from torch's global state, seeded
    for that moment.
    """
    size = noise_size(distribution)
    if size is None:
        with seeded(seed):
            return distribution.sample(torch.Size([num_samples]))
    return from_noise(distribution, quasi_uniform(num_samples, size, seed, x.device).to(x.dtype))


def shared_parts(
    mixture: StratifiedMixture, num_samples: int, seed: int, x: Tensor, at_once: int = 0
) -> Iterator[Tensor]:
    """Yield draws as :func:`shared_draws` makes them, so many at a time.

    All parts together are the same draws, however many each has. Noise is that of a draw's block of
    1,024, and each part has as many draws of one part of the mixture as of the others.

    Args:
        mixture: What is drawn from.
        num_samples: How many draws there are in all.
        seed: Of their noise.
        x: The rows.
        at_once: The most of a part; 0 for a whole block.
    """
    strata, size = len(mixture.parts), noise_size(mixture)
    in_parts(num_samples, at_once, multiple=strata)  # which raises if these do not fit
    for block, count in enumerate(in_parts(num_samples, _BLOCK // strata * strata, strata)):
        if size is None:
            whole = shared_draws(mixture, count, seed + block, x)
        else:
            whole = quasi_uniform(count, size, seed + block, x.device).to(x.dtype)
        each = whole.view(strata, mixture.samples_of_each(count), *whole.shape[1:])
        for part in torch.split(each, (at_once or count) // strata, dim=1):
            draws = part.flatten(0, 1)
            yield draws if size is None else from_noise(mixture, draws)
