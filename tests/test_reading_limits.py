"""Files that were made to hurt: what they cost stays bounded, and what can be read after them is read."""

import csv
import gzip
import io
import json
import os
import struct
import threading
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from softkv.errors import BadRecord
from softkv.files import Columns, Record, records

from .records import error_of, refused
from .scales import scaled
from .servers import eventually

MIB = 1 << 20


@pytest.fixture
def table(tmp_path: Path) -> Callable[[str | bytes, str], str]:
    """Writes a file and gives its path."""

    def write(content: str | bytes, name: str = "films.csv") -> str:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return str(tmp_path / name)

    return write


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """What is done within takes no more memory than this, at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= size, f"{peak:,} bytes"


def test_the_check_for_memory_is_seen_failing() -> None:
    """More than was allowed is found out."""
    with pytest.raises(AssertionError, match="bytes"), at_most(MIB):
        bytearray(2 * MIB)


@pytest.mark.parametrize("size", [1, 50])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_line_that_is_too_long_is_skipped(
    table: Any, size: int, end: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and the lines after it are read and counted as they stand."""
    monkeypatch.setattr("softkv.files.lines.LONGEST_RECORD", 300)
    scaled(monkeypatch, characters=size)
    if name == "a.csv":
        lines = ["key,value", "a,1", "x" * 1000 + ",2", "b,3", "y" * 2000]
    else:
        lines = ["", '{"key": "a", "value": 1}', "x" * 1000, '{"key": "b", "value": 3}', "y" * 2000]
    good, said = refused(table(end.join(lines), name))
    assert [(record.line, record.key, record.value) for record in good] == [(2, "a", 1), (4, "b", 3)]
    assert said == [f"{name}:{line}: the line is longer than 300 characters" for line in (3, 5)]


def test_a_line_without_an_end_costs_no_more_than_the_limit(table: Any) -> None:
    """A small file that unpacks to a very long line is refused, and what comes after it is read."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        for _ in range(100):
            file.write(bytes(MIB))
        file.write(b'\n{"key": "a", "value": 1}\n')
    path = table(packed.getvalue(), "bomb.jsonl.gz")
    with at_most(80 * MIB):
        good, said = refused(path)
    assert [(record.line, record.key) for record in good] == [(2, "a")]
    assert said == ["bomb.jsonl.gz:1: the line is longer than 33,554,432 characters"]


def test_long_fields_are_read_and_the_limit_of_csv_is_left_alone(table: Any) -> None:
    """The csv module refuses more than 131,072 characters; that is a setting of the process, and not ours to change."""
    before = csv.field_size_limit()
    reading = records(table("key,value\n" + f"a,{'x' * MIB}\n" * 5))
    for record in reading:
        assert len(record.value) == MIB
        assert csv.field_size_limit() == before
    abandoned = records(table('key,value\na,1\n"'))
    next(abandoned)
    assert csv.field_size_limit() == before
    with pytest.raises(BadRecord):
        next(abandoned)
    assert csv.field_size_limit() == before


def test_the_limit_of_csv_is_left_alone_by_two_files_that_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ends while the second is in the middle of a long field."""
    before, found = csv.field_size_limit(), list[Record]()
    os.mkfifo(tmp_path / "a.csv")
    first = threading.Thread(target=lambda: found.extend(records(str(tmp_path / "a.csv"))))
    first.start()
    with open(tmp_path / "a.csv", "w") as pipe:
        pipe.write("key,value\n" + "a,1\n" * 30_000)
        pipe.flush()
        assert eventually(lambda: csv.field_size_limit() != before)

        class Second(io.BytesIO):
            """Ends the first file on the way."""

            def read1(self, size: int | None = -1) -> bytes:
                """Some bytes."""
                if self.tell() > 100_000:
                    pipe.close()
                    first.join()
                return super().read1(min(size or 0, 1 << 16))

        second = Second(f"key,value\nb,{'x' * MIB}\n".encode())
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=second))
        (record,) = records("-", format="csv")
    assert (len(found), len(record.value), csv.field_size_limit()) == (30_000, MIB, before)


