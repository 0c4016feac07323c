"""How sure a table's model may be: decided by cells it has not learned from."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.mixed import MixedColumns
from postmatch.distributions.noise import from_noise, noise_size
from postmatch.metrics import crps
from postmatch.vaes.ensemble import TableEnsemble
from postmatch.vaes.table import TableVAE

_DRAWS = 32  # of each cell
_LOWEST, _HIGHEST = math.log(0.5), math.log(4.0)
_SPREAD = 0.5  # of the logarithm, before any cell is seen
_STEPS = 12  # of the search, each of which leaves .62 of the interval


@torch.no_grad()
def calibrate(model: MatchedVAE, x: Tensor, seen: Tensor, held_out: Tensor) -> None:
    """Make a trained model as sure of held-out numbers as it should have been.

    A model that goes on learning after its densities fit best is still getting better at telling
    where values lie, but too sure of it. A factor on the scales of all numbers mends that, and
    leaves best guesses as they are. It is the one whose draws have the lowest CRPS: the likelihood
    would follow the few cells that lie furthest off.

    Args:
        model: Of a table; its ``widening`` is set.
        x: Rows, ``(rows, columns)``.
        seen: What the model may see of them.
        held_out: Cells that it has not learned from, to be told from what is seen.
    """
    vae = model.eval().vae
    assert isinstance(vae, TableVAE | TableEnsemble)
    vae.widening.fill_(1.0)
    number = torch.tensor([spec.kind != "category" for spec in vae.layout.specs], device=x.device)
    judged = held_out & number
    cells = int(judged.sum())
    if not cells:
        return
    decoded = model.given(x, seen).marginals(num_samples=_DRAWS)
    assert isinstance(decoded, MixedColumns)
    size = noise_size(decoded)
    assert size is not None
    generator = torch.Generator().manual_seed(0)  # the same noise for every factor
    noise = torch.rand(_DRAWS, len(x), size, generator=generator).to(x.device)
    unit = torch.tensor([spec.spread for spec in vae.layout.specs], device=x.device)
    truth = (x / unit)[judged].cpu()

    def loss(log_factor: float) -> float:
        """Return what falls by one where a likelihood of so many cells would gain one."""
        widening = torch.full_like(vae.widening, math.exp(log_factor))
        drawn = from_noise(MixedColumns(vae.layout, decoded.parameters, widening), noise)
        score = crps((drawn / unit)[:, judged].cpu(), truth)
        return 0.5 * (log_factor / _SPREAD) ** 2 + cells * math.log(max(score, 1e-12))

    vae.widening.fill_(math.exp(_lowest(loss, _LOWEST, _HIGHEST)))


def _lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function that falls and then rises is lowest, by golden sections."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(_STEPS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2.0
