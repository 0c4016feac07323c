"""What TensorBoard reads is what the run told."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from postmatch import fit_table
from postmatch.training import parallel
from postmatch.training.plan import Progress
from postmatch.training.progress import in_turn
from postmatch.training.tensorboard import tensorboard_log
from small_models import TINY, people

MESSAGE = "--tensorboard needs the package tensorboard: pip install 'postmatch[tensorboard]'"


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the points of every scalar of a run, as TensorBoard would draw them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    return {
        name: [(point.step, point.value) for point in read.Scalars(name)]
        for name in read.Tags()["scalars"]
    }


def told(step: int, seconds: float, loss: float, score: float | None, at: int | None) -> Progress:
    return Progress(0.5, step, seconds, {"vae": loss}, score, at)


def test_scalars_are_loss_terms_steps_per_second_and_scores_where_they_were_judged(
    tmp_path: Path,
) -> None:
    with tensorboard_log(tmp_path) as show:
        show(told(10, 1.0, 4.0, 2.0, 0))
        show(told(20, 1.5, 3.5, 2.0, 0))  # too soon after the last
        show(told(60, 3.5, 3.0, 2.0, 0))
        show(told(70, 4.0, 2.5, 1.5, 65))
        show(told(80, 6.0, 2.0, 1.5, 65))  # the end, which is never left out
    found = scalars(tmp_path / "member-0")
    assert found == {
        "loss/vae": [(10, 4.0), (60, 3.0), (70, 2.5), (80, 2.0)],
        "steps_per_second": [(10, 10.0), (60, 20.0), (70, 20.0), (80, 5.0)],
        "validation": [(0, 2.0), (65, 1.5)],
    }


def test_every_member_of_a_fit_has_a_run_of_its_own(tmp_path: Path) -> None:
    heard: list[Progress] = []
    with tensorboard_log(tmp_path) as show:
        fit_table(
            people(60),
            config=replace(TINY, num_members=2),
            max_steps=5,
            device="cpu",
            show=in_turn(show, heard.append),
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["member-0", "member-1"]
    assert sorted(progress.member for progress in heard) == [0, 1]
    for last in heard:
        found = scalars(tmp_path / f"member-{last.member}")
        assert set(last.losses) >= {"vae", "match"}
        for name, value in last.losses.items():
            assert found[f"loss/{name}"] == [(5, pytest.approx(value, rel=1e-6))]
        assert found["validation"] == [(5, pytest.approx(last.validation, rel=1e-6))]
        assert found["steps_per_second"] == [(5, pytest.approx(5 / last.seconds, rel=1e-6))]


def test_a_run_that_goes_on_replaces_what_was_written_after_its_checkpoint(tmp_path: Path) -> None:
    with tensorboard_log(tmp_path) as show:
        for step in (50, 100, 150, 200):
            show(told(step, step / 10, 3.0, None, None))
    with tensorboard_log(tmp_path) as show:
        for step in (110, 160):
            show(told(step, step / 10, 2.0, None, None))
    found = scalars(tmp_path / "member-0")
    assert found["loss/vae"] == [(50, 3.0), (100, 3.0), (110, 2.0), (160, 2.0)]


def test_what_was_told_before_an_error_is_written(tmp_path: Path) -> None:
    def cut_off() -> None:
        with tensorboard_log(tmp_path) as show:
            show(told(10, 1.0, 4.0, None, None))
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        cut_off()
    assert scalars(tmp_path / "member-0")["loss/vae"] == [(10, 4.0)]


def test_of_several_processes_only_the_first_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "rank", lambda: 1)
    with tensorboard_log(tmp_path) as show:
        show(told(10, 1.0, 4.0, None, None))
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    with pytest.raises(ImportError) as raised, tensorboard_log(tmp_path):
        pass
    assert str(raised.value) == MESSAGE
