"""A learned prior: the bound rises to the truth, and draws look like rows."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal
from torch.testing import assert_close

import test_image_vaes
from linear_gaussian import draw_rows, linear_gaussian
from postmatch import fit_prior
from postmatch.metrics import energy_distance
from postmatch.testing import check_vae
from postmatch.vaes.external import ExternalVAE, from_functions
from test_attaching import OURS, TINY, pictures_of_one_level, small, state

TWO = dataclasses.replace(TINY, components=2)
SPREAD, NOISE = 0.4, 0.3  # of each cluster of z, and of x around z


def two_clusters(rows: int, seed: int = 0) -> tuple[ExternalVAE, Tensor, Distribution]:
    """Return a VAE whose z lie in two clusters though its prior is one, rows, and their density.

    Rows are z with noise; the sign of x nearly tells the cluster, and given that the encoder is
    exact.
    """
    gain = SPREAD**2 / (SPREAD**2 + NOISE**2)
    vae = from_functions(
        lambda x: Normal(2.0 * x.sign() + gain * (x - 2.0 * x.sign()), NOISE * math.sqrt(gain)),
        lambda z: Normal(z, NOISE),
        Normal(torch.zeros(1), 1.0),
        torch.ones(2, 1),
    )
    centres = torch.tensor([-2.0, 2.0])
    parts = Normal(centres, math.hypot(SPREAD, NOISE))
    density = MixtureSameFamily(Categorical(torch.ones(2)), parts)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return vae, density.sample(torch.Size([rows, 1])), density


@torch.no_grad()
def test_the_bound_rises_to_the_truth_where_z_is_far_from_the_prior() -> None:
    vae, x, density = two_clusters(2_000)
    better = fit_prior(vae, x, steps=250, sizes=TWO)
    _, test, _ = two_clusters(1_000, seed=1)
    truth = density.log_prob(test[:, 0])
    before, after = (v.log_evidence(test, num_samples=50) for v in (vae, better))
    missed = truth - after
    # A paired difference has a standard error of its own; training may leave 0.05 nats.
    assert missed.mean() > -4.5 * missed.std() / math.sqrt(1_000)
    assert missed.mean() < 4.5 * missed.std() / math.sqrt(1_000) + 0.05
    gained = after - before
    assert gained.mean() > 4.5 * gained.std() / math.sqrt(1_000) + 0.5


@torch.no_grad()
def test_unconditional_draws_become_like_rows() -> None:
    vae, x, _ = two_clusters(2_000)
    better = fit_prior(vae, x, steps=250, sizes=TWO)
    _, test, _ = two_clusters(500, seed=1)
    far, near = (
        energy_distance(
            v.decode(v.prior().sample(torch.Size([500]))).sample().numpy(), test.numpy()
        )
        for v in (vae, better)
    )
    assert near < 0.1 * far


@torch.no_grad()
def test_a_map_learns_that_its_positions_go_together() -> None:
    vae = from_functions(
        lambda x: Normal(x, 0.1),
        lambda z: Normal(z, 0.1),
        Normal(torch.zeros(1, 3, 2), 1.0),
        torch.ones(2, 1, 3, 2),
    )
    x = torch.randn(1_000, 1, 1, 1).expand(-1, 1, 3, 2) + 0.1 * torch.randn(1_000, 1, 3, 2)
    better = fit_prior(vae, x, steps=200, sizes=TINY, learning_rate=1e-2)
    before, after = (v.log_evidence(x[:200], num_samples=20) for v in (vae, better))
    gained = after - before
    # Five of six positions follow from the first: their spread shrinks from 1 to about 0.2.
    assert gained.mean() > 4.5 * gained.std() / math.sqrt(200) + 5 * math.log(2.0)
    drawn = better.prior().sample(torch.Size([400])).flatten(1)
    correlation = drawn.mT.corrcoef()[0, 1:]
    assert (correlation.atanh() > math.atanh(0.9) - 4.5 / math.sqrt(397)).all()


@torch.no_grad()
def test_codes_learn_how_likely_they_are_together() -> None:
    vae, x = pictures_of_one_level(600)
    better = fit_prior(vae, x, steps=100, sizes=TINY, learning_rate=1e-2)
    z = vae.encode(x).sample()
    assert (better.prior().log_prob(z).mean() + math.log(3)).abs() < 0.1
    assert_close(vae.prior().log_prob(z).mean(), torch.tensor(-9 * math.log(3)))


def test_codes_without_a_prior_get_one() -> None:
    model, x, _ = test_image_vaes.build("VQVAE")
    model.vae.prior_net = None
    check_vae(fit_prior(model.vae, x, steps=2, sizes=TINY), x)


@pytest.mark.parametrize("name", ["GaussianVAE", "TableVAE", "ConvVAE", "VQVAE"])
def test_a_vae_with_a_learned_prior_keeps_the_contract_and_its_body_stays(name: str) -> None:
    vae, x = OURS[name]()
    vae.train()
    before = state(vae)
    better = fit_prior(vae, x, steps=2, sizes=TINY)
    assert state(vae) == before
    assert better.body is vae
    check_vae(better, x[:6])


@torch.no_grad()
def test_a_learned_prior_can_be_attached_to() -> None:
    vae = linear_gaussian(3, 2)
    x, observed = draw_rows(vae, 50)
    better = fit_prior(vae, x, steps=2, sizes=TINY)
    ours, theirs = (small(v, x).given(x, observed).impute(4) for v in (better, vae))
    assert_close(ours, theirs)  # which the prior is no part of


@pytest.mark.filterwarnings("ignore:assumed")
def test_what_is_learned_is_no_longer_assumed() -> None:
    x = torch.randn(20, 3)
    vae = from_functions(lambda x: Normal(x[:, :2], 0.5), lambda z: z @ torch.ones(2, 3), None, x)
    assert len(vae.assumptions) == 2
    (told,) = fit_prior(vae, x, steps=2, sizes=TINY).assumptions
    assert told.startswith("p(x | z)")


def test_a_hierarchy_keeps_its_own_prior() -> None:
    vae, x = OURS["HierarchicalVAE"]()
    with pytest.raises(TypeError, match="has a learned prior"):
        fit_prior(vae, x)
