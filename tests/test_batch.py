"""What may enter a store, and what is refused with nothing written."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.errors import DuplicateKey, InputError, KeyTextError, KindError, NotFinite, PayloadError, ShapeError
from softkv.storage import Store
from softkv.storage.batch import checked, checked_json, checked_key
from softkv.storage.layout import Layout, ValueKind
from tests.stores import footprint, fruit, vectors

GOOD = {"vectors": [[1.0, 2.0, 3.0, 4.0]], "values": [1.0], "keys": ["new"], "payloads": None, "texts": None}


def deep(levels: int) -> list[Any]:
    """A list in a list in a list."""
    found: list[Any] = []
    for _ in range(levels - 1):
        found = [found]
    return found


def shared(levels: int) -> list[Any]:
    """A few lists that stand for 2^levels of them."""
    found: list[Any] = [1]
    for _ in range(levels):
        found = [found, found]
    return found


def cyclic() -> list[Any]:
    """A list that holds itself."""
    found: list[Any] = []
    found.append(found)
    return found


class Stubborn:
    """An array of another library that does not turn into one of NumPy's."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError("requires grad")


REFUSED = [
    ("vectors", [[1.0, 2.0, 3.0]], ShapeError, "width 3, but this store holds width 4"),
    ("vectors", [1.0, 2.0, 3.0, 4.0], ShapeError, r"shape \(4,\)"),
    ("vectors", [[[1.0, 2.0, 3.0, 4.0]]], ShapeError, "matrix"),
    ("vectors", 7.0, ShapeError, "matrix"),
    ("vectors", [], ShapeError, r"shape \(0,\)"),
    ("vectors", np.empty((0, 4)), ShapeError, "empty"),
    ("vectors", [[1.0, 2.0, 3.0, 4.0], [1.0]], ShapeError, "ragged"),
    ("vectors", [[True, False, True, True]], KindError, "bool"),
    ("vectors", [[1j, 2, 3, 4]], KindError, "complex"),
    ("vectors", [["a", "b", "c", "d"]], KindError, "dtype <U1"),
    ("vectors", ["abcd"], KindError, "texts"),
    ("vectors", [[None, 1.0, 2.0, 3.0]], KindError, "object"),
    ("vectors", [[1.0, True, 2.0, 3.0]], KindError, "some key vectors hold booleans"),
    ("vectors", [(1.0, 2.0, np.False_, 3.0)], KindError, "some key vectors hold booleans"),
    ("vectors", np.array([[1.0, True, 2.0, 3.0]], object), KindError, "object"),
    ("vectors", np.array([[1, 2, 3, 4]], object), KindError, "object"),
    ("vectors", np.array([[1, 2, 3, 4]], np.longdouble), KindError, "float128|longdouble"),
    ("vectors", np.array([[1, 2, 3, 4]], "M8[s]"), KindError, "datetime64"),
    ("vectors", np.ma.masked_equal([[1.0, 2.0, 3.0, 4.0]], 2), KindError, "masked"),
    ("vectors", None, KindError, "object"),
    ("vectors", {"a": 1}, KindError, "object"),
    ("vectors", Stubborn(), KindError, "requires grad"),
    ("vectors", [[1.0, np.nan, 3.0, 4.0]], NotFinite, "key vector 0"),
    ("vectors", [[1.0, np.inf, 3.0, 4.0]], NotFinite, "key vector 0"),
    ("vectors", [[1.0, 3.5e38, 3.0, 4.0]], NotFinite, "float32"),
    ("vectors", [[1, 10**39, 3, 4.0]], KindError, "object"),
    ("values", [], ShapeError, "1 key vectors but 0 values"),
    ("values", [1.0, 2.0], ShapeError, "1 key vectors but 2 values"),
    ("values", [[1.0]], ShapeError, "one number per item"),
    ("values", 1.0, ShapeError, "one number per item"),
    ("values", ["red"], KindError, "texts"),
    ("values", np.array(["red"]), KindError, "dtype <U3"),
    ("values", [True], KindError, "booleans"),
    ("values", np.array([True]), KindError, "bool"),
    ("values", [1j], KindError, "complex"),
    ("values", [None], KindError, "object"),
    ("values", np.array([1], np.longdouble), KindError, "float128|longdouble"),
    ("values", [np.nan], NotFinite, "value 0"),
    ("values", [-np.inf], NotFinite, "value 0"),
    ("values", [1e200], NotFinite, "beyond ±1e\\+150"),
    ("values", [2**53 + 1], KindError, "2\\^53"),
    ("values", np.array([-(2**53) - 1]), KindError, "2\\^53"),
    ("values", np.array([2**64 - 1], np.uint64), KindError, "2\\^53"),
    ("values", [10**400], KindError, "object"),
    ("keys", ["a\0b"], KeyTextError, "NUL character at byte 1"),
    ("keys", ["x" * 65_537], KeyTextError, "65,537 bytes; 65,536 is the most"),
    ("keys", ["é" * 32_769], KeyTextError, "65,538 bytes"),
    ("keys", ["#1"], KeyTextError, "starts with '#'"),
    ("keys", ["a\ud800"], KeyTextError, "lone surrogate at position 1"),
    ("keys", [5], KeyTextError, "is a int"),
    ("keys", [b"bytes"], KeyTextError, "is a bytes"),
    ("keys", "n", ShapeError, "not a str"),
    ("keys", {"new": 1}, ShapeError, "not a dict"),
    ("keys", {"new"}, ShapeError, "not a set"),
    ("keys", 7, ShapeError, "not a int"),
    ("keys", ["new", "newer"], ShapeError, "1 key vectors but 2 keys"),
    ("keys", ["apple"], DuplicateKey, "'apple' is there already"),
    ("payloads", [object()], PayloadError, "holds a object"),
    ("payloads", [{"when": {1, 2}}], PayloadError, "holds a set"),
    ("payloads", [(1, 2)], PayloadError, "holds a tuple"),
    ("payloads", [[b"x"]], PayloadError, "holds a bytes"),
    ("payloads", [np.float32(1)], PayloadError, "holds a float32"),
    ("payloads", [{1: "a"}], PayloadError, "key that is not a text"),
    ("payloads", [[float("nan")]], PayloadError, "payload 0 cannot be JSON"),
    ("payloads", [[float("inf")]], PayloadError, "payload 0 cannot be JSON"),
    ("payloads", [deep(65)], PayloadError, "deeper than 64"),
    ("payloads", [cyclic()], PayloadError, "deeper than 64"),
    ("payloads", [shared(60)], PayloadError, "more than 1,048,576 values"),
    ("payloads", ["x" * (1 << 20)], PayloadError, "1,048,578 bytes; 1,048,576 is the most"),
    ("payloads", ["a\ud800"], PayloadError, "lone surrogate"),
    ("payloads", {"a": 1}, ShapeError, "not a dict"),
    ("payloads", [1, 2], ShapeError, "1 key vectors but 2 payloads"),
    ("texts", [5], KindError, "text 0 is of type int"),
    ("texts", ["a\0"], KindError, "text 0 holds a NUL"),
    ("texts", ["\udfff"], KindError, "text 0 holds a lone surrogate"),
    ("texts", "t", ShapeError, "not a str"),
    ("value_vectors", [[1.0]], KindError, "go with text values"),
    ("on_conflict", "merge", InputError, "'merge'; use one of error, replace, ignore"),
]


