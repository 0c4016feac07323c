"""What might be measured tells of a target, against closed forms of Gaussians and of levels."""

import math

import pytest
import torch
from torch import Tensor, nn

from linear_gaussian import (
    LinearGaussianVAE,
    draw_rows,
    exact_conditional,
    exact_model,
    linear_gaussian,
)
from postmatch.acquisition import Acquirer, AmortisedGain, acquire, choose
from postmatch.acquisition_fitting import AcquisitionPlan, fit_amortised
from postmatch.masks import UniformCount
from postmatch.mixture_gains import MixtureGain, mixture_teacher
from postmatch.offers import Offers
from postmatch.training.plan import Plan
from small_models import people, people_model

FEATURES = 6
SEEDS = 6


def feature_mask(*features: int) -> Tensor:
    mask = torch.zeros(FEATURES, dtype=torch.bool)
    mask[list(features)] = True
    return mask


def asked(
    vae: LinearGaussianVAE, target: Tensor | None, rows: int, seed: int = 5
) -> tuple[Tensor, Tensor, Offers]:
    """Return rows that hide the target and something else, and the offers of all else."""
    x, observed = draw_rows(vae, rows, seed=seed)
    offers = Offers.each([FEATURES])
    if target is not None:
        observed, offers = observed & ~target, offers.without(target)
    some = offers.open(observed).any(1)
    return x[some], observed[some], offers


def exact_gains(
    vae: LinearGaussianVAE, observed: Tensor, offers: Offers, target: Tensor | None
) -> Tensor:
    r"""Return :math:`\sum_t \frac12 \log \frac{|S_i| |S_t|}{|S_{it}|}`, S the covariance given x_o.

    About z it is :math:`\frac12 \log |S_i| / |R_i|` with R that of the noise.
    """
    _, spread = exact_conditional(vae, torch.zeros(observed.shape), observed)
    noise = torch.diag(vae.log_noise.detach().double().exp().square())
    gains = torch.full((len(observed), len(offers.costs)), -math.inf, dtype=torch.float64)
    for row, cov in enumerate(spread):
        for i, reveals in enumerate(offers.reveals):
            new = reveals & ~observed[row]
            if not new.any():
                continue
            own = _log_volume(cov, new)
            if target is None:
                gains[row, i] = own - _log_volume(noise, new)
            else:
                each = [feature_mask(int(t)) for t in target.nonzero()]
                gains[row, i] = sum(
                    own + _log_volume(cov, t) - _log_volume(cov, new | t) for t in each
                )
    return gains


def _log_volume(covariance: Tensor, some: Tensor) -> Tensor:
    return 0.5 * torch.logdet(covariance[some][:, some])


@pytest.mark.parametrize("target", [None, feature_mask(0), feature_mask(1, 4)])
def test_sampled_gains_are_those_of_the_closed_form(target: Tensor | None) -> None:
    vae = linear_gaussian()
    x, observed, offers = asked(vae, target, 30)
    exact = exact_gains(vae, observed, offers, target)
    found = torch.stack(
        [
            MixtureGain(exact_model(vae), offers, target, seed=10 * s)(x, observed)
            for s in range(SEEDS)
        ]
    )
    is_open = exact > -math.inf
    assert (found[:, ~is_open] == -math.inf).all()
    each = found[:, is_open].double()  # (seeds, gains)
    # One estimate is off by a tenth of the mean gain or so, and six together by half as much.
    error = (each.mean(0) - exact[is_open]).square().mean().sqrt()
    standard_error = (each.var(0) / SEEDS).mean().sqrt()
    # Errors of all gains together, which are 1 standard error if there is no bias.
    assert error < 2.0 * standard_error
    assert standard_error < 0.07 * exact[is_open].mean()


def test_a_group_tells_what_its_members_tell_together() -> None:
    vae, target = linear_gaussian(), feature_mask(2)
    x, observed = draw_rows(vae, 15, num_observed=1)
    observed = observed & ~target
    offers = Offers.of([[0, 3], [1], [4, 5]], FEATURES)
    exact = exact_gains(vae, observed, offers, target)
    gains = [MixtureGain(exact_model(vae), offers, target, seed=10 * s) for s in range(SEEDS)]
    each = torch.stack([gain(x, observed) for gain in gains]).double()
    spread = each.std(0) / SEEDS**0.5
    # 90 means of 6 with 5 degrees of freedom: 8 standard errors are passed once in 4,000 times.
    assert ((each.mean(0) - exact).abs() < 8.0 * spread.clamp_min(1e-3))[exact > -math.inf].all()


def trained(target: Tensor | None, steps: int) -> AmortisedGain:
    vae = linear_gaussian()
    torch.manual_seed(0)
    _, _, offers = asked(vae, target, 1)
    net = nn.Sequential(
        nn.Linear(2 * FEATURES, 64),
        nn.SiLU(),
        nn.Linear(64, 64),
        nn.SiLU(),
        nn.Linear(64, len(offers.costs)),
    )
    acquirer = AmortisedGain(net, offers)
    rows, _ = draw_rows(vae, 512)
    available = torch.ones_like(rows, dtype=torch.bool) & ~(
        feature_mask() if target is None else target
    )
    plan = Plan(steps, learning_rate=5e-3, schedule="cosine", warmup=20, average=0.9)
    how = AcquisitionPlan(plan, batch_size=32, num_offers=FEATURES, num_samples=8)
    fit_amortised(
        acquirer,
        exact_model(vae),
        rows,
        UniformCount(),
        how,
        teacher=mixture_teacher(target),
        available=available,
        seed=1,
    )
    return acquirer.eval()


