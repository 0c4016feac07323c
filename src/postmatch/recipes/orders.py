"""Orders of measuring to compare with: one for all rows, or none."""

from typing import final

import torch
from torch import Tensor

from postmatch.acquisition import Acquirer
from postmatch.offers import Offers


@final
class RandomOrder(Acquirer):
    """Pixels in any order, another for each image.

    Args:
        offers: What can be measured.
        seed: Of the orders.
    """

    def __init__(self, offers: Offers, seed: int = 0) -> None:
        super().__init__(offers)
        self.generator = torch.Generator().manual_seed(seed)

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:  # noqa: ARG002
        """Return random numbers."""
        return torch.rand(len(x), len(self.offers.costs), generator=self.generator).to(x.device)


@final
class FixedOrder(Acquirer):
    """The same order for all images.

    Args:
        offers: What can be measured.
        order: Numbers of offers, best first; those left out come last.
    """

    def __init__(self, offers: Offers, order: Tensor) -> None:
        super().__init__(offers)
        gains = torch.zeros(len(offers.costs))
        gains[order.cpu()] = torch.arange(len(order), 0.0, -1.0)
        self.gains = gains

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:  # noqa: ARG002
        """Return how early an offer comes."""
        return self.gains.to(x.device).expand(len(x), -1)


@torch.no_grad()
def best_fixed_order(acquirer: Acquirer, x: Tensor, num_steps: int) -> Tensor:
    """Return the offers that tell most on average, one after the other, ``(steps,)``.

    Args:
        acquirer: Tells the gains.
        x: Complete rows to average over.
        num_steps: How many offers.
    """
    reveals, order = acquirer.offers.reveals.to(x.device), []
    observed = torch.zeros(len(x), *reveals.shape[1:], dtype=torch.bool, device=x.device)
    for _ in range(num_steps):
        order.append(int(acquirer(x, observed).mean(0).argmax()))
        observed = observed | reveals[order[-1]]
    return torch.tensor(order)
