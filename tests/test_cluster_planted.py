"""Bugs that are planted in clusters, each of which is found: a checker that never failed is no checker."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import spanning
from softkv.asking.indexed import CHECKED
from softkv.asking.spanning import Spanning
from softkv.database.changes import require_values
from softkv.doors.cluster import best, growing, handle, manifest, merging, missing, places, scanning, store
from softkv.doors.cluster.growing import grow
from softkv.doors.cluster.handle import Cluster, create
from softkv.doors.cluster.merging import Sides
from softkv.doors.cluster.whole import WholeSnapshot, WholeView
from softkv.errors import BatchMismatch, CommitUncertain, DuplicateKey, NotAStore, PartlyAdded, StorageFull
from softkv.index.verdict import Verdict
from softkv.storage.catalog import batches
from softkv.storage.protocol import writer

from .clusters import clustered, opened, require_alike
from .databases import filled, measured_always, vectors_of
from .test_cluster_growing import contents, directories, named
from .test_cluster_merging import test_measured_errors_hold_as_often_as_those_of_the_shards as measured_errors
from .test_cluster_merging import test_other_errors_hold_however_the_shards_are_off as other_errors
from .test_cluster_missing import test_what_is_stated_of_the_missing_holds_as_often_as_it_says as missing_errors
from .test_cluster_together import is_rehearsed
from .test_cluster_writes import Failing
from .test_measured import keys_of, values_of

QUERIES = vectors_of(3, seed=5)
Finder = Callable[[Path], None]
Patch = pytest.MonkeyPatch


def answers(path: Path) -> None:
    """Answers are those of one store."""
    for kind in ("number", "label"):
        with clustered(path / f"c {kind}", kind, 60) as db, filled(path / f"s {kind}", kind, 60) as one:
            for options in ({"temperature": 0.5}, {"k": 4, "temperature": 0.5}, {"where": {"n": {"$lt": 9}}}):
                require_alike(db.lookup(QUERIES, **options), one.lookup(QUERIES, **options))


def changes(path: Path) -> None:
    """Changes are made once, and as a whole or not at all as far as that can be."""
    keys, values, vectors = [f"new {n}" for n in range(12)], np.arange(12.0), vectors_of(12, seed=4)
    with clustered(path / "c", "number", shards=4) as db:
        shards = db._store.shards = tuple(Failing(shard) for shard in db._store.shards)
        last = max(db, key=db._store.manifest.shard_of)  # so that other shards are told of the batch before
        with pytest.raises(DuplicateKey):
            db.add([*keys[1:], last], values, vectors=vectors)
        assert len(db) == 40
        shards[0].after = CommitUncertain("gone")
        with pytest.raises(PartlyAdded) as partly:
            db.add(keys, values, vectors=vectors, batch="one")
        assert partly.value.unknown == (shards[0].path,), "what is unknown is not told"
        shards[0].after = None
        for key in "abcdefgh":
            with pytest.raises(BatchMismatch):
                db.add(key, 1.0, vectors=vectors[0], batch="one")
        assert db.add(keys, values, vectors=vectors, batch="one").count == 12
        assert db.delete(where={"n": 7}, batch="two") == 1
        db.add([f"late {n}" for n in range(12)], values, vectors=vectors, payloads=[{"n": 7}] * 12)
        assert db.delete(where={"n": 7}, batch="two") == 1, "a batch is carried out again"
        assert len(db) == 40 + 12 - 1 + 12
        shards[3].before = StorageFull("full")
        given: dict[str, Any] = {"expected": list(range(12)), "batch": "three"}
        with pytest.raises(PartlyAdded):
            db.set_values(keys, values + 1, **given)
        shards[3].before = None
        db.set_values(keys, values + 1, **given)
        assert db.get_many(keys) == list(range(1, 13))


def buckets(path: Path) -> None:
    """Keys have the buckets that they have in every process."""
    assert manifest.bucket_of("item 0") == 176, "another bucket"
    with clustered(path / "c", "number") as db:
        assert db.check().ok


def errors(_path: Path) -> None:
    """Errors hold as often as they say."""
    other_errors("calibrated")
    measured_errors(16, 0.1, 0.05)


def estimates(_path: Path) -> None:
    """Those of the missing as well."""
    missing_errors(3, 0.02)


def divisions(path: Path) -> None:
    """Each item of a cluster that is given more shards is there once, and what was done is not done again."""
    vectors, was = vectors_of(40, seed=4), path / "c"
    with clustered(was, "number", 60, shards=2) as db:
        told = db.add(values=np.arange(40.0), vectors=vectors, batch="one")
        had = contents(db)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", lambda *_given: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space left")))
        with pytest.raises(StorageFull):
            grow(was, 5)
    with opened(was, mode="r") as reader, reader.snapshot() as kept:
        assert contents(reader) == had, "items are lost"
        grow(was, 5)
        assert named(was) | {"shard-000", "shard-001"} <= directories(was), "what is read is gone"
        assert directories(was) <= named(was) | {"shard-000", "shard-001"}, "what was begun is there"
        assert len(kept) == 100, "a snapshot sees others"
        with opened(was) as db:
            assert contents(db) == had, "items are not those of before"
            assert contents(reader) == had, "the reader sees others"
            assert all(key in db and db[key] == reader[key] for key in db), "items are not found"
            assert db.check().ok, "check is not content"
            assert db.add(values=np.arange(40.0), vectors=vectors, batch="one") == told, "told otherwise"
            db.add("late", 1.0, vectors=vectors_of(1)[0])
            assert len(db) == len(reader) == 101, "the reader sees others"
            assert len({view.snapshot.secret for view in db._view().filled}) == 5, "shards draw alike"
    opened(was).close()
    assert directories(was) == named(was), "what was begun is there"


def together(path: Path) -> None:
    """Lists side by side say what those of each shard say, and what all rehearsed counts while it is about them."""
    keys, was = keys_of(1, 3000), path / "t"
    with pytest.MonkeyPatch.context() as patch:
        measured_always(patch)
        create(was, 3, value="label", compatibility="cosine", temperature=0.05)
        with opened(was) as db:
            db.add([str(n) for n in range(3000)], values_of("label", keys), vectors=keys)
            db.build_index(temperatures=(0.02, 0.1))
            assert is_rehearsed(db), "nothing was rehearsed"
            index, whole, first = db._view().index, db._view().snapshot, 0
            for place, view in enumerate(whole.views):
                offset, lists = whole.offsets[place], len(view.index.made_of)
                there = np.arange(view.index.rows)
                owners = np.searchsorted(view.index.offsets, there, side="right") - 1 + first
                assert np.array_equal(index.joined[offset + there], owners), "rows are in other lists"
                first += lists
            shares = np.bincount(whole.values(np.arange(whole.rows)))
            assert np.allclose(index.lists.counts @ index.lists.values, shares), "labels have other shares"
            one = db._store.shards[1]._db
            checked = Verdict(one._view().index_as_written.commit, 0, 1000, 0.95, (0.05,), (200,), (0,), (0,))
            one._store.put_derived(CHECKED, checked.encoded())
            assert "no longer holds" in str(db.lookup(keys[:1]).reason), "what a shard has withdrawn is believed"
            db.build_index(temperatures=(0.02, 0.1))
            assert is_rehearsed(db), "what was withdrawn was not rehearsed again"
            one.build_index(temperatures=(0.02, 0.1), whole=True, lists=20)
            assert not is_rehearsed(db), "what was rehearsed of other lists is believed"
            db.build_index(temperatures=(0.02, 0.1))
            db.delete([str(n) for n in range(400)])
            assert not is_rehearsed(db), "what was rehearsed of other items is believed"


def _codes_of_the_first_shard(patch: Patch) -> None:
    def values(sides: Sides) -> Any:
        parts = [np.asarray(one.value, np.float64).reshape(len(one), -1) for one in sides.parts]
        width = len(sides.labels or ()) or parts[0].shape[1]
        return np.stack([np.pad(one, ((0, 0), (0, width - one.shape[1]))) for one in parts])

    patch.setattr(Sides, "values", property(values))


def _codes_are_scanned_as_those_of_all(patch: Patch) -> None:
    patch.setattr(WholeSnapshot, "orders", property(lambda whole: [None] * len(whole.views)))


def _the_last_shard_is_not_scanned(patch: Patch) -> None:
    along = scanning.lookup_along
    patch.setattr(scanning, "lookup_along", lambda queries, some, **given: along(queries, some[:-1], **given))


def _rows_are_those_of_their_shards(patch: Patch) -> None:
    stretch = scanning._stretch
    patch.setattr(scanning, "_stretch", lambda *given: replace(stretch(*given), first=0))


def _without_what_is_between_shards(patch: Patch) -> None:
    patch.setattr(Sides, "squares", property(lambda sides: np.stack([one.spread for one in sides.parts]) ** 2))


def _best_by_their_shares_of_their_shards(patch: Patch) -> None:
    def heaviest(parts: Any, show: int) -> Any:
        return np.argsort(-np.concatenate([one.weights for one in parts], 1), axis=1)[:, :show]

    patch.setattr(merging, "_heaviest", heaviest)


def _a_shard_is_taken_for_all(patch: Patch) -> None:
    merged = Sides.merged
    patch.setattr(Sides, "merged", lambda sides, show: merged(replace(sides, parts=sides.parts[:-1]), show))


def _masses_are_believed(patch: Patch) -> None:
    patch.setattr(Sides, "moved", property(lambda sides: 0.0 * sides.shares))


def _all_errors_are_thought_independent(patch: Patch) -> None:
    patch.setattr(merging, "DRAWN", merging.KINDS.index("calibrated"))


def _all_shards_count_as_known(patch: Patch) -> None:
    patch.setattr(missing, "quantile", lambda columns, confidence, _degrees: 4.6 * columns * confidence / 0.95)


def _other_content_is_written(patch: Patch) -> None:
    patch.setattr(store.ShardedStore, "_recorded", lambda *_given: {})


def _conflicts_are_left_to_the_shards(patch: Patch) -> None:
    patch.setattr(store, "refuse_duplicates", lambda *_given: None)


def _only_parts_are_remembered(patch: Patch) -> None:
    patch.setattr(store, "_is_everywhere", lambda _stamp: False)


def _an_uncertain_shard_counts_as_done(patch: Patch) -> None:
    patch.setattr(store, "CommitUncertain", KeyError)


def _values_are_compared_again(patch: Patch) -> None:
    patch.setattr(Cluster, "_require_values", lambda _db, _named, items, expected: require_values(items, expected))


def _keys_are_hashed_anew(patch: Patch) -> None:
    patch.setattr(manifest, "bucket_of", lambda key: hash(key) & 255)


def _the_next_best_is_forgotten(patch: Patch) -> None:
    blended = best._Best.of
    patch.setattr(best._Best, "of", lambda every, logits, _k, *given: blended(every, logits, 1, *given))


def _both_parts_keep_all_items(patch: Patch) -> None:
    patch.setattr(growing, "_leave_out", lambda *_given: None)


def _items_move_by_another_hash(patch: Patch) -> None:
    patch.setattr(growing, "bucket_of", lambda name: manifest.bucket_of(name + "?"))


def _shards_are_removed_before_others_are_named(patch: Patch) -> None:
    write = manifest.Manifest.write

    def early(then: manifest.Manifest, directory: str) -> None:
        with suppress(NotAStore):  # of one that is made there is none before
            for gone in set(manifest.Manifest.read(directory).shards) - set(then.shards):
                shutil.rmtree(os.path.join(directory, gone.path))
        write(then, directory)

    patch.setattr(manifest.Manifest, "write", early)


def _what_is_read_is_removed(patch: Patch) -> None:
    removed = places._removed
    patch.setattr(places, "_removed", lambda path, _read: removed(path, True))


def _what_was_begun_stays(patch: Patch) -> None:
    patch.setattr(growing, "remove_unnamed", lambda *_given: [])
    patch.setattr(handle, "remove_unnamed", lambda *_given: [])


def _both_parts_count_a_batch(patch: Patch) -> None:
    patch.setattr(batches, "count_nothing", lambda _connection: None)


def _a_part_forgets_batches(patch: Patch) -> None:
    patch.setattr(batches, "count_nothing", lambda connection: connection.run("DELETE FROM batches"))


def _both_parts_draw_alike(patch: Patch) -> None:
    patch.setattr(writer, "make_secret", lambda _connection: None)


def _readers_do_not_follow(patch: Patch) -> None:
    patch.setattr(store.ShardedStore, "_follow", lambda _store: None)


def _labels_of_lists_have_the_codes_of_their_shard(patch: Patch) -> None:
    def as_they_are(parts: Any, codes: Any, labels: int) -> Any:
        return abreast(parts, [None if one is None else np.arange(len(one)) for one in codes], labels)

    abreast = spanning.abreast
    patch.setattr(spanning, "abreast", as_they_are)


def _rows_of_lists_are_those_of_the_first_shard(patch: Patch) -> None:
    parts = WholeView.parts.func
    patch.setattr(WholeView, "parts", property(lambda view: [one._replace(first=0) for one in parts(view)]))


def _what_was_rehearsed_is_believed_for_ever(patch: Patch) -> None:
    patch.setattr(spanning, "CHANGED", np.inf)


def _what_was_rehearsed_is_believed_of_any_lists(patch: Patch) -> None:
    patch.setattr(spanning, "_marks", lambda _indexes: [])


def _what_one_shard_withdraws_is_believed_of_all(patch: Patch) -> None:
    patch.setattr(Spanning, "verdict", None)


PLANTED: dict[Callable[[Patch], None], tuple[Finder, str]] = {
    _codes_of_the_first_shard: (answers, "values are .* apart"),
    _codes_are_scanned_as_those_of_all: (answers, "values are .* apart"),
    _the_last_shard_is_not_scanned: (answers, "values are .* apart"),
    _rows_are_those_of_their_shards: (answers, "other items contribute"),
    _without_what_is_between_shards: (answers, "spread differs"),
    _best_by_their_shares_of_their_shards: (answers, "values are .* apart"),
    _a_shard_is_taken_for_all: (answers, "values are .* apart"),
    _the_next_best_is_forgotten: (answers, "values are .* apart"),
    _labels_of_lists_have_the_codes_of_their_shard: (together, "labels have other shares"),
    _rows_of_lists_are_those_of_the_first_shard: (together, "rows are in other lists"),
    _what_was_rehearsed_is_believed_for_ever: (together, "rehearsed of other items is believed"),
    _what_was_rehearsed_is_believed_of_any_lists: (together, "rehearsed of other lists is believed"),
    _what_one_shard_withdraws_is_believed_of_all: (together, "a shard has withdrawn is believed"),
    _masses_are_believed: (errors, "values are off by more than is stated"),
    _all_errors_are_thought_independent: (errors, "values are off by more than is stated"),
    _all_shards_count_as_known: (estimates, "values are off by more than is stated"),
    _other_content_is_written: (changes, "is there already"),
    _conflicts_are_left_to_the_shards: (changes, "of 4 shards have done their part"),
    _only_parts_are_remembered: (changes, "a batch is carried out again"),
    _an_uncertain_shard_counts_as_done: (changes, "what is unknown is not told"),
    _values_are_compared_again: (changes, "is another by now"),
    _keys_are_hashed_anew: (buckets, "another bucket"),
    _both_parts_keep_all_items: (divisions, "an item is there twice"),
    _items_move_by_another_hash: (divisions, "items are not found"),
    _shards_are_removed_before_others_are_named: (divisions, "is not at"),
    _what_is_read_is_removed: (divisions, "what is read is gone"),
    _what_was_begun_stays: (divisions, "is there already, and nothing is restored over it"),
    _both_parts_count_a_batch: (divisions, "told otherwise"),
    _a_part_forgets_batches: (divisions, "told otherwise"),
    _both_parts_draw_alike: (divisions, "shards draw alike"),
    _readers_do_not_follow: (divisions, "no item has the key"),
}


@pytest.mark.ci
@pytest.mark.parametrize("find", [answers, together, changes, buckets, errors, estimates, divisions])
def test_nothing_is_found_where_nothing_is_planted(find: Finder, tmp_path: Path) -> None:
    """No finder finds anything in sound code."""
    find(tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_").replace("_", " "))
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], tmp_path: Path, monkeypatch: Patch) -> None:
    """The finder of its kind finds it, and for what is wrong with it."""
    find, words = PLANTED[plant]
    plant(monkeypatch)
    with pytest.raises((AssertionError, softkv.errors.SoftKVError, pytest.fail.Exception), match=words):
        find(tmp_path)
