"""``postmatch cluster``: which rows of a table belong together, and how surely."""

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postmatch.cli.files import Source, check_outputs, check_place, output_for
from postmatch.cli.groups import Columns, Fitting, OutputOption, Reading, Running, TableArgument
from postmatch.cli.models import as_typed
from postmatch.cli.session import Session, session

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from postmatch.cluster_tables import ClusteredTable

    Floats = NDArray[np.float64]

EXAMPLES = """
    postmatch cluster people.csv                       writes people.clusters.csv and .png
    postmatch cluster people.csv -k 4 -o out.csv --probabilities
    postmatch cluster people.csv -k auto --most 20 --ignore id --picture map.png
    postmatch cluster rings.csv -k 2 --start connected --quick
"""
TYPED = {"n_clusters": "--clusters", "max_clusters": "--most", "start": "--start"}
FORMATS = (".png", ".svg", ".pdf")


def cluster(
    table: TableArgument,
    reading: Reading,
    columns: Columns,
    fitting: Fitting,
    running: Running,
    clusters: Annotated[
        str,
        typer.Option(
            "--clusters",
            "-k",
            metavar="N|auto",
            help="How many clusters; auto is the largest number that two halves of the rows "
            "agree on.",
        ),
    ] = "auto",
    most: Annotated[
        int, typer.Option(metavar="N", min=2, help="The largest number that auto tries.")
    ] = 10,
    start: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="mixture: heaps that may overlap; connected: groups of any shape.",
        ),
    ] = "mixture",
    output: OutputOption = None,
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="Write the probability of every cluster, too."),
    ] = False,
    picture: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Where the map of the rows goes.",
            show_default="beside the output, as .png",
        ),
    ] = None,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Draw no map.")] = False,
) -> None:
    """Find the clusters of TABLE's rows, holes and all.

    The answer is TABLE with two more columns: cluster, from 1, the largest first, and its
    probability given what is there of the row. Missing cells are not filled in first; they make
    an answer less sure. Without -o it goes to table.clusters.csv in the current folder, and what
    came from stdin to stdout. A map shows the rows where the model has put them.
    """
    with session(running) as here:
        place = output or output_for(table, "clusters")
        check_outputs([place], table)
        image = _picture_place(here, table, place, picture, wanted=not no_picture)
        if running.json and place == "-":
            raise typer.BadParameter("--json and the table both want stdout; give -o a name")
        source = Source(table, reading).read()
        wishes = {"max_clusters": most, "start": start}
        model = _fitted(here, source.data, _count(clusters), columns, fitting, wishes)
        told = model.probabilities(source.data, seed=running.seed)
        _write(source.data, told, place, every=probabilities)
        if image is not None:
            _draw(model, source.data, told, image)
        _tell(here, model, source.data, told, place, image)


def _count(text: str) -> Any:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        message = f"--clusters must be a whole number or auto, got {text!r}"
        raise typer.BadParameter(message) from None


def _picture_place(
    here: Session, table: str, place: str, asked: str | None, *, wanted: bool
) -> str | None:
    """Return where the map goes, or None where there is none, before minutes go into fitting."""
    if asked is not None and not wanted:
        raise typer.BadParameter("--picture and --no-picture exclude each other")
    if not wanted or (asked is None and place == "-"):
        return None
    if importlib.util.find_spec("matplotlib") is None:
        needed = "a map needs matplotlib: pip install 'postmatch[plot]'"
        if asked is not None:
            raise ModuleNotFoundError(needed)
        here.say(f"Note: {needed}")
        return None
    image = asked or _beside(place)
    if Path(image).suffix.lower() not in FORMATS:
        raise typer.BadParameter(f"--picture must end in {' or '.join(FORMATS)}, got {image}")
    check_place(image, table)
    return image


def _beside(place: str) -> str:
    """Return the name of a map beside a table: ``out/people.png`` for ``out/people.csv.gz``.

    Example:
        >>> _beside("out/people.csv.gz")
        'out/people.png'
    """
    return str(Path(place).with_name(output_for(place, "", "png")))


def _fitted(
    here: Session,
    data: Any,
    clusters: Any,
    columns: Columns,
    fitting: Fitting,
    wishes: dict[str, Any],
) -> "ClusteredTable":
    from postmatch.cluster_tables import fit_table_clusters
    from postmatch.training.progress import progress_bar

    told = {**columns.told, **fitting.limits, **wishes, "seed": here.running.seed}
    with as_typed(), _named(), progress_bar("Clustering", quiet=here.quiet) as show:
        model = fit_table_clusters(data, clusters, **told, device=here.running.device, show=show)
    here.settle()
    for note in model.table.notes:
        here.say(f"Note: {note}")
    return model


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Let errors about an argument name the option."""
    try:
        yield
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        if name in TYPED:
            raise ValueError(f"{TYPED[name]} {rest}") from error
        raise


def _write(data: Any, told: "Floats", place: str, *, every: bool) -> None:
    """Write the table with its new columns, whose names are not yet taken."""
    import numpy as np

    from postmatch.cli.wording import labels
    from postmatch.tables import write_table

    number, count = told.argmax(1) + 1, told.shape[1]
    new: list[tuple[str, Any]] = [("cluster", number), ("probability", np.round(told.max(1), 4))]
    if every:
        new += [(f"probability_{i + 1}", np.round(told[:, i], 4)) for i in range(count)]
    names = labels([*data.column_names, *(name for name, _ in new)])[-len(new) :]
    for name, (_, values) in zip(names, new, strict=True):
        data = data.append_column(name, [values])
    write_table(data, place)


def _draw(model: "ClusteredTable", data: Any, told: "Floats", image: str) -> None:
    from postmatch.cli.cluster_map import cluster_map
    from postmatch.tables.writing import atomic

    figure = cluster_map(model.places(data), told)
    with atomic(image) as file:
        figure.savefig(file, format=Path(image).suffix[1:].lower(), dpi=150)


def _tell(
    here: Session,
    model: "ClusteredTable",
    data: Any,
    told: "Floats",
    place: str,
    image: str | None,
) -> None:
    """Show the clusters, how sure they are, and what is typical of each."""
    import numpy as np
    from rich.text import Text

    from postmatch.cli.grids import plain_grid, titled
    from postmatch.cli.numbers import percents
    from postmatch.cli.typical import typical
    from postmatch.tables.cells import counted

    number, count = told.argmax(1), told.shape[1]
    rows = np.bincount(number, minlength=count)
    sure = [float(told[number == i].max(1).mean()) if rows[i] else None for i in range(count)]
    words = typical(model.table, data, number, count)
    grid = plain_grid(">cluster", ">rows", ">share", ">certainty", "typical of it")
    for i, share in enumerate(percents(rows / rows.sum())):
        certainty = "–" if sure[i] is None else f"{sure[i]:.0%}"
        grid.add_row(str(i + 1), f"{rows[i]:,}", share, certainty, Text("\n".join(words[i])))
    title = f"{counted(count, 'cluster')} of {counted(len(told), 'row')}"
    aside = place == "-"
    here.show(titled(title, grid), aside=aside)
    written = [name for name in (place, image) if name not in ("-", None)]
    if written:
        here.show(Text(f"\nWritten to {' and '.join(map(str, written))}"), aside=aside)
    each = zip(rows.tolist(), sure, words, strict=True)
    here.result(
        {
            "clusters": [
                {"cluster": i + 1, "rows": n, "certainty": s, "typical": list(w)}
                for i, (n, s, w) in enumerate(each)
            ],
            "outputs": written,
            "notes": list(model.table.notes),
            "model": model.facts,
        }
    )
