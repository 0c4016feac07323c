"""Clusters that are trained: known ones are found again, and lost ones are noticed."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from postmatch import cluster_fitting
from postmatch.cluster_fitting import ClusterPlan, codes_of, fit_clusters, fit_codes, start_clusters
from postmatch.metrics import cluster_accuracy, matched_clusters
from postmatch.nets.linear import Linear
from postmatch.nets.mlp import ResidualMLP
from postmatch.partial import DiagonalHead, MaskedEncoder
from postmatch.training.plan import Plan
from postmatch.vaes.gaussian import GaussianVAE
from postmatch.vaes.vade import VaDE

SHARES = torch.tensor([0.5, 0.3, 0.2])
PLAN = ClusterPlan(
    Plan(150, learning_rate=1e-2, warmup=10, average=0.9),
    Plan(250, learning_rate=5e-3, warmup=10, average=0.9),
    batch_size=64,
    starts=3,
)


def rows(count: int = 600) -> tuple[Tensor, Tensor]:
    """Return rows of six numbers around three points, and which of them it is."""
    generator = torch.Generator().manual_seed(0)
    label = torch.multinomial(SHARES, count, replacement=True, generator=generator)
    centre = 2.5 * torch.randn(3, 6, generator=generator)
    return centre[label] + 0.7 * torch.randn(count, 6, generator=generator), label


def model(num_clusters: int = 3) -> VaDE:
    torch.manual_seed(1)
    encoder = MaskedEncoder(ResidualMLP(12, 24, 1), DiagonalHead(24, 2))
    decoder = nn.Sequential(ResidualMLP(2, 24, 1), Linear(24, 6))
    return VaDE(GaussianVAE(encoder, decoder, 2), 2, num_clusters)


def clusters_of(trained: VaDE, x: Tensor) -> np.ndarray:
    codes = torch.from_numpy(codes_of(trained, x)).float()
    with torch.no_grad():
        return trained.prior().log_clusters(codes).argmax(-1).numpy()


def test_three_groups_are_found_with_their_shares() -> None:
    x, label = rows()
    trained = model()
    seen: list[float] = []
    report = fit_clusters(trained, x, PLAN, seed=3, show=lambda p: seen.append(p.fraction))
    found = clusters_of(trained, x)
    assert cluster_accuracy(found, label) > 0.97
    names = matched_clusters(found, label)
    # Each share within four of its standard errors, and the weights near them.
    error = (SHARES * (1.0 - SHARES) / len(x)).sqrt()
    by_label = torch.empty(3)
    by_label[torch.from_numpy(names)] = trained.prior().log_weights.exp().detach()
    assert ((by_label - SHARES).abs() < 4.0 * error + 0.03).all()
    assert report.kept == 0
    assert len(report.losses) == 1  # nothing was lost, so it was not tried again
    assert report.losses[0] < 6 * 2.0
    assert abs(sum(report.shares[0]) - 1.0) < 1e-6
    assert seen[-1] == 1.0


def test_batches_are_varied_and_codes_are_not() -> None:
    x, _ = rows(100)
    stored = (10.0 * x).round()
    varied: list[Tensor] = []

    def vary(batch: Tensor, generator: torch.Generator) -> Tensor:
        varied.append(batch)
        return -batch

    def read(some: Tensor) -> Tensor:
        return some / 10.0

    brief = ClusterPlan(Plan(2), Plan(3), batch_size=16, starts=1, attempts=1)
    trained = model()
    fit_clusters(trained, stored, brief, read=read, vary=vary)
    assert len(varied) == 5
    assert all(any(torch.equal(row, one) for one in stored / 10.0) for row in varied[0])
    assert np.array_equal(codes_of(trained, stored, read), codes_of(trained, stored / 10.0))


def test_groups_are_kept_first_and_what_is_decoded_is_the_row_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, _ = rows(100)
    asked: list[tuple[Tensor, Tensor | None]] = []
    loss = VaDE.loss

    def heard(self: VaDE, x: Tensor, **how: Any) -> Tensor:
        asked.append((x, how.get("clusters")))
        return loss(self, x, **how)

    monkeypatch.setattr(VaDE, "loss", heard)
    brief = ClusterPlan(Plan(2), Plan(3), Plan(4), batch_size=16, starts=1, attempts=1)
    report = fit_clusters(model(), x, brief, vary=lambda some, _: some + 100.0)
    kept = [clusters for _, clusters in asked if clusters is not None]
    assert (len(report.groups), report.groups[0].steps) == (1, 4)
    assert len(kept) >= 4
    assert all(clusters.shape == (16,) for clusters in kept)
    assert all(some.max() < 50.0 for some, _ in asked)


def test_mixtures_start_where_codes_lie() -> None:
    generator = np.random.default_rng(0)
    centres = np.array([[0.0, 5.0], [40.0, 0.0], [-30.0, -20.0]])
    codes = np.repeat(centres, 200, axis=0) + generator.normal(size=(600, 2)) * [1.0, 3.0]
    fresh = model()
    start_clusters(fresh, codes, PLAN)
    prior = fresh.prior()
    order = prior.loc[:, 0].argsort()
    # Means within five standard errors, deviations, not variances, within a tenth.
    apart = (prior.loc[order] - torch.tensor(centres[[2, 0, 1]])).abs()
    assert (apart < 5.0 * torch.tensor([1.0, 3.0]) / 200**0.5).all()
    assert torch.allclose(prior.scale, torch.tensor([1.0, 3.0]), rtol=0.12)
    assert torch.allclose(prior.log_weights.exp(), torch.full((3,), 1 / 3), atol=0.01)


def test_an_attempt_that_lost_a_cluster_is_followed_by_another_and_the_best_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, _ = rows(100)
    outcomes = iter(
        [(1.0, [1.0, 0.0, 0.0]), (3.0, [0.5, 0.5, 0.0]), (2.0, [0.4, 0.6, 0.0]), (0.0, [])]
    )
    kept: list[dict[str, Tensor]] = []

    def outcome(trained: VaDE, *_: object) -> tuple[float, list[float]]:
        kept.append({name: value.clone() for name, value in trained.state_dict().items()})
        return next(outcomes)

    monkeypatch.setattr(cluster_fitting, "_outcome", outcome)
    brief = ClusterPlan(Plan(3), Plan(3), batch_size=16, starts=1, attempts=3)
    trained = model()
    report = fit_clusters(trained, x, brief)
    assert report.kept == 2  # two lost two clusters or had a worse bound
    assert report.losses == [1.0, 3.0, 2.0]
    state = trained.state_dict()
    assert all(torch.equal(state[name], value) for name, value in kept[2].items())
    assert not all(torch.equal(state[name], value) for name, value in kept[1].items())


def test_a_lost_cluster_shows_in_the_shares() -> None:
    x, _ = rows(100)
    lost = model()
    codes = torch.from_numpy(codes_of(lost, x)).float()
    far = torch.stack([codes.mean(0), codes.mean(0) + 0.1, codes.mean(0) + 1e3])
    lost.set_clusters(torch.ones(3) / 3, far, torch.ones(3, 2))
    _, shares = cluster_fitting._outcome(lost, x, lambda rows: rows, 0)
    assert shares[2] == 0.0
    assert sum(shares) == pytest.approx(1.0)


def test_rows_with_holes_are_clustered_by_what_is_there() -> None:
    x, label = rows()
    generator = torch.Generator().manual_seed(2)
    available = torch.rand(x.shape, generator=generator) < 0.8
    torn = x.masked_fill(~available, float("nan"))
    trained = model()
    report = fit_clusters(trained, torn, PLAN, available=available, seed=3)
    codes = torch.from_numpy(codes_of(trained, torn, available=available)).float()
    found = trained.prior().log_clusters(codes).argmax(-1)
    assert cluster_accuracy(found, label) > 0.9
    assert report.losses[0] < 6 * 2.0


def test_codes_that_are_trained_already_are_kept_as_a_start() -> None:
    x, _ = rows(100)
    fresh = model()
    fit_codes(fresh, x, Plan(3), batch_size=16)
    before = codes_of(fresh, x)
    still = Plan(1, learning_rate=0.0, weight_decay=0.0)
    report = fit_clusters(fresh, x, ClusterPlan(None, still, starts=1, attempts=1))
    assert report.codes is None
    assert np.allclose(codes_of(fresh, x), before, atol=1e-5)
