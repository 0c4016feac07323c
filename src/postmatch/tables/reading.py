"""Tables from files: text, Parquet and Feather, whole or as a stream of blocks."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from postmatch.tables.delimited import text_blocks

Format = Literal["text", "parquet", "feather"]
SUFFIXES: dict[str, Format] = {
    ".csv": "text",
    ".tsv": "text",
    ".txt": "text",
    ".data": "text",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
}


def format_of(path: str | Path) -> tuple[Format, bool]:
    """Return the format that a path's suffix names, and whether it is gzipped."""
    if str(path) == "-":
        return "text", False
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    gzipped = suffixes[-1:] == [".gz"]
    last = suffixes[-2 if gzipped else -1 :][:1]
    kind = SUFFIXES.get(last[0]) if last else None
    if kind is None or (gzipped and kind != "text"):
        raise ValueError(
            f"{path}: the format is told by the suffix, which must be one of "
            f"{', '.join(SUFFIXES)}, text also with .gz"
        )
    return kind, gzipped


def read_table(
    path: str | Path,
    *,
    sep: str | None = None,
    header: bool = True,
    columns: Sequence[str] | None = None,
) -> Any:
    """Return a whole file as a pyarrow table; see ``stream_table``."""
    return pa.concat_tables(
        list(stream_table(path, sep=sep, header=header, columns=columns, rows=1 << 16))
    )


def stream_table(
    path: str | Path,
    *,
    sep: str | None = None,
    header: bool = True,
    columns: Sequence[str] | None = None,
    rows: int = 8_192,
) -> Iterator[Any]:
    """Yield a file as pyarrow tables of exactly ``rows`` rows, the last one smaller.

    A file without rows yields one empty table, so that its columns are known. Cells of text files
    are text, as they stand in the file.

    Args:
        path: ``.csv .tsv .txt .data`` (also ``.gz``), ``.parquet .pq``, ``.feather .arrow``;
            ``-`` is stdin as CSV, which is read into memory.
        sep: The separator of a text file, found if not given.
        header: Whether a text file's first line holds the names; else they are x0, x1, ...
        columns: The columns to read, in this order; all if not given.
        rows: Rows of a block.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    if str(path) != "-":
        check_file(path)
    kind, gzipped = format_of(path)
    if kind == "text":
        blocks = text_blocks(path, sep, header=header, gzipped=gzipped)
    else:
        blocks = _parquet_blocks(path, rows) if kind == "parquet" else _feather_blocks(path)
    for block in _exactly(_named(blocks, path), rows):
        yield block if columns is None else _selected(block, columns, path)


def check_file(path: str | Path) -> None:
    """Raise the error that says what is wrong with a path, if it is no file to read."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    if path.is_dir():
        raise ValueError(f"{path}: is a directory, not a file")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty")


def _named(blocks: Iterator[Any], path: str | Path) -> Iterator[Any]:
    """Yield blocks, with errors of the format turned into one line that names the file."""
    try:
        yield from blocks
    except (pa.ArrowException, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path}: cannot be read as {format_of(path)[0]}: {reason}") from None


def _exactly(blocks: Iterator[Any], rows: int) -> Iterator[Any]:
    """Yield the same rows in blocks of one size, whatever the size of those that come."""
    waiting: list[Any] = []
    count, started = 0, False
    for block in blocks:
        waiting.append(block)
        count += block.num_rows
        if count >= rows:
            whole, full = pa.concat_tables(waiting), count - count % rows
            for start in range(0, full, rows):
                yield whole.slice(start, rows)
            waiting, count, started = [whole.slice(full)], count - full, True
    if count or not started:
        yield pa.concat_tables(waiting)


def _selected(block: Any, columns: Sequence[str], path: str | Path) -> Any:
    unknown = [name for name in columns if name not in block.column_names]
    if unknown:
        raise ValueError(f"{path}: no column is named {unknown[0]!r}")
    return block.select([block.column_names.index(name) for name in columns])


def _parquet_blocks(path: str | Path, rows: int) -> Iterator[Any]:
    # Buffered, or whole row groups would be held, of up to a million rows each.
    with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 16) as file:
        yield file.schema_arrow.empty_table()
        for batch in file.iter_batches(batch_size=rows):
            yield pa.Table.from_batches([batch])


def _feather_blocks(path: str | Path) -> Iterator[Any]:
    with pa.memory_map(str(path)) as source:
        try:
            file = pa.ipc.open_file(source)
        except pa.ArrowInvalid:  # the streaming form of the same format
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            yield stream.schema.empty_table()
            for batch in stream:
                yield pa.Table.from_batches([batch])
        else:
            yield file.schema.empty_table()
            for index in range(file.num_record_batches):
                yield pa.Table.from_batches([file.get_batch(index)])
