"""The method in two drawings: how a posterior is matched, and how the next feature is chosen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from numpy.typing import NDArray

from postmatch.recipes.gallery import HIDDEN

Point = tuple[float, float]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Hue:
    """The colours of what one loss trains."""

    line: str
    fill: str


INK, FAINT, PALE = "#1f2933", "#66727f", "#d5dae0"
SMALL, ENOUGH, MATH = 8.5, 9.5, 12.5  # sizes of letters
VAE, MATCH = Hue("#0f766e", "#def2ef"), Hue("#b4540a", "#fdebd7")
SIDE = 0.25  # of a cell
ROW = (0.20, 0.75, 0.45, 0.90, 0.30, 0.60)  # six features, as levels of grey
SEEN = (True, False, True, True, False, False)
GRID: Floats = np.linspace(-3.5, 3.5, 701)  # of a z that is one number
FILLED = ((0.80, 0.25, 0.65), (0.60, 0.50, 0.95), (0.95, 0.10, 0.40))  # in its holes


def posterior_matching() -> Figure:
    """Return what is trained by what, where gradients stop, and how questions are answered."""
    figure, axes = canvas(10.0, 5.25)
    draw_training(axes, 4.3, 2.95)
    axes.plot([0.3, 9.75], [2.2, 2.2], color=PALE, linewidth=1.0)
    draw_answering(axes, 1.0)
    return figure


def draw_training(axes: Axes, top: float, low: float) -> None:
    """Draw the VAE at one height, and the partial encoder at another."""
    rest = "the VAE as ever, the partial encoder by its draws of z"
    heading(axes, (0.3, top + 0.7), "Training", rest)
    cells(axes, (1.3, top), ROW)
    word(axes, (1.3, top + 0.3), "$x$", MATH)
    box(axes, (3.5, top), ("encoder", r"$q_\psi(z\mid x)$"), VAE)
    ball(axes, (5.25, top))
    box(axes, (6.85, top), ("decoder", r"$p_\phi(x\mid z)$"), VAE)
    box(axes, (8.9, top), ("the VAE's own loss", r"$-\,\mathrm{ELBO}$"), VAE, width=1.7, loss=True)
    across(axes, top, (2.15, 2.75), (4.25, 5.0), (5.5, 6.1), (7.6, 8.05))
    word(axes, (4.62, top + 0.15), "draw", SMALL)
    arrow(axes, (1.3, top - 0.2), (1.3, low + 0.2))
    word(axes, (1.4, 0.5 * (top + low)), "hide some at random", SMALL, ha="left")
    cells(axes, (1.3, low), ROW, SEEN)
    word(axes, (1.3, low - 0.36), "$x_o$, and $b$ tells which", 10.5)
    box(axes, (3.5, low), ("partial encoder", r"$q_\theta(z\mid x_o)$"), MATCH)
    matched = ("match", r"$-\log\,q_\theta(z\mid x_o)$")
    box(axes, (5.85, low), matched, MATCH, width=1.8, loss=True)
    across(axes, low, (2.15, 2.75), (4.25, 4.95))
    arrow(axes, (5.25, top - 0.25), (5.25, low + 0.32), dashed=True)
    middle = 0.5 * (top + low) + 0.05
    axes.plot([5.14, 5.36], [middle, middle], color=MATCH.line, linewidth=2.4)
    word(axes, (5.45, middle), "the gradient stops here", SMALL, ha="left")
    draw_key(axes, (7.3, low + 0.15))


def draw_key(axes: Axes, place: Point) -> None:
    """Explain the colours, downwards from a place."""
    x, y = place
    hues = {"trained by the VAE's loss": VAE, "trained by the match alone": MATCH}
    for i, (text, hue) in enumerate(hues.items()):
        height = y - 0.28 * i
        tile(axes, (x, height - 0.08), (0.24, 0.16), hue.fill, hue.line)
        word(axes, (x + 0.36, height), text, SMALL, ha="left")
    arrow(axes, (x - 0.02, y - 0.56), (x + 0.27, y - 0.56), dashed=True)
    word(axes, (x + 0.36, y - 0.56), "passes values, no gradient", SMALL, ha="left")


def draw_answering(axes: Axes, middle: float) -> None:
    """Draw how partial encoder and decoder complete a row."""
    heading(axes, (0.3, middle + 0.85), "Answering", "whichever features are seen")
    cells(axes, (1.3, middle), ROW, SEEN)
    word(axes, (1.3, middle - 0.36), r"$x_o,\ b$", MATH)
    box(axes, (3.5, middle), ("partial encoder", r"$q_\theta(z\mid x_o)$"), MATCH)
    box(axes, (6.85, middle), ("decoder", r"$p_\phi(x\mid z)$"), VAE)
    for i, holes in enumerate(FILLED):
        height = middle + 0.42 * (1 - i)
        ball(axes, (5.25, height), 0.17)
        cells(axes, (8.9, height), completed(holes), SEEN, filled=True)
    across(axes, middle, (2.15, 2.75), (4.25, 4.95), (5.55, 6.1), (7.6, 8.05))
    word(axes, (4.6, middle + 0.15), "draws", SMALL)
    word(axes, (8.8, middle - 0.75), "draws of $x_u$, with $x_o$ as given", ENOUGH)


def lookahead() -> Figure:
    """Return how the entropy after a feature is expected: entropies first, their mean second."""
    figure, axes = canvas(10.0, 4.85)
    draw_imagining(axes, 3.85)
    axes.plot([0.3, 9.75], [3.1, 3.1], color=PALE, linewidth=1.0)
    titles = {
        3.15: "posteriors of three draws",
        5.4: "entropy first,\naverage second",
        7.95: "average first,\nentropy second",
    }
    for (x, title), colour in zip(titles.items(), (MATCH.line, VAE.line, FAINT), strict=True):
        word(axes, (x, 2.79), title, ENOUGH, color=colour, fontweight="bold", linespacing=1.3)
    draw_feature(axes, 1.65, ("feature $i$", "tells much of $z$"), TELLING)
    draw_feature(axes, 0.65, ("feature $j$", "tells nothing of $z$"), [mean_density(TELLING)] * 3)
    word(axes, (5.4, 0.22), "$i$ leaves less open: ask for it", ENOUGH, color=VAE.line)
    again = r"$q_\theta(z\mid x_o)$ again, whichever the feature"
    word(axes, (7.95, 0.22), again, ENOUGH, color=FAINT)
    return figure


def draw_imagining(axes: Axes, middle: float) -> None:
    """Draw where the posteriors after one more feature come from."""
    rest = "the one that is expected to leave least open about z"
    heading(axes, (0.3, middle + 0.7), "Which feature next?", rest)
    cells(axes, (1.2, middle), ROW, SEEN, names={1: "$i$", 4: "$j$"})
    box(axes, (3.15, middle), ("partial encoder", r"$q_\theta(z\mid x_o)$"), MATCH)
    word(axes, (1.2, middle - 0.36), r"$x_o,\ b$", MATH)
    ball(axes, (4.65, middle))
    box(axes, (6.1, middle), ("decoder", r"$p_\phi(x_i\mid z)$"), VAE)
    for i, (value, *_) in enumerate(FILLED):
        corner = (7.2, middle + 0.3 * (1 - i) - SIDE / 2)
        tile(axes, corner, (SIDE, SIDE), grey(value), INK)
    word(axes, (7.32, middle - 0.56), "draws of $x_i$", SMALL)
    box(axes, (8.85, middle), ("partial encoder", r"$q_\theta(z\mid x_o,x_i)$"), MATCH, width=1.7)
    across(axes, middle, (2.0, 2.4), (3.9, 4.4), (4.9, 5.35), (6.85, 7.15), (7.5, 8.0))


def draw_feature(
    axes: Axes, base: float, words: tuple[str, str], posteriors: Sequence[Floats]
) -> None:
    """Draw what a feature would tell, and what the two orders make of it."""
    word(axes, (1.2, base + 0.42), words[0], 11.0)
    word(axes, (1.2, base + 0.18), words[1], SMALL, color=FAINT)
    each, average = [entropy(p) for p in posteriors], mean_density(posteriors)
    curves(axes, (2.15, base), posteriors, MATCH)
    word(axes, (5.4, base + 0.5), f"mean of {', '.join(f'{h:.2f}' for h in each)}", SMALL)
    number(axes, (5.4, base + 0.22), float(np.mean(each)), VAE.line)
    curves(axes, (6.6, base), [average], Hue(FAINT, "#eef1f4"))
    number(axes, (9.2, base + 0.22), entropy(average), FAINT)


def number(axes: Axes, place: Point, value: float, colour: str) -> None:
    """Write an entropy."""
    word(axes, place, f"{value:.2f} nats", 12.5, color=colour, fontweight="bold")


def curves(axes: Axes, corner: Point, densities: Sequence[Floats], hue: Hue) -> None:
    """Draw densities of z over one another."""
    x, y = corner
    places = x + 2.0 * (GRID - GRID[0]) / (GRID[-1] - GRID[0])
    for density in densities:
        shown = np.flatnonzero(density > 2e-3)[::6]
        along, height = places[shown], y + 0.72 * density[shown]
        axes.fill_between(along, y, height, color=hue.fill, linewidth=0.0)
        axes.plot(along, height, color=hue.line, linewidth=1.4)
    axes.plot([x, x + 2.0], [y, y], color=FAINT, linewidth=0.8)


def normal(mean: float, scale: float) -> Floats:
    """Return a Gaussian density on the grid."""
    return np.exp(-0.5 * ((GRID - mean) / scale) ** 2) / (scale * np.sqrt(2.0 * np.pi))


def mean_density(densities: Sequence[Floats]) -> Floats:
    """Return the mixture in equal parts."""
    return np.mean(densities, axis=0)


def entropy(density: Floats) -> float:
    """Return the entropy of a density on the grid, in nats."""
    terms = np.where(density > 0.0, -density * np.log(np.maximum(density, 1e-300)), 0.0)
    return float(terms.sum() * (GRID[1] - GRID[0]))


def completed(holes: Sequence[float]) -> list[float]:
    """Return the row with its hidden features filled."""
    rest = iter(holes)
    return [value if seen else next(rest) for value, seen in zip(ROW, SEEN, strict=True)]


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a white figure, and axes over all of it that count in inches."""
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0.0, width), ylim=(0.0, height), aspect="equal")
    axes.set_axis_off()
    return figure, axes


