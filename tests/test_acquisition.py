"""What to measure next: gains against the closed form of the linear-Gaussian model."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Independent, MultivariateNormal, Normal

from linear_gaussian import (
    LinearGaussianVAE,
    draw_rows,
    exact_conditional,
    exact_model,
    linear_gaussian,
)
from postmatch.acquisition import (
    Acquirer,
    AmortisedGain,
    LookaheadGain,
    SampledGain,
    acquire,
    choose,
)
from postmatch.acquisition_fitting import (
    AcquisitionPlan,
    Teacher,
    falls_at_means,
    falls_in_entropy,
    fit_amortised,
    fit_lookahead,
)
from postmatch.conditioning import Conditional, MatchedVAE
from postmatch.distributions.autoregressive import mixture_net
from postmatch.distributions.clusters import GaussianClusters
from postmatch.entropies import entropies_after, entropy
from postmatch.masks import UniformCount
from postmatch.nets.mlp import Perceptron, ResidualMLP
from postmatch.offers import Offers
from postmatch.partial import AutoregressiveHead, DiagonalHead, FullGaussianHead, MaskedEncoder
from postmatch.training.plan import Plan

FEATURES = 6


def exact_gains(vae: LinearGaussianVAE, observed: Tensor) -> Tensor:
    r"""Return :math:`I(z; x_i \mid x_o) = \frac12 \log (\mathrm{var}(x_i \mid x_o) / s_i^2)`.

    By covariances of x, where the model goes by precisions of z.
    """
    _, spread = exact_conditional(vae, torch.zeros(observed.shape), observed)
    noise = vae.log_noise.detach().double().exp().square()
    gains = 0.5 * (spread.diagonal(dim1=-2, dim2=-1) / noise).log()
    return gains.masked_fill(observed, -math.inf)


def test_sampled_gains_are_those_of_the_closed_form() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 40)
    found = SampledGain(exact_model(vae), Offers.each([FEATURES]), num_samples=3)(x, observed)
    exact = exact_gains(vae, observed)
    assert (found[observed] == -math.inf).all()
    assert torch.allclose(found[~observed].double(), exact[~observed], atol=1e-4)
    assert exact[~observed].min() > 0.01


def test_gains_do_not_look_at_what_is_hidden_and_are_the_same_in_parts() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 7)
    model, offers = exact_model(vae), Offers.each([FEATURES])
    whole = SampledGain(model, offers, num_samples=4)(x, observed)
    blind = SampledGain(model, offers, 4, at_once=5)(x.masked_fill(~observed, math.nan), observed)
    assert torch.allclose(whole, blind, atol=1e-5)


def test_a_group_tells_what_its_members_tell_together() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 20, num_observed=2)
    offers = Offers.of([[0, 3], [1], [2, 4, 5]], FEATURES)
    found = SampledGain(exact_model(vae), offers, num_samples=2)(x, observed)
    with torch.no_grad():
        now = vae.posterior(x, observed).entropy()
        for i, reveals in enumerate(offers.reveals):
            then = vae.posterior(x, observed | reveals).entropy()
            expected = (now - then).masked_fill(~((~observed) & reveals).any(1), -math.inf)
            assert torch.allclose(found[:, i], expected, atol=1e-4)


def test_the_average_of_the_papers_lookahead_is_the_same_for_every_feature() -> None:
    """E over x_i of q(z | x_o, x_i) has the covariance of q(z | x_o), so equal entropies."""
    vae = linear_gaussian(dtype=torch.float64)
    x, observed = draw_rows(vae, 5, num_observed=2)
    mean, spread = exact_conditional(vae, x, observed)
    with torch.no_grad():
        now = vae.posterior(x, observed)
        for i in range(FEATURES):
            then = observed.clone()
            then[:, i] = True
            given = [x.index_fill(1, torch.tensor([i]), value) for value in (0.0, 1.0)]
            low, high = (vae.posterior(row, then) for row in given)
            slope = high.loc - low.loc  # of the mean in x_i
            moved = slope[:, :, None] * slope[:, None, :] * spread[:, i, i, None, None]
            averaged = MultivariateNormal(now.loc, low.covariance_matrix + moved)
            hidden = ~observed[:, i]
            apart = (averaged.entropy() - now.entropy())[hidden].abs()
            assert (apart < 1e-10).all()
    assert mean.shape == x.shape


def trained(kind: type[AmortisedGain] | type[LookaheadGain], steps: int) -> tuple[Acquirer, Tensor]:
    vae = linear_gaussian()
    torch.manual_seed(0)
    outputs = FEATURES if kind is AmortisedGain else FEATURES * 2 * 4
    net = nn.Sequential(
        nn.Linear(2 * FEATURES, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, outputs)
    )
    acquirer = kind(net, Offers.each([FEATURES]))
    rows, _ = draw_rows(vae, 512)
    plan = Plan(steps, learning_rate=5e-3, schedule="cosine", warmup=20, average=0.9)
    how = AcquisitionPlan(plan, batch_size=128, num_offers=FEATURES, num_samples=1)
    fit = fit_amortised if kind is AmortisedGain else fit_lookahead
    report = fit(acquirer, exact_model(vae), rows, UniformCount(), how, seed=1)  # type: ignore[operator]
    assert report.steps == steps
    return acquirer.eval(), rows


def test_an_amortised_choice_is_the_best_or_nearly_in_nineteen_of_twenty_cases() -> None:
    acquirer, _ = trained(AmortisedGain, 800)
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 2_000, seed=9)
    some = ~observed.all(1)
    x, observed = x[some], observed[some]
    exact = exact_gains(vae, observed)
    chosen = choose(acquirer, x, observed, price=-math.inf)
    reached = exact.gather(1, chosen.offer[:, None])[:, 0]
    assert (reached > 0.99 * exact.max(1).values).double().mean() > 0.95
    told = acquirer(x, observed)
    assert (told - exact)[~observed].square().mean().sqrt() < 0.05
    sampled = SampledGain(exact_model(vae), Offers.each([FEATURES]), num_samples=2)
    best = choose(sampled, x, observed).offer
    reached = exact.gather(1, best[:, None])[:, 0]
    assert (reached > 0.99 * exact.max(1).values).double().mean() > 0.95


def test_lookahead_posteriors_are_matched() -> None:
    acquirer, x = trained(LookaheadGain, 250)
    assert isinstance(acquirer, LookaheadGain)
    observed = torch.zeros(1, FEATURES, dtype=torch.bool)
    told = acquirer.posteriors(x[:1], observed)
    # Of decoder means, z has the spread of q(z | x_o, x_i) and of these means' posteriors.
    vae = linear_gaussian()
    model = exact_model(vae)
    with torch.no_grad():
        z = model.given(x[:1], observed).latent.sample(torch.Size([20_000]))
        means = vae.decode(z).mean
        for i in range(FEATURES):
            then = observed.clone()
            then[:, i] = True
            drawn = vae.posterior(means[:, 0], then.expand(20_000, -1)).sample()
            assert torch.allclose(told.loc[0, i], drawn.mean(0), atol=0.15)
            assert torch.allclose(told.scale[0, i], drawn.std(0), rtol=0.15)
    gains = acquirer(x[:1], observed)
    assert torch.allclose(gains, -told.entropy().sum(-1))


def test_the_model_stays_as_it_is() -> None:
    vae = linear_gaussian()
    model = exact_model(vae)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    acquirer = AmortisedGain(nn.Linear(2 * FEATURES, FEATURES), Offers.each([FEATURES]))
    how = AcquisitionPlan(Plan(3), batch_size=8, num_offers=2, num_samples=2)
    fit_amortised(acquirer, model, draw_rows(vae, 20)[0], UniformCount(), how)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_entropies_of_other_families_come_close() -> None:
    mean, scale = torch.tensor([[0.0, 0.0], [50.0, 0.0]]), torch.tensor([[0.5, 2.0], [1.5, 1.0]])
    apart = GaussianClusters(torch.zeros(2), mean, scale)
    each = Independent(Normal(mean, scale), 1).entropy()
    # Far apart, a mixture of two has the mean of their entropies, and that of a coin.
    exact = each.mean() + math.log(2.0)
    spread = 1.0  # of log p(z) with two latents, a standard deviation
    found = entropy(apart, mean, num_samples=1 << 10)
    assert abs(found.item() - exact.item()) < 4.0 * spread / (1 << 10) ** 0.5


class Fixed(Acquirer):
    """Gains that are given."""

    def __init__(self, gains: list[float], costs: list[float] | None = None) -> None:
        super().__init__(Offers.each([len(gains)], costs))
        self.gains = torch.tensor([gains])

    def expected(self, x: Tensor, observed: Tensor) -> Tensor:
        return self.gains.expand(len(x), -1).clone()


def test_gains_are_weighed_by_costs_in_one_place() -> None:
    x, nothing = torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool)
    assert choose(Fixed([3.0, 2.0, 1.0]), x, nothing).offer.tolist() == [0]
    costly = Fixed([3.0, 2.0, 1.0], [10.0, 1.0, 1.0])
    best = choose(costly, x, nothing)
    assert (best.offer.tolist(), best.gain.tolist()) == ([1], [2.0])
    assert choose(costly, x, nothing, price=2.5).offer.tolist() == [-1]
    assert choose(costly, x, nothing, money=torch.tensor([0.5])).offer.tolist() == [-1]
    rich = choose(Fixed([3.0, 2.0, 1.0], [10.0, 5.0, 9.0]), x, nothing, money=torch.tensor([9.0]))
    assert rich.offer.tolist() == [1]


def test_rows_buy_until_the_money_or_the_worth_is_gone() -> None:
    x, known = torch.zeros(2, 4), torch.tensor([[False] * 4, [True, False, False, True]])
    path = acquire(Fixed([4.0, 3.0, 2.0, 1.0]), x, known, 5)
    assert path.offers.tolist() == [[0, 1, 2, 3, -1], [1, 2, -1, -1, -1]]
    assert path.gains.tolist() == [[4.0, 3.0, 2.0, 1.0, 0.0], [3.0, 2.0, 0.0, 0.0, 0.0]]
    assert path.observed.shape == (6, 2, 4)
    assert path.observed[-1].all()
    assert path.observed[1].tolist() == [[True, False, False, False], [True, True, False, True]]
    short = acquire(
        Fixed([4.0, 3.0, 2.0, 1.0], [2.0, 1.0, 1.0, 1.0]), x[:1], known[:1], 4, budget=3.0
    )
    assert short.offers.tolist() == [[1, 0, -1, -1]]
    worth = acquire(Fixed([4.0, 3.0, 2.0, 1.0]), x[:1], known[:1], 4, price=2.5)
    assert worth.offers.tolist() == [[0, 1, -1, -1]]


def test_only_what_was_bought_is_looked_at() -> None:
    vae = linear_gaussian()
    x, nothing = draw_rows(vae, 5, num_observed=0)
    acquirer = SampledGain(exact_model(vae), Offers.of([[0], [2], [3]], FEATURES), num_samples=2)
    path = acquire(acquirer, x, nothing, 3)
    assert not path.observed[-1][:, [1, 4, 5]].any()
    hidden = x.clone()
    hidden[:, [1, 4, 5]] = math.nan
    again = acquire(acquirer, hidden, nothing, 3)
    assert torch.equal(path.offers, again.offers)


@pytest.mark.parametrize(
    ("reveals", "costs", "word"),
    [
        (torch.ones(2, 3), None, "bool"),
        (torch.tensor([[True, False], [False, False]]), None, "at least one feature"),
        (torch.eye(2, dtype=torch.bool), [1.0], "costs must have one entry"),
        (torch.eye(2, dtype=torch.bool), [1.0, 0.0], "costs must be positive"),
    ],
)
def test_offers_that_make_no_sense_are_refused(
    reveals: Tensor, costs: list[float] | None, word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        Offers(reveals, costs)


def test_entropies_of_every_draw_and_offer_are_in_their_places() -> None:
    vae = linear_gaussian()
    x, observed = draw_rows(vae, 3, num_observed=1)
    model, offers = exact_model(vae), Offers.each([FEATURES])
    seen = model.given(x, observed).shared_samples(2)
    found = entropies_after(model, seen, observed, offers, at_once=4)
    with torch.no_grad():
        for i in range(FEATURES):
            then = observed | offers.reveals[i]
            assert torch.allclose(found[1, :, i], vae.posterior(seen[1], then).entropy())


@pytest.mark.parametrize("net", ["any network", "linear at first", "residual"])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("values", ["any", "black and white", "nearly"])
def test_shortcuts_change_no_entropy(net: str, single: bool, values: str) -> None:
    torch.manual_seed(0)
    body = {
        "any network": nn.Sequential(nn.Linear(12, 8), nn.Tanh()),
        "linear at first": Perceptron(12, (8, 8)),
        "residual": ResidualMLP(12, 8, 1),
    }[net]
    model = MatchedVAE(linear_gaussian(), MaskedEncoder(body, FullGaussianHead(8, 4)))
    offers = Offers.each([6]) if single else Offers.of([[0, 2], [1], [5]], 6)
    seen, observed = torch.randn(3, 5, 6), torch.rand(5, 6) < 0.4
    drawn = seen if values == "any" else (seen > 0.0).float()
    drawn[2, 4, 5] = 0.5 if values == "nearly" else drawn[2, 4, 5]
    observed[4, 5] = False
    seen = torch.where(observed, seen[:1], drawn)  # what is observed is the same in every draw
    found = entropies_after(model, seen, observed, offers, at_once=7)
    with torch.no_grad():
        for s in range(3):
            for i, reveals in enumerate(offers.reveals):
                exact = model.partial(seen[s], observed | reveals).entropy()
                new = (~observed & reveals).any(1)  # others are never asked for
                assert torch.allclose(found[s, :, i][new], exact[new], atol=1e-5)


def test_heads_that_are_no_gaussian_have_their_entropies_estimated() -> None:
    torch.manual_seed(0)
    body, head = Perceptron(12, (8, 8)), AutoregressiveHead(mixture_net(4, 2, 8, 1, 8))
    model = MatchedVAE(linear_gaussian(), MaskedEncoder(body, head))
    offers, seen = Offers.each([6]), torch.randn(2, 3, 6)
    observed = torch.zeros(3, 6, dtype=torch.bool)
    found = entropies_after(model, seen, observed, offers, at_once=5)
    with torch.no_grad():
        for i, reveals in enumerate(offers.reveals):
            exact = entropy(model.partial(seen[1], observed | reveals), seen)
            assert torch.allclose(found[1, :, i], exact, atol=1e-5)


@pytest.mark.parametrize("head", [DiagonalHead, FullGaussianHead])
def test_a_gaussian_head_tells_its_entropy_without_the_rest_of_the_gaussian(
    head: type[DiagonalHead] | type[FullGaussianHead],
) -> None:
    torch.manual_seed(0)
    own, features = head(8, 10), 5.0 * torch.randn(50, 8)
    assert torch.allclose(own.entropy(features), own(features).entropy(), rtol=1e-6, atol=1e-5)


def test_means_of_the_decoder_are_seen_where_that_is_wished() -> None:
    torch.manual_seed(0)
    vae = linear_gaussian()
    body = nn.Sequential(nn.Linear(12, 8), nn.Tanh())  # entropies that depend on what is seen
    model = MatchedVAE(vae, MaskedEncoder(body, FullGaussianHead(8, 4)))
    x, observed = draw_rows(vae, 4, num_observed=2)
    found = SampledGain(model, Offers.each([FEATURES]), 3, means=True)(x, observed)
    with torch.no_grad():
        given = model.given(x, observed)
        seen = torch.where(observed, x, given.marginals(3).mean)
        for i in range(FEATURES):
            then = observed.clone()
            then[:, i] = True
            later = torch.stack([model.given(row, then).latent.entropy() for row in seen])
            expected = (given.latent.entropy() - later.mean(0)).masked_fill(
                observed[:, i], -math.inf
            )
            assert torch.allclose(found[:, i], expected, atol=1e-5)


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square()


@pytest.mark.parametrize(("teacher", "means"), [(falls_in_entropy, False), (falls_at_means, True)])
def test_teachers_are_right_on_average(teacher: Teacher, means: bool) -> None:
    torch.manual_seed(0)
    vae = linear_gaussian()
    body = nn.Sequential(nn.Linear(12, 8), Square())  # far from linear: noise matters
    model = MatchedVAE(vae, MaskedEncoder(body, FullGaussianHead(8, 4)))
    x, observed = draw_rows(vae, 3, num_observed=2)
    offers, generator = Offers.each([FEATURES]), torch.Generator().manual_seed(0)
    with torch.no_grad():
        given = model.given(x, observed)
        told = torch.stack([teacher(model, given, offers, 16, generator) for _ in range(64)])
    exact = SampledGain(model, offers, 1 << 12, means=means)(x, observed)
    hidden = ~observed
    error = told.std(0)[hidden] / 64**0.5
    assert ((told.mean(0) - exact)[hidden].abs() < 5.0 * error).all()
    others = SampledGain(model, offers, 1 << 12, means=not means)(x, observed)
    assert ((told.mean(0) - others)[hidden].abs() > 5.0 * error).any()


def test_rows_walk_where_the_networks_own_choices_lead() -> None:
    vae, seen = linear_gaussian(), []
    net = nn.Linear(2 * FEATURES, FEATURES)
    order = [4, 0, 5, 2, 1, 3]
    with torch.no_grad():
        net.weight.zero_()
        net.bias[order] = torch.arange(FEATURES, 0.0, -1.0)

    def teacher(
        model: MatchedVAE, given: Conditional, offers: Offers, count: int, _: torch.Generator
    ) -> Tensor:
        seen.append(given.observed)
        return torch.zeros(len(given.x), len(offers.costs))

    plan = Plan(40, learning_rate=1e-9)
    how = AcquisitionPlan(plan, 12, 2, 1, walking=0.5, walk_steps=4)
    rows, acquirer = draw_rows(vae, 30)[0], AmortisedGain(net, Offers.each([FEATURES]))
    fit_amortised(acquirer, exact_model(vae), rows, UniformCount(), how, teacher=teacher)
    prefixes = torch.tensor([[i in order[:k] for i in range(FEATURES)] for k in range(5)])
    walked = torch.cat([observed[:6] for observed in seen])
    assert (walked[:, None] == prefixes).all(-1).any(1).all()
    assert walked.sum(1).bincount(minlength=5).min() > 20  # each length about as often
    others = torch.cat([observed[6:] for observed in seen])
    assert others.all(1).any()
