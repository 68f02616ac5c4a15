"""What `add` was given, as columns of one batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database.intake import ColumnsDiffer, LooksLikeItems
from softkv.errors import InputError, KindError, ShapeError

KEYS, VECTORS = ["a", "b"], [[1.0, 2.0], [2.0, 1.0]]


@pytest.mark.parametrize(
    "given",
    [
        {"keys": {"a", "b"}, "values": [1.0, 2.0]},
        {"keys": KEYS, "values": {1.0, 2.0}},
        {"keys": KEYS, "values": {"a": 1.0, "b": 2.0}},
        {"keys": KEYS, "values": [1.0, 2.0], "texts": {"one", "two"}},
        {"keys": KEYS, "values": [1.0, 2.0], "payloads": frozenset({1, 2})},
        {"keys": iter(KEYS), "values": [1.0, 2.0]},
    ],
)
def test_what_has_no_order_pairs_with_nothing(tmp_path: Path, given: dict[str, Any]) -> None:
    """A set would give each item the value of another, and says so instead."""
    with softkv.open(tmp_path / "s") as db:
        with pytest.raises(ShapeError, match="as a list with one entry per item"):
            db.add(**given)
        assert (len(db), db.info().commit) == (0, 0)
        assert db.check().ok


@pytest.mark.parametrize(
    "given",
    [
        {"vectors": {"a": [1.0, 2.0]}, "values": [1.0]},
        {"vectors": {"a": []}, "values": {}},
        {"vectors": [{"a": 1.0}], "values": [1.0]},
        {"vectors": VECTORS, "values": [{"a": 1.0}, {"a": 2.0}]},
    ],
    ids=str,
)
def test_a_dict_is_neither_a_vector_nor_a_value(tmp_path: Path, given: dict[str, Any]) -> None:
    """A dict is neither a vector nor a value, also as the first of them, by which the others are told."""
    with softkv.open(tmp_path / "s") as db:
        with pytest.raises(InputError, match=r"expected|dtype object"):
            db.add(**given)
        assert (len(db), db.info().commit) == (0, 0)


@pytest.mark.parametrize("payload", [[{"t": 1}], ({"t": 1},)])
def test_a_list_of_one_payload_is_refused_for_a_single_item(tmp_path: Path, payload: Any) -> None:
    """No filter by fields would find it. Other lists are payloads, and so is this one where keys are a list."""
    with softkv.open(tmp_path / "s") as db:
        db.add("a", 1.0, vectors=[1.0, 2.0], payloads=[1, {"t": 1}])
        for attempt in (
            lambda: db.add("b", 1.0, vectors=[1.0, 2.0], payloads=payload),
            lambda: db.add(None, 1.0, vectors=[1.0, 2.0], payloads=payload),
            lambda: db.set_values("a", 2.0, payloads=payload),
        ):
            with pytest.raises(ShapeError, match="Give the object itself"):
                attempt()
        assert (dict(db), db.item("a").payload) == ({"a": 1.0}, [1, {"t": 1}])
        db.set_values(["a"], [2.0], payloads=[list(payload)])
        assert db.item("a").payload == [{"t": 1}]
        db.set_values("a", 2.0, payloads={"t": 1})
        assert [item.key for item in db.select({"t": 1})] == ["a"]
        assert db.check().ok


def test_views_of_a_dict_are_columns(tmp_path: Path) -> None:
    """Keys and values of a dict come in its order."""
    given = {"a": 1.0, "b": 2.0}
    with softkv.open(tmp_path / "s") as db:
        db.add(given.keys(), given.values())
        assert dict(db) == given


@pytest.mark.parametrize(("kind", "values"), [("number", [1.0, 2.0]), ("text", ["x", "y"]), ("label", ["x", "y"])])
def test_columns_of_a_table_are_taken_by_place(tmp_path: Path, kind: str, values: list[Any]) -> None:
    """Whatever pandas calls the rows, the first value is that of the first key."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"key": KEYS, "value": values, "text": ["one", "two"]}, index=[5, 0])
    with softkv.open(tmp_path / "s", value=kind) as db:
        db.add(table["key"], table["value"], texts=table["text"], payloads=table["text"])
        assert dict(db) == dict(zip(KEYS, values, strict=True))
        assert [(item.text, item.payload) for item in db.select()] == [("one", "one"), ("two", "two")]
        if kind != "number":
            db.add(["c"], table["value"].astype("category")[:1])
            assert db["c"] == values[0]
        assert db.check().ok