def heading(axes: Axes, place: Point, title: str, rest: str) -> None:
    """Write a title, and in a lighter tone what it is about."""
    written = axes.text(*place, title, fontsize=12.0, fontweight="bold", color=INK, va="center")
    axes.annotate(
        f"   {rest}", (1.0, 0.5), xycoords=written, fontsize=ENOUGH, color=FAINT, va="center"
    )


def word(axes: Axes, place: Point, text: str, size: float, **style: Any) -> None:
    """Write a few words, centred unless told otherwise."""
    axes.text(*place, text, fontsize=size, **{"color": INK, "ha": "center", "va": "center"} | style)


def box(
    axes: Axes,
    place: Point,
    lines: tuple[str, str],
    hue: Hue,
    *,
    width: float = 1.5,
    loss: bool = False,
) -> None:
    """Draw a network, or a loss, which is rounder, with its name and its formula."""
    height, (x, y) = 0.66, place
    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle=f"round,pad=0,rounding_size={0.33 if loss else 0.08}",
        facecolor="white" if loss else hue.fill,
        edgecolor=hue.line,
        linewidth=1.4,
    )
    axes.add_patch(shape)
    word(axes, (x, y + 0.13), lines[0], ENOUGH)
    word(axes, (x, y - 0.14), lines[1], MATH)


