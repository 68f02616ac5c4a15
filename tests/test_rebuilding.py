"""A rebuild gives all items other key vectors, and may be left and resumed at any moment; nothing else changes."""

import errno
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from softkv.errors import (
    HandleClosed,
    HandlePoisoned,
    InputError,
    KindError,
    NotFinite,
    ShapeError,
    StorageFailed,
    StorageFull,
    StoreDamaged,
    Unfinished,
    WriterFenced,
)
from softkv.storage import Begun, Item, Rebuild, Store, check, repair
from softkv.storage.disk import files
from softkv.storage.disk.arena import HEADER
from softkv.storage.layout import ValueKind
from softkv.storage.protocol import checking
from tests.crash.children import Child, Say
from tests.crash.death import Power, die_after
from tests.limits import fill, small_disk
from tests.stores import GENERATION, bytes_of, contents, flip, fruit, sql, vectors
from tests.test_compaction import KINDS, generations, mixed
from tests.test_writer import Interrupt, Steps, failing, interrupting, linux_only
from tests.tiny import shrink

WIDTH, VALUE_WIDTH = 6, 3  # of the new vectors; the old ones have 4 and 2
NEW = "generation-000002"
SETTINGS = {"embedder": "new", "temperature": 0.25}
BATCH = 13


def fresh(items: Sequence[Item], width: int) -> np.ndarray:
    """New vectors that follow from the names of the items."""
    rows = [np.random.default_rng([width, *item.name.encode()]).standard_normal(width) for item in items]
    return np.array(rows, np.float32).reshape(len(items), width)


def begun(store: Store, width: int = WIDTH, settings: dict[str, Any] = SETTINGS) -> Rebuild:
    """A rebuild to the new widths and settings, begun or resumed."""
    text = store.layout is not None and store.layout.kind is ValueKind.TEXT
    return store.rebuild(key_width=width, value_width=VALUE_WIDTH if text else None, settings=settings)


def write(rebuild: Rebuild, text: bool, rows: int = BATCH) -> int:
    """Write one batch; returns how many items it had."""
    items = rebuild.waiting(rows)
    if items:
        rebuild.write(fresh(items, WIDTH), fresh(items, VALUE_WIDTH) if text else None)
    return len(items)


def complete(store: Store) -> None:
    """Begin or resume a rebuild, write all that waits, and finish."""
    rebuild = begun(store)
    while write(rebuild, _has_texts(store)):
        pass
    rebuild.finish()


def _has_texts(store: Store) -> bool:
    return store.layout is not None and store.layout.kind is ValueKind.TEXT


def renewed(store: Store) -> dict[str, tuple[Any, ...]]:
    """What `contents` will say of a store once it is rebuilt."""
    found = contents(store)
    for item in store.items(store.in_order()):
        number, key, _, *rest = found[item.name]
        found[item.name] = (number, key, fresh([item], WIDTH).tobytes(), *rest)
    return found


# What becomes of the items


