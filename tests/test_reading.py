"""Records from files: which column means what, what becomes of a cell, and which line an error names."""

import csv
import gzip
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softkv.errors import BadRecord, InputError, KindError
from softkv.files import FIRST_BATCH, Columns, Record, batches, limits, records
from softkv.storage import batch as stored

from .records import refused
from .scales import scaled


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Writes a file and gives its path."""

    def write(content: str | bytes, name: str = "films.csv") -> str:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return str(tmp_path / name)

    return write


def pairs(path: str, **options: Any) -> list[tuple[str | None, Any]]:
    """The keys and values of a file."""
    return [(record.key, record.value) for record in records(path, **options)]


def error_of(path: str, **options: Any) -> str:
    """The message with which reading ends, without the folder."""
    with pytest.raises(BadRecord) as error:
        list(records(path, **options))
    return str(error.value).removeprefix(os.path.dirname(path) + "/")


def through_pipe(content: bytes, pieces: int = 1 << 16) -> Iterator[str]:
    """The path of the reading end of a pipe into which another thread writes."""
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb", buffering=0) as file:
            for begin in range(0, len(content), pieces):
                file.write(content[begin : begin + pieces])

    writer = threading.Thread(target=write)
    writer.start()
    yield f"/dev/fd/{reading}"
    writer.join()
    os.close(reading)


def test_the_limits_are_those_of_the_store() -> None:
    """What the store would refuse is refused here, where the line is known."""
    names = ["LONGEST_KEY", "LONGEST_TEXT", "LONGEST_PAYLOAD", "DEEPEST_PAYLOAD"]
    for name in [*names, "EXACT_INTEGER", "LARGEST_NUMBER"]:
        assert getattr(limits, name) == getattr(stored, name)
    assert float(np.float32(limits.LARGEST_CELL)) == limits.LARGEST_CELL == float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    ("header", "columns", "key", "value"),
    [
        ("key,value", Columns(), 0, 1),
        ("a,b", Columns(), 0, 1),
        ("score,title", Columns(), 1, 0),
        ("label,text", Columns(), 1, 0),
        ("plot,Title,Y", Columns(), 1, 2),
        ("year,title,id,target", Columns(), 2, 3),
        (" key , value ", Columns(), 0, 1),
        ("a,b,value", Columns(), 0, 2),
        ("a,b,c", Columns(value=("b",)), 0, 1),
        ("a,b,c", Columns(key="c", value=("a",)), 2, 0),
        ("key,value,c", Columns(key="c"), 2, 1),
        ("key,value", Columns(key="key", value=("key",)), 0, 0),
        ("a,b", Columns(value=("a",)), 1, 0),
        ("a,b", Columns(key="b"), 1, 0),
        ("a,b", Columns(text="a"), None, 1),
        ("x,y", Columns(vector=("x",)), None, 1),
        ("x,level", Columns(vector=("x",)), None, 1),
    ],
)
def test_columns_are_found_by_name_and_then_by_place(
    table: Any, header: str, columns: Columns, key: int | None, value: int
) -> None:
    """Keys and values are those asked for, else those of known names, else the first of all and the second of two."""
    cells = ["1.5", "2.5", "3.5", "4.5"][: header.count(",") + 1]
    (record,) = records(table(f"{header}\n{','.join(cells)}\n"), columns=columns)
    assert (record.key, record.value) == (None if key is None else cells[key], float(cells[value]))


@pytest.mark.parametrize(
    ("header", "columns", "said"),
    [
        ("a,b,c", Columns(), "which column holds the values? Give value=; the columns are 'a', 'b', 'c'"),
        ("a", Columns(), "which column holds the values? Give value=; the columns are 'a'"),
        ("a;b", Columns(), "(they seem to be separated by ';'; commas are expected)"),
        ("x,y", Columns(vector=("y",), value=("x",)), None),
        ("y,x", Columns(key="k"), "there is no column 'k'; the columns are 'y', 'x'"),
        ("Title,y", Columns(key="title"), "there is no column 'title' (is it 'Title'?); the columns are"),
        ("y,x", Columns(payload=("x", "z")), "there is no column 'z'"),
        ("key,value,value", Columns(), "the column 'value' stands 2 times; rename all but one"),
        ("key,value,a,a", Columns(), None),
        ("Rain,1.5", Columns(), "the first line must name the columns, but '1.5' looks like a number"),
        ("0,1", Columns(key="0", value=("1",)), None),
    ],
)
def test_columns_that_are_not_clear_are_an_error_that_lists_them(
    table: Any, header: str, columns: Columns, said: str | None
) -> None:
    """Nothing is guessed beyond the rules; the message names the columns there are."""
    path = table(f"{header}\n")
    if said is None:
        assert list(records(path, columns=columns)) == []
    else:
        message = error_of(path, columns=columns)
        assert message.startswith("films.csv:1: ")
        assert said in message


def test_a_column_of_numbers_gives_numbers(table: Any) -> None:
    """Every way to write a finite number is one, blanks around it included."""
    written = ["1", "-2.5", "+3", ".5", "6.", "1e-3", " 7 ", "007"]
    assert [value for _, value in pairs(table("key,value\n" + "".join(f"k,{one}\n" for one in written)))] == [
        1.0, -2.5, 3.0, 0.5, 6.0, 0.001, 7.0, 7.0
    ]  # fmt: skip


@pytest.mark.parametrize(
    "odd", ["abc", "1_000", '"1,000"', "٣", "0x10", "1.5.2", "--1", "1 2", "2020-01-01", "∞", "1e"]
)
def test_one_cell_that_is_no_number_makes_the_column_one_of_texts(table: Any, odd: str) -> None:
    """Numbers with separators, digits of other scripts, and what only Python takes for a number are texts."""
    assert pairs(table(f"key,value\na,1\nb,{odd}\n")) == [("a", "1"), ("b", odd.strip('"'))]


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("abc", "the value 'abc' is not a number"),
        ("nan", "the value 'nan' is not a finite number"),
        ("-Infinity", "the value '-Infinity' is not a finite number"),
        ("1e999", "the value is beyond ±1e+150"),
        ("-1e151", "the value is beyond ±1e+150"),
        ("9007199254740993", "an integer beyond ±2^53 and would not come back unchanged"),
        ('"1,000.5"', "is not a number; write it without thousands separators"),
        ("", "the value is empty"),
        (" ", "the value is empty"),
    ],
)
def test_what_is_no_number_is_refused_when_numbers_are_asked_for(table: Any, cell: str, why: str) -> None:
    """With the kind given, a cell that does not fit is a bad record on its line, and the others are read."""
    good, said = refused(table(f"key,value\na,1\nb,{cell}\nc,9007199254740992\n"), kind="number")
    assert [record.value for record in good] == [1.0, 2.0**53]
    (message,) = said
    assert message.startswith("films.csv:3: ")
    assert why in message


def test_a_missing_number_does_not_make_a_column_of_texts(table: Any) -> None:
    """An empty cell, or a NaN, among numbers is a bad record; a column of nothing but NaN is one of texts."""
    good, said = refused(table("key,value\na,1\nb,\nc,NaN\n"))
    assert [record.value for record in good] == [1.0]
    assert said == [
        "films.csv:3: the value is empty",
        "films.csv:4: the value 'NaN' is not a finite number",
    ]
    assert pairs(table("key,value\na,nan\n")) == [("a", "nan")]


@pytest.mark.filterwarnings("ignore:values are taken as texts")
def test_the_first_batch_decides_and_a_later_misfit_names_its_line(table: Any) -> None:
    """A text within the first batch makes texts of all; behind it, it is a bad record, and reading goes on."""
    numbers = [f"k{i},{i}\n" for i in range(FIRST_BATCH)]
    inside = [*numbers[:-1], "late,abc\n", "last,7\n"]
    assert pairs(table("key,value\n" + "".join(inside)))[-2:] == [("late", "abc"), ("last", "7")]
    behind = [*numbers, *numbers[:1000], "late,abc\n", "last,7\n"]
    good, said = refused(table("key,value\n" + "".join(behind)))
    assert (len(good), good[-1].value, good[-1].line) == (FIRST_BATCH + 1001, 7.0, FIRST_BATCH + 1003)
    assert said == [f"films.csv:{FIRST_BATCH + 1002}: the value 'abc' is not a number"]


def test_what_comes_before_a_bad_record_is_given_first(table: Any) -> None:
    """Without anybody to report to, the error comes when its turn is, whatever was read ahead."""
    for bad in ("x\n", "b,c,d\n", '"b"c,1\n', "#b,1\n", "b,abc\n", "b,\xff\n"):
        content = ("key,value\na,1\n" + bad + "c,3\n").encode("latin-1")
        reading = records(table(content), kind="number")
        assert next(reading).key == "a", bad
        with pytest.raises(BadRecord, match=r"films\.csv:3: "):
            next(reading)


@pytest.mark.parametrize("kind", ["text", "label"])
def test_texts_and_labels_stay_as_they_are(table: Any, kind: str) -> None:
    """Asked for texts, numbers are none."""
    assert pairs(table("key,value\n007,1\n 8 ,nan\n"), kind=kind) == [("007", "1"), (" 8 ", "nan")]


def test_several_value_columns_are_a_vector(table: Any) -> None:
    """Several columns of the key vector are one, too."""
    path = table("name,x1,x2,a,b,c\nn,1,2,3,4,5\nm,6,7,8,9,10\n")
    found = list(records(path, columns=Columns(value=("a", "c"), vector=("x2", "x1"))))
    assert [record.key for record in found] == ["n", "m"]
    assert np.array_equal([record.value for record in found], [[3, 5], [8, 10]])
    assert np.array_equal([record.vector for record in found], [[2, 1], [7, 6]])


def test_a_bad_number_of_a_vector_names_its_line(table: Any) -> None:
    """A cell that is no number, not finite, or beyond float32."""
    good, said = refused(
        table("key,value,x,y\na,1,1,2\nb,1,,2\nc,1,nan,2\nd,1,1e39,2\ne,1,-1e999,2\n"),
        columns=Columns(vector=("x", "y")),
    )
    assert [record.key for record in good] == ["a"]
    assert said == [
        "films.csv:3: the vector is empty",
        "films.csv:4: the vector 'nan' is not a finite number",
        "films.csv:5: the vector holds NaN, infinity or a number beyond the range of float32 (3.4e38)",
        "films.csv:6: the vector holds NaN, infinity or a number beyond the range of float32 (3.4e38)",
    ]


def test_a_vector_may_stand_in_one_cell_as_json(table: Any) -> None:
    """A column named vector or embedding, or a value of kind vector; all must be as wide as the first."""
    content = (
        'key,value,Embedding\na,"[1, 2]","[0.5, 1]"\nb,"[3, 4]","[1]"\nc,"[3, 4]",x\nd,"[5, NaN]","[1, 2]"\ne,3,4\n'
    )
    good, said = refused(table(content), kind="vector")
    (record,) = good
    assert (record.value.tolist(), record.vector.tolist()) == ([1, 2], [0.5, 1])  # type: ignore[union-attr]
    assert said == [
        "films.csv:3: the vector has 1 numbers, but those before it have 2",
        "films.csv:4: not JSON: expecting value at character 1",
        "films.csv:5: NaN is not JSON, and not a finite number",
        "films.csv:6: the value 3 is a number, but values are vectors (kind='vector')",
    ]


def test_one_column_of_numbers_is_a_vector_of_width_one(table: Any) -> None:
    """A time series has keys that are a single number."""
    found = list(records(table("t,level\n0.5,3\n1.5,4\n"), columns=Columns(vector=("t",))))
    assert [(record.key, record.vector.tolist(), record.value) for record in found] == [  # type: ignore[union-attr]
        (None, [0.5], 3.0),
        (None, [1.5], 4.0),
    ]


def test_payload_columns_are_collected_into_an_object(table: Any) -> None:
    """A column is one of numbers if JSON would give all of the first batch back; an empty cell is null."""
    path = table("title,value,year,zip,rate,note\na,1,1999,01234,1.5,x\nb,2,,99999,2,\n")
    columns = Columns(payload=("year", "zip", "rate", "note"))
    assert [record.payload for record in records(path, columns=columns)] == [
        {"year": 1999, "zip": "01234", "rate": 1.5, "note": "x"},
        {"year": None, "zip": "99999", "rate": 2, "note": None},
    ]


def test_a_later_misfit_among_payloads_names_its_line_and_column(table: Any) -> None:
    """It is named like one among values."""
    rows = "".join(f"k,1,{i}\n" for i in range(FIRST_BATCH))
    _, said = refused(table(f"key,value,year\n{rows}k,1,unknown\n"), columns=Columns(payload=("year",)))
    assert said == [f"films.csv:{FIRST_BATCH + 2}: 'unknown' in the column 'year' is not a number as those before it"]


def test_a_column_called_payload_holds_json(table: Any) -> None:
    """Where other columns are named it is not read; an empty cell is no payload, and what is no JSON is refused."""
    path = table('key,value,payload\na,1,"{""year"": 1999}"\nb,2,\nc,3,[1]\nd,4,{\ne,5,{"x":1e999}\n'.replace(
        '{"x":1e999}', '"{""x"":1e999}"'
    ))  # fmt: skip
    good, said = refused(path)
    assert [record.payload for record in good] == [{"year": 1999}, None, [1]]
    assert [message.split(": ")[0] for message in said] == ["films.csv:5", "films.csv:6"]


def test_a_text_column_is_carried_along(table: Any) -> None:
    """It is embedded when it is not the key."""
    (record,) = records(table("key,value,plot\na,1,a shepherd travels\n"), columns=Columns(text="plot"))
    assert record == Record(2, "a", "a shepherd travels", 1.0, None, None)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (",1", "the key is empty"),
        ("#7,1", "the key '#7' starts with '#', which names items that have no key"),
        ("a", "it has 1 cells, but the first line names 2 columns"),
        ("a,1,2", "it has 3 cells, but the first line names 2 columns"),
        ("a\0b,1", "it holds a NUL character"),
        ('"a"b,1', "after a closing quote there must be a delimiter"),
        ("x" * (limits.LONGEST_KEY + 1) + ",1", "the key has 65,537 bytes; 65,536 is the most"),
        ("é" * (limits.LONGEST_KEY // 2 + 1) + ",1", "the key has 65,538 bytes; 65,536 is the most"),
    ],
)
def test_a_bad_row_is_refused_and_the_next_one_read(table: Any, row: str, why: str) -> None:
    """Anything may be wrong with it."""
    if "\0" in row and sys.version_info < (3, 11):
        why = "NUL"
    good, said = refused(table(f"key,value\na,1\n{row}\nb,2\n"))
    assert [(record.line, record.key) for record in good] == [(2, "a"), (4, "b")]
    (message,) = said
    assert message.startswith("films.csv:3: ")
    assert why in message


def test_lines_are_counted_where_fields_spread_over_several(table: Any) -> None:
    """A record has the line that it begins on, whatever ends a line; blank lines count and are skipped."""
    path = table('\r\nkey,value\r\n\r\n"two\r\nlines",1\n\n"a\rb\n\nc",2\r"d\u2028e\x0cf",3\n#,4\n')
    good, said = refused(path)
    assert [(record.line, record.key) for record in good] == [
        (4, "two\r\nlines"),
        (7, "a\rb\n\nc"),
        (11, "d\u2028e\x0cf"),
    ]
    assert [message.split(": ")[0] for message in said] == ["films.csv:12"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", [True, False])
def test_every_kind_of_line_end_will_do(table: Any, end: str, last: bool) -> None:
    """Lines may end in any of the usual ways, and the last one in none."""
    text = end.join(["key,value", "a,1", "b,2"]) + (end if last else "")
    assert [(record.line, record.key, record.value) for record in records(table(text))] == [(2, "a", 1), (3, "b", 2)]


def test_the_mark_that_excel_writes_is_no_part_of_a_name(table: Any) -> None:
    """UTF-8 with and without it, whether the encoding is given or not."""
    for encoding in (None, "utf-8", "UTF8", "utf-8-sig"):
        assert pairs(table("\ufeffkey,value\né,1\n"), encoding=encoding) == [("é", 1.0)]


def test_bytes_that_are_not_utf8_name_line_and_byte_and_the_way_out(table: Any) -> None:
    """Bytes that are not UTF-8 end the reading with line, byte and the way out, also where bad records may be."""
    content = "key,value\nAlien,1\nAmélie,2\n".encode("cp1252")
    said: list[BadRecord] = []
    path = table(content)
    with pytest.raises(BadRecord) as error:
        list(records(path, on_bad=said.append))
    assert said == []
    assert str(error.value) == (
        f"{path}:3: byte 20 (0xe9) is not UTF-8 (invalid continuation byte). Name the encoding that it is in "
        f"(encoding='windows-1252'?), or convert it: iconv -f WINDOWS-1252 -t UTF-8 {path}"
    )
    assert content[20] == 0xE9
    assert pairs(path, encoding="cp1252") == [("Alien", 1.0), ("Amélie", 2.0)]


def test_utf16_is_told_by_its_mark_and_read_when_named(table: Any) -> None:
    """Excel's "Unicode text" is saved so."""
    path = table("key\tvalue\né\t1\n".encode("utf-16"), "films.tsv")
    assert "encoding='utf-16'?" in error_of(path)
    assert pairs(path, encoding="utf-16") == [("é", 1.0)]


