"""Write all live items into a new generation with other key vectors, batch by batch, and switch to it at the end.

The new generation is named in the catalog when it is begun, with no rows. Every batch follows the commit protocol, and
its transaction moves the number of committed rows on: that is the progress, and what a crash leaves is resumed there.
Readers, and the store itself, use the old generation until one transaction switches to the new.

Nothing is kept open between the calls, so a store may be closed in the middle; after an interrupt the catalog is read.

Does not make the vectors, and does not know what the settings mean.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np

from softkv.errors import HandleClosed, InputError, KindError, ShapeError, StoreDamaged, Unfinished
from softkv.ndarrays import AnyArray, Matrix, Rows
from softkv.storage.batch import checked_settings, checked_vectors
from softkv.storage.catalog.begun import ways_on
from softkv.storage.catalog.catalog import Standing
from softkv.storage.catalog.labels import LabelBook
from softkv.storage.catalog.parsing import loaded
from softkv.storage.catalog.roster import Roster
from softkv.storage.catalog.tally import Tally
from softkv.storage.disk import files, locks
from softkv.storage.layout import Layout, generation_name
from softkv.storage.protocol.committed import Committed
from softkv.storage.protocol.generation import Generation, verified
from softkv.storage.protocol.item import Item
from softkv.storage.protocol.snapshot import Snapshot
from softkv.storage.protocol.writer import Writer
from softkv.storage.threads import OwnLock


class Rebuild:
    """A rebuild under way: `waiting` gives items, `write` takes their new vectors, and `finish` makes them current.

    `done` and `total` count items. Of a store that never had any there is nothing to write, and only the settings
    change, with `finish`.

    >>> import tempfile, os
    >>> from softkv.storage import Store
    >>> with Store.open(os.path.join(tempfile.mkdtemp(), "fruit.softkv"), "c") as store:
    ...     added = store.append([[1.0, 0.0], [0.0, 1.0]], [0.5, 2.0], keys=["apple", "pear"])
    ...     rebuild = store.rebuild(key_width=3, settings={"embedder": "wider"})
    ...     while items := rebuild.waiting():
    ...         rebuild.write([[len(item.name), 1.0, 0.0] for item in items])
    ...     rebuild.finish()
    ...     store.get("pear").vector.tolist(), store.get("pear").value, store.settings
    ([4.0, 1.0, 0.0], 2.0, {'embedder': 'wider'})
    """

    def __init__(
        self,
        writer: Writer,
        lock: OwnLock,
        switched: Callable[[], object],
        begun: Standing | None,
        settings: Mapping[str, Any],
    ) -> None:
        self._writer, self._lock, self._switched = writer, lock, switched
        self._begun, self._settings = begun, settings
        self._labels = LabelBook(writer.catalog)
        committed = writer.committed
        self._live: Rows = np.flatnonzero(committed.deaths.live(committed.rows)).astype(np.int64)
        self._asked: Rows = self._live[:0]  # the rows that waiting() returned last; the first is number `done`
        self.done = begun.rows if begun else 0
        self.total = len(self._live)

    def waiting(self, rows: int = 1024) -> Sequence[Item]:
        """The next items to be written, at most this many, as they are in the old generation; at the end, none."""
        if rows < 1:
            raise ShapeError(f"at least 1 item must be asked for, not {rows}")
        with self._lock:
            if self._begun is None:
                return []
            self.done = self._standing(self._begun, self._writer.newest()).rows
            asked, self._asked = self._live[self.done : self.done + rows], self._live[:0]
            with Snapshot(self._writer.catalog, self._writer.committed, self._labels) as old:
                items = old.items(asked)
            self._asked = asked
            return items

    def write(self, vectors: Any, value_vectors: Any = None) -> None:
        """Write key vectors, and for texts value vectors, of the items that `waiting` gave last; all of them or none.

        When this returns, they are on the disk, and a rebuild that is resumed goes on behind them.
        """
        with self._lock:
            if self._begun is None or not len(self._asked):
                raise InputError("no items wait for these vectors: ask `waiting` for the next first")
            keys = checked_vectors(vectors, "key vector", self._begun.layout.key_width, len(self._asked))
            values = self._checked_values(self._begun.layout, value_vectors)
            with self._work() as committed:
                standing = self._standing(self._begun, committed)
                if standing.rows != self.done:
                    raise InputError(f"item {self.done} is written already: ask `waiting` for the next")
                _extend(self._writer, standing, keys, self._kept_values() if values is None else values)
            self.done, self._asked = self.done + len(keys), self._live[:0]

    def finish(self) -> None:
        """Make the new vectors and settings the current ones, in one transaction. The old files go with the readers."""
        with self._lock:
            if self._begun is None:
                self._configure()
                return
            with self._work() as committed:
                standing = self._standing(self._begun, committed)
                if standing.rows != self.total:
                    raise Unfinished(f"{standing.rows} of {self.total} items are written: write the rest, then finish")
                _switch(self._writer, standing)
            self._switched()

    @contextmanager
    def _work(self) -> Iterator[Committed]:
        self._writer.catalog.connection.require_usable()  # else the error would be about the released lock
        with self._writer.work(rebuilding=True):
            # Subtle: not newest(), by which the writer would believe its memory again before the work is done.
            yield self._writer.committed

    def _standing(self, begun: Standing, committed: Committed) -> Standing:
        """What is committed of this rebuild, and not of one that was begun after it."""
        catalog = self._writer.catalog
        if catalog.unfinished(committed.head) == begun.generation:
            found = catalog.standing(begun.generation)
            if (found.layout, found.settings) == (begun.layout, begun.settings):
                return found
        raise HandleClosed("this rebuild is over: it was finished or abandoned. Begin another with `rebuild`.")

    def _checked_values(self, layout: Layout, value_vectors: Any) -> Matrix | None:
        """The new cells of values; None where the old ones stay."""
        if layout.kind.embedded:
            if value_vectors is None:
                raise KindError("texts as values are embedded anew as well: give value_vectors")
            return checked_vectors(value_vectors, "value vector", layout.value_width, len(self._asked))
        if value_vectors is not None:
            raise KindError(f"values of kind {layout.kind.value!r} stay as they are; value_vectors go with texts")
        return None

    def _kept_values(self) -> AnyArray:
        """The cells of the old generation, compared with their checksums."""
        old, standing = self._writer.committed.generation, self._writer.committed.standing
        assert old is not None
        assert standing is not None
        # Not old.values, which compares only once: a bit that flipped since then must not get a new checksum.
        values = verified(old.arenas[1], self._writer.catalog, old.number)
        values.grow(standing.rows, standing.tails[1])
        return values.take(self._asked)

    def _configure(self) -> None:
        if self._writer.catalog.head().generation:
            raise HandleClosed("the store was empty when this rebuild was begun, and is not any more: begin another")
        self._writer.configure(self._settings)


def begin(writer: Writer, *, key_width: int, value_width: int | None, settings: Mapping[str, Any]) -> Standing | None:
    """What is committed of the rebuild to these widths and settings, begun now or before; None for an empty store."""
    text = checked_settings(settings)
    with writer.work(rebuilding=True):
        standing = writer.committed.standing
        if standing is None:
            return None
        layout = _layout(standing.layout, key_width, value_width)
        number = writer.catalog.unfinished(writer.committed.head)
        found = None if number is None else writer.catalog.standing(number)
        if found is not None:
            _require_same(writer, found, layout, text)
        left = standing.tally.count - (found.rows if found else 0)
        needed = sum(shape.row_bytes for shape in layout.arenas) * left
        files.require_room(writer.directory, needed + needed // 8, f"rebuilding {writer.directory}")
        return _resumed(writer, found) if found else _created(writer, standing, layout, text)


def abandon(writer: Writer) -> None:
    """Drop the unfinished rebuild, if there is one: from the catalog first, so that its files are never missed."""
    with writer.work(rebuilding=True):
        number = writer.catalog.unfinished(writer.committed.head)
        if number is not None:
            with writer.commit():
                writer.catalog.drop_unfinished(number)
            with writer.undisturbed():
                files.remove_tree(_directory(writer, number))


def _directory(writer: Writer, number: int) -> str:
    return os.path.join(writer.directory, generation_name(number))


def _layout(old: Layout, key_width: int, value_width: int | None) -> Layout:
    if old.kind.embedded and value_width is None:
        raise ShapeError("texts as values are embedded anew as well: give value_width, the width of their new vectors")
    if not old.kind.embedded and value_width is not None:
        raise KindError(f"values of kind {old.kind.value!r} stay as they are; value_width goes with texts")
    return Layout(index(key_width), old.kind, old.value_width if value_width is None else index(value_width))


def _require_same(writer: Writer, found: Standing, layout: Layout, settings: str) -> None:
    begun = loaded(found.settings, "the settings of the rebuild")
    if found.layout == layout and begun == loaded(settings, "settings"):
        return
    raise Unfinished(
        f"{writer.directory}: another rebuild has begun and is not finished ({found.rows} items are written): "
        f"{_shown(found.layout, found.settings)}. Asked for was {_shown(layout, settings)}. "
        f"Use {ways_on(writer.directory)}."
    )


def _shown(layout: Layout, settings: str) -> str:
    values = f", value width {layout.value_width}" if layout.kind.embedded else ""
    return (
        f"key width {layout.key_width}{values}, settings {settings if len(settings) < 300 else settings[:297] + '...'}"
    )


def _created(writer: Writer, current: Standing, layout: Layout, settings: str) -> Standing:
    """A new generation without rows, durable before the catalog names it."""
    number = max(writer.catalog.generations()) + 1
    tally = Tally.empty(np.zeros(layout.value_width)) if layout.kind.embedded else current.tally
    begun = Standing(number, 0, layout, (0, 0, 0), tally, settings, 0)
    with writer.birth(number, layout) as new:
        with writer.poisoning():
            new.make_durable()
        writer.catalog.put_standing(begun)
    return begun


def _resumed(writer: Writer, found: Standing) -> Standing:
    """An unfinished generation, after checking all that a crash can have left unwritten."""
    try:
        generation = _opened(writer, found)
        try:
            generation.require_length(found.rows)
            generation.grow(found)
            generation.verify_end()
        finally:
            generation.release()
    except StoreDamaged as error:
        raise StoreDamaged(
            f"{error} This is the unfinished rebuild, and the store itself is as it was: abandon the rebuild with "
            f"`softkv reembed --db {writer.directory} --abandon` and begin it again."
        ) from error
    return found


def _opened(writer: Writer, standing: Standing) -> Generation:
    pin = locks.pin_shared(_directory(writer, standing.generation))
    if pin is None:
        raise StoreDamaged(f"{_directory(writer, standing.generation)} is missing.")
    return Generation.open(writer.committed.head.store, writer.directory, standing, writer.catalog, pin, write=True)


def _extend(writer: Writer, standing: Standing, keys: Matrix, values: AnyArray) -> None:
    """Write rows behind the committed ones of the new generation, in the transaction that counts them."""
    generation = _opened(writer, standing)
    try:
        with writer.giving_back(generation, standing.rows), writer.commit():
            with writer.writing_rows(generation, standing, keys, values, sync=True) as written:
                pass
            with writer.poisoning():
                generation.arenas[2].sync()  # every time, so that there is nothing to mend when it is resumed
            text = standing.layout.kind.embedded
            tally = standing.tally.changed(values, values[:0]) if text else standing.tally
            tails, rows = writer.put_written(generation, written), standing.rows + len(keys)
            writer.catalog.put_standing(replace(standing, rows=rows, tails=tails, tally=tally))
    finally:
        generation.release()


def _switch(writer: Writer, standing: Standing) -> None:
    old = writer.committed.standing
    assert old is not None
    with writer.commit(generation=standing.generation):
        writer.catalog.create_items(standing.generation)
        Roster(writer.catalog, old.generation).copy_live(standing.generation, standing.rows)
        writer.catalog.index_items(standing.generation)
        writer.catalog.put_standing(replace(old, retired=1))
    writer.retired = True
