"""Records from files whose cells have types: JSON lines, JSON, Parquet, npy and npz."""

import io
import json
import math
import sys
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softkv.errors import BadRecord, MissingExtra
from softkv.files import Columns, Record, records
from softkv.storage import Store

from .records import error_of, refused
from .scales import scaled


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Writes a file and gives its path."""

    def write(content: str | bytes, name: str) -> str:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return str(tmp_path / name)

    return write


@pytest.fixture
def parquet(tmp_path: Path) -> Any:
    """Writes columns as a Parquet file and gives its path."""

    def write(columns: dict[str, Any], **options: Any) -> str:
        path = str(tmp_path / "films.parquet")
        pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
        return path

    return write


@pytest.fixture
def arrays(tmp_path: Path) -> Any:
    """Writes arrays as an npz file and gives its path."""

    def write(**given: Any) -> str:
        path = str(tmp_path / "films.npz")
        np.savez_compressed(path, **given)
        return path

    return write


def plain(record: Record) -> tuple[Any, ...]:
    """A record as a tuple that can be compared."""
    vector = None if record.vector is None else list(record.vector)
    value = record.value.tolist() if isinstance(record.value, np.ndarray) else record.value
    return (record.line, record.key, record.text, value, record.payload, vector)


def jsonl(*objects: Any) -> str:
    """JSON lines."""
    return "".join(json.dumps(one) + "\n" for one in objects)


FILM = {"id": "a", "value": 1.5, "vector": [1, 2], "payload": {"year": 1999, "cast": ["x"]}, "plot": "p"}
SAME = (1, "a", "p", 1.5, {"year": 1999, "cast": ["x"]}, [1.0, 2.0])


def test_every_format_gives_the_same_record(table: Any, parquet: Any, arrays: Any) -> None:
    """The rules do not depend on who wrote the file."""
    columns = Columns(text="plot")
    packed = json.dumps(FILM["payload"])
    paths = [
        table(jsonl(FILM), "films.jsonl"),
        table(jsonl(FILM), "films.ndjson"),
        table(json.dumps([FILM], indent=None), "films.json"),
        parquet({name: [packed if name == "payload" else cell] for name, cell in FILM.items()}),
        arrays(
            **{name: [packed if name == "payload" else cell] for name, cell in FILM.items()},
        ),
    ]
    for path in paths:
        (record,) = records(path, columns=columns)
        assert plain(record) == SAME, path
    (record,) = records(table("id,value,vector,payload,plot\n" + 'a,1.5,"[1,2]",' + '"' + packed.replace('"', '""') + '",p\n', "f.csv"), columns=columns)  # noqa: E501  # fmt: skip
    assert plain(record) == (2, *SAME[1:])


@pytest.mark.parametrize("named", ["payload", "Payload"])
def test_a_column_of_payloads_is_read_alike_whether_it_is_named_or_guessed(
    table: Any, parquet: Any, arrays: Any, named: str
) -> None:
    """It holds the whole payload, which is no part of an object; an item without one has none."""
    objects = [{"key": "a", "value": 1, named: {"m": 1}}, {"key": "b", "value": 2, named: None}]
    packed = {"key": ["a", "b"], "value": [1, 2], named: ['{"m":1}', None]}
    paths = [
        table(jsonl(*objects), "films.jsonl"),
        table(f'key,value,{named}\na,1,"{{""m"":1}}"\nb,2,\n', "films.csv"),
        parquet(packed),
        arrays(**{**packed, named: ['{"m":1}', ""]}),
    ]
    for path in paths:
        for columns in (Columns(payload=(named,)), Columns()):
            assert [record.payload for record in records(path, columns=columns)] == [{"m": 1}, None], path


def test_a_column_of_payloads_beside_others_is_a_part_of_the_payload(table: Any) -> None:
    """Several columns are one object, each under its name."""
    path = table(jsonl({"key": "a", "value": 1, "payload": {"m": 1}, "year": 1999}), "films.jsonl")
    (record,) = records(path, columns=Columns(payload=("payload", "year")))
    assert record.payload == {"payload": {"m": 1}, "year": 1999}


def test_keys_that_are_integers_become_their_decimal_text(table: Any, parquet: Any, arrays: Any) -> None:
    """Texts stay what they are; other types are no keys, and null is none."""
    objects = [{"key": key, "value": 1, "vector": [1.0]} for key in (7, "007", None, -3, 1.0, True, "", "#1", [])]
    good, said = refused(table(jsonl(*objects), "films.jsonl"))
    assert [record.key for record in good] == ["7", "007", None, "-3"]
    assert [message.split(": ", 1)[1] for message in said] == [
        "the key 1.0 is a number, not a text",
        "the key True is true or false, not a text",
        "the key is empty",
        "the key '#1' starts with '#', which names items that have no key",
        "the key [] is a list, not a text",
    ]
    assert [record.key for record in records(parquet({"id": [7, 8], "value": [1, 2]}))] == ["7", "8"]
    assert [record.key for record in records(arrays(keys=[7, 8], values=[1, 2]))] == ["7", "8"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "the value is null; give a number, a text or a list of numbers"),
        (True, "the value is true or false; give a number, a text or a list of numbers"),
        ({}, "the value is an object; give a number, a text or a list of numbers"),
        ("1", "the value '1' is a text, but values are numbers (as the first one is)"),
        ([1], "the value [1] is a list, but values are numbers (as the first one is)"),
        (math.nan, "NaN is not JSON, and not a finite number"),
        (-math.inf, "-Infinity is not JSON, and not a finite number"),
        (2**53 + 1, "the value is an integer beyond ±2^53 and would not come back unchanged"),
        (1e151, "the value is beyond ±1e+150"),
    ],
)
def test_a_value_that_is_none_is_refused_and_the_next_one_read(table: Any, value: Any, why: str) -> None:
    """In JSON types are as they are; the first value says which kind they are."""
    objects = [{"key": "a", "value": 1}, {"key": "b", "value": value}, {"key": "c", "value": 2.5}]
    good, said = refused(table(jsonl(*objects), "films.jsonl"))
    assert [record.value for record in good] == [1, 2.5]
    assert said == [f"films.jsonl:2: {why}"]


@pytest.mark.parametrize(
    ("vector", "why"),
    [
        ([1], "the vector has 1 numbers, but those before it have 2"),
        ([], "the vector has no numbers in it"),
        ([1, None], "the vector holds null; give a list of numbers"),
        ([1, True], "the vector holds true or false; give a list of numbers"),
        ([1, "2"], "the vector holds a text; give a list of numbers"),
        ([1, [2]], "the vector holds a list; give a list of numbers"),
        ([1, 1e39], "the vector holds NaN, infinity or a number beyond the range of float32 (3.4e38)"),
        ([1, 10**400], "the vector holds an integer beyond the range of float32 (3.4e38)"),
        ("[1, 2]", "the vector is a text; give a list of numbers"),
        (None, "the vector is null; give a list of numbers"),
    ],
)
def test_a_vector_that_is_none_is_refused(table: Any, vector: Any, why: str) -> None:
    """All must be lists of finite numbers, as long as the first."""
    objects = [{"value": 1, "embedding": [1, 2]}, {"value": 1, "embedding": vector}, {"value": 1, "embedding": [3, 4]}]
    good, said = refused(table(jsonl(*objects), "films.jsonl"))
    assert [record.vector.tolist() for record in good] == [[1, 2], [3, 4]]  # type: ignore[union-attr]
    assert said == [f"films.jsonl:2: {why}"]


def test_kind_decides_what_a_value_may_be(table: Any) -> None:
    """Labels may be integers, which become their decimal text; nothing else bends."""
    path = table(jsonl(*[{"key": "k", "value": value} for value in (3, "x", 2.5, [1])]), "films.jsonl")
    assert [record.value for record in refused(path, kind="number")[0]] == [3, 2.5]
    assert [record.value for record in refused(path, kind="label")[0]] == ["3", "x"]
    assert [record.value for record in refused(path, kind="text")[0]] == ["x"]
    assert [record.value.tolist() for record in refused(path, kind="vector")[0]] == [[1]]
    assert refused(path, kind="text")[1][0] == (
        "films.jsonl:1: the value 3 is a number, but values are texts (kind='text')"
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[1]", "it is a list, not an object"),
        ("{", "not JSON: "),
        ('{"key": "a", "value": 1} x', "there is more after the JSON value: ' x' at character 25"),
        ('{"key": "a", "key": "b", "value": 1}', "the name 'key' stands twice in one object"),
        ('{"value": 1}', "it has no 'key'"),
        ('{"key": "a"}', "it has no 'value'"),
        ('{"key": null, "value": 1}', "it has no key, no text and no vector: there is nothing to compare it by"),
        ('{"key": "\\ud800", "value": 1}', "the key holds a lone surrogate at character 1, which is no text"),
        ('{"key": "a\\u0000", "value": 1}', "the key holds a NUL character at character 2"),
        ('{"key": "a", "value": 1' + "0" * 5000 + "}", "digits" if hasattr(sys, "set_int_max_str_digits") else "2^53"),
        ('{"key": "a", "value": 1, "payload": {"x": 1e999}}', "the payload cannot be JSON: "),
        ('{"key": "a", "value": 1, "payload": "\\ud800"}', "the payload cannot be JSON: "),
        ('{"key": "a", "value": 1, "payload": ' + "[" * 65 + "]" * 65 + "}", "nested deeper than 64 levels"),
        ('{"key": "a", "value": 1, "payload": "' + "x" * (1 << 20) + '"}', "the payload has 1,048,578 bytes as JSON"),
    ],
)
def test_a_bad_line_is_refused_and_the_next_one_read(table: Any, line: str, why: str) -> None:
    """Anything may be wrong with it."""
    good, said = refused(table(f'{{"key": "a", "value": 1}}\n{line}\r\n\n{{"key": "b", "value": 2}}', "films.jsonl"))
    assert [(record.line, record.key) for record in good] == [(1, "a"), (4, "b")]
    (message,) = said
    assert message.startswith("films.jsonl:2: ")
    assert why in message


def test_a_field_that_only_some_objects_have_is_seen(table: Any) -> None:
    """The first objects together say which columns there are; a payload may be missing."""
    path = table(jsonl({"key": "a", "value": 1}, {"key": "b", "value": 2, "payload": [1]}), "films.jsonl")
    assert [record.payload for record in records(path)] == [None, [1]]


def test_fields_are_collected_into_a_payload(table: Any) -> None:
    """They have their types; one that is missing stays away."""
    objects = [{"key": "a", "value": 1, "x": [1], "y": None}, {"key": "b", "value": 2, "y": True}]
    found = list(records(table(jsonl(*objects), "films.jsonl"), columns=Columns(payload=("x", "y"))))
    assert [record.payload for record in found] == [{"x": [1], "y": None}, {"y": True}]


def test_objects_have_no_order_but_two_fields_settle_each_other(table: Any) -> None:
    """The value is the other of two; a key is never guessed by place."""
    path = table(jsonl({"score": 1, "name": "a"}), "films.jsonl")
    assert [(record.key, record.value) for record in records(path)] == [("a", 1)]
    assert error_of(table(jsonl({"word": "a", "score": 1, "value": 2}), "films.jsonl")) == (
        "films.jsonl:1: which column holds the keys? Give key=, text= or vector=; there are 'word', 'score', 'value'"
    )


def test_no_lines_are_no_records(table: Any) -> None:
    """An empty file of JSON lines is a list of none; so is an empty document."""
    for content, name in (
        ("", "a.jsonl"),
        ("\n\n", "a.jsonl"),
        ("[]", "a.json"),
        (" [ ]\n", "a.json"),
        ("{}", "a.json"),
    ):
        assert list(records(table(content, name))) == []


def test_a_document_is_a_list_of_objects(table: Any) -> None:
    """Each has the line that it begins on; one that is no item is refused, and reading goes on."""
    content = '[\n{"key": "a",\n "value": 1}, {"key": "b", "value": NaN},\n3, {"key": "c",\n "value": 2}\n]\n'
    good, said = refused(table(content, "films.json"))
    assert [(record.line, record.key, record.value) for record in good] == [(2, "a", 1), (4, "c", 2)]
    assert said == [
        "films.json:3: NaN is not JSON, and not a finite number",
        'films.json:4: it is a number, not an object such as {"key": ..., "value": ...}',
    ]


def test_a_document_may_map_keys_to_values(table: Any) -> None:
    """It has no columns to choose from."""
    path = table('{"007": 1,\n"b": 2.5, "": 1,\n"c": {"value": 3}}', "films.json")
    good, said = refused(path)
    assert [plain(record)[:4] for record in good] == [(1, "007", None, 1), (2, "b", None, 2.5)]
    assert [message.split(": ")[0] for message in said] == ["films.json:2", "films.json:3"]
    assert error_of(path, columns=Columns(value=("v",))) == (
        "films.json:1: it maps keys to values and has no columns, so no 'v' among them"
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "1: is empty; a list of objects is expected"),
        ("3", "1: a list of objects is expected, or one object that maps keys to values, not '3'"),
        ('[{"key": "a", "value": 1}', "1: a comma or ']' is expected, not the end"),
        ('[{"key": "a", "value": 1}\n{"key"', "2: a comma or ']' is expected, not '{'"),
        ('[{"key": "a",\n "value": 1', "1: not JSON: expecting ',' delimiter at line 2"),
        ('[{"key": "a",\n "value": x}]', "1: not JSON: expecting value at line 2"),
        ('{"a" 1}', "1: a colon is expected after 'a'"),
        ("{3: 1}", "1: a name in double quotes is expected"),
        ('{"a": 1,}', "1: a name in double quotes is expected"),
        ("[1,]", "1: not JSON: expecting value at line 1"),
        ('{"a": 1}\n{"b": 2}', "2: there is more after the end of the document; JSON lines? format='jsonl'"),
        ("[" * 100_000, "1: JSON that is nested too deep"),
        ('{"a":' * 100_000, "1: JSON that is nested too deep"),
    ],
)
def test_a_document_that_is_not_json_ends_the_reading(table: Any, content: str, why: str) -> None:
    """Nothing says where its next element begins."""
    assert error_of(table(content, "films.json")).startswith(f"films.json:{why}")


@pytest.mark.parametrize("size", [1, 2, 5, 64])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_document_may_be_cut_anywhere(table: Any, size: int, indent: int | None, monkeypatch: Any) -> None:
    """Elements are found again whatever a block holds, and come before the whole was read."""
    objects = [{"key": f"é{i}", "value": i * 10**i, "payload": {"a": [i, "]}"]}} for i in range(12)]
    path = table(json.dumps(objects, indent=indent), "films.json")
    mapped = table(json.dumps({one["key"]: one["value"] for one in objects}, indent=indent), "map.json")
    scaled(monkeypatch, characters=size)
    found = list(records(path))
    assert [(record.key, record.value, record.payload) for record in found] == [tuple(one.values()) for one in objects]
    assert [(record.key, record.value) for record in records(mapped)] == [(one.key, one.value) for one in found]


@pytest.mark.parametrize(("opening", "closing"), ["{}", "[]"])
def test_a_block_may_end_within_a_number_a_word_or_an_escape(
    table: Any, opening: str, closing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is cut at `1.` or `1e+` is read to its end, although what is before the point is one, too."""
    values = ["1.25", "-0.5", "3e5", "-1.2e+10", "4E-2", "0", "-7", "true", "false", "null", '"a"', "-1.5 ", "10.75"]
    names = [f'"\\ud83d\\ude00 \\u00e9\\"\\\\ {place}"' for place in range(len(values))]
    parts = [f"{name}: {value}" for name, value in zip(names, values, strict=True)] if opening == "{" else values
    path = table(opening + ", ".join(parts) + closing, "films.json")
    whole = good, said = refused(path)
    assert [record.value for record in good] == (
        [1.25, -0.5, 3e5, -1.2e10, 0.04, 0, -7, -1.5, 10.75] if opening == "{" else []
    )
    assert len(good) + len(said) == len(values)
    for size in range(1, len(Path(path).read_bytes())):
        scaled(monkeypatch, characters=size)
        assert refused(path) == whole


