"""Answers of a matched VAE against closed forms, and the promises about rows and holes."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.testing import assert_close

from linear_gaussian import (
    LinearGaussianVAE,
    draw_rows,
    exact_conditional,
    exact_log_conditional,
    exact_model,
    linear_gaussian,
    predictive,
)
from postmatch.conditioning import Conditional, MatchedVAE
from postmatch.distributions.columns import ColumnSpec
from postmatch.masks import UniformCount
from postmatch.tabular import TableModelConfig, table_model


def worst_error(estimate: Tensor, truth: Tensor, standard_error: Tensor, where: Tensor) -> float:
    """Return the largest error over some entries, in standard errors."""
    return ((estimate.double() - truth) / standard_error)[where].abs().max().item()


# Answers against closed forms


def test_sample_has_the_conditional_mean_and_covariance() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 40)
    drawn = exact_model(vae).given(x, observed).sample(4000).double()
    mean, covariance = exact_conditional(vae, x, observed)
    variance = covariance.diagonal(dim1=1, dim2=2)
    error = worst_error(drawn.mean(0), mean, (variance / len(drawn)).sqrt(), ~observed)
    assert error < 4.5  # of 120 estimates
    centred = drawn - mean
    estimate = torch.einsum("sbi,sbj->bij", centred, centred) / len(drawn)
    spread = variance[:, :, None] * variance[:, None, :] + covariance.square()
    both = ~observed[:, :, None] & ~observed[:, None, :]
    assert worst_error(estimate, covariance, (spread / len(drawn)).sqrt(), both) < 4.5


@pytest.mark.parametrize(("scale", "shift"), [(0.7, 0.0), (1.0, 3.0)])
def test_sample_draws_from_the_density_of_the_partial_encoder_even_when_that_is_wrong(
    scale: float, shift: float
) -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 20)
    answer = exact_model(vae, scale, shift).given(x, observed)
    drawn = answer.sample(4000).double()
    mean, covariance = predictive(vae, answer.latent)
    deviation = covariance.diagonal(dim1=1, dim2=2).sqrt()
    assert worst_error(drawn.mean(0), mean, deviation / math.sqrt(4000), ~observed) < 4.5
    assert worst_error(drawn.std(0), deviation, deviation / math.sqrt(8000), ~observed) < 4.5


def test_draws_are_decoder_means_so_they_lack_the_noise() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 20)
    answer = exact_model(vae).given(x, observed)
    draws = answer.draws(4000).double()
    mean, covariance = exact_conditional(vae, x, observed)
    noise = vae.log_noise.detach().double().exp().square()
    deviation = (covariance.diagonal(dim1=1, dim2=2) - noise).clamp_min(0.0).sqrt()
    assert worst_error(draws.mean(0), mean, deviation / math.sqrt(4000), ~observed) < 4.5
    assert worst_error(draws.std(0), deviation, deviation / math.sqrt(8000), ~observed) < 4.5


def test_impute_is_the_conditional_mean_within_a_fifth_of_the_monte_carlo_error() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 50)
    answer = exact_model(vae).given(x, observed)
    mean, covariance = exact_conditional(vae, x, observed)
    noise = vae.log_noise.detach().double().exp().square()
    deviation = (covariance.diagonal(dim1=1, dim2=2) - noise).clamp_min(1e-12).sqrt()
    seeds = torch.stack([answer.impute(64, seed=seed) for seed in range(20)]).double()
    errors = ((seeds - mean) / deviation)[:, ~observed]  # decoder means are linear in z
    assert errors.square().mean().sqrt() < 0.2 / math.sqrt(64)
    # No seed is special, so the average over seeds is closer still.
    assert errors.mean(0).abs().max() < 4.5 * errors.std() / math.sqrt(20)


def test_32_spread_samples_impute_better_than_512_independent_ones() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 50)
    answer = exact_model(vae).given(x, observed)
    mean, _ = exact_conditional(vae, x, observed)
    spread = torch.stack([answer.impute(32, seed=seed) for seed in range(40)]).double()
    independent = torch.stack([answer.draws(512).mean(0) for _ in range(40)]).double()
    errors = [(means - mean)[:, ~observed] for means in (spread, independent)]
    squares = [error.square().mean(1) for error in errors]  # (repeats,)
    gain = squares[1] - squares[0]
    assert gain.mean() > 5.0 * gain.std() / math.sqrt(40)
    bias = errors[0].mean(0) / (errors[0].std(0) / math.sqrt(40))
    assert bias.abs().max() < 4.5  # of 150 estimates


def test_quantiles_are_those_of_the_conditional() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 40)
    mean, covariance = exact_conditional(vae, x, observed)
    truth = Normal(mean, covariance.diagonal(dim1=1, dim2=2).clamp_min(1e-12).sqrt())
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    answer = exact_model(vae).given(x, observed).quantiles(levels, num_samples=2048)
    for level, quantile in zip(levels, answer, strict=True):
        expected = truth.icdf(torch.tensor(level, dtype=torch.float64))
        density = truth.log_prob(expected).exp()
        error = math.sqrt(level * (1.0 - level) / 2048) / density
        assert worst_error(quantile, expected, error, ~observed) < 4.5


def test_marginals_average_to_each_features_own_conditional() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 40)
    mean, covariance = exact_conditional(vae, x, observed)
    truth = Normal(mean, covariance.diagonal(dim1=1, dim2=2).clamp_min(1e-12).sqrt())
    each = exact_model(vae).given(x, observed).marginals(4096).log_prob(x).exp().double()
    error = each.std(0) / math.sqrt(4096)
    assert worst_error(each.mean(0), truth.log_prob(x.double()).exp(), error, ~observed) < 4.5


def test_observed_values_come_back_to_the_bit_from_every_answer() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 20)
    answer = exact_model(vae).given(x.masked_fill(~observed, torch.nan), observed)
    answers = [answer.sample(3), answer.draws(3), answer.quantiles([0.1, 0.9]), answer.impute()]
    for rows in answers:
        assert torch.equal(rows[..., observed], x[observed].expand_as(rows[..., observed]))
        assert rows.isfinite().all()


def test_nothing_observed_gives_the_joint_and_everything_observed_gives_the_row() -> None:
    vae = linear_gaussian()
    x, _ = draw_rows(vae, 50)
    nothing = torch.zeros_like(x, dtype=torch.bool)
    model = exact_model(vae)
    ratio = model.given(x, nothing).log_prob_ratio(x, num_samples=2)
    assert_close(ratio.value.double(), exact_log_conditional(vae, x, nothing), atol=1e-4, rtol=0.0)
    everything = model.given(x, ~nothing)
    assert torch.equal(everything.impute(), x)
    assert_close(everything.log_prob(x), torch.zeros(50), atol=1e-5, rtol=0.0)
    assert_close(everything.log_prob_ratio(x).value, torch.zeros(50), atol=1e-5, rtol=0.0)


# Rows with holes


def holes(vae: LinearGaussianVAE, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, what is available of them, and what is observed of that."""
    x, available = draw_rows(vae, rows, num_observed=4)
    _, some = draw_rows(vae, rows, num_observed=3, seed=2)
    return x, available, available & some