def test_a_bad_byte_deep_inside_is_counted_from_the_start(table: Any) -> None:
    """Blocks, characters cut in two, and line ends of two bytes do not disturb the count."""
    rows = "key,value\r\n" + "".join(f"{'é' * 50}{i},1\r\n" for i in range(30_000))
    content = rows.encode() + b"a,\xff\r\n"
    message = error_of(table(content))
    assert message.startswith(f"films.csv:30002: byte {len(rows.encode()) + 2} (0xff) is not UTF-8")


@pytest.mark.parametrize("encoding", ["nonsense", "rot13", "base64", "a\0b", "undefined"])
def test_an_encoding_must_be_one_of_texts(encoding: str) -> None:
    """What turns bytes into bytes is none."""
    with pytest.raises(InputError, match="there is no text encoding"):
        records("-", encoding=encoding)


def test_nothing_and_a_header_alone(table: Any) -> None:
    """A file without a header is refused; a header alone is a table of no rows."""
    for empty in ("", "\n\r\n", "\ufeff"):
        assert error_of(table(empty)).startswith("films.csv: is empty; a first line that names the columns is expected")
    assert list(records(table("key,value"))) == []
    assert error_of(table('"key,value\n')) == "films.csv:1: a quote is opened here and never closed"


def test_tabs_separate_in_tsv(table: Any) -> None:
    """Commas are nothing special there, quotes are."""
    content = 'key\tvalue\na,b\t"x\ty"\n'
    for name in ("films.tsv", "films.TAB"):
        assert pairs(table(content, name)) == [("a,b", "x\ty")]
    assert pairs(table(content, "films.data"), format="tsv") == [("a,b", "x\ty")]


