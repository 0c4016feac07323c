"""Features of the columns of a table, for a network to read."""

import itertools
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from postmatch.distributions.columns import ColumnSpec


@final
class ColumnFeatures(nn.Module):
    """Turn ``(x, observed)`` into features, all zero where nothing is observed.

    A number becomes its value and its place among the column's quantiles (piecewise linear: how
    far through each gap between knots), so that a network sees steps as easily as slopes; a
    category becomes its indicator, and so does a value that many cells share; each column adds
    whether it is observed.
    """

    scaled: Tensor
    category: Tensor
    centre: Tensor
    spread: Tensor
    low: Tensor
    gap: Tensor
    start: Tensor
    size: Tensor
    atom_of: Tensor
    atom: Tensor
    reach: Tensor

    def __init__(self, specs: Sequence[ColumnSpec]) -> None:
        super().__init__()
        scaled = [i for i, spec in enumerate(specs) if spec.kind != "category"]
        category = [i for i, spec in enumerate(specs) if spec.kind == "category"]
        sizes = torch.tensor([specs[i].size for i in category], dtype=torch.long)
        self.num_levels = int(sizes.sum())
        lows, gaps = _gaps([specs[i].edges for i in scaled])
        constants = {
            "scaled": torch.tensor(scaled, dtype=torch.long),
            "category": torch.tensor(category, dtype=torch.long),
            "centre": torch.tensor([specs[i].centre for i in scaled]),
            "spread": torch.tensor([specs[i].spread for i in scaled]),
            "low": lows,
            "gap": gaps,
            "start": sizes.cumsum(0) - sizes,
            "size": sizes,
        }
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)
        self.num_features = len(scaled) * (lows.shape[1] + 1) + self.num_levels + len(specs)
        atoms = [(i, value, 0.5 * s.step) for i, s in enumerate(specs) for value, _ in s.atoms]
        self.num_features += len(atoms)
        at = torch.tensor(atoms, dtype=torch.float64).view(-1, 3)  # column, value, half a step
        self.register_buffer("atom_of", at[:, 0].long(), persistent=False)
        self.register_buffer("atom", at[:, 1].to(self.low.dtype), persistent=False)
        self.register_buffer("reach", at[:, 2].to(self.low.dtype), persistent=False)

    def forward(self, x: Tensor, observed: Tensor) -> Tensor:
        """Return features, ``(batch, num_features)``; hidden entries of ``x`` may hold anything."""
        seen = observed.to(self.low.dtype)
        x = x.masked_fill(~observed, 0.0)
        number = x.index_select(1, self.scaled)
        number_seen = seen.index_select(1, self.scaled)
        place = ((number.unsqueeze(-1) - self.low) / self.gap).clamp(0.0, 1.0)
        place = (place - 0.5) * number_seen.unsqueeze(-1)  # (batch, columns, gaps)
        value = ((number - self.centre) / self.spread).clamp(-5.0, 5.0) * number_seen
        parts = [place.flatten(1), value, seen]
        if len(self.atom):
            at_atom = (x.index_select(1, self.atom_of) - self.atom).abs() <= self.reach
            parts.append(at_atom * seen.index_select(1, self.atom_of))
        if self.num_levels:
            code = x.index_select(1, self.category).long()
            code = torch.minimum(code.clamp_min(0), self.size - 1) + self.start
            levels = x.new_zeros(x.shape[0], self.num_levels)  # not len, which fixes the size
            parts.append(levels.scatter(1, code, seen.index_select(1, self.category)))
        return torch.cat(parts, dim=1)


def _gaps(knots: Sequence[tuple[float, ...]]) -> tuple[Tensor, Tensor]:
    """Return lower ends and widths of the gaps, ``(columns, gaps)``, padded beyond the last."""
    longest = max((len(k) for k in knots), default=2) - 1
    lows, gaps = [], []
    for k in knots:
        pad = longest - (len(k) - 1)
        lows.append([*k[:-1], *[k[-1]] * pad])
        gaps.append([b - a for a, b in itertools.pairwise(k)] + [k[-1] - k[0]] * pad)
    return torch.tensor(lows).view(-1, longest), torch.tensor(gaps).view(-1, longest)
