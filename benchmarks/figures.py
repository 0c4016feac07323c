"""Make the pictures of docs/: galleries of filled images, and the diagrams of the method.

Usage: POSTMATCH_DATA=... python benchmarks/figures.py
       python benchmarks/figures.py --only posterior-matching lookahead --output build

A gallery, inpainting-mnist-vdvae.png and so on, shows what a shipped model makes of test images of
the data set it was trained on, and joint-mnist-vdvae.png what it draws where nothing is seen. Equal
weights and data give equal pictures. Where data are missing, one line says so, and the picture is
left as it is. There is no picture of CelebA: its faces may not be passed on.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
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
from postmatch.recipes.gallery import gallery, side_by_side
from postmatch.recipes.inpainting import masks_of
from postmatch.recipes.inpainting_config import Dataset
from postmatch.recipes.inpainting_scores import decoder, filler, zero_decoder

DATASETS: tuple[Dataset, ...] = ("mnist", "omniglot")
SHOWN = 8  # images in a gallery
DRAWS = 6
SCALE = 3  # a pixel of an image is a square of so many
JOINT = (5, 8)  # rows and columns of images given nothing, and as many from the prior
JOINT_SCALE = 2
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
    galleries = {f"inpainting-{name}": partial(gallery_of, name) for name in models}
    joint = {f"joint-{name}": partial(joint_of, name) for name in models}
    return dict(DIAGRAMS) | galleries | joint


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
    places = {"image": 0.5, "seen": 1.5, "zeros": 2.5, f"{DRAWS} draws": 3.0 + DRAWS / 2}
    return labelled(gallery(x, observed, filled, SCALE), 3 + DRAWS, places)


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


def joint_of(name: str) -> Figure:
    """Return images that a shipped model draws where nothing is seen, and others of its prior."""
    model, (rows, columns) = zoo.pretrained(name, device="cpu"), JOINT
    given, own = (
        drawn.unflatten(0, (columns, rows))
        for drawn in joint_samples(model, zoo.describe(name)["image_shape"], rows * columns)
    )
    white = torch.ones_like(own[:1])
    picture = side_by_side([*given, *white, *own], JOINT_SCALE)
    places = {"given nothing": 0.5 * columns, "prior": 1.5 * columns + 1.0}
    return labelled(picture, 2 * columns + 1, places)


@torch.no_grad()
def joint_samples(
    model: MatchedVAE, shape: Sequence[int], num_samples: int
) -> tuple[Tensor, Tensor]:
    """Return what is decoded from z given nothing, and from z of the prior.

    Both are images of this shape, ``(num_samples, channels, height, width)``.
    """
    x = torch.zeros(1, *shape)
    with seeded(0):
        given = model.given(x, torch.zeros_like(x[:, :1], dtype=torch.bool)).draws(num_samples)
        own = model.vae.decode(model.vae.prior().sample(torch.Size([num_samples]))).mean
    return given[:, 0].clamp(0.0, 1.0), own.clamp(0.0, 1.0)


def labelled(picture: Tensor, columns: int, places: Mapping[str, float]) -> Figure:
    """Return a picture, pixel for pixel, with words above it.

    Args:
        picture: uint8, ``(3, height, width)``.
        columns: How many it has.
        places: Where the middle of each word is, counted in columns.
    """
    _, height, width = picture.shape
    figure = Figure(figsize=(width / DPI, (height + HEAD) / DPI), dpi=DPI, facecolor="white")
    figure.figimage(picture.movedim(0, -1).numpy(), 0, 0, origin="upper")
    for text, middle in places.items():
        at = (middle / columns, 1.0 - 0.5 * HEAD / (height + HEAD))
        figure.text(*at, text, ha="center", va="center", fontsize=9.0)
    return figure


if __name__ == "__main__":
    main()
