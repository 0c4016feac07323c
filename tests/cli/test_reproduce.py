"""What the ``postmatch reproduce`` commands share: they fail before a training, not after it."""

import sys
from pathlib import Path

import pytest

from postmatch.cli import main

COMMANDS = ("uci", "inpainting", "mnist-latent", "acquisition", "clustering")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_result_that_cannot_be_written_is_told_before_data_are_read(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("POSTMATCH_DATA", raising=False)  # so that a training could not begin
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main(["reproduce", command, "-q", "-o", str(output)]) == 1
        assert f"--output must be a folder, and {output} is not one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "module", "message"),
    [
        ("inpainting", "PIL", "pip install 'postmatch[images]'"),
        ("acquisition", "matplotlib", "pip install 'postmatch[plot]'"),
        ("clustering", "matplotlib", "pip install 'postmatch[plot]'"),
        ("mnist-latent", "matplotlib", "postmatch[plot]'; until then weights are kept"),
        ("mnist-latent", "umap", "postmatch[umap]'; until then weights are kept"),
    ],
)
def test_what_pictures_need_is_told_before_data_are_read(
    command: str,
    module: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("POSTMATCH_DATA", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["reproduce", command, "-q", "-o", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "flag", "options", "named"),
    [
        ("uci", "--evaluate-only", ["--steps", "3"], "--steps"),
        ("inpainting", "--evaluate-only", ["--go-on"], "--go-on"),
        (
            "inpainting",
            "--evaluate-only",
            ["--max-minutes", "2", "--checkpoints", "x"],
            "--max-minutes, --checkpoints",
        ),
        ("mnist-latent", "--draw-only", ["--steps", "3"], "--steps"),
    ],
)
def test_options_of_a_training_are_refused_where_nothing_is_trained(
    command: str,
    flag: str,
    options: list[str],
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reproduce", command, flag, *options, "-q", "-o", str(tmp_path)]) == 1
    expected = f"{flag} trains nothing, so that {named} cannot be asked for"
    assert expected in capsys.readouterr().err
