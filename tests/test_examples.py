"""The examples run, at a small size."""

import sys
from pathlib import Path

import pytest
from sklearn import datasets
from sklearn.utils import Bunch

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_digits_are_clustered_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import cluster_digits

    digits = datasets.load_digits()
    few = Bunch(images=digits.images[:150], target=digits.target[:150])
    monkeypatch.setattr(cluster_digits, "load_digits", lambda: few)
    monkeypatch.setattr(cluster_digits, "BATCH", 32)
    picture = tmp_path / "digits.png"
    words = ["cluster_digits.py", "--output", str(picture), "--steps", "120"]
    monkeypatch.setattr(sys, "argv", words)
    cluster_digits.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[0] for words in lines] == ["5%", "10%", "20%", "30%", "50%", "75%", "100%"]
    assert float(lines[-1][-1]) > float(lines[0][-1])  # more is seen of a digit
    assert picture.read_bytes().startswith(b"\x89PNG")
