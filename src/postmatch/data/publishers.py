"""Files as their publishers ship them: found, opened where they lie, read in blocks."""

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

BLOCK = 1 << 24  # bytes parsed at once
UNREADABLE = (
    pa.ArrowInvalid,
    gzip.BadGzipFile,
    tarfile.ReadError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,  # zipfile's, of a compression that it does not know
)


@final
@dataclass(frozen=True)
class Place:
    """Where a file lies.

    Args:
        path: Of the file, or of the zip archive that holds it.
        member: Its name inside that archive.
    """

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}/{self.member}"

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Give the file's bytes, decompressed as they are read; nothing is written."""
        with ExitStack() as stack:
            if self.member is None:
                file = cast(IO[bytes], stack.enter_context(self.path.open("rb")))
            else:
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                file = stack.enter_context(archive.open(self.member))
            if (self.member or self.path.name).endswith(".gz"):
                file = cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=file)))
            yield file


def find(folder: Path, names: Sequence[str], archives: Sequence[str]) -> Place | None:
    """Return the first of the names that the folder holds, or one of its zip archives does."""
    for name in names:
        if (folder / name).is_file():
            return Place(folder / name)
    for path in (folder / name for name in archives):
        if path.is_file():
            with readable(path, f"a zip archive of {names[0]}"), zipfile.ZipFile(path) as archive:
                members = archive.namelist()
            for member in members:
                if PurePosixPath(member).name in names:
                    return Place(path, member)
    return None


@contextmanager
def readable(place: Place | Path, what: str) -> Iterator[None]:
    """Say which file it was, and what it should have been, if it cannot be read.

    Raises:
        ValueError: If what happens inside says that a file is damaged.
    """
    try:
        yield
    except UNREADABLE as error:
        raise ValueError(
            f"{place} cannot be read ({error}): it is cut short, or not {what}"
        ) from error


def expect(place: Place | Path, what: str, expected: int, found: int) -> None:
    """Raise a ValueError if a file holds another number of something than it should."""
    if found != expected:
        raise ValueError(
            f"{place}: expected {expected:,} {what}, found {found:,}: "
            "it is cut short, or not the file that its publisher ships"
        )


def read_rows(
    file: IO[bytes],
    columns: Sequence[str],
    keep: Sequence[str],
    *,
    sep: str | None,
    gaps: Sequence[str] = (),
) -> Iterator[NDArray[np.float64]]:
    """Yield the numbers of the columns to keep, a block of rows at a time.

    Args:
        file: Where the next line is the first row.
        columns: The names of all columns.
        keep: Those to return, in this order; one named Time becomes seconds since midnight.
        sep: What stands between two cells; any white space if None.
        gaps: What stands for a number that is missing, which becomes NaN.
    """
    types = {name: pa.time32("s") if name == "Time" else pa.float64() for name in keep}
    parse = pyarrow.csv.ParseOptions(delimiter=sep or ",", quote_char=False)
    convert = pyarrow.csv.ConvertOptions(
        column_types=types, include_columns=list(keep), null_values=list(gaps)
    )
    read = pyarrow.csv.ReadOptions(column_names=list(columns))
    for block in _blocks(file):
        lines = _with_commas(block) if sep is None else block
        table = pyarrow.csv.read_csv(pa.BufferReader(lines), read, parse, convert)
        yield np.column_stack([_numbers(table[name]) for name in keep])  # (rows, columns)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield whole lines, about ``BLOCK`` bytes of them at a time."""
    rest = b""
    while piece := file.read(BLOCK):
        lines, newline, rest = (rest + piece).rpartition(b"\n")
        if lines.strip():
            yield lines + newline
    if rest.strip():
        yield rest


def _with_commas(lines: bytes) -> bytes:
    """Return lines with one comma for the white space between two cells, and none around them."""
    # Plain replacements take a third of the time of a regular expression.
    lines = lines.replace(b"\t", b" ").replace(b"\r", b" ")
    while b"  " in lines:
        lines = lines.replace(b"  ", b" ")
    lines = lines.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip(b" ")
    return lines.replace(b" ", b",")


def _numbers(column: Any) -> NDArray[np.float64]:
    values = column.cast(pa.int32()) if pa.types.is_time(column.type) else column
    return np.asarray(values.to_numpy(), np.float64)
