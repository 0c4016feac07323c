"""Two processes that train together end where one process ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from postmatch.saving import load
from postmatch.training import parallel

PROGRAM = """
import sys
from pathlib import Path

import torch
from torch import nn

from postmatch.training import parallel
from postmatch.training.checkpoints import Checkpoints
from postmatch.training.engine import train
from postmatch.training.plan import Plan

torch.set_num_threads(1)
folder = Path(sys.argv[1])
with parallel.together():
    me, count = parallel.rank(), parallel.num_processes()
    torch.manual_seed(7 if me == 0 else 8)  # the first process's weights count
    net = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    mine, asked = x[me::count], 0

    def loss(fraction):
        return {"square": (net(mine) - mine.flip(1)).square().mean()}

    def validate():
        return float((net(x) - x.flip(1)).square().mean()) + 100.0 * me  # they must agree

    def stop():
        global asked
        asked += 1
        return me == 1 and asked == 35  # one process alone is told to stop

    plan = Plan(60, learning_rate=0.01, orthogonal_rate=0.01, validate_every=10, max_seconds=600.0)
    places = Checkpoints(folder / "states", "data")
    report = train(net, loss, plan, validate=validate, checkpoints=places, stop=stop)
    cut = report.steps
    report = train(net, loss, plan, validate=validate, checkpoints=places)
    found = {"weights": [p.detach() for p in net.parameters()], "history": report.history,
             "cut": cut, "stopped_by": report.stopped_by}
    torch.save(found, folder / f"{count}-{me}.pt")
# Threads of a group that is left would meet a Python that shuts down.
left = {task.joinpath("comm").read_text() for task in Path("/proc/self/task").glob("*")}
assert count == 1 or not any("gloo" in name for name in left), left
"""


def start(processes: int, *arguments: object) -> None:
    """Run a program as ``torchrun`` does, or alone."""
    run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(run if processes > 1 else []), *map(str, arguments)]
    clean = {k: v for k, v in os.environ.items() if k not in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}}
    done = subprocess.run(
        command, env={**clean, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[torch.Tensor]]]:
    """Return what one process alone and two together end with."""
    folder = tmp_path_factory.mktemp("parallel")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    results = {}
    for processes in (1, 2):
        place = folder / str(processes)
        place.mkdir()
        start(processes, program, place)
        results |= {path.stem: torch.load(path) for path in place.glob("*.pt")}
    return results


def test_two_processes_end_where_one_does(found: dict[str, dict[str, list[torch.Tensor]]]) -> None:
    for alone, together in zip(found["1-0"]["weights"], found["2-0"]["weights"], strict=True):
        assert_close(together, alone, atol=1e-5, rtol=0.0)
    scores = [[score for _, score in found[name]["history"]] for name in ("1-0", "2-0")]
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)
    assert scores[0][-1] < 0.95 * scores[0][0]  # something was learned


def test_all_processes_hold_the_same_weights_and_decide_alike(
    found: dict[str, dict[str, list[torch.Tensor]]],
) -> None:
    for mine, theirs in zip(found["2-0"]["weights"], found["2-1"]["weights"], strict=True):
        assert torch.equal(mine, theirs)
    assert found["2-0"]["history"] == found["2-1"]["history"]
    assert (found["2-0"]["cut"], found["2-1"]["cut"]) == (35, 35)
    assert (found["1-0"]["cut"], found["2-1"]["stopped_by"]) == (60, "steps")


def test_a_process_alone_needs_no_others() -> None:
    values = torch.ones(3)
    parallel.average([values])
    parallel.share([values])
    assert torch.equal(values, torch.ones(3))
    assert (parallel.num_processes(), parallel.rank(), parallel.agreed(0.5)) == (1, 0, 0.5)
    assert parallel.any_of(True)
    assert not parallel.any_of(False)


def test_the_command_line_fits_one_model_in_two_processes(tmp_path: Path) -> None:
    table = Path(__file__).parent.parent / "examples" / "penguins.csv"
    start(2, "-m", "postmatch", "fit", table, "--steps", 6, "-o", tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert load(tmp_path / "model").facts["steps"] == 4 * 6
