"""What tests of the scoreboard's peers share."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from postmatch.data.uci import Splits
from postmatch.recipes.uci import config_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "baselines"))

from gaussian import ExactMixture
from protocol import Task

LATENT = 4


def task_of(x: Tensor, *, log_scale: Tensor | None = None, **settings: Any) -> Task:
    """Return a task for small networks; the last 400 rows are for tests, 200 before for choices."""
    small = {"width": 32, "latent_size": LATENT, "batch_size": 256, "steps": 300, "average": 0.9}
    config = replace(config_of("gas", "best"), **(small | settings))
    scale = torch.zeros(x.shape[1]) if log_scale is None else log_scale
    return Task(Splits(x[:-600], x[-600:-400], x[-400:]), scale, config, num_samples=20)


def standard_error(values: Tensor) -> float:
    return float(values.std()) / math.sqrt(values.numel())


def hand_made_circuit() -> tuple[Any, ExactMixture]:
    """Return a circuit of sums below products below a sum, and the five Gaussians that it is."""
    pytest.importorskip("spflow")
    from spflow.modules.leaves import Normal as Leaf
    from spflow.modules.products import Product
    from spflow.modules.sums import Sum

    from spn import Circuit

    generator = torch.Generator().manual_seed(4)
    loc = 2.0 * torch.randn(4, 5, 1, generator=generator).double()  # (features, channels, 1)
    scale = 0.3 + torch.rand(4, 5, 1, generator=generator).double()

    def factors(features: slice, channels: slice) -> Any:
        part = (features, channels)
        scope = list(range(4))[features]
        return Product(Leaf(scope, loc=loc[part], scale=scale[part]))

    everything, left, right = slice(0, 4), slice(0, 2), slice(2, 4)
    halves = [
        Sum(factors(left, slice(1, 3)), weights=torch.tensor([0.3, 0.7], dtype=torch.float64)),
        Sum(factors(right, slice(3, 5)), weights=torch.tensor([0.9, 0.1], dtype=torch.float64)),
    ]
    inputs = [factors(everything, slice(0, 1)), Product(halves)]
    root = Sum(inputs, weights=torch.tensor([0.4, 0.6], dtype=torch.float64))
    weights, means, variances = [0.4], [loc[:, 0, 0]], [scale[:, 0, 0].square()]
    for i, first in ((1, 0.3), (2, 0.7)):
        for j, second in ((3, 0.9), (4, 0.1)):
            weights.append(0.6 * first * second)
            means.append(torch.cat([loc[left, i, 0], loc[right, j, 0]]))
            variances.append(torch.cat([scale[left, i, 0], scale[right, j, 0]]).square())
    same = ExactMixture(
        torch.tensor(weights, dtype=torch.float64),
        torch.stack(means),
        torch.diag_embed(torch.stack(variances)),
    )
    return Circuit(root), same
