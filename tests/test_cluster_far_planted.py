"""Bugs that are planted in how shards of other processes are asked, each of which is found by a test of that."""

import itertools
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.answer import Described
from softkv.doors.cluster import far, hosting, missing
from softkv.doors.cluster.far import FarShard, FarStore, FarView
from softkv.doors.cluster.hosting import HostedShard
from softkv.errors import WriterFenced
from softkv.storage.catalog.batches import Stamp

from . import test_cluster_far as found_by
from .farther import far_clustered

Patch = pytest.MonkeyPatch
Finder = Callable[[Path, Patch], None]


def _over_numbers(test: Callable[..., None], *more: str) -> Finder:
    """A test of a cluster of numbers, with what else it takes."""

    def find(path: Path, patch: Patch) -> None:
        given = {"tmp_path": path, "monkeypatch": patch}
        with far_clustered(path / "c", "number") as db:
            test(db, **{name: given[name] for name in more})

    find.__name__ = test.__name__
    return find


LOST = _over_numbers(found_by.test_an_answer_that_is_lost_is_asked_for_again)
LATE = _over_numbers(found_by.test_what_comes_late_is_done_once)
DIES = _over_numbers(found_by.test_a_shard_whose_process_dies_answers_again)
ROUTERS = _over_numbers(found_by.test_two_routers_share_the_shards)
VERSIONS = _over_numbers(found_by.test_messages_of_other_versions_are_refused, "monkeypatch")
DISK = _over_numbers(found_by.test_a_disk_that_is_gone_is_not_begun_anew, "tmp_path")
TWO = _over_numbers(found_by.test_of_two_incarnations_one_acknowledges, "monkeypatch")
SEEN = _over_numbers(found_by.test_one_round_of_messages_answers_where_nothing_has_changed)
LET_GO = _over_numbers(found_by.test_snapshots_are_let_go_when_nobody_asks, "monkeypatch")


def bounds(path: Path, _patch: Patch) -> None:
    """Errors of few shards hold."""
    found_by.test_of_few_shards_the_error_is_told_by_what_the_others_held("number", "dot", path)


def surface(path: Path, _patch: Patch) -> None:
    """Answers are those of one store."""
    found_by.test_they_answer_as_one_store_does("number", path)


def _each_try_is_another_batch(patch: Patch) -> None:
    asked, names = FarShard._asked, itertools.count()

    def renamed(shard: FarShard, message: Any, seconds: float, *, writes: bool) -> Any:
        class Renaming:
            def send(self, message: Any, *given: Any, **options: Any) -> Any:
                anew = (replace(one, id=f"{next(names)}") if isinstance(one, Stamp) else one for one in message.given)
                return sender.send(replace(message, given=tuple(anew)), *given, **options)

        sender, shard._sender = shard._sender, Renaming()  # type: ignore[assignment]
        try:
            return asked(shard, message, seconds, writes=writes)
        finally:
            shard._sender = sender

    patch.setattr(FarShard, "_asked", renamed)


def _nothing_is_sent_again(patch: Patch) -> None:
    patch.setattr(far, "PAUSE", 1e9)


def _old_manifests_are_believed(patch: Patch) -> None:
    understood = HostedShard._require_understood

    def require(host: HostedShard, message: Any) -> None:
        host._epoch = 0
        understood(host, message)

    patch.setattr(HostedShard, "_require_understood", require)


def _all_versions_are_understood(patch: Patch) -> None:
    patch.setattr(HostedShard, "_require_understood", lambda *_given: None)


def _other_manifests_are_not_read(patch: Patch) -> None:
    patch.setattr(FarStore, "alone", True)


def _what_is_missing_is_made(patch: Patch) -> None:
    def made(path: str, mode: str) -> Any:
        if not os.path.exists(path):
            softkv.open(path, "c").close()
        return softkv.open(path, mode)

    patch.setattr(hosting, "open_here", made)


def _any_store_will_do(patch: Patch) -> None:
    opened = HostedShard._opened

    def believing(host: HostedShard, mode: str) -> Any:
        with softkv.open(host._path, "r") as db:
            host._store = db._view().snapshot.store
        return opened(host, mode)

    patch.setattr(HostedShard, "_opened", believing)