def test_log_prob_and_its_ratio_score_only_cells_that_are_available_and_hidden() -> None:
    vae = linear_gaussian()
    x, available, observed = holes(vae, 200)
    hidden = available & ~observed
    assert hidden.any(1).float().mean() > 0.5
    answer = exact_model(vae).given(x, observed)
    unknown = x.masked_fill(~available, torch.nan)
    truth = exact_log_conditional(vae, x, observed, hidden)
    ratio = answer.log_prob_ratio(unknown, available, num_samples=2).value
    assert_close(ratio.double(), truth, atol=1e-4, rtol=0.0)
    bound = answer.log_prob(unknown, available, num_samples=4000).double()
    assert (bound - truth).abs().max() < 4.5 / math.sqrt(4000)


def test_log_prob_reads_the_evidence_it_was_given_not_the_rows_it_scores() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 30)
    answer = exact_model(vae).given(x, observed)
    other = torch.where(observed, x + 9.0, x)
    truth = exact_log_conditional(vae, x, observed)
    assert_close(answer.log_prob_ratio(other).value.double(), truth, atol=1e-4, rtol=0.0)
    repeats = torch.stack([answer.log_prob(other, num_samples=2000) for _ in range(4)])
    assert (repeats - truth).abs().max() < 4.5 / math.sqrt(2000)


