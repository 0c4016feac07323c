"""TableModel: frames in, frames out, each row answered as if it were alone."""

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from postmatch import fit_table, load, save
from postmatch.training.plan import Progress
from small_models import TINY, fit_small, people, people_model

NUMBERS = ["income", "weight", "rooms"]
LEVELS = ["town", "shirt", "owner"]


def assert_alike(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Levels are equal, and numbers up to single precision."""
    assert_array_equal(found[LEVELS].astype(str), expected[LEVELS].astype(str))
    assert_allclose(found[NUMBERS].astype(float), expected[NUMBERS].astype(float), rtol=1e-5)


def chunks(frame: pd.DataFrame, size: int) -> list[tuple[int, pd.DataFrame]]:
    return [(start, frame.iloc[start : start + size]) for start in range(0, len(frame), size)]


def row_of(**cells: Any) -> pd.DataFrame:
    return people(1, holes=1.0).assign(**{name: [value] for name, value in cells.items()})


def test_impute_fills_every_hole_and_leaves_every_other_cell() -> None:
    frame = people()
    filled = people_model().impute(frame)
    assert not filled.isna().any(axis=None)
    assert (filled.dtypes == frame.dtypes).all()
    pd.testing.assert_frame_equal(filled.mask(frame.isna()), frame)


def test_imputed_numbers_beat_the_column_mean() -> None:
    frame = people(holes=0.0).iloc[:100]
    hidden = frame.assign(weight=np.nan)
    errors = people_model().impute(hidden)["weight"] - frame["weight"]
    assert errors.std() < 0.8 * frame["weight"].std()


@pytest.mark.parametrize("convert", [pl.from_pandas, pa.Table.from_pandas], ids=["polars", "arrow"])
def test_the_type_of_a_frame_changes_no_answer(convert: Any) -> None:
    frame = people().iloc[:20].reset_index(drop=True)
    filled = people_model().impute(convert(frame))
    assert type(filled) is type(convert(frame))
    back = filled.to_pandas()
    assert_alike(back, people_model().impute(frame))


def test_order_company_and_chunks_of_rows_change_no_answer() -> None:
    model, frame = people_model(), people().iloc[:90]
    shuffled = frame.sample(frac=1.0, random_state=3)
    filled = model.impute(frame)
    assert_alike(model.impute(shuffled).loc[frame.index], filled)
    assert_alike(pd.concat([model.impute(part) for _, part in chunks(frame, 7)]), filled)

    scores = pd.Series(model.score(frame), frame.index)
    assert_allclose(
        pd.Series(model.score(shuffled), shuffled.index)[frame.index], scores, rtol=1e-5
    )
    alone = np.concatenate([model.score(part) for _, part in chunks(frame, 7)])
    assert_allclose(alone, scores, rtol=1e-5)

    middle = model.quantiles(frame, [0.5])[0.5]
    apart = [model.quantiles(part, [0.5])[0.5]["weight"] for _, part in chunks(frame, 7)]
    assert_allclose(np.concatenate(apart), middle["weight"], rtol=1e-5)

    chances = model.predict(frame, "town").probabilities
    each = [model.predict(part, "town").probabilities for _, part in chunks(frame, 7)]
    assert_allclose(np.concatenate(each), chances, atol=1e-5)


def test_draws_of_chunks_are_those_of_the_whole_table() -> None:
    model = people_model()
    frame = pd.concat([people()] * 3, ignore_index=True)  # beyond one block of noise
    whole = model.sample(frame, 2, seed=4)
    for size in (70, 1024):
        parts = [model.sample(part, 2, seed=4, offset=at) for at, part in chunks(frame, size)]
        for draw in range(2):
            assert_alike(pd.concat([part[draw] for part in parts]), whole[draw])


def test_asking_for_more_draws_changes_none_of_the_first() -> None:
    frame = people().iloc[:50]
    few, many = people_model().sample(frame, 2), people_model().sample(frame, 5)
    assert_alike(many[1], few[1])
    assert not np.allclose(many[1][NUMBERS].astype(float), many[2][NUMBERS].astype(float))


def test_equal_rows_get_independent_draws() -> None:
    frame = pd.concat([row_of(town="Bonn")] * 1500, ignore_index=True)
    drawn = people_model().sample(frame, 1)[0]["weight"].to_numpy()
    assert len(np.unique(drawn)) > 0.9 * len(drawn)  # some may meet at the end of the range
    neighbours = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(len(drawn))
    blocks = np.corrcoef(drawn[:476], drawn[1024:])[0, 1]  # the same places of two blocks of noise
    assert abs(blocks) < 4 / np.sqrt(476)


def test_predicted_probabilities_are_the_frequencies_of_draws() -> None:
    row = row_of(income=52_000.0)
    expected = people_model().predict(row, "town", num_samples=4096).probabilities
    assert expected is not None
    drawn = people_model().sample(pd.concat([row] * 3000, ignore_index=True), 1)[0]["town"]
    for level, chance in zip(["Aix", "Bonn", "Cork"], expected[0], strict=True):
        error = np.sqrt(chance * (1 - chance) / len(drawn))
        assert abs((drawn == level).mean() - chance) < 4 * error + 0.003


def test_predicted_quantiles_are_those_of_draws() -> None:
    row = row_of(income=52_000.0)
    low, high = people_model().predict(row, "weight", num_samples=2048).quantiles([0.1, 0.9])[:, 0]
    drawn = people_model().sample(pd.concat([row] * 3000, ignore_index=True), 1)[0]["weight"]
    for level, at in ((0.1, low), (0.9, high)):
        assert abs((drawn < at).mean() - level) < 4 * np.sqrt(0.09 / 3000) + 0.005


def test_a_prediction_does_not_look_at_its_own_column() -> None:
    model, frame = people_model(), people().iloc[:40]
    for target in ("town", "weight"):
        expected = model.predict(frame, target)
        for other in (frame.assign(**{target: None}), frame.drop(columns=target)):
            assert_array_equal(model.predict(other, target).best, expected.best)


def test_a_prediction_of_levels_sums_to_one_and_one_of_numbers_has_a_mean() -> None:
    frame = people().iloc[:40]
    for target in LEVELS:
        said = people_model().predict(frame, target)
        assert said.probabilities is not None
        assert_allclose(said.probabilities.sum(1), 1.0, atol=1e-5)
        best = np.array(said.levels, dtype=object)[said.probabilities.argmax(1)]
        assert_array_equal(said.best, best)
    said = people_model().predict(frame, "rooms")
    assert said.mean is not None
    assert_array_equal(said.best, np.rint(said.mean))


def test_densities_integrate_to_one_in_the_users_units() -> None:
    income = np.linspace(-60_000, 140_000, 501)
    frame = pd.concat([row_of(town="Cork", weight=65.0)] * len(income), ignore_index=True)
    frame["income"] = income
    given = ["town", "weight"]
    density = np.exp(people_model().score(frame, given=given, num_samples=1000))
    assert_allclose(density.sum() * (income[1] - income[0]), 1.0, atol=0.02)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("rooms", list(range(-30, 40))),
        ("town", ["Aix", "Bonn", "Cork"]),
        ("shirt", ["S", "M", "L"]),
        ("owner", [True, False]),
    ],
)
def test_masses_sum_to_one(column: str, values: list[Any]) -> None:
    frame = pd.concat([row_of(weight=80.0)] * len(values), ignore_index=True)
    frame[column] = values
    mass = np.exp(people_model().score(frame, given=["weight"], num_samples=4000))
    assert_allclose(mass.sum(), 1.0, atol=0.02)


def test_precise_scores_agree_with_quick_ones_and_are_the_same_in_any_company() -> None:
    model, frame = people_model(), people().iloc[:30]
    precise = model.score(frame, precise=True)
    assert_allclose(model.score(frame), precise, rtol=1e-4, atol=1e-3)
    alone = np.concatenate([model.score(part, precise=True) for _, part in chunks(frame, 1)])
    assert_allclose(alone, precise, rtol=1e-11)
    assert next(model.model.parameters()).dtype == torch.float32


def test_a_row_without_cells_to_score_has_log_likelihood_zero() -> None:
    assert_array_equal(people_model().score(row_of()), [0.0])
    assert_array_equal(people_model().score(people().iloc[:5], given=NUMBERS + LEVELS), np.zeros(5))


def test_the_least_likely_row_is_the_outlier() -> None:
    frame = people(holes=0.0).iloc[:60].reset_index(drop=True)
    frame.loc[17, "weight"] = 400.0
    (row, score), *others = people_model().unlikely(frame, 3)
    assert row == 17
    assert score < others[0][1] <= others[1][1]


def test_quantiles_rise_with_the_level_and_categories_stay() -> None:
    frame = people()
    low, high = people_model().quantiles(frame, [0.1, 0.9]).values()
    hidden = frame["weight"].isna().to_numpy()
    assert (low["weight"][hidden] < high["weight"][hidden]).all()
    assert_allclose(low["weight"][~hidden], frame["weight"][~hidden], rtol=1e-5)
    assert_array_equal(low["town"], high["town"])
    frames = people_model().impute_quantiles(frame, [0.1, 0.9])
    assert_allclose(frames[0.1]["weight"], low["weight"], rtol=1e-5)
    pd.testing.assert_frame_equal(frames[0.9].mask(frame.isna()), frame)


def test_a_summary_has_one_row_per_hole_and_agrees_with_impute() -> None:
    frame = people().iloc[:50]
    summary = people_model().summarise(frame, offset=100).to_pandas()
    rows, columns = np.nonzero(frame.isna().to_numpy())
    assert_array_equal(summary["row"], rows + 100)
    assert_array_equal(summary["column"], frame.columns[columns])
    filled = people_model().impute(frame).reset_index(drop=True)
    ends = people_model().impute_quantiles(frame, [0.05, 0.95])
    low, high = (ends[level].reset_index(drop=True) for level in (0.05, 0.95))
    for _, cell in summary.iterrows():
        place = cell["row"] - 100, cell["column"]
        if cell["column"] in ("town", "shirt", "owner"):
            assert cell["mean"] == str(filled.loc[place])
            assert 0.0 < cell["probability"] <= 1.0
        else:
            mean = float(cell["mean"])
            mean = round(mean) if cell["column"] == "rooms" else mean
            assert mean == pytest.approx(filled.loc[place], rel=1e-6)
            assert float(cell["q05"]) == pytest.approx(low.loc[place], rel=1e-6)
            assert float(cell["q95"]) == pytest.approx(high.loc[place], rel=1e-6)
            assert np.isnan(cell["probability"])


def test_what_is_hidden_but_no_hole_is_not_in_a_summary() -> None:
    frame = people(holes=0.0).iloc[:3].assign(weight=[70.0, 1e80, np.nan], town=["Oslo"] * 3)
    with pytest.warns(UserWarning, match="kept as they are"):
        summary = people_model().summarise(frame)
    assert (summary["row"].to_pylist(), summary["column"].to_pylist()) == ([2], ["weight"])


def test_a_prediction_has_the_intervals_and_the_probabilities_of_a_summary() -> None:
    frame = people().iloc[:40].assign(weight=np.nan, town=None)
    summary = people_model().summarise(frame).to_pandas()
    ends = people_model().predict(frame, "weight").quantiles([0.05, 0.95])
    own = summary[summary["column"] == "weight"]
    assert_allclose(own[["q05", "q95"]].astype(float).T, ends, rtol=1e-6)
    chances = people_model().predict(frame, "town").probabilities
    assert chances is not None
    own = summary[summary["column"] == "town"]
    assert_allclose(own["probability"].astype(float), chances.max(1), rtol=1e-5)


def test_a_summary_of_numbers_holds_numbers() -> None:
    frame = people()[["income", "weight"]]
    summary = fit_small(frame, 2).summarise(frame, levels=(0.025, 0.5))
    assert summary.column_names == ["row", "column", "mean", "q2.5", "q50", "probability"]
    assert summary.schema.field("mean").type == pa.float64()


def test_drawn_rows_keep_what_is_given_and_differ_otherwise() -> None:
    model = people_model()
    drawn = model.draw(50, {"town": "Cork", "weight": "61.50"}, seed=1).to_pandas()
    assert set(drawn["town"]) == {"Cork"}
    assert set(drawn["weight"]) == {"61.50"}
    assert drawn["income"].nunique() == 50
    assert set(drawn["shirt"]) <= {"S", "M", "L"}
    assert model.draw(50, {"town": "Cork", "weight": "61.50"}, seed=1).to_pandas().equals(drawn)
    assert not model.draw(50, {"town": "Cork", "weight": "61.50"}, seed=2).to_pandas().equals(drawn)


def test_rows_drawn_from_the_joint_have_the_marginals_of_the_table() -> None:
    drawn = people_model().draw(2000).to_pandas()
    weight = drawn["weight"].astype(float)
    truth = people()["weight"].dropna()
    assert abs(weight.mean() - truth.mean()) < 0.25 * truth.std()
    assert (drawn["town"] == "Aix").mean() == pytest.approx(
        (people()["town"] == "Aix").sum() / people()["town"].notna().sum(), abs=0.1
    )


def test_threads_can_share_a_model() -> None:
    model, frame = people_model(), people()
    expected, answers = model.sample(frame, 1)[0], {}

    def answer(name: int) -> None:
        answers[name] = model.sample(frame, 1)[0]

    threads = [threading.Thread(target=answer, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found in answers.values():
        assert_alike(found, expected)


def test_a_seed_decides_the_model_and_the_global_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    frame = people(40)
    first, again, other = (fit_small(frame, 3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert_alike(again.impute(frame), first.impute(frame))
    weights = [next(model.model.parameters()) for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_facts_are_json_and_say_what_was_done() -> None:
    seen: list[Progress] = []
    frame = people(40).assign(id=range(40))
    model = fit_small(frame, 20, seed=5, show=seen.append)
    facts = json.loads(json.dumps(model.facts, allow_nan=False))
    assert (facts["rows"], facts["columns"], facts["seed"], facts["steps"]) == (40, 7, 5, 20)
    assert facts["stopped_by"] == "steps"
    assert any("'id'" in note for note in facts["notes"])
    assert seen[-1].fraction == 1.0


def test_training_stops_when_its_time_is_over() -> None:
    model = fit_table(people(60), config=TINY, max_steps=10**6, max_seconds=0.3, device="cpu")
    assert model.facts["stopped_by"] == "time"
    assert 0.3 <= model.facts["seconds"] < 5.0


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": [1.5]}),
        pd.DataFrame({"a": ["x", "y", None]}),
        pd.DataFrame({"a": [1.5, 2.5, None], "b": [3, 3, 3]}),
        pd.DataFrame({"a": [1.5, None], "b": [None, "x"]}),
    ],
    ids=["one cell", "one column", "constant", "no complete row"],
)
def test_the_smallest_tables_are_modelled_and_filled(frame: pd.DataFrame) -> None:
    model = fit_small(frame, 3)
    assert not model.impute(frame).isna().any(axis=None)
    assert np.isfinite(model.score(frame)).all()


def test_an_ensemble_answers_what_a_single_model_does(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, num_members=2)
    frame = people(60)
    model = fit_table(frame, config=config, max_steps=5, device="cpu")
    filled = model.impute(frame)
    assert not filled.isna().any(axis=None)
    assert_alike(pd.concat([model.impute(part) for _, part in chunks(frame, 7)]), filled)
    parts = [model.sample(part, 2, offset=at)[1] for at, part in chunks(frame, 7)]
    assert_alike(pd.concat(parts), model.sample(frame, 2)[1])
    scores = model.score(frame, precise=True)
    assert_allclose(model.score(frame), scores, rtol=1e-4, atol=1e-3)
    chances = model.predict(frame, "shirt").probabilities
    assert chances is not None
    assert_allclose(chances.sum(1), 1.0, atol=1e-5)
    save(model, tmp_path / "model")
    pd.testing.assert_frame_equal(load(tmp_path / "model", device="cpu").impute(frame), filled)


def test_one_row_is_drawn_from_an_ensemble() -> None:
    config = dataclasses.replace(TINY, num_members=3)
    model = fit_table(people(40), config=config, max_steps=1, device="cpu")
    frame = people(40)
    row = int(np.flatnonzero(frame.isna().any(axis=1))[3])
    alone, whole = model.sample(frame[row : row + 1], 2, offset=row), model.sample(frame, 2)
    for draw in range(2):
        assert_alike(alone[draw], whole[draw][row : row + 1])


def test_a_frame_without_rows_has_answers_without_rows() -> None:
    model, nothing = people_model(), people().iloc[:0]
    assert len(model.impute(nothing)) == len(model.sample(nothing, 2)[1]) == 0
    assert len(model.score(nothing)) == model.summarise(nothing).num_rows == 0
    assert len(model.predict(nothing, "town").best) == 0
    assert model.predict(nothing, "weight").quantiles([0.5]).shape == (1, 0)


def test_a_table_with_nothing_to_learn_is_refused() -> None:
    with pytest.raises(ValueError, match="no column to model: column 'a' has no value"):
        fit_small(pd.DataFrame({"a": [None, None]}))
    with pytest.raises(ValueError, match="no observed cell"):
        fit_small(pa.table({"a": pa.array(["?", None])}), ordered={"a": ["S", "L"]})


def test_wrong_questions_are_refused_with_the_reason() -> None:
    model, frame = people_model(), people().iloc[:3]
    with pytest.raises(ValueError, match="did you mean 'weight'"):
        model.predict(frame, "wieght")
    with pytest.raises(ValueError, match="no column is named 'height'"):
        model.score(frame, given=["height"])
    with pytest.raises(TypeError, match="given must be a collection of names, got the text 'town'"):
        model.score(frame, given="town")
    with pytest.raises(ValueError, match="town must be one of Aix, Bonn, Cork, got 'Rome'"):
        model.draw(1, {"town": "Rome"})
    with pytest.raises(ValueError, match="rows must be at least 1"):
        model.draw(0)
    with pytest.raises(ValueError, match="num_samples must be at least 1"):
        model.sample(frame, 0)
    with pytest.raises(ValueError, match="levels must lie in"):
        model.quantiles(frame, [1.5])
    with pytest.raises(ValueError, match="has levels"):
        model.predict(frame, "town").quantiles([0.5])
    with pytest.raises(ValueError, match="max_steps must be positive, got 0"):
        fit_small(frame, 0)
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or mps, got 'gpu9'"):
        model.to("gpu9")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what is asked for")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="device cuda was asked for, but torch finds none here"):
        fit_table(people(20), device="cuda")


def test_a_column_that_is_not_modelled_cannot_be_asked_for() -> None:
    frame = people(40).assign(id=range(40))
    with pytest.raises(ValueError, match="column 'id' is not modelled"):
        fit_small(frame, 2).predict(frame, "id")
