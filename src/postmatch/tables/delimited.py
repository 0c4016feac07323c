"""Delimited text: finding its layout, and reading every cell as the text it is."""

import codecs
import csv
import gzip
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, final

import pyarrow as pa
import pyarrow.csv

SEPARATORS = ("\t", ";", ",", "|")  # the first that fits every line; 1,5;2,5 is cut at ;
LAYOUT_KEY = b"postmatch.layout"
HEAD = 1 << 20  # bytes looked at to find the layout
BLOCK = 1 << 22  # bytes parsed at once

Opener = Callable[[], IO[bytes]]


@final
@dataclass(frozen=True)
class Layout:
    """How a text file is laid out; travels in the schema's metadata, so that a writer repeats it.

    Args:
        sep: The character between cells.
        header: Whether the first line holds the names.
        suffix: Of the file, such as ``.csv``; none of stdin.
    """

    sep: str = ","
    header: bool = True
    suffix: str = ""

    def attach(self, table: Any) -> Any:
        """Return the table with this layout in its metadata."""
        note = json.dumps(asdict(self)).encode()
        return table.replace_schema_metadata({**(table.schema.metadata or {}), LAYOUT_KEY: note})

    @staticmethod
    def of(schema: Any) -> "Layout | None":
        """Return the layout of the text file that a schema came from, if it did."""
        note = (schema.metadata or {}).get(LAYOUT_KEY)
        return None if note is None else Layout(**json.loads(note))

    def sep_for(self, suffix: str) -> str:
        """Return what separates the cells of a file with this suffix, written from this one.

        Its own separator, but for one that another suffix than its own does not promise.
        """
        if suffix == ".tsv":
            return "\t"
        strange = suffix == ".csv" and suffix != self.suffix and self.sep not in (",", ";")
        return "," if strange else self.sep


def text_suffix(path: str | Path) -> str:
    """Return the suffix of a text file, less that of its compression; none of stdin.

    Example:
        >>> text_suffix("people.CSV.gz")
        '.csv'
    """
    suffixes = [suffix.lower() for suffix in Path(path).suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""


def text_blocks(path: str | Path, sep: str | None, *, header: bool, gzipped: bool) -> Iterator[Any]:
    """Yield a text file as tables of text cells, at least one, with its layout in the metadata."""
    if sep is not None and len(sep) != 1:
        raise ValueError(f"sep must be one character, got {sep!r}")
    opener = _opener(path, gzipped=gzipped)
    encoding = _encoding(opener, path)
    with opener() as file:
        head = file.read(HEAD).decode(encoding, errors="ignore")
    if not head.strip():
        raise ValueError(f"{path}: the file is empty")
    if sep is None:
        sep = find_separator(head, "\t" if text_suffix(path) == ".tsv" else ",")
    first, lines = _first_row(head, sep)
    names = first if header else [f"x{position}" for position in range(len(first))]
    layout = Layout(sep, header, text_suffix(path))
    keys = [str(position) for position in range(len(names))]  # names may repeat
    try:
        with opener() as file:
            reader = pyarrow.csv.open_csv(
                file,
                pyarrow.csv.ReadOptions(
                    column_names=keys,
                    skip_rows=lines if header else 0,
                    encoding="utf8" if encoding == "utf-8-sig" else encoding,
                    block_size=BLOCK,
                ),
                pyarrow.csv.ParseOptions(
                    delimiter=sep,
                    newlines_in_values=True,
                    ignore_empty_lines=len(names) > 1,  # in one column, an empty line is a hole
                ),
                pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(keys, pa.string()), strings_can_be_null=False
                ),
            )
            empty = reader.schema.empty_table().rename_columns(names)
            yield layout.attach(empty)
            for batch in reader:
                yield layout.attach(pa.Table.from_batches([batch]).rename_columns(names))
    except pa.ArrowInvalid as error:
        if any(text in str(error) for text in ("Empty CSV", "Could not skip")):  # only a header
            yield layout.attach(pa.table([pa.array([], pa.string())] * len(names), names=names))
        elif "columns, got" in str(error):
            raise ValueError(_ragged(opener, encoding, sep, len(names), path)) from None
        else:
            raise


def find_separator(head: str, default: str = ",") -> str:
    """Return the separator that cuts the first lines into equally many cells, more than one."""
    lines = (head[: head.rfind("\n") + 1] or head).splitlines()[:50]  # the last may be cut off
    best, most = default, 0.0
    for sep in (default, *SEPARATORS) if default == "\t" else SEPARATORS:
        widths = [len(row) for row in csv.reader(lines, delimiter=sep) if row]
        if widths[0] < 2:
            continue
        share = widths.count(widths[0]) / len(widths)
        if share > most:
            best, most = sep, share
    return best


def _opener(path: str | Path, *, gzipped: bool) -> Opener:
    if str(path) == "-":
        data = sys.stdin.buffer.read()
        return lambda: io.BytesIO(data)
    if gzipped:
        return lambda: gzip.open(path)  # type: ignore[return-value]
    return lambda: open(path, "rb")


def _encoding(opener: Opener, path: str | Path) -> str:
    """Return UTF-8 if the whole file is, UTF-16 if it says so, else Latin-1 with a warning."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with opener() as file:
        block = file.read(HEAD)
        if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        try:
            while block:
                decoder.decode(block)
                block = file.read(HEAD)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            warnings.warn(f"{path}: is not UTF-8, read as Latin-1", UserWarning, stacklevel=2)
            return "latin-1"
    return "utf-8-sig"


def _first_row(head: str, sep: str) -> tuple[list[str], int]:
    """Return the cells of the first line that holds any, and how many lines end with it."""
    reader = csv.reader(io.StringIO(head, newline=""), delimiter=sep)
    for row in reader:
        if row:
            return row, reader.line_num
    return [""], 1


def _ragged(opener: Opener, encoding: str, sep: str, width: int, path: str | Path) -> str:
    """Return the message that names the first line with another number of cells."""
    with opener() as file, io.TextIOWrapper(file, encoding, newline="") as text:
        reader = csv.reader(text, delimiter=sep)
        for row in reader:
            if row and len(row) != width:
                return (
                    f"{path}, line {reader.line_num}: expected {width} cells "
                    f"separated by {sep!r}, got {len(row)}"
                )
    return f"{path}: lines differ in their number of cells"