@pytest.mark.parametrize("edges", ["far", "near"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuild_changes_the_vectors_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, edges: str
) -> None:
    """Every item has its new vector; number, place, value, payload and text are what they were; the dead are gone."""
    if edges == "near":
        shrink(monkeypatch)
    path = tmp_path / "s"
    with mixed(path, kind) as store:
        store.configure({"temperature": 0.5})
        expected, scale = renewed(store), store.value_scale
        complete(store)
        assert contents(store) == expected
        assert list(store.keys()) == list(expected)
        assert store.rows == len(store) == len(expected)
        assert store.settings == SETTINGS
        assert store.layout is not None
        assert store.layout.key_width == WIDTH
        if kind != "text":
            assert store.value_scale == scale
        lengths = np.linalg.norm(store.vectors(range(store.rows)).astype(np.float64), axis=1)
        np.testing.assert_allclose(store.snapshot().norms(0, store.rows), lengths, rtol=1e-6)
        assert generations(path) == [NEW]
        report = store.check()
        assert report.ok
        assert not report.notes
    with Store.open(path) as reader:
        assert contents(reader) == expected


def test_texts_as_values_get_new_vectors_too(tmp_path: Path) -> None:
    """What is blended is the new embedding, and the value scale follows; the texts themselves stay."""
    with mixed(tmp_path / "s", "text") as store:
        texts = [item.value for item in store.items(store.in_order())]
        complete(store)
        items = store.items(store.in_order())
        assert [item.value for item in items] == texts
        assert np.array_equal(store.values(store.in_order()), fresh(items, VALUE_WIDTH))
        spread = store.values(store.in_order()).astype(np.float64)
        assert store.value_scale == pytest.approx(np.sqrt(((spread - spread.mean(axis=0)) ** 2).sum(axis=1).mean()))
        assert store.check().ok


def test_items_without_a_key_keep_their_numbers(tmp_path: Path) -> None:
    """They are found by the same names, and the next one gets the number after the last."""
    with mixed(tmp_path / "s", "number") as store:
        nameless = [name for name in store.keys() if name.startswith("#")]  # noqa: SIM118 - a store is not a mapping
        complete(store)
        assert [store.get(name).name for name in nameless] == nameless
        assert store.append(vectors(1, WIDTH), [1.0]).first_number == 63
        assert store.check().ok


@pytest.mark.parametrize("kind", KINDS)
def test_work_goes_on_after_a_rebuild(tmp_path: Path, kind: str) -> None:
    """Items of the new width are added, replaced and deleted, and left behind by a compaction and another rebuild."""
    with mixed(tmp_path / "s", kind) as store:
        complete(store)
        last = store.items([store.rows - 1])[0]
        value = np.array([last.value]) if kind == "vector" else [last.value]
        more = {"value_vectors": vectors(1, VALUE_WIDTH)} if kind == "text" else {}
        with pytest.raises(ShapeError, match="width 4, but this store holds width 6"):
            store.append(vectors(1), value, **more)
        store.append(vectors(1, WIDTH), value, keys=["late"], **more)
        store.append(vectors(1, WIDTH), value, keys=["key 3"], on_conflict="replace", **more)
        store.delete(["key 4", "#6"])
        before = contents(store)
        assert store.check().ok
        store.compact()
        assert contents(store) == before
        assert generations(tmp_path / "s") == ["generation-000003"]
        expected = renewed(store)
        complete(store)
        assert contents(store) == expected
        assert generations(tmp_path / "s") == ["generation-000004"]
        assert store.check().ok


def test_a_store_of_nothing_but_dead_rows_can_be_rebuilt(tmp_path: Path) -> None:
    """There is nothing to write, and the next items have the new width."""
    with fruit(tmp_path / "s") as store:
        store.delete(["apple", "pear", "quince"])
        rebuild = begun(store)
        assert (rebuild.done, rebuild.total, rebuild.waiting()) == (0, 0, [])
        rebuild.finish()
        assert (store.rows, store.settings) == (0, SETTINGS)
        store.append(vectors(2, WIDTH), [1.0, 2.0], keys=["a", "b"])
        assert store.check().ok


def test_of_a_store_that_never_had_items_only_the_settings_change(tmp_path: Path) -> None:
    """There is no width to change yet: nothing is begun, nothing is refused, and `finish` replaces the settings."""
    with Store.open(tmp_path / "s", "c") as store:
        store.configure({"embedder": "old"})
        rebuild = store.rebuild(key_width=WIDTH, settings=SETTINGS)
        assert (rebuild.done, rebuild.total, rebuild.waiting(), store.unfinished) == (0, 0, [], None)
        assert store.settings == {"embedder": "old"}
        rebuild.finish()
        assert (store.settings, store.layout) == (SETTINGS, None)
        store.append(vectors(1), [1.0])
        with pytest.raises(HandleClosed, match="not any more"):
            rebuild.finish()
        assert store.check().ok


# Left and resumed


@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuild_that_was_left_is_resumed_where_it_was(tmp_path: Path, kind: str) -> None:
    """After closing and opening, what was written is not asked for again, and it ends as if never left."""
    path, text = tmp_path / "s", kind == "text"
    with mixed(path, kind) as store:
        expected, before, settings = renewed(store), contents(store), store.settings
        names = [item.name for item in store.items(np.flatnonzero(store.live))]
    asked: list[str] = []
    for turn in range(len(names) // BATCH + 1):
        with Store.open(path, "w") as store:
            rebuild = begun(store)
            assert (rebuild.done, rebuild.total) == (turn * BATCH, len(names))
            asked += [item.name for item in rebuild.waiting(BATCH)]
            rebuild.waiting(5)  # asking again changes nothing
            write(rebuild, text)
            assert rebuild.done == len(asked)
            assert (contents(store), store.settings) == (before, settings)
        with Store.open(path) as reader:
            width = VALUE_WIDTH if text else None
            assert reader.unfinished == Begun(len(asked), len(names), WIDTH, width, SETTINGS)
            assert contents(reader) == before
            report = reader.check()
            assert report.ok
            assert [f"{NEW} is an unfinished rebuild; {len(asked)} items are written"] == report.notes
    assert asked == names  # in the order of the old rows
    with Store.open(path, "w") as store:
        begun(store).finish()
        assert contents(store) == expected
        assert store.unfinished is None
        assert store.check().ok


def test_a_rebuild_is_resumed_with_what_its_progress_says(tmp_path: Path) -> None:
    """Widths and settings of the record are those to resume it with, in whatever order the settings come."""
    with mixed(tmp_path / "s", "text") as store:
        write(begun(store), text=True)
        found = store.unfinished
        assert found is not None
        backwards = dict(reversed(found.settings.items()))
        rebuild = store.rebuild(key_width=found.key_width, value_width=found.value_width, settings=backwards)
        assert (rebuild.done, rebuild.total) == (found.done, found.total)
        assert store.check().ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key_width": WIDTH + 1}, "has begun .* key width 6, value width 3, .* Asked for was key width 7,"),
        ({"value_width": VALUE_WIDTH + 1}, "key width 6, value width 3, .* Asked for was key width 6, value width 4,"),
        ({"settings": {"embedder": "third"}}, r'"embedder":"new".* Asked for was .*\{"embedder":"third"\}'),
    ],
)
def test_a_rebuild_is_not_resumed_as_another(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """Other widths or settings than it was begun with are refused, naming both and the ways on."""
    with mixed(tmp_path / "s", "text") as store:
        write(begun(store), text=True)
        before = store.unfinished
        with pytest.raises(Unfinished, match=words + ".*--abandon"):
            store.rebuild(**{"key_width": WIDTH, "value_width": VALUE_WIDTH, "settings": SETTINGS, **change})
        assert store.unfinished == before
        assert store.check().ok


@pytest.mark.parametrize("reopened", [False, True])
def test_nothing_else_may_change_while_a_rebuild_is_unfinished(tmp_path: Path, reopened: bool) -> None:
    """Every other write is refused with how far it is and the ways on, and reading goes on."""
    path = tmp_path / "a store"
    store = fruit(path)
    store.delete("pear")
    write(begun(store), text=False, rows=1)
    if reopened:
        store.close()
        store = Store.open(path, "w")
    before, commit = contents(store), store.commit
    for change in (
        lambda: store.append(vectors(1), [1.0]),
        lambda: store.append(vectors(1), [1.0], keys=["apple"], on_conflict="ignore"),
        lambda: store.delete("apple"),
        lambda: store.configure({}),
        store.compact,
    ):
        with pytest.raises(Unfinished, match=r"1 of 2 items") as caught:
            change()
        named = f"softkv reembed --db {shlex.quote(str(path))}"
        assert f"`{named}` to go on, or `{named} --abandon` to drop it" in str(caught.value)
    assert (contents(store), store.commit) == (before, commit)
    assert len(list(store.blocks())) == 1
    complete(store)
    store.append(vectors(1, WIDTH), [1.0], keys=["pear"])
    assert list(store.keys()) == ["apple", "quince", "pear"]
    assert store.check().ok
    store.close()


def test_an_abandoned_rebuild_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files, checksums and record go, the store is as it was, and other changes and rebuilds are free again."""
    shrink(monkeypatch)
    path = tmp_path / "s"
    with mixed(path, "vector") as store:
        before, kept = contents(store), bytes_of(path / GENERATION)
        rebuild = begun(store)
        write(rebuild, text=False)
        store.abandon()
        assert (contents(store), store.unfinished, generations(path)) == (before, None, [GENERATION])
        assert bytes_of(path / GENERATION) == kept
        with pytest.raises(HandleClosed, match="over"):
            rebuild.waiting()
        store.abandon()  # there is nothing left to drop, and that is no error
        assert store.check().ok
    for table in ("windows", "generations"):
        assert sql(path, f"SELECT DISTINCT generation FROM {table}") == [(1,)]
    with Store.open(path, "w") as store:
        store.delete("key 3")
        expected = renewed(store)
        other = begun(store, width=WIDTH + 3)
        other.waiting(2)
        with pytest.raises(ShapeError, match="of width 9"):
            other.write(vectors(2, WIDTH))
        store.abandon()
        complete(store)
        assert contents(store) == expected
        assert store.check().ok


@pytest.mark.parametrize("change", [{"key_width": WIDTH + 1}, {"settings": {"embedder": "third"}}])
def test_a_rebuild_is_not_mistaken_for_one_begun_after_it(tmp_path: Path, change: dict[str, Any]) -> None:
    """A handle on an abandoned one is over, though the generation of the next has the same number again."""
    with fruit(tmp_path / "s") as store:
        rebuild = begun(store)
        items = rebuild.waiting()
        store.abandon()
        other = store.rebuild(**{"key_width": WIDTH, "settings": SETTINGS, **change})
        for call in (rebuild.waiting, rebuild.finish, partial(rebuild.write, fresh(items, WIDTH))):
            with pytest.raises(HandleClosed, match="finished or abandoned"):
                call()
        assert [item.name for item in other.waiting()] == [item.name for item in items]
        assert store.check().ok


# What may be written


@pytest.mark.parametrize(
    ("error", "keys", "values", "words"),
    [
        (ShapeError, vectors(2, WIDTH), None, r"key vectors have shape \(2, 6\); give 3 of them"),
        (ShapeError, vectors(4, WIDTH), None, "give 3 of them"),
        (ShapeError, vectors(3, WIDTH + 1), None, "of width 6"),
        (ShapeError, vectors(3, WIDTH)[0], None, "matrix"),
        (ShapeError, [[1.0], [1.0, 2.0], [3.0]], None, "ragged"),
        (NotFinite, np.full((3, WIDTH), np.nan), None, "key vector 0 holds NaN"),
        (NotFinite, np.full((3, WIDTH), 1e39), None, "beyond float32's range"),
        (KindError, np.full((3, WIDTH), "a"), None, "real numbers"),
        (KindError, vectors(3, WIDTH), vectors(3, 1), "values of kind 'number' stay"),
    ],
)
def test_wrong_vectors_are_refused_before_anything_is_written(
    tmp_path: Path, error: type[Exception], keys: Any, values: Any, words: str
) -> None:
    """What is wrong is named, nothing changes, and the right ones are taken afterwards."""
    with fruit(tmp_path / "s") as store:
        rebuild = begun(store)
        items = rebuild.waiting()
        before, commit = bytes_of(tmp_path / "s" / NEW), store.commit
        with pytest.raises(error, match=words):
            rebuild.write(keys, values)
        assert (bytes_of(tmp_path / "s" / NEW), store.commit, rebuild.done) == (before, commit, 0)
        rebuild.write(fresh(items, WIDTH))
        rebuild.finish()
        assert np.array_equal(store.vectors(range(3)), fresh(items, WIDTH))
        assert store.check().ok


@pytest.mark.parametrize(
    ("error", "values", "words"),
    [
        (KindError, None, "give value_vectors"),
        (ShapeError, vectors(2, VALUE_WIDTH), "give 3 of them"),
        (ShapeError, vectors(3, 2), "of width 3"),
        (NotFinite, np.full((3, VALUE_WIDTH), np.inf), "value vector 0"),
    ],
)
def test_wrong_vectors_of_text_values_are_refused(
    tmp_path: Path, error: type[Exception], values: Any, words: str
) -> None:
    """A rebuild of texts needs both, and neither is written without the other."""
    with mixed(tmp_path / "s", "text") as store:
        rebuild = begun(store)
        items = rebuild.waiting(3)
        before = bytes_of(tmp_path / "s" / NEW)
        with pytest.raises(error, match=words):
            rebuild.write(fresh(items, WIDTH), values)
        assert bytes_of(tmp_path / "s" / NEW) == before
        assert store.unfinished == Begun(0, 54, WIDTH, VALUE_WIDTH, SETTINGS)
        complete(store)
        assert store.check().ok


def test_value_widths_go_with_texts_alone(tmp_path: Path) -> None:
    """One that is missing, or too much, is named before anything is begun."""
    with fruit(tmp_path / "fruit") as store:
        with pytest.raises(KindError, match="values of kind 'number' stay as they are"):
            store.rebuild(key_width=WIDTH, value_width=1, settings={})
        with pytest.raises(ShapeError, match="key width is 0"):
            store.rebuild(key_width=0, settings={})
        with pytest.raises(InputError, match="settings are a list"):
            store.rebuild(key_width=WIDTH, settings=[])  # type: ignore[arg-type]
        assert store.unfinished is None
        assert store.check().ok
    with mixed(tmp_path / "s", "text") as store:
        with pytest.raises(ShapeError, match="give value_width"):
            store.rebuild(key_width=WIDTH, settings={})
        assert generations(tmp_path / "s") == [GENERATION]
        assert store.check().ok


def test_vectors_belong_to_the_items_that_were_given_last(tmp_path: Path) -> None:
    """Without asking there is nothing to write them for, nor twice, nor when another handle on it was faster."""
    with mixed(tmp_path / "s", "number") as store:
        rebuild, other = begun(store), begun(store)
        with pytest.raises(InputError, match="ask `waiting`"):
            rebuild.write(vectors(1, WIDTH))
        with pytest.raises(ShapeError, match="at least 1 item"):
            rebuild.waiting(0)
        items = rebuild.waiting(2)
        assert [item.name for item in other.waiting(2)] == [item.name for item in items]
        rebuild.write(fresh(items, WIDTH))
        with pytest.raises(InputError, match="ask `waiting`"):
            rebuild.write(fresh(items, WIDTH))
        with pytest.raises(InputError, match="item 0 is written already"):
            other.write(np.zeros((2, WIDTH)))
        assert store.unfinished == Begun(2, 54, WIDTH, None, SETTINGS)
        expected = renewed(store)
        complete(store)
        assert contents(store) == expected
        assert store.check().ok


def test_a_rebuild_is_not_finished_before_all_is_written(tmp_path: Path) -> None:
    """One item that is missing is one too many, and the message counts them."""
    with fruit(tmp_path / "s") as store:
        rebuild = begun(store)
        write(rebuild, text=False, rows=2)
        with pytest.raises(Unfinished, match="2 of 3 items are written"):
            rebuild.finish()
        assert contents(store) == contents(store.snapshot())
        assert store.layout is not None
        assert store.layout.key_width == 4
        complete(store)
        assert store.check().ok


def test_a_rebuild_that_is_over_takes_nothing_more(tmp_path: Path) -> None:
    """After the end, and after the end of its store, every call says so."""
    with fruit(tmp_path / "s") as store:
        rebuild = begun(store)
        items = rebuild.waiting()
        complete(store)
        for call in (rebuild.waiting, rebuild.finish, partial(rebuild.write, fresh(items, WIDTH))):
            with pytest.raises(HandleClosed, match="finished or abandoned"):
                call()
        assert store.check().ok
        rebuild = begun(store)
        items = rebuild.waiting()
    for call in (rebuild.waiting, rebuild.finish, partial(rebuild.write, fresh(items, WIDTH))):
        with pytest.raises(HandleClosed, match="closed with its store"):
            call()
    assert check(tmp_path / "s").ok


# Readers


def test_readers_see_the_old_vectors_or_the_new_ones(tmp_path: Path) -> None:
    """All see the old ones up to the end, then the new ones; a snapshot keeps what it has while it is open."""
    path = tmp_path / "s"
    with mixed(path, "text") as store, Store.open(path) as reader:
        before, expected = contents(store), renewed(store)
        snapshot, rebuild = reader.snapshot(), begun(store)
        while write(rebuild, text=True):
            assert contents(reader) == before
            assert reader.unfinished == store.unfinished
        rebuild.finish()
        assert contents(reader) == contents(store) == expected
        assert reader.unfinished is None
        assert reader.settings == SETTINGS
        assert contents(snapshot) == before
        assert generations(path) == [GENERATION, NEW]
        snapshot.close()
        store.append(vectors(1, WIDTH), ["late"], value_vectors=vectors(1, VALUE_WIDTH))
        assert generations(path) == [NEW]
        assert store.check().ok


def test_a_generation_that_a_reader_keeps_is_not_taken_for_the_unfinished_one(tmp_path: Path) -> None:
    """Retired, current and unfinished lie side by side, and each stays as long as it must."""
    path = tmp_path / "s"
    with mixed(path, "number") as store, Store.open(path) as reader:
        snapshot = reader.snapshot()
        first = contents(snapshot)
        complete(store)
        second = contents(store)
        write(begun(store, settings={"third": 3}), text=False)
        assert generations(path) == [GENERATION, NEW, "generation-000003"]
        assert (contents(snapshot), contents(store)) == (first, second)
        assert store.check().ok
        snapshot.close()
    with Store.open(path, "w") as store:
        assert generations(path) == [NEW, "generation-000003"]
        assert contents(store) == second
        assert store.unfinished == Begun(BATCH, len(second), WIDTH, None, {"third": 3})
        assert store.check().ok


# The order of the protocol


def test_a_rebuild_is_durable_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, their directory and the store's are synced before the commit that begins; rows before theirs."""
    with fruit(tmp_path / "s") as store:
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            rebuild = begun(store)
        names = ("keys.f32", "values.number", "norms.f32")
        synced = [steps.place("sync", name) for name in names]
        named = [steps.place("sync", name) for name in (NEW, "s")]
        written = max(i for i, step in enumerate(steps.taken) if step[0] == "write")
        assert written < min(synced) < max(synced) < named[0] < named[1] < steps.place("commit")
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            write(rebuild, text=False)
        for name in names:
            assert steps.place("write", name) < steps.place("sync", name) < steps.place("commit")
        assert [step[0] for step in steps.taken].count("commit") == 1
        with monkeypatch.context() as patch:
            steps = Steps(tmp_path / "s", patch)
            rebuild.finish()
        assert steps.taken == [("commit", "", 0)] * 2  # the switch, and the end of the old generation
        assert store.check().ok


def test_rows_of_a_rebuild_cover_what_a_crash_left(tmp_path: Path) -> None:
    """They are written where the committed ones end, whatever lies beyond."""
    path = tmp_path / "s"
    with mixed(path, "number") as store:
        expected = renewed(store)
        write(begun(store), text=False)
    for name in ("keys.f32", "values.number", "norms.f32"):
        with open(path / NEW / name, "ab") as file:
            file.write(b"garbage" * 1000)
    with Store.open(path, "w") as store:
        complete(store)
        assert contents(store) == expected
        assert store.check().ok


# Failures


@linux_only
@pytest.mark.parametrize("name", ["fdatasync", "fsync"])
def test_a_rebuild_that_cannot_be_durable_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A sync that fails ends the handle; the next writer finds nothing begun, and removes the files."""
    store = fruit(tmp_path / "s")
    with failing(monkeypatch, name, OSError(errno.EIO, "Input/output error")):
        with pytest.raises(StorageFailed, match="durable"):
            begun(store)
        with pytest.raises(HandlePoisoned):
            begun(store)
        store.close()
    with Store.open(tmp_path / "s", "w") as store:
        assert store.unfinished is None
        assert generations(tmp_path / "s") == [GENERATION]
        complete(store)
        assert store.check().ok


@linux_only
@pytest.mark.parametrize("fine", [0, 1, 2])
def test_a_failed_sync_in_the_middle_poisons_the_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fine: int
) -> None:
    """Whichever file it is of: nothing is synced again, every call says so, and reopening resumes before that batch."""
    store = mixed(tmp_path / "s", "vector")
    expected = renewed(store)
    rebuild = begun(store)
    write(rebuild, text=False)
    items, sync, synced = rebuild.waiting(BATCH), files.sync, list[str]()

    def sometimes(descriptor: int, path: str) -> None:
        synced.append(path)
        if len(synced) > fine:
            raise StorageFailed("cannot be durable, says the test")
        sync(descriptor, path)

    monkeypatch.setattr(files, "sync", sometimes)
    with pytest.raises(StorageFailed, match="durable"):
        rebuild.write(fresh(items, WIDTH))
    for call in (
        rebuild.waiting,
        rebuild.finish,
        partial(rebuild.write, fresh(items, WIDTH)),
        store.abandon,
        store.keys,
    ):
        with pytest.raises(HandlePoisoned, match="an earlier write failed"):
            call()
    store.close()
    assert len(synced) == fine + 1
    monkeypatch.undo()
    with Store.open(tmp_path / "s", "w") as store:
        assert store.unfinished == Begun(BATCH, 54, WIDTH, None, SETTINGS)
        assert store.check().ok
        complete(store)
        assert contents(store) == expected
        assert store.check().ok


def test_a_full_disk_in_the_middle_leaves_the_handle_usable(tmp_path: Path) -> None:
    """A batch for which there is no space is refused whole; after making room the same rebuild takes it."""
    with small_disk(tmp_path / "disk", "8m") as disk, Store.open(disk / "s", "c") as store:
        store.append(vectors(2000, 100), np.arange(2000.0))
        rebuild = store.rebuild(key_width=200, settings={})
        items = rebuild.waiting(50)
        rebuild.write(vectors(50, 200))
        items, sizes = rebuild.waiting(1950), [path.stat().st_size for path in sorted((disk / "s" / NEW).iterdir())]
        fill(disk / "filler")
        with pytest.raises(StorageFull, match="make room"):
            rebuild.write(vectors(1950, 200, 1))
        assert [path.stat().st_size for path in sorted((disk / "s" / NEW).iterdir())] == sizes
        assert (rebuild.done, len(items), len(store)) == (50, 1950, 2000)
        (disk / "filler").unlink()
        rebuild.write(vectors(1950, 200, 1))
        rebuild.finish()
        assert np.array_equal(store.vectors(range(50, 2000)), vectors(1950, 200, 1))
        assert store.check().ok


def test_a_rebuild_that_does_not_fit_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The free space is looked at first, for the items that are left when it is resumed."""
    with mixed(tmp_path / "s", "vector") as store:
        usage = files.shutil.disk_usage(tmp_path)._replace(free=54 * (6 + 3 + 1) * 4 * 9 // 8 - 1)
        monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
        with pytest.raises(StorageFull, match=r"rebuilding .* needs"):
            begun(store)
        assert generations(tmp_path / "s") == [GENERATION]
        monkeypatch.undo()
        write(begun(store), text=False)
        monkeypatch.setattr(files.shutil, "disk_usage", lambda _: usage)
        assert begun(store).done == BATCH
        assert store.check().ok


def test_a_writer_that_comes_late_cannot_go_on_with_a_rebuild(tmp_path: Path) -> None:
    """When another has taken over, it is fenced, and what the other has written stays."""
    late = fruit(tmp_path / "s")
    rebuild = begun(late)
    items = rebuild.waiting(1)
    (tmp_path / "s" / "LOCK").rename(tmp_path / "s" / "lock of the late")
    with Store.open(tmp_path / "s", "w") as store:
        write(begun(store), text=False, rows=2)
        for call in (partial(rebuild.write, np.zeros((len(items), WIDTH))), rebuild.finish, late.abandon):
            with pytest.raises(WriterFenced):
                call()
        expected = renewed(store)
        complete(store)
        assert contents(store) == expected
        assert store.check().ok
    late.close()


def test_damaged_values_are_not_carried_into_a_rebuild(tmp_path: Path) -> None:
    """A bit that fell over after it was read must not get a new checksum; the rebuild stays where it was."""
    path = tmp_path / "s"
    with fruit(path) as store:
        list(store.blocks())
        rebuild = begun(store)
        items = rebuild.waiting()
        flip(path / GENERATION / "values.number", HEADER + 20)
        with pytest.raises(StoreDamaged, match=r"values\.number: bytes 4096 to 4120 do not match"):
            rebuild.write(fresh(items, WIDTH))
        assert store.unfinished == Begun(0, 3, WIDTH, None, SETTINGS)
        flip(path / GENERATION / "values.number", HEADER + 20)
        rebuild.write(fresh(items, WIDTH))
        rebuild.finish()
        assert store.check().ok


def test_items_that_cannot_be_read_do_not_wait_for_vectors(tmp_path: Path) -> None:
    """Nothing can be written blindly for items that were never given out."""
    path = tmp_path / "s"
    fruit(path).close()
    flip(path / GENERATION / "keys.f32", HEADER + 20)
    with Store.open(path, "w") as store:
        rebuild = begun(store)
        with pytest.raises(StoreDamaged, match=r"keys\.f32: bytes 4096 to 4144 do not match"):
            rebuild.waiting()
        with pytest.raises(InputError, match="ask `waiting`"):
            rebuild.write(vectors(3, WIDTH))
        flip(path / GENERATION / "keys.f32", HEADER + 20)
        complete(store)
        assert store.check().ok


# Damage to what is unfinished


def test_damage_to_an_unfinished_rebuild_is_found_and_costs_no_item(tmp_path: Path) -> None:
    """A check names the file, repair saves everything, resuming is refused with the way out, and that way works."""
    path = tmp_path / "s"
    with mixed(path, "label") as store:
        before = contents(store)
        write(begun(store), text=False)
    flip(path / NEW / "keys.f32", HEADER + 4 * WIDTH * BATCH - 1)
    report = check(path)
    assert [f"{NEW}/keys.f32: bytes 4096 to 4408 do not match" in one for one in report.findings] == [True]
    assert report.items == len(before)
    saved = repair(path, tmp_path / "repaired")
    assert (saved.saved, saved.lost) == (len(before), 0)
    with Store.open(path, "w") as store:
        assert contents(store) == before
        with pytest.raises(StoreDamaged, match=r"the store itself is as it was.*--abandon"):
            begun(store)
        store.abandon()
        assert store.check().ok
        complete(store)
        assert store.check().ok


@pytest.mark.parametrize("hurt", ["files", "length", "record"])
def test_an_unfinished_rebuild_that_is_lost_can_be_abandoned(tmp_path: Path, hurt: str) -> None:
    """Without its files, or its record, the store opens and is read; a check says what is wrong."""
    path = tmp_path / "s"
    with mixed(path, "number") as store:
        before = contents(store)
        write(begun(store), text=False)
    if hurt == "files":
        shutil.rmtree(path / NEW)
    elif hurt == "length":
        with open(path / NEW / "values.number", "r+b") as file:
            file.truncate(HEADER + 7)
    else:
        sql(path, "UPDATE generations SET rows = rows + 1 WHERE generation = 2")
    assert not check(path).ok
    assert check(path).items == len(before)
    with Store.open(path) as reader:
        assert contents(reader) == before
    with Store.open(path, "w") as store:
        assert contents(store) == before
        with pytest.raises(StoreDamaged):
            begun(store)
        store.abandon()
        report = store.check()
        assert report.ok
        assert not report.notes
        complete(store)
        assert store.check().ok


@pytest.mark.parametrize("end", ["finish", "abandon"])
def test_the_end_of_a_rebuild_during_a_check_is_not_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The check looks again when the files it was about to read are gone."""
    looked, survey = list[str](), checking._survey_sums

    with fruit(tmp_path / "s") as store:
        rebuild = begun(store)
        write(rebuild, text=False)

        def meanwhile(*arguments: Any) -> None:
            survey(*arguments)
            looked.append(end)
            if len(looked) == 1:
                rebuild.finish() if end == "finish" else store.abandon()

        monkeypatch.setattr(checking, "_survey_sums", meanwhile)
        report = check(tmp_path / "s")
        assert report.ok
        # What was finished meanwhile was unfinished in the one commit that is looked at.
        assert len(report.notes) == (end == "finish")
        assert len(looked) == (1 if end == "finish" else 2)


# Interrupts


def _begin(store: Store) -> None:
    begun(store)


def _write(store: Store) -> None:
    write(begun(store), text=False, rows=1)


def _finish(store: Store) -> None:
    begun(store).finish()


def _abandon(store: Store) -> None:
    store.abandon()


@interrupting
@pytest.mark.parametrize(
    ("prepare", "work", "stride", "done"),
    [
        ((), _begin, 37, (None, 0)),
        ((_begin,), _write, 61, (0, 1)),
        ((_write,), _finish, 61, (1, None)),
        ((_write,), _abandon, 29, (1, None)),
    ],
    ids=["begin", "write", "finish", "abandon"],
)
def test_an_interrupt_anywhere_leaves_a_rebuild_right(
    tmp_path: Path,
    seed: int,
    prepare: Sequence[Callable[[Store], None]],
    work: Callable[[Store], None],
    stride: int,
    done: tuple[int | None, int | None],
) -> None:
    """Interrupted at any call, right after COMMIT too, a step is there or not, and the same handle goes on."""
    interrupted, turn = True, 1 + seed % stride
    while interrupted:
        with Store.open(tmp_path / "s", "n") as store:
            store.append(vectors(1), [1.0], keys=["a"])
            before, expected = contents(store), renewed(store)
            for step in prepare:
                step(store)
            commit, interrupt = store.commit, Interrupt(turn)
            interrupt.during(partial(work, store))
            interrupted, told = bool(interrupt.where), f"at step {turn} in {interrupt.where}"
            happened = store.commit - commit
            assert happened in (0, 1), told
            assert (store.unfinished.done if store.unfinished else None) == done[happened], told
            assert contents(store) == (expected if happened and work is _finish else before), told
            complete(store)
            assert contents(store) == expected, told
            assert store.check().ok, told
        turn += stride
    assert turn > 300, "the work has many steps"


# Crashes


def _live(path: Path, death: str, calls: int, say: Say) -> None:
    """A writer that goes on with the rebuild of a store until it is done, or dies."""
    power = Power(Random(calls)) if death == "power" else None
    die_after(calls, power)
    with Store.open(path, "w") as store:
        if store.settings != SETTINGS:
            rebuild, text = begun(store), _has_texts(store)
            say(rebuild.done)
            while write(rebuild, text):
                say(rebuild.done)
            rebuild.finish()


@dataclass
class Fate:
    """A rebuild whose writers die: what the store held before and will hold, and what the last of them left."""

    before: dict[str, Any]
    after: dict[str, Any]
    done: int | None = None  # items that are known to be written; None when nothing is begun
    finished: bool = False

    def befall(self, path: Path, death: str, calls: int) -> bool:
        """Let a writer live until it dies, and look at what it leaves; returns whether it came to its end alive."""
        with Child(lambda say: _live(path, death, calls, say)) as child:
            for (said,) in child.all():
                self.done = said
            alive = child.wait() == 0
        with Store.open(path) as reader:
            told = f"{death} after {calls} calls, {self.done} acknowledged, finished: {self.finished or alive}"
            found, unfinished, report = contents(reader), reader.unfinished, reader.check()
            assert report.ok, f"{told}: {report}"
            assert reader.settings == (SETTINGS if found == self.after else {}), told
        if self.finished or alive:
            assert (found, unfinished) == (self.after, None), told
        elif found == self.after:
            assert (self.done, unfinished) == (len(self.after), None), told
            self.finished = True
        else:
            assert found == self.before, told
            self._learn(None if unfinished is None else unfinished.done, told)
        return alive

    def _learn(self, done: int | None, told: str) -> None:
        """One step may have happened without a word of it."""
        following = 0 if self.done is None else min(self.done + BATCH, len(self.after))
        assert done in (self.done, following), told
        self.done = done


@pytest.mark.slow
@pytest.mark.parametrize("death", ["call", "power"])
@pytest.mark.parametrize("kind", ["label", pytest.param("text", marks=pytest.mark.ci)])
def test_a_killed_rebuild_is_resumed_where_it_was(
    death: str, kind: str, seed: int, thorough: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any call, or with all that was not synced: readers see old or new, and the next writer goes on."""
    shrink(monkeypatch, window=256)
    random, stride = Random(f"{seed} {death} {kind}"), 5 if thorough else 61
    with mixed(tmp_path / "origin", kind) as store:
        before, after = contents(store), renewed(store)
    alive, calls, deaths = False, random.randrange(stride), 0
    while not alive:
        path, fate = tmp_path / f"s {calls}", Fate(before, after)
        shutil.copytree(tmp_path / "origin", path)
        alive = fate.befall(path, death, calls)
        deaths += not alive
        deaths += not fate.befall(path, death, random.randrange(300))  # whoever resumes it may be killed as well
        with Store.open(path, "w") as store:
            if not fate.finished and store.settings != SETTINGS:
                complete(store)
            assert contents(store) == after, (calls, fate.done)
            report = store.check()
            assert (report.findings, report.notes) == ([], []), (calls, fate.done)
        shutil.rmtree(path)
        calls += stride
    print(f"{deaths} deaths, the last at call {calls - 2 * stride}")
    assert deaths > 10, "the rebuild has many steps"
