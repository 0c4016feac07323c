"""Files: the text that was read is the text that is written, and never half of it."""

import gzip
import io
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postmatch.tables import Table, open_writer, read_table, stream_table, write_table
from postmatch.tables.writing import check_writable

CUT_SHORT = gzip.compress(b"a,b\n" * 9_999, mtime=0)[:40]  # the same in every process


def sample(rows: int = 15) -> pa.Table:
    return pa.table(
        {
            "n": [None if row % 4 == 1 else row for row in range(rows)],
            "t": [None if row % 4 == 2 else f"v{row % 3}" for row in range(rows)],
            "c": pa.array([f"l{row % 2}" for row in range(rows)]).dictionary_encode(),
        }
    )


@pytest.mark.parametrize("suffix", ["parquet", "pq", "feather", "arrow"])
@pytest.mark.parametrize("size", [1, 4, 7, 15, 100])
def test_binary_files_come_back_equal_in_blocks_of_one_size(
    tmp_path: Path, suffix: str, size: int
) -> None:
    path = tmp_path / f"table.{suffix}"
    with open_writer(path) as writer:
        for start, length in ((0, 6), (6, 1), (7, 8)):
            writer.write(sample().slice(start, length))
    blocks = list(stream_table(path, rows=size))
    assert [block.num_rows for block in blocks[:-1]] == [size] * (len(blocks) - 1)
    assert read_table(path).schema == sample().schema
    assert pa.concat_tables(blocks).to_pylist() == sample().to_pylist()


TEXTS = {
    "plain.csv": "a,b\n007,1.10\n ?,\n",
    "tabs.tsv": "a\tb\n1\tx y\n",
    "semicolon.csv": "a;b\n1,5;2,5\n3,5;4,5\n",
    "bars.txt": "a|b\n1|2\n",
    "quotes.csv": 'a,b\n"x,y","say ""hi"""\n"two\nlines",z\n',
    "twice.csv": "a,a\n1,2\n",
    "blanks.data": "39, State-gov, ?\n50, Private, x\n",
    "one.csv": 'a\n1\n""\n3\n',
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("zipped", ["", ".gz"])
def test_text_is_written_back_as_it_was(tmp_path: Path, name: str, zipped: str) -> None:
    source, copy = tmp_path / f"{name}{zipped}", tmp_path / f"copy-{name}{zipped}"
    opener: Any = gzip.open if zipped else open
    with opener(source, "wt", newline="") as file:
        file.write(TEXTS[name])
    table = read_table(source, header=name != "blanks.data")
    write_table(table, copy)
    with opener(copy, "rt", newline="") as file:
        assert file.read() == TEXTS[name]


cell = st.text(st.sampled_from('ab ,;"\n\r?é1.'), max_size=5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(cell, cell, cell), min_size=1, max_size=8))
def test_any_text_survives_a_file(tmp_path_factory: Any, rows: list[tuple[str, ...]]) -> None:
    path = tmp_path_factory.mktemp("files") / "any.csv"
    table = pa.table([list(column) for column in zip(*rows, strict=True)], names=["p", "q", "p"])
    write_table(table, path)
    again = read_table(path, sep=",")
    assert again.column_names == ["p", "q", "p"]
    assert [c.to_pylist() for c in again.columns] == [c.to_pylist() for c in table.columns]


def test_a_filled_text_file_differs_in_its_holes_only(tmp_path: Path) -> None:
    path = tmp_path / "holes.data"
    path.write_text("39, State-gov, 1.10\n50, ?, 2.20\n ?, Private, 3.30\n41, Private, ?\n")
    data = read_table(path, header=False)
    table = Table.fit(data)
    x, _ = table.encode(data)
    with open_writer(path) as writer:
        writer.write(table.decode(x, data))
    lines = path.read_text().splitlines()
    assert lines[0] == "39, State-gov, 1.10"
    assert lines[1] == "50, Private, 2.20"
    assert lines[2].endswith(", Private, 3.30")
    assert lines[3] == "41, Private, 2.20"


def test_blocks_do_not_depend_on_how_the_file_is_cut(tmp_path: Path) -> None:
    table = pa.table({"n": list(range(1_000))})
    for groups in (10, 300, 1_000):
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=groups)
        blocks = [
            block.column("n").to_pylist()
            for block in stream_table(tmp_path / "t.parquet", rows=256)
        ]
        assert [len(block) for block in blocks] == [256, 256, 256, 232]
        assert [n for block in blocks for n in block] == list(range(1_000))


