"""One commit of a store, opened to be copied: its catalog copied first, then all files that it names, open and pinned.

While it is opened a writer may replace and remove files; then the next commit is tried. Writes nothing but the copy of
the catalog, where it is told to.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from softkv.errors import IndexDamaged, StoreDamaged, StoreLocked, StoreReplaced
from softkv.storage.catalog.catalog import Catalog, Head, IndexRecord, Standing
from softkv.storage.catalog.connection import Connection
from softkv.storage.disk import files, locks
from softkv.storage.disk.place import in_one_place
from softkv.storage.layout import generation_name
from softkv.storage.protocol import opening
from softkv.storage.protocol.committed import load
from softkv.storage.protocol.generation import Generation
from softkv.storage.protocol.index_files import IndexFile

_ATTEMPTS = 100


@dataclass(slots=True)
class Original:
    """One commit of a store: its catalog as it was copied, and the open files that it names."""

    catalog: Catalog
    head: Head
    standings: dict[int, Standing] = field(default_factory=dict)
    generations: dict[int, Generation] = field(default_factory=dict)
    indexes: list[tuple[IndexRecord, IndexFile]] = field(default_factory=list)
    lost: dict[str, IndexRecord | None] = field(default_factory=dict)  # index files that are missing or damaged

    @property
    def current(self) -> Standing | None:
        """What is committed in the current generation; None before the first item."""
        return self.standings.get(self.head.generation)


@contextmanager
def original_of(source: str, staged: str, known: Head | None) -> Iterator[Original]:
    """The newest commit of a store, its catalog copied to `staged`, which is removed in the end.

    All its rows are there; `StoreReplaced` when it has not reached the `known` commit, or is another store.
    """
    catalog = in_one_place(source, lambda: opening.connect(source), lambda found: found.connection.close())
    try:
        for _ in range(_ATTEMPTS):
            with ExitStack() as held:
                if _stage(catalog, source, staged, held):
                    original = _opened(source, staged, held)
                    if not _was_overtaken(catalog, original):
                        _require_rows(original, source)
                        _require_reached(original.head, known, source)
                        yield original
                        return
            # Else a writer has meanwhile replaced what was copied or named, and it is tried again.
        raise StoreLocked(f"{source} changes too fast to be copied whole. Try again.", None)
    finally:
        catalog.connection.close()
        _remove(staged)


def _stage(catalog: Catalog, source: str, staged: str, held: ExitStack) -> bool:
    """Copy the catalog as of one commit whose generation is pinned; False when that was replaced meanwhile."""
    committed = load(catalog, source, None, write=False)
    if committed.generation:
        held.callback(committed.generation.release)
    _remove(staged)
    with catalog.connection.reading():
        if catalog.head().generation != committed.head.generation:
            return False
        files.require_room(os.path.dirname(staged), os.path.getsize(catalog.connection.path), f"copying {source}")
        catalog.connection.copy_to(staged)
    return True


def _opened(source: str, staged: str, held: ExitStack) -> Original:
    """The files that the copied catalog names, open until `held` is closed."""
    catalog = Catalog(Connection(staged, write=False, frozen=True))
    held.callback(catalog.connection.close)
    catalog.identify()
    original = Original(catalog, catalog.head())
    for number in filter(None, (original.head.generation, catalog.unfinished(original.head))):
        standing = original.standings[number] = catalog.standing(number)
        generation = generation_at(source, original.head.store, standing, catalog)
        if generation is not None:
            held.callback(generation.release)
            generation.require_length(standing.rows)
            generation.grow(standing)
            original.generations[number] = generation
    for name, record in records(catalog, original.head.generation):
        if record is not None and (file := IndexFile(source, record)).is_there:
            held.callback(file.close)
            original.indexes.append((record, file))
        else:
            original.lost[name] = record
    return original


def _require_rows(original: Original, source: str) -> None:
    lost = sorted(original.standings.keys() - original.generations.keys())
    if lost:
        raise StoreDamaged(f"{source}: {generation_name(lost[0])} is missing. Run `softkv check`.")


def _require_reached(head: Head, known: Head | None, source: str) -> None:
    if known is not None and (head.store != known.store or head.number < known.number):
        raise StoreReplaced(
            f"another store, or an older copy, lies at {source}, where this handle knew commit {known.number}. Open it "
            "again."
        )


def _was_overtaken(catalog: Catalog, original: Original) -> bool:
    """Whether something is missing only because a writer has replaced or dropped it since."""
    gone = original.standings.keys() - original.generations.keys()
    if not gone <= set(catalog.generations()):
        return True
    named = dict(records(catalog, original.head.generation)) if original.lost else {}
    return any(record is not None and named.get(name) != record for name, record in original.lost.items())


def _remove(staged: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(staged)


def generation_at(
    directory: str, store: str, standing: Standing, catalog: Catalog, *, write: bool = False
) -> Generation | None:
    """The files of a generation, pinned; None when they are not there."""
    pin = locks.pin_shared(os.path.join(directory, generation_name(standing.generation)))
    if pin is None:
        return None
    try:
        return Generation.open(store, directory, standing, catalog, pin, write=write)
    except StoreDamaged:
        if files.is_directory(os.path.join(directory, generation_name(standing.generation))):
            raise
        return None


def records(catalog: Catalog, generation: int) -> Iterator[tuple[str, IndexRecord | None]]:
    """The index files of a generation that a catalog names, by their names; None where its record is damaged."""
    for name in catalog.index_names(generation):
        try:
            yield name, catalog.index(generation, name)
        except IndexDamaged:
            yield name, None
