"""The store as its users see it: modes, what is refused, what comes back, and what every handle sees."""

import gc
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.errors import (
    AccessRefused,
    DuplicateKey,
    HandleClosed,
    InputError,
    KeyMissing,
    KeyTextError,
    KindError,
    NotFinite,
    PayloadError,
    ShapeError,
    SoftKVError,
    StoreDamaged,
    StoreLocked,
    StoreNotFound,
)
from softkv.storage import Added, Store, ValueKind
from tests.stores import FRUIT, GENERATION, closed_fruit, contents, footprint, forge, fruit, vectors

MANY = 100_000


@contextmanager
def refused(store: Store, error: type[SoftKVError], words: str) -> Iterator[None]:
    """Expect an error of this type that says these words, and a store that is byte for byte as before."""
    before = store.commit, contents(store), footprint(Path(store.path))
    with pytest.raises(SoftKVError, match=words) as caught:
        yield
    assert type(caught.value) is error
    assert (store.commit, contents(store), footprint(Path(store.path))) == before
    assert store.check().ok


def nested(depth: int) -> list[Any]:
    """Lists in lists, this many."""
    inner: list[Any] = []
    for _ in range(depth - 1):
        inner = [inner]
    return inner


def circle() -> list[Any]:
    """A list that holds itself."""
    ring: list[Any] = []
    ring.append(ring)
    return ring


# Modes


def test_mode_c_makes_a_store_where_there_is_none(tmp_path: Path) -> None:
    """Mode "c" makes an empty store at a path where there is nothing."""
    with Store.open(tmp_path / "s", "c") as store:
        assert (len(store), store.rows, store.commit, store.layout, list(store.keys())) == (0, 0, 0, None, [])
        assert store.check().ok


def test_mode_c_makes_a_store_in_an_empty_directory(tmp_path: Path) -> None:
    """Mode "c" takes an empty directory for a place where a store may be made."""
    (tmp_path / "s").mkdir()
    with fruit(tmp_path / "s") as store:
        assert store.check().ok


def test_mode_c_opens_what_is_there(tmp_path: Path) -> None:
    """Mode "c" keeps the items of a store that is there."""
    closed_fruit(tmp_path / "s")
    with Store.open(tmp_path / "s", "c") as store:
        assert list(store.keys()) == list(FRUIT)
        assert store.check().ok


def test_mode_w_opens_for_writing(tmp_path: Path) -> None:
    """Mode "w" keeps the items and takes new ones."""
    closed_fruit(tmp_path / "s")
    with Store.open(tmp_path / "s", "w") as store:
        store.append(vectors(1), [7.0], keys=["fig"])
        assert list(store.keys()) == [*FRUIT, "fig"]
        assert store.check().ok


@pytest.mark.parametrize("mode", ["r", "w"])
def test_modes_r_and_w_make_nothing(tmp_path: Path, mode: str) -> None:
    """Modes "r" and "w" refuse a path where there is nothing, and leave it so."""
    with pytest.raises(StoreNotFound, match="mode 'c'"):
        Store.open(tmp_path / "s", mode)
    assert not list(tmp_path.iterdir())


def test_mode_n_starts_anew(tmp_path: Path) -> None:
    """Mode "n" leaves nothing of the store that was there, and nothing beside it."""
    closed_fruit(tmp_path / "s")
    with Store.open(tmp_path / "s", "n") as store:
        assert (len(store), store.commit, store.layout) == (0, 0, None)
        assert [path.name for path in tmp_path.iterdir()] == ["s"]
        assert store.check().ok


def test_mode_n_makes_a_store_where_there_is_none(tmp_path: Path) -> None:
    """Mode "n" needs no store to replace."""
    with Store.open(tmp_path / "s", "n") as store:
        assert len(store) == 0
        assert store.check().ok


@pytest.mark.parametrize("mode", ["x", "", "rw", "R", None])
def test_a_wrong_mode_is_named(tmp_path: Path, mode: Any) -> None:
    """A mode that does not exist is an error that lists those that do."""
    with pytest.raises(InputError, match="use one of r, w, c, n"):
        Store.open(tmp_path / "s", mode)
    assert not list(tmp_path.iterdir())


def test_a_path_with_nul_is_named(tmp_path: Path) -> None:
    """A path that no system can have is an error of ours."""
    with pytest.raises(InputError, match="NUL"):
        Store.open(f"{tmp_path}/a\0b", "c")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", ["w", "c", "n"])
def test_a_second_writer_is_refused(tmp_path: Path, mode: str) -> None:
    """While one handle writes, no mode gives a second one that does, and the first is not disturbed."""
    with fruit(tmp_path / "s") as store:
        before = contents(store)
        with pytest.raises(StoreLocked, match="open for writing by pid"):
            Store.open(tmp_path / "s", mode)
        store.append(vectors(1), [7.0])
        assert list(contents(store).items())[:3] == list(before.items())
        assert store.check().ok


# Bad input

