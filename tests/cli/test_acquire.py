import json
from pathlib import Path

import pytest

from cli.conftest import Call
from postmatch import load
from postmatch.table_acquiring import table_acquirer


def test_offers_are_told_to_people_and_programs_alike(kept: Path, call: Call) -> None:
    wishes = ("acquire", "-m", kept, "--given", "town=Aix", "--target", "size", "--cost", "age=4")
    told = json.loads(call(*wishes, "--json").stdout)
    model = load(kept, device="cpu")
    asks = table_acquirer(model, target="size", costs={"age": 4.0})
    (advice,) = asks.rank(model.table.frame_from([{"town": "Aix"}]))
    assert [o["name"] for o in told["offers"]] == [o.name for o in advice.offers] == ["age"]
    (offer,) = told["offers"]
    assert offer["gain"] == pytest.approx(advice.offers[0].gain)
    assert offer["gain_per_cost"] == pytest.approx(offer["gain"] / 4.0)
    (age,), (size,) = offer["expected"], told["target"]
    assert age["low"] < age["best"] < age["high"] < 45.0  # those of Aix are below the mean of 40
    assert size["probability"] == pytest.approx(advice.target[0].probability)
    shown = call(*wishes)
    assert shown.exit_code == 0, shown.output
    words = f"size: {size['best']} ({size['probability']:.0%})"
    assert words in shown.stdout
    assert f"{offer['gain']:.3f}" in shown.stdout
    assert "age" in shown.stdout


def test_groups_come_together_and_what_cannot_be_had_is_not_listed(kept: Path, call: Call) -> None:
    wishes = ("--group", "card=age,town", "--cannot", "size", "--json")
    told = json.loads(call("acquire", "-m", kept, *wishes).stdout)
    assert [offer["name"] for offer in told["offers"]] == ["card"]
    assert [cell["column"] for cell in told["offers"][0]["expected"]] == ["age", "town"]
    dear = call("acquire", "-m", kept, "--price", 99)
    assert "Nothing is left to measure that is worth its price." in dear.stdout


def test_a_conversation_takes_answers_and_asks_again_for_bad_ones(kept: Path, call: Call) -> None:
    answers = b"young\n\n55.5\nskip\nquit\n"
    result = call("acquire", "-m", kept, "--target", "town", "--interactive", stdin=answers)
    assert result.exit_code == 0, result.output
    # The first question is the best one; its answer moves the prediction.
    asks = table_acquirer(load(kept, device="cpu"), target="town")
    before, after = (
        asks.rank(asks.model.table.frame_from([values]))[0] for values in ({}, {"age": "55.5"})
    )
    assert before.offers[0].name == "age", "the model must rank age first for this conversation"
    assert result.output.count("age? ") == 3
    assert "age must be a number, got 'young'" in result.output
    assert "age wants a value, or skip, or quit" in result.output
    for advice in (before, after):
        assert f"{advice.target[0].best} ({advice.target[0].probability:.0%})" in result.output
    assert before.target[0].probability != pytest.approx(after.target[0].probability, abs=0.02)
    assert result.output.count("size? ") == 1
    assert result.output.rstrip().endswith("Nothing is left to measure.")
    stopped = call("acquire", "-m", kept, "--interactive", stdin=b"")
    assert stopped.exit_code == 0


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (("--target", "twon"), "--target: no column is named 'twon'; did you mean 'town'"),
        (("--cost", "town"), "--cost wants name=number, got 'town'"),
        (("--cost", "town=0"), "--cost: that of town must be positive"),
        (("--group", "age"), "--group wants name=column,column, got 'age'"),
        (("--group", "a=age,ega"), "--group: no column is named 'ega'"),
        (("--cannot", "nothing"), "--cannot: no column is named 'nothing'"),
        (("--given", "town=Aix", "--target", "town"), "--given tells town, which is the --target"),
        (("--given", "age=old"), "age must be a number, got 'old'"),
        (("--json", "--interactive"), "--json and --interactive are two ways"),
    ],
)
def test_what_is_wrong_is_told_by_the_name_of_the_option(
    kept: Path, call: Call, wishes: tuple[str, ...], words: str
) -> None:
    result = call("acquire", "-m", kept, *wishes)
    assert result.exit_code != 0
    said = " ".join(result.output.replace("│", " ").split())
    assert words in said


def test_a_model_is_exported_and_chooses_without_torch(
    kept: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    monkeypatch.setattr(
        "postmatch.table_export.export_table", lambda folder, asks: written.append((folder, asks))
    )
    people = kept.parent / "people.csv"
    wishes = ("-m", kept, "--target", "town", "--cost", "age=3", "--steps", 2)
    for rows in ((people,), ()):
        result = call("export", *rows, "--onnx", "out", *wishes)
        assert result.exit_code == 0, result.output
        assert "Written to out." in result.output
        folder, asks = written.pop()
        assert folder == Path("out")
        assert asks.offers.target == ("town",)
        assert asks.offers.offers.costs.tolist() == [3.0, 1.0]
    Path("file").write_text("")
    refused = call("export", people, "--onnx", "file", *wishes)
    assert refused.exit_code == 2
    assert "is a file" in refused.output


def test_numbers_that_the_model_has_never_seen_are_warned_of(kept: Path, call: Call) -> None:
    column = next(c for c in load(kept, device="cpu").table.modelled if c.name == "age")
    within, beyond = (column.low + column.high) / 2, column.high + 100.0
    usual = call("acquire", "-m", kept, "--given", f"age={within}")
    assert "outside" not in usual.output
    odd = call("acquire", "-m", kept, "--given", f"age={beyond}")
    assert odd.exit_code == 0, odd.output
    assert "outside what the model was fitted on" in odd.output
    asked = call(
        "acquire", "-m", kept, "-i", "--target", "town", stdin=f"{beyond}\nquit\n".encode()
    )
    assert asked.output.count("outside what the model was fitted on") == 1
