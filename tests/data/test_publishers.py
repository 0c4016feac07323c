"""The files of the UCI repository: where they are found, and what is said of wrong ones."""

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from postmatch.data import official, publishers, uci

Writers = dict[str, Callable[..., Any]]
TABLES = ("power", "gas", "hepmass", "miniboone")


def lengths(found: uci.Splits) -> tuple[int, int, int]:
    return len(found.train), len(found.val), len(found.test)


@pytest.mark.parametrize("name", TABLES)
def test_small_blocks_and_second_readings_change_nothing(
    name: uci.Name, uci_folder: Path, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers[name](uci_folder)
    whole = uci.load(name)
    monkeypatch.setattr(publishers, "BLOCK", 700)
    pieces = uci.load(name, most_rows=40)
    assert torch.equal(pieces.train, whole.train[:40])
    assert torch.equal(pieces.val, whole.val)
    assert torch.equal(pieces.test, whole.test)


@pytest.mark.parametrize("name", TABLES)
def test_files_are_read_inside_the_archive_that_they_come_in(
    name: Any, uci_folder: Path, writers: Writers
) -> None:
    writers[name](uci_folder)
    plain = uci.load(name)
    paths = [*uci_folder.iterdir()]
    archive = official.SOURCES[name].archives[-1]
    with zipfile.ZipFile(uci_folder / archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in paths:
            file.write(path, f"inside/{path.name}")
            path.unlink()
    zipped = uci.load(name)
    assert torch.equal(zipped.train, plain.train)
    assert torch.equal(zipped.test, plain.test)
    assert [path.name for path in uci_folder.iterdir()] == [archive]


@pytest.mark.parametrize("name", TABLES)
def test_a_file_that_is_cut_short_is_named(
    name: uci.Name, uci_folder: Path, writers: Writers
) -> None:
    writers[name](uci_folder)
    path = sorted(uci_folder.iterdir())[0]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=rf"{path.name}.* it is cut short, or not"):
        uci.load(name)
    path.write_bytes(content[:120])
    with pytest.raises(ValueError, match=path.name):
        uci.load(name)


def test_a_table_that_ends_after_whole_lines_is_short_of_rows(
    uci_folder: Path, writers: Writers
) -> None:
    writers["power"](uci_folder)
    path = uci_folder / "household_power_consumption.txt"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match="expected 120 rows without gaps, found 119"):
        uci.load("power")
    path.write_text(lines[0])
    with pytest.raises(ValueError, match="ends after its first line"):
        uci.load("power")
    writers["hepmass"](uci_folder, ".csv")
    path = uci_folder / "1000_test.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:58]))
    with pytest.raises(ValueError, match="expected 30 or more rows with the label 1, found 29"):
        uci.load("hepmass")
    writers["miniboone"](uci_folder)
    path = uci_folder / "MiniBooNE_PID.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(ValueError, match="expected 100 rows, as its first line says, found 98"):
        uci.load("miniboone")


def test_another_file_of_that_name_is_not_taken(
    uci_folder: Path, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in TABLES:
        writers[name](uci_folder)
    train = uci_folder / "1000_train.csv.gz"
    text = gzip.decompress(train.read_bytes()).replace(b"\n", b",750.0\n")
    train.write_bytes(gzip.compress(text))
    with pytest.raises(ValueError, match=r"1000_train.csv.gz cannot be read .*Expected 28 columns"):
        uci.load("hepmass")
    train.write_bytes(b"<html>no longer here</html>")
    with pytest.raises(ValueError, match=r"1000_train.csv.gz cannot be read .*gzipped"):
        uci.load("hepmass")
    (uci_folder / "household_power_consumption.txt").write_text("Date,Time\n1,2\n")
    with pytest.raises(ValueError, match="first line must begin with 'Date;Time;Global_active"):
        uci.load("power")
    (uci_folder / "MiniBooNE_PID.txt").write_text("f0 f1\n1 2\n")
    with pytest.raises(ValueError, match="how many signals and backgrounds follow, got 'f0 f1'"):
        uci.load("miniboone")
    monkeypatch.setitem(official.FEATURES, "gas", 9)
    with pytest.raises(ValueError, match="expected 9 features that are not left out, found 8"):
        uci.load("gas")


def test_what_is_no_number_is_told(uci_folder: Path, writers: Writers) -> None:
    writers["miniboone"](uci_folder)
    path = uci_folder / "MiniBooNE_PID.txt"
    lines = path.read_text().splitlines(keepends=True)
    lines[9] = "nan " + lines[9][16:]
    path.write_text("".join(lines))
    with pytest.raises(ValueError, match="expected 0 cells that are no finite number, found 1"):
        uci.load("miniboone")


def test_official_files_win_over_a_prepared_part_unless_one_is_missing(
    uci_folder: Path, writers: Writers
) -> None:
    prepared = {key: np.full((3, 21), 7.0, np.float32) for key in ("train", "val", "test")}
    np.savez(uci_folder / "hepmass.npz", **prepared)  # type: ignore[arg-type]
    assert lengths(uci.load("hepmass")) == (3, 3, 3)
    writers["hepmass"](uci_folder)
    assert lengths(uci.load("hepmass")) == (90, 10, 30)
    test = uci_folder / "1000_test.csv.gz"
    content = test.read_bytes()
    test.unlink()
    assert lengths(uci.load("hepmass")) == (3, 3, 3)
    test.write_bytes(content[:500])
    with pytest.raises(ValueError, match=r"1000_test\.csv\.gz"):  # never the other one in silence
        uci.load("hepmass")
    test.unlink()
    (uci_folder / "hepmass.zip").write_bytes(b"PK\x03\x04 and no end")
    with pytest.raises(ValueError, match=r"hepmass.zip cannot be read .*zip"):
        uci.load("hepmass")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("power", ["household_power_consumption.txt", "UCI: Individual household electric power"]),
        ("gas", ["ethylene_CO.txt", "UCI: Gas sensor array under dynamic gas mixtures"]),
        ("hepmass", ["1000_train.csv.gz and 1000_test.csv.gz", "UCI: HEPMASS"]),
        ("miniboone", ["MiniBooNE_PID.txt", "UCI: MiniBooNE particle identification"]),
        ("bsds", ["BSDS300-images.tgz", "Berkeley Segmentation Dataset", "eecs.berkeley.edu"]),
    ],
)
def test_what_is_missing_is_named_with_its_page_and_its_place(
    name: uci.Name, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTMATCH_DATA", str(tmp_path))
    folder = "bsds300" if name == "bsds" else "uci"
    prepared = "bsds300_jpg.zip" if name == "bsds" else f"{name}.npz"
    with pytest.raises(FileNotFoundError) as no_folder:
        uci.load(name)
    (tmp_path / folder).mkdir()
    with pytest.raises(FileNotFoundError) as no_file:
        uci.load(name)
    for words in wanted:
        assert words in str(no_folder.value)
        assert words in str(no_file.value)
    assert f"put into {folder}/" in str(no_folder.value)
    assert f"{tmp_path / folder} holds neither the official files nor {prepared}" in str(
        no_file.value
    )
    assert name == "bsds" or "archive.ics.uci.edu" in str(no_file.value)
