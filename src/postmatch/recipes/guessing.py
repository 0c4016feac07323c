"""Hidden pixels that are guessed on the way, which teaches a partial encoder how images go on."""

from collections import defaultdict
from typing import final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional as F

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.codes import CodeGrid
from postmatch.distributions.hierarchy import Hierarchy
from postmatch.nets.precision import full_precision

_SCALE = 0.2  # standard deviation of guessed pixels
_SHRUNK = (2, 4)  # by how much the maps of a hierarchy that guess are smaller than the image


@final
class Guessing(nn.Module):
    """A model of images, and layers that guess pixels from what its partial encoder makes of them.

    A match says little of how images go on: of codes, those before a code tell most of it, and of a
    hierarchy, most of what is matched is the finest texture. A guess of every hidden pixel asks the
    network that reads the image for just that. Only training needs the layers.

    Args:
        model: Of codes or of a hierarchy.
        x: Some images.
    """

    def __init__(self, model: MatchedVAE, x: Tensor) -> None:
        super().__init__()
        self.model = model
        with torch.no_grad():
            told = told_by(model.partial(x[:1], torch.ones_like(x[:1, :1], dtype=torch.bool)), x)
        self.layers = nn.ModuleList(
            nn.Conv2d(each.shape[1], x.shape[1] * (x.shape[-1] // each.shape[-1]) ** 2, 1)
            for each in told
        )

    def loss(self, posterior: Distribution, x: Tensor, observed: Tensor) -> Tensor:
        """Return the squared error at hidden pixels of each image, in nats but for a constant.

        Errors of several guesses add up.
        """
        errors = []
        for layer, told in zip(self.layers, told_by(posterior, x), strict=True):
            guess = F.pixel_shuffle(full_precision(layer(told)), x.shape[-1] // told.shape[-1])
            errors.append((guess - x).square().masked_fill(observed, 0.0).flatten(1).sum(1))
        return torch.stack(errors).sum(0) / (2.0 * _SCALE**2)


def told_by(posterior: Distribution, x: Tensor) -> list[Tensor]:
    """Return what a partial encoder tells of images x at each place, ``(batch, channels, ...)``."""
    if isinstance(posterior, CodeGrid):
        assert posterior.spatial is not None
        return [posterior.spatial]
    assert isinstance(posterior, Hierarchy)
    levels: dict[int, list[Tensor]] = defaultdict(list)
    for evidence in posterior.evidence:  # (batch, size, size, channels)
        levels[evidence.shape[1]].append(evidence)
    sizes = [x.shape[-1] // factor for factor in _SHRUNK]
    return [F.gelu(torch.cat(levels[s], dim=-1)).movedim(-1, 1) for s in sizes if s in levels]
