"""Make the pictures of docs/: galleries of filled images, and the diagrams of the method.

Usage: POSTMATCH_DATA=... python benchmarks/figures.py
       python benchmarks/figures.py --only posterior-matching lookahead --output build

A gallery, inpainting-mnist-vdvae.png and so on, shows what a shipped model makes of test images of
the data set it was trained on. Equal weights and data give equal pictures. Where data are missing,
one line says so, and the picture is left as it is. There is no gallery of CelebA: its faces may not
be passed on.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor

from diagrams import DIAGRAMS
from postmatch import zoo
from postmatch.conditioning import MatchedVAE
from postmatch.data.images import Images, load_images
from postmatch.randomness import seeded
from postmatch.recipes.gallery import gallery
from postmatch.recipes.inpainting import masks_of
from postmatch.recipes.inpainting_config import Dataset
from postmatch.recipes.inpainting_scores import decoder, filler, zero_decoder

DATASETS: tuple[Dataset, ...] = ("mnist", "omniglot")
SHOWN = 8  # images in a gallery
DRAWS = 6
SCALE = 3  # a pixel of an image is a square of so many
STABLE = {"svg.hashsalt": "postmatch", "mathtext.fontset": "cm"}  # equal drawings, equal files
DPI = 100
HEAD = 22  # pixels above a gallery, for the names of its columns


def main(argv: Sequence[str] | None = None) -> None:
    """Draw what is asked for, and say what was written."""
    figures = every_figure()
    arguments = parse(argv, list(figures))
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or figures:
        path = arguments.output / f"{name}.{'svg' if name in DIAGRAMS else 'png'}"
        try:
            with mpl.rc_context(STABLE):
                write(figures[name](), path)
        except FileNotFoundError as error:
            print(f"{path} is left as it is: {error}", file=sys.stderr)
        else:
            print(f"{path}: {path.stat().st_size:,} bytes")


def parse(argv: Sequence[str] | None, names: Sequence[str]) -> argparse.Namespace:
    """Return the command line's arguments."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs/img"))
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    return parser.parse_args(argv)


def every_figure() -> dict[str, Callable[[], Figure]]:
    """Return what draws each picture, by the name of its file."""
    models = [name for name in zoo.names() if zoo.describe(name)["dataset"] in DATASETS]
    return dict(DIAGRAMS) | {f"inpainting-{name}": partial(gallery_of, name) for name in models}


def write(figure: Figure, path: Path) -> None:
    """Write a picture without the time or the program that made it."""
    nothing = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(path, dpi=DPI, metadata=nothing)


def gallery_of(name: str) -> Figure:
    """Return test images, what was seen of them, and what a shipped model makes of that.

    Raises:
        FileNotFoundError: If the images are not there.
    """
    dataset: Dataset = zoo.describe(name)["dataset"]
    x = some_images(load_images(dataset)) / 255.0
    shape = (len(x), 1, *x.shape[2:])
    observed = masks_of(dataset).sample(shape, torch.Generator().manual_seed(0))
    filled = fillings(zoo.pretrained(name, device="cpu"), x, observed)
    return labelled(gallery(x, observed, filled, SCALE))


def some_images(images: Images) -> Tensor:
    """Return test images evenly spaced in the order of their labels, so that no two are alike."""
    assert images.test_labels is not None
    order = images.test_labels.argsort(stable=True)
    places = (2 * torch.arange(SHOWN) + 1) * len(order) // (2 * SHOWN)
    return images.test[order[places]]


@torch.no_grad()
def fillings(model: MatchedVAE, x: Tensor, observed: Tensor) -> list[Tensor]:
    """Return what the VAE's own encoder makes of zeros in the holes, and draws of the model."""
    with seeded(0):
        either = zero_decoder(model.vae, 1), decoder(model, DRAWS)
        return [filled for decode in either for filled in filler(decode)(x, observed)]


def labelled(picture: Tensor) -> Figure:
    """Return a gallery, pixel for pixel, with a name above every column."""
    _, height, width = picture.shape
    figure = Figure(figsize=(width / DPI, (height + HEAD) / DPI), dpi=DPI, facecolor="white")
    figure.figimage(picture.movedim(0, -1).numpy(), 0, 0, origin="upper")
    column = 1.0 / (3 + DRAWS)
    middles = {"image": 0.5, "seen": 1.5, "zeros": 2.5, f"{DRAWS} draws": 3.0 + DRAWS / 2}
    for text, middle in middles.items():
        at = (middle * column, 1.0 - 0.5 * HEAD / (height + HEAD))
        figure.text(*at, text, ha="center", va="center", fontsize=9.0)
    return figure


if __name__ == "__main__":
    main()
