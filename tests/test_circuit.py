"""Probabilistic circuits, a peer of the scoreboard, against the mixtures that they are."""

import math
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from postmatch.recipes.scores import masks_of
from small_baselines import hand_made_circuit, standard_error, task_of

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "baselines"))

import circuit
import gaussian
from gaussian import ExactMixture


def test_a_circuit_has_the_conditionals_of_the_mixture_that_it_is() -> None:
    model, same = hand_made_circuit()
    x = 2.0 * torch.randn(60, 4).double()
    observed = torch.rand(60, 4) < 0.5
    observed[0], observed[1] = False, True
    found, truth = model.given(x, observed), same.given(x, observed)
    assert_close(model.log_prob(x), same.log_prob(x), atol=1e-9, rtol=0.0)
    assert_close(found.log_prob(x), truth.log_prob(x), atol=1e-9, rtol=0.0)
    assert_close(found.impute(), truth.impute(), atol=1e-9, rtol=0.0)
    assert model.parameters == 2 * (4 + 4 + 4) + 1 + 1 + 1


def test_a_circuit_improves_as_by_spflows_own_step() -> None:
    from_us, from_them = hand_made_circuit()[0], hand_made_circuit()[0]
    from spflow.learn import expectation_maximization

    rows = 2.0 * torch.randn(500, 4).double()
    from_us.improve(rows)
    expectation_maximization(from_them.root, rows, max_steps=1, bias_correction=False)
    for ours, theirs in zip(from_us.leaves, from_them.leaves, strict=True):
        assert_close(ours.loc, theirs.loc, atol=1e-6, rtol=0.0)
        variance = theirs.scale.square() + gaussian.JITTER
        assert_close(ours.scale.square(), variance, atol=1e-6, rtol=0.0)
    for ours, theirs in zip(from_us.sums, from_them.sums, strict=True):
        assert_close(ours.weights, theirs.weights, atol=1e-9, rtol=0.0)


def test_a_compact_circuit_is_the_same_density() -> None:
    pytest.importorskip("spflow")
    from spflow.learn import learn_spn
    from spflow.meta import Scope
    from spflow.modules.leaves import Normal as Leaf

    import spn

    # Two pairs of features that depend on each other: a product, with sums of sums below it.
    z = torch.randn(600, 2)
    x = torch.cat([z, z + 0.3 * torch.randn(600, 2)], dim=1).double()
    cuts = spn.Cuts(100, 0.3, seed=0)
    root = learn_spn(
        x,
        Leaf(Scope(range(4))),
        min_instances_slice=100,
        partitioning_method=cuts.features,
        clustering_method=cuts.rows,
    ).double()
    same = spn.compact(root)
    assert len(list(same.modules())) < len(list(root.modules())) / 4
    assert_close(same.log_likelihood(x), root.log_likelihood(x), atol=1e-5, rtol=0.0)


def test_dependence_is_of_any_shape_and_of_ranks_alone() -> None:
    pytest.importorskip("spflow")
    from spn import COSINES, dependence

    z, other = torch.randn(2, 4000).double()
    found = dependence(torch.stack([z, z.exp(), z.square(), other], dim=1))
    assert found[0, 1].item() == pytest.approx(1.0, abs=1e-9)
    assert found[0, 2] > 0.9  # whose correlation is zero
    # Each of the products of cosines has a standard error of one in root n.
    assert found[3, :3].max() < 3.0 * COSINES / math.sqrt(4000)


def test_a_learned_circuit_comes_near_the_truth() -> None:
    pytest.importorskip("spflow")
    center = 4.0 * torch.randn(3, 5)
    x = center[torch.randint(3, (1000,))] + 0.5 * torch.randn(1000, 5)
    task = task_of(x)
    best, scores, _ = circuit.fit_circuit(task, sizes=(300, 100))
    assert best.score >= max(scores.values())
    truth = ExactMixture(
        torch.ones(3).double() / 3, center.double(), 0.25 * torch.eye(5).double().repeat(3, 1, 1)
    )
    test = task.rows.test
    observed = masks_of(test, 0)
    exact, found = (m.given(test, observed).log_prob(test, 0) for m in (truth, best.model))
    loss = exact - found
    # A maximum of likelihood loses half a nat in all of its rows for each number.
    allowed = 0.5 * best.model.parameters / 400
    assert -3.0 * standard_error(loss) < loss.mean() < allowed + 3.0 * standard_error(loss)
