"""What a model is asked, checked once where it comes in."""

import torch
from torch import Tensor

from postmatch.vaes.base import VAE, require_images

_BESIDE = 1e-4  # how far beyond [0, 1] rounding may bring a pixel


def check_asked(vae: VAE, x: Tensor, observed: Tensor) -> None:
    """Raise unless rows and what is observed of them are what a model can be asked about.

    Args:
        vae: The model; where it tells the shape of its images, rows must be such images.
        x: Rows; where they are not observed they may hold anything.
        observed: What is seen of them.

    Raises:
        TypeError: If one of them is no tensor.
        ValueError: If one of them does not fit the model, or the other.
    """
    for name, value in (("x", x), ("observed", observed)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
    if observed.dtype != torch.bool:
        raise ValueError(f"observed must be bool, got {observed.dtype}")
    if not x.is_floating_point():
        raise ValueError(f"x must hold floating point numbers, got {x.dtype}")
    require_images(vae.image_shape, x)
    pixels = x.dim() > 2 and observed.shape == (len(x), 1, *x.shape[2:])
    if not pixels and (vae.image_shape is not None or observed.shape != x.shape):
        raise ValueError(
            f"observed must have one entry per feature of x, got shapes "
            f"{tuple(observed.shape)} and {tuple(x.shape)}"
        )
    seen = x.detach().masked_fill(~observed, 0.0)
    if not bool(seen.isfinite().all()):
        raise ValueError("x must be finite where it is observed")
    if vae.image_shape is not None:
        _check_pixels(vae, seen)


def check_scored(x: Tensor, asked: Tensor) -> None:
    """Raise unless rows that are scored have the shape of those that were asked about."""
    if x.shape != asked.shape:
        shapes = f"{tuple(asked.shape)}, got {tuple(x.shape)}"
        raise ValueError(f"x must have the shape of the rows given, {shapes}")


def _check_pixels(vae: VAE, seen: Tensor) -> None:
    """Raise unless pixels are numbers of the model's own kind in [0, 1]; hidden ones are 0."""
    kinds = {p.dtype for p in vae.parameters() if p.is_floating_point()}
    if kinds and seen.dtype not in kinds:
        wanted = " or ".join(sorted(str(kind) for kind in kinds))
        raise ValueError(f"x must be of the model's type, {wanted}, got {seen.dtype}")
    if not seen.numel():
        return
    low, high = (float(value) for value in seen.aminmax())
    if low < -_BESIDE or high > 1.0 + _BESIDE:
        raise ValueError(
            f"x must lie in [0, 1] where it is observed, got values from {low:g} to {high:g}"
        )
