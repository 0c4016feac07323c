"""``postmatch reproduce``: the experiments of the paper, with its settings and with ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table as Grid

from postmatch.cli.groups import Running
from postmatch.cli.session import session

if TYPE_CHECKING:
    from postmatch.data.uci import Name

UCI_EXAMPLES = """
    postmatch reproduce uci --dataset bsds --preset best
    postmatch reproduce uci --dataset gas --preset paper --max-minutes 30
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
    max_minutes: Annotated[
        float, typer.Option(metavar="M", min=0.0, help="Train no longer than this; 0: no limit.")
    ] = 0.0,
    test_rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="How many test rows are judged at most.")
    ] = 10_000,
    samples: Annotated[
        int, typer.Option(metavar="K", min=2, help="Draws of z per row; an even number.")
    ] = 1_000,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where the result goes.")
    ] = Path("results"),
) -> None:
    """Train and judge the densities of the paper's table 2; POSTMATCH_DATA names the data.

    log_prob bounds from below the density that samples are drawn from; its gap says how tight that
    is; log_prob_ratio is the paper's own estimate, which a poor model can raise.
    """
    from postmatch.models import device_of
    from postmatch.recipes.uci_run import run
    from postmatch.training.progress import progress_bar

    with session(running) as here:
        with progress_bar("Training", quiet=here.quiet) as show:
            result = run(
                dataset,  # type: ignore[arg-type]
                preset,  # type: ignore[arg-type]
                steps=steps,
                test_rows=test_rows,
                num_samples=samples,
                seed=running.seed,
                max_seconds=60.0 * max_minutes,
                device=device_of(running.device),
                folder=output,
                show=show,
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
    for key in sorted(k for k in metrics if k.startswith("log_prob_ratio") and "std" not in k):
        grid.add_row("", f"{metrics[key]:.3f}", f"ratio, K = {key.rpartition('_')[2]}", "")
    for method, scores in QUOTED.items():
        likelihood, error = scores[name]
        grid.add_row(f"{method} (quoted)", f"{likelihood:.3f}", "as published", f"{error:.3f}")
    return grid
