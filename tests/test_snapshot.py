"""Reading one commit: what comes back, what stays, what is copied and what is not."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from softkv.errors import HandleClosed, KeyMissing, KeyTextError, ShapeError, StoreDamaged
from softkv.storage import Store
from softkv.storage.disk.arena import HEADER
from softkv.storage.layout import WINDOW
from tests.stores import GENERATION, closed_fruit, contents, flip, fruit, sql, vectors, wide


def as_bytes(value: object) -> bytes:
    """A value down to the sign of its zero: a text, a vector of float32, or a number as float64."""
    if isinstance(value, str):
        return value.encode()
    return value.tobytes() if isinstance(value, np.ndarray) else np.float64(value).tobytes()


def test_a_snapshot_stays_as_it_is_while_the_store_moves_on(tmp_path: Path) -> None:
    """Additions, replacements, deletions and two compactions do not change it; its files go only after it."""
    with fruit(tmp_path / "s") as store:
        snapshot, before = store.snapshot(), contents(store)
        store.append(vectors(1, seed=1), [9.0], keys=["plum"])
        store.append(vectors(1, seed=2), [8.0], keys=["pear"], on_conflict="replace")
        store.compact()
        store.delete("apple")
        store.compact()
        assert contents(snapshot) == before
        assert [block.live.all() for block in snapshot.blocks()] == [True]
        np.testing.assert_array_equal(snapshot.vectors([0, 1, 2]), vectors(3))
        assert sorted(contents(store)) == ["pear", "plum", "quince"]
        assert (tmp_path / "s" / GENERATION).exists()
        snapshot.close()
        store.append(vectors(1), [1.0])
        assert sorted(name for name in os.listdir(tmp_path / "s") if "gen" in name) == ["generation-000003"]
        assert store.check().ok


def test_a_reader_that_looks_again_sees_the_newest_commit(tmp_path: Path) -> None:
    """Every call looks; a snapshot does not."""
    with fruit(tmp_path / "s") as store, Store.open(tmp_path / "s") as reader:
        snapshot = reader.snapshot()
        for number in range(5):
            store.append(vectors(1, seed=number), [float(number)], keys=[f"key {number}"])
            assert (reader.get(f"key {number}").value, len(reader)) == (float(number), 4 + number)
            assert reader.commit == store.commit
        store.delete("pear")
        store.compact()
        assert contents(reader) == contents(store)
        assert (len(snapshot), "pear" in snapshot, "key 0" in snapshot) == (3, True, False)
        snapshot.close()
        assert store.check().ok


def test_blocks_are_views_of_the_file(tmp_path: Path) -> None:
    """Nothing is copied: two readings share their memory, and it cannot be written."""
    with wide(tmp_path / "s", 8, 1 << 16, "vector") as store:
        store.delete(["key 3", "key 6"])
        snapshot = store.snapshot()
        blocks, again = list(snapshot.blocks(3)), list(snapshot.blocks(8))
        assert [(block.start, len(block.vectors)) for block in blocks] == [(0, 3), (3, 3), (6, 2)]
        for block in blocks:
            assert np.shares_memory(block.vectors, again[0].vectors)
            assert np.shares_memory(block.values, again[0].values)
            assert not block.vectors.flags.writeable
            assert not block.values.flags.writeable
            assert not block.live.flags.writeable
        np.testing.assert_array_equal(np.concatenate([block.vectors for block in blocks]), vectors(8, 1 << 16))
        np.testing.assert_array_equal(np.concatenate([block.values for block in blocks]), vectors(8, 1 << 16, 1))
        live = np.concatenate([block.live for block in blocks])
        assert np.flatnonzero(~live).tolist() == [3, 6]
        snapshot.close()
        assert store.check().ok


def test_what_was_read_outlives_the_handle(tmp_path: Path) -> None:
    """Views keep their map after snapshot, store and even the files are gone."""
    with wide(tmp_path / "s", 4) as store:
        (block,) = store.blocks()
    (tmp_path / "s" / GENERATION / "keys.f32").unlink()
    np.testing.assert_array_equal(block.vectors, vectors(4, 1 << 17))


@pytest.mark.parametrize(
    ("values", "more", "kind"),
    [
        ([1.5, -0.0, 5e-324], None, "number"),
        ([1, -(2**53), 0], None, "number"),
        (np.array([[1.5, -0.0], [3e38, 1e-45], [0, 1]], np.float32), None, "vector"),
        (["red", "", "red"], None, "label"),
        (["a shepherd", "", "é\u2028🜚"], vectors(3, 5, 9), "text"),
    ],
)
def test_what_was_given_comes_back_unchanged(
    tmp_path: Path, values: list[object], more: np.ndarray | None, kind: str
) -> None:
    """Every kind of value, with embedded text and payload, before and after reopening, and after a compaction."""
    texts, payloads = ["what is embedded", None, ""], [None, {"a": [1]}, "x"]

    def compare(store: Store) -> None:
        items = [store.get(key) for key in ("a", "b", "#3")]
        assert [as_bytes(item.value) for item in items] == [as_bytes(value) for value in values]
        assert [item.text for item in items] == texts
        assert [item.payload for item in items] == payloads
        np.testing.assert_array_equal([item.vector for item in items], vectors(3))
        assert store.layout is not None
        assert store.layout.kind == kind

    with Store.open(tmp_path / "s", "c") as store:
        given = {"keys": ["a", "b", None], "texts": texts, "payloads": payloads, "value_vectors": more}
        store.append(vectors(3), values, **given)  # type: ignore[arg-type]
        compare(store)
    with Store.open(tmp_path / "s", "w") as store:
        compare(store)
        again = {**given, "keys": ["gone", "also gone", None]}
        store.append(vectors(3), values, **again)  # type: ignore[arg-type]
        store.delete(["gone", "also gone", "#6"])
        store.compact()
        compare(store)
        if more is not None:
            np.testing.assert_array_equal(store.values([0, 1, 2]), more)
        assert store.check().ok


def test_the_value_scale_is_that_of_the_live_values(tmp_path: Path) -> None:
    """1e9 ± 1, then a huge outlier that comes and goes, then the first values go: float64 NumPy agrees throughout."""
    random = np.random.default_rng(0)
    values = {f"key {i}": 1e9 + float(random.choice([-1, 1])) for i in range(100)}

    def compare() -> None:
        assert store.value_scale == pytest.approx(np.std(np.array(list(values.values()), np.longdouble)), rel=1e-6)

    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(1), [0.0], keys=["zero"])
        store.append(vectors(100), list(values.values()), keys=list(values))
        store.delete("zero")
        compare()
        store.append(vectors(1), [1e16], keys=["huge"])
        store.delete("huge")
        compare()
        store.append(vectors(50), [5.0] * 50, keys=list(values)[:50], on_conflict="replace")
        values.update(dict.fromkeys(list(values)[:50], 5.0))
        compare()
        store.compact()
        compare()
        store.delete(list(values)[50:])
        assert store.value_scale == 0.0
        assert store.check().ok


def test_the_value_scale_of_vectors_is_that_of_the_live_ones(tmp_path: Path) -> None:
    """The value scale is that of the live vectors, also after an outlier is replaced, and after all are gone."""
    values = vectors(30, 5, 3)
    values[7] = 1e12
    with Store.open(tmp_path / "s", "c") as store:
        assert store.value_scale == 0.0
        store.append(vectors(30), values, keys=[f"key {i}" for i in range(30)])
        values[7] = 2.0
        store.append(vectors(1), values[7:8], keys=["key 7"], on_conflict="replace")
        wide_values = values.astype(np.float64)
        expected = np.sqrt(((wide_values - wide_values.mean(axis=0)) ** 2).sum(axis=1).mean())
        assert store.value_scale == pytest.approx(expected, rel=1e-6)
        store.delete([f"key {i}" for i in range(30)])
        assert store.value_scale == 0.0
        assert store.check().ok


def test_a_flipped_bit_is_an_error_where_it_is_read(tmp_path: Path) -> None:
    """Keys and values have it so, and the rows of other windows are still given."""
    for file in ("keys.f32", "values.vector"):
        wide(tmp_path / file, 8, kind="vector").close()
        flip(tmp_path / file / GENERATION / file, HEADER + 2 * WINDOW + 99)
        with Store.open(tmp_path / file) as store:
            assert store.get("key 3").key == "key 3"
            for ask in (lambda: store.get("key 4"), lambda: store.items([3, 4]), lambda: list(store.blocks())):
                with pytest.raises(StoreDamaged, match=f"{file}: bytes .* do not match"):
                    ask()
            assert [store.get(f"key {row}").key for row in (5, 7)] == ["key 5", "key 7"]
            assert not store.check().ok


def test_opening_reads_no_rows(tmp_path: Path) -> None:
    """Damage in a window is not noticed before it is touched, so opening does not depend on the size."""
    wide(tmp_path / "s", 8).close()
    for window in range(4):
        flip(tmp_path / "s" / GENERATION / "keys.f32", HEADER + window * WINDOW)
    with Store.open(tmp_path / "s") as store:
        assert (len(store), store.find("key 5"), "key 9" in store) == (8, 5, False)


def test_norms_that_are_damaged_are_worked_out_again(tmp_path: Path) -> None:
    """They are derived: a flipped bit, a short file and a missing one make no difference, and are only noted."""
    path = closed_fruit(tmp_path / "s")
    norms = path / GENERATION / "norms.f32"
    expected = np.linalg.norm(vectors(3).astype(np.float64), axis=1)
    for hurt in (lambda: flip(norms, HEADER + 5, 6), lambda: os.truncate(norms, HEADER + 4), lambda: norms.unlink()):
        hurt()
        with Store.open(path) as store, store.snapshot() as snapshot:
            np.testing.assert_allclose(snapshot.norms(0, 3), expected, rtol=1e-6)
            report = store.check()
            assert report.ok
            assert report.notes


def test_norms_are_right_where_float32_squares_are_not(tmp_path: Path) -> None:
    """Vectors are very long, very short, or zero."""
    given = np.array([[3e38, 0], [3e30, 4e30], [1e-30, 0], [3e-30, 4e-30], [0, 0], [3, 4]], np.float32)
    with Store.open(tmp_path / "s", "c") as store:
        store.append(given, [0.0] * 6)
        with store.snapshot() as snapshot:
            expected = np.linalg.norm(given.astype(np.float64), axis=1)
            np.testing.assert_allclose(snapshot.norms(0, 6), expected, rtol=1e-6)
        assert store.check().ok


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (-1, 2), (2, 1), (0, 10**9)])
def test_norms_of_rows_that_are_not_there_are_refused(tmp_path: Path, start: int, stop: int) -> None:
    """Nothing is cut short in silence."""
    with (
        fruit(tmp_path / "s") as store,
        store.snapshot() as snapshot,
        pytest.raises(ShapeError, match="the store has 3"),
    ):
        snapshot.norms(start, stop)


@pytest.mark.parametrize(
    "rows", [[3], [-1], [0, 10**12], [[0]], [0.5], ["0"], [True], 0, None, np.array([2**63], np.uint64)]
)
def test_rows_that_are_not_there_are_refused(tmp_path: Path, rows: object) -> None:
    """They are too large, negative, nested, broken, or no numbers at all."""
    with fruit(tmp_path / "s") as store:
        for ask in (store.items, store.vectors, store.values):
            with pytest.raises(ShapeError):
                ask(rows)  # type: ignore[arg-type]


def test_no_rows_are_a_good_question(tmp_path: Path) -> None:
    """The answer is empty and has the right shape."""
    with fruit(tmp_path / "s") as store:
        assert store.items([]) == []
        assert store.vectors([]).shape == (0, 4)
        assert store.values(np.empty(0)).shape == (0,)
        assert store.find_many([]).shape == (0,)


@pytest.mark.parametrize("key", [5, None, b"apple", ["apple"]])
def test_a_key_that_is_no_text_is_refused(tmp_path: Path, key: object) -> None:
    """The error is one of ours; and it is not in the store."""
    with fruit(tmp_path / "s") as store:
        assert key not in store
        for ask in (store.get, store.find, store.delete, lambda one: store.find_many([one])):
            with pytest.raises(KeyTextError, match="not a text"):
                ask([key] if ask == store.delete else key)  # type: ignore[arg-type]


def test_one_text_is_not_a_list_of_letters(tmp_path: Path) -> None:
    """find_many of a text would look for its letters."""
    with fruit(tmp_path / "s") as store, pytest.raises(KeyTextError, match="give a list of keys"):
        store.find_many("apple")


def test_a_missing_key_is_a_key_error(tmp_path: Path) -> None:
    """The message has the key, cut short when it is long."""
    with fruit(tmp_path / "s") as store:
        for ask in (store.get, store.find):
            with pytest.raises(KeyError) as caught:
                ask("y" * 1_000)
            assert isinstance(caught.value, KeyMissing)
            assert str(caught.value) == f"no item has the key '{'y' * 57}...'"


def test_an_empty_store_answers_like_one(tmp_path: Path) -> None:
    """No keys, no blocks, no layout; rows are refused by name."""
    with Store.open(tmp_path / "s", "c") as store, store.snapshot() as snapshot:
        assert (len(snapshot), list(snapshot.keys()), list(snapshot.blocks()), snapshot.layout) == (0, [], [], None)
        assert (snapshot.live.shape, snapshot.in_order().shape, snapshot.labels()) == ((0,), (0,), [])
        assert snapshot.find_many(["a", "b"]).tolist() == [-1, -1]
        assert "a" not in snapshot
        with pytest.raises(KeyMissing, match="empty"):
            snapshot.vectors([])
        with pytest.raises(KeyMissing):
            snapshot.get("a")
        assert store.check().ok


def test_a_block_has_at_least_a_row(tmp_path: Path) -> None:
    """Zero would never end."""
    with fruit(tmp_path / "s") as store, pytest.raises(ShapeError, match="at least 1 row"):
        next(store.blocks(0))


def test_a_closed_snapshot_says_so(tmp_path: Path) -> None:
    """All that would need its files says so; closing twice is nothing."""
    with fruit(tmp_path / "s") as store:
        snapshot = store.snapshot()
        snapshot.close()
        snapshot.close()
        for ask in (
            lambda: snapshot.get("apple"),
            lambda: snapshot.find_many(["apple"]),
            lambda: snapshot.vectors([0]),
            lambda: snapshot.values([0]),
            lambda: snapshot.items([0]),
            lambda: snapshot.norms(0, 1),
            lambda: "apple" in snapshot,
            lambda: list(snapshot.keys()),
            lambda: list(snapshot.blocks()),
            snapshot.labels,
            snapshot.in_order,
        ):
            with pytest.raises(HandleClosed):
                ask()
        assert store.check().ok


def test_a_snapshot_that_outlives_its_store_says_so(tmp_path: Path) -> None:
    """Its catalog is closed, which is not damage."""
    store = fruit(tmp_path / "s")
    snapshot = store.snapshot()
    store.close()
    for ask in (lambda: snapshot.get("apple"), snapshot.labels, lambda: list(snapshot.keys())):
        with pytest.raises(HandleClosed):
            ask()
    snapshot.close()


def test_a_forgotten_snapshot_lets_its_generation_go(tmp_path: Path) -> None:
    """Nobody has to remember close()."""
    with fruit(tmp_path / "s") as store:
        snapshot = store.snapshot()
        store.delete("pear")
        store.compact()
        assert (tmp_path / "s" / GENERATION).exists()
        del snapshot
        gc.collect()
        store.append(vectors(1), [1.0])
        assert not (tmp_path / "s" / GENERATION).exists()
        assert store.check().ok


def test_a_row_that_is_live_here_and_dead_there_is_damage(tmp_path: Path) -> None:
    """The roster and the bitmaps are two records of one truth."""
    with fruit(tmp_path / "s") as store:
        store.delete("pear")
    sql(tmp_path / "s", "UPDATE items_1 SET seal = seal - died, died = NULL WHERE row = 1")
    with Store.open(tmp_path / "s") as store:
        with pytest.raises(StoreDamaged, match="live in one place and dead in another"):
            store.get("pear")
        assert any("row 1" in finding for finding in store.check().findings)


def test_what_cannot_be_a_key_is_in_no_store(tmp_path: Path) -> None:
    """`in` answers as a dict does, where asking for the item names the mistake."""
    with fruit(tmp_path / "s") as store:
        assert "apple" in store
        assert "apple\0" not in store
        assert "x" * 70_000 not in store
        assert 7 not in store
