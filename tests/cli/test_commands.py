import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import ROWS, Call
from postmatch import fit_table, load
from postmatch.cli.lists import given, names
from postmatch.tables import read_table
from postmatch.training.plan import Progress


def test_fit_keeps_a_model_and_replaces_it_only_when_asked(people: Path, call: Call) -> None:
    result = call("fit", people, "--quick", "--steps", 2, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["model"], told["rows"], told["steps"]) == ("people.model", ROWS, 2)
    assert load("people.model").facts["held_out"]["cells"] > 0
    again = call("fit", people, "--quick", "--steps", 3)
    assert again.exit_code == 1
    assert "--replace" in again.stderr
    assert load("people.model").facts["steps"] == 2
    assert call("fit", people, "--quick", "--steps", 3, "--replace", "--quiet").exit_code == 0
    assert load("people.model").facts["steps"] == 3


def test_fit_goes_on_with_what_was_cut_off(people: Path, call: Call) -> None:
    nothing = call("fit", people, "--steps", 20, "--resume")
    assert nothing.exit_code == 1
    assert "no people.model.unfinished to go on with" in " ".join(nothing.stderr.split())
    whole = call("fit", people, "-o", "whole", "--steps", 20, "--quiet")
    assert whole.exit_code == 0

    def show(progress: Progress) -> None:
        if progress.fraction >= 0.4:
            os.kill(os.getpid(), signal.SIGINT)

    unfinished = Path("people.model.unfinished")
    with pytest.raises(KeyboardInterrupt):
        fit_table(read_table(people), max_steps=20, checkpoints=unfinished, show=show)
    refused = call("fit", people, "--steps", 20)
    assert refused.exit_code == 1
    assert "--resume goes on, --replace starts anew" in " ".join(refused.stderr.split())
    other = call("fit", people, "--steps", 30, "--resume")
    assert other.exit_code == 1
    assert "--steps: the fit in people.model.unfinished began with 20" in other.stderr
    people.with_name("other.csv").write_text("".join(people.read_text().splitlines(True)[:200]))
    other = call("fit", "other.csv", "--steps", 20, "--resume", "-o", "people.model")
    assert "holds a fit of another table: repeat the command it began with" in other.stderr
    assert call("fit", people, "--steps", 20, "--resume").exit_code == 0
    assert not unfinished.exists()
    weights = "weights.safetensors"
    assert (Path("people.model") / weights).read_bytes() == (Path("whole") / weights).read_bytes()


def test_fit_makes_the_folders_above_its_model(people: Path, call: Call) -> None:
    assert call("fit", people, "--steps", 1, "--quick", "-o", "models/new/people").exit_code == 0
    assert load("models/new/people").facts["steps"] == 1


