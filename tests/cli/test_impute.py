import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from cli.conftest import ROWS, Call, write_people
from postmatch.cli import files
from postmatch.models import TableModel
from postmatch.tables import read_table

MISSING = {"", "?", "NA"}


def cells(path: Path, **options: object) -> list[list[str]]:
    data = read_table(path, **options)  # type: ignore[arg-type]
    return [list(row) for row in zip(*(c.to_pylist() for c in data.columns), strict=True)]


def test_holes_are_filled_and_every_other_cell_stays(people: Path, kept: Path, call: Call) -> None:
    result = call("impute", people, "-m", kept, "-o", "filled.csv")
    assert result.exit_code == 0, result.output
    before, after = cells(people), cells(Path("filled.csv"))
    assert len(before) == len(after)
    for row, filled in zip(before, after, strict=True):
        for place, (old, new) in enumerate(zip(row, filled, strict=True)):
            if old in MISSING and place < 4:
                assert new not in MISSING
            else:
                assert new == old


def test_without_a_name_the_answer_goes_to_the_current_folder(
    people: Path, kept: Path, call: Call
) -> None:
    (people.parent / "data").mkdir()
    table = people.rename(people.parent / "data" / "people.csv")
    result = call("impute", table, "-m", kept)
    assert result.exit_code == 0, result.output
    assert Path("people.filled.csv").exists()
    assert "people.filled.csv" in result.stdout


def test_a_table_without_a_model_is_fitted_and_the_model_kept_and_used_again(
    people: Path, call: Call
) -> None:
    wishes = ("--steps", 3, "--ordered", "size=S,M,L", "--ignore", "note", "--missing", "?")
    first = call("impute", people, "-m", "new.model", "-o", "a.csv", *wishes)
    assert first.exit_code == 0, first.output
    assert "kept in new.model" in first.stderr
    again = call("impute", people, "-m", "new.model", "-o", "b.csv")
    assert "Using the model in new.model" in again.stderr
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()
    told = json.loads(call("describe", "-m", "new.model", "--json").stdout)
    kinds = {column["name"]: column["kind"] for column in told["columns"]}
    assert (kinds["size"], kinds["note"]) == ("ordered", "ignored")
    assert set(told["model"]["held_out"]["columns"]) == {"age", "town", "size"}


def test_options_of_fitting_are_not_silently_lost(people: Path, kept: Path, call: Call) -> None:
    result = call("impute", people, "-m", kept, "-o", "a.csv", "--ignore", "age")
    assert result.exit_code == 0
    assert "warning: --ignore: of no use with a fitted model" in result.stderr


def test_draws_differ_in_holes_only_and_the_seed_brings_them_back(
    people: Path, kept: Path, call: Call
) -> None:
    for name in ("a", "b"):
        command = ("impute", people, "-m", kept, "-o", f"{name}.csv", "--draws", 3, "--seed", 5)
        assert call(*command).exit_code == 0
    before = cells(people)
    drawn = [cells(Path(f"a.{i}.csv")) for i in (1, 2, 3)]
    assert drawn[0] != drawn[1] != drawn[2]
    for table in drawn:
        assert all(
            new == old
            for row, filled in zip(before, table, strict=True)
            for old, new in zip(row, filled, strict=True)
            if old not in MISSING
        )
    assert Path("a.2.csv").read_bytes() == Path("b.2.csv").read_bytes()
    assert not Path("a.csv").exists()
    call("impute", people, "-m", kept, "-o", "c.csv", "--draws", 1, "--seed", 6)
    assert Path("c.1.csv").read_bytes() != Path("a.1.csv").read_bytes()


