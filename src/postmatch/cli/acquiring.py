"""Options about what can be measured, which two commands share."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, final

import typer

from postmatch.cli.lists import costs, groups, names

if TYPE_CHECKING:
    from postmatch.models import TableModel
    from postmatch.table_acquiring import TableAcquirer

TYPED = {"target": "--target", "costs": "--cost", "groups": "--group", "cannot": "--cannot"}


@final
@dataclass(frozen=True)
class Acquiring:
    """What can be measured, at what cost, and what for."""

    target: Annotated[
        list[str],
        typer.Option(metavar="NAME,...", help="What is to be predicted, and is not on offer."),
    ] = dataclasses.field(default_factory=list)
    cost: Annotated[
        list[str],
        typer.Option(metavar="NAME=NUMBER,...", help="What a column or a group costs; others, 1."),
    ] = dataclasses.field(default_factory=list)
    group: Annotated[
        list[str],
        typer.Option(metavar="NAME=A,B", help="Columns that come together, and never alone."),
    ] = dataclasses.field(default_factory=list)
    cannot: Annotated[
        list[str], typer.Option(metavar="NAME,...", help="What cannot be measured.")
    ] = dataclasses.field(default_factory=list)

    def acquirer(self, model: "TableModel", seed: int) -> "TableAcquirer":
        """Return what ranks offers of a model's table."""
        from postmatch.table_acquiring import table_acquirer

        try:
            return table_acquirer(
                model,
                target=names(self.target),
                costs=costs(self.cost),
                groups=groups(self.group),
                cannot=names(self.cannot),
                seed=seed,
            )
        except ValueError as error:  # which names the argument, not the option
            name, colon, rest = str(error).partition(":")
            if not colon or name not in TYPED:
                raise
            raise ValueError(f"{TYPED[name]}:{rest}") from None