def test_a_file_without_rows_still_has_columns(tmp_path: Path) -> None:
    for text in ("a,b", "a,b\n"):
        (tmp_path / "t.csv").write_text(text)
        (block,) = stream_table(tmp_path / "t.csv")
        assert block.column_names == ["a", "b"]
        assert block.num_rows == 0
        write_table(block, tmp_path / "copy.csv")
        assert (tmp_path / "copy.csv").read_text() == "a,b\n"


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    write_table(sample(), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", columns=["t", "n"]).column_names == ["t", "n"]
    with pytest.raises(ValueError, match=r"t\.parquet: no column is named 'z'"):
        read_table(tmp_path / "t.parquet", columns=["z"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            b"a,b\n1,2\n1,2,3\n",
            r"a\.csv, line 3: expected 2 cells separated by ',', got 3",
        ),
        ("a.csv", b'a,b\n"1\n1",2\n1\n', r"a\.csv, line 4: expected 2 cells"),
        ("a.csv", b"", r"a\.csv: the file is empty"),
        ("a.csv", b"\n\n", r"a\.csv: the file is empty"),
        ("a.parquet", b"PAR1 or not", r"a\.parquet: cannot be read as parquet"),
        ("a.feather", b"not at all", r"a\.feather: cannot be read as feather"),
        ("a.csv.gz", b"not zipped", r"a\.csv\.gz: cannot be read as text"),
        ("a.csv.gz", CUT_SHORT, r"a\.csv\.gz: cannot be read as text"),
        ("a.xlsx", b"PK", r"a\.xlsx: the format is told by the suffix"),
    ],
)
def test_what_cannot_be_read_is_one_clear_error(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / name)


def test_no_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.csv: no such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="is a directory"):
        read_table(tmp_path)
    (tmp_path / "a.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match="sep must be one character"):
        read_table(tmp_path / "a.csv", sep="::")
    with (
        pytest.raises(FileNotFoundError, match="no such folder"),
        open_writer(tmp_path / "none" / "a.csv"),
    ):
        pass


def test_encodings_other_than_utf8_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for encoding in ("utf-8-sig", "utf-16"):
        path.write_bytes("ä;b\né;2\n".encode(encoding))
        assert read_table(path).to_pylist() == [{"ä": "é", "b": "2"}]
    path.write_bytes("ä;b\né;2\n".encode("latin-1"))
    with pytest.warns(UserWarning, match=r"t\.csv: is not UTF-8, read as Latin-1"):
        assert read_table(path).to_pylist() == [{"ä": "é", "b": "2"}]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "feather"])
def test_a_failure_midway_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, suffix: str, error: type[BaseException]
) -> None:
    path = tmp_path / f"t.{suffix}"
    path.write_bytes(b"old")
    with pytest.raises(error), open_writer(path) as writer:  # noqa: PT012
        writer.write(sample())
        raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "t.csv", tmp_path / "link.csv"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_table(pa.table({"a": [1]}), link)
    assert link.is_symlink()
    assert path.read_text() == "a\n1\n"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_dash_is_stdin_and_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a;b\n1;?\n")))
    out = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", out)
    write_table(read_table("-"), "-")
    assert out.buffer.getvalue() == b"a;b\n1;?\n"


@pytest.mark.parametrize(
    ("source", "copy", "sep"),
    [
        ("t.tsv", "t.csv", ","),
        ("t.tsv", "t.csv.gz", ","),
        ("t.tsv", "t.txt", "\t"),
        ("tabs.csv", "t.csv", "\t"),
        ("tabs.csv", "t.tsv", "\t"),
        ("bars.txt", "t.csv", ","),
        ("semicolons.txt", "t.csv", ";"),
    ],
)
def test_the_suffix_of_a_copy_decides_its_separator_where_it_promises_one(
    tmp_path: Path, source: str, copy: str, sep: str
) -> None:
    own = {"t": "\t", "tabs": "\t", "bars": "|", "semicolons": ";"}[source.split(".")[0]]
    (tmp_path / source).write_text(f"a{own}b\n1{own}x\n")
    write_table(read_table(tmp_path / source), tmp_path / copy)
    opener: Any = gzip.open if copy.endswith(".gz") else open
    with opener(tmp_path / copy, "rt") as file:
        assert file.read() == f"a{sep}b\n1{sep}x\n"


def test_what_cannot_be_written_is_an_error_about_the_file_itself(tmp_path: Path) -> None:
    place = Path("/proc/filled.csv")  # where not even root can make a file
    if not place.parent.is_dir():
        pytest.skip("needs a folder in which no file can be made")
    for attempt in (check_writable, lambda path: write_table(pa.table({"a": [1]}), path)):
        with pytest.raises(OSError, match=r"'/proc/filled\.csv'"):
            attempt(place)
    check_writable(tmp_path / "new.csv")
    check_writable("/dev/null")
    assert list(tmp_path.iterdir()) == []


def test_a_text_file_can_become_another_format(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;b\n1;x,y\n")
    table = read_table(tmp_path / "t.csv")
    write_table(table, tmp_path / "t.tsv")
    assert (tmp_path / "t.tsv").read_text() == "a\tb\n1\tx,y\n"
    write_table(table, tmp_path / "t.parquet")
    assert pq.read_schema(tmp_path / "t.parquet").metadata is None
    write_table(pa.table({"f": [1.5, None], "b": [True, False]}), tmp_path / "n.csv")
    assert (tmp_path / "n.csv").read_text() == "f,b\n1.5,true\n,false\n"
