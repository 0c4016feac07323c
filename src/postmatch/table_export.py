"""A table's model and its gains as ONNX files; :mod:`postmatch.fast` runs them."""

import os
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from postmatch.acquisition import AmortisedGain
from postmatch.conditioning import MatchedVAE
from postmatch.distributions.autoregressive import split_mixture
from postmatch.distributions.mixed import MixedColumns
from postmatch.export import DECODER, PARTIAL, Part, seen_by, write_acquirer
from postmatch.nets.made import MaskedResidualNet
from postmatch.partial import AutoregressiveHead, FeatureEncoder
from postmatch.table_acquiring import TableAcquirer
from postmatch.tabular import members_of
from postmatch.vaes.table import TableVAE


def export_table(folder: str | os.PathLike[str], acquirer: TableAcquirer) -> None:
    """Write gains, partial encoder and decoder of a table's model.

    ``partial.onnx`` turns visible values and mask, side by side, and noise into a draw of z: a
    uniform that chooses the member of an ensemble, whose number then comes first in z, and for each
    entry a uniform and, after all of these, a standard normal. ``decoder.onnx`` turns z into means
    of numbers and the most probable categories. Values are those of ``Table.encode``; the names of
    offers and of the columns of x stand in ``acquirer.json``.

    Args:
        folder: Where the files go.
        acquirer: One that was fitted: see :meth:`TableAcquirer.fit`.

    Raises:
        ModuleNotFoundError: Without onnx.
        TypeError: If its gains are sampled, which takes PyTorch.
    """
    gains = acquirer.gains
    if not isinstance(gains, AmortisedGain):
        raise TypeError("acquirer must be one that was fitted, got one whose gains are sampled")
    model, specs = acquirer.model.model, acquirer.model.table.specs
    draws, count = _Draws(model), [len(specs)]
    seen = seen_by(gains, count, next(model.parameters()))
    noise = seen.new_full((len(seen), draws.noise_size), 0.5)
    with torch.no_grad():
        z = draws(seen, noise)
    parts = {
        PARTIAL: Part(draws, (seen, noise), ("seen", "noise"), ("z",)),
        DECODER: Part(_Means(model), (z,), ("z",), ("mean",)),
    }
    levels = [i for i, spec in enumerate(specs) if spec.kind == "category"]
    about = {
        "latent_size": draws.size,
        "members": draws.members,
        "levels": levels,
        "names": list(acquirer.offers.names),
        "columns": [column.name for column in acquirer.model.table.modelled],
    }
    write_acquirer(folder, gains, count, parts, about)


@final
class _Draws(nn.Module):
    """Draws of z from noise: its member, then its entries one after the other."""

    def __init__(self, model: MatchedVAE) -> None:
        super().__init__()
        encoders = [member.partial for member in members_of(model)]
        self.encoders = nn.ModuleList(encoders)
        nets = [_net_of(encoder) for encoder in encoders]
        self.size, self.noise_size = nets[0].size, 1 + 2 * nets[0].size
        self.members = len(encoders)

    def forward(self, seen: Tensor, noise: Tensor) -> Tensor:
        """Return ``(batch, size)``, or with the number of the member before it."""
        x, mask = seen.chunk(2, dim=1)
        uniform, normal = noise[:, 1:].chunk(2, dim=1)
        each = torch.stack([self._draw(e, x, mask > 0.5, uniform, normal) for e in self.encoders])
        if self.members == 1:
            return each[0]
        member = (noise[:, 0] * self.members).floor().clamp(0, self.members - 1)
        number = torch.arange(self.members, device=seen.device)[:, None]
        chosen = (number == member).to(each.dtype)[..., None]  # (members, batch, 1)
        return torch.cat([member[:, None], (chosen * each).sum(0)], dim=1)

    def _draw(
        self, encoder: nn.Module, x: Tensor, observed: Tensor, uniform: Tensor, normal: Tensor
    ) -> Tensor:
        assert isinstance(encoder, FeatureEncoder)
        context = encoder.net(encoder.features(x, observed))
        net, place = _net_of(encoder), torch.arange(self.size, device=x.device)
        z = torch.zeros_like(uniform)
        for i in range(self.size):
            logits, mean, scale = split_mixture(net(z, context)[..., i], dim=-1)
            below = logits.softmax(-1).cumsum(-1)[:, :-1] <= uniform[:, i, None]
            chosen = F.one_hot(below.sum(-1), logits.shape[-1]).to(mean.dtype)
            value = (chosen * (mean + scale * normal[:, i, None])).sum(-1)
            z = torch.where(place == i, value[:, None], z)
        return z


@final
class _Means(nn.Module):
    """Means of numbers and of ordered codes, and the most probable categories, given z."""

    def __init__(self, model: MatchedVAE) -> None:
        super().__init__()
        self.vaes = nn.ModuleList(member.vae for member in members_of(model))

    def forward(self, z: Tensor) -> Tensor:
        """Return ``(batch, columns)``."""
        tables = [vae for vae in self.vaes if isinstance(vae, TableVAE)]
        if len(tables) == 1:
            return MixedColumns(tables[0].layout, tables[0].parameters_of(z)).mean
        each = torch.stack([vae.parameters_of(z[:, 1:]) for vae in tables])
        number = torch.arange(len(tables), device=z.device)[:, None]
        chosen = (number == z[:, 0]).to(each.dtype)[..., None]
        return MixedColumns(tables[0].layout, (chosen * each).sum(0)).mean


def _net_of(encoder: nn.Module) -> MaskedResidualNet:
    if not isinstance(encoder, FeatureEncoder) or not isinstance(encoder.head, AutoregressiveHead):
        name = type(encoder).__name__
        raise TypeError(f"the model must have autoregressive posteriors of columns, got {name}")
    return encoder.head.net