def test_a_quote_that_never_closes_is_named_where_it_opens(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file ends, or the field grows too long; the lines after it are rows again."""
    content = 'key,value\na,1\n"b,2\nc,3\n'
    assert refused(table(content))[1] == ["films.csv:3: a quote is opened here and never closed"]
    monkeypatch.setattr("softkv.files.rows.LONGEST_TEXT", 50)
    good, said = refused(table(content + "d,4\n" * 20))
    assert said == ["films.csv:3: a field is longer than 50 characters; is a quote not closed?"]
    assert {record.key for record in good} == {"a", "d"}


def test_a_row_of_ever_more_lines_ends_the_reading(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field is short, and yet the row never ends."""
    for module in ("rows", "lines"):
        monkeypatch.setattr(f"softkv.files.{module}.LONGEST_RECORD", 1000)
    scaled(monkeypatch, characters=100)
    content = "key,value\na,1\n" + 'b,"\n",' + '"\n",' * 1000
    reading = records(table(content), on_bad=[].append)
    assert next(reading).key == "a"
    with pytest.raises(BadRecord, match=r"the row is longer than 1,000 characters; is a quote not closed"):
        next(reading)


def test_rows_that_are_long_are_not_gathered(table: Any) -> None:
    """A batch of a thousand long rows would be the whole file."""
    path = table("key,value\n" + f"a,{'x' * MIB}\n" * 50)
    with at_most(25 * MIB):
        assert sum(1 for _ in records(path)) == 50


@pytest.mark.parametrize("cell", ["[" * 100_000, '"' + "[" * 65 + "]" * 65 + '"'])
def test_json_in_a_cell_may_not_be_deep(table: Any, cell: str) -> None:
    """A payload may not, nor a vector; no error of recursion comes through."""
    for name in ("payload", "vector"):
        good, said = refused(table(f"key,value,{name}\na,1,{cell}\nb,2,[3]\n"))
        assert [record.key for record in good] == ["b"]
        assert [message.split(": ")[0] for message in said] == ["films.csv:2"]


def test_an_element_without_an_end_costs_no_more_than_the_limit(table: Any) -> None:
    """What came before it in the document was given."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        file.write(b'[{"key": "a", "value": 1},\n"')
        for _ in range(120):
            file.write(b"x" * MIB)
    path = table(packed.getvalue(), "bomb.json.gz")
    with at_most(200 * MIB):
        reading = records(path)
        assert next(reading).key == "a"
        with pytest.raises(BadRecord, match=r"bomb\.json\.gz:2: the element is longer than 33,554,432 characters"):
            next(reading)


def npy(shape: tuple[int, ...], body: bytes = b"", descr: object = "<f8", version: int = 1) -> bytes:
    """A .npy file whose header says what it likes."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + body


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (npy((10**12, 4), bytes(64)), "has 192 bytes, but its header promises 32,000,000,000,128"),
        (npy((2, 10**12), bytes(64)), "its rows have 8,000,000,000,000 bytes"),
        (npy((-1, 2), bytes(64)), "its shape is (-1, 2)"),
        (npy((4, 2), bytes(63)), "promises 192"),
        (npy((4, 2), bytes(65)), "promises 192"),
        (npy((8,), bytes(64)), "holds an array of shape (8,); a matrix"),
        (npy((4, 2), bytes(64), "|O"), "it holds Python objects"),
        (npy((4, 2), bytes(64), [("a", "|O")]), "it holds Python objects"),
        (npy((4, 2), bytes(64), [("a", "<f8")]), "its dtype is"),
        (npy((4, 2), bytes(64), "<M8[s]"), "its dtype is"),
        (npy((4, 2), bytes(64), "nonsense"), "its header cannot be read"),
        (npy((4, 2), bytes(64), version=3), "it is no array of format 1 or 2"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "its header has 4,294,967,295 bytes"),
        (b"\x93NUMPY\x01\x00\x05", "its header cannot be read"),
        (b"\x93NUMPY\x01\x00" + struct.pack("<H", 5000) + b"(" * 5000, "its header cannot be read"),
        (b"\x93NUMPY\x01\x00" + struct.pack("<H", 100) + b"{}", "its header cannot be read"),
        (b"", "it is no array of format 1 or 2"),
        (b"nonsense" * 10, "it is no array of format 1 or 2"),
    ],
)
def test_a_header_that_lies_costs_nothing(table: Any, content: bytes, why: str) -> None:
    """It is refused before anything is set aside for what it promises."""
    path = table(content, "a.npy")
    with at_most(4 * MIB):
        message = error_of(path)
    assert message.startswith("a.npy: ")
    assert why in message


def test_a_header_of_format_2_is_read(table: Any) -> None:
    """NumPy writes it for long headers."""
    path = table(npy((1, 2), struct.pack("<2d", 3, 4), version=2), "a.npy")
    assert [record.vector.tolist() for record in records(path)] == [[3, 4]]  # type: ignore[union-attr]


def test_a_pipe_or_archive_that_promises_more_ends_where_it_ends(table: Any, monkeypatch: Any) -> None:
    """Where no size is known beforehand, the rows that are there are given first."""
    promised = npy((10**9, 2), np.arange(2000.0).tobytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(promised)))
    with (
        at_most(16 * MIB),
        pytest.raises(BadRecord, match="it ends before the last of the rows that its header promises"),
    ):
        list(records("-"))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("vectors.npy", promised)
    with at_most(16 * MIB):
        assert "the array 'vectors' cannot be read: it ends before" in error_of(table(packed.getvalue(), "a.npz"))
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("vectors.npy", npy((1, 2), bytes(17)))
    assert "there are more bytes than its header says" in error_of(table(packed.getvalue(), "a.npz"))


def test_an_archive_is_unpacked_as_it_is_read(tmp_path: Path) -> None:
    """A small one may hold more than fits in memory."""
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, vectors=np.zeros((1_000_000, 16)), values=np.zeros(1_000_000))
    assert path.stat().st_size < MIB
    with at_most(24 * MIB):
        reading = records(str(path))
        assert next(reading).line == 1
        del reading


