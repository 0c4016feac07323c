"""``postmatch reproduce``: the experiments of the paper, with its settings and with ours."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table as Grid

from postmatch.cli.groups import Running
from postmatch.cli.reproduce_options import (
    CheckpointFolder,
    EvaluateOnly,
    MaxMinutes,
    ResultFolder,
    check_alone,
    check_output,
)
from postmatch.cli.session import session

if TYPE_CHECKING:
    from postmatch.data.uci import Name

_ON_GPU, _ON_CPU = (10_000, 1_000), (1_000, 100)  # test rows, and draws of z for each
UCI_EXAMPLES = """
    postmatch reproduce uci --dataset bsds --preset best
    postmatch reproduce uci --dataset gas --preset paper --max-minutes 30
    postmatch reproduce uci --dataset gas --evaluate-only          scores of the weights kept
"""


def uci(
    running: Running,
    dataset: Annotated[
        str, typer.Option(metavar="NAME", help="power, gas, hepmass, miniboone or bsds.")
    ] = "gas",
    preset: Annotated[
        str,
        typer.Option(metavar="NAME", help="Whose settings: paper, published-code, or ours: best."),
    ] = "best",
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Fewer updates than the preset has.")
    ] = None,
    max_minutes: MaxMinutes = 0.0,
    test_rows: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="How many test rows are judged: 10,000 on a GPU, else 1,000."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="K", min=2, help="Draws of z per row, an even number: 1,000 on a GPU, else 100."
        ),
    ] = None,
    evaluate_only: EvaluateOnly = False,
    checkpoints: CheckpointFolder = None,
    output: ResultFolder = Path("results"),
) -> None:
    """Train and judge the densities of the paper's table 2; POSTMATCH_DATA names the data.

    log_prob bounds from below the density that samples are drawn from; its gap says how tight that
    is; log_prob_ratio is the paper's own estimate, which a poor model can raise. The weights are
    kept in half precision in DIR/weights, and it is these that are judged.
    """
    from postmatch.models import device_of
    from postmatch.recipes import uci_run
    from postmatch.training.plan import Progress
    from postmatch.training.progress import progress_bar

    which: Any = (dataset, preset, output)
    with session(running) as here:
        device = device_of(running.device)
        if evaluate_only:
            training = {"--steps": steps, "--max-minutes": max_minutes}
            check_alone("--evaluate-only", training | {"--checkpoints": checkpoints})
        check_output(output)
        default_rows, default_samples = _ON_GPU if device.type == "cuda" else _ON_CPU
        if not evaluate_only:
            with progress_bar("Training", quiet=here.quiet) as show:
                uci_run.train(
                    *which,
                    steps=steps,
                    seed=running.seed,
                    max_seconds=60.0 * max_minutes,
                    device=device,
                    checkpoints=checkpoints,
                    show=show,
                )
        with progress_bar("Judging", quiet=here.quiet) as show:
            result = uci_run.evaluate(
                *which,
                test_rows=test_rows or default_rows,
                num_samples=samples or default_samples,
                device=device,
                show=lambda part: show(Progress(part, 0, 0.0, {}, None)),
            )
        here.settle()
        here.show(_row(result))
        here.result(result)


def _row(result: dict[str, Any]) -> Grid:
    """Return the result beside what others have published on the whole data set."""
    from postmatch.recipes.uci_run import QUOTED

    name: Name = result["dataset"]
    grid = Grid(box=box.SIMPLE_HEAD, title=f"{name}: hidden half given the other half")
    grid.add_column("method")
    for title in ("log-likelihood (nats)", "of which", "NRMSE"):
        grid.add_column(title, justify="right")
    metrics = result["metrics"]
    grid.add_row(
        f"postmatch, {result['preset']}",
        f"{metrics['log_prob']:.3f}",
        f"bound, gap {metrics['log_prob_gap']:.3f}",
        f"{metrics['nrmse']:.3f}",
    )
    counts = [k.rpartition("_")[2] for k in metrics if k.startswith("log_prob_ratio")]
    for count in sorted(int(c) for c in counts if c != "std"):
        shape = metrics.get(f"pareto_k_{count}", math.nan)
        told = f"ratio, K = {count:,}, Pareto k {shape:.2f}"
        grid.add_row("", f"{metrics[f'log_prob_ratio_{count}']:.3f}", told, "")
    for method, scores in QUOTED.items():
        likelihood, error = scores[name]
        grid.add_row(f"{method} (quoted)", f"{likelihood:.3f}", "as published", f"{error:.3f}")
    return grid
