"""Options that several commands share, as frozen dataclasses whose fields are the options."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

import typer

from postmatch.cli.lists import names, orders

TableArgument = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="CSV, TSV, TXT, DATA (each also .gz), Parquet or Feather; - is stdin, as CSV.",
        show_default=False,
    ),
]
OptionalTable = Annotated[
    str | None,
    typer.Argument(metavar="TABLE", help="A table, as for impute.", show_default=False),
]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where to write, in the format of its suffix; - is stdout, as CSV or with the "
        "separator of TABLE.",
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        "-m",
        metavar="DIR",
        help="Use the model kept there; if there is none, fit one and keep it there.",
    ),
]
FittedModel = Annotated[
    Path, typer.Option("--model", "-m", metavar="DIR", help="A model made by fit or impute.")
]
GivenOption = Annotated[
    list[str],
    typer.Option("--given", metavar="NAME=VALUE,...", help="What is known, such as age=54,sex=F."),
]
GivenColumnsOption = Annotated[
    list[str],
    typer.Option(
        "--given-columns", metavar="NAME,...", help="Columns of TABLE whose values are known."
    ),
]


@final
@dataclass(frozen=True)
class Reading:
    """How text files are read."""

    no_header: Annotated[
        bool,
        typer.Option(
            "--no-header",
            help="The first line holds values; columns are x0, x1, ...",
            rich_help_panel="Reading",
        ),
    ] = False
    sep: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What separates the cells, if it is not found: ';' or '\\t'.",
            rich_help_panel="Reading",
        ),
    ] = None

    @property
    def layout(self) -> dict[str, Any]:
        """What ``read_table`` and ``stream_table`` are told."""
        return {"sep": self.separator, "header": not self.no_header}

    @property
    def separator(self) -> str | None:
        r"""The separator itself, for ``\\t`` as a shell hands it over."""
        return self.sep.replace("\\t", "\t") if self.sep else self.sep


@final
@dataclass(frozen=True)
class Columns:
    """What the table's columns are."""

    categorical: Annotated[
        list[str],
        typer.Option(
            metavar="NAME,...", help="Columns of levels without order.", rich_help_panel="Columns"
        ),
    ] = dataclasses.field(default_factory=list)
    ordered: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=A,B,C",
            help="A column of levels, lowest first; without levels, by the numbers in them.",
            rich_help_panel="Columns",
        ),
    ] = dataclasses.field(default_factory=list)
    numeric: Annotated[
        list[str],
        typer.Option(
            metavar="NAME,...",
            help="Columns of numbers, even if they look like identifiers.",
            rich_help_panel="Columns",
        ),
    ] = dataclasses.field(default_factory=list)
    ignore: Annotated[
        list[str],
        typer.Option(
            metavar="NAME,...", help="Columns to leave as they are.", rich_help_panel="Columns"
        ),
    ] = dataclasses.field(default_factory=list)
    missing: Annotated[
        list[str],
        typer.Option(
            metavar="TEXT,...",
            help="What also means a missing cell, such as -999.",
            rich_help_panel="Columns",
        ),
    ] = dataclasses.field(default_factory=list)

    @property
    def told(self) -> dict[str, Any]:
        """What ``Table.fit`` is told about columns."""
        return {
            "categorical": names(self.categorical),
            "ordered": orders(self.ordered),
            "numeric": names(self.numeric),
            "ignore": names(self.ignore),
            "missing": names(self.missing),
        }


@final
@dataclass(frozen=True)
class Fitting:
    """How a model is fitted."""

    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Answer within about 30 seconds, less well. If it is the clock that ends the fit, "
            "another run gives another model.",
            rich_help_panel="Fitting",
        ),
    ] = False
    max_minutes: Annotated[
        float | None,
        typer.Option(
            metavar="MINUTES", help="Train no longer than this.", rich_help_panel="Fitting"
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Train for at most N steps, each of the models that are asked together.",
            rich_help_panel="Fitting",
        ),
    ] = None

    @property
    def limits(self) -> dict[str, Any]:
        """What ``fit_table`` is told about how long to train."""
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise typer.BadParameter(f"--max-minutes must be positive, got {self.max_minutes:g}")
        seconds = None if self.max_minutes is None else 60.0 * self.max_minutes
        return {"max_steps": self.steps, "max_seconds": seconds, "quick": self.quick}


@final
@dataclass(frozen=True)
class Running:
    """What every command can be told."""

    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=2**32 - 1,
            help="The same seed gives the same answer, unless the clock ended the fit.",
        ),
    ] = 0
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or mps.")] = "auto"
    json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")] = (
        False
    )
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False


def spelled(*groups: Any) -> list[str]:
    """Return the options that were given, as they are typed.

    Example:
        >>> spelled(Columns(ignore=["id", "note"]), Fitting(quick=True, steps=5))
        ['--ignore', 'id', '--ignore', 'note', '--quick', '--steps', '5']
    """
    words: list[str] = []
    for group in groups:
        for field in dataclasses.fields(group):
            value, name = getattr(group, field.name), f"--{field.name.replace('_', '-')}"
            if value is True:
                words.append(name)
            elif isinstance(value, list):
                words += [word for item in value for word in (name, item)]
            elif value != field.default:
                words += [name, str(value)]
    return words


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose groups of options stand as their fields, for typer to read."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if dataclasses.is_dataclass(parameter.annotation)
    }
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name not in groups
    ]
    for group in groups.values():
        parameters += map(_parameter, dataclasses.fields(group))

    @functools.wraps(function)
    def command(**options: Any) -> None:
        whole = {
            name: group(**{f.name: options.pop(f.name) for f in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        function(**options, **whole)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    factory = field.default_factory
    default = field.default if factory is dataclasses.MISSING else factory()
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type
    )