COLUMN = np.zeros((1, 4), np.float32)
BAD: dict[str, tuple[dict[str, Any], type[SoftKVError], str]] = {
    "wrong width": ({"vectors": np.zeros((1, 5))}, ShapeError, "width 5, but this store holds width 4"),
    "one row as a vector": ({"vectors": np.zeros(4)}, ShapeError, r"shape \(4,\); give a matrix"),
    "three axes": ({"vectors": np.zeros((1, 4, 1))}, ShapeError, "give a matrix"),
    "zero rows": ({"vectors": np.zeros((0, 4)), "values": []}, ShapeError, "empty"),
    "nothing": ({"vectors": [], "values": []}, ShapeError, "shape"),
    "ragged": ({"vectors": [[0, 0, 0, 0], [0, 0, 0]], "values": [1, 2]}, ShapeError, "ragged"),
    "complex": ({"vectors": COLUMN.astype(complex)}, KindError, "dtype complex128; give real numbers"),
    "boolean": ({"vectors": COLUMN.astype(bool)}, KindError, "dtype bool"),
    "objects": ({"vectors": COLUMN.astype(object)}, KindError, "dtype object"),
    "texts": ({"vectors": COLUMN.astype(str)}, KindError, "dtype <U"),
    "dates": ({"vectors": COLUMN.astype("M8[s]")}, KindError, "dtype datetime64"),
    "no matrix": ({"vectors": None}, KindError, "dtype object"),
    "masked": ({"vectors": np.ma.masked_equal(COLUMN, 0)}, KindError, "masked"),
    "NaN": ({"vectors": [[0, 0, np.nan, 0]]}, NotFinite, "key vector 0 holds NaN"),
    "infinity": ({"vectors": [[0, 0, -np.inf, 0]]}, NotFinite, "infinity"),
    "both infinities": ({"vectors": [[np.inf, 0, -np.inf, 0]]}, NotFinite, "infinity"),
    "beyond float32": ({"vectors": [[0, 1e39, 0, 0]]}, NotFinite, "beyond float32's range"),
    "NaN value": ({"values": [np.nan]}, NotFinite, "value 0 is NaN"),
    "infinite value": ({"values": [np.inf]}, NotFinite, "value 0 is NaN, infinity"),
    "enormous value": ({"values": [1e151]}, NotFinite, r"beyond ±1e\+150"),
    "inexact integer": ({"values": [(1 << 53) + 1]}, KindError, "beyond ±2\\^53"),
    "complex value": ({"values": [1j]}, KindError, "dtype complex128"),
    "boolean value": ({"values": [True]}, KindError, "booleans; a store holds values of one kind"),
    "text for a number": ({"values": ["red"]}, KindError, "texts; a store holds values of one kind"),
    "vector for a number": ({"values": [[0.5, 1.0]]}, ShapeError, "one number per item"),
    "mixed kinds": ({"vectors": np.zeros((2, 4)), "values": [0.5, "red"]}, KindError, "one kind"),
    "mixed shapes": ({"vectors": np.zeros((2, 4)), "values": [0.5, [1.0]]}, ShapeError, "ragged"),
    "embeddings of numbers": ({"value_vectors": np.zeros((1, 2))}, KindError, "kind 'number'"),
    "too few values": ({"vectors": np.zeros((2, 4))}, ShapeError, "2 key vectors but 1 values"),
    "too many keys": ({"keys": ["a", "b"]}, ShapeError, "1 key vectors but 2 keys"),
    "a text for keys": ({"keys": "k"}, ShapeError, "not a str"),
    "a dict for keys": ({"keys": {"k": 1}}, ShapeError, "not a dict"),
    "an iterator for keys": ({"keys": iter(["k"])}, ShapeError, "one entry per item"),
    "key of another type": ({"keys": [7]}, KeyTextError, "key 0 is a int"),
    "bytes for a key": ({"keys": [b"k"]}, KeyTextError, "key 0 is a bytes"),
    "key with NUL": ({"keys": ["a\0b"]}, KeyTextError, "NUL character at byte 1"),
    "key too long": ({"keys": ["k" * 65_537]}, KeyTextError, "65,537 bytes; 65,536 is the most"),
    "key too long in bytes": ({"keys": ["é" * 32_769]}, KeyTextError, "65,538 bytes"),
    "key that starts with #": ({"keys": ["#1"]}, KeyTextError, "starts with '#'"),
    "half a surrogate": ({"keys": ["\ud800"]}, KeyTextError, "lone surrogate"),
    "payload of another type": ({"payloads": [{1, 2}]}, PayloadError, "holds a set"),
    "tuple in a payload": ({"payloads": [{"a": (1, 2)}]}, PayloadError, "holds a tuple"),
    "bytes in a payload": ({"payloads": [[b"x"]]}, PayloadError, "holds a bytes"),
    "number as a key in a payload": ({"payloads": [{1: 2}]}, PayloadError, "key that is not a text"),
    "NaN in a payload": ({"payloads": [{"a": np.nan}]}, PayloadError, "cannot be JSON"),
    "surrogate in a payload": ({"payloads": ["\ud800"]}, PayloadError, "lone surrogate"),
    "endless integer in a payload": ({"payloads": [10**5000]}, PayloadError, "cannot be JSON"),
    "payload too deep": ({"payloads": [nested(65)]}, PayloadError, "deeper than 64 levels"),
    "payload within itself": ({"payloads": [circle()]}, PayloadError, "deeper than 64 levels"),
    "payload too large": ({"payloads": ["x" * (1 << 20)]}, PayloadError, "1,048,578 bytes; 1,048,576 is the most"),
    "too few payloads": ({"payloads": []}, ShapeError, "0 payloads"),
    "text of another type": ({"texts": [7]}, KindError, "text 0 is of type int"),
    "conflict": ({"on_conflict": "merge"}, InputError, "use one of error, replace, ignore"),
}


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of fruit for tests that prove that they do not change it."""
    with fruit(tmp_path_factory.mktemp("unchanged") / "s") as store:
        yield store


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_nothing_is_written(unchanged: Store, case: str) -> None:
    """A batch that cannot be used is an error that says why, and leaves every byte as it was."""
    given, error, words = BAD[case]
    with refused(unchanged, error, words):
        unchanged.append(**{"vectors": COLUMN, "values": [1.0], **given})


@pytest.mark.parametrize("case", ["zero rows", "ragged", "NaN", "key with NUL", "payload too deep", "mixed kinds"])
def test_a_bad_first_batch_leaves_an_empty_store(tmp_path: Path, case: str) -> None:
    """The first batch decides widths and kind; one that is refused decides nothing."""
    given, error, words = BAD[case]
    with Store.open(tmp_path / "s", "c") as store:
        with refused(store, error, words):
            store.append(**{"vectors": COLUMN, "values": [1.0], **given})
        store.append(np.zeros((1, 9)), ["red"])
        assert store.layout is not None
        assert (store.layout.key_width, store.layout.kind) == (9, ValueKind.LABEL)
        assert store.check().ok


def test_one_bad_item_refuses_the_batch(tmp_path: Path) -> None:
    """A batch is stored wholly or not at all, and the message tells which item is to blame."""
    bad = vectors(500)
    bad[321, 2] = np.nan
    with fruit(tmp_path / "s") as store, refused(store, NotFinite, "key vector 321 "):
        store.append(bad, np.zeros(500))


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long doubles are float64 on this machine")
def test_floats_beyond_64_bits_are_refused(tmp_path: Path) -> None:
    """Numbers of more digits than float64 has would not come back, so they are an error."""
    with fruit(tmp_path / "s") as store, refused(store, KindError, "up to 64 bits"):
        store.append(COLUMN, np.array([1], np.longdouble))


def test_finite_numbers_whose_sum_overflows_are_taken(tmp_path: Path) -> None:
    """Rows whose sum overflows float32 are accepted when every number is finite."""
    with fruit(tmp_path / "s") as store:
        great = np.full((1, 4), 3e38, np.float32)
        store.append(great, [1.0], keys=["great"])
        assert store.get("great").vector.tolist() == great[0].tolist()
        assert store.check().ok


@pytest.mark.parametrize(
    ("values", "value_vectors", "error", "words"),
    [
        (["red", 0.5], None, KindError, "label 1 is of type float"),
        ([0.5], None, KindError, "label 0 is of type float"),
        (["x" * 65_537], None, KindError, "65,537 bytes"),
        (["a\0b"], None, KindError, "NUL"),
        (["red"], [[0.0]], KindError, "kind 'label'"),
        ("r", None, ShapeError, "not a str"),
    ],
)
def test_bad_labels_are_named(
    tmp_path: Path, values: Any, value_vectors: Any, error: type[SoftKVError], words: str
) -> None:
    """A store of labels takes texts of bounded length and nothing else."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(COLUMN, ["red"])
        with refused(store, error, words):
            store.append(np.zeros((len(values), 4)), values, value_vectors=value_vectors)


