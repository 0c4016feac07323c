"""What a model must know of one column of a table, whatever its type."""

import itertools
import math
from dataclasses import dataclass
from typing import Literal, final

Kind = Literal["number", "ordered", "category"]


@final
@dataclass(frozen=True)
class ColumnSpec:
    """One column of ``x``: a number on its own scale, or a level's code (0, 1, 2, ...) as a float.

    Args:
        kind: ``number``, ``ordered`` (levels with an order) or ``category`` (levels without).
        size: How many levels; 1 for numbers.
        step: Numbers only: the resolution to which values are known, in units of ``x``. A value
            stands for the interval of this width around it, so that no density exceeds 1 / step.
        discrete: Numbers only: values lie ``step`` apart, so ``log_prob`` is a mass, not a density.
        knots: Numbers only: increasing quantiles of the observed values, from lowest to highest.
        atoms: Numbers only: increasing values that many cells share, such as the zeros of an
            amount, each with its share of the column. They are at least ``step`` apart.
    """

    kind: Kind
    size: int = 1
    step: float = 1e-3
    discrete: bool = False
    knots: tuple[float, ...] = (-1.0, 0.0, 1.0)
    atoms: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("number", "ordered", "category"):
            raise ValueError(f"kind must be number, ordered or category, got {self.kind!r}")
        if self.kind == "number":
            if not (self.step > 0.0 and math.isfinite(self.step)):
                raise ValueError(f"step must be positive and finite, got {self.step}")
            if len(self.knots) < 2 or any(
                a >= b for a, b in zip(self.knots, self.knots[1:], strict=False)
            ):
                raise ValueError(f"knots must increase and be at least two, got {self.knots}")
            self._check_atoms()
        elif self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")

    def _check_atoms(self) -> None:
        values = [value for value, _ in self.atoms]
        gaps = (b - a for a, b in itertools.pairwise(values))
        if any(gap < 0.999 * self.step for gap in gaps):
            raise ValueError(f"atoms must increase by at least step {self.step}, got {values}")
        if any(not 0.0 < share <= 1.0 for _, share in self.atoms):
            raise ValueError(f"shares of atoms must lie in (0, 1], got {self.atoms}")

    @property
    def edges(self) -> tuple[float, ...]:
        """The knots of a number; of ordered levels the borders between the whole numbers."""
        if self.kind == "number":
            return self.knots
        return tuple(level - 0.5 for level in range(self.size + 1))

    @property
    def centre(self) -> float:
        """The median of the column."""
        return self.edges[len(self.edges) // 2]

    @property
    def spread(self) -> float:
        """Half the distance between the outer deciles, or what comes near it."""
        edges = self.edges
        outer = round(0.1 * (len(edges) - 1))
        return max(0.5 * (edges[-1 - outer] - edges[outer]), 0.02 * (edges[-1] - edges[0]))