@pytest.fixture(scope="module")
def basket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for all that is refused; it must be good for writing in the end."""
    with fruit(tmp_path_factory.mktemp("refused") / "s") as store:
        yield store
        store.append(**GOOD)  # type: ignore[arg-type]
        assert store.check().ok


@pytest.mark.parametrize(("what", "given", "error", "message"), REFUSED)
def test_what_cannot_be_used_is_refused_and_nothing_is_written(
    basket: Store, what: str, given: Any, error: type[Exception], message: str
) -> None:
    """Each with the error that names it; the files, the commit and the items are as before."""
    before, commit = footprint(Path(basket.path)), basket.commit
    with pytest.raises(error, match=message) as caught:
        basket.append(**{**GOOD, what: given})  # type: ignore[arg-type]
    assert type(caught.value) is error
    assert isinstance(caught.value, ValueError)
    assert (footprint(Path(basket.path)), basket.commit, len(basket)) == (before, commit, 3)
    assert basket.check().ok


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([1.0, "red"], KindError, "some values are texts"),
        (["red", 1.0], KindError, "label 1 is of type float"),
        ([1.0, True], KindError, "some values are booleans"),
        ([True, 1.0], KindError, "some values are booleans"),
        ([1.0, np.True_], KindError, "some values are booleans"),
        ([[1.0, 2.0], [3.0, True]], KindError, "some values hold booleans"),
        ([np.ones(2), np.array([True, False])], KindError, "some values hold booleans"),
        ([1.0, [2.0]], ShapeError, "ragged"),
        ([[2.0], 1.0], ShapeError, "ragged"),
        ([[1.0], [1.0, 2.0]], ShapeError, "ragged"),
        ([[[1.0], [1.0, 2.0]], [1.0]], ShapeError, "ragged"),
        ([2**53 + 1, 0.5], KindError, "2\\^53"),
        ([2**63, -1], KindError, "2\\^53"),
        ([np.int64(2**53 + 1), 0.5], KindError, "2\\^53"),
        ([np.int64(-(2**63)), 0.5], KindError, "2\\^53"),
        ([np.uint64(2**64 - 1), -1], KindError, "2\\^53"),
        (np.array([1, 0.5], object), KindError, "values have dtype object"),
        ([None, "red"], KindError, "texts"),
        (["red", None], KindError, "label 1 is of type NoneType"),
        (["a", "b\0"], KindError, "label 1 holds a NUL"),
    ],
)
def test_mixed_values_do_not_begin_a_store(
    tmp_path: Path, values: list[Any], error: type[Exception], message: str
) -> None:
    """The first batch settles the kind of value, so it is held to one kind itself."""
    with Store.open(tmp_path / "s", "c") as store:
        before = footprint(tmp_path)
        with pytest.raises(error, match=message):
            store.append(vectors(2), values)
        assert footprint(tmp_path) == before
        assert (store.layout, store.commit) == (None, 0)
        assert store.check().ok


@pytest.mark.parametrize(("vectors_", "values"), [(np.ones((1, 0)), [1.0]), (np.ones((1, 2)), np.ones((1, 0)))])
def test_rows_without_a_number_do_not_begin_a_store(tmp_path: Path, vectors_: np.ndarray, values: Any) -> None:
    """A width of zero is refused for keys and for values."""
    with Store.open(tmp_path / "s", "c") as store:
        with pytest.raises(ShapeError, match="width is 0"):
            store.append(vectors_, values)
        assert store.check().ok


def test_text_values_need_their_embeddings(tmp_path: Path) -> None:
    """A store of texts does not take texts alone, nor embeddings of another width."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(1), ["one"], value_vectors=[[1.0, 2.0]])
        with pytest.raises(KindError, match="need value_vectors"):
            store.append(vectors(1), ["two"])
        with pytest.raises(ShapeError, match="value vectors have width 3"):
            store.append(vectors(1), ["two"], value_vectors=[[1.0, 2.0, 3.0]])
        with pytest.raises(ShapeError, match="2 values"):
            store.append(vectors(1), ["two"], value_vectors=[[1.0, 2.0], [1.0, 2.0]])
        assert store.check().ok


