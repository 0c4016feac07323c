"""Networks as ONNX files, for machines without PyTorch; :mod:`postmatch.fast` runs them."""

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from postmatch.acquisition import AmortisedGain
from postmatch.conditioning import MatchedVAE
from postmatch.partial import MaskedEncoder
from postmatch.vaes.base import VAE

FORMAT = 1
GAINS, PARTIAL, DECODER, FACTS = "gains.onnx", "partial.onnx", "decoder.onnx", "acquirer.json"


def export_acquirer(
    folder: str | os.PathLike[str],
    acquirer: AmortisedGain,
    model: MatchedVAE,
    features: Sequence[int],
) -> None:
    """Write what it takes to choose and to predict: gains, partial encoder and decoder.

    Args:
        folder: Where the files go.
        acquirer: The network that tells gains.
        model: The matched VAE; its partial encoder is a :class:`MaskedEncoder` with a Gaussian
            head.
        features: The shape of a row.

    Raises:
        ModuleNotFoundError: Without onnx.
        TypeError: If the partial encoder is of another kind.
    """
    if not isinstance(model.partial, MaskedEncoder):
        name = type(model.partial).__name__
        raise TypeError(f"model.partial must be a MaskedEncoder, got {name}")
    seen, partial = seen_by(acquirer, features, next(model.parameters())), _Partial(model.partial)
    with torch.no_grad():
        mean, _ = partial(seen)
    parts = {
        PARTIAL: Part(partial, (seen,), ("seen",), ("mean", "factor")),
        DECODER: Part(Means(model.vae), (mean,), ("z",), ("mean",)),
    }
    write_acquirer(folder, acquirer, features, parts, {"latent_size": mean.shape[-1]})


def seen_by(acquirer: AmortisedGain, features: Sequence[int], like: Tensor) -> Tensor:
    """Return an example of visible values and mask, side by side."""
    mask = acquirer.offers.reveals.shape[1:]
    return torch.zeros(2, features[0] + mask[0], *features[1:], device=like.device)


@final
@dataclass(frozen=True)
class Part:
    """A network as it is written.

    Args:
        module: In its mode of evaluation while it is.
        inputs: Examples, two rows of each.
        names: Of the inputs.
        outputs: Names of what it returns.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    names: tuple[str, ...]
    outputs: tuple[str, ...]


def write_acquirer(
    folder: str | os.PathLike[str],
    acquirer: AmortisedGain,
    features: Sequence[int],
    parts: Mapping[str, Part],
    about: Mapping[str, Any],
) -> None:
    """Write the network that tells gains, other parts of a model, and what a reader must know.

    Args:
        folder: Where the files go.
        acquirer: The network that tells gains.
        features: The shape of a row.
        parts: The partial encoder and the decoder, by the names of their files.
        about: What else there is to know of them, as plain JSON.

    Raises:
        ModuleNotFoundError: Without onnx.
    """
    _require_onnx()
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    seen = seen_by(acquirer, features, next(acquirer.parameters()))
    for name, part in {GAINS: Part(acquirer.net, (seen,), ("seen",), ("gains",)), **parts}.items():
        _write(where / name, part)
    facts = {
        "format": FORMAT,
        "features": list(features),
        "mask": list(acquirer.offers.reveals.shape[1:]),
        "offers": [row.flatten().nonzero()[:, 0].tolist() for row in acquirer.offers.reveals],
        "costs": acquirer.offers.costs.tolist(),
        **about,
    }
    (where / FACTS).write_text(json.dumps(facts) + "\n")


@final
class _Partial(nn.Module):
    """Mean and Cholesky factor of q(z | x_o), from visible values and mask side by side."""

    def __init__(self, partial: MaskedEncoder) -> None:
        super().__init__()
        self.net, self.head = partial.net, partial.head

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(batch, latent_size)`` and ``(batch, latent_size, latent_size)``."""
        found: Distribution = self.head(self.net(seen))
        if isinstance(found, MultivariateNormal):
            return found.loc, found._unbroadcasted_scale_tril
        base = found.base_dist if isinstance(found, Independent) else found
        if not isinstance(base, Normal):
            name = type(base).__name__
            raise TypeError(f"q(z | x_o) must be Gaussian to be written as ONNX, got {name}")
        return base.loc, torch.diag_embed(base.scale)


@final
class Means(nn.Module):
    """The mean of p(x | z)."""

    def __init__(self, vae: VAE) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, z: Tensor) -> Tensor:
        """Return ``(batch, *features)``."""
        return self.vae.decode(z).mean


def _write(path: Path, part: Part) -> None:
    training = part.module.training
    with _quiet():
        program = torch.onnx.export(
            part.module.eval(),
            part.inputs,
            dynamo=True,
            verbose=False,
            input_names=part.names,
            output_names=part.outputs,
            dynamic_shapes=tuple({0: torch.export.Dim("batch")} for _ in part.inputs),
        )
    part.module.train(training)
    assert program is not None
    program.save(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's remarks about itself from the user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError:
        raise ModuleNotFoundError("writing ONNX needs pip install 'postmatch[onnx]'") from None
