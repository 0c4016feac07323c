"""A running average of weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

from torch import Tensor


@final
class WeightAverage:
    """The exponential moving average of some tensors, with a faster start.

    Args:
        weights: What is averaged; the average starts as a copy of them.
        decay: How much of the old average each update keeps, in the long run.
    """

    def __init__(self, weights: Sequence[Tensor], decay: float) -> None:
        self.weights, self.decay, self.updates = [w.detach() for w in weights], decay, 0
        self.average = [weight.clone() for weight in self.weights]

    def next_pull(self) -> float:
        """Return how far the next update goes towards the weights, as a part of the way."""
        self.updates += 1
        return 1.0 - min(self.decay, (1.0 + self.updates) / (10.0 + self.updates))

    def update(self, pull: Tensor) -> None:
        """Move the average towards the weights as they are now."""
        for average, weight in zip(self.average, self.weights, strict=True):
            average.lerp_(weight, pull)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average in the weights' place for a while."""
        own = [weight.clone() for weight in self.weights]
        self.load(self.average)
        try:
            yield
        finally:
            self.load(own)

    def copy(self) -> list[Tensor]:
        """Return a copy of the average."""
        return [value.clone() for value in self.average]

    def load(self, values: Sequence[Tensor]) -> None:
        """Put these values into the weights."""
        for weight, value in zip(self.weights, values, strict=True):
            weight.copy_(value)
