"""The sections of a report that say how far to trust it: calibration, single rows, assumptions."""

import html
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from postmatch.cli import page, svg
from postmatch.cli.evidence import Answers, ColumnEvidence, Evidence, in_units
from postmatch.cli.numbers import percents, text_of
from postmatch.cli.sections import bin_edges, heights
from postmatch.cli.wording import labelled, written
from postmatch.tables import Column, Table
from postmatch.tables.cells import counted, level_text

Floats = NDArray[np.float64]
Shape = tuple[Floats, Floats]

PROMISES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
FEW_CELLS = 100
MOST_KNOWN, MOST_HOLES = 14, 8
FRESH = (
    "A tenth of the observed cells was hidden while the model was trained, and told from the rest "
    "of their rows. The model never learned from these {cells:,} cells, but they chose when its "
    "training stopped and how wide intervals are, so the picture may be a shade too kind."
)
STALE = (
    "A tenth of the observed cells was hidden and told from the rest of their rows. If the model "
    "was fitted on this very table it has learned from these {cells:,} cells, and the picture is "
    "kinder than the truth: fit anew with this command and no --model to see cells it never "
    "learned from."
)


def calibration(evidence: Evidence, seed: int) -> str:
    """Return how what was promised compares with what came."""
    if not evidence.cells:
        return page.section(
            "Can it be trusted?", page.paragraph("Too few observed cells to hide some and see.")
        )
    text = FRESH if evidence.fresh else STALE
    parts = [page.paragraph(text.format(cells=evidence.cells))]
    if evidence.cells < FEW_CELLS:
        parts.append(_note("With so few cells, chance alone moves these pictures a lot."))
    pictures = [*_numbers(evidence, seed), *_levels(evidence)]
    parts.append(f'<div class="three">{"".join(pictures)}</div>')
    parts.append(_scores(evidence))
    return page.section("Can it be trusted?", *parts)


def _numbers(evidence: Evidence, seed: int) -> list[str]:
    numbers = [c for c in evidence.columns if c.column.is_number]
    if not numbers:
        return []
    ranks = np.concatenate([c.ranks(seed + i) for i, c in enumerate(numbers)])
    came = np.array([(np.abs(ranks - 0.5) <= promise / 2).mean() for promise in PROMISES])
    error = 2 * np.sqrt(PROMISES * (1 - PROMISES) / len(ranks))
    coverage = svg.against_diagonal(PROMISES, came, labels=("promised", "covered"), spread=error)
    shares = np.histogram(ranks, 10, (0, 1))[0] / len(ranks)
    flat = svg.flat_bars(shares, 2 * float(np.sqrt(0.09 / len(ranks))), "place of the truth")
    return [
        _figure(
            "Intervals of numbers",
            coverage,
            "How many true values lie in intervals that promise to hold so many. On the dashed "
            "line the promise is kept; below it the intervals are too narrow. Shaded: chance "
            "alone.",
        ),
        _figure(
            "Where the truth fell",
            flat,
            "The place of the true value in its predicted distribution. Flat is right; high ends "
            "mean too narrow, a hump too wide, a slope too high or too low.",
        ),
    ]


def _levels(evidence: Evidence) -> list[str]:
    columns = [c for c in evidence.columns if not c.column.is_number]
    if not columns:
        return []
    sure = np.concatenate([c.sure for c in columns])
    right = np.concatenate([c.best == c.truth for c in columns])
    bins = np.minimum((sure * 8).astype(int), 7)
    used = [b for b in range(8) if (bins == b).any()]
    x = np.array([sure[bins == b].mean() for b in used])
    y = np.array([right[bins == b].mean() for b in used])
    count = np.array([(bins == b).sum() for b in used], dtype=float)
    picture = svg.against_diagonal(
        x,
        y,
        labels=("how sure", "how often right"),
        spread=2 * np.sqrt(x * (1 - x) / count),
        weight=count,
    )
    caption = (
        "How often the most probable level was right, against its probability. Larger dots stand "
        "for more cells; on the dashed line the probabilities mean what they say."
    )
    return [_figure("Probabilities of levels", picture, caption)]


def _figure(title: str, picture: str, caption: str) -> str:
    return f"<div><h3>{html.escape(title)}</h3>{picture}{page.paragraph(caption)}</div>"


def _scores(evidence: Evidence) -> str:
    rows = [_score(c) for c in evidence.columns]
    head = [
        "Column",
        "cells",
        "typical error",
        "error of the mean, or of the commonest",
        "better by",
        "in 90 % interval",
    ]
    return page.grid(head, rows, (1, 2, 3, 4, 5))


def _score(c: ColumnEvidence) -> list[str]:
    number = c.column.is_number
    better = f"{1 - c.error / c.simple_error:.0%}" if c.simple_error > 0 else "–"
    unit = " days" if c.column.kind == "date" else ""
    errors = [
        f"{text_of(float(f'{e:.3g}'))}{unit}" if number else f"{e:.0%} wrong"
        for e in (c.error, c.simple_error)
    ]
    covered = f"{c.covered:.0%}" if number else ""
    return [c.label, f"{len(c.truth):,}", *errors, better, covered]


def _note(text: str) -> str:
    return f'<div class="note">{page.paragraph(text)}</div>'