def test_gzip_is_unpacked(table: Any) -> None:
    """Its first bytes tell it; a file that is cut off or damaged is refused by name."""
    packed = gzip.compress(b"key,value\na,1\n")
    assert pairs(table(packed, "films.csv.gz")) == [("a", 1.0)]
    assert pairs(table(packed, "films.csv")) == [("a", 1.0)]
    assert pairs(table(packed, "FILMS.CSV.GZ")) == [("a", 1.0)]
    assert error_of(table(packed[:-9], "cut.csv.gz")).startswith("cut.csv.gz: cannot be read: ")
    damaged = packed[:-8] + bytes(4) + packed[-4:]
    assert error_of(table(damaged, "bad.csv.gz")).startswith("bad.csv.gz: cannot be read: CRC check failed")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"key,value\na,1\n", [("a", 1.0)]),
        (b"\xef\xbb\xbfkey\tvalue\na,b\t1\n", [("a,b", 1.0)]),
        (b'\n {"key": "a", "value": 1}\n', [("a", 1)]),
        (b'[{"key": "a", "value": 1}]', [("a", 1)]),
        (gzip.compress(b'{"key": "a", "value": 1}\n', mtime=0), [("a", 1)]),
    ],
)
@pytest.mark.parametrize("pieces", [1, 1 << 16])
def test_the_format_of_a_pipe_is_told_by_its_first_bytes(content: bytes, found: list[Any], pieces: int) -> None:
    """They may come a few at a time."""
    for path in through_pipe(content, pieces):
        assert pairs(path) == found