@pytest.mark.parametrize(
    ("values", "value_vectors", "error", "words"),
    [
        (["a tale"], None, KindError, "need value_vectors"),
        (["a tale"], [[0.0]], ShapeError, "width 1, but this store holds width 2"),
        (["a tale"], [[0.0, np.nan]], NotFinite, "value vector 0"),
        (["a tale"], [[0.0, 0.0]] * 2, ShapeError, "1 key vectors but 2 values"),
        ([0.5], [[0.0, 0.0]], KindError, "value 0 is of type float"),
    ],
)
def test_bad_texts_are_named(
    tmp_path: Path, values: Any, value_vectors: Any, error: type[SoftKVError], words: str
) -> None:
    """A store of texts takes a text and its embedding for every item."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(COLUMN, ["a story"], value_vectors=[[1.0, 0.0]])
        with refused(store, error, words):
            store.append(COLUMN, values, value_vectors=value_vectors)


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [([[1.0, 2.0, 3.0]], ShapeError, "width 3"), ([1.0], ShapeError, "give a matrix"), (["red"], KindError, "texts")],
)
def test_bad_vector_values_are_named(tmp_path: Path, values: Any, error: type[SoftKVError], words: str) -> None:
    """A store of vectors takes vectors of its width and nothing else."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(COLUMN, [[1.0, 2.0]])
        with refused(store, error, words):
            store.append(COLUMN, values)


def test_the_limits_themselves_are_accepted(tmp_path: Path) -> None:
    """The longest key, the deepest payload and the largest one come back as they were."""
    keys = ["k" * 65_536, "é" * 32_768, "depth", "size"]
    payloads = [None, None, nested(64), "x" * ((1 << 20) - 2)]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(4), [1.0, 1e150, -1e150, float(1 << 53)], keys=keys, payloads=payloads)
        assert [store.get(key).payload for key in keys] == payloads
        assert store.find_many(keys).tolist() == [0, 1, 2, 3]
        assert store.check().ok


# Conflicts


def test_an_existing_key_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Without on_conflict, keys that are there already are named, and the batch is not stored."""
    with fruit(tmp_path / "s") as store:
        with refused(store, DuplicateKey, "'pear', 'apple' is there already"):
            store.append(vectors(3), [1.0, 2.0, 3.0], keys=["pear", "fig", "apple"])
        with pytest.raises(DuplicateKey) as caught:
            store.append(vectors(3), [1.0, 2.0, 3.0], keys=["pear", "fig", "apple"])
        assert caught.value.keys == ("pear", "apple")
        assert store.check().ok


def test_a_key_twice_in_a_batch_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Duplicates inside one batch are found before anything is written."""
    with fruit(tmp_path / "s") as store, refused(store, DuplicateKey, "'fig' stands more than once"):
        store.append(vectors(3), [1.0, 2.0, 3.0], keys=["fig", "date", "fig"])


def test_items_without_a_key_never_conflict(tmp_path: Path) -> None:
    """None is no key, so it can stand in a batch as often as one likes."""
    with fruit(tmp_path / "s") as store:
        added = store.append(vectors(3), [1.0, 2.0, 3.0], keys=[None, "fig", None])
        assert added == Added(first_row=3, first_number=4, count=3)
        assert list(store.keys()) == [*FRUIT, "#4", "fig", "#6"]
        assert store.check().ok


def test_keys_differ_by_every_character(tmp_path: Path) -> None:
    """Keys are compared character for character: no case folding, no trimming, no normal forms."""
    keys = ["a", "A", " a", "a ", "", "é", "e\u0301", "1", "1.0", "ａ"]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(len(keys)), np.arange(len(keys)), keys=keys)
        assert [store.get(key).value for key in keys] == list(range(len(keys)))
        assert store.check().ok


def test_replace_keeps_the_order_of_a_dict(tmp_path: Path) -> None:
    """A replaced key keeps its place among the others, as in a dict, and the counts say what happened."""
    model = dict(FRUIT)
    with fruit(tmp_path / "s") as store:
        added = store.append(vectors(2, seed=5), [9.0, 8.0], keys=["fig", "apple"], on_conflict="replace")
        model |= {"fig": 9.0, "apple": 8.0}
        assert added == Added(first_row=3, first_number=4, count=2, replaced=1)
        assert {key: store.get(key).value for key in store.keys()} == model  # noqa: SIM118
        assert list(store.keys()) == list(model)
        assert (len(store), store.rows, store.live.tolist()) == (4, 5, [False, True, True, True, True])
        assert store.check().ok


def test_replace_takes_everything_of_the_new_item(tmp_path: Path) -> None:
    """Nothing of a replaced item shines through: not its vector, its payload or its text."""
    with fruit(tmp_path / "s") as store:
        new = vectors(1, seed=7)
        store.append(new, [9.0], keys=["apple"], on_conflict="replace")
        item = store.get("apple")
        assert (item.value, item.payload, item.text, item.vector.tolist()) == (9.0, None, None, new[0].tolist())
        assert store.check().ok


def test_replace_lets_the_last_of_a_batch_count(tmp_path: Path) -> None:
    """A key that stands twice in a batch to replace ends as if its items had come one at a time."""
    with fruit(tmp_path / "s") as store:
        keys = ["apple", "fig", "apple", "fig", None]
        added = store.append(vectors(5), [1.0, 2.0, 3.0, 4.0, 5.0], keys=keys, on_conflict="replace")
        assert (added.count, added.replaced, added.ignored) == (3, 1, 0)
        assert (store.get("apple").value, store.get("fig").value) == (3.0, 4.0)
        assert list(store.keys())[:4] == ["apple", "pear", "quince", "fig"]
        assert store.check().ok


def test_ignore_keeps_what_is_there(tmp_path: Path) -> None:
    """With "ignore" the items of present keys are passed over and counted, the others stored."""
    with fruit(tmp_path / "s") as store:
        keys = ["apple", "fig", None, "fig"]
        added = store.append(vectors(4), [9.0, 8.0, 7.0, 6.0], keys=keys, on_conflict="ignore")
        assert (added.count, added.replaced, added.ignored) == (2, 0, 2)
        assert (store.get("apple").value, store.get("fig").value) == (0.5, 8.0)
        assert list(store.keys()) == [*FRUIT, "fig", "#5"]
        assert store.check().ok


