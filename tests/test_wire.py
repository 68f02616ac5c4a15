"""Bodies of JSON and arrays: what goes in comes out, and hostile bytes are refused by name."""

import io
import json
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import softkv
from softkv.answer import Answer, Contributor
from softkv.doors import wire
from softkv.errors import InputError
from softkv.files import notation
from softkv.files.record import Misfit

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
ARRAYS = arrays.arrays(
    st.sampled_from(["f2", "f4", "f8", "i1", "i8", "u2", "u8", "?", ">f4", ">i8"]),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3),
)
KEYS = st.text(max_size=5) | st.sampled_from(["$array", "$class", "$dict", "$float", "$tuple", "$gte"])
DOCUMENTS = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.integers(), inner, max_size=2)
    ),
    max_leaves=12,
)


def alike(one: Any, other: Any) -> bool:
    """Whether two documents are of the same types, and hold the same bits; NaN is NaN."""
    if isinstance(one, np.ndarray):
        native = one.astype(one.dtype.newbyteorder("="))
        return isinstance(other, np.ndarray) and native.dtype == other.dtype and native.tobytes() == other.tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if is_dataclass(one):
        return all(alike(getattr(one, name.name), getattr(other, name.name)) for name in fields(one))
    return bool(one == other) or (one != one and other != other)


@given(DOCUMENTS)
def test_what_goes_in_comes_out(document: Any) -> None:
    """Types, bits and order, also of names that mean something to a body."""
    assert alike(document, wire.unpacked(wire.packed(document), classes=True))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_document_or_an_input_error(body: bytes) -> None:
    """Whoever reads bytes gets a document or an input error, and nothing else."""
    for classes in (False, True):
        try:
            wire.unpacked(body, classes=classes)
        except InputError:
            continue


@given(DOCUMENTS, st.data())
def test_a_damaged_body_is_a_document_or_an_input_error(document: Any, data: st.DataObject) -> None:
    """Bytes that were changed, left out or put in between."""
    body = bytearray(wire.packed(document))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body)))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        wire.unpacked(bytes(body))
    except InputError:
        return


def test_answers_come_out_as_they_are() -> None:
    """They have their arrays, their contributors, and the types of both."""
    keys = np.eye(3)
    for values in ([1.0, 2.0, 3.0], np.arange(6.0).reshape(3, 2)):
        answers = softkv.soft_lookup(keys[:2], keys, values, compatibility="dot")
        found = wire.unpacked(wire.packed(answers), classes=True)
        assert alike(answers, found)
        one = wire.unpacked(wire.packed(answers[0]), classes=True)
        assert isinstance(one, Answer)
        assert isinstance(one.contributors[0], Contributor)
        assert one.to_json() == answers[0].to_json()


def test_classes_are_made_by_those_who_ask_for_them() -> None:
    """A server gets a dict, whatever it is called; and no other class is ever made."""
    body = wire.packed(Contributor(1, 0.5, 2.0))
    assert isinstance(wire.unpacked(body), dict)
    assert wire.unpacked(body, classes=True) == Contributor(1, 0.5, 2.0)
    for name in ("SoftKV", "os.system", "__import__", None, ["Answer"]):
        with pytest.raises(InputError, match="does not know"):
            wire.unpacked(json.dumps({"$class": name, "of": []}).encode(), classes=True)


@pytest.mark.parametrize(
    "line",
    [
        {"$class": "Answer"},
        {"$class": "Answer", "of": [1]},
        {"$class": "Answer", "of": None},
        {"$class": "Heads", "of": [[1], [2], 3, 4, 5, 6, 7, 8]},
    ],
    ids=str,
)
def test_a_class_that_was_given_other_things_is_refused(line: Any) -> None:
    """A client refuses it whose server is of another version."""
    with pytest.raises(InputError):
        wire.unpacked(json.dumps(line).encode(), classes=True)


def saved(array: Any, **options: Any) -> bytes:
    """An array as a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


def with_header(header: bytes, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """A .npy file with a header of one's own."""
    size = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + header + content


def header(descr: str, shape: str, by_columns: str = "False") -> bytes:
    """What NumPy writes as a header."""
    return f"{{'descr': '{descr}', 'fortran_order': {by_columns}, 'shape': {shape}, }}\n".encode()


