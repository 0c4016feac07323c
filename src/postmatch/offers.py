"""What can be measured, and at what cost."""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor


@final
class Offers:
    """What can be measured: features or groups of them that come together, and what they cost.

    Features that no offer has cannot be bought.

    Args:
        reveals: What each offer shows, bool, ``(offers, *features)``.
        costs: One positive number per offer; all cost 1 by default.
    """

    def __init__(self, reveals: Tensor, costs: Sequence[float] | Tensor | None = None) -> None:
        if reveals.dtype != torch.bool or reveals.dim() < 2:
            raise ValueError("reveals must be bool with one row of features for each offer")
        if not reveals.flatten(1).any(1).all():
            raise ValueError("reveals must show at least one feature in each offer")
        count = len(reveals)
        prices = torch.ones(count) if costs is None else torch.as_tensor(costs, dtype=torch.float32)
        if prices.shape != (count,):
            raise ValueError(f"costs must have one entry for each of {count} offers")
        if not (prices > 0).all() or not prices.isfinite().all():
            raise ValueError("costs must be positive and finite")
        self._keep(reveals, prices)

    def _keep(self, reveals: Tensor, costs: Tensor, *, single: bool | None = None) -> None:
        self.reveals, self.costs = reveals, costs
        if single is None:  # each feature on its own, in order: the usual case, and the fastest
            size = reveals[0].numel()
            alone = torch.eye(size, dtype=torch.bool, device=reveals.device)
            single = len(reveals) == size and torch.equal(reveals.flatten(1), alone)
            self.equal = bool((costs == 1.0).all())
        self.single = single
        # Which one each offer shows, where that is known to be one.
        self.features = torch.arange(len(reveals), device=reveals.device) if single else None

    @classmethod
    def each(
        cls, features: Sequence[int], costs: Sequence[float] | Tensor | None = None
    ) -> "Offers":
        """Return offers of one feature each.

        Args:
            features: The shape of a row's mask.
            costs: Of the features, in order.
        """
        count = math.prod(features)
        return cls(torch.eye(count, dtype=torch.bool).view(count, *features), costs)

    @classmethod
    def of(
        cls,
        groups: Sequence[Sequence[int]],
        num_features: int,
        costs: Sequence[float] | Tensor | None = None,
    ) -> "Offers":
        """Return offers of groups of columns.

        Args:
            groups: The columns of each.
            num_features: How many columns there are.
            costs: Of the groups, in order.
        """
        reveals = torch.zeros(len(groups), num_features, dtype=torch.bool)
        for row, group in zip(reveals, groups, strict=True):
            for column in group:
                if not 0 <= column < num_features:
                    raise ValueError(f"groups must name columns 0 to {num_features - 1}: {column}")
                row[column] = True
        return cls(reveals, costs)

    @classmethod
    def trusted(cls, reveals: Tensor, costs: Tensor, features: Tensor | None = None) -> "Offers":
        """Return offers that need no checks, which would make a GPU wait.

        Args:
            reveals: What each shows.
            costs: Of the offers.
            features: The one feature that each shows, if it is one.
        """
        offers = cls.__new__(cls)
        offers._keep(reveals, costs, single=False)
        offers.equal, offers.features = False, features
        return offers

    def on(self, device: torch.device) -> "Offers":
        """Return the same offers on a device."""
        offers = Offers.__new__(Offers)
        offers._keep(self.reveals.to(device), self.costs.to(device), single=self.single)
        offers.equal = self.equal
        offers.features = None if self.features is None else self.features.to(device)
        return offers

    def without(self, features: Tensor) -> "Offers":
        """Return the offers that show none of some features, such as those to be predicted.

        Args:
            features: bool, of the shape of a row's mask.
        """
        shown = (self.reveals & features.to(self.reveals.device)).flatten(1).any(1)
        if shown.all():
            raise ValueError("features must leave at least one offer")
        return Offers(self.reveals[~shown], self.costs[~shown])

    def open(self, observed: Tensor) -> Tensor:
        """Return which offers would show anything new, ``(batch, offers)``."""
        if self.single:
            return ~observed.flatten(1)
        hidden = (~observed).flatten(1).to(torch.float32)
        return hidden @ self.reveals.flatten(1).to(hidden).mT > 0.0
