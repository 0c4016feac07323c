"""A running average of weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn


@final
class WeightAverage:
    """The exponential moving average of some parameters, with a faster start.

    Args:
        parameters: What is averaged; the average starts as a copy of them.
        decay: How much of the old average each update keeps, in the long run.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float) -> None:
        self.parameters, self.decay, self.updates = list(parameters), decay, 0
        self.average = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the parameters as they are now."""
        self.updates += 1
        decay = min(self.decay, (1.0 + self.updates) / (10.0 + self.updates))
        torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average in the parameters' place for a while."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def copy(self) -> list[Tensor]:
        """Return a copy of the average."""
        return [value.clone() for value in self.average]

    @torch.no_grad()
    def load(self, values: Sequence[Tensor]) -> None:
        """Put these values into the parameters."""
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    def _swap(self) -> None:
        for i, parameter in enumerate(self.parameters):
            parameter.data, self.average[i] = self.average[i], parameter.data