@pytest.mark.parametrize("content", [b"PAR1....", b"PK\x03\x04...."])
def test_what_needs_seeking_cannot_come_from_a_pipe(content: bytes) -> None:
    """A Parquet file and an archive keep their table of contents at the end."""
    for path in through_pipe(content):
        assert "cannot be read from a pipe; write it to a file and give its name" in error_of(path)


@pytest.mark.filterwarnings("ignore:values are taken as texts")
def test_a_pipe_gives_what_a_file_gives(table: Any) -> None:
    """What decides the kind does not depend on how much a pipe gives at once."""
    content = "key,value\n" + "".join(f"k{i},{i}\n" for i in range(FIRST_BATCH - 1)) + "late,abc\n" * 3
    for path in through_pipe(content.encode(), 1000):
        assert pairs(path) == pairs(table(content))


def test_a_named_pipe_is_read(tmp_path: Path) -> None:
    """It is read like stdin; a suffix still tells the format."""
    path = tmp_path / "films.csv"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"key,value\na,1\n",))
    writer.start()
    assert pairs(str(path)) == [("a", 1.0)]
    writer.join()


def test_stdin_is_a_dash_and_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors call it stdin; without one there is an error too."""
    given_in = io.TextIOWrapper(io.BytesIO(b"key,value\na,1\nb,\n"))
    monkeypatch.setattr(sys, "stdin", given_in)
    with pytest.raises(BadRecord, match=r"^stdin:3: the value is empty$"):
        list(records("-"))
    assert not given_in.buffer.closed
    with pytest.raises(BadRecord, match=r"^stdin: there is nothing to read"):
        list(records("-"))
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(BadRecord, match=r"^stdin: there is no standard input"):
        list(records("-"))


def test_what_is_no_file_is_refused(tmp_path: Path, table: Any) -> None:
    """A directory, a path without a file, one that cannot be a path, a suffix that says nothing."""
    (tmp_path / "folder.csv").mkdir()
    assert error_of(str(tmp_path / "folder.csv")) == "folder.csv: is a directory; give a file in it"
    assert error_of(str(tmp_path / "none.csv")) == "none.csv: cannot be opened: No such file or directory"
    assert "cannot be opened" in error_of("a\0b.csv")
    assert "give format= as one of csv, tsv, jsonl, json, parquet, arrow, npy, npz" in error_of(
        table("key,value", "films.txt")
    )


def test_options_are_checked_before_anything_is_read() -> None:
    """A format, a kind, or values that make no sense."""
    with pytest.raises(InputError, match="there is no format 'xls'; it is one of csv, "):
        records("none.csv", format="xls")
    with pytest.raises(KindError, match="there is no kind 'colour'; it is one of number, "):
        records("none.csv", kind="colour")
    with pytest.raises(KindError, match="2 value columns make a vector, but the kind is 'number'"):
        records("none.csv", kind="number", columns=Columns(value=("a", "b")))


def test_records_come_lazily_and_files_are_closed(table: Any) -> None:
    """The end of a long file is not read for its beginning, and an abandoned reading leaves nothing open."""
    path = table("key,value\n" + "a,1\n" * 1_000_000 + "no number\n")
    before = set(os.listdir("/dev/fd"))
    reading = records(path)
    assert [record.line for record in next(batches(reading, 3))] == [2, 3, 4]
    reading.close()  # type: ignore[attr-defined]
    assert set(os.listdir("/dev/fd")) == before


def test_batches_are_full_but_for_the_last() -> None:
    """All batches but the last are full, and none is empty."""
    some = [Record(i, None, None, i, None, None) for i in range(7)]
    assert [[one.line for one in batch] for batch in batches(some, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(batches([], 3)) == []
    with pytest.raises(InputError, match="a batch has 0 rows; give at least 1"):
        batches(some, 0)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)


@given(st.lists(st.tuples(texts.filter(lambda one: one[0] != "#"), texts), min_size=1))
def test_any_texts_come_back_from_csv(rows: list[tuple[str, str]]) -> None:
    """What csv writes is read as it was, with the line that csv would write it on, in any encoding that knows it."""
    written = io.StringIO(newline="")
    csv.writer(written).writerows([("key", "value"), *rows])
    text = written.getvalue()
    for encoding in ("utf-8", "utf-16"):
        for path in through_pipe(text.encode(encoding)):
            found = list(records(path, format="csv", kind="text", encoding=encoding))
            assert [(record.key, record.value) for record in found] == rows
    reader = csv.reader(io.StringIO(text, newline=""))
    lines = [reader.line_num for _ in reader]
    assert [record.line for record in found] == [line + 1 for line in lines[:-1]]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1))
def test_numbers_are_those_of_another_reader(values: list[float]) -> None:
    """Arrow's reads them from the same file."""
    usable = [value for value in values if abs(value) <= limits.LARGEST_NUMBER] or [0.0]
    content = ("key,value\n" + "".join(f"k,{value!r}\n" for value in usable)).encode()
    theirs = pyarrow.csv.read_csv(io.BytesIO(content))["value"].to_pylist()
    for path in through_pipe(content):
        assert [value for _, value in pairs(path, kind="number")] == theirs == usable


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_blocks_may_end_anywhere(size: int, table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may end within a character, a line end, a quoted field: the records and their lines are the same."""
    content = '\ufeffkey,value\r\né,"a\r\nb"\r\n\r\n"x""\r",c\r\n日本,\U0001f600\r\r\nlast,d'
    whole = list(records(table(content)))
    scaled(monkeypatch, characters=size)
    assert list(records(table(content))) == whole
    assert [(record.line, record.key) for record in whole] == [(2, "é"), (5, 'x"\r'), (7, "日本"), (9, "last")]


@pytest.mark.slow
def test_reading_a_table_loads_nothing_heavy(table: Any) -> None:
    """Arrow is not loaded, which only Parquet needs, nor what only the store needs."""
    script = (
        "import sys; from softkv.files import records; list(records(sys.argv[1]));"
        "print(*({'pyarrow', 'pandas', 'sqlalchemy', 'click'} & set(sys.modules)))"
    )
    path = table("key,value\na,1\n")
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_is_refused_is_named_in_the_order_of_its_lines(table: Any) -> None:
    """Cells that do not fit, rows of another width and quotes that go wrong, in one batch; the others are read."""
    good, said = refused(table('key,value\na,1\nb,x\nc,3,4\n"d"e,5\nf,y\ng,6\n'), kind="number")
    assert [(record.line, record.key) for record in good] == [(2, "a"), (7, "g")]
    assert [message.split(": ")[0] for message in said] == [f"films.csv:{line}" for line in (3, 4, 5, 6)]


def test_a_first_line_that_is_no_row_ends_the_reading(table: Any) -> None:
    """No other line is taken for the names of the columns, also where bad records are passed over."""
    with pytest.raises(BadRecord, match=r"films\.csv:2: after a closing quote there must be a delimiter"):
        list(records(table('\n"key"s,value\na,1\n'), on_bad=[].append))