@pytest.mark.parametrize("wish", [("--draws", 2), ()])
def test_the_size_of_blocks_changes_nothing(
    wish: tuple[object, ...],
    people: Path,
    kept: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call("impute", people, "-m", kept, "-o", "whole.csv", *wish)
    monkeypatch.setattr(files, "BLOCK_ROWS", 7)
    call("impute", people, "-m", kept, "-o", "parts.csv", *wish)
    last = "2.csv" if "--draws" in wish else "csv"
    assert Path(f"whole.{last}").read_bytes() == Path(f"parts.{last}").read_bytes()


def test_the_size_of_blocks_changes_a_mean_by_no_more_than_single_precision_does(
    people: Path, kept: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("impute", people, "-m", kept, "-o", "whole.csv", "--long")
    monkeypatch.setattr(files, "BLOCK_ROWS", 7)
    call("impute", people, "-m", kept, "-o", "parts.csv", "--long")
    for whole, part in zip(cells(Path("whole.csv")), cells(Path("parts.csv")), strict=True):
        assert part[:2] == whole[:2]
        for one, other in zip(whole[2:], part[2:], strict=True):
            if one.replace(".", "").isdigit():
                assert float(other) == pytest.approx(float(one), rel=1e-5, abs=2e-4)
            else:
                assert other == one


def test_long_has_one_line_per_hole_with_an_interval_around_it(
    people: Path, kept: Path, call: Call
) -> None:
    assert call("impute", people, "-m", kept, "--long").exit_code == 0
    told = read_table("people.long.csv").to_pylist()
    holes = [
        (str(row), name)
        for row, texts in enumerate(cells(people), 1)
        for name, text in zip(("age", "town", "size"), texts[1:4], strict=True)
        if text in MISSING
    ]
    assert [(cell["row"], cell["column"]) for cell in told] == holes
    for cell in told:
        if cell["column"] == "age":
            assert float(cell["q05"]) <= float(cell["mean"]) <= float(cell["q95"])
        elif cell["column"] == "town":
            assert cell["mean"] in ("Aix", "Bonn")
            assert 0.5 <= float(cell["probability"]) <= 1.0


def test_what_is_filled_in_is_the_mean_that_long_lists(
    people: Path, kept: Path, call: Call
) -> None:
    for name, wish in (("filled.csv", ()), ("long.csv", ("--long",))):
        assert call("impute", people, "-m", kept, "-o", name, *wish).exit_code == 0
    filled = read_table("filled.csv").to_pylist()
    for cell in read_table("long.csv").to_pylist():
        value = filled[int(cell["row"]) - 1][cell["column"]]
        if cell["column"] == "age":
            assert value == f"{float(cell['mean']):.1f}"
        else:
            assert value == cell["mean"]


def test_long_leaves_out_what_is_hidden_but_no_hole(kept: Path, call: Call) -> None:
    Path("odd.csv").write_text("id,age,town,size,note\n1,1e50,Oslo,S,a\n2,,Aix,S,a\n")
    assert call("impute", "odd.csv", "-m", kept, "--long").exit_code == 0
    told = read_table("odd.long.csv").to_pylist()
    assert [(cell["row"], cell["column"]) for cell in told] == [("2", "age")]


def test_stdin_goes_to_stdout_and_nothing_else_does(people: Path, kept: Path, call: Call) -> None:
    call("impute", people, "-m", kept, "-o", "filled.csv")
    result = call("impute", "-", "-m", kept, stdin=people.read_bytes())
    assert result.exit_code == 0
    assert result.stdout_bytes == Path("filled.csv").read_bytes()
    assert "cells filled" in result.stderr


def test_formats_are_told_by_the_suffix(people: Path, kept: Path, call: Call) -> None:
    call("impute", people, "-m", kept, "-o", "filled.csv")
    expected = Path("filled.csv").read_bytes()
    packed = people.parent / "packed.csv.gz"
    packed.write_bytes(gzip.compress(people.read_bytes()))
    assert call("impute", packed, "-m", kept).exit_code == 0
    assert gzip.decompress(Path("packed.filled.csv.gz").read_bytes()) == expected
    for name in ("filled.parquet", "filled.feather", "filled.tsv"):
        assert call("impute", people, "-m", kept, "-o", name).exit_code == 0
        assert read_table(name).to_pylist() == read_table("filled.csv").to_pylist()


def test_typed_columns_keep_their_types(kept: Path, call: Call) -> None:
    table = pa.table({"age": [41.5, None], "town": [None, "Aix"], "size": ["S", None]})
    pyarrow.parquet.write_table(table, "typed.parquet")
    assert call("impute", "typed.parquet", "-m", kept).exit_code == 0
    filled = pyarrow.parquet.read_table("typed.filled.parquet")
    assert filled.schema.equals(table.schema)
    assert filled.column("age")[0].as_py() == 41.5
    assert sum(column.null_count for column in filled.columns) == 0


def test_a_file_without_header_comes_back_without(tmp_path: Path, call: Call) -> None:
    lines = [f"{i % 7}; {'ab'[i % 2]}; {i * 0.5}" for i in range(60)]
    lines[3] = "?; a; 1.5"
    (tmp_path / "raw.data").write_text("\n".join([*lines, ""]))
    result = call("impute", "raw.data", "--no-header", "--sep", ";", "--steps", 2)
    assert result.exit_code == 0, result.output
    after = Path("raw.filled.data").read_text().splitlines()
    assert [line for i, line in enumerate(after) if i != 3] == lines[:3] + lines[4:]
    assert after[3].endswith("; a; 1.5")
    assert not after[3].startswith("?")


def test_json_holds_the_counts(people: Path, kept: Path, call: Call) -> None:
    result = call("impute", people, "-m", kept, "-o", "filled.csv", "--json")
    told = json.loads(result.stdout)
    holes = {
        name: sum(row[place] in MISSING for row in cells(people))
        for place, name in ((1, "age"), (2, "town"), (3, "size"))
    }
    assert told["filled"] == holes
    assert (told["rows"], told["outputs"]) == (ROWS, ["filled.csv"])


def test_quiet_says_nothing(people: Path, kept: Path, call: Call) -> None:
    result = call("impute", people, "-m", kept, "-o", "filled.csv", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_the_input_is_never_overwritten(people: Path, kept: Path, call: Call) -> None:
    before = people.read_bytes()
    Path("link.csv").symlink_to(people)
    for name in ("people.csv", "link.csv", "./people.csv"):
        result = call("impute", people, "-m", kept, "-o", name)
        assert result.exit_code == 2
        assert "never overwritten" in result.stderr
    copy = people.rename(people.parent / "out.1.csv")
    assert call("impute", copy, "-m", kept, "-o", "out.csv", "--draws", 2).exit_code == 2
    assert copy.read_bytes() == before
    assert not Path("out.2.csv").exists()


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (ValueError("no"), 1)])
def test_a_run_cut_short_leaves_the_old_file(
    error: BaseException,
    code: int,
    people: Path,
    kept: Path,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("filled.csv").write_text("old")
    monkeypatch.setattr(files, "BLOCK_ROWS", 50)
    impute = TableModel.impute
    blocks = 0

    def cut(self: TableModel, data: object, **options: int) -> object:
        nonlocal blocks
        blocks += 1
        if blocks == 2:
            raise error
        return impute(self, data, **options)

    monkeypatch.setattr(TableModel, "impute", cut)
    result = call("impute", people, "-m", kept, "-o", "filled.csv")
    assert result.exit_code == code
    assert Path("filled.csv").read_text() == "old"
    assert [path.name for path in Path().iterdir() if "part" in path.name] == []


def test_levels_never_seen_are_told_in_one_line_each_and_not_for_every_block(
    people: Path, kept: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    people.write_text(people.read_text().replace("Aix", "Oslo"))
    monkeypatch.setattr(files, "BLOCK_ROWS", 10)
    result = call("impute", people, "-m", kept, "-o", "filled.csv")
    assert result.exit_code == 0
    warned = [line for line in result.stderr.splitlines() if line.startswith("warning:")]
    assert len(warned) == 4
    assert "'Oslo'" in warned[0]
    assert warned[3].startswith("warning: 27 more like this")
    assert "Oslo" in Path("filled.csv").read_text()


def test_a_table_with_no_hole_comes_back_as_it_was(tmp_path: Path, kept: Path, call: Call) -> None:
    text = "id,age,town,size,note\n1,40,Aix,S,a\n"
    (tmp_path / "whole.csv").write_text(text)
    result = call("impute", "whole.csv", "-m", kept)
    assert Path("whole.filled.csv").read_text() == text
    assert "No cell was missing" in result.stdout


def test_what_stays_missing_is_told(call: Call, tmp_path: Path) -> None:
    lines = [f"{i % 5},,{'?' if i == 3 else f'word {i}'}" for i in range(30)]
    (tmp_path / "void.csv").write_text("\n".join(["a,b,c", *lines, ""]))
    first = call("impute", "void.csv", "--steps", 2, "-m", "m", "-o", "out.csv")
    again = call("impute", "void.csv", "-m", "m", "-o", "out.csv")
    for result in (first, again):
        assert "No cell was missing" not in result.stdout
        assert "31 cells stay missing in 'b', 'c': not modelled." in result.stdout
        assert "Note: column 'b' has no value at all" in result.stderr
    for wish in ((), ("--long",)):
        told = json.loads(call("impute", "void.csv", "-m", "m", *wish, "--json").stdout)
        assert (told["filled"], told["left_missing"]) == ({}, {"b": 30, "c": 1})


def test_two_columns_of_one_name_are_counted_and_judged_apart(tmp_path: Path, call: Call) -> None:
    lines = [f"{i % 7},{'x' if i % 2 else 'y'}" for i in range(90)]
    lines[3], lines[4] = "3,", ",x"
    lines[5] = ",x"
    (tmp_path / "twice.csv").write_text("\n".join(["a,a", *lines, ""]))
    for wish in ((), ("--long",)):
        told = json.loads(
            call("impute", "twice.csv", "-m", "m", "--steps", 2, "--json", *wish).stdout
        )
        assert told["filled"] == {"a": 2, "a (2)": 1}
        judged = told["model"]["held_out"]["columns"]
        assert {name: score["measure"] for name, score in judged.items()} == {
            "a": "rmse",
            "a (2)": "error_rate",
        }


def test_an_output_that_cannot_be_written_is_refused_before_the_fit(
    people: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    for wish in (("-o", "filled.csv"), ("-m", "new.model")):
        result = call("impute", people, "--steps", 2, *wish)
        assert result.exit_code == 2
        flat = " ".join(result.stderr.replace("│", " ").split())
        assert "cannot be written: permission denied" in flat
    assert [path.name for path in Path().iterdir()] == ["people.csv"]


def test_what_cannot_be_used_is_told_once_in_a_command(people: Path, call: Call) -> None:
    lines = people.read_text().splitlines()
    lines[5], lines[6] = "0005,inf,Aix,S,x", "0006,many,Aix,S,x"
    people.write_text("\n".join([*lines, ""]))
    for command in ("impute", "report"):
        result = call(command, people, "--steps", 2, "-m", f"{command}.model")
        warned = [line for line in result.stderr.splitlines() if line.startswith("warning:")]
        assert len(warned) == 2
        assert "'many'" in warned[0]
        assert "'inf'" in warned[1]
    told = call("describe", people, "-m", "impute.model").stderr
    assert told.count("warning:") == 2


@pytest.mark.parametrize(("name", "sep"), [("out.csv", ","), ("out.tsv", "\t"), ("-", "\t")])
def test_the_suffix_of_the_output_decides_its_separator(
    name: str, sep: str, people: Path, kept: Path, call: Call
) -> None:
    table = people.with_suffix(".tsv")
    table.write_text(people.read_text().replace(",", "\t"))
    result = call("impute", table, "-m", kept, "-o", name)
    text = result.stdout if name == "-" else Path(name).read_text()
    assert text.splitlines()[0] == sep.join(["id", "age", "town", "size", "note"])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_memory_does_not_grow_with_the_table(tmp_path: Path, call: Call) -> None:
    import subprocess
    import sys

    import numpy as np

    random = np.random.default_rng(0)

    def table(rows: int) -> pa.Table:
        x = random.normal(size=(rows, 20)) + random.normal(size=(rows, 1))
        x[random.random(x.shape) < 0.001] = np.nan
        return pa.table({f"c{i}": pa.array(x[:, i], from_pandas=True) for i in range(20)})

    pyarrow.parquet.write_table(table(500), "small.parquet")
    assert call("fit", "small.parquet", "-o", "model", "--steps", 2).exit_code == 0
    peak = {}
    for rows in (20_000, 200_000):
        pyarrow.parquet.write_table(table(rows), "big.parquet")  # one row group
        # Not getrusage, which counts from the peak of the process that started this one.
        command = (
            "import sys; from postmatch.cli import main; code = main(sys.argv[1:]); "
            "lines = open('/proc/self/status').read().splitlines(); "
            "print(*[line.split()[1] for line in lines if line.startswith('VmHWM')]); "
            "sys.exit(code)"
        )
        arguments = ["impute", "big.parquet", "-m", "model", "-o", "out.parquet", "--quiet"]
        done = subprocess.run(
            [sys.executable, "-c", command, *arguments], capture_output=True, check=True, text=True
        )
        peak[rows] = int(done.stdout) / 1024
        filled = pyarrow.parquet.read_metadata("out.parquet")
        assert filled.num_rows == rows
    # At 2,000,000 rows the table alone takes 320 MB; ten times less grows by next to nothing.
    assert peak[200_000] < 2 * 1024
    assert peak[200_000] - peak[20_000] < 150


def test_a_folder_that_is_no_model_is_left_alone(people: Path, call: Call) -> None:
    Path("precious").mkdir()
    Path("precious/thesis.tex").write_text("years of work")
    result = call("impute", people, "-m", "precious", "--steps", 2)
    assert result.exit_code == 1
    assert "is no model" in result.stderr
    assert Path("precious/thesis.tex").read_text() == "years of work"
    assert write_people(Path("again.csv")).read_bytes() == people.read_bytes()
