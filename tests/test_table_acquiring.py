"""What to measure next of a table's rows."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from postmatch import TableModel
from postmatch.acquisition import AmortisedGain
from postmatch.cross_fitting import Fold, cross_fitted
from postmatch.mixture_gains import MixtureGain
from postmatch.nets.gains import TableGainNet
from postmatch.table_acquiring import TableAcquirer, table_acquirer
from postmatch.table_offers import table_offers
from postmatch.told_gains import told_of_level, told_of_number
from small_models import fit_small, people, people_model

NAMES = ["income", "weight", "rooms", "town", "shirt", "owner"]


def some(rows: int = 4, holes: float = 0.6) -> pd.DataFrame:
    return people(rows, holes=holes)


def acquirer(**wishes: Any) -> TableAcquirer:
    return table_acquirer(people_model(), **wishes)


def test_offers_are_ranked_by_gain_per_cost_and_tell_what_is_expected() -> None:
    frame, costs = some(), {"income": 5.0, "rooms": 0.5}
    ranks = acquirer(target="town", costs=costs).rank(frame)
    model = people_model()
    x, observed = model.table.encode(frame)
    target = torch.tensor([name == "town" for name in NAMES])
    observed[:, 3] = False
    offers = table_offers(model.table, target="town").offers
    gains = MixtureGain(model.model, offers, target, 32, 128)(x, observed)
    points = model.impute(frame, num_samples=128)
    ends = model.quantiles(frame, (0.05, 0.95), num_samples=128)
    names = [name for name in NAMES if name != "town"]
    for i, advice in enumerate(ranks):
        ranked = advice.offers
        assert [cell.column.name for cell in advice.target] == ["town"]
        hidden = {name for name in names if pd.isna(frame[name][i])}
        assert {offer.name for offer in ranked} == hidden
        values = [offer.value for offer in ranked]
        assert values == sorted(values, reverse=True)
        for offer in ranked:
            assert offer.gain == pytest.approx(float(gains[i, names.index(offer.name)]), abs=1e-5)
            assert offer.cost == costs.get(offer.name, 1.0)
            assert offer.value == pytest.approx(offer.gain / offer.cost)
            (cell,) = offer.expected
            assert cell.column.name == offer.name
            if "town" in hidden or not pd.isna(frame["town"][i]):
                continue  # the rest was predicted without the town, which impute knows
            if cell.column.is_number:
                assert cell.best == pytest.approx(points[offer.name][i])
                assert [cell.low, cell.high] == [ends[e][offer.name][i] for e in (0.05, 0.95)]
            else:
                assert cell.best == points[offer.name][i]
                assert 1 / 3 < (cell.probability or 0.0) <= 1.0


def test_neither_the_target_nor_the_company_of_a_row_changes_an_answer() -> None:
    frame, asks = some(), acquirer(target="town")
    whole = [[(offer.name, offer.gain) for offer in row.offers] for row in asks.rank(frame)]
    blind = asks.rank(frame.assign(town=None))
    absent = asks.rank(frame.drop(columns="town"))
    for other in (blind, absent):
        assert [[(offer.name, offer.gain) for offer in row.offers] for row in other] == whole
    alone = asks.rank(frame.iloc[2:3])[0].offers
    for offer, (name, gain) in zip(alone, whole[2], strict=True):
        assert offer.name == name
        assert offer.gain == pytest.approx(gain, abs=1e-5)


@pytest.mark.parametrize("target", [(), "town", "income", ("town", "income")])
def test_gains_are_precise_enough_to_be_ranked(target: Any) -> None:
    frame = people(12, holes=0.8)
    seeds = [acquirer(target=target, seed=10 * s) for s in range(5)]
    x, observed = seeds[0].encode(frame)
    with torch.inference_mode():
        each = torch.stack([asks.gains(x, observed) for asks in seeds])
    is_open = each[0] > -math.inf
    spread, gain = each.std(0)[is_open], each.mean(0)[is_open]
    # The standard error of one gain is an eighth of a usual gain, at most.
    assert spread.square().mean().sqrt() < 0.125 * gain.square().mean().sqrt()
    assert (gain > -3.0 * spread.square().mean().sqrt()).all()


def test_columns_of_a_group_come_together_and_some_cannot_be_had() -> None:
    asks = acquirer(groups={"body": ["weight", "shirt"]}, cannot=["owner"], costs={"body": 2.0})
    nothing = some(1).map(lambda _: None)
    ranked = asks.rank(nothing)[0].offers
    assert {offer.name for offer in ranked} == {"income", "rooms", "town", "body"}
    body = next(offer for offer in ranked if offer.name == "body")
    assert [cell.column.name for cell in body.expected] == ["weight", "shirt"]
    assert body.cost == 2.0
    alone = {offer.name: offer.gain for offer in acquirer().rank(nothing)[0].offers}
    assert max(alone["weight"], alone["shirt"]) < body.gain < alone["weight"] + alone["shirt"]


def test_nothing_is_chosen_below_a_price_or_beyond_the_money() -> None:
    frame, asks = some(6), acquirer(target="town", costs={"income": 3.0})
    best = [row.offers[0] if row.offers else None for row in asks.rank(frame)]
    assert asks.choose(frame, price=-math.inf) == [b and b.name for b in best]
    dear = max(b.value for b in best if b is not None) + 0.01
    assert asks.choose(frame, price=dear) == [None] * 6
    assert "income" not in asks.choose(frame.assign(income=None), price=-9.0, money=2.0)
    assert asks.choose(frame, price=-math.inf, money=0.5) == [None] * 6


def test_rows_are_bought_step_by_step_and_what_they_lack_shows_nothing() -> None:
    frame = people(5, holes=0.3)
    asks = acquirer(target="town", costs={"income": 3.0}, cannot=["shirt"])
    path = asks.acquire(frame, 9, known=["rooms"])
    there = frame.notna().to_numpy()
    assert path.observed.shape == (10, 5, 6)
    assert not path.observed[..., [3, 4]].any()
    assert np.array_equal(path.observed[0, :, 2].numpy(), there[:, 2])
    assert not path.observed[0][:, [0, 1, 5]].any()
    assert np.array_equal(path.observed[-1].numpy()[:, [0, 1, 5]], there[:, [0, 1, 5]])
    for bought, gains in zip(path.offers, path.gains, strict=True):
        assert sorted(bought) == ["income", "owner", "weight"]
        assert len(gains) == 3
    first = frame.assign(**{n: None for n in NAMES if n != "rooms"})
    best = asks.choose(first, price=-math.inf)
    with_rooms = there[:, 2].nonzero()[0]
    assert [path.offers[i][0] for i in with_rooms] == [best[i] for i in with_rooms]
    poor = asks.acquire(frame, 9, known=["rooms"], budget=2.0)
    assert all(sorted(bought) == ["owner", "weight"] for bought in poor.offers)


def test_what_a_row_lacks_teaches_nothing_when_it_is_bought() -> None:
    nothing, asks = some(1).map(lambda _: None), acquirer(target="town")
    ranked, path = asks.rank(nothing)[0].offers, asks.acquire(nothing, 3)
    assert path.offers[0] == [offer.name for offer in ranked[:3]]
    assert path.gains[0] == pytest.approx([offer.gain for offer in ranked[:3]], abs=1e-5)


def test_one_network_tells_what_draws_tell() -> None:
    frame = people()
    sampled = acquirer(target="town")
    amortised = sampled.fit(frame, realised=False, steps=60)  # not yet done, but on its way
    assert isinstance(amortised.gains, AmortisedGain)
    x, observed = sampled.encode(people(60, holes=0.5))
    with torch.inference_mode():
        exact, told = (asks.gains(x, observed) for asks in (sampled, amortised))
    is_open = exact > -math.inf
    assert (told[~is_open] == -math.inf).all()
    error = (told - exact)[is_open].square().mean().sqrt()
    assert error < 0.5 * exact[is_open].std()
    reached = exact.gather(1, told.argmax(1, keepdim=True))[:, 0]
    best = exact.max(1).values
    open_rows = is_open.any(1)
    assert (reached[open_rows] > best[open_rows] - 0.03).float().mean() > 0.85


def test_what_is_told_of_a_level_is_on_average_the_information_if_the_model_is_right() -> None:
    chance = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.85, 0.05]])
    told = told_of_level(chance[:, None].expand(-1, 3, -1), torch.arange(3.0))
    information = (chance[1] * (chance[1] / chance[0]).log()).sum()
    assert torch.allclose(told.expected[0], information)
    assert torch.allclose((chance[1] * told.real[0]).sum(), information)
    assert told.real[0, 1] > information > told.real[0, 0]  # thought likely, or not
    assert torch.allclose(told.left, -chance[0].log())


def test_what_is_told_of_a_number_is_what_its_variance_loses_if_the_model_is_right() -> None:
    # Seeing y = t + noise of t ~ N(0, 1.5^2): mean and variance of t given y in closed form.
    prior, noise = 2.25, 0.5
    gain = prior / (prior + noise)
    t = np.sqrt(prior) * torch.randn(40_000, generator=torch.Generator().manual_seed(0))
    y = t + np.sqrt(noise) * torch.randn(40_000, generator=torch.Generator().manual_seed(1))
    variance = torch.tensor([[prior], [prior * (1.0 - gain)]]).expand(-1, len(t))
    told = told_of_number(variance, torch.stack([torch.zeros_like(y), gain * y]), t)
    lost = prior * gain / 2.0
    assert torch.allclose(told.expected, torch.tensor(lost))
    error = float(told.real.mean() - lost)
    assert abs(error) < 4.0 * float(told.real.std()) / math.sqrt(len(t))  # standard errors


def really_told(model: TableModel, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    """Return what each column alone told of each row's town, NaN where it is not there."""
    nothing, told = torch.zeros_like(there), []
    before = model.rows.chances(x, nothing, 3, 16)
    for name in (name for name in NAMES if name != "town"):
        known = nothing.clone()
        known[:, NAMES.index(name)] = True
        after = model.rows.chances(x, known, 3, 16)
        each = told_of_level(torch.stack([before, after]), x[:, 3]).real[0]
        told.append(each.masked_fill(~there[:, NAMES.index(name)], math.nan))
    return torch.stack(told, 1)  # (rows, offers)