def _a_writer_that_was_overtaken_opens_again(patch: Patch) -> None:
    write = HostedShard._write

    def stubborn(host: HostedShard, *given: Any) -> Any:
        try:
            return write(host, *given)
        except WriterFenced:
            host._fenced = None
            return write(host, *given)

    patch.setattr(HostedShard, "_write", stubborn)


def _a_later_commit_is_taken_for_a_view(patch: Patch) -> None:
    patch.setattr(HostedShard, "_view_of", lambda host, _name, _work: host._opened("r").view())


def _snapshots_are_held_for_good(patch: Patch) -> None:
    patch.setattr(hosting, "RECENT", 1 << 20)
    patch.setattr(hosting.time, "monotonic", lambda: 0.0)
    patch.setattr(far.FarSnapshot, "close", lambda _snapshot: None)


def _a_view_is_kept_for_good(patch: Patch) -> None:
    told = HostedShard._told

    def stale(host: HostedShard, known: str | None, *, kept: bool) -> Any:
        return None if known else told(host, known, kept=kept)

    patch.setattr(HostedShard, "_told", stale)


def _what_was_last_seen_is_believed(patch: Patch) -> None:
    evidence = FarView.evidence
    patch.setattr(FarView, "evidence", lambda view, *given, **_newest: evidence(view, *given))


def _missing_shards_are_thought_to_hold_little(patch: Patch) -> None:
    patch.setattr(missing, "_highest", lambda question, _one: np.zeros(len(question.queries)))


def _items_of_another_answer_are_named(patch: Patch) -> None:
    patch.setattr(FarView, "describe", lambda _view, rows: [Described("item 0")] * len(rows))


# Of each, by which test it is found, and what that says.
PLANTED: dict[Callable[[Patch], None], tuple[Finder, str]] = {
    _each_try_is_another_batch: (LOST, "each of the keys .* is there already"),
    _nothing_is_sent_again: (LOST, "do not answer: .*the answer is lost"),
    _old_manifests_are_believed: (ROUTERS, "DID NOT RAISE any of .*PartlyAdded"),
    _all_versions_are_understood: (VERSIONS, r"\(True, .* == \(False, .*ormatTooNew"),
    _other_manifests_are_not_read: (ROUTERS, r" == 0\.125"),
    _what_is_missing_is_made: (DISK, "a store was begun anew"),
    _any_store_will_do: (DISK, "DID NOT RAISE .*OutOfReach"),
    _a_writer_that_was_overtaken_opens_again: (TWO, "DID NOT RAISE .*WriterFenced"),
    _a_later_commit_is_taken_for_a_view: (DIES, "DID NOT RAISE .*SnapshotExpired"),
    _snapshots_are_held_for_good: (LET_GO, r"\[\d, \d, \d\] == \[\d, \d, \d\]"),
    _a_view_is_kept_for_good: (LATE, "no item has the key 'new 0'"),
    _what_was_last_seen_is_believed: (SEEN, "effective"),
    _missing_shards_are_thought_to_hold_little: (bounds, r"<= .*error"),
    _items_of_another_answer_are_named: (surface, "other items contribute"),
}


@pytest.mark.ci
@pytest.mark.parametrize(
    "find", list(dict.fromkeys(find for find, _ in PLANTED.values())), ids=lambda find: find.__name__
)
def test_nothing_is_found_where_nothing_is_planted(find: Finder, tmp_path: Path, monkeypatch: Patch) -> None:
    """No finder finds anything in sound code."""
    find(tmp_path, monkeypatch)


@pytest.mark.ci
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_").replace("_", " "))
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], tmp_path: Path, monkeypatch: Patch) -> None:
    """The finder of its kind finds it, and says what is wrong."""
    find, words = PLANTED[plant]
    plant(monkeypatch)
    with pytest.raises((AssertionError, softkv.errors.SoftKVError, pytest.fail.Exception)) as found:
        find(tmp_path, monkeypatch)
    assert re.search(words, str(found.value), re.DOTALL), found.value