def single_rows(table: Table, x: Tensor, observed: Tensor, rows: Tensor, told: Answers) -> str:
    """Return a few rows with holes, and what the model says of each hole.

    Args:
        table: The columns.
        x: All rows.
        observed: Of them.
        rows: The rows to show.
        told: What the model says of these.
    """
    if not len(rows):
        return ""
    shapes = {
        index: _shape(column, in_units(column, x[observed[:, index], index]))
        for index, column in enumerate(table.modelled)
        if column.is_number and not observed[rows, index].all()
    }
    parts = []
    for place, row in enumerate(rows.tolist()):
        holes = [
            _number_hole(column, label, told, (place, index), shapes[index])
            if column.is_number
            else _level_hole(column, label, told, (place, index))
            for index, (column, label) in enumerate(labelled(table))
            if not observed[row, index]
        ]
        parts.append(_row(row, _known(table, x[row], observed[row]), holes))
    text = (
        "The dot is what is filled in, the thick bar holds half of the probability and the thin "
        "one 90 %; behind them the column's observed values."
    )
    return page.section("A few rows, with their intervals", page.paragraph(text, "quiet"), *parts)


def _known(table: Table, x: Tensor, observed: Tensor) -> list[str]:
    """Return what a row shows, in words."""
    return [
        f"{html.escape(label)} "
        f"<b>{html.escape(written(column, float(in_units(column, x[index]))))}</b>"
        for index, (column, label) in enumerate(labelled(table))
        if observed[index]
    ]


def _row(row: int, known: Sequence[str], holes: Sequence[str]) -> str:
    words = _listed(known, MOST_KNOWN, " · ") or "nothing is known of this row"
    body = "".join(holes[:MOST_HOLES])
    if len(holes) > MOST_HOLES:
        body += page.paragraph(f"and {counted(len(holes) - MOST_HOLES, 'more hole')}", "quiet")
    return f'<div class="row"><h3>Row {row + 1:,}</h3><p class="seen">{words}</p>{body}</div>'


def _listed(texts: Sequence[str], most: int, between: str) -> str:
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return between.join([*texts[:most], *more])


def _shape(column: Column, seen: Floats) -> Shape:
    """Return the edges and heights of a column's histogram."""
    if not len(seen):  # fitted on another table
        seen = np.array([column.low, column.high])
    edges = bin_edges(column, seen)
    return edges, heights(seen, edges)


def _number_hole(
    column: Column, label: str, told: Answers, place: tuple[int, int], shape: Shape
) -> str:
    edges, tall = shape
    best = float(in_units(column, told.best[place], answer=True))
    quantiles = in_units(column, told.quantiles[:, *place], answer=True)
    middle, low, high = (written(column, float(v)) for v in (best, quantiles[0], quantiles[-1]))
    ends = (float(edges[0]), float(edges[-1]))
    picture = svg.interval(ends, best, quantiles.tolist(), tall, lambda v: written(column, v))
    said = f"<b>{html.escape(middle)}</b> &nbsp;90 %: {html.escape(low)} to {html.escape(high)}"
    return _hole(label, picture, said)


def _level_hole(column: Column, label: str, told: Answers, place: tuple[int, int]) -> str:
    row, index = place
    shares = told.chances[index][row].double().numpy()
    top = np.argsort(-shares, kind="stable")[:3]
    texts = np.array(percents(shares), dtype=object)
    names = [level_text(column.levels[i]) for i in top]
    picture = svg.chances(names, shares[top], texts[top].tolist())
    sure = f"&nbsp;with probability {texts[top[0]]}"
    return _hole(label, picture, f"<b>{html.escape(names[0])}</b> {sure}")


def _hole(label: str, picture: str, said: str) -> str:
    name = f'<div class="name">{html.escape(label)}</div>'
    return f'<div class="hole">{name}<div>{picture}</div><div class="said">{said}</div></div>'


def assumptions() -> str:
    """Return, in plain words, what the answers assume about why cells are missing."""
    return page.section(
        "What the answers assume",
        page.paragraph(
            "Cells are taken to be missing at random given what is observed: of two rows that show "
            "the same values, the one with the hole is no different in the hidden cell from the "
            "one without. Then rows that are complete there teach what the others hide, even if, "
            "say, older people answer less often: age is observed, and the model takes it into "
            "account."
        ),
        page.paragraph("It fails where the hidden value itself decides whether it is seen:"),
        page.points(
            [
                "people with high incomes leave the income blank, and nothing else in the row "
                "tells so;",
                "a scale shows nothing above its limit, or a sensor below its threshold;",
                "a question is only asked after another answer, so that the cell has no value at "
                "all.",
            ]
        ),
        page.paragraph(
            "Nothing in the table can prove or refute this, the pictures above included: they "
            "judge cells that were hidden at random. If you have reason to doubt it, change the "
            "imputed values by the amounts you fear, run your analysis again, and see whether your "
            "conclusion stands."
        ),
        page.paragraph(
            "A filled table holds one best guess per hole, and best guesses vary less than real "
            "values. For standard errors, tests and intervals use several draws (postmatch impute "
            "--draws 5), run the analysis on each, and pool the results by Rubin's rules "
            "(postmatch.pool)."
        ),
    )
