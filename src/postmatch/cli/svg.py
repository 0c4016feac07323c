"""Small pictures as inline SVG: data in, text out, nothing else needed."""

import html
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from postmatch.cli.numbers import percent, percents, shortened, text_of, ticks

Floats = NDArray[np.float64]

OBSERVED, IMPUTED = "#3f6fa6", "#d8602b"
PALE, GRID, INK, MUTED = "#b9cde4", "#e3e8ee", "#1d2733", "#66727f"


def picture(width: float, height: float, label: str, body: Sequence[str]) -> str:
    """Return an SVG element that scales with the page and says what it shows."""
    name = html.escape(label, quote=True)
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{name}">'
        f"{''.join(body)}</svg>"
    )


def rectangle(x: float, y: float, width: float, height: float, fill: str, extra: str = "") -> str:
    """Return a filled rectangle."""
    size = f'width="{max(0.0, width):.2f}" height="{max(0.0, height):.2f}"'
    return f'<rect x="{x:.2f}" y="{y:.2f}" {size} fill="{fill}" {extra}/>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, extra: str = "") -> str:
    """Return a straight line."""
    ends = f'x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}"'
    return f'<line {ends} stroke="{stroke}" {extra}/>'


def dot(x: float, y: float, radius: float, fill: str, extra: str = "") -> str:
    """Return a disc."""
    return f'<circle cx="{x:.2f}" cy="{y:.2f}" r="{radius:.2f}" fill="{fill}" {extra}/>'


def words(x: float, y: float, text: str, *, anchor: str = "start", extra: str = "") -> str:
    """Return text, escaped."""
    return (
        f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" {extra}>{html.escape(text)}</text>'
    )


def path(points: Sequence[tuple[float, float]], stroke: str, extra: str = "") -> str:
    """Return a line through points."""
    steps = " L".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return f'<path d="M{steps}" fill="none" stroke="{stroke}" {extra}/>'


def missing_map(names: Sequence[str], shares: Floats, counts: Sequence[int], rows: int) -> str:
    """Return a lane for each column, along which the rows run; darker where more is missing.

    Args:
        names: Of the columns.
        shares: The share of missing cells, ``(columns, strips of rows)``.
        counts: Missing cells of each column.
        rows: Of the table.
    """
    left, lane, wide, right = 170.0, 20.0, 650.0, 104.0
    strips = shares.shape[1]
    strip = wide / strips
    body = []
    for index, (name, share, count) in enumerate(zip(names, shares, counts, strict=True)):
        top = index * lane
        body.append(words(0, top + 14, shortened(name, 24)))
        body.append(rectangle(left, top + 2, wide, lane - 4, "#eef2f6"))
        for place in np.flatnonzero(share > 0):
            shade = 0.35 + 0.65 * share[place]
            width = max(strip, 1.6)  # one row of thousands must still be seen
            body.append(
                rectangle(left + place * strip, top + 2, width, lane - 4, IMPUTED)
                .replace("/>", f'fill-opacity="{shade:.2f}"/>')
            )  # fmt: skip
        share_text = f"{count:,}  ({percent(count / max(1, rows))})" if count else "complete"
        extra = "" if count else f'fill="{MUTED}"'
        body.append(words(left + wide + 10, top + 14, share_text, extra=extra))
    bottom = len(names) * lane
    for row in ticks(1, rows, 6):
        x = left + (row - 0.5) / rows * wide
        body.append(line(x, bottom, x, bottom + 4, MUTED))
        body.append(words(x, bottom + 16, text_of(row), anchor="middle", extra='class="tick"'))
    body.append(words(0, bottom + 16, "row", extra='class="tick"'))
    return picture(left + wide + right, bottom + 22, "Which cells are missing", body)