@pytest.mark.parametrize("value", [1.0, np.float64(1.0), np.array(1.0), "x"])
def test_many_keys_need_many_values(tmp_path: Path, value: Any) -> None:
    """A single value goes with a single key, which is a text, and not with a list of one or with none."""
    with softkv.open(tmp_path / "s") as db:
        for keys in (["a"], None):
            with pytest.raises(InputError, match="expected values as a list"):
                db.add(keys, value)
        db.add("a", value)
        assert db["a"] == value


def test_a_column_of_another_length_is_refused(tmp_path: Path) -> None:
    """An empty one as well: it is not the same as none."""
    with softkv.open(tmp_path / "s") as db:
        for texts in ([], ["one"], ["one", "two", "three"]):
            with pytest.raises(ShapeError, match="one text for each of the 2 keys"):
                db.add(KEYS, [1.0, 2.0], texts=texts)
        with pytest.raises(ShapeError):
            db.add([], [1.0], vectors=[[1.0, 2.0]])
        with pytest.raises(ShapeError):
            db.add([], [1.0], texts=["one"])
        assert db.info().commit == 0


@pytest.mark.parametrize("odd", [None, 1.0, b"x"])
def test_a_value_that_is_no_text_among_texts_is_named(tmp_path: Path, odd: Any) -> None:
    """The message speaks of the value, not of the key."""
    with softkv.open(tmp_path / "s") as db:
        with pytest.raises(KindError, match=f"value 1 is of type {type(odd).__name__}"):
            db.add(KEYS, ["x", odd])
        assert db.info().commit == 0


def test_numbers_of_any_library_are_values(tmp_path: Path) -> None:
    """NumPy's single numbers, tensors and lists of tensors are numbers."""
    torch = pytest.importorskip("torch")
    with softkv.open(tmp_path / "s") as db:
        db.add("a", np.float32(1.5), vectors=np.array([1.0, 0.0], np.float16))
        db.add(["b", "c"], torch.tensor([2.0, 3.0]), vectors=[torch.tensor(one) for one in VECTORS])
        db.add([np.str_("d")], [4], vectors=torch.tensor(VECTORS[:1]))
        assert dict(db) == {"a": 1.5, "b": 2.0, "c": 3.0, "d": 4.0}
        assert db.check().ok


@pytest.mark.parametrize("vectors", [[[1.0], [5.0], [9.0]], [[-1.0], [0.0], [9.0]], [9.0]], ids=["many", "zero", "one"])
def test_single_numbers_are_compared_by_gaussian(tmp_path: Path, vectors: Any) -> None:
    """Cosine would see their sign alone, and weigh all positive keys alike."""
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=vectors, values=[1.0, 2.0, 3.0][: len(vectors)] if len(vectors) > 1 else 3.0)
        assert db.info().compatibility == "gaussian"
        assert db.nearest([8.0]).value == 3.0
        db.add(vectors=[[0.0]], values=[4.0])
        assert db.check().ok


def test_texts_of_width_1_are_compared_by_cosine_as_others_are(tmp_path: Path) -> None:
    """Where a model embeds texts, its vectors are directions, however wide they are."""
    with softkv.open(tmp_path / "s", embedder=lambda texts: np.ones((len(texts), 1))) as db:
        db.add(["a", "b"], [1.0, 2.0])
        assert db.info().compatibility == "cosine"


def test_two_columns_that_make_a_single_item_are_told_of(tmp_path: Path) -> None:
    """They are stored as one item all the same, and only the first of a store tells."""
    x = np.arange(5.0)
    with softkv.open(tmp_path / "s") as db:
        with pytest.warns(
            LooksLikeItems, match=r"single item.*for 5 items of width 1 give vectors=x\[:, None\]"
        ) as told:
            db.add(vectors=x + 1, values=np.sin(x))
        assert (len(told), len(db)) == (1, 1)
        db.add(vectors=x + 2, values=np.cos(x))
        assert db.check().ok