def test_a_fit_that_fails_before_it_learned_anything_leaves_nothing(
    people: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postmatch.models.fit_matched", lambda *_, **__: 1 / 0)
    assert call("fit", people, "--steps", 1).exit_code == 1
    assert [path.name for path in Path().iterdir()] == ["people.csv"]


def test_a_fit_tells_the_steps_of_each_of_its_models(people: Path, call: Call) -> None:
    told = call("fit", people, "--steps", 5).stdout
    assert "Fitted on 300 rows and 3 columns: 4 models x 5 steps in" in " ".join(told.split())


def test_errors_of_dates_are_told_in_days(tmp_path: Path, call: Call) -> None:
    days = [f"2024-{1 + i % 12:02d}-{1 + i % 28:02d},{i % 9}" for i in range(90)]
    (tmp_path / "days.csv").write_text("\n".join(["day,n", *days, ""]))
    told = call("fit", "days.csv", "--steps", 2, "--quick").stdout
    assert re.search(r"day +\d+ +off by [\d.]+ days \(the mean by [\d.]+ days\)", told)


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_drawn_numbers_are_numbers_where_the_format_has_them(
    suffix: str, kept: Path, call: Call
) -> None:
    place = f"rows.{suffix}"
    assert call("sample", "-m", kept, "-n", 5, "-o", place).exit_code == 0
    drawn = read_table(place)
    types = {name: str(drawn.schema.field(name).type) for name in ("age", "town", "id")}
    assert types == {"age": "double", "town": "string", "id": "string"}
    rows = json.loads(call("sample", "-m", kept, "-n", 5, "--json").stdout)["rows"]
    assert [row["age"] for row in rows] == drawn.column("age").to_pylist()


def test_sample_keeps_what_is_given(kept: Path, call: Call) -> None:
    result = call("sample", "-m", kept, "-n", 50, "--given", "town=Aix,size=L", "-o", "rows.csv")
    assert result.exit_code == 0, result.output
    rows = read_table("rows.csv").to_pylist()
    assert len(rows) == 50
    assert {(row["town"], row["size"]) for row in rows} == {("Aix", "L")}
    assert len({row["age"] for row in rows}) > 10


def test_sample_of_a_table_hides_what_is_not_named(people: Path, kept: Path, call: Call) -> None:
    command = ("sample", people, "-m", kept, "-n", 3, "--given-columns", "town", "--seed", 2)
    result = call(*command, "--json")
    rows = json.loads(result.stdout)["rows"]
    before = read_table(people).to_pylist()
    assert Counter(row["row"] for row in rows) == dict.fromkeys(range(1, ROWS + 1), 3)
    for row in rows:
        old = before[row["row"] - 1]
        assert row["id"] == old["id"]
        assert old["town"] in ("?", row["town"])
    ages = [row["age"] for row in rows if row["row"] == 1]
    assert len(set(ages)) == 3
    assert call(*command).stdout == call(*command).stdout


def test_scores_are_those_of_the_model(people: Path, kept: Path, call: Call) -> None:
    result = call("score", people, "-m", kept, "--given-columns", "town,size")
    scores = [float(line.split(",")[1]) for line in result.stdout.splitlines()[1:]]
    expected = load(kept, device="cpu").score(read_table(people), given=["town", "size"])
    np.testing.assert_allclose(scores, expected, rtol=1e-9)


def test_scores_given_a_value_set_it_in_every_row(people: Path, kept: Path, call: Call) -> None:
    told = json.loads(call("score", people, "-m", kept, "--given", "town=Bonn", "--json").stdout)
    data = read_table(people)
    place = data.column_names.index("town")
    import pyarrow as pa

    data = data.set_column(place, "town", pa.array(["Bonn"] * data.num_rows))
    expected = load(kept, device="cpu").score(data, given=["town"])
    np.testing.assert_allclose(told["log_prob"], expected, rtol=1e-9)
    assert told["mean"] == pytest.approx(expected.mean())


def test_describe_needs_no_model(people: Path, call: Call) -> None:
    told = json.loads(call("describe", people, "--json", "--categorical", "id").stdout)
    assert told["rows"] == ROWS
    columns = {column["name"]: column for column in told["columns"]}
    assert columns["id"]["kind"] == "categorical"
    empty = sum(line.split(",")[1] == "" for line in people.read_text().splitlines())
    assert columns["age"]["missing"] == empty
    assert any("note" in note for note in told["notes"])
    shown = call("describe", people)
    assert shown.stdout == call("describe", people, "--quiet").stdout
    assert "categorical" in shown.stdout
    assert "Aix, Bonn" in shown.stdout


def test_describe_names_the_unlikely_row_and_its_odd_cell(
    people: Path, kept: Path, call: Call
) -> None:
    lines = people.read_text().splitlines()
    lines[17] = "0017,400,Aix,S,x"  # age 400, row 17
    people.write_text("\n".join([*lines, ""]))
    told = json.loads(call("describe", people, "-m", kept, "--json", "--unlikely", 1).stdout)
    (odd,) = told["unlikely"]
    assert odd["row"] == 17
    assert odd["why"].startswith("age 400, not ")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("impute", "nowhere.csv"), 1, "nowhere.csv: no such file"),
        (("impute", "people.csv", "-o", "out.xlsx"), 1, "the format is told by the suffix"),
        (("impute", "people.csv", "--ignore", "agee"), 1, "did you mean 'age'?"),
        (("impute", "people.csv", "--categorical", "agee"), 1, "error: --categorical: no column"),
        (
            ("describe", "people.csv", "--ordered", "size"),
            1,
            "--ordered: name the levels of 'size'",
        ),
        (("impute", "people.csv", "--steps", "0"), 2, "--steps"),
        (
            ("impute", "people.csv", "--max-minutes", "0"),
            2,
            "--max-minutes must be positive, got 0",
        ),
        (("impute", "people.csv", "--seed", "9" * 30), 2, "--seed"),
        (("impute", "people.csv", "--draws", "2", "--long"), 2, "choose one"),
        (("impute", "-", "--draws", "2"), 2, "-o with a name"),
        (("impute", "people.csv", "-o", "-", "--json"), 2, "stdout"),
        (("impute", "people.csv", "-o", "no/where.csv"), 2, "there is no folder"),
        (("impute", "people.csv", "--device", "abacus", "--steps", "1"), 1, "abacus"),
        (("sample", "-m", "nothing"), 1, "there is no model here"),
        (("sample", "-m", "KEPT", "--given", "town=Rome"), 1, "one of Aix, Bonn, got 'Rome'"),
        (("sample", "-m", "KEPT", "--given", "town"), 2, "name=value"),
        (("sample", "-m", "KEPT", "--given", "age="), 2, "--given age= lacks a value"),
        (("sample", "-m", "KEPT", "--given", "age=1,age=2"), 2, "--given names age twice"),
        (("sample", "-m", "KEPT", "--given", "age=1e9"), 1, "age is too far from what the table"),
        (("sample", "-m", "."), 1, ".: there is no model here"),
        (("sample", "-m", "KEPT", "--given-columns", "town"), 2, "needs a TABLE"),
        (("score", "people.csv", "-m", "KEPT", "--given-columns", "tow"), 1, "'town'?"),
        (("describe",), 2, "give a TABLE"),
        (("describe", "empty.csv"), 1, "the file is empty"),
        (("describe", "other.csv", "-m", "KEPT"), 1, "the data lacks columns of the table: 'age'"),
        (("report", "people.csv", "-o", "."), 2, "is a folder"),
        (("nonsense",), 2, "No such command"),
    ],
)
def test_errors_are_one_clear_line(
    arguments: tuple[str, ...], code: int, words: str, people: Path, kept: Path, call: Call
) -> None:
    Path("empty.csv").touch()
    Path("other.csv").write_text("a,b\n1,2\n")
    result = call(*(str(kept) if a == "KEPT" else a for a in arguments))
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    flat = " ".join(result.stderr.replace("│", " ").split())
    assert words in flat
    assert "Traceback" not in flat
    if code == 1:
        (line,) = result.stderr.splitlines()
        assert line.startswith("error: ")


