"""Rows at the door of a trained VAE, and what it makes of them."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from postmatch.distributions.codes import PointMass
from postmatch.distributions.noise import draw
from postmatch.vaes.base import VAE

_AT_ONCE = 256  # rows that the VAE encodes together
_MOST_KEPT = 2**29  # numbers of posteriors that are kept rather than computed anew
_HELD_OUT = 0.1  # the part of the rows by which weights are chosen
_MOST_HELD_OUT, _FEWEST_HELD_OUT = 1_000, 5


@final
@dataclass(frozen=True)
class Rows:
    """Rows on the device of a VAE.

    Args:
        x: ``(rows, *features)``.
        available: Which cells they really hold; None for all.
        held_out: So many of them, the last ones, are not learned from.
    """

    x: Tensor
    available: Tensor | None = None
    held_out: int = 0

    def part(self, index: Tensor) -> "Rows":
        """Return some of the rows."""
        return Rows(self.x[index], None if self.available is None else self.available[index])

    def learned(self) -> int:
        """Return how many rows are learned from."""
        return len(self.x) - self.held_out


def checked_rows(vae: VAE, data: Tensor, available: Tensor | None, seed: int) -> Rows:
    """Return rows in an order of their own, on the VAE's device.

    Raises:
        TypeError: If the data are no tensor.
        ValueError: If they are not complete rows of numbers.
    """
    if not isinstance(data, Tensor):
        raise TypeError(f"data must be a tensor, got {type(data).__name__}")
    if not data.is_floating_point() or data.dim() < 2 or len(data) < 2:
        raise ValueError(
            f"data must be floating point, (rows, *features), with at least two rows, got "
            f"{data.dtype} of shape {tuple(data.shape)}"
        )
    if available is not None:
        if available.dtype != torch.bool or available.shape[:1] != data.shape[:1]:
            raise ValueError(
                f"available must be bool with a row for each of {len(data)}, got "
                f"{available.dtype} of shape {tuple(available.shape)}"
            )
        data = data.masked_fill(~available, 0.0)
    if not data.isfinite().all():
        raise ValueError(
            "data must be finite, got NaN or infinite values; say which cells are there with "
            "available, if the VAE takes holes"
        )
    device = next((p.device for p in vae.parameters()), data.device)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    order = order.to(data.device)
    held_out = min(int(_HELD_OUT * len(data)), _MOST_HELD_OUT)
    return Rows(
        data[order].to(device, torch.float32),
        None if available is None else available[order.to(available.device)].to(device),
        held_out if held_out >= _FEWEST_HELD_OUT else 0,
    )


@final
@dataclass(frozen=True)
class Targets:
    r"""Draws of :math:`q_\psi(z \mid x)` of rows; the VAE encodes them once if it can be kept.

    Args:
        vae: Whose posterior it is.
        rows: Of which rows.
        kept: Means and scales (or factors) of Gaussians, or codes; empty if the VAE is asked
            every time.
    """

    vae: VAE
    rows: Rows
    kept: tuple[Tensor, ...] = ()

    def draws(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Return a draw of z for each of these rows, ``(rows, *latent)``."""
        if not self.kept:
            some = self.rows.part(index)
            return draw(self.vae.encode(some.x, some.available), (), generator).detach()
        if len(self.kept) == 1:
            return self.kept[0][index]
        mean, scale = (value[index] for value in self.kept)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
        if scale.dim() > mean.dim():  # a factor of the covariance
            return mean + (scale @ noise[..., None]).squeeze(-1)
        return mean + scale * noise


@torch.no_grad()
def targets_of(vae: VAE, rows: Rows) -> Targets:
    """Return the draws that a partial encoder is matched to.

    Raises:
        ValueError: If the VAE's answer is not finite.
    """
    found: list[tuple[Tensor, ...]] = []
    for index in torch.split(torch.arange(len(rows.x), device=rows.x.device), _AT_ONCE):
        some = rows.part(index)
        kept = _parameters(vae.encode(some.x, some.available))
        if sum(value[0].numel() for value in kept) * len(rows.x) not in range(1, _MOST_KEPT):
            return Targets(vae, rows)
        if not all(bool(value.isfinite().all()) for value in kept):
            raise ValueError("encode must tell finite numbers of the data, got NaN or infinite")
        found.append(kept)
    return Targets(vae, rows, tuple(torch.cat(values) for values in zip(*found, strict=True)))


def _parameters(posterior: Distribution) -> tuple[Tensor, ...]:
    if isinstance(posterior, PointMass):
        return (posterior.codes,)
    if isinstance(posterior, MultivariateNormal):
        return (posterior.loc, posterior.scale_tril)
    base = posterior.base_dist if isinstance(posterior, Independent) else None
    return (base.loc, base.scale) if isinstance(base, Normal) else ()