@pytest.mark.parametrize("way", ["sampled", "amortised"])
def test_a_choice_is_the_best_or_nearly_in_nineteen_of_twenty_cases(way: str) -> None:
    vae, target = linear_gaussian(), feature_mask(0)
    sampled = way == "sampled"
    x, observed, offers = asked(vae, target, 200 if sampled else 1_000, seed=9)
    acquirer: Acquirer = (
        MixtureGain(exact_model(vae), offers, target) if sampled else trained(target, 350)
    )
    exact = exact_gains(vae, observed, offers, target)
    best = choose(acquirer, x, observed, price=-math.inf).offer
    reached = exact.gather(1, best[:, None])[:, 0]
    assert (reached > 0.99 * exact.max(1).values).double().mean() > 0.95
    told, is_open = acquirer(x, observed), exact > -math.inf
    assert (told - exact)[is_open].square().mean().sqrt() < 0.02


def test_of_two_columns_of_levels_the_gain_is_that_of_their_joint_table() -> None:
    model = people_model()
    names = [column.name for column in model.table.modelled]
    town, shirt = names.index("town"), names.index("shirt")
    x, observed = model.table.encode(people(8, holes=0.7))
    target = torch.tensor([name == "town" for name in names])
    observed[:, [town, shirt]] = False
    offers = Offers.of([[shirt]], len(names))
    with torch.no_grad():
        decoded = model.model.given(x, observed).marginals(1 << 10)
        pairs = decoded.probs(town)[..., :, None] * decoded.probs(shirt)[..., None, :]
        joint = pairs.mean(0).double()  # (rows, towns, shirts)
    apart = joint.sum(2, keepdim=True) * joint.sum(1, keepdim=True)
    exact = (joint * (joint / apart).log()).sum((1, 2))
    gains = [MixtureGain(model.model, offers, target, seed=10 * s) for s in range(SEEDS)]
    each = torch.stack([gain(x, observed)[:, 0] for gain in gains]).double()
    standard_error = (each.var(0) / SEEDS).mean().sqrt()
    assert (each.mean(0) - exact).square().mean().sqrt() < 2.5 * standard_error  # of 8 rows
    assert standard_error < 0.05 * exact.mean()


def test_nothing_is_left_to_tell_of_a_target_that_is_known() -> None:
    vae, target = linear_gaussian(), feature_mask(0, 3)
    x, _, offers = asked(vae, target, 5)
    observed = torch.zeros_like(x, dtype=torch.bool)
    observed[:3, [0, 3]] = True
    gains = MixtureGain(exact_model(vae), offers, target, num_samples=16)(x, observed)
    assert gains[:3].abs().max() < 1e-5
    assert (gains[3:].max(1).values > 0.05).all()


def test_gains_do_not_look_at_what_is_hidden_nor_at_other_rows() -> None:
    vae, target = linear_gaussian(), feature_mask(1)
    x, observed, offers = asked(vae, target, 9)
    acquirer = MixtureGain(exact_model(vae), offers, target, num_samples=16)
    whole = acquirer(x, observed)
    blind = acquirer(x.masked_fill(~observed, math.nan), observed)
    alone = torch.cat([acquirer(x[i : i + 1], observed[i : i + 1]) for i in range(len(x))])
    assert torch.allclose(whole, blind, atol=1e-5)
    assert torch.allclose(whole, alone, atol=1e-5)


def test_the_target_is_never_bought() -> None:
    vae, target = linear_gaussian(), feature_mask(0, 5)
    x, nothing = draw_rows(vae, 6, num_observed=0)
    offers = Offers.each([FEATURES], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).without(target)
    assert offers.costs.tolist() == [2.0, 3.0, 4.0, 5.0]
    path = acquire(MixtureGain(exact_model(vae), offers, target, num_samples=8), x, nothing, 9)
    assert torch.equal(path.observed[-1], (~target).expand(6, -1))


@pytest.mark.parametrize(
    ("offers", "target", "words"),
    [
        (Offers.each([3]), torch.tensor([True, False, False]), "offers must show nothing"),
        (Offers.of([[1]], 3), torch.tensor([1, 0, 0]), "target must be bool of shape .3,."),
        (Offers.of([[1]], 3), torch.tensor([True, False]), "target must be bool of shape .3,."),
        (Offers.of([[1]], 3), torch.zeros(3, dtype=torch.bool), "name a feature"),
    ],
)
def test_targets_that_make_no_sense_are_refused(offers: Offers, target: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MixtureGain(exact_model(linear_gaussian()), offers, target)


def test_some_offer_must_be_left() -> None:
    with pytest.raises(ValueError, match="features must leave at least one offer"):
        Offers.each([2]).without(torch.tensor([True, True]))


def test_fresh_and_even_noise_tell_the_same() -> None:
    vae, target = linear_gaussian(), feature_mask(2)
    x, observed, offers = asked(vae, target, 4)
    given, generator = exact_model(vae).given(x, observed), torch.Generator().manual_seed(0)
    teach = mixture_teacher(target)
    taught = torch.stack(
        [teach(exact_model(vae), given, offers, 16, generator) for _ in range(40)]
    ).double()
    exact = exact_gains(vae, observed, offers, target)
    is_open = exact > -math.inf
    error = (taught.mean(0) - exact)[is_open].square().mean().sqrt()
    # A teacher may be noisy; its mean over 40 lessons is off by one standard error or two.
    assert error < 2.0 * (taught.var(0)[is_open] / 40).mean().sqrt()
