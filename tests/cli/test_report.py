import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

from cli.conftest import Call
from postmatch import load
from postmatch.cli.evidence import ColumnEvidence, held_out, judge, telling_rows
from postmatch.cli.numbers import percents, ticks
from postmatch.models import TableModel
from postmatch.tables import Column, Table, read_table

VOID = {"meta", "br", "link"}


class Checker(HTMLParser):
    """Raises unless every tag is closed in its turn; collects what the page asks of the world."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.wanted: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.wanted += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


def test_the_page_is_whole_and_needs_no_other_file(people: Path, kept: Path, call: Call) -> None:
    result = call("report", people, "-m", kept, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    text = Path(told["output"]).read_text(encoding="utf-8")
    page = checked(text)
    assert page.wanted == []
    assert "url(" not in text
    assert page.tags.count("svg") > 8
    for heading in (
        "What is missing",
        "Observed and imputed",
        "Can it be trusted?",
        "A few rows, with their intervals",
        "What the columns were taken for",
        "What the answers assume",
    ):
        assert f"<h2>{html.escape(heading)}</h2>" in text
    assert set(told["held_out"]["columns"]) == {"age", "town", "size"}


def test_names_and_values_cannot_break_the_page(tmp_path: Path, call: Call) -> None:
    evil = "<script>alert(1)</script>"
    rows = [f'{i % 5},"{evil if i % 2 else "a&b"}",{i / 7:.3f}' for i in range(80)]
    rows[4], rows[9] = ",a&b,1.5", "3,?,2.5"
    (tmp_path / "evil.csv").write_text("\n".join(['"<b>n</b>",x&y,"z""\'>"', *rows, ""]))
    result = call("report", "evil.csv", "--steps", 2, "-o", "r.html")
    assert result.exit_code == 0, result.output
    text = Path("r.html").read_text(encoding="utf-8")
    page = checked(text)
    assert "script" not in page.tags
    assert html.escape(evil) in text
    assert "<b>n</b>" not in text


@pytest.mark.parametrize("wish", [(), ("--quick",)])  # several models together, and one
def test_a_model_fitted_here_is_judged_by_cells_it_never_learned_from(
    wish: tuple[str, ...], people: Path, call: Call
) -> None:
    call("report", people, "--steps", 10, "-m", "m", "-o", "own.html", *wish)
    text = Path("own.html").read_text(encoding="utf-8")
    assert "learned from" in text
    assert "kinder than the truth" not in text
    lines = people.read_text().splitlines()
    other = Path("other.csv")
    other.write_text("\n".join([lines[0], *reversed(lines[1:]), ""]))
    call("report", other, "-m", "m", "-o", "other.html")
    assert "kinder than the truth" in Path("other.html").read_text(encoding="utf-8")


def test_the_cells_to_judge_by_are_observed_and_about_a_tenth(people: Path, kept: Path) -> None:
    model = load(kept, device="cpu")
    x, observed = model.table.encode(read_table(people))
    hidden = held_out(model, x, observed)
    assert hidden is not None
    assert not (hidden & ~observed).any()
    share, cells = float(hidden.sum() / observed.sum()), int(observed.sum())
    assert abs(share - 0.1) < 4 * (0.09 / cells) ** 0.5


def test_cells_of_another_table_are_not_called_held_out(people: Path, kept: Path) -> None:
    model = load(kept, device="cpu")
    x, observed = model.table.encode(read_table(people))
    assert held_out(model, x.flip(0), observed.flip(0)) is None
    assert held_out(model, x[1:], observed[1:]) is None


def test_ranks_of_draws_from_the_truth_are_uniform_also_with_ties() -> None:
    random = np.random.default_rng(0)
    cells, samples = 4000, 99
    for values in (
        random.normal(size=(samples + 1, cells)),
        random.integers(0, 3, size=(samples + 1, cells)).astype(float),
    ):
        evidence = ColumnEvidence(
            Column("a", "numeric"),
            "a",
            truth=values[0],
            best=values[1:].mean(0),
            sure=np.ones(cells),
            ends=np.quantile(values[1:], [0.05, 0.95], axis=0),
            draws=values[1:],
            simple=0.0,
        )
        counts = np.histogram(evidence.ranks(1), 10, (0, 1))[0]
        # A chi-squared statistic with 9 degrees of freedom: 27.9 is its 99.9 % quantile.
        assert ((counts - cells / 10) ** 2 / (cells / 10)).sum() < 27.9


def test_the_best_guess_beats_the_simple_one_where_columns_agree(people: Path, kept: Path) -> None:
    model: TableModel = load(kept, device="cpu")
    x, observed = model.table.encode(read_table(people))
    evidence = judge(model, x, observed, 0)
    age = next(c for c in evidence.columns if c.column.name == "age")
    assert age.error < 0.9 * age.simple_error
    assert 0.0 <= evidence.covered <= 1.0


def test_the_report_judges_the_same_cells_as_the_fit_and_alike(tmp_path: Path, call: Call) -> None:
    values = np.random.default_rng(0).normal(size=(400, 6))
    lines = [",".join(f"{value:.3f}" for value in row) for row in values]
    (tmp_path / "normal.csv").write_text("\n".join(["a,b,c,d,e,f", *lines, ""]))
    fitted = json.loads(call("fit", "normal.csv", "--steps", 5, "-o", "m", "--json").stdout)
    told = json.loads(call("report", "normal.csv", "-m", "m", "--json").stdout)
    assert told["held_out"] == fitted["held_out"]
    assert told["held_out"]["cells"] > 200


def test_the_report_shows_what_is_filled_in_and_its_interval(
    people: Path, kept: Path, call: Call
) -> None:
    call("impute", people, "-m", kept, "--long", "-o", "long.csv")
    told = {(c["row"], c["column"]): c for c in read_table("long.csv").to_pylist()}
    call("report", people, "-m", kept, "-o", "r.html")
    text = Path("r.html").read_text(encoding="utf-8")
    shown = 0
    for row, block in re.findall(r'<h3>Row (\d+)</h3>(.*?)<div class="row">', text, re.DOTALL):
        for name, said in re.findall(r'"name">(\w+)</div>.*?"said">(.*?)</div>', block):
            cell = told[row, name]
            if name == "age":
                numbers = [
                    float(number) for number in re.findall(r"[\d.]+", said) if number != "90"
                ]
                expected = [float(cell[key]) for key in ("mean", "q05", "q95")]
                assert numbers == pytest.approx(expected, rel=5e-3)  # written with four digits
            else:
                level, percent = re.fullmatch(
                    r"<b>(.*)</b> .*with probability (\d+)%", said
                ).groups()  # type: ignore[union-attr]
                assert level == cell["mean"]
                # Rounded so that all levels add up to 100.
                assert abs(int(percent) - 100 * float(cell["probability"])) < 1.0
            shown += 1
    assert shown >= 5


def test_shares_of_levels_sum_to_a_hundred() -> None:
    for shares in ([0.545, 0.455], [1 / 3, 1 / 3, 1 / 3], [0.125] * 8):
        assert sum(float(text[:-1]) for text in percents(np.array(shares))) == 100


def test_the_foot_of_a_page_says_how_to_make_it_again(people: Path, call: Call) -> None:
    wishes = ("--ignore", "note", "--steps", 5, "--seed", 3, "--quiet")
    call("report", people, "-m", "m", "-o", "r.html", *wishes)
    foot = Path("r.html").read_text(encoding="utf-8").partition("<footer>")[2]
    assert "4 models x 5 steps" in foot
    assert "postmatch report people.csv -m m --ignore note --steps 5 --seed 3<" in foot


def test_rows_to_show_have_holes_in_different_columns() -> None:
    observed = torch.ones(6, 3, dtype=torch.bool)
    observed[0, 0] = observed[1, 0] = observed[2, 0] = observed[4, 1] = observed[5, 2] = False
    rows = torch.tensor([0, 1, 2, 4, 5])
    assert telling_rows(observed, rows, 3).tolist() == [0, 4, 5]


def test_a_table_without_holes_and_one_with_dates_have_a_page(tmp_path: Path, call: Call) -> None:
    days = [f"2024-{1 + i % 12:02d}-{1 + i % 28:02d},{i % 9}" for i in range(50)]
    (tmp_path / "full.csv").write_text("\n".join(["day,n", *days, ""]))
    assert call("report", "full.csv", "--steps", 2).exit_code == 0
    assert "every cell is there" in Path("full.report.html").read_text(encoding="utf-8")
    days[5], days[6] = ",3", "2024-05-05,"
    (tmp_path / "gaps.csv").write_text("\n".join(["day,n", *days, ""]))
    assert call("report", "gaps.csv", "--steps", 2).exit_code == 0
    text = Path("gaps.report.html").read_text(encoding="utf-8")
    assert "2024-01-01 to 2024-12-24" in text


def test_an_old_page_survives_a_failure(
    people: Path, kept: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("r.html").write_text("old")
    monkeypatch.setattr(Table, "encode", lambda *_: 1 / 0)
    result = call("report", people, "-m", kept, "-o", "r.html")
    assert result.exit_code == 1
    assert "ZeroDivisionError" in result.stderr
    assert Path("r.html").read_text() == "old"


def test_ticks_are_round_and_inside() -> None:
    random = np.random.default_rng(0)
    for low, width in zip(
        random.normal(size=50) * 1e3, 10 ** random.uniform(-3, 6, 50), strict=True
    ):
        marks = ticks(low, low + width)
        assert 1 <= len(marks) <= 5
        assert all(low - 1e-6 <= mark <= low + width + 1e-6 for mark in marks)
