"""Picture files: images and masks in, images out. All of it needs Pillow."""

import contextlib
import struct
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_MIDDLE = 128  # of 256 levels of grey, or of opacity
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_ORIENTATION = 274  # of a photograph, by EXIF, and what makes each upright
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
_LOSSLESS = (".png", ".bmp", ".tif", ".tiff")


def read_image(path: str | Path, channels: int) -> tuple[Tensor, Tensor]:
    """Return an image, uint8 ``(channels, height, width)``, and which of its pixels are opaque.

    Photographs that a camera took on its side are upright, as viewers show them.

    Args:
        path: A file of 8 bits a colour.
        channels: 1 for grey, which colours are turned into; 3 for colours.

    Raises:
        ValueError: If the file is no picture, cut short or damaged, or has more than 8 bits.
    """
    with _opened(Path(path)) as picture:
        opaque = _opaque(picture)
        colours = picture if picture.mode == "L" else picture.convert("RGB")
        return _pixels(colours.convert("L" if channels == 1 else "RGB")), opaque


def check_output(path: Path, *, exact: bool = False) -> None:
    """Raise unless a picture in colour can be written to a path, as far as can be told before.

    Args:
        path: Where it shall go.
        exact: Whether every pixel must be read back as it was.

    Raises:
        ValueError: If its suffix stands for no format that there is, or for one that alters pixels.
        FileNotFoundError: If its folder is not there.
    """
    image, suffix = _pillow(), path.suffix.lower()
    if image.registered_extensions().get(suffix) not in image.SAVE:
        raise ValueError(f"{path} must end in .png or another suffix of pictures, got {suffix!r}")
    if exact and suffix not in _LOSSLESS:
        raise ValueError(
            f"{path} must end in {', '.join(_LOSSLESS[:-1])} or {_LOSSLESS[-1]}, which keep every "
            f"pixel as it is, got {suffix}"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.parent}")


def write_image(path: str | Path, image: Tensor) -> None:
    """Write an image, uint8 ``(channels, height, width)``, whole or not at all."""
    path = Path(path)
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    pixels = (image[0] if len(image) == 1 else image.movedim(0, -1)).cpu().numpy()
    try:
        _pillow().fromarray(pixels).save(part)
    except (ValueError, OSError) as error:  # a suffix of no format, or of none for such pixels
        part.unlink(missing_ok=True)
        raise type(error)(f"{path} cannot be written: {error}") from None
    part.replace(path)


def read_masks(paths: str | Path | Sequence[str | Path]) -> Tensor:
    """Return masks from picture files, ``(files, 1, height, width)``, for ``Pattern`` or ``given``.

    Light pixels are holes and dark ones are observed, as painting programs mark what to fill:
    white over the part that should be drawn anew. The border is the middle grey.

    Args:
        paths: One file or several, all of the same size; grey or coloured, 8 bits, opaque.

    Raises:
        ValueError: If sizes differ, or a file is cut short, transparent or has more than 8 bits.
    """
    files = [paths] if isinstance(paths, str | Path) else list(paths)
    if not files:
        raise ValueError("paths must name at least one file")
    masks = [_read_mask(Path(file)) for file in files]
    for file, mask in zip(files, masks, strict=True):
        if mask.shape != masks[0].shape:
            raise ValueError(
                f"masks must have one size: {files[0]} has {_size(masks[0])} pixels, "
                f"{file} has {_size(mask)}"
            )
    return torch.stack(masks)[:, None]


def _read_mask(path: Path) -> Tensor:
    """Return what a file says is observed, ``(height, width)``."""
    with _opened(path) as picture:
        if not _opaque(picture).all():
            raise ValueError(
                f"{path} is transparent in places, which may mean observed or hidden: "
                "paint holes white and the rest black, and leave out transparency"
            )
        # By way of RGB, which drops an opaque alpha.
        return _pixels(picture.convert("RGB").convert("L"))[0] < _MIDDLE


def _size(mask: Tensor) -> str:
    return f"{mask.shape[1]} x {mask.shape[0]}"  # width first, as people say it


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    image = _pillow()
    with contextlib.ExitStack() as stack:
        try:
            picture = stack.enter_context(image.open(path))
            if picture.mode in _MODES:
                picture.load()
                picture = _upright(picture)
        except image.UnidentifiedImageError:
            raise ValueError(f"{path} is not a picture of a format that is known") from None
        except image.DecompressionBombError as error:
            raise ValueError(f"{path} is too large: {error}") from None
        except (FileNotFoundError, IsADirectoryError, PermissionError):
            raise
        except (OSError, SyntaxError, ValueError) as error:
            message = f"{path} cannot be read ({error}): it is cut short or damaged"
            raise ValueError(message) from error
        if picture.mode not in _MODES:
            raise ValueError(f"{path} must have 8 bits a colour, got mode {picture.mode}")
        yield picture


def _upright(picture: Any) -> Any:
    """Return a picture turned as its file says, and so as viewers show it."""
    with warnings.catch_warnings():  # what else a camera noted may be damaged, and is not needed
        warnings.simplefilter("ignore")
        try:
            name = _TURNS.get(picture.getexif().get(_ORIENTATION))
        except (OSError, SyntaxError, ValueError, struct.error):
            return picture
    return picture.transpose(_pillow().Transpose[name]) if name else picture


def _opaque(picture: Any) -> Tensor:
    """Return which pixels are rather opaque, ``(1, height, width)``."""
    if not picture.has_transparency_data:
        return torch.ones(1, picture.height, picture.width, dtype=torch.bool)
    return _pixels(picture.convert("RGBA").getchannel("A")) >= _MIDDLE


def _pixels(picture: Any) -> Tensor:
    """Return ``(channels, height, width)`` of a picture in grey or in colour."""
    levels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return levels.view(picture.height, picture.width, -1).movedim(-1, 0).contiguous()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        message = "picture files need Pillow: pip install 'postmatch[images]'"
        raise ModuleNotFoundError(message) from None
    return Image