def test_ignoring_all_changes_nothing(tmp_path: Path) -> None:
    """A batch of which nothing is left makes no commit."""
    with fruit(tmp_path / "s") as store:
        before = store.commit, footprint(tmp_path / "s")
        added = store.append(vectors(3), [9.0] * 3, keys=list(FRUIT), on_conflict="ignore")
        assert (added.count, added.ignored) == (0, 3)
        assert (store.commit, footprint(tmp_path / "s")) == before
        assert store.check().ok


def test_a_deleted_key_can_come_back(tmp_path: Path) -> None:
    """A key that was deleted is new again, at the end of the order."""
    with fruit(tmp_path / "s") as store:
        store.delete("apple")
        store.append(vectors(1), [4.0], keys=["apple"])
        assert list(store.keys()) == ["pear", "quince", "apple"]
        assert store.get("apple").value == 4.0
        assert store.check().ok


# What was given comes back


def test_numbers_come_back_unchanged(tmp_path: Path) -> None:
    """Numbers are kept as float64, to the last bit."""
    numbers = [0.1, -0.0, 5e-324, 1e150, -1e-300, 1 / 3, float(1 << 53), 7]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(len(numbers)), numbers)
    with Store.open(tmp_path / "s") as store:
        found = [item.value for item in store.items(range(len(numbers)))]
        assert np.array(found).tobytes() == np.array(numbers, float).tobytes()
        assert store.values(np.arange(len(numbers))).tobytes() == np.array(numbers, float).tobytes()
        assert store.check().ok


def test_vectors_come_back_unchanged(tmp_path: Path) -> None:
    """Vectors as values are kept as float32, of their own width."""
    values = np.array([[0.1, -0.0, 1e-45], [3e38, -3e38, 1.0]], np.float32)
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(2), values, keys=["a", "b"])
    with Store.open(tmp_path / "s") as store:
        found = [store.get(key).value for key in "ab"]
        assert np.array(found).tobytes() == values.tobytes()
        assert store.check().ok


def test_labels_come_back_unchanged(tmp_path: Path) -> None:
    """Labels are any texts, and each has one code."""
    labels = ["red", "", "grün", "red", "日本", "Red", "red"]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(4), labels[:4])
        store.append(vectors(3), labels[4:])
    with Store.open(tmp_path / "s") as store, store.snapshot() as snapshot:
        assert [item.value for item in store.items(range(7))] == labels
        assert snapshot.labels() == list(dict.fromkeys(labels))
        assert [snapshot.labels()[code] for code in store.values(np.arange(7))] == labels
        assert store.check().ok


def test_texts_come_back_unchanged(tmp_path: Path) -> None:
    """Of a text value both come back: the text, and the embedding that is blended."""
    texts, embedded = ["A shepherd travels\n…", "", "𝄞" * 1000], vectors(3, 5, seed=2)
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(3), texts, keys=["a", "b", "c"], value_vectors=embedded)
    with Store.open(tmp_path / "s") as store:
        assert [store.get(key).value for key in "abc"] == texts
        assert store.values(store.find_many(["a", "b", "c"])).tobytes() == embedded.tobytes()
        assert store.check().ok


def test_payloads_and_embedded_texts_come_back_unchanged(tmp_path: Path) -> None:
    """Every JSON payload and every embedded text comes back equal and of the same types; None is none."""
    payloads: list[Any] = [
        {"a": [1, 2.5, None, True, {"": ""}], "ß": "\0\n\u2028😀"},
        [],
        0,
        False,
        "",
        10**40,
        -0.0,
        None,
    ]
    texts = ["apple (fruit)", None, "", "日本", "a\nb", "x", "y", None]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(8), np.zeros(8), payloads=payloads, texts=texts)
    with Store.open(tmp_path / "s") as store:
        found = store.items(range(8))
        assert json.dumps([item.payload for item in found]) == json.dumps(payloads)
        assert [item.text for item in found] == texts
        assert store.check().ok


@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4", "int8", "uint64"])
def test_key_vectors_of_any_real_type_are_taken(tmp_path: Path, dtype: str) -> None:
    """Key vectors are read as float32 from any real type, in any order of bytes and axes."""
    given = np.asfortranarray(np.arange(12).reshape(3, 4).astype(dtype))
    with Store.open(tmp_path / "s", "c") as store:
        store.append(given, [1.0, 2.0, 3.0])
        assert store.vectors([0, 1, 2]).tolist() == np.arange(12.0).reshape(3, 4).tolist()
        assert store.check().ok


def test_an_array_can_be_reused_after_append(tmp_path: Path) -> None:
    """What is stored is a copy: the caller's arrays are his own again when append returns."""
    given = vectors(3)
    kept = given.copy()
    with Store.open(tmp_path / "s", "c") as store:
        store.append(given, [1.0, 2.0, 3.0])
        given[:] = 0
        assert store.vectors([0, 1, 2]).tobytes() == kept.tobytes()
        assert store.check().ok


# Items without a key


def test_an_item_without_a_key_goes_by_its_number(tmp_path: Path) -> None:
    """Items without a key are found as #<number>, and have no key."""
    with fruit(tmp_path / "s") as store:
        added = store.append(vectors(2, seed=3), [7.0, 8.0])
        names = [f"#{added.first_number + i}" for i in range(2)]
        assert [store.get(name).value for name in names] == [7.0, 8.0]
        assert [(store.get(name).key, store.get(name).name) for name in names] == [(None, name) for name in names]
        assert [store.find(name) for name in names] == [3, 4]
        assert all(name in store for name in names)
        assert store.check().ok


@pytest.mark.parametrize("name", ["#1", "#05", "#+5", "# 5", "#٥", "#", "#5.0", "#99", "#-1", "#" + "9" * 30])
def test_only_one_name_finds_an_item_without_a_key(tmp_path: Path, name: str) -> None:
    """Other spellings of a number, numbers of items with keys, and numbers of nobody find nothing."""
    with fruit(tmp_path / "s") as store:
        store.append(vectors(2), [7.0, 8.0])  # #4 and #5
        assert name not in store
        with pytest.raises(KeyMissing):
            store.get(name)
        assert store.check().ok


def test_numbers_survive_all_that_happens_around_them(tmp_path: Path) -> None:
    """An item without a key keeps its name through replacements, deletions, compaction and reopening."""
    with fruit(tmp_path / "s") as store:
        store.append(vectors(3, seed=3), [7.0, 8.0, 9.0], payloads=["p", None, None])  # #4 #5 #6
        before = contents(store)
        store.append(vectors(1), [1.0], keys=["apple"], on_conflict="replace")
        store.delete(["#5", "pear"])
        store.compact()
        store.append(vectors(1), [2.0])
    with Store.open(tmp_path / "s", "w") as store:
        assert list(store.keys()) == ["apple", "quince", "#4", "#6", "#8"]
        assert {name: contents(store)[name] for name in ("#4", "#6", "quince")} == {
            name: before[name] for name in ("#4", "#6", "quince")
        }
        assert "#5" not in store
        assert store.check().ok


