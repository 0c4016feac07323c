"""What is written of a part that was attached to a VAE, and how it is made again."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from postmatch.attached_encoder import AttachedEncoder, encoder_for
from postmatch.partial_shapes import PartialSizes, Shapes
from postmatch.untouched import fingerprint
from postmatch.vaes.base import VAE

_KEYS = {"shapes", "sizes", "vae_sha256"}
_LARGEST = 1_000_000


def attached_config(vae: VAE, partial: AttachedEncoder) -> dict[str, Any]:
    """Return what :func:`attached_encoder` needs, for a JSON file."""
    return {
        "shapes": dataclasses.asdict(partial.shapes),
        "sizes": dataclasses.asdict(partial.sizes),
        "vae_sha256": told_by(vae),
    }


def told_by(vae: VAE) -> str | None:
    """Return what tells a VAE's weights from others; None of functions without any."""
    return fingerprint(vae) if vae.state_dict() else None


def check_same(vae: VAE, config: Any) -> None:
    """Raise unless a VAE is the one that a part was attached to, by the digest of its weights."""
    if not isinstance(config, dict) or set(config) != _KEYS:
        given = set(config) if isinstance(config, dict) else set()
        raise ValueError(f"config must be that of an attached part; check {given ^ _KEYS}")
    wanted, came = config["vae_sha256"], told_by(vae)
    if wanted != came:
        short = [str(name)[:12] for name in (wanted, came)]
        raise ValueError(
            "vae must be the one that this part was attached to, and its weights are others: "
            f"their digest is {short[1]}, not {short[0]}"
        )


def attached_encoder(vae: VAE, config: Mapping[str, Any], facts: dict[str, Any]) -> AttachedEncoder:
    """Return an encoder of the saved shapes and sizes, untrained."""
    shapes, sizes = _shapes(config["shapes"]), _sizes(config["sizes"])
    return AttachedEncoder(encoder_for(vae, shapes, sizes), shapes, sizes, facts)


def _shapes(told: Any) -> Shapes:
    names = {field.name for field in dataclasses.fields(Shapes)}
    if not isinstance(told, dict) or set(told) != names or type(told["pixels"]) is not bool:
        raise ValueError(f"shapes must have {', '.join(sorted(names))}, got {told!r}")
    levels = told["levels"]
    if not isinstance(levels, list) or not levels or not _whole(told["num_codes"], least=0):
        raise ValueError(f"shapes must tell levels and num_codes, got {told!r}")
    return Shapes(
        _sides(told["features"]),
        told["pixels"],
        tuple(_sides(level) for level in levels),
        told["num_codes"],
    )


def _sizes(told: Any) -> PartialSizes:
    names = {field.name for field in dataclasses.fields(PartialSizes)}
    if not isinstance(told, dict) or set(told) != names:
        raise ValueError(f"sizes must have {', '.join(sorted(names))}, got {told!r}")
    for name, value in told.items():
        if not _whole(value, least=1):
            raise ValueError(f"sizes: {name} cannot be {value!r}")
    return PartialSizes(**told)


def _sides(told: Any) -> tuple[int, ...]:
    if not isinstance(told, list) or not all(_whole(side, least=1) for side in told):
        raise ValueError(f"shapes must be lists of whole numbers, got {told!r}")
    return tuple(told)


def _whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= _LARGEST
