"""The model of a command: the one kept in a folder, or one fitted on the table itself."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postmatch.cli.files import Source, check_writable_place
from postmatch.cli.groups import Columns, Fitting, spelled
from postmatch.cli.session import Session

if TYPE_CHECKING:
    from postmatch.models import TableModel
    from postmatch.training.plan import Progress


SAME = ("categorical", "ordered", "numeric", "ignore", "missing", "quick", "seed")
TYPED = {name: f"--{name}" for name in SAME} | {
    "max_steps": "--steps",
    "max_seconds": "--max-minutes, in seconds",
}


def obtain(
    here: Session, source: Source, folder: Path | None, columns: Columns, fitting: Fitting
) -> tuple["TableModel", Source]:
    """Return the model, and the table: in memory if a model had to be fitted on it."""
    if folder is not None and _is_model(folder):
        model = loaded(here, folder)
        here.say(f"Using the model in {folder}.")
        _tell_notes(here, model)
        asked = [word for word in spelled(columns, fitting) if word.startswith("--")]
        if asked:
            here.warn(
                f"{', '.join(dict.fromkeys(asked))}: of no use with a fitted model; "
                f"remove {folder} to fit anew"
            )
        return model, source
    check_folder(folder)
    source = source.read()
    model = fitted(here, source.data, columns, fitting)
    if folder is not None:
        keep(here, model, folder)
    return model, source


def fitted(
    here: Session,
    data: Any,
    columns: Columns,
    fitting: Fitting,
    checkpoints: Path | None = None,
    *,
    resume: bool = False,
    tensorboard: Path | None = None,
) -> "TableModel":
    """Fit a model on a table, showing progress and what the user should hear about."""
    from postmatch.models import fit_table

    told, limits = columns.told, fitting.limits
    with as_typed(), _shown(here, tensorboard) as show:
        model = fit_table(
            data,
            **told,
            **limits,
            seed=here.running.seed,
            device=here.running.device,
            checkpoints=checkpoints,
            resume=resume,
            show=show,
        )
    here.settle()
    _tell_notes(here, model)
    _judge(model, data, here.running.seed)
    return model


@contextlib.contextmanager
def _shown(here: Session, tensorboard: Path | None) -> Iterator[Callable[["Progress"], None]]:
    """Yield what shows a fit's progress as a bar, and to TensorBoard if that is wanted."""
    from postmatch.training.progress import in_turn, progress_bar
    from postmatch.training.tensorboard import tensorboard_log

    with contextlib.ExitStack() as stack:
        listeners = []
        if tensorboard is not None:
            listeners.append(stack.enter_context(tensorboard_log(tensorboard)))
            here.say(f"tensorboard --logdir {tensorboard} shows how the fit goes.")
        listeners.append(stack.enter_context(progress_bar("Fitting", quiet=here.quiet)))
        yield in_turn(*listeners)


@contextlib.contextmanager
def as_typed() -> Iterator[None]:
    """Let errors about an option name it as it is typed."""
    try:
        yield
    except (ValueError, TypeError) as error:
        name, colon, rest = str(error).partition(":")
        if colon and name in TYPED:
            raise ValueError(f"{TYPED[name]}:{rest}") from error
        raise


def _tell_notes(here: Session, model: "TableModel") -> None:
    for note in model.table.notes:
        here.say(f"Note: {note}")


def _judge(model: "TableModel", data: Any, seed: int) -> None:
    """Put into the model's facts how well it told the cells it was not trained on."""
    from postmatch.cli.evidence import judge

    evidence = judge(model, *model.table.encode(data), seed, num_draws=0)
    if evidence.fresh:
        model.facts["held_out"] = evidence.to_json()


def loaded(here: Session, folder: Path) -> "TableModel":
    """Return the model kept in a folder."""
    from postmatch.saving import load

    if not _is_model(folder):
        raise FileNotFoundError(f"{folder}: there is no model here; postmatch fit makes one")
    return load(folder.resolve(), device=here.running.device)


def keep(here: Session, model: "TableModel", folder: Path, *, slim: bool = False) -> None:
    """Save a model and say where."""
    from postmatch.saving import save

    save(model, folder, slim=slim)
    here.say(f"The model is kept in {folder}{', in half precision' if slim else ''}.")


def check_folder(folder: Path | None) -> None:
    """Raise unless a model can be kept there, before minutes go into fitting it."""
    if folder is None:
        return
    place = folder.resolve()
    full = place.is_dir() and any(place.iterdir())
    if (place.exists() and not place.is_dir()) or (full and not _is_model(folder)):
        raise ValueError(f"{folder} is there already and is no model, so it is left alone")
    above = next(parent for parent in place.parents if parent.exists())
    check_writable_place(above / place.name, folder)


def _is_model(folder: Path) -> bool:
    from postmatch.saving import is_model

    place = folder.resolve()  # which has a name, as . has not
    return place.name != "" and is_model(place)
