"""Which features are observed: random boolean tensors, True where a value is seen."""

import abc
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

_ROUNDING = 1e-6


class MaskDistribution(abc.ABC):
    """A distribution over sets of observed features; rows are independent."""

    @abc.abstractmethod
    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return a bool tensor of this shape, on the generator's device; rows come first."""


@final
@dataclass(frozen=True)
class Bernoulli(MaskDistribution):
    """Observe each feature with the same probability, independently."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise ValueError(f"probability must lie in [0, 1], got {self.probability}")

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return independent draws."""
        uniform = torch.rand(tuple(shape), generator=generator, device=generator.device)
        return uniform < self.probability


@final
@dataclass(frozen=True)
class UniformCount(MaskDistribution):
    """Observe k features chosen at random, with k uniform between two fractions of them."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high <= 1.0:
            raise ValueError(f"0 <= low <= high <= 1 must hold, got {self.low} and {self.high}")

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return rows whose numbers of observed features are uniform."""
        device = generator.device
        batch, features = shape[0], math.prod(shape[1:])
        # A fraction such as 0.07 of 100 is 7, though its product comes out a little above.
        fewest = math.ceil(self.low * features - _ROUNDING)
        most = math.floor(self.high * features + _ROUNDING)
        if fewest > most:
            raise ValueError(
                f"no count of {features} features lies between {self.low} and {self.high} of them"
            )
        count = torch.randint(fewest, most + 1, (batch, 1), generator=generator, device=device)
        noise = torch.rand(batch, features, generator=generator, device=device)
        rank = noise.argsort(1).argsort(1)
        return (rank < count).view(tuple(shape))


@final
@dataclass(frozen=True, eq=False)
class Pattern(MaskDistribution):
    """Observe what a random row of a given table shows: its own pattern of holes."""

    rows: Tensor  # bool, (rows, *features)

    def __post_init__(self) -> None:
        if self.rows.dtype != torch.bool or len(self.rows) == 0:
            raise ValueError(
                f"rows must be bool and not empty, got {self.rows.dtype} with {len(self.rows)} rows"
            )

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return patterns of rows drawn with replacement."""
        if tuple(shape[1:]) != tuple(self.rows.shape[1:]):
            raise ValueError(
                f"rows show features of shape {tuple(self.rows.shape[1:])}, "
                f"asked for {tuple(shape[1:])}"
            )
        index = torch.randint(
            len(self.rows), (shape[0],), generator=generator, device=generator.device
        )
        return self.rows.to(generator.device)[index]


@final
@dataclass(frozen=True)
class Mixture(MaskDistribution):
    """Each row comes from one of several mask distributions, chosen by weight."""

    parts: tuple[MaskDistribution, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.parts) == 0 or len(self.parts) != len(self.weights):
            raise ValueError(
                f"parts and weights must pair up, got {len(self.parts)} and {len(self.weights)}"
            )
        if min(self.weights) < 0.0 or sum(self.weights) <= 0.0:
            raise ValueError(f"weights must be positive, got {self.weights}")

    def sample(self, shape: Sequence[int], generator: torch.Generator) -> Tensor:
        """Return rows, each from the part chosen for it."""
        device, total = generator.device, sum(self.weights)
        uniform = torch.rand(shape[0], generator=generator, device=device)
        choice = torch.zeros(shape[0], dtype=torch.long, device=device)
        for edge in itertools.accumulate(self.weights[:-1]):
            choice += uniform >= edge / total
        drawn = torch.stack([part.sample(shape, generator) for part in self.parts])
        return drawn[choice, torch.arange(shape[0], device=device)]
