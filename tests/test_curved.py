"""The likelihoods of a model with two modes, against quadrature."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from curved import CENTRES, OnGrid, curved_model, draw_curved, quadrature

SPOILED = {
    "exact": (1.0, 0.0),
    "narrowed": (0.7, 0.0),
    "widened": (1.5, 0.0),
    "shifted": (1.0, 3.0),
}


def standard_errors(difference: Tensor) -> float:
    """Return how many of its standard errors a mean is above zero."""
    return float(difference.mean() / (difference.std() / math.sqrt(len(difference))))


def test_quadrature_agrees_with_bayes_rule() -> None:
    model = curved_model()
    x, observed = draw_curved(40)
    answer = model.given(x, observed)
    everything, nothing = torch.ones_like(observed), torch.zeros_like(observed)
    prior = OnGrid((-0.5 * CENTRES.square()).expand(40, -1))
    whole = quadrature(prior, model.vae, x, everything)  # type: ignore[arg-type]
    part = quadrature(prior, model.vae, x, observed)  # type: ignore[arg-type]
    found = quadrature(answer.latent, model.vae, x, ~observed)  # type: ignore[arg-type]
    assert_close(found, whole - part, atol=1e-6, rtol=0.0)
    assert_close(quadrature(prior, model.vae, x, nothing), torch.zeros(40).double())  # type: ignore[arg-type]
    # One feature seen, z has two modes: the density of the first given the second has two as well.
    row, mask = torch.tensor([[0.0, 4.0]]).double(), torch.tensor([[False, True]])
    line = torch.linspace(-8.0, 8.0, 801).double()
    rows = torch.stack([line, torch.full_like(line, 4.0)], 1)
    latent = model.given(row.expand(801, -1), mask.expand(801, -1)).latent
    density = quadrature(latent, model.vae, rows, ~mask.expand(801, -1)).exp()  # type: ignore[arg-type]
    assert torch.trapezoid(density, line).item() == pytest.approx(1.0, abs=1e-4)
    assert density[600] > 20.0 * density[400]  # at 4 rather than at 0
    assert density[200] == pytest.approx(density[600].item(), rel=1e-6)


@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("num_samples", [10, 100, 1_000])
def test_the_bound_never_exceeds_the_density_of_sample(name: str, num_samples: int) -> None:
    model = curved_model(*SPOILED[name])
    x, observed = draw_curved(400)
    answer = model.given(x, observed)
    truth = quadrature(answer.latent, model.vae, x, ~observed)  # type: ignore[arg-type]
    excess = answer.log_prob(x, num_samples=num_samples) - truth
    assert standard_errors(excess) < 2.0
    if num_samples == 1_000 and name != "shifted":
        assert excess.mean() > -0.02


def test_the_papers_ratio_exceeds_the_truth_where_the_bound_falls() -> None:
    x, observed = draw_curved(400)
    model, exact = curved_model(1.0, 3.0), curved_model()
    truth = quadrature(exact.given(x, observed).latent, model.vae, x, ~observed)  # type: ignore[arg-type]
    answer = model.given(x, observed)
    ratio = answer.log_prob_ratio(x, num_samples=100)
    # By hundreds of nats for some rows; cut to one nat, the excess only shrinks.
    assert standard_errors((ratio.value - truth).clamp(max=1.0)) > 5.0
    assert standard_errors(truth - answer.log_prob(x)) > 5.0
    assert ratio.pareto_k.median() > 0.7
    assert exact.given(x, observed).log_prob_ratio(x).pareto_k.median() < 0.5


def test_the_gap_grows_as_the_estimate_gets_loose() -> None:
    x, observed = draw_curved(400)
    model = curved_model(1.5)
    gaps = [model.given(x, observed).log_prob_gap(k).value for k in (1_000, 20, 2)]
    assert gaps[0].mean() < 0.02
    for tight, loose in itertools.pairwise(gaps):
        assert standard_errors(loose - tight) > 4.0
