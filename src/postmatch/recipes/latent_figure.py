"""Pictures of a latent space, and of what partial images leave open in it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from postmatch.recipes.mnist_latent import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 6  # decoded draws beside a panel
_DOT = {"s": 4, "linewidths": 0}


def draw_views(
    where: Tensor, labels: Tensor, views: Sequence[View], places: Sequence[Tensor]
) -> "Figure":
    """Return one panel for each partial image.

    Each shows images by digit, draws of q(z | x_o) as black dots, what is seen of the image above,
    and below what some of the draws stand for.

    Args:
        where: Places of images in the plane, ``(rows, 2)``.
        labels: Their digits.
        views: What is said of each partial image.
        places: Of its draws in the plane, ``(samples, 2)`` each.
    """
    figure: Figure = _matplotlib().figure.Figure(
        figsize=(2.9 * len(views), 4.8), layout="constrained"
    )
    grid = figure.add_gridspec(3, len(views), height_ratios=(1.0, 4.0, 0.7))
    for i, (view, drawn) in enumerate(zip(views, places, strict=True)):
        _draw_seen(figure.add_subplot(grid[0, i]), view)
        _draw_plane(figure.add_subplot(grid[1, i]), where, labels, drawn)
        _draw_decoded(figure.add_subplot(grid[2, i]), view, drawn)
    shown = figure.axes[1]
    for digit in sorted(set(labels.tolist())):
        shown.scatter([], [], color=_colour(digit), label=str(digit), s=18)
    figure.legend(loc="outside lower center", ncols=10, frameon=False, title="digit")
    return figure


def to_plane(where: Tensor, draws: Sequence[Tensor], seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    """Return places and draws in the plane: as they are, or by UMAP of the places if z is longer.

    Raises:
        ModuleNotFoundError: If UMAP is needed and not installed.
    """
    if where.shape[1] == 2:
        return where, list(draws)
    try:
        from umap import UMAP
    except ModuleNotFoundError:
        message = "a map of the latent space needs UMAP: pip install 'postmatch[umap]'"
        raise ModuleNotFoundError(message) from None
    reducer: Any = UMAP(random_state=seed, n_jobs=1)
    flat = torch.from_numpy(np.asarray(reducer.fit_transform(where.numpy())))
    each = [torch.from_numpy(np.asarray(reducer.transform(z.numpy()))) for z in draws]
    return flat, each


def _draw_seen(axes: Any, view: View) -> None:
    grey = view.x[0].expand(3, -1, -1).movedim(0, -1).clone()
    grey[~view.observed[0]] = torch.tensor([0.72, 0.80, 0.90])  # what is not seen is blue
    axes.imshow(grey.numpy())
    axes.set_axis_off()


def _draw_plane(axes: Any, where: Tensor, labels: Tensor, drawn: Tensor) -> None:
    axes.scatter(*where.T.numpy(), c=[_colour(d) for d in labels.tolist()], alpha=0.35, **_DOT)
    axes.scatter(*drawn.T.numpy(), c="black", **_DOT)
    axes.set_xticks([])
    axes.set_yticks([])
    low, high = (where.quantile(q, dim=0) for q in (0.005, 0.995))
    margin = 0.05 * (high - low)
    axes.set_xlim(float((low - margin)[0]), float((high + margin)[0]))
    axes.set_ylim(float((low - margin)[1]), float((high + margin)[1]))


def _draw_decoded(axes: Any, view: View, drawn: Tensor) -> None:
    order = drawn[:, 0].argsort()  # from left to right, so that every cluster has its share
    middles = (torch.arange(_SHOWN) + 0.5) / _SHOWN  # and no outlier stands for one
    chosen = order[(middles * len(order)).long()]
    axes.imshow(torch.cat(list(view.decoded[chosen, 0]), dim=1).numpy(), cmap="gray")
    axes.set_axis_off()


def _colour(digit: int) -> tuple[float, float, float]:
    colour: tuple[float, float, float] = _matplotlib().colormaps["tab10"].colors[digit]
    return colour


def _matplotlib() -> Any:
    try:
        import matplotlib as mpl
        import matplotlib.figure
    except ModuleNotFoundError:
        message = "pictures need matplotlib: pip install 'postmatch[plot]'"
        raise ModuleNotFoundError(message) from None
    return mpl
