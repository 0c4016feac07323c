"""What can be measured of a table's rows, by the names of its columns."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from postmatch.offers import Offers
from postmatch.tables import Column, Table
from postmatch.tables.overrides import several, unknown_name

Names = str | Collection[str]


@final
@dataclass(frozen=True)
class Expected:
    """What a hidden cell is expected to hold, in the user's units; dates in days since 1970.

    Args:
        column: Which.
        best: Its mean, or its most probable level.
        low: The lower end of the interval that holds 90 % of a number; None for levels.
        high: The upper end.
        probability: Of the best level; None for numbers.
    """

    column: Column
    best: Any
    low: float | None = None
    high: float | None = None
    probability: float | None = None


@final
@dataclass(frozen=True)
class Ranked:
    """An offer to one row.

    Args:
        name: Of the column or group.
        gain: What it is expected to tell, in nats.
        cost: What it costs.
        expected: What its hidden columns are expected to hold.
    """

    name: str
    gain: float
    cost: float
    expected: tuple[Expected, ...]

    @property
    def value(self) -> float:
        """The gain per cost, by which offers are ranked."""
        return self.gain / self.cost


@final
@dataclass(frozen=True)
class Advice:
    """What to measure next of one row.

    Args:
        offers: Those that would show anything new, the best per cost first.
        target: What the target is expected to be as yet.
    """

    offers: tuple[Ranked, ...]
    target: tuple[Expected, ...]


@final
@dataclass(frozen=True)
class TableOffers:
    """What can be measured of a row, at what cost, and what is to be predicted.

    Args:
        names: Of the offers: those of columns, and of groups of them.
        columns: What each shows.
        offers: The same by the places of the columns in x.
        target: Columns to be predicted; none for all that z tells.
        asked: Where they are in x, bool, ``(columns,)``; None without a target.
    """

    names: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    offers: Offers
    target: tuple[str, ...]
    asked: Tensor | None


def table_offers(
    table: Table,
    *,
    target: Names = (),
    costs: Mapping[str, float] | None = None,
    groups: Mapping[str, Collection[str]] | None = None,
    cannot: Collection[str] = (),
) -> TableOffers:
    """Return the offers of a table's modelled columns.

    Args:
        table: Which columns there are.
        target: The column to be predicted, or several; they are not on offer. None of them: offers
            are judged by what they tell of z, and so of all other columns.
        costs: Of columns and groups, by name; all others cost 1.
        groups: Columns that come together, by the name of the group; none of them comes alone.
        cannot: Columns that cannot be measured.
    """
    names = [column.name for column in table.modelled]
    groups, costs = dict(groups or {}), dict(costs or {})
    asked = [target] if isinstance(target, str) else list(target)
    closed = [*_known("target", asked, names), *_known("cannot", several("cannot", cannot), names)]
    offered: dict[str, tuple[str, ...]] = {}
    for group, members in groups.items():
        _check_group(group, members, names, closed, offered)
        offered[group] = tuple(members)
    together = {name for members in offered.values() for name in members}
    alone = [name for name in names if name not in {*closed, *together}]
    offered |= {name: (name,) for name in alone}
    if not offered:
        raise ValueError("cannot and target must leave a column that can be measured")
    _check_costs(costs, offered)
    place = {name: i for i, name in enumerate(names)}
    return TableOffers(
        names=tuple(offered),
        columns=tuple(offered.values()),
        offers=Offers.of(
            [[place[name] for name in members] for members in offered.values()],
            len(names),
            [float(costs.get(name, 1.0)) for name in offered],
        ),
        target=tuple(asked),
        asked=torch.tensor([name in asked for name in names]) if asked else None,
    )


def _known(argument: str, wanted: Collection[str], names: Sequence[str]) -> Collection[str]:
    for name in wanted:
        if name not in names:
            raise ValueError(f"{argument}: {unknown_name(name, names)}")
        if names.count(name) > 1:
            raise ValueError(f"{argument}: {names.count(name)} columns are named {name!r}")
    return wanted


def _check_group(
    group: str,
    members: Collection[str],
    names: Sequence[str],
    closed: Sequence[str],
    before: Mapping[str, tuple[str, ...]],
) -> None:
    if not _known("groups", several("groups", members), names):
        raise ValueError(f"groups: {group} must name a column")
    if group in names and group not in members:
        raise ValueError(f"groups: {group} is the name of a column that is not in it")
    taken = {name: other for other, own in before.items() for name in own}
    for name in members:
        if name in closed:
            raise ValueError(f"groups: {group} has {name!r}, which is a target or cannot be had")
        if name in taken:
            raise ValueError(f"groups: {name!r} is both in {taken[name]} and in {group}")


def _check_costs(costs: Mapping[str, float], offered: Mapping[str, tuple[str, ...]]) -> None:
    for name, cost in costs.items():
        if name not in offered:
            raise ValueError(f"costs: {name!r} is not on offer; {', '.join(offered)} are")
        if not (isinstance(cost, int | float) and cost > 0 and math.isfinite(cost)):
            raise ValueError(f"costs: that of {name} must be positive and finite, got {cost!r}")
