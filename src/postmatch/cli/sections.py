"""The sections of a report, each from numbers to HTML."""

import html
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from postmatch.cli import page, svg
from postmatch.cli.evidence import Evidence, in_units
from postmatch.cli.wording import contents, trained, written
from postmatch.models import TableModel
from postmatch.tables import Column, Table
from postmatch.tables.cells import counted, level_text

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FEW_LANES, MOST_LANES, FEW_CARDS, MOST_CARDS, MOST_BARS, MOST_STRIPS = 16, 40, 12, 24, 7, 280
KEY = (
    '<p class="key"><i style="background:#b9cde4"></i>observed'
    '<i style="background:#d8602b"></i>imputed</p>'
)


def overview(name: str, table: Table, observed: Bools, evidence: Evidence) -> str:
    """Return the title and what matters most."""
    rows, columns = observed.shape
    holes, gappy = int((~observed).sum()), int((~observed).any(1).sum())
    numbers = [
        _tile(rows, "row"),
        _tile(columns, "column")
        if columns == len(table.columns)
        else (f"{columns:,}", f"of {counted(len(table.columns), 'column')} modelled"),
        _tile(holes, "cell", f" missing, {_share(holes, observed.size)} of all"),
        _tile(gappy, "row", f" with a gap, {_share(gappy, rows)} of all"),
    ]
    if np.isfinite(evidence.covered):
        numbers.append((f"{evidence.covered:.0%}", "of hidden numbers lay in their 90 % intervals"))
    title = f"<h1>{html.escape(name)}</h1>"
    sub = page.paragraph("What is missing, what was put there, and how far to trust it.", "sub")
    return f"<header>{title}{sub}</header>{page.tiles(numbers)}"


def _tile(number: int, thing: str, more: str = "") -> tuple[str, str]:
    value, words = counted(number, thing).split()
    return value, words + more


def missingness(table: Table, observed: Bools) -> str:
    """Return the map of missing cells and the commonest patterns of holes."""
    hidden = ~observed
    names = [column.name for column in table.modelled]
    counts = hidden.sum(0)
    if not counts.any():
        return page.section("What is missing", page.paragraph("Nothing: every cell is there."))
    shown = np.arange(len(names))
    if len(names) > FEW_LANES:
        shown = np.flatnonzero(counts)
        shown = np.sort(shown[np.argsort(-counts[shown], kind="stable")[:MOST_LANES]])
    edges = np.linspace(0, len(hidden), min(MOST_STRIPS, len(hidden)) + 1).astype(int)
    strips = np.add.reduceat(hidden[:, shown].astype(float), edges[:-1], axis=0)
    shares = (strips / np.diff(edges)[:, None]).T  # (columns, strips)
    picture = svg.missing_map(
        [names[i] for i in shown], shares, [int(counts[i]) for i in shown], len(hidden)
    ).replace("<svg", '<svg class="wide"', 1)
    words = "Each line is a column, along which the rows of the table run from left to right."
    if len(shown) < len(names):
        complete, more = int((counts == 0).sum()), int((counts > 0).sum()) - len(shown)
        words += f" Complete: {counted(complete, 'column')}" + (
            f"; not shown: {more:,}." if more else "."
        )
    return page.section(
        "What is missing", page.paragraph(words, "quiet"), picture, _patterns(names, hidden)
    )


def _patterns(names: Sequence[str], hidden: Bools) -> str:
    packed = Counter(map(bytes, np.packbits(hidden, axis=1)))
    rows = []
    for key, count in packed.most_common(6):
        bits = np.unpackbits(np.frombuffer(key, np.uint8))[: len(names)].astype(bool)
        missing = [names[i] for i in np.flatnonzero(bits).tolist()]
        text = ", ".join(missing[:8]) + (
            f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        )
        rows.append(
            [text or "nothing: the row is complete", f"{count:,}", _share(count, len(hidden))]
        )
    if len(packed) > len(rows):
        rest = len(hidden) - sum(count for _, count in packed.most_common(6))
        rows.append(
            [
                counted(len(packed) - len(rows), "other pattern"),
                f"{rest:,}",
                _share(rest, len(hidden)),
            ]
        )
    return page.grid(["What is missing together", "rows", "share"], rows, (1, 2))