def ball(axes: Axes, place: Point, radius: float = 0.22) -> None:
    """Draw a value of z."""
    axes.add_patch(Circle(place, radius, facecolor="white", edgecolor=INK, linewidth=1.2))
    word(axes, place, "$z$", MATH)


def tile(axes: Axes, corner: Point, size: Point, face: Any, edge: str) -> None:
    """Draw a rectangle from its lower left corner."""
    axes.add_patch(Rectangle(corner, *size, facecolor=face, edgecolor=edge, linewidth=0.8))


def cells(
    axes: Axes,
    place: Point,
    values: Sequence[float],
    seen: Sequence[bool] = (),
    *,
    filled: bool = False,
    names: Mapping[int, str] = MappingProxyType({}),
) -> None:
    """Draw features in a row as levels of grey; those not seen are covered, or framed if filled."""
    x, y = place[0] - SIDE * len(values) / 2, place[1] - SIDE / 2
    for i, value in enumerate(values):
        hidden, corner = bool(seen) and not seen[i], (x + SIDE * i, y)
        tile(axes, corner, (SIDE, SIDE), HIDDEN if hidden else grey(value), INK)
        if hidden and filled:
            inside = (corner[0] + 0.05, corner[1] + 0.05)
            tile(axes, inside, (SIDE - 0.1, SIDE - 0.1), grey(value), grey(value))
        word(axes, (corner[0] + SIDE / 2, place[1]), names.get(i, ""), MATH)


def grey(value: float) -> str:
    """Return the grey of a feature's value, 0 to 1."""
    return str(round(1.0 - 0.75 * value, 4))


def arrow(axes: Axes, start: Point, end: Point, *, dashed: bool = False) -> None:
    """Draw where something goes."""
    line = FancyArrowPatch(
        start,
        end,
        arrowstyle="-|>",
        mutation_scale=10.0,
        shrinkA=0.0,
        shrinkB=0.0,
        color=FAINT if dashed else INK,
        linestyle=(0, (4, 3)) if dashed else "-",
        linewidth=1.2,
    )
    axes.add_patch(line)


def across(axes: Axes, height: float, *spans: tuple[float, float]) -> None:
    """Draw arrows to the right, all at one height."""
    for start, end in spans:
        arrow(axes, (start, height), (end, height))


TELLING = [normal(-1.4, 0.35), normal(0.0, 0.45), normal(1.4, 0.55)]
DIAGRAMS: dict[str, Callable[[], Figure]] = {
    "posterior-matching": posterior_matching,
    "lookahead": lookahead,
}