def test_numbers_are_never_given_twice(tmp_path: Path) -> None:
    """The number of a deleted item is not given to a later one, not even after compaction."""
    with fruit(tmp_path / "s") as store:
        first = store.append(vectors(1), [7.0]).first_number
        store.delete(f"#{first}")
        store.compact()
    with Store.open(tmp_path / "s", "w") as store:
        assert store.append(vectors(1), [8.0]).first_number > first
        assert f"#{first}" not in store
        assert store.check().ok


# Reading


def test_find_gives_rows(tmp_path: Path) -> None:
    """A key leads to the row its vector lies in, and to nothing once it is gone."""
    with fruit(tmp_path / "s") as store:
        assert [store.find(key) for key in FRUIT] == [0, 1, 2]
        store.delete("pear")
        with pytest.raises(KeyMissing, match="no item has the key 'pear'"):
            store.find("pear")
        assert store.check().ok


def test_find_many_gives_minus_one_where_there_is_none(tmp_path: Path) -> None:
    """Many keys are looked up at once, in any order, any of them more than once."""
    with fruit(tmp_path / "s") as store:
        store.delete("pear")
        assert store.find_many(["quince", "fig", "apple", "pear", "quince", ""]).tolist() == [2, -1, 0, -1, 2, -1]
        assert store.find_many([]).tolist() == []
        assert store.check().ok


def test_find_many_takes_a_list_of_keys(tmp_path: Path) -> None:
    """One text is not a list of its letters, and what cannot be a key is named."""
    with fruit(tmp_path / "s") as store:
        for bad, words in (("apple", "a list of keys"), (["a", 7], "key 1 is a int"), (["#1"], "starts with '#'")):
            with pytest.raises(KeyTextError, match=words):
                store.find_many(bad)  # type: ignore[arg-type]
        assert store.check().ok


@pytest.mark.parametrize("key", ["'; DROP TABLE state; --", '"', "%", "a\nb", "\u2028", "\\u0041", "[1]", "null"])
def test_any_text_can_be_a_key(tmp_path: Path, key: str) -> None:
    """Quotes, percent signs and line breaks mean nothing special in a key."""
    with fruit(tmp_path / "s") as store:
        store.append(vectors(1), [7.0], keys=[key])
        assert store.get(key).value == 7.0
        assert store.find_many(["apple", key]).tolist() == [0, 3]
        assert list(store.keys())[-1] == key
        assert store.delete(key) == 1
        assert store.check().ok


def test_contains_is_false_for_what_is_no_text(tmp_path: Path) -> None:
    """Whether something is in the store can be asked of anything."""
    with fruit(tmp_path / "s") as store:
        assert "apple" in store
        assert not any(key in store for key in (7, None, b"apple", ("apple",), "fig"))
        assert store.check().ok


def test_items_come_in_the_order_asked_for(tmp_path: Path) -> None:
    """Rows are read by number in any order, twice if asked twice, dead ones too."""
    with fruit(tmp_path / "s") as store:
        store.delete("pear")
        assert [item.key for item in store.items([2, 1, 2, 0])] == ["quince", "pear", "quince", "apple"]
        assert store.vectors([2, 1, 2]).tobytes() == vectors(3)[[2, 1, 2]].tobytes()
        assert store.values([2, 0]).tolist() == [-1.25, 0.5]
        assert store.items([]) == []
        assert store.check().ok


@pytest.mark.parametrize("rows", [[3], [-1], [0.0], ["0"], [[0]], [True], [1 << 70]])
@pytest.mark.parametrize("reading", ["items", "vectors", "values"])
def test_rows_that_are_not_there_are_named(unchanged: Store, reading: str, rows: Any) -> None:
    """A row number beyond the rows, below zero or of another type is an error, not another row."""
    with refused(unchanged, ShapeError, "rows"):
        getattr(unchanged, reading)(rows)


def test_in_order_follows_the_keys(tmp_path: Path) -> None:
    """The rows in order are those of the keys in order."""
    with fruit(tmp_path / "s") as store:
        store.append(vectors(1), [9.0], keys=["apple"], on_conflict="replace")
        assert store.in_order().tolist() == [3, 1, 2]
        assert [store.find(key) for key in store.keys()] == [3, 1, 2]  # noqa: SIM118
        assert store.check().ok


def test_keys_are_those_of_the_moment_of_asking(tmp_path: Path) -> None:
    """A walk over the keys goes on as it began, whatever is changed meanwhile."""
    with fruit(tmp_path / "s") as store:
        walk = store.keys()
        first = next(walk)
        store.delete("quince")
        store.append(vectors(1), [9.0], keys=["fig"])
        store.compact()
        assert [first, *walk] == list(FRUIT)
        assert store.check().ok