numbers = st.floats(-1e150, 1e150) | st.integers(-(2**53), 2**53)
payloads = st.recursive(
    st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.text("aé\u2028\n", min_size=1), numbers, payloads), min_size=1, max_size=5))
def test_what_json_wrote_comes_back(items: list[tuple[str, Any, Any]]) -> None:
    """Lines and a document come back with the types that json itself gives."""
    objects = [dict(zip(("key", "value", "payload"), item, strict=True)) for item in items]
    for name, content in (("jsonl", jsonl(*objects)), ("json", json.dumps(objects, ensure_ascii=False, indent=2))):
        found = list(from_stdin(content.encode(), name))
        assert [(record.key, record.value, record.payload) for record in found] == items
        assert [type(record.value) for record in found] == [type(item[1]) for item in items]


def from_stdin(content: bytes, format_: str) -> list[Record]:
    """The records of bytes."""
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(content))
    try:
        return list(records("-", format=format_))
    finally:
        sys.stdin = before


def test_parquet_columns_of_every_usable_type(parquet: Any) -> None:
    """Texts, dictionaries of texts, integers, floats, and lists of numbers whether fixed or not."""
    keys = ["a", "b", "a"]
    texts = [pyarrow.array(keys), pyarrow.array(keys, pyarrow.large_string()), pyarrow.array(keys).dictionary_encode()]
    values = [pyarrow.array([1, 2, 3], type_) for type_ in (pyarrow.int8(), pyarrow.uint64(), pyarrow.float32())]
    lists = (pyarrow.list_(pyarrow.float32()), pyarrow.large_list(pyarrow.int64()), pyarrow.list_(pyarrow.float64(), 2))
    vectors = [pyarrow.array([[1, 2], [3, 4], [5, 6]], type_) for type_ in lists]
    for text, value, vector in zip(texts, values, vectors, strict=True):
        found = [plain(record) for record in records(parquet({"key": text, "value": value, "vector": vector}))]
        assert found == [
            (1, "a", None, 1, None, [1, 2]),
            (2, "b", None, 2, None, [3, 4]),
            (3, "a", None, 3, None, [5, 6]),
        ]