def distributions(
    table: Table, x: Tensor, observed: Tensor, drawn: Tensor, drawn_hidden: Tensor, best: Tensor
) -> str:
    """Return a picture for each column: observed values, and draws for the holes.

    Args:
        table: The columns.
        x: All rows.
        observed: Of them.
        drawn: Completed rows, ``(samples, some rows, columns)``.
        drawn_hidden: The holes of those rows.
        best: The best guesses for those rows.
    """
    holes = (~observed).sum(0).numpy()
    order = [i for i in np.argsort(holes == 0, kind="stable") if observed[:, i].any()]
    cards = []
    for index in order[: int(np.clip((holes > 0).sum(), FEW_CARDS, MOST_CARDS))]:
        column, gaps = table.modelled[index], drawn_hidden[:, index]
        seen = in_units(column, x[observed[:, index], index])
        filled = (
            in_units(column, drawn[:, gaps, index], answer=True).ravel() if gaps.any() else None
        )
        count = int(holes[index])
        aside = f"{column.kind}, {count:,} missing" if count else f"{column.kind}, complete"
        if column.is_number:
            picture = _histograms(
                column, seen, filled, in_units(column, best[gaps, index], answer=True)
            )
        else:
            picture = _bars(column, seen, filled)
        cards.append(page.card(column.name, aside, picture))
    text = (
        "What was observed in a column, and the draws for its holes, each given the rest of its "
        "row. The two need not agree: holes may belong to another kind of row. Ticks under an axis "
        "are single best guesses."
    )
    if len(order) > len(cards):
        text += f" Not shown: {counted(len(order) - len(cards), 'column')}."
    body = "".join(cards)
    return page.section(
        "Observed and imputed",
        page.paragraph(text, "quiet"),
        KEY,
        f'<div class="cards">{body}</div>',
    )


def bin_edges(column: Column, seen: Floats) -> Floats:
    """Return the edges of a column's histogram; what lies beyond goes into the last bins."""
    low, high = np.quantile(seen, [0.005, 0.995])
    if not high > low:
        low, high = float(seen.min()), float(seen.max())
    if not high > low:
        low, high = low - 0.5, high + 0.5
    unit = column.unit
    if unit and (high - low) / unit <= 40:  # a bin for every value
        return np.arange(low - unit / 2, high + unit, unit)
    bins = int(np.clip(np.sqrt(len(seen)), 8, 32))
    if unit:
        step = max(1.0, np.round((high - low) / unit / bins)) * unit
        return np.arange(low - unit / 2, high + step, step)
    return np.linspace(low, high, bins + 1)


def heights(values: Floats, edges: Floats) -> Floats:
    """Return the share of values in each bin."""
    counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
    shares: Floats = counts / max(1, counts.sum())
    return shares


def _histograms(column: Column, seen: Floats, filled: Floats | None, best: Floats) -> str:
    edges = bin_edges(column, seen)
    marks = best if len(best) <= 40 else best[:0]
    over = None if filled is None else heights(filled, edges)
    return svg.two_histograms(
        edges, heights(seen, edges), over, marks, lambda v: written(column, v), column.unit
    )


def _bars(column: Column, seen: Floats, filled: Floats | None) -> str:
    size = len(column.levels)
    shares = np.bincount(seen.astype(int), minlength=size) / max(1, len(seen))
    drawn = (
        np.bincount(filled.astype(int), minlength=size) / len(filled)
        if filled is not None
        else None
    )
    if column.kind == "ordered" and size <= 12:
        shown = np.arange(size)
    else:
        weight = shares if drawn is None else np.maximum(shares, drawn)
        shown = np.argsort(-weight, kind="stable")[: MOST_BARS if size > MOST_BARS + 1 else size]
    labels = [level_text(column.levels[i]) for i in shown]
    rest = np.setdiff1d(np.arange(size), shown)
    if len(rest):
        labels.append(f"{len(rest)} others")

    def with_rest(values: Floats) -> Floats:
        return np.append(values[shown], values[rest].sum()) if len(rest) else values[shown]

    return svg.two_bars(labels, with_rest(shares), None if drawn is None else with_rest(drawn))


def columns(table: Table, observed: Bools) -> str:
    """Return what every column was taken for."""
    missing = dict(zip((id(c) for c in table.modelled), (~observed).sum(0), strict=True))
    rows = []
    for column in table.columns:
        count = missing.get(id(column))
        gaps = "" if count is None else f"{int(count):,}"
        rows.append([column.name, column.kind, contents(column), gaps])
    parts = [page.grid(["Column", "taken for", "values", "missing"], rows, (3,))]
    if table.notes:
        parts.append(page.points(table.notes))
    parts.append(
        page.paragraph(
            "If a column was taken for the wrong thing, say so: --categorical, --ordered, "
            "--numeric, --ignore or --missing, and fit again.",
            "quiet",
        )
    )
    return page.section("What the columns were taken for", *parts)


def footer(model: TableModel, command: str) -> str:
    """Return how the page was made."""
    facts = model.facts
    made = [f"postmatch {facts.get('version', '')}"]
    if "steps" in facts:
        made.append(f"trained for {trained(model)} in {facts.get('seconds', 0):,.0f} s")
    if "seed" in facts:
        made.append(f"seed {facts['seed']}")
    text = " · ".join(made)
    return f"<footer>{html.escape(text)}<br><code>{html.escape(command)}</code></footer>"


def _share(part: int, whole: int) -> str:
    share = part / max(1, whole)
    return (
        f"{share:.0%}"
        if share >= 0.1 or share == 0
        else f"{share:.1%}"
        if share >= 0.001
        else "under 0.1%"
    )
