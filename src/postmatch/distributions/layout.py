"""Where the parameters of each column stand in the output of a decoder."""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from postmatch.distributions.columns import ColumnSpec


@final
class ScaledColumns(nn.Module):
    """Constants of the columns with an order, numbers and ordered levels, each in its own spread.

    A decoder speaks of ``(x - centre) / spread``; ``half_step`` is half the resolution there.
    """

    index: Tensor
    centre: Tensor
    spread: Tensor
    half_step: Tensor
    log_width: Tensor
    lowest: Tensor
    highest: Tensor
    anchor: Tensor
    grid: Tensor

    def __init__(self, index: Sequence[int], specs: Sequence[ColumnSpec]) -> None:
        super().__init__()
        self.ordered = [i for i, spec in enumerate(specs) if spec.kind == "ordered"]
        self.levels = max((specs[i].size for i in self.ordered), default=0)
        ordered = torch.tensor([spec.kind == "ordered" for spec in specs], dtype=torch.bool)
        mass = ordered | torch.tensor([spec.discrete for spec in specs], dtype=torch.bool)
        step = torch.tensor([1.0 if s.kind == "ordered" else s.step for s in specs])
        spread = torch.tensor([spec.spread for spec in specs])
        top = torch.tensor([spec.size - 1.0 for spec in specs])
        constants = {
            "index": torch.tensor(index, dtype=torch.long),
            "centre": torch.tensor([spec.centre for spec in specs]),
            "spread": spread,
            "half_step": 0.5 * step / spread,
            "log_width": torch.where(mass, torch.zeros_like(step), step.log()),
            "lowest": torch.where(ordered, 0.0, -torch.inf),
            "highest": torch.where(ordered, top, torch.inf),
            "anchor": torch.tensor([0.0 if s.kind == "ordered" else s.knots[0] for s in specs]),
            "grid": torch.where(mass, step, 0.0),
        }
        for name, value in constants.items():
            self.register_buffer(name, value, persistent=False)


@final
class AtomColumns(nn.Module):
    """Columns of numbers some of whose values repeat, padded to the most such values.

    ``index`` is their place among the scaled columns; ``value`` is ``(atoms, columns)``, NaN beyond
    each column's own, and ``reach`` is half the resolution, in units of x.
    """

    index: Tensor
    value: Tensor
    reach: Tensor

    def __init__(self, specs: Sequence[ColumnSpec]) -> None:
        super().__init__()
        index = [i for i, spec in enumerate(specs) if spec.atoms]
        self.most = max((len(spec.atoms) for spec in specs), default=0)
        value = torch.full((self.most, len(index)), torch.nan)
        for place, i in enumerate(index):
            value[: len(specs[i].atoms), place] = torch.tensor([a for a, _ in specs[i].atoms])
        reach = torch.tensor([0.5 * specs[i].step for i in index])
        self.register_buffer("index", torch.tensor(index, dtype=torch.long), persistent=False)
        self.register_buffer("value", value, persistent=False)
        self.register_buffer("reach", reach, persistent=False)

    def hit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether each number is at one of its column's atoms, and at which."""
        distance = (x.index_select(-1, self.index).unsqueeze(-2) - self.value).abs()
        nearest = distance.nan_to_num(torch.inf).min(-2)
        return nearest.values <= self.reach, nearest.indices


@final
class CategoryGroup(nn.Module):
    """Category columns of similar size, padded to the largest of them."""

    index: Tensor
    place: Tensor
    padding: Tensor

    def __init__(self, index: Sequence[int], starts: Sequence[int], sizes: Sequence[int]) -> None:
        super().__init__()
        level = torch.arange(max(sizes))
        padding = level[:, None] >= torch.tensor(sizes)
        place = (torch.tensor(starts) + level[:, None]).masked_fill(padding, 0)
        self.register_buffer("index", torch.tensor(index, dtype=torch.long), persistent=False)
        self.register_buffer("place", place, persistent=False)  # (levels, columns)
        self.register_buffer("padding", padding, persistent=False)

    def logits(self, parameters: Tensor) -> Tensor:
        """Return ``(..., levels, columns)`` with minus infinity beyond each column's own levels."""
        flat = parameters.index_select(-1, self.place.flatten())
        padded = torch.unflatten(flat, -1, self.place.shape)
        return padded.masked_fill(self.padding, -torch.inf)


@final
class ColumnLayout(nn.Module):
    """The plan of a decoder's output for columns of different types.

    Numbers and ordered levels come first, ``(3, components, columns)``: logits, means and raw
    scales of their mixtures; then the logits of atoms, ``(atoms, columns with atoms)``; then those
    of every category.
    """

    order: Tensor

    def __init__(self, specs: Sequence[ColumnSpec], num_components: int) -> None:
        super().__init__()
        self.specs = tuple(specs)
        self.num_components = num_components
        scaled = [i for i, spec in enumerate(specs) if spec.kind != "category"]
        self.scaled = ScaledColumns(scaled, [self.specs[i] for i in scaled])
        self.num_mixture = len(scaled) * 3 * num_components
        self.atoms = AtomColumns([self.specs[i] for i in scaled])
        grouped: dict[int, list[tuple[int, int, int]]] = {}
        start = self.num_mixture + self.atoms.value.numel()
        for i, spec in enumerate(specs):
            if spec.kind == "category":
                rounded = 1 << max(1, (spec.size - 1).bit_length())
                grouped.setdefault(rounded, []).append((i, start, spec.size))
                start += spec.size
        self.groups = nn.ModuleList(
            CategoryGroup(*zip(*members, strict=True)) for _, members in sorted(grouped.items())
        )
        self.num_outputs = start
        columns = torch.cat([self.scaled.index, *(group.index for group in self.category_groups)])
        self.register_buffer("order", columns.argsort(), persistent=False)

    @property
    def category_groups(self) -> list[CategoryGroup]:
        """The groups of category columns."""
        return [group for group in self.groups if isinstance(group, CategoryGroup)]

    def initial_bias(self) -> Tensor:
        """Return parameters under which every number has about its marginal distribution."""
        bias = torch.zeros(self.num_outputs)
        marginals = [
            _marginal(self.specs[i], self.num_components) for i in self.scaled.index.tolist()
        ]
        if marginals:
            bias[: self.num_mixture] = torch.stack(marginals, dim=-1).flatten()
        logits = bias[self.num_mixture :][: self.atoms.value.numel()].view_as(self.atoms.value)
        for place, i in enumerate(self.scaled.index[self.atoms.index].tolist()):
            atoms = self.specs[i].atoms
            logits[: len(atoms), place] = torch.tensor([share for _, share in atoms]).log()
        return bias


def _marginal(spec: ColumnSpec, count: int) -> Tensor:
    """Return logits, means and raw scales of components spread over the column's quantiles.

    They share what the atoms leave, at least a hundredth; the logits of atoms are their log shares.
    """
    edges = (torch.tensor(spec.edges) - spec.centre) / spec.spread
    place = (torch.arange(count) + 0.5) / count * (len(edges) - 1)
    left = place.long().clamp(max=len(edges) - 2)
    gap = edges[left + 1] - edges[left]
    mean = edges[left] + (place - left) * gap
    scale = 0.5 * gap * (len(edges) - 1) / count + 0.05
    left_over = max(1.0 - sum(share for _, share in spec.atoms), 0.01)
    logits = torch.full((count,), math.log(left_over / count))
    return torch.cat([logits, mean, scale.expm1().log()])