def test_what_was_really_told_is_learned_from_rows() -> None:
    frame, model = people(), people_model()
    amortised = acquirer(target="town").fit(frame, most_known=0.0, steps=150)
    x, there = model.table.encode(frame)
    x, there = x[there[:, 3]], there[there[:, 3]]
    told = amortised.gains(x[:1], torch.zeros_like(there[:1]))[0]
    real = really_told(model, x, there).nanmean(0).numpy()
    # 150 steps leave the network somewhat behind.
    assert np.corrcoef(told.numpy(), real)[0, 1] > 0.9
    assert np.abs(told.numpy() - real).max() < 0.2 < max(real)


def test_what_a_model_expects_is_trusted_less_where_it_does_not_come_true() -> None:
    frame = people()
    mixed_up = frame.assign(town=frame["town"].sample(frac=1.0, random_state=0).to_numpy())
    found = []
    for rows in (frame, mixed_up):
        amortised = acquirer(target="town").fit(rows, steps=150)
        assert isinstance(amortised.gains, AmortisedGain)
        assert isinstance(amortised.gains.net, TableGainNet)
        nothing = torch.zeros(1, len(NAMES), dtype=torch.bool)
        gains = amortised.gains(torch.zeros(1, len(NAMES)), nothing)
        found.append((gains, amortised.gains.net.trust))
    (gains, trust), (misled, doubted) = found
    assert gains.min() > 0.0 > misled.max()  # the model's confidence is worse than knowing nothing
    assert (doubted < trust).all()


