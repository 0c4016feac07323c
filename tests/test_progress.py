"""The bar that follows a run."""

import pytest

from postmatch.training.plan import Progress
from postmatch.training.progress import progress_bar


def follow(*, quiet: bool) -> None:
    with progress_bar("Fitting", quiet=quiet) as show:
        show(Progress(0.25, 1_250, 10.0, {"vae": 3.0}, None))
        show(Progress(1.0, 5_000, 40.0, {"vae": 2.0}, 1.5))


def test_a_terminal_shows_label_share_step_and_score_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    follow(quiet=False)
    captured = capsys.readouterr()
    assert captured.out == ""
    for part in ("Fitting", "100%", "step 5,000", "125/s", "vae 2.00", "held out 1.500"):
        assert part in captured.err


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_shown_if_quiet_or_to_a_pipe(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    follow(quiet=terminal)
    assert capsys.readouterr() == ("", "")