def test_debug_shows_the_traceback(call: Call) -> None:
    assert "Traceback" in call("impute", "nowhere.csv", "--debug").stderr


@pytest.mark.parametrize("command", ["impute", "fit", "sample", "score", "describe", "report"])
def test_help_of_every_command_has_examples(command: str, call: Call) -> None:
    text = call(command, "--help").stdout
    assert "Examples:" in text
    assert text.count(f"postmatch {command}") >= 3


def test_help_says_what_is_true(call: Call) -> None:
    def words(command: str) -> str:
        return " ".join(call(command, "--help").stdout.replace("│", " ").split())

    assert "row,column,mean,q05,q95,probability" in words("impute")
    assert "Rows count from 1" in words("impute")
    assert "as HTML" in words("report")
    assert "--ordered" in words("describe")
    assert "--quick" not in words("describe")
    assert "another run gives another model" in words("fit")


def test_help_loads_neither_torch_nor_arrow() -> None:
    code = (
        "import sys; from postmatch.cli import main; main(['--help']); "
        "sys.exit(len({'torch', 'pyarrow', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_module_runs_and_hands_on_its_exit_code() -> None:
    command = [sys.executable, "-m", "postmatch", "impute", "nowhere.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: nowhere.csv: no such file\n"


def test_a_reader_who_has_seen_enough_is_no_error(people: Path, kept: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "postmatch", "sample", "-m", str(kept), "-n", "5000"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.stderr == ""


def test_names_and_values_with_commas_are_quoted() -> None:
    assert names(['a,"b, c"', "d"]) == ["a", "b, c", "d"]
    assert given(['"price=1,5",town=Aix']) == {"price": "1,5", "town": "Aix"}
