"""``postmatch inpaint``: fill the hole of an image, several times."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postmatch.cli.groups import Running
from postmatch.cli.session import session

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from postmatch.conditioning import MatchedVAE

EXAMPLES = """
    postmatch inpaint photo.png --mask mask.png --model mnist-vdvae -n 6 -o out.png
    postmatch inpaint photo.png -m omniglot-vdvae      the hole is where it is transparent
    postmatch inpaint photo.png --hole ff00ff -m faces/inpainting-celeba-vdvae.json -n 3 --each
"""
_HEAD = 4_096  # bytes of a result that say of what it is
_LIGHT = 0.5  # mean of what is seen, above which an image is no light ink on a dark ground


def inpaint(
    running: Running,
    image: Annotated[
        Path, typer.Argument(metavar="IMAGE", help="A picture file.", show_default=False)
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME|FILE",
            help="One that postmatch models lists, or a result of postmatch reproduce inpainting.",
        ),
    ],
    mask: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A picture of the same size, white where the hole is."),
    ] = None,
    hole: Annotated[
        str | None,
        typer.Option(metavar="RRGGBB", help="Pixels of IMAGE of this colour are the hole."),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, help="How often it is filled.")
    ] = 6,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="What is written.")
    ] = Path("filled.png"),
    each: Annotated[
        bool, typer.Option("--each", help="Write every filled image to a file of its own, too.")
    ] = False,
) -> None:
    """Fill the hole of an image with draws of a model, and write them side by side.

    Shipped models fill grey images of 28 x 28 pixels, white strokes on black. Where there is
    neither --mask nor --hole, transparent pixels are the hole. Pixels outside it come back as they
    are: --each writes FILE.1.png and so on, which hold them bit for bit, in grey if the model is of
    grey images.
    """
    import torch

    from postmatch.image_files import check_output, write_image
    from postmatch.models import device_of
    from postmatch.randomness import seeded
    from postmatch.recipes.gallery import masked, side_by_side
    from postmatch.recipes.inpainting_config import CHANNELS, SIZES

    with session(running) as here:
        check_output(output, exact=each)
        single = [output.with_suffix(f".{i + 1}{output.suffix}") for i in range(count)]
        places = [output, *(single if each else [])]
        _check_places(places, image, mask)
        device = device_of(running.device)
        result, trained = _obtain(model, device)
        name: Any = result["dataset"]
        pixels, observed = _read(image, CHANNELS[name], SIZES[name], mask, hole)
        for text in _oddities(image, pixels, observed, name):
            here.warn(text)
        x, seen = pixels[None].to(device) / 255.0, observed[None].to(device)
        with seeded(running.seed), torch.no_grad():
            filled = trained.given(x, seen).draws(count).clamp(0.0, 1.0)
        write_image(output, side_by_side([masked(x, seen), *filled], scale=4))
        for place, one in zip(places[1:], filled, strict=False):
            write_image(place, (one[0] * 255.0).round().to(torch.uint8))
        here.say(f"Written to {', '.join(str(place) for place in places)}.")
        here.result({"output": [str(place) for place in places]})


def _obtain(model: str, device: "torch.device") -> tuple[dict[str, Any], "MatchedVAE"]:
    """Return the result and the model of a file, or else of a shipped model of that name."""
    from postmatch import zoo
    from postmatch.recipes.inpainting_run import read_model

    path = Path(model)
    if path.is_file():
        weights = path.parent / "weights" / f"{path.stem}.safetensors"
        with path.open("rb") as file:
            told = b'"inpainting"' in file.read(_HEAD)
        if not told:
            raise ValueError(f"--model: {path} is no result of postmatch reproduce inpainting")
        if not weights.is_file():
            raise ValueError(
                f"--model: {path} is without its weights: {weights} is not there, which "
                "postmatch reproduce inpainting writes beside a result"
            )
        return read_model(path, weights, device)
    if model not in zoo.names():
        raise ValueError(f"--model: there is no file {model}, and {zoo.unknown(model)}")
    return zoo.describe(model), zoo.pretrained(model, device=device)


def _check_places(places: Sequence[Path], image: Path, mask: Path | None) -> None:
    """Raise if what is written would replace what is read."""
    read = {path.resolve(): path for path in (image, mask) if path is not None}
    for place in places:
        if (lost := read.get(place.resolve())) is not None:
            raise ValueError(f"--output: {lost} would be written over: choose another name")


def _oddities(image: Path, pixels: "Tensor", observed: "Tensor", name: str) -> Iterator[str]:
    """Yield why an image may not be of the kind that a model has learned.

    Args:
        image: Its file.
        pixels: What was read of it, ``(channels, height, width)``.
        observed: What is seen of it.
        name: The data set of the model.
    """
    from postmatch.image_files import read_image

    colours, _ = read_image(image, 3)
    if len(pixels) == 1 and bool(((colours != colours[:1]) & observed).any()):
        yield f"{image} is coloured, and the model is of grey images: it is filled in grey"
    seen = pixels[observed.expand_as(pixels)] / 255.0
    if name in ("mnist", "omniglot") and len(seen) and float(seen.mean()) > _LIGHT:
        yield f"{image} is light, and the model has learned white strokes on black: invert it?"


def _read(
    image: Path, channels: int, size: int, mask: Path | None, hole: str | None
) -> tuple["Tensor", "Tensor"]:
    """Return the image, uint8 ``(channels, height, width)``, and what is observed of it.

    Raises:
        ValueError: If it has another size, nothing is hidden, or the hole is said in two ways.
    """
    from postmatch.image_files import read_image, read_masks

    pixels, observed = read_image(image, channels)
    if pixels.shape[1:] != (size, size):
        raise ValueError(
            f"{image} must have {size} x {size} pixels for this model, got {_size(pixels)}"
        )
    if mask is not None and hole is not None:
        raise ValueError("--mask and --hole say both where the hole is: give one of them")
    if mask is not None:
        observed = read_masks(mask)[0]
        if observed.shape[1:] != pixels.shape[1:]:
            wanted, came = _size(pixels), _size(observed)
            raise ValueError(f"--mask must have the size of {image}, {wanted}, got {came}")
        if bool(observed.all()):
            lightest = int(read_image(mask, 1)[0].max())
            raise ValueError(
                f"--mask: {mask} has no white pixel, which is where the hole is; its lightest has "
                f"{lightest} of 255"
            )
    if hole is not None:
        colours, _ = read_image(image, 3)
        observed = (colours != _colour(hole)).any(0, keepdim=True)
    if bool(observed.all()):
        raise ValueError(
            f"nothing of {image} is hidden: say where the hole is by --mask, by the colour of "
            "--hole, or by transparent pixels"
        )
    return pixels, observed


def _size(pixels: "Tensor") -> str:
    """Return the size of a picture as people say it, its width first."""
    return f"{pixels.shape[-1]} x {pixels.shape[-2]}"


def _colour(text: str) -> "Tensor":
    """Return a colour, uint8 ``(3, 1, 1)``."""
    import torch

    digits = text.removeprefix("#")
    try:
        levels = bytes.fromhex(digits)
    except ValueError:
        levels = b""
    if len(levels) != 3:
        raise ValueError(f"--hole must be a colour such as ff00ff, got {text!r}")
    return torch.tensor(list(levels), dtype=torch.uint8).view(3, 1, 1)
