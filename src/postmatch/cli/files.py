"""Tables in and out of a command: where they are, in blocks, and where answers go."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import typer

from postmatch.cli.groups import Reading

if TYPE_CHECKING:
    from rich.console import Console

BLOCK_ROWS = 8_192
COMPRESSED = ".gz"


@final
@dataclass(frozen=True)
class Source:
    """A table that a command was given, in memory or to be read block by block.

    Args:
        path: Its file; ``-`` is stdin.
        reading: How text is read.
        data: Its contents, where they were needed as a whole.
    """

    path: str
    reading: Reading
    data: Any = None

    def read(self) -> "Source":
        """Return the same table in memory."""
        from postmatch.tables import read_table

        if self.data is not None:
            return self
        return Source(self.path, self.reading, read_table(self.path, **self.reading.layout))

    def blocks(self) -> Iterator[Any]:
        """Yield the table in blocks of rows, at least one; only one is in memory at a time."""
        if self.data is None:
            from postmatch.tables import stream_table

            yield from stream_table(self.path, **self.reading.layout, rows=BLOCK_ROWS)
        else:
            for start in range(0, max(1, self.data.num_rows), BLOCK_ROWS):
                yield self.data.slice(start, BLOCK_ROWS)

    def count(self) -> int | None:
        """Return about how many rows there are, None where only reading would tell."""
        if self.data is not None:
            return int(self.data.num_rows)
        if self.path == "-":
            return None
        return _count(Path(self.path), header=not self.reading.no_header)

    def followed(self, label: str, console: "Console", *, quiet: bool) -> Iterator[tuple[int, Any]]:
        """Yield each block with the number of rows before it, and show how far that is."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as TimeLeft

        silent = quiet or not console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
        with Progress(*columns, console=console, transient=True, disable=silent) as bar:
            task = bar.add_task(label, total=None if silent else self.count())
            offset = 0
            for block in self.blocks():
                yield offset, block
                offset += block.num_rows
                bar.update(task, completed=offset)


def _count(path: Path, *, header: bool) -> int | None:
    from postmatch.tables.reading import format_of

    kind, gzipped = format_of(path)
    if kind == "parquet":
        import pyarrow.parquet

        return int(pyarrow.parquet.read_metadata(path).num_rows)
    if kind == "feather":
        return None
    import gzip

    with gzip.open(path, "rb") if gzipped else path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return max(1, lines - header)


def output_for(path: str, word: str, suffix: str | None = None) -> str:
    """Return the name of an answer about a table, in the current folder: ``table.filled.csv``.

    Example:
        >>> output_for("data/table.csv.gz", "filled")
        'table.filled.csv.gz'
        >>> output_for("data/table.parquet", "report", ".html")
        'table.report.html'
        >>> output_for("-", "filled")
        '-'
    """
    if path == "-":
        return "-" if suffix is None else f"{word}{suffix}"
    stem, own = _split(path)
    return f"{stem}.{word}{own if suffix is None else suffix}"


def numbered(path: str, count: int) -> list[str]:
    """Return ``count`` names like one: ``filled.1.csv``, ``filled.2.csv``, ...

    Example:
        >>> numbered("out/filled.csv", 2)
        ['out/filled.1.csv', 'out/filled.2.csv']
    """
    stem, suffix = _split(path)
    return [str(Path(path).with_name(f"{stem}.{i}{suffix}")) for i in range(1, count + 1)]


def check_outputs(outputs: list[str], source: str) -> None:
    """Raise unless every output can be written, and none of them is the input."""
    from postmatch.tables.reading import format_of

    for output in outputs:
        format_of(output)
        check_place(output, source)


def check_place(output: str, source: str | None) -> None:
    """Raise unless a file can be written at a place that is not the input."""
    path = Path(output)
    if output == "-":
        return
    if path.is_dir():
        raise typer.BadParameter(f"{output} is a folder; -o wants the name of a file")
    if not path.resolve().parent.is_dir():
        raise typer.BadParameter(f"{output}: there is no folder {path.parent}")
    origin = Path(source or "-")
    if path.exists() and origin.exists() and path.samefile(origin):
        raise typer.BadParameter(f"{output} is the input, which is never overwritten")
    check_writable_place(path, output)


def check_writable_place(path: Path, name: str | Path) -> None:
    """Raise unless something can be written at a place, which the user knows by a name."""
    from postmatch.tables.writing import check_writable

    try:
        check_writable(path)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise typer.BadParameter(f"{name} cannot be written: {reason}") from None


def write_blocks(blocks: Iterable[Any], place: str) -> None:
    """Write pyarrow tables to one file, which appears when it is complete."""
    from postmatch.tables import open_writer

    with open_writer(place) as writer:
        for block in blocks:
            writer.write(block)


def _split(path: str) -> tuple[str, str]:
    """Return a file's name in two: what comes before its format, and the suffixes that tell it."""
    name = Path(path).name
    gzipped = name.lower().endswith(COMPRESSED)
    bare = Path(name[: -len(COMPRESSED)] if gzipped else name)
    return bare.stem, name[len(bare.stem) :]
