"""Codes and counts of labels, against a Counter."""

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from softkv.errors import StoreDamaged
from softkv.storage import Store
from softkv.storage.catalog.catalog import Catalog, Standing
from softkv.storage.catalog.labels import LabelCounts
from softkv.storage.catalog.tally import Tally
from tests.stores import sql, vectors


def test_counts_follow_a_counter() -> None:
    """Batches come in and random items die; the changed rows are those that changed, with the counts they have."""
    random, living, codes_of = np.random.default_rng(0), [], {}
    counts, tally = LabelCounts([]), Tally.empty()
    for _ in range(30):
        born = random.choice(list("abcdefgh"), random.integers(0, 9)).tolist()
        died = random.permutation(len(living))[: random.integers(0, 1 + len(living) // 2)]
        gone = [living[i] for i in died]
        codes, rows, tally = counts.changes(born, np.array([codes_of[one] for one in gone], np.int32), tally)
        counts.apply(rows)
        codes_of.update(zip(born, codes.tolist(), strict=True))
        living = [one for i, one in enumerate(living) if i not in set(died.tolist())] + born
        expected = Counter(living)
        assert {label: count for _, label, count in rows} == {one: expected[one] for one in {*born, *gone}}
        assert all(codes_of[label] == code for code, label, _ in rows)
        assert (tally.count, tally.squares) == (len(living), sum(count**2 for count in expected.values()))
    assert sorted(codes_of.values()) == list(range(len(codes_of)))


def test_a_label_keeps_its_code_when_nobody_carries_it_any_more() -> None:
    """Rows of old snapshots still have it."""
    counts = LabelCounts([(0, "red", 1), (1, "blue", 0)])
    codes, rows, _ = counts.changes(["blue"], np.array([0], np.int32), Tally.empty())
    assert codes.tolist() == [1]
    assert rows == [(0, "red", 0), (1, "blue", 1)]


def test_labels_come_back_as_they_were_given(tmp_path: Path) -> None:
    """Labels come back as given, also empty and long ones, and those that only differ in how Unicode composes them."""
    labels = ["", "\u00e9t\u00e9", "e\u0301te\u0301", "a" * 65_536, "line\nbreak", "🜚"]
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(6), labels, keys=list("abcdef"))
        assert [store.get(key).value for key in "abcdef"] == labels
        assert store.snapshot().labels() == labels
        assert store.values(range(6)).tolist() == [0, 1, 2, 3, 4, 5]
        assert store.check().ok


def test_a_reader_learns_labels_that_are_added_later(tmp_path: Path) -> None:
    """Its book is read again when a code is new to it."""
    with Store.open(tmp_path / "s", "c") as store, Store.open(tmp_path / "s") as reader:
        store.append(vectors(1), ["red"], keys=["a"])
        assert reader.get("a").value == "red"
        store.append(vectors(1), ["blue"], keys=["b"])
        assert reader.get("b").value == "blue"
        assert store.check().ok


def test_a_code_that_no_label_has_is_damage(tmp_path: Path) -> None:
    """The row is named by the check, and its label is never guessed."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(2), ["red", "blue"], keys=["a", "b"])
    sql(tmp_path / "s", "DELETE FROM labels WHERE code = 1")
    with Store.open(tmp_path / "s") as store:
        for key in ("a", "b"):  # all codes beside one that cannot be are in doubt
            with pytest.raises(StoreDamaged, match="numbers that no store takes"):
                store.get(key)
        assert any("row 1" in finding for finding in store.check().findings)


def test_a_label_that_was_never_committed_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that reads labels in the middle of another's commit must not take one that is then taken back."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(np.ones((1, 2), np.float32), ["red"], keys=["apple"])
        snapshot, put_standing = store.snapshot(), Catalog.put_standing
        reader = threading.Thread(target=lambda: snapshot.items([0]))

        def interrupted(catalog: Catalog, standing: Standing) -> None:
            put_standing(catalog, standing)
            reader.start()
            reader.join(0.5)  # it may wait for the end of this commit
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Catalog, "put_standing", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.append(np.ones((1, 2), np.float32), ["blue"], keys=["sky"])
        reader.join()
        store.append(np.ones((1, 2), np.float32), ["green"], keys=["grass"])
        assert [store.get(key).value for key in ("apple", "grass")] == ["red", "green"]
        assert snapshot.get("apple").value == "red"
        snapshot.close()
        assert store.check().ok


def before_blue(path: Path) -> Path:
    """A store whose labels are those of an earlier commit: the page on which the newest were written was lost."""
    with Store.open(path, "c") as store:
        store.append(vectors(2), ["red", "red"], keys=["a", "b"])
        earlier = store._catalog.connection.rows("SELECT * FROM labels")
        store.append(vectors(2), ["blue", "red"], keys=["c", "d"])
    sql(path, "DELETE FROM labels")
    sql(path, "INSERT INTO labels VALUES (?, ?, ?, ?)", *earlier[0])
    return path


def test_labels_of_an_earlier_commit_are_not_given_out(tmp_path: Path) -> None:
    """Each checks out, and they are too few: somebody who blends them would run out of codes."""
    with Store.open(before_blue(tmp_path / "s")) as store:
        with pytest.raises(StoreDamaged, match="count 2 live items, but there are 4"):
            store.snapshot().labels()
        assert not store.check().ok


def test_a_lost_label_leaves_its_code_to_nobody(tmp_path: Path) -> None:
    """A new label would be given the code that rows have who carry another."""
    with Store.open(before_blue(tmp_path / "s"), "w") as store:
        for change in (lambda: store.append(vectors(1), ["green"]), lambda: store.delete("a")):
            with pytest.raises(StoreDamaged, match=r"count 2 live items, but there are 4|numbers that no store takes"):
                change()
        assert not store.check().ok


def test_a_snapshot_gives_labels_that_came_after_it(tmp_path: Path) -> None:
    """Their counts are not its own, and it has no use for them."""
    with Store.open(tmp_path / "s", "c") as store:
        store.append(vectors(1), ["red"])
        with store.snapshot() as snapshot:
            store.append(vectors(2), ["blue", "red"])
            assert snapshot.labels() == ["red", "blue"]
        assert store.check().ok
