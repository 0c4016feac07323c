"""Lists as they are typed: names, levels in order, values."""

import csv

import typer


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
    pairs: dict[str, str] = {}
    for text in names(texts):
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--given wants name=value, got {text!r}")
        if not value.strip():
            raise typer.BadParameter(f"--given {name}= lacks a value")
        if name.strip() in pairs:
            raise typer.BadParameter(f"--given names {name.strip()} twice")
        pairs[name.strip()] = value.strip()
    return pairs


def costs(texts: list[str]) -> dict[str, float]:
    """Return the costs of ``--cost blood=3,scan=40``.

    Example:
        >>> costs(["blood=3,scan=40"])
        {'blood': 3.0, 'scan': 40.0}
    """
    found: dict[str, float] = {}
    for text in names(texts):
        name, _, number = text.rpartition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise typer.BadParameter(f"--cost wants name=number, got {text!r}") from None
    return found


def groups(texts: list[str]) -> dict[str, list[str]]:
    """Return the columns of ``--group blood=iron,sugar``.

    Example:
        >>> groups(["blood=iron,sugar", "eyes=left,right"])
        {'blood': ['iron', 'sugar'], 'eyes': ['left', 'right']}
    """
    for text in texts:
        if "=" not in text or not text.partition("=")[0].strip():
            raise typer.BadParameter(f"--group wants name=column,column, got {text!r}")
    return {name.strip(): members for name, members in orders(texts).items()}


def _split(text: str) -> list[str]:
    cells = next(csv.reader([text], skipinitialspace=True), [])
    return [cell.strip() for cell in cells]