@pytest.mark.parametrize("places", [0, 2])
def test_parquet_decimals_are_rounded_as_other_numbers_or_refused(parquet: Any, places: int) -> None:
    """Whole ones beyond 2^53 are refused as values, as integers are, and kept exactly as keys and in payloads."""
    given = [Decimal(text) for text in ("3", "-9007199254740993", "9007199254740992", "9" * 36)]
    column = pyarrow.array([*given, None], pyarrow.decimal128(38, places))
    path = parquet({"key": [*"abcde"], "value": column, "n": column})
    good, said = refused(path, columns=Columns(payload=("n",)))
    assert [(one.value, one.payload) for one in good] == [(3, {"n": 3}), (2**53, {"n": 2**53})]
    rounded = "the value is an integer beyond ±2^53 and would not come back unchanged"
    assert [message.removeprefix("films.parquet: ") for message in said] == [
        f"row 2: {rounded}",
        f"row 4: {rounded}",
        "row 5: the value is null; give a number, a text or a list of numbers",
    ]
    wide = parquet({"key": [*"abcd"], "value": [1, 2, 3, 4], "n": pyarrow.array(given)})
    found = list(records(wide, columns=Columns(payload=("n",))))
    assert [one.payload for one in found] == [{"n": int(one)} for one in given]
    halves = parquet({"key": ["a"], "value": pyarrow.array([Decimal("0.25")])})
    assert [type(one.value) for one in records(halves)] == [float]
    numbered = parquet({"key": pyarrow.array(given), "value": [1, 2, 3, 4]})
    assert [one.key for one in records(numbered)] == [str(one) for one in given]