def test_equal_texts_of_a_table_are_held_once(tmp_path: Path) -> None:
    """The file holds them once; one of 1 MiB in every row does not unfold in memory."""
    path = str(tmp_path / "a.parquet")
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 300, pyarrow.int32()), ["x" * MIB])
    pyarrow.parquet.write_table(pyarrow.table({"key": [str(i) for i in range(300)], "value": texts}), path)
    with at_most(24 * MIB):
        assert sum(1 for _ in records(path)) == 300


def test_a_matrix_that_is_cut_short_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """What was read before is given; a map of the file would end the process."""
    path = tmp_path / "v.npy"
    np.save(path, np.ones((20_000, 512)))
    reading = records(str(path))
    assert next(reading).line == 1
    with open(path, "r+b") as file:
        file.truncate(1 << 25)
    with pytest.raises(BadRecord, match="it ends before the last of the rows"):
        list(reading)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json", "npy", "npz", "parquet"])
def test_a_large_file_is_read_in_little_memory(tmp_path: Path, ending: str) -> None:
    """Less than half of 64 MiB or more is held at any time, in every format."""
    path = tmp_path / f"a.{ending}"
    rows = [{"key": str(number), "value": f"{number:>65536}"} for number in range(1024)]
    if ending in ("npy", "npz"):
        wide = np.ones((1024, 8192))
        np.save(path, wide) if ending == "npy" else np.savez(path, vectors=wide, values=wide[:, 0])
    elif ending == "parquet":
        table = pyarrow.Table.from_pylist(rows)
        pyarrow.parquet.write_table(table, path, row_group_size=64, compression="none", use_dictionary=False)
    elif ending == "csv":
        path.write_text("key,value\n" + "".join(f"{one['key']},{one['value']}\n" for one in rows))
    else:
        path.write_text(json.dumps(rows) if ending == "json" else "\n".join(map(json.dumps, rows)))
    assert path.stat().st_size >= 64 * MIB
    del rows
    with at_most(30 * MIB):
        assert sum(1 for _ in records(str(path))) == 1024


def test_a_column_major_matrix_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows lie scattered, so it is read whole, and only up to a size."""
    path = str(tmp_path / "v.npy")
    np.save(path, np.asfortranarray(np.ones((100, 3))))
    monkeypatch.setattr("softkv.files.arrays.LARGEST_WHOLE", 100 * 3 * 8)
    assert len(list(records(path))) == 100
    monkeypatch.setattr("softkv.files.arrays.LARGEST_WHOLE", 100 * 3 * 8 - 1)
    assert "it is column-major, so that its rows lie scattered; save numpy.ascontiguousarray of it" in error_of(path)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    """A matrix is not, nor an archive, nor a file that is a pickle and nothing else."""
    traps = np.array([[Trap(tmp_path / "sprung")]])
    np.save(tmp_path / "a.npy", traps, allow_pickle=True)
    np.savez(tmp_path / "a.npz", keys=["a"], values=traps)
    traps.dump(tmp_path / "b.npz")
    for name in ("a.npy", "a.npz", "b.npz"):
        error_of(str(tmp_path / name))
    assert not (tmp_path / "sprung").exists()
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["keys.npy", "../keys.npy", "/tmp/keys.npy"])
def test_names_in_an_archive_are_only_names(table: Any, name: str) -> None:
    """Nothing is written or opened outside."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, npy((1,), b"\0\0\0\0", "<U1"))
        archive.writestr("values.npy", npy((1,), bytes(8)))
    path = table(packed.getvalue(), "a.npz")
    good, said = refused(path, columns=Columns(key=name.removesuffix(".npy"), value=("values",)))
    assert (good, said) == ([], ["a.npz: row 1: the key is empty"])


def test_texts_of_an_archive_must_be_texts(table: Any) -> None:
    """Numbers beyond the last character, and halves of characters, are none."""
    for code in (0x110000, 0xD800):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("keys.npy", npy((1,), struct.pack("<I", code), "<U1"))
            archive.writestr("values.npy", npy((1,), bytes(8)))
        path = table(packed.getvalue(), "a.npz")
        with pytest.raises(BadRecord, match=r"a\.npz: "):
            list(records(path))


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    """Every single byte of a small one, changed: never an error of another library."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, keys=["a", "b"], values=[1.0, 2.0])
    content = path.read_bytes()
    outcomes = set()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x41
        path.write_bytes(damaged)
        try:
            outcomes.add(len(list(records(str(path)))))
        except BadRecord:
            outcomes.add(-1)
    assert outcomes == {-1, 2}


def test_many_columns_are_not_all_listed(table: Any) -> None:
    """A message stays a message."""
    message = error_of(table(",".join(f"{'c' * 100}{i}" for i in range(5000)) + "\n"))
    assert message.endswith(" and 4980 more")
    assert len(message) < 2000