def test_blocks_are_views_of_the_file(tmp_path: Path) -> None:
    """Blocks copy nothing and cannot be written to: they are the map of the file itself."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(10), vectors(10, 3, seed=1))
        store.delete("#4")
        blocks = list(store.blocks(4))
        generation = store._committed.generation
        assert generation is not None
        maps = [np.frombuffer(arena._map, np.uint8) for arena in generation.arenas[:2]]  # type: ignore[arg-type]
        for block in blocks:
            assert np.shares_memory(block.vectors, maps[0])
            assert np.shares_memory(block.values, maps[1])
            assert not any(array.flags.writeable for array in (block.vectors, block.values, block.live))
        assert [block.start for block in blocks] == [0, 4, 8]
        assert np.concatenate([block.vectors for block in blocks]).tobytes() == vectors(10).tobytes()
        assert np.concatenate([block.values for block in blocks]).tobytes() == vectors(10, 3, seed=1).tobytes()
        assert np.flatnonzero(~np.concatenate([block.live for block in blocks])).tolist() == [3]
        assert store.check().ok


def test_blocks_outlive_what_happens_to_the_store(tmp_path: Path) -> None:
    """Arrays handed out stay as they were after more rows, compaction and close."""
    store = fruit(tmp_path / "s")
    block = next(store.blocks())
    store.append(vectors(50_000), np.zeros(50_000))
    store.delete("apple")
    store.compact()
    assert store.check().ok
    store.close()
    assert block.vectors.tobytes() == vectors(3).tobytes()
    assert block.values.tolist() == list(FRUIT.values())


def test_a_block_needs_a_row(tmp_path: Path) -> None:
    """Blocks of no rows would never end, so they are refused."""
    with fruit(tmp_path / "s") as store:
        with pytest.raises(ShapeError, match="at least 1 row"):
            next(store.blocks(0))
        assert store.check().ok


def test_an_empty_store_reads_as_empty(tmp_path: Path) -> None:
    """A store that never held anything answers every question."""
    with Store.open(tmp_path / "s", "c") as store:
        assert (list(store.keys()), list(store.blocks()), store.items([])) == ([], [], [])
        assert (store.in_order().tolist(), store.find_many(["a"]).tolist(), store.live.tolist()) == ([], [-1], [])
        assert ("a" in store, "#1" in store, store.value_scale, store.delete([])) == (False, False, 0.0, 0)
        store.compact()
        assert (store.commit, store.check().ok) == (0, True)


def test_a_store_of_the_dead_reads_as_empty(tmp_path: Path) -> None:
    """A store whose items are all gone is empty, compacted or not, and takes new ones."""
    with fruit(tmp_path / "s") as store:
        store.delete(list(FRUIT))
        for rows in (3, 0):
            assert (len(store), store.rows, list(store.keys()), store.value_scale) == (0, rows, [], 0.0)
            assert store.check().ok
            store.compact()
        store.append(vectors(1), [5.0], keys=["apple"])
        assert store.get("apple").value == 5.0
        assert store.check().ok


def test_norms_are_the_lengths_of_the_keys(tmp_path: Path) -> None:
    """Norms equal the float64 lengths of the key vectors to float32, even where squares leave float32."""
    given = np.concatenate([vectors(5, 3), [[1e30, 1e30, 0]], [[1e-30, 0, 1e-30]], [[0, 0, 0]]]).astype(np.float32)
    with Store.open(tmp_path / "s", "c") as store:
        store.append(given, np.zeros(8))
        with store.snapshot() as snapshot:
            lengths = np.sqrt((given.astype(np.float64) ** 2).sum(axis=1))
            np.testing.assert_allclose(snapshot.norms(0, 8), lengths, rtol=1e-6)
            assert snapshot.norms(3, 3).tolist() == []
            with pytest.raises(ShapeError, match="the store has 8"):
                snapshot.norms(3, 9)
        assert store.check().ok


# Many at once


def test_a_hundred_thousand_keys_at_once(tmp_path: Path) -> None:
    """Appending, finding and deleting take any number of keys in one call."""
    keys = [f"key {i}" for i in range(MANY)]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(MANY, 2), np.arange(MANY), keys=keys)
        assert store.find_many(keys[::-1]).tolist() == list(range(MANY))[::-1]
        assert store.delete(keys[1:]) == MANY - 1
        assert (store.find_many(keys) >= 0).sum() == 1
        assert list(store.keys()) == keys[:1]
        assert store.check().ok


def test_more_keys_than_sql_takes_variables_are_replaced_and_named(tmp_path: Path) -> None:
    """Conflicts take any number of keys in one call, too."""
    count = 40_000
    keys = [f"key {i}" for i in range(count)]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(count, 2), np.arange(count), keys=keys)
        with pytest.raises(DuplicateKey, match=r"and 39997 more"):
            store.append(vectors(count, 2), np.arange(count), keys=keys)
        added = store.append(vectors(count, 2), -np.arange(count), keys=keys[::-1], on_conflict="replace")
        assert added.replaced == count
        assert store.in_order().tolist() == list(range(2 * count))[: count - 1 : -1]
        assert store.check().ok


# delete


def test_delete_takes_one_key_or_many(tmp_path: Path) -> None:
    """One text is one key; a list is many, each counted once."""
    with fruit(tmp_path / "s") as store:
        store.append(vectors(1), [7.0])
        assert store.delete("apple") == 1
        assert store.delete(["pear", "#4", "pear"]) == 2
        assert list(store.keys()) == ["quince"]
        assert store.commit == 4
        assert store.check().ok


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        (["apple", "fig"], KeyMissing, "'fig'; 1 missing. Nothing was deleted"),
        (["apple", "#1"], KeyMissing, "'#1'"),
        (["apple", "#9", "pear"], KeyMissing, "'#9'"),
        (["apple", 7], KeyTextError, "key 1 is a int"),
        (["apple", "a\0"], KeyTextError, "NUL"),
    ],
)
def test_delete_is_all_or_none(tmp_path: Path, keys: list[str], error: type[SoftKVError], words: str) -> None:
    """One name that finds nothing keeps all the others alive."""
    with fruit(tmp_path / "s") as store, refused(store, error, words):
        store.delete(keys)


def test_deleting_nothing_changes_nothing(tmp_path: Path) -> None:
    """An empty list of keys is no commit."""
    with fruit(tmp_path / "s") as store:
        assert (store.delete([]), store.commit) == (0, 1)
        assert store.check().ok


# Settings


def test_settings_are_kept(tmp_path: Path) -> None:
    """Settings given before the first item or after survive items, compaction and reopening."""
    with Store.open(tmp_path / "s", "c") as store:
        assert store.settings == {}
        store.configure({"temperature": 0.07})
        store.append(vectors(2), [1.0, 2.0])
        assert store.settings == {"temperature": 0.07}
        store.configure({"embedder": {"name": "static"}, "ß": [None, True]})
        store.delete("#1")
        store.compact()
    with Store.open(tmp_path / "s") as store:
        assert store.settings == {"embedder": {"name": "static"}, "ß": [None, True]}
        assert store.check().ok


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"a": {1}}, PayloadError, "settings holds a set"),
        ({1: 2}, PayloadError, "not a text"),
        ([1], InputError, "give a dict"),
        (None, InputError, "give a dict"),
        ({"a": np.nan}, PayloadError, "cannot be JSON"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, settings: Any, error: type[SoftKVError], words: str) -> None:
    """Settings that would not come back are refused."""
    with fruit(tmp_path / "s") as store, refused(store, error, words):
        store.configure(settings)


def test_settings_handed_out_are_a_copy(tmp_path: Path) -> None:
    """Changing the settings that were read changes nothing in the store."""
    with fruit(tmp_path / "s") as store:
        store.configure({"a": [1]})
        store.settings["a"].append(2)
        assert store.settings == {"a": [1]}
        assert store.check().ok


# The value scale


def scale(values: Sequence[Any]) -> float:
    """√(mean ‖v − v̄‖²) in float64, one value at a time; texts count as one-hot codes."""
    if isinstance(values[0], str):
        names = sorted(set(values))
        values = [[float(name == value) for name in names] for value in values]
    rows = np.array(values, np.float64).reshape(len(values), -1)
    mean = rows.sum(axis=0) / len(rows)
    return float(np.sqrt(sum(float(((row - mean) ** 2).sum()) for row in rows) / len(rows)))


def kinds() -> dict[str, list[Any]]:
    """Forty values of each kind whose scale is not trivial."""
    random = np.random.default_rng(3)
    return {
        "number": random.normal(5, 2, 40).tolist(),
        "far number": (1e9 + random.normal(0, 1, 40)).tolist(),
        "vector": [row.tolist() for row in random.normal(2, 3, (40, 6)).astype(np.float32)],
        "label": [f"label {i}" for i in random.integers(0, 5, 40)],
    }


@pytest.mark.parametrize("kind", kinds())
def test_the_value_scale_follows_every_change(tmp_path: Path, kind: str) -> None:
    """Through adding, replacing, deleting and compacting, the scale is that of the live values."""
    values = kinds()[kind]
    model = {f"key {i}": value for i, value in enumerate(values[:20])}
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(20), values[:20], keys=list(model))
        assert store.value_scale == pytest.approx(scale(list(model.values())), rel=1e-6)
        again = {f"key {i}": value for i, value in enumerate(values[20:], 10)}
        store.append(vectors(20), values[20:], keys=list(again), on_conflict="replace")
        model |= again
        assert store.value_scale == pytest.approx(scale(list(model.values())), rel=1e-6)
        gone = list(model)[::3]
        store.delete(gone)
        model = {key: value for key, value in model.items() if key not in gone}
        assert store.value_scale == pytest.approx(scale(list(model.values())), rel=1e-6)
        store.compact()
        assert store.value_scale == pytest.approx(scale(list(model.values())), rel=1e-6)
        assert store.check().ok
    with Store.open(tmp_path / "s") as store:
        assert store.value_scale == pytest.approx(scale(list(model.values())), rel=1e-6)


def test_an_outlier_that_goes_leaves_no_trace(tmp_path: Path) -> None:
    """The scale is right again after a value went that drowned all the others."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(3), [1.0, 2.0, 4.0])
        store.append(vectors(1), [1e12], keys=["outlier"])
        store.delete("outlier")
        assert store.value_scale == pytest.approx(scale([1.0, 2.0, 4.0]), rel=1e-6)
        assert store.check().ok