def test_duplicates_inside_a_batch_are_named(tmp_path: Path) -> None:
    """They are found before anything is written, with those that are unique left out."""
    with fruit(tmp_path / "s") as store:
        before = footprint(tmp_path)
        with pytest.raises(DuplicateKey, match="more than once") as caught:
            store.append(vectors(5), [1.0] * 5, keys=["a", "b", "a", "c", "b"])
        assert caught.value.keys == ("a", "b")
        assert footprint(tmp_path) == before
        assert store.check().ok


def test_keys_that_are_there_already_are_named(tmp_path: Path) -> None:
    """All of them in the error, the first three in its message."""
    names = [f"key {i}" for i in range(9)]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(9), [1.0] * 9, keys=names)
        with pytest.raises(DuplicateKey, match=r"'key 0', 'key 1', 'key 2' \(and 6 more\)") as caught:
            store.append(vectors(10), [1.0] * 10, keys=["new", *names])
        assert caught.value.keys == tuple(names)
        assert store.check().ok


@pytest.mark.parametrize(
    "key", ["", " ", "x" * 65_536, "é" * 32_768, "a#", "\n", "'", '"', "\\", "\x7f", "\uffff", "🜚"]
)
def test_any_other_text_is_a_key(tmp_path: Path, key: str) -> None:
    """It is found alone and among many, comes back as it was, and can be deleted."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(2), [1.0, 2.0], keys=[key, "other"])
        assert store.get(key).key == key
        assert store.find_many(["other", key, "none"]).tolist() == [1, 0, -1]
        assert list(store.keys()) == [key, "other"]
        store.delete(key)
        assert key not in store
        assert store.check().ok


def test_every_control_character_may_stand_in_a_key(tmp_path: Path) -> None:
    """Thousands of code points, asked for at once, each its own key."""
    keys = [chr(code) for code in [*range(1, 0x3000), 0xFEFF, 0xFFFD, 0xFFFE, 0xFFFF, 0x1F600, 0x10FFFF] if code != 35]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(len(keys)), [0.0] * len(keys), keys=keys)
        assert store.find_many(keys).tolist() == list(range(len(keys)))
        assert list(store.keys()) == keys
        assert store.check().ok


@pytest.mark.parametrize(
    "payload",
    [
        {"a": [1, -2.5, True, False, None, "x"], "b": {"c": {}}},
        [],
        {},
        "",
        0,
        -0.0,
        False,
        1e308,
        5e-324,
        10**300,
        "a\0b",
        "\u2028é🜚",
        deep(64),
        "x" * ((1 << 20) - 2),
    ],
)
def test_a_payload_comes_back_as_it_was_given(tmp_path: Path, payload: Any) -> None:
    """Equal, of the same type, and down to the sign of a zero; also after reopening."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(1), [1.0], keys=["a"], payloads=[payload])
    with Store.open(tmp_path / "s") as store:
        again = store.get("a").payload
        assert repr(again) == repr(payload)
        assert store.check().ok