def test_parquet_rows_that_are_no_items_are_refused(parquet: Any) -> None:
    """The error tells their number, across row groups and batches."""
    count = 10_000
    values = [float(i) for i in range(count)]
    values[4999], values[7] = math.nan, None  # type: ignore[call-overload]
    vectors = [[1.0, 2.0]] * count
    vectors[9998] = [1.0]
    good, said = refused(parquet({"id": list(range(count)), "y": values, "vector": vectors}, row_group_size=3000))
    assert [record.line for record in good] == [i for i in range(1, count + 1) if i not in (8, 5000, 9999)]
    assert all(record.key == str(record.line - 1) and record.value == record.line - 1 for record in good)
    assert said == [
        "films.parquet: row 8: the value is null; give a number, a text or a list of numbers",
        "films.parquet: row 5000: the value is not a finite number",
        "films.parquet: row 9999: the vector has 1 numbers, but those before it have 2",
    ]


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        ([{"a": 1}], pyarrow.struct([("a", pyarrow.int64())])),
        ([b"x"], pyarrow.binary()),
        ([1], pyarrow.timestamp("us")),
        ([["x"]], pyarrow.list_(pyarrow.string())),
        ([[[1]]], pyarrow.list_(pyarrow.list_(pyarrow.int64()))),
    ],
)
def test_parquet_columns_of_other_types_are_refused_by_name(parquet: Any, column: Any, type_: Any) -> None:
    """Where nobody asks for them, they are passed over."""
    odd = pyarrow.array(column, type_)
    message = error_of(parquet({"key": ["a"], "value": odd})).replace("element: ", "item: ")
    assert message.startswith(f"films.parquet: the column 'value' is of type {type_}; give it as texts or numbers")
    assert len(list(records(parquet({"key": ["a"], "value": [1], "odd": odd})))) == 1