def test_values_all_alike_have_scale_zero(tmp_path: Path) -> None:
    """Where every answer is exact the scale is 0, not the rounding of a sum."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(30), [0.1] * 30)
        assert store.value_scale == pytest.approx(0.0, abs=1e-15)
        assert store.check().ok


# Snapshots and readers


def changes() -> list[Callable[[Store], object]]:
    """One of everything that changes a store of fruit."""
    return [
        lambda store: store.append(vectors(2, seed=4), [7.0, 8.0], keys=["fig", None], texts=["Fig", None]),
        lambda store: store.append(vectors(1, seed=5), [9.0], keys=["apple"], on_conflict="replace"),
        lambda store: store.delete(["pear"]),
        lambda store: store.configure({"a": 1}),
        lambda store: store.compact(),
        lambda store: store.append(vectors(1, seed=6), [3.0], keys=["pear"]),
    ]


def test_a_snapshot_stays_as_it_was(tmp_path: Path) -> None:
    """A snapshot answers the same whatever is added, replaced, deleted, configured or compacted after it."""
    with fruit(tmp_path / "s") as store, store.snapshot() as snapshot:
        before = contents(snapshot)
        for change in changes():
            change(store)
            assert contents(snapshot) == before
            assert (snapshot.commit, len(snapshot), snapshot.rows, snapshot.settings) == (1, 3, 3, {})
            assert snapshot.find_many(["apple", "fig", "pear"]).tolist() == [0, -1, 1]
            assert ("pear" in snapshot, "fig" in snapshot, "#5" in snapshot) == (True, False, False)
            assert snapshot.value_scale == pytest.approx(scale(list(FRUIT.values())))
            assert snapshot.live.tolist() == [True] * 3
        assert store.check().ok


def test_runs_of_a_snapshot_end_where_it_ends(tmp_path: Path) -> None:
    """A block of runs has the rows of its snapshot, whatever was added since through the same handle."""
    with fruit(tmp_path / "s") as store, store.snapshot() as snapshot:
        before = snapshot.runs(np.array([0]), np.array([3]))
        store.append(vectors(4, seed=5), [1.0, 2.0, 3.0, 4.0])
        after = snapshot.runs(np.array([0]), np.array([3]))
        for block in (before, after):
            assert (len(block.vectors), len(block.values), len(block.live)) == (3, 3, 3)
        assert np.array_equal(after.vectors, before.vectors)
        assert store.check().ok


def test_snapshots_of_every_commit_live_side_by_side(tmp_path: Path) -> None:
    """Each snapshot keeps its own commit, however many there are."""
    with fruit(tmp_path / "s") as store:
        kept = []
        for change in changes():
            kept.append((store.snapshot(), contents(store)))
            change(store)
        for snapshot, before in kept:
            assert contents(snapshot) == before
            snapshot.close()
        store.compact()
        assert store.check().ok


def test_a_closed_snapshot_says_so(tmp_path: Path) -> None:
    """After its end a snapshot is an error, not an empty store."""
    with fruit(tmp_path / "s") as store:
        with store.snapshot() as snapshot:
            pass
        snapshot.close()
        for reading in (
            lambda: snapshot.get("apple"),
            lambda: snapshot.find_many(["apple"]),
            lambda: snapshot.vectors([0]),
            lambda: list(snapshot.keys()),
            lambda: list(snapshot.blocks()),
            snapshot.labels,
        ):
            with pytest.raises(HandleClosed, match="snapshot is closed"):
                reading()
        assert store.check().ok


def test_a_snapshot_without_its_store_says_so(tmp_path: Path) -> None:
    """A snapshot needs the handle it was taken from."""
    store = fruit(tmp_path / "s")
    snapshot = store.snapshot()
    assert store.check().ok
    store.close()
    with pytest.raises(HandleClosed, match="closed"):
        snapshot.get("apple")
    snapshot.close()


def test_a_reader_sees_each_new_commit(tmp_path: Path) -> None:
    """A reader's next call sees what the writer's last call did, in every kind of change."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        for change in changes():
            change(store)
            assert reader.commit == store.commit
            assert contents(reader) == contents(store)
            assert (len(reader), reader.settings) == (len(store), store.settings)
            assert reader.value_scale == store.value_scale
            assert reader.in_order().tolist() == store.in_order().tolist()
        assert store.check().ok


def test_a_reader_of_an_empty_store_sees_the_first_items(tmp_path: Path) -> None:
    """A store that was empty when the reader opened it is no exception."""
    with Store.open(tmp_path / "s", "c") as store, Store.open(tmp_path / "s") as reader:
        assert (len(reader), reader.layout) == (0, None)
        store.append(vectors(3), ["red", "blue", "red"])
        assert [item.value for item in reader.items(range(3))] == ["red", "blue", "red"]
        store.append(vectors(1), ["green"])
        assert reader.get("#4").value == "green"
        assert store.check().ok


