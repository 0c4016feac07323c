"""``postmatch acquire``: what to measure next, given what is known."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postmatch.cli.acquiring import Acquiring
from postmatch.cli.groups import FittedModel, GivenOption, Running
from postmatch.cli.lists import given
from postmatch.cli.models import loaded
from postmatch.cli.session import Session, session

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor

    from postmatch.table_acquiring import TableAcquirer
    from postmatch.table_offers import Advice, Expected, Ranked
    from postmatch.tables.column import Column

EXAMPLES = """
    postmatch acquire -m people.model --given age=54,sex=F
    postmatch acquire -m people.model --given age=54 --target income --cost blood=3 --cost scan=40
    postmatch acquire -m people.model --target income --group blood=iron,sugar --cannot name
    postmatch acquire -m people.model --target income --interactive
"""
SKIP, QUIT, MISSING = ("skip", "s"), ("quit", "q", "exit"), ("", "?")


def acquire(
    model: FittedModel,
    acquiring: Acquiring,
    running: Running,
    known: GivenOption = [],  # noqa: B006
    price: Annotated[
        float,
        typer.Option(
            metavar="NATS", min=0.0, help="Leave what brings less than this per unit of cost."
        ),
    ] = 0.0,
    interactive: Annotated[
        bool,
        typer.Option("--interactive", "-i", help="Ask for one value after another."),
    ] = False,
) -> None:
    """Say what to measure next, the best first.

    Each line is a column, or a group of them, that --given does not tell: how much it is expected
    to teach about --target, or without one about the whole row, in nats; what it costs; how much it
    teaches per cost, by which lines are ranked; and what it is expected to be, a number with the
    interval that holds it in 90 of 100 cases.
    """
    with session(running) as here:
        values = given(known)
        if interactive and running.json:
            raise typer.BadParameter("--json and --interactive are two ways to answer; choose one")
        asks = acquiring.acquirer(loaded(here, model), running.seed)
        _check_target(asks, values)
        _warn_of(here, asks, values)
        if interactive:
            _converse(here, asks, values, price)
            return
        advice = _advice(asks, values, price)
        _show(here, advice, price)
        here.result(_record(values, advice))


def _check_target(asks: "TableAcquirer", values: dict[str, str]) -> None:
    for name in asks.offers.target:
        if name in values:
            raise typer.BadParameter(f"--given tells {name}, which is the --target")


def _warn_of(here: Session, asks: "TableAcquirer", values: dict[str, str]) -> None:
    """Warn of numbers that the model has never seen the like of: they are taken as they are."""
    table = asks.model.table
    x, observed = table.encode(table.frame_from([values]))
    for place in observed[0].nonzero()[:, 0].tolist():
        if odd := _oddity(table.modelled[place], x[:, place]):
            here.warn(odd)


def _oddity(column: "Column", x: "Tensor") -> str | None:
    """Return that a number is beyond those seen, None if it is not."""
    from postmatch.cli.wording import contents, written

    (value,) = column.decode(x.double().numpy(), clip=False)
    if not column.is_number or column.low <= value <= column.high:
        return None
    told = f"{column.name} {written(column, value)}"
    return f"{told}: outside what the model was fitted on, {contents(column)}"


def _advice(
    asks: "TableAcquirer", values: dict[str, str], price: float, skipped: Collection[str] = ()
) -> "Advice":
    """Return what is expected of the target, and the offers that are worth their price."""
    (advice,) = asks.rank(asks.model.table.frame_from([values]))
    offers = [o for o in advice.offers if o.name not in skipped and (not price or o.value >= price)]
    return dataclasses.replace(advice, offers=tuple(offers))


def _show(here: Session, advice: "Advice", price: float) -> None:
    from rich.text import Text

    for cell in advice.target:
        here.show(Text(_expectation(cell, named=True), "bold"), asked_for=True)
    here.show(_grid(advice.offers, price), asked_for=True)


def _grid(ranked: "Sequence[Ranked]", price: float) -> "RenderableType":
    from rich.text import Text

    from postmatch.cli.grids import plain_grid, titled

    if not ranked:
        return Text("Nothing is left to measure" + (" that is worth its price." if price else "."))
    grid = plain_grid(">", "measure", ">gain", ">cost", ">per cost", "expected to be")
    for place, offer in enumerate(ranked, 1):
        gain, value = (max(each, 0.0) for each in (offer.gain, offer.value))  # noise may tell less
        numbers = (f"{gain:.3f}", f"{offer.cost:g}", f"{value:.3f}")
        words = "\n".join(_expectation(cell, len(offer.expected) > 1) for cell in offer.expected)
        grid.add_row(str(place), Text(offer.name), *numbers, Text(words))
    return titled("What to measure next (gain in nats)", grid)


def _expectation(cell: "Expected", named: bool) -> str:
    """Return what a cell is expected to be: a number with its interval, a level and its chance."""
    from postmatch.cli.wording import written
    from postmatch.tables.cells import level_text

    if cell.probability is not None:
        words = f"{level_text(cell.best)} ({cell.probability:.0%})"
    else:
        best, low, high = (
            written(cell.column, float(v)) for v in (cell.best, cell.low or 0.0, cell.high or 0.0)
        )
        words = f"{best} ({low} to {high})"
    return f"{cell.column.name}: {words}" if named else words


def _record(values: dict[str, str], advice: "Advice") -> dict[str, Any]:
    return {
        "given": values,
        "target": [_cell(cell) for cell in advice.target],
        "offers": [
            {
                "name": offer.name,
                "gain": offer.gain,
                "cost": offer.cost,
                "gain_per_cost": offer.value,
                "expected": [_cell(cell) for cell in offer.expected],
            }
            for offer in advice.offers
        ],
    }


def _cell(cell: "Expected") -> dict[str, Any]:
    own = {"column": cell.column.name, "best": cell.best}
    if cell.probability is not None:
        return own | {"probability": cell.probability}
    return own | {"low": cell.low, "high": cell.high}


def _converse(here: Session, asks: "TableAcquirer", values: dict[str, str], price: float) -> None:
    """Ask for the best value, take the answer, and go on until the user has enough."""
    skipped: set[str] = set()
    here.show("Answer with a value, [bold]skip[/] what cannot be had, or [bold]quit[/].\n")
    while True:
        advice = _advice(asks, values, price, skipped)
        _show(here, advice, price)
        if not advice.offers:
            return
        best = advice.offers[0]
        answer = _answer(here, asks, best)
        if answer is None:
            return
        if not answer:
            skipped.add(best.name)
        values = values | answer


def _answer(here: Session, asks: "TableAcquirer", offer: "Ranked") -> dict[str, str] | None:
    """Return the values of an offer's columns, none if it is skipped, None to stop."""
    found: dict[str, str] = {}
    for cell in offer.expected:
        while True:
            try:
                text = here.out.input(f"\n[bold]{cell.column.name}[/]? ").strip()
            except EOFError:
                return None
            if text.lower() in QUIT:
                return None
            if text.lower() in SKIP:
                return {}
            refusal, oddity = _judged(asks, cell.column, text)
            if oddity is not None:
                here.warn(oddity)
            if refusal is None:
                found[cell.column.name] = text
                break
            here.fail(refusal)
    return found


def _judged(asks: "TableAcquirer", column: "Column", text: str) -> tuple[str | None, str | None]:
    """Return why a value cannot be taken, and why it is odd, None if it can be or is not."""
    table, name = asks.model.table, column.name
    if text in MISSING:
        return f"{name} wants a value, or skip, or quit", None
    try:
        x, observed = table.encode(table.frame_from([{name: text}]))
    except ValueError as error:
        return str(error), None
    place = [each.name for each in table.modelled].index(name)
    if not observed[0, place]:
        return f"{name} wants a value, got {text!r}, which means none; skip leaves it out", None
    return None, _oddity(column, x[:, place])
