"""The model of a command: the one kept in a folder, or one fitted on the table itself."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from postmatch.cli.files import Source
from postmatch.cli.groups import Fitting
from postmatch.cli.session import Session

if TYPE_CHECKING:
    from postmatch.models import TableModel


def obtain(
    here: Session, source: Source, folder: Path | None, fitting: Fitting
) -> tuple["TableModel", Source]:
    """Return the model, and the table: in memory if a model had to be fitted on it."""
    if folder is not None:
        from postmatch.saving import is_model
    if folder is not None and is_model(folder):
        model = loaded(here, folder)
        here.say(f"Using the model in {folder}.")
        if fitting.asked:
            here.warn(
                f"{', '.join(fitting.asked)}: of no use with a fitted model; "
                f"remove {folder} to fit anew"
            )
        return model, source
    check_folder(folder)
    source = source.read()
    model = fitted(here, source.data, fitting)
    if folder is not None:
        keep(here, model, folder)
    return model, source


def fitted(
    here: Session,
    data: Any,
    fitting: Fitting,
    checkpoints: Path | None = None,
    *,
    resume: bool = False,
) -> "TableModel":
    """Fit a model on a table, showing progress and what the user should hear about."""
    from postmatch.models import fit_table
    from postmatch.training.progress import progress_bar

    running = here.running
    with progress_bar("Fitting", quiet=here.quiet) as show:
        model = fit_table(
            data,
            **fitting.columns,
            max_steps=fitting.steps,
            max_seconds=None if fitting.max_minutes is None else 60.0 * fitting.max_minutes,
            quick=fitting.quick,
            seed=running.seed,
            device=running.device,
            checkpoints=checkpoints,
            resume=resume,
            show=show,
        )
    for note in model.table.notes:
        here.say(f"Note: {note}")
    _judge(model, data, running.seed)
    return model


def _judge(model: "TableModel", data: Any, seed: int) -> None:
    """Put into the model's facts how well it told the cells it was not trained on."""
    from postmatch.cli.evidence import judge

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cells that cannot be used, fitting told already
        evidence = judge(model, *model.table.encode(data), seed, num_draws=64, most_rows=500)
    if evidence.fresh:
        model.facts["held_out"] = evidence.to_json()


def loaded(here: Session, folder: Path) -> "TableModel":
    """Return the model kept in a folder."""
    from postmatch.saving import is_model, load

    if not is_model(folder):
        raise FileNotFoundError(f"{folder}: there is no model here; postmatch fit makes one")
    return load(folder, device=here.running.device)


def keep(here: Session, model: "TableModel", folder: Path) -> None:
    """Save a model and say where."""
    from postmatch.saving import save

    save(model, folder)
    here.say(f"The model is kept in {folder}.")


def check_folder(folder: Path | None) -> None:
    """Raise unless a model can be kept there, before minutes go into fitting it."""
    if folder is not None and not folder.resolve().parent.is_dir():
        raise typer.BadParameter(f"--model {folder}: there is no folder {folder.parent}")
    if folder is not None and folder.exists():
        from postmatch.saving import is_model

        if not folder.is_dir() or (any(folder.iterdir()) and not is_model(folder)):
            raise ValueError(f"{folder} is there already and is no model, so it is left alone")