@pytest.mark.parametrize("junk", [0.0, 1e6, math.nan, math.inf])
def test_losses_and_their_gradients_never_read_what_is_not_available(junk: float) -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, available, observed = holes(vae, 30)

    def losses_and_gradients(rows: Tensor) -> list[Tensor]:
        model = exact_model(vae, 0.7, 1.0)
        torch.manual_seed(5)
        losses = model.losses(rows, available, observed, train_target=True)
        parameters = list(model.parameters())
        return [*losses.values(), *torch.autograd.grad(sum(losses.values()), parameters)]

    expected = losses_and_gradients(x)
    found = losses_and_gradients(x.masked_fill(~available, junk))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert all(value.isfinite().all() for value in found)


def test_the_match_target_is_the_posterior_given_what_is_available() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, available, observed = holes(vae, 30)
    model = exact_model(vae, 0.7, 1.0)
    each = torch.stack(
        [
            model.losses(x, available, observed, train_vae=False, num_samples=50)["match"]
            for _ in range(50)
        ]
    ).detach()
    target, approx = vae.posterior(x, available), model.partial(x, observed)
    expected = (torch.distributions.kl_divergence(target, approx) + target.entropy()).mean()
    assert (each.mean() - expected).abs() < 4.0 * each.std() / math.sqrt(len(each))


def test_what_is_observed_but_not_available_stays_hidden_from_the_partial_encoder() -> None:
    vae = linear_gaussian(dtype=torch.float64)
    x, available, observed = holes(vae, 30)
    model = exact_model(vae)
    values = []
    for seen in (observed, observed | ~available):
        torch.manual_seed(5)
        values.append(model.losses(x.masked_fill(~available, 1e6), available, seen)["match"])
    assert torch.equal(*values)


# Order and company of rows


def check_rows_stand_alone(
    answer: Callable[[Tensor, Tensor], Tensor], x: Tensor, observed: Tensor
) -> None:
    """Check that a row's answer is the same alone, in another order and in other company."""
    whole = answer(x, observed)  # (..., batch, features)
    order = torch.randperm(len(x))
    assert_close(answer(x[order], observed[order]), whole[..., order, :], atol=1e-5, rtol=1e-5)
    assert_close(answer(x[3:4], observed[3:4]), whole[..., 3:4, :], atol=1e-5, rtol=1e-5)
    assert_close(answer(x[:7], observed[:7]), whole[..., :7, :], atol=1e-5, rtol=1e-5)


def test_order_and_company_of_rows_change_no_answer() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 20)
    model = exact_model(vae)
    check_rows_stand_alone(lambda a, o: model.given(a, o).impute(), x, observed)
    check_rows_stand_alone(lambda a, o: model.given(a, o).quantiles([0.1, 0.5, 0.9]), x, observed)
    check_rows_stand_alone(lambda a, o: model.given(a, o).log_prob(a, seed=3)[:, None], x, observed)


