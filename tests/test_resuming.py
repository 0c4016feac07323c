"""Fits of tables that are cut off: nothing learned is lost, and the end is the same."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from postmatch.models import TableModel, fit_table
from postmatch.training.plan import Progress
from postmatch.training.signals import signals_noted
from small_models import TINY, people

TWO = replace(TINY, num_members=2)
STEPS = 60


def fit(
    folder: Path | None, *, rows: int = 200, kill: int = 0, at: float = 1.0, resume: bool = False
) -> TableModel:
    """Fit two small members; send this process a signal when so much is done."""
    sent = False

    def show(progress: Progress) -> None:
        nonlocal sent
        if kill and not sent and progress.fraction >= at:
            sent = True
            os.kill(os.getpid(), kill)

    return fit_table(
        people(rows),
        config=TWO,
        max_steps=STEPS,
        device="cpu",
        checkpoints=folder,
        resume=resume,
        show=show,
    )


def weights(model: TableModel) -> dict[str, Tensor]:
    return model.model.state_dict()


@pytest.mark.parametrize("at", [0.1, 0.4, 0.7])
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_saves_first_and_resuming_ends_with_the_same_weights(
    tmp_path: Path, at: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    whole = weights(fit(None))
    folder = tmp_path / "unfinished"
    with pytest.raises(KeyboardInterrupt):
        fit(folder, kill=signal.SIGINT, at=at)
    assert any(folder.glob("member-*/step-*"))
    again = weights(fit(folder, resume=True))
    assert all(torch.equal(value, again[name]) for name, value in whole.items())


def test_sigterm_saves_first_too(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        fit(tmp_path / "unfinished", kill=signal.SIGTERM, at=0.3)
    assert ended.value.code == 128 + signal.SIGTERM
    assert any((tmp_path / "unfinished").glob("member-*/step-*"))


def test_what_was_cut_off_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    folder = tmp_path / "unfinished"
    with pytest.raises(KeyboardInterrupt):
        fit(folder, kill=signal.SIGINT, at=0.3)
    with pytest.raises(ValueError, match="unfinished training"):
        fit(folder)
    with pytest.raises(ValueError, match="other data"):
        fit(folder, rows=150, resume=True)
    assert any(folder.glob("member-*/step-*"))


def test_what_was_begun_is_not_resumed_with_other_options(tmp_path: Path) -> None:
    folder = tmp_path / "unfinished"
    options = {"config": TWO, "device": "cpu", "checkpoints": folder}

    def cut_off(_: Progress) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        fit_table(people(60), max_steps=9, ignore=["rooms"], show=cut_off, **options)
    for other, words in (
        ({"max_steps": 8, "ignore": ["rooms"]}, "max_steps: .* began with 9 and not with 8"),
        ({"max_steps": 9}, r"ignore: .* began with \[\"rooms\"\] and not with none; repeat"),
        ({"max_steps": 9, "ignore": ["rooms"], "seed": 1}, "seed: .* with 0 and not with 1"),
    ):
        with pytest.raises(ValueError, match=words):
            fit_table(people(60), resume=True, **other, **options)
    again = fit_table(people(60), max_steps=9, ignore=("rooms",), resume=True, **options)
    assert again.facts["steps"] == 2 * 9


def test_resume_needs_a_folder() -> None:
    with pytest.raises(ValueError, match="resume needs checkpoints"):
        fit(None, resume=True)


def test_a_second_signal_is_obeyed_at_once_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with signals_noted() as noted:
        os.kill(os.getpid(), signal.SIGINT)
        assert noted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
