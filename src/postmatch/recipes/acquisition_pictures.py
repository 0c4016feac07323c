"""Pictures of acquisition: errors by how much was looked at, and what was looked at."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from postmatch.acquisition import SAMPLES, Acquirer, acquire
from postmatch.conditioning import MatchedVAE
from postmatch.recipes.gallery import masked, side_by_side

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Read off the plot in the published notebook, to 0.002: a convolutional model.
QUOTED = {
    "at": (0, 5, 10, 15, 20, 25, 30),
    "sampled": (0.245, 0.209, 0.181, 0.160, 0.147, 0.136, 0.126),
    "lookahead": (0.245, 0.214, 0.185, 0.168, 0.156, 0.148, 0.141),
}
_EVERY = 5  # pixels between two columns of trajectories
_SCALE = 4  # how large a pixel of them is drawn


def figure_of(result: dict[str, Any]) -> "Figure":
    """Return the errors by pixels looked at, of every way to choose, with the published ones."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for way, values in result["curves"].items():
        axes.plot(range(len(values)), values, label=way)
    if result["network"] == "conv":
        for way, style in (("sampled", "k--"), ("lookahead", "k:")):
            axes.plot(QUOTED["at"], QUOTED[way], style, linewidth=0.8, label=f"{way}, published")
    axes.set(xlabel="pixels looked at", ylabel="root mean square error", ylim=(0.0, None))
    axes.set_title(f"MNIST, 16 x 16 pixels, {result['network']}")
    axes.legend(frameon=False)
    return figure


def trajectories(model: MatchedVAE, acquirer: Acquirer, x: Tensor, num_steps: int) -> "Figure":
    """Return what was looked at, and how the rest was filled, after every five pixels.

    Args:
        model: Fills in.
        acquirer: Chooses.
        x: Complete images, each with a row of its own; they stand in the last column.
        num_steps: How many pixels are looked at.
    """
    from matplotlib.figure import Figure

    nothing = torch.zeros_like(x, dtype=torch.bool)
    path = acquire(acquirer, x, nothing, num_steps, price=-torch.inf)
    columns, words = [], []
    for count in range(0, num_steps + 1, _EVERY):
        observed = path.observed[count]
        columns += [masked(x, observed), model.given(x, observed).impute(SAMPLES)]
        words += [f"{count} pixels", ""]
    picture = side_by_side([*columns, x], _SCALE).movedim(0, -1).cpu().numpy()
    height, width = picture.shape[:2]
    figure = Figure(figsize=(width / 100.0, height / 100.0 + 0.3))
    axes = figure.add_axes((0.0, 0.0, 1.0, height / (height + 30.0)))
    axes.imshow(picture, interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    each = width / (len(columns) + 1)
    for i, word in enumerate([*words, "truth"]):
        axes.text(i * each, -6.0, word, fontsize=9)
    return figure