def test_each_row_is_judged_by_the_model_of_its_fold_and_counts_as_much_as_any_other() -> None:
    frame, model = people(), people_model()
    towns = frame["town"].map({"Aix": "Bonn", "Bonn": "Cork", "Cork": "Aix"})
    (misled,) = cross_fitted(model, frame.assign(town=towns), 2, max_steps=200)[:1]
    few, most = torch.arange(100), torch.arange(100, 400)
    x, there = model.table.encode(frame)
    has_town = there[:, 3]

    def told_by(first: TableModel, second: TableModel) -> np.ndarray:
        each = [
            really_told(judge, x[rows][has_town[rows]], there[rows][has_town[rows]])
            for judge, rows in ((first, few), (second, most))
        ]
        return torch.cat(each).nanmean(0).numpy()

    folds = [Fold(model, few), Fold(misled.model, most)]
    amortised = acquirer(target="town").fit(frame, folds=folds, most_known=0.0, steps=150)
    learned = amortised.gains(x[:1], torch.zeros_like(there[:1]))[0].numpy()
    right = told_by(model, misled.model)
    for first, second in ((misled.model, model), (model, model), (misled.model, misled.model)):
        wrong = told_by(first, second)
        assert np.abs(learned - right).max() < 0.25 * np.abs(wrong - right).max()