def test_a_reader_outlives_the_writer(tmp_path: Path) -> None:
    """Readers go on when the writer closes, and see what the next writer does."""
    store = fruit(tmp_path / "s")
    with Store.open(tmp_path / "s") as reader:
        store.close()
        assert reader.get("apple").value == 0.5
        with Store.open(tmp_path / "s", "w") as store:
            store.delete("apple")
            assert "apple" not in reader
            assert store.check().ok


def test_a_snapshot_of_a_reader_survives_compaction(tmp_path: Path) -> None:
    """The rows a reader has pinned stay readable after the writer moved all others; then they go."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        snapshot = reader.snapshot()
        before = contents(snapshot)
        store.delete("apple")
        store.compact()
        assert contents(snapshot) == before
        assert (tmp_path / "s" / "generation-000001").exists()
        snapshot.close()
        assert list(reader.keys()) == ["pear", "quince"]
        store.append(vectors(1), [7.0])
        assert not (tmp_path / "s" / "generation-000001").exists()
        assert store.check().ok


# Handles

READING: dict[str, Callable[[Store], object]] = {
    "snapshot": lambda store: store.snapshot(),
    "commit": lambda store: store.commit,
    "layout": lambda store: store.layout,
    "settings": lambda store: store.settings,
    "rows": lambda store: store.rows,
    "live": lambda store: store.live,
    "value_scale": lambda store: store.value_scale,
    "len": lambda store: len(store),
    "contains": lambda store: "apple" in store,
    "find": lambda store: store.find("apple"),
    "find_many": lambda store: store.find_many(["apple"]),
    "get": lambda store: store.get("apple"),
    "items": lambda store: store.items([0]),
    "keys": lambda store: list(store.keys()),
    "in_order": lambda store: store.in_order(),
    "vectors": lambda store: store.vectors([0]),
    "values": lambda store: store.values([0]),
    "blocks": lambda store: list(store.blocks()),
    "check": lambda store: store.check(),
}
WRITING: dict[str, Callable[[Store], object]] = {
    "append": lambda store: store.append(vectors(1), [1.0]),
    "delete": lambda store: store.delete("apple"),
    "delete nothing": lambda store: store.delete([]),
    "configure": lambda store: store.configure({}),
    "compact": lambda store: store.compact(),
}


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_closed_handle_says_so(tmp_path: Path, mode: str) -> None:
    """After close every call is an error that says what happened, and closing again is none."""
    closed_fruit(tmp_path / "s")
    store = Store.open(tmp_path / "s", mode)
    store.close()
    store.close()
    for call in (READING | WRITING).values():
        with pytest.raises(HandleClosed, match="was closed"):
            call(store)
    with Store.open(tmp_path / "s") as store:
        assert store.check().ok


def test_leaving_the_block_closes(tmp_path: Path) -> None:
    """A store is closed at the end of its with block, and another can be the writer."""
    with pytest.raises(ZeroDivisionError), fruit(tmp_path / "s"):
        raise ZeroDivisionError
    with Store.open(tmp_path / "s", "w") as store:
        assert store.check().ok


def test_a_forgotten_handle_lets_go(tmp_path: Path) -> None:
    """A writer that nobody holds any more does not keep others out."""
    store = fruit(tmp_path / "s")
    del store
    with Store.open(tmp_path / "s", "w") as store:
        assert store.check().ok


@pytest.mark.parametrize("call", WRITING)
def test_a_reading_handle_does_not_write(unchanged: Store, call: str) -> None:
    """Everything that would change the store is refused on a handle for reading."""
    with Store.open(unchanged.path) as store, refused(store, AccessRefused, "open it with mode 'w'"):
        WRITING[call](store)


@pytest.mark.parametrize("call", READING)
def test_reading_changes_nothing(unchanged: Store, call: str) -> None:
    """Every way of reading works on a handle for reading, and leaves the files as they are."""
    with Store.open(unchanged.path) as store:
        before = footprint(Path(store.path))
        READING[call](store)
        assert footprint(Path(store.path)) == before
        assert store.check().ok


def test_settings_belong_to_a_commit(tmp_path: Path) -> None:
    """A snapshot keeps its own."""
    with fruit(tmp_path / "s") as store:
        snapshot = store.snapshot()
        store.configure({"new": 1})
        assert (snapshot.settings, store.settings) == ({}, {"new": 1})
        snapshot.close()
        assert store.check().ok


def test_a_handle_that_could_not_be_opened_complains_once(tmp_path: Path) -> None:
    """Its destructor has nothing to add; no file and no lock stays behind."""
    path = closed_fruit(tmp_path / "s")
    forge(path, "generations", rows=9)
    for mode in ("r", "w"):
        with pytest.raises(StoreDamaged):
            Store.open(path, mode)
        gc.collect()
    forge(path, "generations", rows=3)
    with Store.open(path, "w") as store:
        assert store.check().ok


def test_open_files_do_not_grow(tmp_path: Path) -> None:
    """Opening, reading, compacting, failing and closing, ten times over."""
    closed_fruit(tmp_path / "s")
    counts = []
    for _ in range(10):
        with Store.open(tmp_path / "s", "w") as store, Store.open(tmp_path / "s") as reader:
            store.append(vectors(1), [1.0], keys=["plum"])
            contents(reader)
            store.delete("plum")
            store.compact()
            contents(reader)
            with pytest.raises(ShapeError):
                store.append(vectors(1, 9), [1.0])
        (tmp_path / "s" / "LOCK").rename(tmp_path / "LOCK")
        (tmp_path / "s" / "LOCK").mkdir()
        with pytest.raises(Exception, match="not a regular file"):
            Store.open(tmp_path / "s", "w")
        (tmp_path / "s" / "LOCK").rmdir()
        gc.collect()
        counts.append(len(os.listdir("/dev/fd")))
    assert len(set(counts)) == 1
    assert not (tmp_path / "s" / GENERATION).exists()


def test_settings_change_in_the_commit_of_a_batch(tmp_path: Path) -> None:
    """A batch may bring settings along: both are there after one commit, for the first batch and for later ones."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(2), [1.0, 2.0], settings={"kept": 1})
        assert (store.commit, store.settings) == (1, {"kept": 1})
        store.append(vectors(1), [3.0])
        assert store.settings == {"kept": 1}
        store.append(vectors(1), [4.0], settings={"kept": 2})
        assert (store.commit, store.settings) == (3, {"kept": 2})
        with pytest.raises(ShapeError):
            store.append(vectors(1, 5), [4.0], settings={"kept": 3})
        assert store.settings == {"kept": 2}
        assert store.check().ok
