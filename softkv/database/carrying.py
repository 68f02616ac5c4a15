"""Carry what a store has learned into another store: by an export and its import, and by a repair.

The metric is carried as the bytes of its file, without the numbers of the keys: these are computed again from the keys,
with the same result. If it cannot be carried, a warning says so before a file is written, and the settings that are
carried do not name it, so that the new store can be asked.

Does not learn (training.py), and knows no format of a file (softkv/files).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from softkv.asking.learned import Learned, read, read_file
from softkv.asking.profile import Profile
from softkv.asking.view import View
from softkv.database.guarding import rebased
from softkv.errors import BadRecord, FormatTooNew, IndexDamaged, StorageFailed, StoreDamaged, StoreExists
from softkv.guard.guard import Guard
from softkv.logs import hint
from softkv.progress import Progress
from softkv.storage import Repaired, Store
from softkv.storage import repair as repair_items
from softkv.storage.protocol.index_files import IndexFile
from softkv.storage.store import AnyPath

if TYPE_CHECKING:  # formats are loaded by those who export and import
    from softkv.files.exports.header import Header


EMPTY = "there are no items that it could be about."


class LearnedNotCarried(UserWarning):
    """What a store has learned (`fit`) does not come along."""


def export_to(view: View, path: AnyPath, *, force: bool, progress: Progress | None) -> int:
    """Write all of a store to one file, with its temperature and what it has learned; returns how many items."""
    from softkv.files.exports import export

    settings, files = _carried(view, os.fsdecode(path))
    return export(view.snapshot, path, force=force, settings=settings, files=files, progress=progress)


def export_into(view: View, file: BinaryIO, suffix: str, *, progress: Progress) -> None:
    """Write all of a store, as `export_to` does, to a file that is open."""
    from softkv.files.exports.formats import WRITTEN
    from softkv.files.exports.header import Header

    WRITTEN[suffix](file, view.snapshot, Header.of(view.snapshot, *_carried(view, suffix)), progress)


def _carried(view: View, path: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The settings that go into a file of this name, and the bytes of the metric."""
    from softkv.files.exports.formats import TABLE

    snapshot, profile, files = view.snapshot, view.profile, dict[str, bytes]()
    if len(snapshot) and profile.compatibility is not None:
        # A temperature by rule is found on a sample of rows, which in another store would be other rows.
        profile = replace(profile, temperature=view.temperature(profile.compatibility))
    known = not _renumbers(view)  # else it would be unknown which items took no part in learning
    if profile.temperature is not None:
        held, last = profile.temperature.held, profile.temperature.last
        # An import counts on from its last item, so it would give numbers again that were used before.
        kept = replace(profile.temperature, held=held if known else None, last=last and min(last, len(snapshot)))
        profile = replace(profile, temperature=kept)
    settings, name = rebased(profile.settings(), snapshot), profile.projection
    if name is not None and path.lower().endswith(TABLE):
        _warn(f"{snapshot.path} is exported without what it has learned: CSV holds items alone.")
    elif name is not None:
        try:
            files[name] = _packed(view, known=known)
        except IndexDamaged as error:
            _warn(f"{snapshot.path} is exported without what it has learned: {error}")
            settings = _unlearned(settings)
    return settings, files


def _renumbers(view: View) -> bool:
    """Whether an import would give items without keys other numbers."""
    names = enumerate(view.snapshot.names(view.order), 1) if len(view.snapshot) else ()
    return any(name.startswith("#") and name != f"#{place}" for place, name in names)


def _packed(view: View, *, known: bool) -> bytes:
    """The bytes of the metric, or an error that says why it cannot be carried."""
    from softkv.files.exports.header import MOST_CARRIED

    if not len(view.snapshot) or view.learned is None:
        raise IndexDamaged(EMPTY)
    learned = view.learned.without_numbers()
    counted = {"last": min(learned.facts["last"], len(view.snapshot))} if known else {"held": 0.0}
    facts = {**learned.facts, **counted}
    packed = b"".join(replace(learned, facts=facts).encoded())
    if len(packed) > MOST_CARRIED:
        most = f"a file takes {MOST_CARRIED:,}"
        raise IndexDamaged(f"it has {len(packed):,} bytes, and {most}. Fit with a lower rank.")
    return packed


def import_from(file: AnyPath, path: AnyPath, *, progress: Progress | None = None) -> int:
    """Make a new store of what `export` wrote; returns how many items it has. A failure leaves no store behind.

    Args:
        file: What was written: .jsonl, .parquet or .npz.
        path: The directory of the new store.
        progress: Called with (items so far, all).
    """
    from softkv.files.exports import load

    arrived: list[tuple[dict[str, Any], Learned]] = []

    def accept(head: "Header") -> "Header":
        learned = _learned_in(head, os.fspath(file))
        if learned is not None:
            arrived.append((head.settings, learned))
        return replace(head, settings=_unlearned(head.settings), files={})

    with Store.open(path, "c") as store:
        if len(store) or store.commit:
            raise StoreExists(f"{store.path} is a store already. Import into a new one.")
        try:
            count = load(file, store, accept=accept, progress=progress)
            for settings, learned in arrived:
                with _naming(os.fspath(file)):
                    _settle(store, settings, learned)
            return count
        except BaseException:
            store.close()
            Store.erase(store.path)
            raise


