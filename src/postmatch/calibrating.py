"""How sure a table's model may be: decided by cells it has not learned from."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from postmatch.conditioning import MatchedVAE
from postmatch.distributions.mixed import MixedColumns
from postmatch.vaes.ensemble import TableEnsemble
from postmatch.vaes.table import TableVAE

_SAMPLES = 16
_LOWEST, _HIGHEST = math.log(0.5), math.log(4.0)
_SPREAD = 0.5  # of the logarithm, before any cell is seen
_STEPS = 12  # of the search, each of which leaves .62 of the interval


@torch.no_grad()
def calibrate(model: MatchedVAE, x: Tensor, seen: Tensor, held_out: Tensor) -> None:
    """Make a trained model as sure of held-out cells as it should have been.

    A model that goes on learning after its densities fit best is still getting better at telling
    where values lie, but too sure of it. Two numbers mend that: a factor on the scales of all
    numbers, and a temperature of all categories. Best guesses of numbers stay as they are.

    Args:
        model: Of a table; its calibration is set.
        x: Rows, ``(rows, columns)``.
        seen: What the model may see of them.
        held_out: Cells that it has not learned from, to be told from what is seen.
    """
    vae = model.eval().vae
    assert isinstance(vae, TableVAE | TableEnsemble)
    vae.calibration.fill_(1.0)
    decoded = model.given(x, seen).marginals(num_samples=_SAMPLES)
    assert isinstance(decoded, MixedColumns)
    category = torch.tensor([spec.kind == "category" for spec in vae.layout.specs], device=x.device)
    known = x.masked_fill(~held_out, 0.0)
    for place, own in enumerate((held_out & ~category, held_out & category)):
        if own.any():

            def loss(log_factor: float, place: int = place, own: Tensor = own) -> float:
                calibration = torch.ones_like(vae.calibration)
                calibration[place] = math.exp(log_factor)
                found = MixedColumns(vae.layout, decoded.parameters, calibration)
                log_cell = found.log_prob(known).logsumexp(0)[own]
                return 0.5 * (log_factor / _SPREAD) ** 2 - float(log_cell.double().sum())

            vae.calibration[place] = math.exp(_lowest(loss, _LOWEST, _HIGHEST))


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