EIGHT = bytes(range(64))
HOSTILE = {
    "a pickle": saved(np.array([{}], object), allow_pickle=True),
    "an object type": with_header(header("|O", "(1,)"), EIGHT),
    "a structured type": saved(np.zeros(2, [("a", "f4"), ("b", "i4")])),
    "texts": saved(np.array(["abc"])),
    "bytes": saved(np.array([b"abc"])),
    "times": saved(np.array(["2020-01-01"], "M8[D]")),
    "complex numbers": saved(np.array([1j])),
    "long doubles": saved(np.zeros(2, np.longdouble)),
    "a type of no width": with_header(header("<f0", "(1,)"), EIGHT),
    "a type of a great width": with_header(header("<f99999999", "(1,)"), EIGHT),
    "fewer bytes than the shape says": with_header(header("<f8", "(9,)"), EIGHT),
    "a shape that overflows": with_header(header("<f8", "(4294967296, 4294967296, 2)"), EIGHT),
    "a shape whose product is 0 modulo a word": with_header(header("<f8", "(9223372036854775808, 2)"), EIGHT),
    "nothing of a great width": with_header(header("<f8", "(0, 9223372036854775807, 9223372036854775807)"), EIGHT),
    "a negative side": with_header(header("<f8", "(-1,)"), EIGHT),
    "two negative sides": with_header(header("<f8", "(-2, -4)"), EIGHT),
    "a side that is no number": with_header(header("<f8", "('a',)"), EIGHT),
    "a side that is true": with_header(header("<f8", "(True,)"), EIGHT),
    "many axes": with_header(header("<f8", "(1, 1, 1, 1, 1)"), EIGHT),
    "a great many axes": with_header(header("<f8", "(" + "1, " * 2000 + ")"), EIGHT),
    "code in the header": with_header(b"{'descr': __import__('os').name, 'fortran_order': 0, 'shape': (1,)}\n", EIGHT),
    "a header that is nested": with_header(b"(" * 9000 + b"\n", EIGHT),
    "a header without an end": with_header(b"{'descr': '<f8', 'fortran_order': False", EIGHT),
    "a long header": with_header(header("<f8", "(1,)").replace(b"\n", b" " * 60_000 + b"\n"), EIGHT),
    "a header of gigabytes": b"\x93NUMPY\x02\x00" + b"\xff\xff\xff\x7f" + EIGHT,
    "a header of Python 2": with_header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1L,), }\n", EIGHT),
    "a header that is no dict": with_header(b"['descr']\n", EIGHT),
    "a name too many": with_header(header("<f8", "(1,)").replace(b"}", b"'x': 1}"), EIGHT),
    "an unknown version": with_header(header("<f8", "(1,)"), EIGHT, b"\x09\x00"),
    "a third version": with_header(header("<f8", "(1,)"), EIGHT, b"\x03\x00"),
    "nothing, many times over": with_header(header("<f8", "(1099511627776, 0)")),
    "no magic": b"NUMPY" + EIGHT,
    "half a magic": b"\x93NUM",
    "an archive": b"PK\x03\x04" + EIGHT,
    "zeros": bytes(100),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arrays_are_refused(name: str) -> None:
    """They are an error of input, without a warning, before memory is taken for what they claim to be."""
    with pytest.raises(InputError, match="expected"):
        wire.unpacked(b'{"query":{"$array":0}}\n' + HOSTILE[name])


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_both_versions_and_orders_are_read(version: tuple[int, int], order: Any) -> None:
    """NumPy writes such arrays, and other programs do."""
    array = np.asarray(np.arange(12.0).reshape(3, 4), order=order)
    found = wire.unpacked(b'{"$array":0}\n' + saved(array, version=version))
    assert np.array_equal(found, array)
    other = with_header(b'{"shape":(2,),"descr":"<i2","fortran_order":False}', b"\x01\x00\x02\x00")
    assert wire.unpacked(b'{"$array":0}\n' + other).tolist() == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1, "a": 2}',
        b'{"$array": 0}',
        b'{"$array": -1}',
        b'{"$array": true}',
        b'{"$array": "0"}',
        b'{"$float": "word"}',
        b'{"$float": [1]}',
        b'{"$tuple": 1}',
        b'{"$dict": 1}',
        b'{"$dict": [[1]]}',
        b'{"$dict": [[[1], 2]]}',
        b'{"$dict": [[{}, 2]]}',
        b'{"$dict": [[1, 2]]}',
        b"[" + b"{}," * wire.MOST_VALUES + b"{}]",
        b"[" * 100_000,
        b"[" * 257 + b"]" * 257,
        b'{"a":' * 257 + b"1" + b"}" * 257,
        b'{"$tuple":[' * 200 + b"]}" * 200,
        b"9" * 5000,
    ],
    ids=lambda line: repr(line[:20]),
)
def test_hostile_lines_are_refused(line: bytes) -> None:
    """They are an error of input."""
    with pytest.raises(InputError):
        wire.unpacked(line)


def test_an_array_stands_in_one_place() -> None:
    """What names it again and again would be made a matrix that is many times as long as the body."""
    with pytest.raises(InputError, match="each array once"):
        wire.unpacked(b'{"queries":[{"$array":0},{"$array":0}]}\n' + saved([1.0, 2.0]))


def test_a_name_that_stands_twice_is_found_among_many() -> None:
    """It takes about as many comparisons as there are names, and not for each as many."""
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str(self) == str(other)

    with pytest.raises(Misfit, match="'499' stands twice"):
        notation._unique([(Name(min(one, 499)), one) for one in range(501)])
    assert compared < 5000


def test_what_cannot_be_sent_is_refused() -> None:
    """Functions, sets, classes that are not in the table, and numbers of NumPy that JSON would not give back."""
    for thing in (len, {1}, object(), b"bytes", np.longdouble(1), np.clongdouble(1), np.datetime64(1, "ns")):
        with pytest.raises(TypeError, match="cannot be sent"):
            wire.packed({"query": thing})


def test_arrays_lie_in_memory_as_those_of_numpy_do() -> None:
    """Wherever they stand in a body: sums over numbers that lie otherwise are added up in another order."""
    for before in range(1, 80):
        body = wire.packed({"words": "x" * before, "numbers": np.arange(9.0)})
        assert wire.unpacked(body, classes=True)["numbers"].ctypes.data % 16 == 0
