"""``postmatch models``: the trained models that are shipped, their scores and their training."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from postmatch.cli.grids import plain_grid, titled
from postmatch.cli.groups import Running
from postmatch.cli.session import session

EXAMPLES = """
    postmatch models                                   what there is, and how good it is
    postmatch models --json                            the same with every setting, for programs
    postmatch inpaint photo.png --mask mask.png --model mnist-vdvae      fills a hole with one
"""
KINDS = {
    "conv": "plain, one latent vector",
    "vqvae": "grid of codes",
    "vdvae": "hierarchy of latent images",
    "vdvae-paper": "hierarchy of latent images",
}
NONE = "No models are shipped with this installation."


def models(running: Running) -> None:
    """List the trained models that are shipped with postmatch, for inpaint --model.

    The scores are of the very files that are shipped: PSNR of the mean of ten fillings of test
    images; precision and recall of these fillings, by features of a small classifier. From Python,
    postmatch.pretrained(NAME) returns a model.
    """
    from postmatch import zoo

    with session(running) as here:
        found = [zoo.describe(name) for name in zoo.names()]
        here.show(_grids(found) if found else Text(NONE), asked_for=True)
        here.result({"models": found})


def _grids(found: Sequence[dict[str, Any]]) -> RenderableType:
    return Group(_contents(found), "", _scores(found), "", _training(found))


def _contents(found: Sequence[dict[str, Any]]) -> RenderableType:
    """Return what the models are."""
    grid = plain_grid("name", "images", "kind", ">file")
    for one in found:
        channels, height, width = one["image_shape"]
        colours = "grey" if channels == 1 else "colour"
        images = f"{one['dataset']}, {height} x {width}, {colours}"
        grid.add_row(one["name"], images, KINDS[one["model"]], f"{one['bytes'] / 1e6:.1f} MB")
    return titled("Shipped models", grid)


def _scores(found: Sequence[dict[str, Any]]) -> RenderableType:
    """Return how large they are and how well they fill holes."""
    titles = (">VAE", ">q(z | x_o)", ">PSNR (dB)", ">precision", ">recall", ">of images")
    grid = plain_grid("name", *titles)
    for one in found:
        sizes = [f"{one['parameters'][part] / 1e6:.2f} M" for part in ("vae", "partial")]
        scores = [f"{one['metrics'][key]:.3f}" for key in ("psnr", "precision", "recall")]
        grid.add_row(one["name"], *sizes, *scores, f"{one['rows']['test']:,}")
    return titled("Parameters, and scores of filled test images", grid)


def _training(found: Sequence[dict[str, Any]]) -> RenderableType:
    """Return how they were trained."""
    grid = plain_grid("name", ">steps", ">minutes", "on", ">seed", "commit")
    for one in found:
        steps, minutes = f"{one['steps']:,}", f"{one['train_minutes']:,.1f}"
        seed = str(one["seed"])
        grid.add_row(one["name"], steps, minutes, one["hardware"], seed, one["commit"])
    return titled("How they were trained", grid)
