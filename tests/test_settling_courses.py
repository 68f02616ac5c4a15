"""What is known of late rows is what the rows say, after any course of adds, deletions, compactions and losses.

A checker works out for each list which rows are in it and what their sums are, and compares that with what a new
process believes. It is seen catching bugs that are planted.
"""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import indexed
from softkv.asking.indexed import NAME, Followed
from softkv.index import late
from softkv.maths.drift import Drift, together
from softkv.maths.summaries import Lists
from softkv.storage.protocol import snapshot as snapshots

from .databases import count_as_large
from .scales import scaled

ITEMS, WIDTH = 1200, 6
KINDS = {"vector": "cosine", "label": "dot", "number": "gaussian", "text": "cosine", "learned": "gaussian"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on, few queries are rehearsed, and thirty rows are noted."""
    count_as_large(monkeypatch, rehearsed=120, noted=30)


def keys_of(rng: np.random.Generator, count: int) -> np.ndarray:
    """Keys in clusters, some of them far from all."""
    keys = np.random.default_rng(0).standard_normal((15, WIDTH))[rng.integers(0, 15, count)]
    keys += 0.3 * rng.standard_normal((count, WIDTH))
    keys[rng.random(count) < 0.02] *= 20.0
    return keys.astype(np.float32)


def values_of(kind: str, keys: np.ndarray, rng: np.random.Generator) -> Any:
    """Values that follow from keys; of labels some are new."""
    if kind == "label":
        return [f"label {rng.integers(5, 40) if rng.random() < 0.1 else int(key[0] > 0)}" for key in keys]
    if kind == "text":  # the static embedder turns it into a vector
        return [f"text {key[0]:.1f} {key[1]:.0f}" for key in keys]
    return 50.0 + keys[:, 0] if kind in ("number", "learned") else keys[:, :2] * [1.0, 100.0]


def filled(path: Path, kind: str) -> None:
    """A store with an index."""
    rng = np.random.default_rng(1)
    keys = keys_of(rng, ITEMS)
    options = {"value": "number" if kind == "learned" else kind, "compatibility": KINDS[kind], "temperature": 0.1}
    with softkv.open(path, **options) as db:
        db.add([f"{number}" for number in range(ITEMS)], values_of(kind, keys, rng), vectors=keys)
        if kind == "learned":
            assert db.fit(planes=False).kept
        db.build_index()
        assert (db._view().index.form.metric is not None) == (kind == "learned")


def problem(view: Any) -> str | None:
    """What a view believes of late rows that its rows do not say."""
    snapshot, index = view.snapshot, view.index
    if index is None:
        return "there is no index"
    if index.known > snapshot.rows:
        return "rows are known that are not there"
    live = np.flatnonzero(snapshot.live[: index.known])
    owners = index.owners(live)
    counts = np.bincount(owners[owners >= 0], minlength=len(index.lists.counts))
    if not np.array_equal(index.quick.counts, counts):
        return "lists count other rows than theirs"
    keys = index.form.keys(snapshot.vectors(live))
    values = indexed.summable(snapshot.values(live), snapshot)
    labels = None if view.labels is None else len(view.labels)
    for number in np.flatnonzero(counts):
        mine = owners == number
        if not np.allclose(keys[mine].mean(0), index.quick.means[number], rtol=1e-3, atol=1e-3):
            return f"list {number} has another mean"
        alone = np.zeros((1, len(counts)))
        alone[0, number] = 1.0
        found = (alone @ index.quick.values)[0]
        wanted = values[mine].mean(0) if labels is None else np.bincount(values[mine], minlength=labels) / mine.sum()
        if labels is None:
            found = found * index.units.size + index.units.middle
        if not np.allclose(found, wanted, rtol=1e-3, atol=1e-3 * (1.0 if labels else index.units.size)):
            return f"list {number} has other values"
    return None


def checked(path: Path) -> str | None:
    """What a new process believes that is not so."""
    with softkv.open(path, "r") as db:
        return problem(db._view())


def course(path: Path, kind: str, seed: int, steps: int) -> Iterator[tuple[str, softkv.SoftKV]]:
    """Random changes, each by the same handle or a new one; their names, and the handle."""
    rng = np.random.default_rng(seed)
    db = softkv.open(path)
    number = 10_000
    for _ in range(steps):
        what = rng.choice(["add", "replace", "delete", "set", "compact", "open", "lose", "build"], p=STEPS)
        count = int(rng.integers(1, 120))
        some = [str(one) for one in rng.choice(list(db), min(count, len(db) - 600), replace=False)]
        if what == "add":
            keys = keys_of(rng, count)
            db.add([str(number + one) for one in range(count)], values_of(kind, keys, rng), vectors=keys)
            number += count
        elif what == "replace":
            keys = keys_of(rng, len(some))
            db.add(some, values_of(kind, keys, rng), vectors=keys, on_conflict="replace")
        elif what == "delete":
            db.delete(some)
        elif what == "set":
            db.set_values(some, values_of(kind, keys_of(rng, len(some)), rng))
        elif what == "compact":
            db.compact()
        elif what == "build":
            db.build_index(whole=bool(rng.integers(2)))
        elif what == "open":
            db.close()
            db = softkv.open(path)
        else:
            db.close()
            lose(path, rng)
            db = softkv.open(path)
        yield what, db
    db.close()


STEPS = [0.3, 0.12, 0.2, 0.1, 0.05, 0.1, 0.1, 0.03]


def lose(path: Path, rng: np.random.Generator) -> None:
    """Lose one of the notes, if there are any."""
    with sqlite3.connect(path / "catalog.sqlite") as catalog:
        parts = [part for (part,) in catalog.execute("SELECT part FROM derived WHERE name = ?", (NAME,))]
        if parts:
            catalog.execute("DELETE FROM derived WHERE part = ?", (int(rng.choice(parts)),))
    catalog.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_known_of_late_rows_is_what_they_say(tmp_path: Path, kind: str, seed: int) -> None:
    """A new process knows it after each step, the handle itself does, and an earlier commit that is still read."""
    filled(tmp_path / "s", kind)
    steps, pinned = [], None
    for what, db in course(tmp_path / "s", kind, seed, 25):
        steps.append(what)
        assert checked(tmp_path / "s") is None, steps
        assert problem(db._view()) is None, steps
        if pinned is not None and what in ("add", "replace", "delete", "set"):
            assert problem(pinned._kept) is None, steps
            pinned.close()
            pinned = None
        if what in ("add", "delete"):
            pinned = db.snapshot()
        elif pinned is not None:
            pinned.close()
            pinned = None
    with softkv.open(tmp_path / "s", "r") as db:
        assert db.check().ok


def wrong_sign(patch: pytest.MonkeyPatch) -> None:
    """What leaves a list is added to it."""
    true = Drift.of.__func__  # type: ignore[attr-defined]
    patch.setattr(Drift, "of", classmethod(lambda cls, *given, sign=1.0: true(cls, *given, sign=abs(sign))))


def noted_otherwise(patch: pytest.MonkeyPatch, change: Callable[[late.Change, Lists], dict[str, Any]]) -> None:
    """Notes say something else than what was found."""
    true = Followed.next

    def patched(followed: Followed, *given: Any) -> late.Change:
        found = true(followed, *given)
        return replace(found, **change(found, followed.base.lists))

    patch.setattr(Followed, "next", patched)


def wrong_stratum(patch: pytest.MonkeyPatch) -> None:
    """Rows are noted for the list beside theirs, and summed up for theirs."""
    noted_otherwise(patch, lambda found, _: {"owners": np.where(found.owners < 0, found.owners, found.owners // 2 * 2)})


def lost_assignment(patch: pytest.MonkeyPatch) -> None:
    """Rows are summed up for their lists, and noted for none."""
    noted_otherwise(patch, lambda found, _: {"owners": np.full_like(found.owners, -1)})


def sum_without_its_row(patch: pytest.MonkeyPatch) -> None:
    """A row is summed up that never came, as if its commit had failed after that of the note."""

    def more(found: late.Change, lists: Lists) -> dict[str, Any]:
        alone = Drift.of(lists, np.zeros(1, np.int64), lists.means[:1], np.asarray(lists.values)[:1])
        return {"drift": together([found.drift, alone])}

    noted_otherwise(patch, more)


def newer_notes(patch: pytest.MonkeyPatch) -> None:
    """A reader of an earlier commit believes the notes of later ones."""
    true_parts, true_numbers = snapshots.parts, snapshots.numbers
    patch.setattr(snapshots, "parts", lambda *given: true_parts(*given[:4], 1 << 60))
    patch.setattr(snapshots, "numbers", lambda *given: true_numbers(*given[:4], 1 << 60))
    patch.setattr(late.Change, "_problem", lambda *_: None)


def lost_dead(patch: pytest.MonkeyPatch) -> None:
    """Rows that died are noted as gone, but their sums stay."""
    patch.setattr(Followed, "_left", lambda self, _snapshot, _rows: Drift.none(self.base.lists))


def lost_note(patch: pytest.MonkeyPatch) -> None:
    """A note that does not follow the one before is believed all the same."""

    def following(parts: Any, index: Any, past: Any, *, rows: int, labels: int = 0) -> Any:
        for number, content in parts:
            past = past.followed_by(number, replace(late.Change.decoded(content, index, labels=labels)))
        return past

    patch.setattr(indexed, "following", following)
    scaled(patch, grown=0)


def no_bug(_: pytest.MonkeyPatch) -> None:
    """Nothing is wrong."""


OTHER_ROWS = "lists count other rows than theirs"
PLANTED: dict[Callable[[pytest.MonkeyPatch], None], str | None] = {  # and what is said of each
    wrong_sign: OTHER_ROWS,
    wrong_stratum: OTHER_ROWS,
    lost_assignment: OTHER_ROWS,
    sum_without_its_row: OTHER_ROWS,
    newer_notes: "rows are known that are not there",
    lost_dead: OTHER_ROWS,
    lost_note: OTHER_ROWS,
    no_bug: None,
}


@pytest.mark.ci
@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_that_is_planted_is_caught(
    tmp_path: Path, bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A course that is right without it catches it, and for the reason that is given."""
    filled(tmp_path / "s", "vector")
    bug(monkeypatch)
    caught, pinned = None, None
    for what, db in course(tmp_path / "s", "vector", 5, 40):
        caught = checked(tmp_path / "s")
        if pinned is not None:
            caught = caught or (problem(pinned._kept) if what in ("add", "replace", "delete", "set") else None)
            pinned.close()
        if caught:
            break
        pinned = db.snapshot()
    assert caught == PLANTED[bug]


DYING = """
import sys
import numpy as np
import softkv
from softkv.asking import indexed
indexed.FEWEST = 30
rng = np.random.default_rng(int(sys.argv[2]))
with softkv.open(sys.argv[1]) as db:
    for number in range(1000):
        keys = rng.standard_normal((40, 6))
        names = [f"{sys.argv[2]} {number} {one}" for one in range(40)]
        db.add(names, keys[:, :2], vectors=keys)
        print(names[-1], flush=True)
        if number % 3 == 2:
            db.delete([f"{sys.argv[2]} {number - 1} {one}" for one in range(20)])
"""


def test_a_writer_that_is_killed_leaves_notes_that_are_right(tmp_path: Path) -> None:
    """It may be killed anywhere; nothing that it had acknowledged is missing, and the next writer goes on."""
    filled(tmp_path / "s", "vector")
    for seed in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", DYING, str(tmp_path / "s"), str(seed)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        told = [writer.stdout.readline().strip() for _ in range(3 + 2 * seed)]
        writer.send_signal(signal.SIGKILL)
        told += [line.strip() for line in writer.stdout]
        writer.wait()
        writer.stdout.close()
        assert checked(tmp_path / "s") is None
        with softkv.open(tmp_path / "s", "r") as db:
            assert all(name in db for name in told if name)
            assert db.check().ok
