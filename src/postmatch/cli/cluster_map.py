"""A map of the rows of a table: where the model has put them, and in which cluster."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from postmatch.cli.numbers import percents

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
MOST = 20_000  # rows that are drawn


def cluster_map(places: Floats, probabilities: Floats) -> "Figure":
    """Return a picture of the rows in the plane of their two main directions.

    Rows are coloured by cluster, and fainter the less sure it is.

    Args:
        places: Posterior means, ``(rows, latent_size)``.
        probabilities: Of the clusters, ``(rows, clusters)``.
    """
    from matplotlib.figure import Figure

    flat, parts = to_plane(places)
    number, count = probabilities.argmax(1), probabilities.shape[1]
    rows = np.bincount(number, minlength=count)
    drawn = np.random.default_rng(0).permutation(len(flat))[:MOST]
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    axes = figure.add_subplot()
    colours = [_colour(i, count) for i in range(count)]
    sure = (probabilities.max(1) - 1.0 / count) / max(1.0 - 1.0 / count, 1e-12)
    size = float(np.clip(4_000 / len(drawn), 5.0, 26.0))
    axes.scatter(
        flat[drawn, 0],
        flat[drawn, 1],
        c=[colours[c] for c in number[drawn]],
        alpha=0.12 + 0.78 * sure[drawn].clip(0.0, 1.0) if count > 1 else 0.9,
        s=size,
        linewidths=0,
    )
    for i, share in enumerate(percents(rows / rows.sum())):
        axes.scatter([], [], color=colours[i], s=30, label=f"{i + 1}: {share}")
    axes.set(xlabel=f"first direction ({parts[0]})", ylabel=f"second direction ({parts[1]})")
    axes.set(xticks=[], yticks=[])
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("Rows in the latent space; fainter ones are less sure", fontsize=10)
    figure.legend(loc="outside right upper", frameon=False, title="cluster: share")
    return figure


def to_plane(places: Floats) -> tuple[Floats, list[str]]:
    """Return the two main directions, ``(rows, 2)``, and how much of the variance each holds."""
    centred = places - places.mean(0)
    _, length, directions = np.linalg.svd(centred, full_matrices=False)
    flat = np.zeros((len(places), 2))
    some = centred @ directions[:2].T
    flat[:, : some.shape[1]] = some
    shares = np.zeros(2)
    shares[: len(length[:2])] = length[:2] ** 2 / max(float((length**2).sum()), 1e-12)
    return flat, [f"{share:.0%} of the variance" for share in shares]


def _colour(index: int, count: int) -> tuple[float, float, float]:
    import matplotlib as mpl

    palette: Any = mpl.colormaps["tab10" if count <= 10 else "tab20"]
    colour: tuple[float, float, float] = palette.colors[index % len(palette.colors)]
    return colour
