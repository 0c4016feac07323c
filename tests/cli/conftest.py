"""A small table on disk, a model of it, and a way to call a command."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from postmatch import save
from postmatch.cli.app import app
from postmatch.tables import read_table
from small_models import fit_small

Call = Callable[..., Result]
ROWS = 300


def write_people(path: Path, rows: int = ROWS) -> Path:
    random = np.random.default_rng(3)
    size = random.normal(size=rows)
    lines = ["id,age,town,size,note"]
    for i in range(rows):
        age = "" if random.random() < 0.2 else f"{40 + 10 * size[i]:.1f}"
        town = "?" if random.random() < 0.2 else ("Aix", "Bonn")[int(size[i] > 0)]
        shirt = "NA" if random.random() < 0.1 else "SML"[int(np.clip(size[i] + 1.5, 0, 2))]
        lines.append(f"{i + 1:04d},{age},{town},{shirt},free text {random.random():.6f}")
    path.write_text("\n".join([*lines, ""]))
    return path


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return write_people(tmp_path / "people.csv")


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the table, kept in a folder; tests must not change it."""
    folder = tmp_path_factory.mktemp("models")
    data = read_table(write_people(folder / "people.csv"))
    save(fit_small(data, steps=250, ordered={"size": ["S", "M", "L"]}), folder / "people.model")
    return folder / "people.model"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call a command in an empty folder, on the CPU."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return run
