"""Clusters as wholes: made whole or not at all, checked, backed up, restored, and saved from damage."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import check, repair, restore
from softkv.database.guarding import _left_out
from softkv.database.held_out import held_out
from softkv.doors.cluster import create, grow, status
from softkv.doors.cluster.manifest import MOST, Manifest
from softkv.errors import AccessRefused, BackupRefused, InputError, OutOfReach, StoreDamaged, StoreError, StoreLocked

from .clusters import clustered, opened
from .databases import KINDS, vectors_of
from .test_cluster_manifest import newest

QUERIES = vectors_of(6, seed=5)


@pytest.fixture
def disks(tmp_path: Path) -> list[Path]:
    """Two directories for shards."""
    found = [tmp_path / "one", tmp_path / "two"]
    for disk in found:
        disk.mkdir()
    return found


def items_of(path: Path) -> dict[str, Any]:
    """All items of a cluster."""
    with opened(path, mode="r") as db:
        assert db.check().ok
        return dict(db)


# Making


def test_a_cluster_is_there_whole_or_not_at_all(tmp_path: Path, disks: list[Path]) -> None:
    """Where a disk is not there, nothing stays on the others."""
    with pytest.raises(StoreError, match="none is not a directory"):
        create(tmp_path / "c", 3, [*disks, tmp_path / "none"])
    assert [list(disk.iterdir()) for disk in disks] == [[], []]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    create(tmp_path / "c", 3, disks)
    assert len(status(tmp_path / "c").shards) == 3


def test_a_cluster_has_one_writer(tmp_path: Path) -> None:
    """A second writer is refused with the name of the first, or waits for it; readers go on."""
    with clustered(tmp_path / "c", "number") as db:
        with pytest.raises(StoreLocked, match=f"{tmp_path / 'c'} is open for writing by pid {os.getpid()}"):
            softkv.open(tmp_path / "c", "w")
        with opened(tmp_path / "c", mode="r") as reader:
            assert len(reader) == len(db)
    softkv.open(tmp_path / "c", "w").close()


def test_a_cluster_whose_processes_are_at_work_says_how_to_go_on(tmp_path: Path) -> None:
    """A handle and `grow` name the writer of a shard, where it is asked, and the command that ends it."""
    clustered(tmp_path / "c", "number").close()
    with softkv.open(tmp_path / "c" / "shard-001"):
        for begin in (opened, partial(grow, shards=6)):
            with pytest.raises(StoreLocked, match=r"shard-001 is open for writing .*ray:.*`softkv cluster stop .*/c`"):
                begin(tmp_path / "c")
        with opened(tmp_path / "c", mode="r") as db:
            assert len(db) == 40


# Checking


def test_a_sound_cluster_is_sound(tmp_path: Path, disks: list[Path]) -> None:
    """Its path and its handle say so, open or not."""
    create(tmp_path / "c", 3, disks, value="number")
    with opened(tmp_path / "c") as db:
        db.add([f"item {number}" for number in range(50)], np.arange(50.0), vectors=vectors_of(50))
        assert db.check() == check(tmp_path / "c")
    found = check(tmp_path / "c")
    assert (found.ok, found.items, found.notes) == (True, 50, [])
    assert check(tmp_path / "c", at_least=found.commit).ok
    assert "is at commit" in check(tmp_path / "c", at_least=found.commit + 1).findings[0]


def damaged_manifest(path: Path) -> None:
    """Another number in the newest one."""
    newest(path).write_bytes(newest(path).read_bytes().replace(b'"epoch": ', b'"epoch": 1'))


def renamed_manifest(path: Path) -> None:
    """A manifest in the place of a later one."""
    newest(path).rename(path / "manifest-0000000077.json")


def too_few_shards(path: Path) -> None:
    """Buckets of shards that are not named."""
    found = Manifest.read(str(path))
    replace(found, epoch=found.epoch + 1, shards=found.shards[:1]).write(str(path))


def stray_keys(path: Path) -> None:
    """Keys in a shard to which their buckets do not belong, of which one is in its own as well."""
    home = Manifest.read(str(path)).shard_of
    there = next(key for key in map("item {}".format, range(40)) if home(key) != 0)
    new = next(key for key in map("new {}".format, range(40)) if home(key) != 0)
    with softkv.open(path / "shard-000") as db:
        db.add([there, new], [1.0, 2.0], vectors=vectors_of(2))


def other_kind(path: Path) -> None:
    """A shard whose values are of another kind."""
    shutil.rmtree(path / "shard-000")
    with softkv.open(path / "shard-000") as db:
        db.add(values=["a label", "a text"], vectors=vectors_of(2))
        identity = db._view().snapshot.store
    found = Manifest.read(str(path))
    shards = replace(found.shards[0], id=identity), *found.shards[1:]
    replace(found, epoch=found.epoch + 1, shards=shards).write(str(path))


def lost_shard(path: Path) -> None:
    """A shard that is not there."""
    shutil.rmtree(path / "shard-001")


def damaged_shard(path: Path) -> None:
    """A byte of a value is another."""
    arena = next((path / "shard-002").glob("generation-*/values.number"))
    content = bytearray(arena.read_bytes())
    content[-1] ^= 1
    arena.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damaged_manifest, "not what was written"),
        (renamed_manifest, "not of these shards"),
        (too_few_shards, "not of these shards"),
        (stray_keys, "shard-000: 2 items have keys of other shards, .*; 1 of these keys"),
        (other_kind, "has Layout"),
        (lost_shard, "shard-001: shard 1 of .* Bring it back"),
        (damaged_shard, "shard-002: .*checksum"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_is_wrong_with_a_cluster_is_found(damage: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    """`check` of a path tells damage also where the cluster cannot be opened."""
    clustered(tmp_path / "c", "number").close()
    assert check(tmp_path / "c").ok
    damage(tmp_path / "c")
    found = check(tmp_path / "c")
    assert [one for one in found.findings if re.search(said, one)], found.findings


@pytest.mark.parametrize("given", ["ab", Path("ab")])
def test_disks_are_given_as_a_list(given: Any, tmp_path: Path) -> None:
    """One path is no list of its letters; nothing is made in that case."""
    with pytest.raises(InputError, match="list of directories"):
        create(tmp_path / "c", 2, given)
    create(tmp_path / "d", 1)
    with pytest.raises(InputError, match="list of directories"):
        grow(tmp_path / "d", 2, given)
    assert {one.name for one in tmp_path.iterdir()} == {"d"}


def test_what_stopped_processes_left_is_noted(tmp_path: Path, disks: list[Path]) -> None:
    """Manifests that do not count, settings that the next writer mends, and shards that it removes, on all disks."""
    create(tmp_path / "c", 2, disks, value="number")
    for name in ("77", "a0b1"):  # of an earlier version, which had the process id there
        (tmp_path / "c" / f"manifest-0000000002.json.{name}").touch()
    (tmp_path / "c" / "shard-009").mkdir()
    unused = next(disks[0].iterdir()).name.replace("shard-000", "shard-002")
    (disks[0] / unused).mkdir()
    (disks[0] / "c-00000000-shard-000").mkdir()  # of another cluster
    Manifest.read(str(tmp_path / "c")).with_settings({"value": "label"}).write(str(tmp_path / "c"))
    found = check(tmp_path / "c")
    assert found.ok
    assert [one.split(" ")[0].split("/")[-1].rstrip(":") for one in found.notes] == [
        *(one.name for disk in disks for one in disk.glob("c-*-shard-00[01]") if "00000000" not in one.name),
        "manifest-0000000002.json.77",
        "manifest-0000000002.json.a0b1",
        "shard-009",
        unused,
    ]
    softkv.open(tmp_path / "c").close()
    assert len(check(tmp_path / "c").notes) == 2
    assert not (tmp_path / "c" / "shard-009").exists()


def test_the_state_of_each_shard_is_told(tmp_path: Path) -> None:
    """Its buckets, items and commit, or why it does not answer."""
    clustered(tmp_path / "c", "number").close()
    shutil.rmtree(tmp_path / "c" / "shard-001")
    found = status(tmp_path / "c")
    assert [one.buckets for one in found.shards] == [86, 85, 85]
    assert [one.reachable for one in found.shards] == [True, False, True]
    assert (found.shards[1].items, found.shards[1].commit, found.shards[0].index) == (None, None, None)
    assert "Bring it back" in str(found.shards[1].why)
    keys = Counter(map(Manifest.read(found.path).shard_of, map("item {}".format, range(40))))
    assert [one.items for one in found.shards] == [keys[0], None, keys[2]]


# Backups


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_cluster_is_as_it_was(kind: str, tmp_path: Path, disks: list[Path]) -> None:
    """Items, answers, settings and the number of the commit, on whatever disks."""
    with clustered(tmp_path / "c", kind) as db:
        db.add(values=[db["item 1"]], vectors=vectors_of(1))
        db.set_temperature(0.25)
        (tmp_path / "c").chmod(0o750)
        made, before = db.backup(tmp_path / "b"), db.lookup(QUERIES)
        named = [one.contributors for one in before]  # which are read as long as there is a store
        assert (made.items, made.commit, made.path) == (41, db.info().commit, str(tmp_path / "b"))
    again = softkv.restore(tmp_path / "b", tmp_path / "again", disks=disks)
    assert (again.items, again.commit) == (made.items, made.commit)
    assert sorted(len(list(disk.iterdir())) for disk in disks) == [1, 2]
    shutil.rmtree(tmp_path / "c")
    for path in (tmp_path / "b", tmp_path / "again"):
        assert path.stat().st_mode & 0o777 == 0o750
        with opened(path, mode="r") as db:
            found = db.lookup(QUERIES)
            assert np.array_equal(found.value, before.value)
            assert [one.contributors for one in found] == named
            assert (db.info().temperature, db.info().commit, db.check().ok) == (0.25, made.commit, True)
    assert Manifest.read(str(tmp_path / "b")).id != Manifest.read(str(tmp_path / "again")).id
    with opened(tmp_path / "again") as db:
        db.delete("item 1")
        assert len(db) == 40


def test_only_what_is_new_is_backed_up(tmp_path: Path) -> None:
    """A reader of the earlier backup follows, with the settings that belong to it."""
    with clustered(tmp_path / "c", "vector", 600) as db:
        first = db.backup(tmp_path / "b")
        with opened(tmp_path / "b", mode="r") as reader:
            db.add(["new"], [db["item 1"]], vectors=vectors_of(1))
            db.set_temperature(0.5)
            db.set_temperature(0.25)
            second = db.backup(tmp_path / "b")
            assert (len(reader), reader.info().temperature) == (601, 0.25)
        assert second.written < first.written
        assert items_of(tmp_path / "b").keys() == dict(db).keys()


def test_only_a_backup_writes_to_a_backup(tmp_path: Path) -> None:
    """The message says how to make a cluster of it; a handle says what it is."""
    with clustered(tmp_path / "c", "number") as db:
        db.backup(tmp_path / "b")
    with pytest.raises(AccessRefused, match=r"softkv restore .*/b --db NEW"):
        softkv.open(tmp_path / "b")
    with opened(tmp_path / "b", mode="r") as db:
        assert "softkv backup" in str(db.info().backup)


def test_a_backup_goes_over_nothing_else(tmp_path: Path) -> None:
    """The cluster is spared, and another, and what is none, and a later one."""
    with clustered(tmp_path / "c", "number") as db, clustered(tmp_path / "d", "number") as other:
        other.backup(tmp_path / "of d")
        db.backup(tmp_path / "older")
        softkv.open(tmp_path / "store").close()
        for target in ("c", "c/inside", "d", "of d", "store", "."):
            with pytest.raises(BackupRefused, match=r"Name another|Name a directory|nothing is written"):
                db.backup(tmp_path / target)
        softkv.restore(tmp_path / "older", tmp_path / "again")
        with pytest.raises(StoreError, match="there already"):
            softkv.restore(tmp_path / "older", tmp_path / "d")
    with pytest.raises(InputError, match="disks only for shards"):
        restore(tmp_path / "store", tmp_path / "new", disks=[tmp_path])
    (tmp_path / "c" / "shard-001").rename(tmp_path / "away")
    with opened(tmp_path / "c", mode="r") as db, pytest.raises(OutOfReach, match="shard-001"):
        db.backup(tmp_path / "e")
    assert not (tmp_path / "e").exists()


def between_shards(path: Path, change: Callable[[], Any]) -> Callable[[int, int], None]:
    """What is told of the progress of a backup, and makes a change once the first shard is copied."""
    pending = [change]

    def told(_done: int, _all: int) -> None:
        if pending and list(path.parent.glob(f".{path.name}.new-*/shard-000")):
            pending.pop()()

    return told


def test_a_backup_beside_a_writer_has_the_settings_of_its_shards(tmp_path: Path) -> None:
    """Where they change while it is made, it goes on until it has those that count."""
    with clustered(tmp_path / "c", "number") as db, opened(tmp_path / "c", mode="r") as reader:
        reader.backup(tmp_path / "b", progress=between_shards(tmp_path / "b", lambda: db.set_temperature(0.25)))
    assert check(tmp_path / "b").notes == []
    with opened(tmp_path / "b", mode="r") as db:
        assert db.info().temperature == 0.25


def test_a_batch_of_which_a_backup_has_a_part_can_be_completed(tmp_path: Path) -> None:
    """Sending it again to what was restored has each item there once."""
    late: dict[str, Any] = {"values": np.arange(9.0), "vectors": vectors_of(9), "batch": "late"}
    keys = [f"late {number}" for number in range(9)]
    with clustered(tmp_path / "c", "number") as db, opened(tmp_path / "c", mode="r") as reader:
        before = len(db)
        reader.backup(tmp_path / "b", progress=between_shards(tmp_path / "b", lambda: db.add(keys, **late)))
        whole = dict(db)
    assert before < len(items_of(tmp_path / "b")) < len(whole)
    softkv.restore(tmp_path / "b", tmp_path / "again")
    with opened(tmp_path / "again") as db:
        db.add(keys, **late)
        assert dict(db) == whole


@pytest.mark.parametrize("earlier", [False, True])
def test_an_interrupted_backup_leaves_nothing_or_what_can_be_read(earlier: bool, tmp_path: Path) -> None:
    """A backup that was interrupted is whole once it is made again."""
    with clustered(tmp_path / "c", "number", 300) as db:
        before = dict(db)
        if earlier:
            db.backup(tmp_path / "b")
        db.add([f"late {number}" for number in range(300)], np.zeros(300), vectors=vectors_of(300))
        shards: list[str] = []

        def stop(_done: int, _all: int) -> None:
            shards.append("told")
            if len(shards) == 5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            db.backup(tmp_path / "b", progress=stop)
        assert before.items() <= items_of(tmp_path / "b").items() if earlier else not (tmp_path / "b").exists()
        db.backup(tmp_path / "b")
        assert items_of(tmp_path / "b") == dict(db)


# Repair


def test_the_good_items_of_all_shards_are_saved(tmp_path: Path) -> None:
    """Those that were lost are named as the cluster names them, and so is a shard that is gone."""
    with clustered(tmp_path / "c", "number", 60) as db:
        db.add(values=np.arange(30.0), vectors=vectors_of(30))
        everything, home = dict(db), db._store.newest().home
        gone = {name for name in everything if home(name)[0] == 1}
    damaged_shard(tmp_path / "c")
    (tmp_path / "c" / "shard-001").rename(tmp_path / "away")
    with pytest.raises(BackupRefused, match="lies in it"):
        repair(tmp_path / "c", tmp_path / "c" / "new")
    done = repair(tmp_path / "c", tmp_path / "new")
    assert not done.report.ok
    assert "all items of shard-001" in done.missing
    lost = set(map(str, done.missing)) - {"all items of shard-001"}
    assert lost
    assert done.lost == len(lost) + 1
    assert lost <= everything.keys() - gone
    saved = items_of(tmp_path / "new")
    assert len(saved) == done.saved == len(everything) - len(gone) - len(lost)
    assert {name for name in saved if not name.startswith("#")} <= everything.keys() - gone - lost
    damaged_manifest(tmp_path / "c")
    with pytest.raises(StoreDamaged, match="Bring the file back"):
        repair(tmp_path / "c", tmp_path / "other")


def test_what_was_learned_is_saved_where_all_shards_have_it(tmp_path: Path) -> None:
    """Else the settings do not speak of it."""
    vectors = np.random.default_rng(0).standard_normal((600, 8)).astype(np.float32)
    create(tmp_path / "c", 3, value="number", compatibility="gaussian")
    with opened(tmp_path / "c") as db:
        db.add([f"key {number}" for number in range(600)], vectors[:, 0] * 3.0, vectors=vectors)
        assert db.fit(seed=1).kept
        learned = db.lookup(vectors[:5] + 0.1)
    repair(tmp_path / "c", tmp_path / "all")
    with opened(tmp_path / "all") as db:
        np.testing.assert_allclose(db.lookup(vectors[:5] + 0.1).value, learned.value, atol=1e-5)
    shutil.rmtree(tmp_path / "c" / "shard-001")
    repair(tmp_path / "c", tmp_path / "some")
    with opened(tmp_path / "some") as db:
        assert db.info().projection is None
        assert len(db.lookup(vectors[:5])) == 5


@pytest.mark.parametrize(("learn", "gap"), [("tune", False), ("tune", True), ("fit", True)])
def test_a_repaired_cluster_knows_what_was_learned_from_and_replaced(tmp_path: Path, learn: str, gap: bool) -> None:
    """Where numbers change in one shard, items without keys calibrate nothing from there on in any of them."""
    vectors = np.random.default_rng(0).standard_normal((600, 8)).astype(np.float32)
    create(tmp_path / "c", 3, value="number", compatibility="gaussian")

    def calibrating(view: Any) -> set[str]:
        return set(view.snapshot.names(np.flatnonzero(held_out(view, *_left_out(view)))))

    with opened(tmp_path / "c") as db:
        for keys in (None, [f"key {number}" for number in range(600)]):
            db.add(keys, vectors[:, 0] * 3.0, vectors=vectors)
        getattr(db, learn)()
        db.guard(0.9)
        before = calibrating(db._view())
        db.delete([f"#{100 * MOST + 2}"] if gap else [])
        db.set_values([f"key {number}" for number in range(100)], [0.0] * 100)
    repair(tmp_path / "c", tmp_path / "new")
    with opened(tmp_path / "new") as db:
        assert db.check().notes == []
        assert db.lookup(vectors[0]).known is not None
        last = 99 * MOST + 2 if gap else min(len(shard.view().snapshot) * MOST for shard in db._store.shards)
        same = {name for name in before if not name.startswith("#") or int(name[1:]) <= last}
        assert calibrating(db._view()) == same
        assert (same == before) is not gap
        db.set_values([f"key {number}" for number in range(100, 120)], [0.0] * 20)
        assert db.lookup(vectors[0]).known is None
