"""The two log-likelihoods against closed forms: what each bounds, and when it can be trusted."""

import math

import pytest
import torch
from torch.testing import assert_close

from linear_gaussian import (
    draw_rows,
    exact_log_conditional,
    exact_log_predictive,
    exact_model,
    linear_gaussian,
)


@pytest.mark.parametrize("num_samples", [1, 2, 100])
def test_the_ratio_is_the_closed_form_when_posteriors_are_exact(num_samples: int) -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 50)
    estimate = exact_model(vae).given(x, observed).log_prob_ratio(x, num_samples=num_samples)
    # Every importance weight equals the evidence, so one sample is enough, and none is wasted.
    truth = exact_log_conditional(vae, x, observed)
    assert_close(estimate.value.double(), truth, atol=1e-4, rtol=0.0)
    full = torch.full((50,), float(num_samples))
    assert_close(estimate.effective_sample_size, full, atol=1e-2, rtol=1e-3)


def test_the_bound_is_the_closed_form_within_its_error_when_posteriors_are_exact() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 100)
    truth = exact_log_conditional(vae, x, observed)
    answer = exact_model(vae).given(x, observed)
    repeats = torch.stack([answer.log_prob(x, num_samples=2000) for _ in range(10)]).double()
    # A weight is 2 r_1 / (r_1 + r_2), at most twice its mean, whatever the row.
    assert (repeats - truth).abs().max() < 4.5 / math.sqrt(2000)
    error = repeats - truth
    assert error.mean().abs() < 4.0 * error.std() / math.sqrt(error.numel()) + 0.5 / 2000


SPOILED = {
    "exact": (1.0, 0.0),
    "narrowed": (0.7, 0.0),
    "widened": (1.5, 0.0),
    "shifted": (1.0, 3.0),
}


@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("num_samples", [10, 100, 1000])
def test_the_bound_stays_below_the_density_of_sample_and_comes_near_it(
    name: str, num_samples: int
) -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 500, num_observed=3)
    answer = exact_model(vae, *SPOILED[name]).given(x, observed)
    gap = (
        answer.log_prob(x, num_samples=num_samples).double()
        - exact_log_predictive(vae, answer.latent, x, ~observed)
    ).detach()
    error = gap.std() / math.sqrt(len(gap))
    assert gap.mean() < 2.0 * error
    if num_samples == 1000:
        assert gap.mean() > -0.02


@pytest.mark.parametrize("name", ["narrowed", "widened", "shifted"])
def test_a_worse_posterior_scores_worse(name: str) -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 1000, num_observed=3)
    exact = exact_model(vae).given(x, observed).log_prob(x)
    worse = exact_model(vae, *SPOILED[name]).given(x, observed).log_prob(x)
    loss = exact - worse
    assert loss.mean() > 5.0 * loss.std() / math.sqrt(len(loss))


def test_the_papers_ratio_rises_above_the_truth_when_the_posterior_is_shifted() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 1000, num_observed=3)
    estimate = exact_model(vae, 1.0, 3.0).given(x, observed).log_prob_ratio(x)
    gain = estimate.value.double() - exact_log_conditional(vae, x, observed)
    assert gain.mean() > 5.0 * gain.std() / math.sqrt(len(gain))
    # Which its effective sample size betrays, and the tail of its weights.
    assert estimate.effective_sample_size.median() < 20.0
    assert estimate.pareto_k.median() > 0.7
    exact = exact_model(vae).given(x, observed).log_prob_ratio(x)
    assert exact.pareto_k.max() < 0.5


def test_shared_noise_estimates_the_same_bound() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 50)
    answer = exact_model(vae, 0.7, 0.5).given(x, observed)
    shared = torch.stack([answer.log_prob(x, num_samples=1000, seed=s) for s in range(20)])
    truth = exact_log_predictive(vae, answer.latent, x, ~observed).detach()
    mean_ratio = (shared.double() - truth).exp()  # its expectation is 1, seed by seed
    error = (mean_ratio.mean(0) - 1.0) / (mean_ratio.std(0) / math.sqrt(20))
    assert error.abs().max() < 5.5  # 50 t-like statistics with 19 degrees of freedom