def two_histograms(
    edges: Floats,
    seen: Floats,
    filled: Floats | None,
    marks: Floats,
    written: Callable[[float], str] = text_of,
    unit: float = 0.0,
) -> str:
    """Return a histogram of observed values, with that of imputed ones over it.

    Args:
        edges: Of the bins.
        seen: Heights of the observed bins.
        filled: Heights of the imputed ones, None if nothing was.
        marks: Single imputed values, drawn as ticks below.
        written: How a value is written under the axis.
        unit: What values are multiples of, if of anything.
    """
    width, height, top, bottom, side = 300.0, 150.0, 8.0, 26.0, 10.0
    low, high = float(edges[0]), float(edges[-1])
    base = height - bottom
    highest = max(float(seen.max()), float(filled.max()) if filled is not None else 0.0) or 1.0

    def across(value: float) -> float:
        return side + (value - low) / (high - low) * (width - 2 * side)

    def up(value: float) -> float:
        return base - value / highest * (base - top)

    body = [
        rectangle(across(a) + 0.4, up(h), across(b) - across(a) - 0.8, base - up(h), PALE)
        for a, b, h in zip(edges[:-1], edges[1:], seen, strict=True)
    ]
    if filled is not None:
        corners = [(across(low), base)]
        for a, b, h in zip(edges[:-1], edges[1:], filled, strict=True):
            corners += [(across(a), up(h)), (across(b), up(h))]
        corners.append((across(high), base))
        body.append(path(corners, IMPUTED, 'stroke-width="1.8" stroke-linejoin="round"'))
    body.append(line(side, base, width - side, base, MUTED, 'stroke-width="0.8"'))
    for value in marks:
        x = across(float(np.clip(value, low, high)))
        body.append(line(x, base + 1, x, base + 7, IMPUTED, 'stroke-width="1.2"'))
    body += [
        words(across(value), height - 6, written(value), anchor="middle")
        for value in ticks(low, high, 4 if len(written(high)) > 6 else 5, unit)
    ]
    return picture(width, height, "Distribution of observed and imputed values", body)


def two_bars(levels: Sequence[str], seen: Floats, filled: Floats | None) -> str:
    """Return a pair of bars for each level: its share among observed and imputed cells."""
    left, wide, right = 98.0, 160.0, 42.0
    lane = 19.0 if filled is None else 27.0
    groups = [(seen, PALE, percents(seen))]
    if filled is not None:
        groups.append((filled, IMPUTED, percents(filled)))
    highest = max(float(shares.max()) for shares, _, _ in groups) or 1.0
    body = []
    for index, level in enumerate(levels):
        top = index * lane
        body.append(words(left - 8, top + lane / 2 + 4, shortened(level, 15), anchor="end"))
        for place, (shares, fill, texts) in enumerate(groups):
            y, length = top + 3 + 11 * place, shares[index] / highest * wide
            body.append(rectangle(left, y, length, 10 if filled is not None else 13, fill))
            extra = 'class="small"' if filled is not None else ""
            body.append(words(left + length + 5, y + 9, texts[index], extra=extra))
    return picture(left + wide + right, len(levels) * lane + 4, "Shares of levels", body)


def against_diagonal(
    x: Floats, y: Floats, *, labels: tuple[str, str], spread: Floats, weight: Floats | None = None
) -> str:
    """Return what came against what was promised; on the diagonal the two agree.

    Args:
        x: What was promised, from 0 to 1.
        y: What came.
        labels: Of the two axes.
        spread: Twice the standard error of each point, had the promise been kept.
        weight: Sizes of the points, which are joined by a line if not given.
    """
    size, left, bottom, top = 300.0, 46.0, 44.0, 8.0
    side = size - left - 10

    def at(across: float, up: float) -> tuple[float, float]:
        return left + across * side, top + (1 - up) * (size - top - bottom)

    body = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        body.append(line(*at(0, value), *at(1, value), GRID))
        body.append(line(*at(value, 0), *at(value, 1), GRID))
        h, v = at(0, value), at(value, 0)
        body.append(words(h[0] - 6, h[1] + 4, f"{value:.0%}", anchor="end"))
        body.append(words(v[0], v[1] + 15, f"{value:.0%}", anchor="middle"))
    body.append(line(*at(0, 0), *at(1, 1), MUTED, 'stroke-dasharray="4 4"'))
    for a, s in zip(x, spread, strict=True):
        lower, upper = at(a, max(0.0, a - s)), at(a, min(1.0, a + s))
        body.append(line(*lower, *upper, PALE, 'stroke-width="7" stroke-opacity="0.75"'))
    points = [at(a, b) for a, b in zip(x, y, strict=True)]
    if weight is None:
        body.append(path(points, OBSERVED, 'stroke-width="1.8"'))
    radii = np.full(len(points), 3.6) if weight is None else 3 + 6 * np.sqrt(weight / weight.max())
    for point, radius in zip(points, radii, strict=True):
        body.append(dot(*point, float(radius), OBSERVED, 'stroke="#fff" stroke-width="1"'))
    middle = top + (size - top - bottom) / 2
    body.append(words(left + side / 2, size - 8, labels[0], anchor="middle"))
    turn = f'transform="rotate(-90 12 {middle:.1f})"'
    body.append(words(12, middle, labels[1], anchor="middle", extra=turn))
    return picture(size, size, f"{labels[1]} against {labels[0]}", body)