@pytest.mark.parametrize(
    "given",
    [
        {"vectors": [1.0, 2.0, 3.0], "values": [1.0, 2.0, 3.0]},
        {"vectors": [1.0, 2.0, 3.0], "values": [1.0, 2.0]},
        {"vectors": [1.0, 2.0, 3.0], "values": 7.0},
        {"vectors": [1.0], "values": [2.0]},
        {"vectors": [[1.0, 2.0, 3.0]], "values": [[3.0, 2.0, 1.0]]},
        {"keys": "a", "vectors": [1.0, 2.0, 3.0], "values": [3.0, 2.0, 1.0]},
    ],
    ids=["itself", "shorter", "number", "width 1", "list of one", "key"],
)
def test_nothing_is_told_of_a_single_item_that_is_meant(tmp_path: Path, given: dict[str, Any]) -> None:
    """No warning, which would be an error here, where the arguments cannot be two columns or say that they are not."""
    with softkv.open(tmp_path / "s") as db:
        db.add(**given)
        assert len(db) == 1


def houses(scale: float) -> np.ndarray:
    """Rooms, and living space in some unit."""
    rng = np.random.default_rng(5)
    return np.stack([rng.uniform(1, 8, 50), scale * rng.uniform(1, 8, 50), np.full(50, 3.0)], axis=1)


def test_columns_of_very_different_scales_are_told_of_once(tmp_path: Path) -> None:
    """The first bare vectors for which cosine was inferred tell; a constant column has no scale."""
    with softkv.open(tmp_path / "s") as db:
        with pytest.warns(ColumnsDiffer, match="column 1 .* times as much as column 0.*'gaussian'.*`fit`") as told:
            db.add(vectors=houses(1000.0), values=np.zeros(50))
        assert len(told) == 1
        db.add(vectors=houses(1e6), values=np.zeros(50))
        assert db.check().ok


@pytest.mark.parametrize(
    ("options", "vectors"),
    [
        ({}, houses(50.0)),
        ({}, 1e15 * houses(50.0)),
        ({}, 1e-15 * houses(50.0)),
        ({}, houses(1000.0)[:1]),
        ({"compatibility": "cosine"}, houses(1000.0)),
        ({"compatibility": "gaussian"}, houses(1000.0)),
        ({}, np.vstack([np.zeros(3), houses(1000.0)])),
    ],
    ids=["alike", "large", "small", "one", "cosine", "gaussian", "dot"],
)
def test_nothing_is_told_of_scales_that_matter_little_or_were_chosen(
    tmp_path: Path, options: dict[str, str], vectors: np.ndarray
) -> None:
    """No warning, which would be an error here; what is refused is refused as ever."""
    with softkv.open(tmp_path / "s", **options) as db:
        db.add(vectors=vectors, values=np.zeros(len(vectors)))
        for odd in ([[1.0, np.nan], [2.0, 1.0]], [["a", "b"]], [[]]):
            with pytest.raises(InputError):
                db.add(vectors=odd, values=np.zeros(len(odd)))
        assert db.check().ok


def test_a_text_that_is_key_and_value_is_embedded_once(tmp_path: Path) -> None:
    """Its vector is then both, and other texts beside it are embedded as ever."""
    seen: list[str] = []

    def embed(texts: Any) -> list[list[float]]:
        seen.extend(texts)
        return [[float(len(text)), 1.0] for text in texts]

    with softkv.open(tmp_path / "s", embedder=embed) as db:
        db.add(["a", "bb"], ["a", "bb"])
        seen.clear()
        db.add(["1", "2"], ["ccc", "dddd"], texts=["ccc", "dddd"])
        assert seen == ["ccc", "dddd"]
        db.add(["e", "f"], ["e", "other"])
        assert seen[2:] == ["e", "f", "e", "other"]
        assert db.lookup("ccc", k=1, show=1).value.tolist() == [3.0, 1.0]