# How loose the bound is


@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("num_samples", [2, 10, 100])
def test_the_truth_of_rows_drawn_from_the_model_lies_between_the_bounds(
    name: str, num_samples: int
) -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 2000, num_observed=3)
    answer = exact_model(vae, *SPOILED[name]).given(x, observed)
    gap = answer.log_prob_gap(num_samples)
    assert torch.equal(gap.x[observed], x[observed])
    truth = exact_log_predictive(vae, answer.latent, gap.x, ~observed).detach()
    for bound, sign in ((gap.below, 1.0), (gap.above, -1.0)):
        excess = sign * (bound.double() - truth)
        assert excess.mean() < 2.0 * excess.std() / math.sqrt(len(excess))
    assert_close(gap.value, gap.above - gap.below)


def test_the_gap_closes_with_samples_and_opens_with_a_poor_encoder() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 2000, num_observed=3)
    model = exact_model(vae)
    sizes = [model.given(x, observed).log_prob_gap(n).value.mean().item() for n in (2, 20, 2000)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.01
    with torch.no_grad():
        vae.shift.fill_(2.0)
        vae.log_scale.fill_(-1.0)
    loose = model.given(x, observed).log_prob_gap(20).value
    assert loose.mean() - 4.0 * loose.std() / math.sqrt(len(loose)) > sizes[1]


def test_samples_in_parts_give_the_same_estimates_and_never_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 100)
    answer = exact_model(vae).given(x, observed)
    truth, most, decode = exact_log_conditional(vae, x, observed), 0, vae.decode

    def noted(z: torch.Tensor) -> torch.distributions.Distribution:
        nonlocal most
        most = max(most, len(z))
        return decode(z)

    monkeypatch.setattr(vae, "decode", noted)
    # Weights are at most twice their mean, so that 4,100 of them err by less than this.
    far = 4.5 / math.sqrt(4_100)
    for seed in (None, 3):
        bound = answer.log_prob(x, num_samples=4_100, seed=seed, at_once=400)
        assert (bound - truth).abs().max() < far
    assert most == 400
    # With exact posteriors each weight is the evidence, in however many parts.
    ratio = answer.log_prob_ratio(x, num_samples=50, at_once=8)
    assert_close(ratio.value.double(), truth, atol=1e-4, rtol=0.0)
    assert_close(ratio.effective_sample_size, torch.full((100,), 50.0), atol=1e-2, rtol=1e-3)
    whole, parts = (vae.log_evidence(x, None, 20, at_once) for at_once in (0, 6))
    assert_close(parts, whole, atol=1e-4, rtol=0.0)
    gap = answer.log_prob_gap(4_100, at_once=400)
    drawn = exact_log_conditional(vae, gap.x, observed)
    assert (gap.below - drawn).abs().max() < far
    assert (gap.above - drawn).abs().max() < far + 2.0 / 4_100
    assert most == 400


@pytest.mark.parametrize("at_once", [-2, 3])
def test_parts_must_be_even_to_be_shared_by_two_proposals(at_once: int) -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 5)
    with pytest.raises(ValueError, match=f"at_once must be 0 or a multiple of 2, got {at_once}"):
        exact_model(vae).given(x, observed).log_prob(x, num_samples=10, at_once=at_once)


@pytest.mark.parametrize("num_samples", [16, 1_030])  # one block of noise, and two
def test_a_seed_decides_a_bound_however_many_draws_are_decoded_together(num_samples: int) -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 3)
    answer = exact_model(vae, scale=1.5, shift=1.0).given(x, observed)  # so that weights differ
    whole = answer.log_prob(x, num_samples=num_samples, seed=1)
    for at_once in (4, 6, 2_000):
        parts = answer.log_prob(x, num_samples=num_samples, seed=1, at_once=at_once)
        assert_close(parts, whole, atol=1e-5, rtol=0.0)
    assert (answer.log_prob(x, num_samples=num_samples, seed=2) - whole).abs().min() > 1e-4