def test_a_list_is_no_key_text_or_part_of_several_columns(parquet: Any) -> None:
    """Only a value or a vector may be one, and only alone."""
    path = parquet({"key": ["a"], "value": [1], "list": [[1]], "n": [1]})
    for columns in (Columns(key="list"), Columns(text="list"), Columns(vector=("list", "n"))):
        assert "the column 'list' is of type list<" in error_of(path, columns=columns)


def test_parquet_without_pyarrow_names_the_extra(parquet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow, a message names the extra and what to type."""
    path = parquet({"key": ["a"], "value": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r"pip install 'softkv\[parquet\]'"):
        list(records(path))


def test_what_is_no_parquet_is_refused(parquet: Any, table: Any) -> None:
    """Nonsense, a file cut short, a file with damage in it: never an error of another library."""
    for content in (b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"):
        assert error_of(table(content, "a.parquet")).startswith("a.parquet: this is no sound Parquet file (")
    path = Path(parquet({"key": [f"key {i}" for i in range(500)], "value": list(range(500))}, compression="gzip"))
    content = path.read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(100):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        with suppress(BadRecord):
            list(records(str(path)))


def test_a_matrix_is_vectors_alone(tmp_path: Path) -> None:
    """Row by row, whatever its order and type; there are no columns to ask for."""
    path = str(tmp_path / "v.npy")
    rows = np.random.default_rng(1).standard_normal((5000, 7))
    for dtype in ("<f8", ">f4", "f2"):
        for order in ("C", "F"):
            given_in = np.asarray(rows, dtype, order=order)  # type: ignore[call-overload]
            np.save(path, given_in)
            found = list(records(path))
            assert np.array_equal([record.vector for record in found], given_in.astype(np.float64))
            assert {(record.key, record.value) for record in found} == {(None, None)}
            assert [record.line for record in found] == list(range(1, 5001))
    np.save(path, np.array([[1, -2]], np.int64))
    assert [plain(record)[5] for record in records(path)] == [[1, -2]]
    assert (
        error_of(path, columns=Columns(vector=("a",)))
        == "v.npy: a .npy file is one matrix of vectors and has no column 'a'"
    )


def test_a_row_with_a_nan_is_refused(tmp_path: Path) -> None:
    """The error tells its number; the others are read."""
    rows = np.ones((5000, 3), np.float32)
    rows[4321, 1] = np.nan
    np.save(tmp_path / "v.npy", rows)
    good, said = refused(str(tmp_path / "v.npy"))
    assert len(good) == 4999
    assert said == ["v.npy: row 4322: the vector holds NaN, infinity or a number beyond the range of float32 (3.4e38)"]


def test_an_archive_holds_arrays_by_name(arrays: Any) -> None:
    """Those it is known by, or those named as columns are; values may be missing if nothing else is there."""
    vectors = np.arange(6).reshape(3, 2)
    path = arrays(keys=["a", "b", "c"], texts=["x", "y", "z"], labels=["p", "q", "p"], embeddings=vectors)
    assert [plain(record) for record in records(path)] == [
        (1, "a", "x", "p", None, [0, 1]),
        (2, "b", "y", "q", None, [2, 3]),
        (3, "c", "z", "p", None, [4, 5]),
    ]
    path = arrays(K=vectors, V=np.asfortranarray(vectors + 0.5))
    found = [plain(record) for record in records(path, columns=Columns(vector=("K",), value=("V",)))]
    assert found[2] == (3, None, None, [4.5, 5.5], None, [4, 5])
    assert error_of(path).startswith(
        "films.npz: which column holds the keys? Give key=, text= or vector=; there are 'K', 'V'"
    )
    assert [plain(record)[5] for record in records(arrays(vectors=vectors))] == vectors.tolist()
    assert "which column holds the values?" in error_of(arrays(vectors=vectors, V=[1, 2, 3], W=[1, 2, 3]))


def test_payloads_of_an_archive_are_json(arrays: Any) -> None:
    """An empty text is none."""
    path = arrays(keys=["a", "b", "c"], values=[1, 2, 3], payloads=['{"x": [1]}', "", "{"])
    good, said = refused(path)
    assert [record.payload for record in good] == [{"x": [1]}, None]
    assert said == ["films.npz: row 3: not JSON: expecting property name enclosed in double quotes at character 2"]


def test_an_array_of_the_wrong_kind_is_shown_on_one_line(arrays: Any) -> None:
    """It is, however many lines NumPy would print it on."""
    path = arrays(keys=["a"], values=np.arange(100.0).reshape(1, 100))
    _, (message,) = refused(path, kind="number")
    assert message.startswith("films.npz: row 1: the value [ 0. 1. 2. ")
    assert message.endswith("... is a list, but values are numbers (kind='number')")


@pytest.mark.parametrize(
    ("given_in", "why"),
    [
        ({"keys": ["a", "b"], "values": [1, 2, 3]}, "its arrays differ in length: keys 2, values 3"),
        ({"keys": ["a"], "values": [True]}, "the array 'values' cannot be read: its dtype is bool"),
        ({"keys": ["a"], "values": [1j]}, "the array 'values' cannot be read: its dtype is complex128"),
        ({"keys": [b"a"], "values": [1]}, "the array 'keys' cannot be read: its dtype is |S1"),
        ({"keys": ["a"], "values": np.ones((1, 1, 1))}, "the array 'values' cannot be read: its shape is (1, 1, 1)"),
        ({"keys": ["a"], "values": np.float64(1)}, "the array 'values' cannot be read: its shape is ()"),
        ({"keys": ["a"], "values": np.ones((1, 0))}, "the array 'values' cannot be read: its rows have 0 bytes"),
        ({"keys": ["a"], "values": np.array([{}])}, "the array 'values' cannot be read: it holds Python objects"),
    ],
)
def test_arrays_of_other_types_and_shapes_are_refused_by_name(arrays: Any, given_in: Any, why: str) -> None:
    """An array of another type or shape is refused by its name, and nothing is unpickled."""
    assert error_of(arrays(**given_in)).startswith(f"films.npz: {why}")


def test_records_go_into_a_store(table: Any, tmp_path: Path) -> None:
    """What was read without complaint is taken without complaint, and comes back."""
    objects = [{"key": i, "value": i / 7, "vector": [i, 1], "payload": {"i": i}} for i in range(50)]
    found = list(records(table(jsonl(*objects), "films.jsonl")))
    with Store.open(tmp_path / "films.softkv", "n") as store:
        store.append(
            [record.vector for record in found],
            [record.value for record in found],
            keys=[record.key for record in found],
            payloads=[record.payload for record in found],
        )
        item = store.get("7")
        assert (item.value, item.payload) == (1.0, {"i": 7})
        assert store.check().ok