def _learned_in(head: "Header", file: str) -> Learned | None:
    """The metric in an export; refused if it cannot belong to the items of the export."""
    try:
        name = Profile.of(head.settings).projection
    except StoreDamaged as error:
        raise BadRecord(f"{file}: the settings in its header are none of a store ({error.__cause__})") from error
    unknown = sorted(head.files.keys() - {name})
    if unknown:
        raise BadRecord(f"{file}: its header has a file {unknown[0]!r}, which its settings do not name")
    if name is None:
        return None
    if name not in head.files or not head.items or head.layout is None:
        _warn(
            f"{file} does not hold what its store had learned, so the new one compares as if nothing had been learned. "
            "Export it again, or learn anew (`softkv fit`)."
        )
        return None
    with _naming(file):
        return Learned.decoded(memoryview(head.files[name]), rows=0, key_width=head.layout.key_width)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Within the block, errors of a metric become errors about the file it came in."""
    try:
        yield
    except (IndexDamaged, FormatTooNew) as error:
        raise BadRecord(f"{file}: {error}") from error


def repair(path: AnyPath, new: AnyPath, *, shard: bool = False) -> Repaired:
    """Write the good items of the store at `path` to a new store, with what it has learned.

    What a `shard` was told of its cluster comes along as it was: whether it holds, all shards decide (`settle_shard`).
    """

    def carry(settings: dict[str, Any], index: Callable[[str], IndexFile | None], done: Repaired, store: Store) -> None:
        settings, name = settings if shard else moved(settings, done), settings.get("projection")
        if not isinstance(name, str):
            return store.configure(settings)
        try:
            if store.layout is None:
                raise IndexDamaged(EMPTY)
            try:
                learned = read_file(index(name), os.fsdecode(path), store.layout.key_width)
            except StorageFailed as error:  # the old file cannot be read, but all that is needed here is what is in it
                raise IndexDamaged(str(error)) from error
            facts = learned.facts if shard else _counted(learned.facts, done)
            _settle(store, settings, replace(learned.without_numbers(), facts=facts))
        except IndexDamaged as error:
            _warn(f"{os.fsdecode(new)} was made without what the old store has learned: {error}")
            store.configure(_unlearned(settings))

    return repair_items(path, new, carry=carry)


def moved(settings: dict[str, Any], done: Repaired) -> dict[str, Any]:
    """The settings of a store, or of a cluster, for the one to which its items were saved."""
    found, items = dict(settings), done.saved + done.lost
    with suppress(AttributeError, KeyError, TypeError, ValueError):  # what cannot be read is named by whoever asks
        if "temperature" in found:
            found["temperature"] = _counted(found["temperature"], done)
        if "guard" in found:
            changed = Guard.from_json(found["guard"]).changed(done.rows, items)
            found["guard"] = {**found["guard"], "base": [items, items, changed]}
    return found


def _counted(told: Mapping[str, Any], done: Repaired) -> dict[str, Any]:
    """What is told of learning; items without keys that may have other numbers count as if they had come later."""
    if not told.get("held") or not told.get("last"):
        return dict(told)
    return {**told, "last": min(told["last"], done.same_numbers)}


def settle_shard(path: AnyPath, settings: dict[str, Any], done: Repaired) -> None:
    """Give a repaired shard the settings of its repaired cluster, and limit what was learned to the same items."""
    with Store.open(path, "w") as store, store.snapshot() as snapshot:
        if snapshot.layout is not None and "projection" in settings:
            learned = read(snapshot, settings["projection"])
            facts = _counted(learned.facts, done)
            if facts != learned.facts:
                store.put_index(settings["projection"], replace(learned, facts=facts).encoded())
        store.configure(settings)


def _settle(store: Store, settings: dict[str, Any], learned: Learned) -> None:
    """Give a store that has all its items the learned metric and these settings."""
    with store.snapshot() as snapshot:
        whole = learned.with_numbers(snapshot)
    if not np.isfinite(whole.numbers).all():
        raise IndexDamaged("the learned projection leads beyond the range of numbers for these keys.")
    # The settings name the file once it is there, so no reader is ever without it.
    store.put_index(settings["projection"], whole.encoded())
    store.configure(settings)


def _unlearned(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in settings.items() if name != "projection"}


def _warn(message: str) -> None:
    hint(message, LearnedNotCarried)
