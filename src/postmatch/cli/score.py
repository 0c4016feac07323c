"""``postmatch score``: how likely each row is, given what is known."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from postmatch.cli.conditions import check_names, conditioned
from postmatch.cli.files import Source, check_outputs, write_blocks
from postmatch.cli.groups import (
    FittedModel,
    GivenColumnsOption,
    GivenOption,
    OutputOption,
    Reading,
    Running,
    TableArgument,
)
from postmatch.cli.lists import given, names
from postmatch.cli.models import loaded
from postmatch.cli.session import Session, session

if TYPE_CHECKING:
    from postmatch.models import TableModel

EXAMPLES = """
    postmatch score people.csv -m people.model > scores.csv
    postmatch score people.csv -m people.model --given-columns age,sex
    postmatch score people.csv -m people.model --given age=54,sex=F --json
"""


def score(
    table: TableArgument,
    model: FittedModel,
    reading: Reading,
    running: Running,
    output: OutputOption = "-",
    known: GivenOption = [],  # noqa: B006
    known_columns: GivenColumnsOption = [],  # noqa: B006
) -> None:
    """Write "row,log_prob": the log-likelihood of what each row of TABLE shows, counted from 1.

    In nats, densities in the units of the table; higher is more likely. With --given-columns it is
    that of the other columns given these; with --given the columns named have that value in every
    row. Holes are not scored. The number is a lower bound, close to the model's log-likelihood.
    """
    with session(running) as here:
        place = output or "-"
        check_outputs([place], table)
        learned = loaded(here, model)
        values, columns = given(known), names(known_columns)
        check_names(learned.table, columns)
        blocks = _scores(here, learned, Source(table, reading), values, [*columns, *values])
        if running.json and place == "-":
            scores = [score for block in blocks for score in block.column("log_prob").to_pylist()]
            mean = sum(scores) / len(scores) if scores else None
            here.result({"rows": len(scores), "mean": mean, "log_prob": scores})
        else:
            write_blocks(blocks, place)
            here.finish(place)


def _scores(
    here: Session,
    model: "TableModel",
    source: Source,
    values: dict[str, str],
    condition: list[str],
) -> Iterator[Any]:
    import numpy as np
    import pyarrow as pa

    for offset, block in source.followed("Scoring", here.err, quiet=here.quiet):
        rows = conditioned(model.table, block, values, [])
        scores = model.score(rows, given=condition or None, seed=here.running.seed)
        numbers = np.arange(offset + 1, offset + 1 + len(scores))
        yield pa.table({"row": numbers, "log_prob": scores})
