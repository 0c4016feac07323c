import json
from pathlib import Path

import numpy as np
import pytest

from cli.conftest import Call
from postmatch import cluster_tables
from postmatch.cli import cluster as command
from postmatch.cli.cluster_map import to_plane
from postmatch.metrics import cluster_accuracy
from postmatch.tables import read_table

ROWS = 150
STEPS = ("--steps", 100, "--missing", "?")


def write_flowers(path: Path) -> list[int]:
    """Write rows of two kinds, with holes, and return the kind of each."""
    random = np.random.default_rng(0)
    kind = (np.arange(ROWS) % 3 == 0).astype(int)
    lines = ["id,width,height,colour"]
    for i in range(ROWS):
        width = "" if random.random() < 0.1 else f"{3 + 4 * kind[i] + random.normal():.2f}"
        height = "" if random.random() < 0.1 else f"{20 + 9 * kind[i] + 2 * random.normal():.1f}"
        colour = "?" if random.random() < 0.1 else ("red", "blue")[kind[i]]
        lines.append(f"f{i:03d},{width},{height},{colour}")
    path.write_text("\n".join([*lines, ""]))
    return kind.tolist()


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    write_flowers(tmp_path / "flowers.csv")
    return tmp_path / "flowers.csv"


def test_a_table_gets_its_clusters_a_map_and_words_about_them(flowers: Path, call: Call) -> None:
    kind = write_flowers(flowers)
    wishes = ("-k", 2, *STEPS, "--probabilities")
    result = call("cluster", flowers, *wishes)
    assert result.exit_code == 0, result.output
    before, after = read_table(flowers), read_table("flowers.clusters.csv")
    added = ["cluster", "probability", "probability_1", "probability_2"]
    assert after.column_names == [*before.column_names, *added]
    assert after.select(before.column_names).to_pylist() == before.to_pylist()
    found = np.array(after.column("cluster").to_pylist()).astype(int)
    assert cluster_accuracy(found - 1, kind) > 0.95
    assert (found == 1).sum() > (found == 2).sum()
    each = np.array([[float(row[name]) for name in added[1:]] for row in after.to_pylist()])
    assert np.allclose(each[:, 1:].sum(1), 1.0, atol=2e-4)
    assert np.allclose(each[:, 0], each[:, 1:].max(1))
    assert np.array_equal(each[:, 1:].argmax(1) + 1, found)
    assert Path("flowers.clusters.png").read_bytes().startswith(b"\x89PNG")
    for words in (
        "2 clusters of 150 rows",
        "colour is blue in 100% (others",
        "width 7.",
        "67%",
        "(others",
    ):
        assert words in result.stdout, result.stdout
    assert "column 'id' looks like" in result.stderr


def test_the_number_is_found_and_told_to_programs(flowers: Path, call: Call) -> None:
    wishes = ("--most", 3, "-o", "out.csv", "--picture", "map.svg", "--json")
    result = call("cluster", flowers, *STEPS, *wishes)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [one["cluster"] for one in told["clusters"]] == [1, 2]
    assert sum(one["rows"] for one in told["clusters"]) == ROWS
    assert all(0.9 < one["certainty"] <= 1.0 for one in told["clusters"])
    assert told["outputs"] == ["out.csv", "map.svg"]
    assert "<svg" in Path("map.svg").read_text()
    assert not Path("out.png").exists()


def test_as_many_are_tried_and_taken_as_are_asked_for(
    flowers: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def count(codes: object, most: int, seed: int) -> int:
        tried.append(most)
        return 3

    monkeypatch.setattr(cluster_tables, "count_clusters", count)
    told = json.loads(call("cluster", flowers, "--steps", 2, "--most", 7, "--json").stdout)
    assert (tried, len(told["clusters"])) == ([7], 3)


def test_the_seed_brings_the_answer_back_and_quiet_says_nothing(flowers: Path, call: Call) -> None:
    for name in ("a", "b"):
        options = ("-k", 2, "--steps", 2, "-o", f"{name}.csv", "--no-picture", "--quiet")
        result = call("cluster", flowers, *options, "--seed", 5)
        assert (result.exit_code, result.stdout) == (0, "")
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()
    assert not list(Path().glob("*.png"))


def test_stdin_goes_to_stdout_and_nothing_else_does(flowers: Path, call: Call) -> None:
    options = ("-k", 2, "--steps", 2)
    call("cluster", flowers, *options, "-o", "a.csv")
    result = call("cluster", "-", *options, stdin=flowers.read_bytes())
    assert result.exit_code == 0, result.output
    assert result.stdout_bytes == Path("a.csv").read_bytes()
    assert "2 clusters of 150 rows" in result.stderr


def test_a_name_that_is_taken_gets_a_number(flowers: Path, call: Call) -> None:
    flowers.write_text(flowers.read_text().replace("id,width", "cluster,width"))
    call("cluster", flowers, "-k", 2, "--steps", 2, "-o", "a.csv", "--no-picture")
    names = read_table("a.csv").column_names
    assert names == ["cluster", "width", "height", "colour", "cluster (2)", "probability"]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("-k", "some"), 2, "--clusters must be a whole number or auto"),
        (("-k", "0"), 1, "error: --clusters must be a whole number from 1"),
        (("-k", "900"), 1, "error: --clusters must be at most the number of rows"),
        (("--start", "luck"), 1, "error: --start must be one of mixture, connected, got 'luck'"),
        (("--picture", "map.gif"), 2, "--picture must end in .png or .svg or .pdf"),
        (("--picture", "a.png", "--no-picture"), 2, "exclude each other"),
        (("--ignore", "nothing"), 1, "error: --ignore: "),
        (("-o", "flowers.csv"), 2, "never overwritten"),
        (("-o", "-", "--json"), 2, "both want stdout"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_lost(
    options: tuple[str, ...], code: int, message: str, flowers: Path, call: Call
) -> None:
    before = flowers.read_bytes()
    Path("flowers.clusters.csv").write_text("old")
    result = call("cluster", flowers, "--steps", 2, *options)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert Path("flowers.clusters.csv").read_text() == "old"
    assert flowers.read_bytes() == before


def test_without_matplotlib_there_is_no_map_and_asking_for_one_says_why(
    flowers: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    result = call("cluster", flowers, "-k", 2, "--steps", 2)
    assert result.exit_code == 0, result.output
    assert "a map needs matplotlib" in result.stderr
    assert Path("flowers.clusters.csv").exists()
    asked = call("cluster", flowers, "-k", 2, "--steps", 2, "--picture", "map.png")
    assert asked.exit_code == 1
    assert "error: a map needs matplotlib: pip install" in asked.stderr


def test_help_has_examples(call: Call) -> None:
    assert "postmatch cluster people.csv -k 4" in call("cluster", "--help").stdout


def test_a_map_keeps_the_two_widest_directions() -> None:
    random = np.random.default_rng(0)
    wide = random.normal(size=(500, 3)) * [9.0, 0.1, 3.0]
    turn = np.linalg.qr(random.normal(size=(3, 3)))[0]
    flat, parts = to_plane(wide @ turn + 7.0)
    assert np.allclose(np.sort(flat.std(0)), [wide[:, 2].std(), wide[:, 0].std()], rtol=0.01)
    assert abs(np.corrcoef(flat[:, 0], wide[:, 0])[0, 1]) > 0.99
    variance = wide.var(0) / wide.var(0).sum()
    assert parts == [f"{variance[i]:.0%} of the variance" for i in (0, 2)]
