"""Networks as ONNX files, for machines without PyTorch; :mod:`postmatch.fast` runs them."""

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import final

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
    _require_onnx()
    if not isinstance(model.partial, MaskedEncoder):
        name = type(model.partial).__name__
        raise TypeError(f"model.partial must be a MaskedEncoder, got {name}")
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    device = next(model.parameters()).device
    mask = acquirer.offers.reveals.shape[1:]
    seen = torch.zeros(2, features[0] + mask[0], *features[1:], device=device)
    partial = _Partial(model.partial)
    with torch.no_grad():
        mean, _ = partial(seen)
    _write(where / GAINS, acquirer.net, seen, ["seen"], ["gains"])
    _write(where / PARTIAL, partial, seen, ["seen"], ["mean", "factor"])
    _write(where / DECODER, _Decoder(model.vae), mean, ["z"], ["mean"])
    facts = {
        "format": FORMAT,
        "features": list(features),
        "mask": list(mask),
        "offers": [row.flatten().nonzero()[:, 0].tolist() for row in acquirer.offers.reveals],
        "costs": acquirer.offers.costs.tolist(),
        "latent_size": mean.shape[-1],
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
class _Decoder(nn.Module):
    """The mean of p(x | z)."""

    def __init__(self, vae: VAE) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, z: Tensor) -> Tensor:
        """Return ``(batch, *features)``."""
        return self.vae.decode(z).mean


def _write(
    path: Path, module: nn.Module, example: Tensor, inputs: list[str], outputs: list[str]
) -> None:
    training = module.training
    with _quiet():
        program = torch.onnx.export(
            module.eval(),
            (example,),
            dynamo=True,
            verbose=False,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    module.train(training)
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