def test_json_is_what_the_json_module_reads() -> None:
    """It is compact, and has no ASCII escapes."""
    payload = {"name": "été", "list": [1, 2.5, None]}
    text = checked_json(payload, "payload 0")
    assert text == '{"name":"été","list":[1,2.5,null]}'
    assert json.loads(text) == payload


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i1", "u1", "i4", "u8"])
def test_every_real_dtype_enters(dtype: str) -> None:
    """Integers, half floats and foreign byte orders become float32 keys and float64 numbers."""
    given = np.array([[1, 2], [3, 4]], dtype)
    batch = checked(given, given[:, 0], keys=None, payloads=None, texts=None, value_vectors=None, layout=None)
    assert batch.vectors.tolist() == [[1, 2], [3, 4]]
    assert batch.values.tolist() == [[1], [3]]
    assert (batch.vectors.dtype, batch.values.dtype) == (np.float32, np.float64)


@pytest.mark.parametrize("slicing", [np.s_[::2], np.s_[::-1], np.s_[:, ::-1]])
def test_views_of_arrays_enter_in_their_own_order(slicing: Any) -> None:
    """Strided, reversed and transposed arrays are written as they look, not as they lie."""
    given = vectors(6, 4)[slicing]
    batch = checked(given, given, keys=None, payloads=None, texts=None, value_vectors=None, layout=None)
    np.testing.assert_array_equal(batch.vectors, given)
    assert batch.vectors.flags.c_contiguous


@pytest.mark.parametrize("largest", [2**53, -(2**53)])
def test_integers_up_to_2_to_the_53_come_back_unchanged(tmp_path: Path, largest: int) -> None:
    """The largest that float64 counts to without a gap."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(2), [largest, 0.5], keys=["a", "b"])
        assert store.get("a").value == largest
        assert store.check().ok


def test_large_finite_vectors_are_finite() -> None:
    """Their sum is beyond float32, they are not."""
    given = np.full((2, 3), 3.4e38, np.float32)
    batch = checked(given, [1.0, 2.0], keys=None, payloads=None, texts=None, value_vectors=None, layout=None)
    np.testing.assert_array_equal(batch.vectors, given)


def test_the_first_item_that_is_not_finite_is_named() -> None:
    """The error tells its place in the batch."""
    given = vectors(9)
    given[[5, 7], 2] = np.nan
    with pytest.raises(NotFinite, match="key vector 5"):
        checked(given, [1.0] * 9, keys=None, payloads=None, texts=None, value_vectors=None, layout=None)


def test_the_kind_is_found_in_the_values() -> None:
    """Numbers, vectors, labels, and texts when their embeddings come along; given as lists or as arrays."""
    for values, also, layout in [
        ([1, 2], None, Layout(4, ValueKind.NUMBER)),
        (np.array([1, 2]), None, Layout(4, ValueKind.NUMBER)),
        ([np.float32(1), np.array(2.0)], None, Layout(4, ValueKind.NUMBER)),
        ([[1], [2]], None, Layout(4, ValueKind.VECTOR, 1)),
        (np.ones((2, 3)), None, Layout(4, ValueKind.VECTOR, 3)),
        ([np.ones(3), np.ones(3)], None, Layout(4, ValueKind.VECTOR, 3)),
        (["a", "b"], None, Layout(4, ValueKind.LABEL)),
        (np.array(["a", "b"]), None, Layout(4, ValueKind.LABEL)),
        (["a", "b"], np.ones((2, 5)), Layout(4, ValueKind.TEXT, 5)),
    ]:
        batch = checked(vectors(2), values, keys=None, payloads=None, texts=None, value_vectors=also, layout=None)
        assert batch.layout == layout


def test_the_longest_key_is_measured_in_bytes() -> None:
    """It has 64 KiB of UTF-8."""
    assert checked_key("é" * 32_768) == ("é" * 32_768).encode()
    with pytest.raises(KeyTextError, match="65,538 bytes"):
        checked_key("é" * 32_769)