def test_answers_with_shared_noise_leave_torchs_random_state_alone() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 5)
    answer = exact_model(vae).given(x, observed)
    before = torch.get_rng_state()
    first = [answer.impute(), answer.quantiles([0.5]), answer.log_prob(x, seed=0)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again = [answer.impute(), answer.quantiles([0.5]), answer.log_prob(x, seed=0)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(answer.impute(seed=1), first[0])


def test_two_equal_rows_get_independent_draws() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 1, num_observed=3)
    twice = x.expand(2, -1), observed.expand(2, -1)
    drawn = exact_model(vae).given(*twice).sample(4000)[..., ~observed[0]]  # (samples, 2, hidden)
    for i in range(3):
        both = torch.corrcoef(drawn[:, :, i].T)
        assert both[0, 1].abs() < 4.0 / math.sqrt(4000)
    # Neighbouring draws of one row are independent as well.
    after = torch.corrcoef(torch.stack([drawn[1:, 0, 0], drawn[:-1, 0, 0]]))
    assert after[0, 1].abs() < 4.0 / math.sqrt(4000)


def test_sampling_from_fresh_noise_is_sampling() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 10)
    answer = exact_model(vae).given(x, observed)
    asked = []

    def noise(size: int) -> Tensor:
        asked.append(size)
        return torch.rand(4000, 10, size)

    drawn = answer.sample_from(noise).double()
    assert asked == [4, 6]  # z first, then the features
    mean, covariance = exact_conditional(vae, x, observed)
    deviation = covariance.diagonal(dim1=1, dim2=2).clamp_min(1e-12).sqrt()
    assert worst_error(drawn.mean(0), mean, deviation / math.sqrt(4000), ~observed) < 4.5
    assert worst_error(drawn.std(0), deviation, deviation / math.sqrt(8000), ~observed) < 4.5


# Doors


def test_quantiles_refuse_levels_outside_0_and_1() -> None:
    vae = linear_gaussian()
    answer = exact_model(vae).given(*draw_rows(vae, 2))
    with pytest.raises(ValueError, match=r"levels must lie in \[0, 1\], got \[0.5, 1.5\]"):
        answer.quantiles([0.5, 1.5])


def test_log_prob_needs_an_even_number_of_samples() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 2)
    with pytest.raises(ValueError, match="num_samples must be a multiple of 2, got 3"):
        exact_model(vae).given(x, observed).log_prob(x, num_samples=3)


# A trained model of a table with three columns

COLUMNS = (
    ColumnSpec("number", step=0.01, knots=(-3.0, -1.0, 0.0, 1.0, 3.0)),
    ColumnSpec("number", step=0.01, knots=(-4.0, -1.0, 0.0, 1.0, 4.0)),
    ColumnSpec("category", size=3),
)


def table_rows(rows: int) -> Tensor:
    """Return rows of a bent, forked table: x_1 is about a square, with a sign set by the level."""
    first = torch.randn(rows)
    level = (first + 0.5 * torch.randn(rows) > 0.0).float() + (torch.rand(rows) < 0.2)
    second = (first.square() - 1.0) * torch.where(level > 1.0, -1.0, 1.0) + 0.2 * torch.randn(rows)
    return torch.stack([first, second, level], dim=1)


@pytest.fixture(scope="module")
def trained() -> MatchedVAE:
    torch.manual_seed(0)
    config = TableModelConfig(
        latent_size=3,
        width=48,
        num_blocks=1,
        prior_width=24,
        head_width=32,
        mask_blocks=1,
        latent_components=3,
        column_components=3,
    )
    model = table_model(COLUMNS, config)
    optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
    masks, generator = UniformCount(), torch.Generator().manual_seed(0)
    x = table_rows(4096)
    for step in range(250):
        rows = x[torch.randint(len(x), (128,))]
        losses = model.losses(
            rows, None, masks.sample(rows.shape, generator), beta=min(1.0, step / 60)
        )
        optimiser.zero_grad()
        (losses["vae"] + losses["match"]).backward()
        optimiser.step()
    return model.eval()