def test_a_fold_of_all_rows_is_no_fold() -> None:
    frame, options = people(), {"steps": 5, "seed": 3}
    asks = acquirer(target="weight")
    alone = [Fold(people_model(), torch.arange(len(frame)))]
    for one, other in zip(
        asks.fit(frame, **options).gains.parameters(),
        asks.fit(frame, folds=alone, **options).gains.parameters(),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_the_model_of_a_fold_knows_nothing_of_its_rows_and_shares_the_units_of_x() -> None:
    frame, model = people(), people_model()
    folds = cross_fitted(model, frame, 3, max_steps=2)
    places = torch.cat([fold.rows for fold in folds])
    assert places.sort().values.tolist() == list(range(len(frame)))
    changed = frame.copy()
    changed.iloc[folds[1].rows.numpy()] = frame.iloc[folds[1].rows.numpy()[::-1]].to_numpy()
    for i, (fold, other) in enumerate(
        zip(folds, cross_fitted(model, changed, 3, max_steps=2), strict=True)
    ):
        assert torch.equal(fold.rows, other.rows)
        assert other.model.table is model.table
        weights = zip(fold.model.model.parameters(), other.model.model.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in weights) == (i == 1)


def test_folds_that_make_no_sense_are_refused() -> None:
    frame, model = people(), people_model()
    asks, rows = acquirer(target="town"), torch.arange(len(frame))
    with pytest.raises(ValueError, match="folds must hold each of the 400 rows of data once"):
        asks.fit(frame, folds=[Fold(model, rows[1:])])
    with pytest.raises(ValueError, match="folds must hold each of the 400 rows of data once"):
        asks.fit(frame, folds=[Fold(model, rows), Fold(model, rows[:1])])
    with pytest.raises(ValueError, match="folds are for what was really told of a target"):
        acquirer().fit(frame, folds=[Fold(model, rows)])
    other = fit_small(people(60), steps=1)
    with pytest.raises(ValueError, match="folds must share the table of the model"):
        asks.fit(frame, folds=[Fold(other, rows)])
    with pytest.raises(ValueError, match="num_folds must be from 2 to the 400 rows of data, got 1"):
        cross_fitted(model, frame, 1)


def test_rows_without_their_target_teach_nothing_of_it() -> None:
    with pytest.raises(ValueError, match="rows must hold the target"):
        acquirer(target="town").fit(people().assign(town=None), steps=1)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"target": "twon"}, "target: no column is named 'twon'; did you mean 'town'"),
        ({"cannot": ["size"]}, "cannot: no column is named 'size'"),
        ({"costs": {"town": 2.0}, "target": "town"}, "costs: 'town' is not on offer"),
        ({"costs": {"town": 0.0}}, "costs: that of town must be positive and finite, got 0"),
        ({"groups": {"a": ["town", "wieght"]}}, "groups: no column is named 'wieght'"),
        ({"groups": {"a": []}}, "groups: a must name a column"),
        ({"groups": {"a": ["town"], "b": ["town"]}}, "groups: 'town' is both in a and in b"),
        ({"groups": {"a": ["town"]}, "cannot": ["town"]}, "which is a target or cannot be had"),
        ({"groups": {"rooms": ["town"]}}, "rooms is the name of a column that is not in it"),
        ({"cannot": NAMES}, "must leave a column that can be measured"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        acquirer(**wishes)


def test_single_texts_are_no_collections_of_names() -> None:
    with pytest.raises(TypeError, match="cannot must be a collection of names"):
        acquirer(cannot="town")
    with pytest.raises(ValueError, match="known: no column is named 'twon'"):
        acquirer().acquire(some(), 1, known=["twon"])