def flat_bars(shares: Floats, spread: float, label: str) -> str:
    """Return a histogram that should be flat, with the band chance alone would leave it in."""
    size, left, bottom, top = 300.0, 46.0, 44.0, 8.0
    side, base = size - left - 10, size - bottom
    expected = 1.0 / len(shares)
    highest = max(float(shares.max()), expected + spread, 2 * expected) * 1.05

    def up(value: float) -> float:
        return base - value / highest * (base - top)

    body = []
    for value in ticks(0, highest, 4):
        body.append(line(left, up(value), left + side, up(value), GRID))
        body.append(words(left - 6, up(value) + 4, f"{value:.0%}", anchor="end"))
    step = side / len(shares)
    body += [
        rectangle(left + index * step + 1, up(share), step - 2, base - up(share), PALE)
        for index, share in enumerate(shares)
    ]
    band = up(max(0.0, expected - spread)) - up(expected + spread)
    body.append(rectangle(left, up(expected + spread), side, band, MUTED, 'fill-opacity="0.14"'))
    body.append(
        line(left, up(expected), left + side, up(expected), MUTED, 'stroke-dasharray="4 4"')
    )
    body += [
        words(left + value * side, base + 15, f"{value:.0%}", anchor="middle")
        for value in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    body.append(words(left + side / 2, size - 8, label, anchor="middle"))
    return picture(size, size, label, body)


def interval(
    ends: tuple[float, float],
    best: float,
    quantiles: Sequence[float],
    shape: Floats,
    written: Callable[[float], str] = text_of,
) -> str:
    """Return a number line with the column's own shape behind 90 % and 50 % intervals.

    Args:
        ends: Of the line.
        best: Where the dot stands.
        quantiles: At 5, 25, 75 and 95 %.
        shape: Heights of the column's histogram along the line.
        written: How a value is written under the line.
    """
    width, base, middle = 260.0, 28.0, 15.0
    low, high = ends

    def across(value: float) -> float:
        return 6 + (min(max(value, low), high) - low) / (high - low) * (width - 12)

    step = (width - 12) / len(shape)
    tall = shape / (shape.max() or 1.0) * (base - 3)
    body = [rectangle(6 + i * step, base - h, step, h, "#e4ebf3") for i, h in enumerate(tall)]
    body.append(line(6, base, width - 6, base, "#c6ced8"))
    first, lower, upper, last = (across(q) for q in quantiles)
    thin, thick = 'stroke-width="2"', 'stroke-width="7" stroke-opacity="0.45"'
    for a, b, extra in ((first, last, thin), (lower, upper, thick)):
        body.append(line(a, middle, b, middle, IMPUTED, f'{extra} stroke-linecap="round"'))
    body.append(dot(across(best), middle, 4.2, IMPUTED, 'stroke="#fff" stroke-width="1.3"'))
    body.append(words(6, base + 12, written(low)))
    body.append(words(width - 6, base + 12, written(high), anchor="end"))
    return picture(width, base + 16, "The interval on the range of its column", body)


def chances(names: Sequence[str], shares: Floats, texts: Sequence[str]) -> str:
    """Return a bar for each of a few levels, with its probability in words."""
    left, wide, lane = 84.0, 130.0, 16.0
    body = []
    for index, (name, share, text) in enumerate(zip(names, shares, texts, strict=True)):
        top = index * lane
        fill = IMPUTED if index == 0 else "#e9b59d"
        body.append(words(left - 8, top + 12, shortened(name, 13), anchor="end"))
        body.append(rectangle(left, top + 3, wide, lane - 6, "#eef2f6"))
        body.append(rectangle(left, top + 3, share * wide, lane - 6, fill))
        body.append(words(left + wide + 6, top + 12, text))
    return picture(260, len(names) * lane + 2, "Probabilities of levels", body)
