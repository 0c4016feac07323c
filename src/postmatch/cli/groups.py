"""Options that several commands share, as frozen dataclasses whose fields are the options."""

import csv
import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

import typer

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
    typer.Option("--output", "-o", metavar="FILE", help="Where to write; - is stdout, as CSV."),
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
class Fitting:
    """How a model is fitted, and what the table's columns are."""

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
            help="A column of levels in order; without levels, by the numbers in it.",
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
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Answer within about 30 seconds, less well.", rich_help_panel="Fitting"
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
            metavar="N", min=1, help="Train for at most N steps.", rich_help_panel="Fitting"
        ),
    ] = None

    @property
    def columns(self) -> dict[str, Any]:
        """What ``Table.fit`` is told about columns."""
        return {
            "categorical": names(self.categorical),
            "ordered": orders(self.ordered),
            "numeric": names(self.numeric),
            "ignore": names(self.ignore),
            "missing": names(self.missing),
        }

    @property
    def asked(self) -> list[str]:
        """The options that were given, as they are typed."""
        return [
            f"--{field.name.replace('_', '-')}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name)
        ]


@final
@dataclass(frozen=True)
class Running:
    """What every command can be told."""

    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same answer.")] = 0
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda or mps.")] = "auto"
    json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")] = (
        False
    )
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings and errors.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False


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


def names(texts: list[str]) -> list[str]:
    """Return what ``--ignore a,b --ignore '"c, d"'`` names: three columns.

    Example:
        >>> names(["a,b", '"c, d"'])
        ['a', 'b', 'c, d']
    """
    return [name for text in texts for name in _split(text)]


def orders(texts: list[str]) -> dict[str, list[str]]:
    """Return each column of ``--ordered size=S,M,L`` with its levels, lowest first.

    Example:
        >>> orders(["size=S,M,L", "grade"])
        {'size': ['S', 'M', 'L'], 'grade': []}
    """
    split = [text.partition("=") for text in texts]
    return {name: _split(levels) if levels else [] for name, _, levels in split}


def given(texts: list[str]) -> dict[str, str]:
    """Return the values of ``--given age=54,sex=F``.

    Example:
        >>> given(["age=54,sex=F"])
        {'age': '54', 'sex': 'F'}
    """
    pairs = {}
    for text in names(texts):
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--given wants name=value, got {text!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def _split(text: str) -> list[str]:
    cells = next(csv.reader([text], skipinitialspace=True), [])
    return [cell.strip() for cell in cells]
