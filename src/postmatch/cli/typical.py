"""What is typical of a group of rows, in words."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from postmatch.cli.numbers import percent, shortened
from postmatch.cli.wording import labelled, written
from postmatch.tables import Column, Table
from postmatch.tables.cells import level_text

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
MOST = 3  # columns that are named
LEAST = 0.5  # standard deviations by which a group differs from the rest


def typical(table: Table, data: Any, groups: Whole, count: int) -> list[list[str]]:
    """Return, for each group, the columns in which it differs most from the other rows.

    Numbers are compared by their means, levels by how common they are; what orders columns is the
    difference in standard deviations of the number, or of having the level.

    Args:
        table: What was learned of the columns.
        data: The rows.
        groups: The group of each.
        count: How many groups there are.
    """
    x, observed = table.encode(data)
    columns = labelled(table)
    cells = [x[:, i].numpy().astype(np.float64) for i in range(len(columns))]
    seen = [observed[:, i].numpy() for i in range(len(columns))]
    told = []
    for group in range(count):
        inside = groups == group
        found = [
            best
            for (column, label), values, there in zip(columns, cells, seen, strict=True)
            for best in _difference(column, label, values[there], inside[there])
        ]
        found.sort(key=lambda pair: -pair[0])
        told.append([words for size, words in found[:MOST] if size >= LEAST])
    return told


def _difference(
    column: Column, label: str, values: Floats, inside: NDArray[np.bool_]
) -> Iterator[tuple[float, str]]:
    """Yield how much a group differs in a column, and in which words, if both sides have cells."""
    if inside.all() or not inside.any():
        return
    name = shortened(label, 24)
    if column.is_number:
        ours, theirs = (float(values[part].mean()) for part in (inside, ~inside))
        size = abs(ours - theirs) / (float(values.std()) + 1e-12)
        texts = [written(column, float(v)) for v in column.decode(np.array([ours, theirs]))]
        yield size, f"{name} {texts[0]} (others {texts[1]})"
        return
    shares = [_shares(values[part], len(column.levels)) for part in (inside, ~inside)]
    overall = _shares(values, len(column.levels))
    sizes = (shares[0] - shares[1]) / (np.sqrt(overall * (1.0 - overall)) + 1e-12)
    level = int(sizes.argmax())
    text = shortened(level_text(column.levels[level]), 24)
    texts = [percent(float(share[level])) for share in shares]
    yield float(sizes[level]), f"{name} is {text} in {texts[0]} (others {texts[1]})"


def _shares(codes: Floats, levels: int) -> Floats:
    counts = np.bincount(codes.astype(np.int64), minlength=levels)
    return np.asarray(counts / max(1, counts.sum()), np.float64)