def log_marginal(answer: Conditional, x: Tensor, column: int, num_samples: int) -> Tensor:
    """Return the log density or mass of one column, averaged over draws of z."""
    log_each = answer.marginals(num_samples).log_prob(x)[..., column]
    return log_each.logsumexp(0) - math.log(num_samples)


@pytest.mark.parametrize("column", [0, 1])
def test_the_conditional_density_of_a_trained_model_integrates_to_one(
    trained: MatchedVAE, column: int
) -> None:
    x = table_rows(4)
    observed = torch.ones_like(x, dtype=torch.bool)
    observed[:, column] = False
    decoded = trained.given(x, observed).marginals(64)  # (samples, batch, columns)
    grid = torch.linspace(-100.0, 100.0, 4001)
    at = x.expand(len(grid), 1, -1, -1).clone()
    at[..., column] = grid[:, None, None]
    density = decoded.log_prob(at)[..., column].exp().mean(1)  # (grid, batch)
    assert_close(torch.trapezoid(density, grid, dim=0), torch.ones(4), atol=1e-3, rtol=0.0)


def test_the_conditional_masses_of_a_trained_model_sum_to_one(trained: MatchedVAE) -> None:
    x = table_rows(20).repeat_interleave(3, 0)
    x[:, 2] = torch.arange(3).repeat(20)
    observed = torch.tensor([True, True, False]).expand(60, -1)
    answer = trained.given(x, observed)
    total = log_marginal(answer, x, 2, 64).exp().view(20, 3).sum(1)
    assert_close(total, torch.ones(20), atol=1e-5, rtol=0.0)


def test_the_bound_of_a_trained_model_comes_near_its_density_and_never_exceeds_it(
    trained: MatchedVAE,
) -> None:
    x = table_rows(60)
    observed = torch.tensor([True, False, True]).expand(60, -1)
    answer = trained.given(x, observed)
    truth = log_marginal(answer, x, 1, 2048)  # one hidden column: its density is a plain average
    gap = answer.log_prob(x, num_samples=600) - truth
    assert gap.mean() < 2.0 * gap.std() / math.sqrt(len(gap))
    assert gap.mean() > -0.05
    assert gap.abs().median() < 0.05


def test_two_hidden_columns_of_a_trained_model_integrate_to_one(trained: MatchedVAE) -> None:
    level, edge = 1.0, torch.linspace(-7.0, 7.0, 71)
    grid = torch.cartesian_prod(edge, edge)
    x = torch.cat([grid, torch.full((len(grid), 1), level)], dim=1)
    observed = torch.tensor([False, False, True]).expand(len(x), -1)
    # exp(log_prob) is unbiased for the density; shared noise would tie the errors together.
    density = trained.given(x, observed).log_prob(x, num_samples=40).exp()
    total = density.sum() * (edge[1] - edge[0]) ** 2
    assert total.item() == pytest.approx(1.0, abs=0.03)


def test_a_trained_model_foretells_a_column_better_from_the_others(trained: MatchedVAE) -> None:
    x = table_rows(300)
    log_prob = []
    for seen in ([True, False, True], [False, False, False]):
        answer = trained.given(x, torch.tensor(seen).expand(300, -1))
        log_prob.append(log_marginal(answer, x, 1, 256))
    gain = log_prob[0] - log_prob[1]
    assert gain.mean() > 5.0 * gain.std() / math.sqrt(len(gain))


def test_order_and_company_of_rows_change_no_answer_of_a_table(trained: MatchedVAE) -> None:
    x = table_rows(20)
    observed = UniformCount().sample(x.shape, torch.Generator().manual_seed(1))
    check_rows_stand_alone(lambda a, o: trained.given(a, o).impute(), x, observed)
    check_rows_stand_alone(
        lambda a, o: trained.given(a, o).log_prob(a, seed=3)[:, None], x, observed
    )
    check_rows_stand_alone(
        lambda a, o: trained.given(a, o).quantiles([0.1, 0.5, 0.9])[..., :2],
        x,
        observed,
    )
