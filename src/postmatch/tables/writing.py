"""Tables to files, each of them either the old file or the complete new one."""

import abc
import contextlib
import errno
import gzip
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from postmatch.tables.delimited import LAYOUT_KEY, Layout, text_suffix
from postmatch.tables.reading import format_of


class Writer(abc.ABC):
    """Something that pyarrow tables of one schema are written to, one after another."""

    @abc.abstractmethod
    def write(self, table: Any) -> None:
        """Append a table's rows."""

    @abc.abstractmethod
    def close(self) -> None:
        """Write what is still to be written."""


@final
class TextWriter(Writer):
    """Delimited text, quoted only where a cell holds a separator, a quote or a line end."""

    def __init__(self, file: IO[bytes], sep: str | None, header: bool | None, suffix: str) -> None:
        self.file, self.sep, self.header, self.suffix = file, sep, header, suffix
        self.started = False

    def write(self, table: Any) -> None:
        """Append a table's rows."""
        layout = Layout.of(table.schema) or Layout()
        sep = self.sep or layout.sep_for(self.suffix)
        header = layout.header if self.header is None else self.header
        if header and not self.started:
            names = [pa.array([name], pa.string()) for name in table.column_names]
            self._lines(names, sep)
        self.started = True
        if table.num_rows:
            self._lines([_texts(column) for column in table.columns], sep)

    def close(self) -> None:
        """Do nothing: every row is written."""

    def _lines(self, columns: list[Any], sep: str) -> None:
        cells = [_quoted(column, sep, alone=len(columns) == 1) for column in columns]
        lines = pc.binary_join_element_wise(*cells, sep) if len(cells) > 1 else cells[0]
        self.file.write("\n".join([*lines.to_pylist(), ""]).encode())


@final
class ParquetWriter(Writer):
    """Parquet, a row group for each table written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.writer: Any = None

    def write(self, table: Any) -> None:
        """Append a table's rows."""
        table = _bare(table)
        if self.writer is None:
            self.writer = pyarrow.parquet.ParquetWriter(self.file, table.schema)
        self.writer.write_table(table)

    def close(self) -> None:
        """Write the footer."""
        if self.writer is None:
            raise ValueError("no table was written, so the file would have no columns")
        self.writer.close()


@final
class FeatherWriter(Writer):
    """Feather, which is Arrow's own file format."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.writer: Any = None
        self.waiting: list[Any] = []

    def write(self, table: Any) -> None:
        """Append a table's rows; those with dictionaries wait, as a file has one of each."""
        table = _bare(table)
        if any(pa.types.is_dictionary(field.type) for field in table.schema):
            self.waiting.append(table)
        else:
            self._open(table.schema).write_table(table)

    def close(self) -> None:
        """Write the footer."""
        if self.waiting:
            whole = pa.concat_tables(self.waiting).unify_dictionaries()
            self._open(whole.schema).write_table(whole)
        if self.writer is None:
            raise ValueError("no table was written, so the file would have no columns")
        self.writer.close()

    def _open(self, schema: Any) -> Any:
        if self.writer is None:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self.writer = pa.ipc.new_file(self.file, schema, options=options)
        return self.writer


@contextlib.contextmanager
def open_writer(
    path: str | Path, *, sep: str | None = None, header: bool | None = None
) -> Iterator[Writer]:
    """Open a file for ``write``; it appears under its name when all is written, or not at all.

    Args:
        path: As for ``stream_table``; the suffix tells the format and ``-`` is stdout as text.
        sep: Of text; if not given, tabs for ``.tsv``, else that of the text file the table came
            from, or a comma.
        header: Of text; if not given as in the text file the table came from, else True.
    """
    kind, gzipped = format_of(path)
    with atomic(path) as raw, _gzip(raw) if gzipped else contextlib.nullcontext(raw) as file:
        writer: Writer
        if kind == "text":
            writer = TextWriter(file, sep, header, text_suffix(path))
        else:
            writer = ParquetWriter(file) if kind == "parquet" else FeatherWriter(file)
        try:
            yield writer
        except BaseException:  # Ctrl-C too
            with contextlib.suppress(Exception):
                writer.close()
            raise
        writer.close()


def write_table(
    table: Any, path: str | Path, *, sep: str | None = None, header: bool | None = None
) -> None:
    """Write one pyarrow table to a file; see ``open_writer``."""
    with open_writer(path, sep=sep, header=header) as writer:
        writer.write(table)


@contextlib.contextmanager
def atomic(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a neighbour of a file for writing, and put it in the file's place if nothing failed."""
    if str(path) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    final_path = Path(path).resolve()  # through a link, so that the link stays
    if final_path.is_dir():
        raise ValueError(f"{path}: is a directory, not a file")
    if not final_path.parent.is_dir():
        raise FileNotFoundError(f"{path}: no such folder")
    if final_path.exists() and not final_path.is_file():  # /dev/null, a pipe
        with open(final_path, "wb") as file:
            yield file
        return
    partial = final_path.with_name(f".{final_path.name}.{secrets.token_hex(4)}.part")
    try:
        with _new(partial, path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if final_path.exists():
            shutil.copymode(final_path, partial)
        os.replace(partial, final_path)
    finally:  # also after Ctrl-C; nothing is left to remove when it was put in place
        partial.unlink(missing_ok=True)


def _new(partial: Path, path: str | Path) -> IO[bytes]:
    try:
        return open(partial, "xb")
    except OSError as error:  # the user never heard of the neighbour
        raise OSError(error.errno, error.strerror, str(path)) from None


def check_writable(path: str | Path) -> None:
    """Raise the OSError that writing a file would, without leaving anything behind."""
    place = Path(path).resolve()
    try:
        if place.exists() and not place.is_file():  # /dev/null, a pipe
            if not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        else:
            tempfile.TemporaryFile(dir=place.parent).close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _gzip(file: IO[bytes]) -> IO[bytes]:
    # No name and no time inside: equal tables give equal files.
    return gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0)  # type: ignore[return-value]


def _bare(table: Any) -> Any:
    """Return a table without the layout of the text file it came from."""
    metadata = {k: v for k, v in (table.schema.metadata or {}).items() if k != LAYOUT_KEY}
    return table.replace_schema_metadata(metadata or None)


def _texts(column: Any) -> Any:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_floating(kind):  # NaN is an empty cell
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind):
        column = pa.array([None if v is None else str(v) for v in column.to_pylist()])
    return pc.fill_null(column.cast(pa.string()), "")


def _quoted(texts: Any, sep: str, *, alone: bool) -> Any:
    special = pc.or_(pc.match_substring(texts, sep), pc.match_substring_regex(texts, '["\\r\\n]'))
    if alone:  # an empty line would read as no row
        special = pc.or_(special, pc.equal(texts, ""))
    if not pc.any(special).as_py():
        return texts
    doubled = pc.replace_substring(texts, '"', '""')
    quoted = pc.binary_join_element_wise('"', doubled, '"', "")
    return pc.if_else(special, quoted, texts)
