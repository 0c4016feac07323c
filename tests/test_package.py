"""The public names."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import postmatch

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", postmatch.__all__)
def test_every_public_name_is_there_and_has_a_docstring(name: str) -> None:
    assert getattr(postmatch, name).__doc__
    assert name in dir(postmatch)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = postmatch.nothing


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert postmatch.__version__ == project["version"]


def test_importing_loads_neither_torch_nor_scikit_learn() -> None:
    code = f"import sys; sys.path[:] = {sys.path!r}; import postmatch; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "sklearn", "pyarrow", "pandas"} & set(done.stdout.split())
