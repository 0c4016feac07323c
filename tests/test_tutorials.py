"""The tutorials run, cell by cell, at a small size."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.py"))
NEEDED = {"diffusers_vae": "diffusers", "table_vae": "pandas"}


def cells(path: Path) -> list[str]:
    """Return the cells of code of a file in the percent format of jupytext."""
    parts = re.split(r"^# %%", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return ["#" + part for part in parts if not part.startswith(" [markdown]")]


def test_there_are_three() -> None:
    names = [path.stem for path in TUTORIALS]
    assert names == ["diffusers_vae", "plain_vae", "table_vae"]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_says_what_it_found(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if path.stem in NEEDED:
        pytest.importorskip(NEEDED[path.stem])
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {"__name__": path.stem}
    with torch.random.fork_rng():
        for cell in cells(path):
            small = re.sub(r"^(\w+_(STEPS|ROWS)) = .*$", r"\1 = 3", cell, flags=re.MULTILINE)
            exec(compile(small, path.name, "exec"), names)
    assert names["ATTACHING_STEPS"] == 3
    told = capsys.readouterr().out.splitlines()
    assert len(told) >= 2
    assert not [line for line in told if "nan" in line or "False" in line]
