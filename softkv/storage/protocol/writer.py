"""The one protocol by which a store changes.

A write checks everything; begins one SQLite transaction; writes rows behind the committed ones; makes them durable;
then the transaction records that they exist, and is committed; then it is acknowledged. A crash at any step leaves the
state before, and bytes that are not used and that the next write overwrites. Deleting is a transaction alone.

After a failed sync, or a commit with unknown outcome, the writer is poisoned: the system has dropped the pages that it
could not write, so trying again would report success over lost data.

Does not check what callers give (batch.py) and does not read for callers (snapshot.py).
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import astuple, replace
from functools import partial
from typing import Any

import numpy as np

from softkv.errors import CommitUncertain, HandlePoisoned, InputError, StorageFull, StoreError, WriterFenced
from softkv.ndarrays import AnyArray, Matrix, Rows
from softkv.storage.batch import Added, Batch, checked_settings
from softkv.storage.catalog import batches
from softkv.storage.catalog.batches import Stamp
from softkv.storage.catalog.begun import require_finished
from softkv.storage.catalog.catalog import Catalog, Head, Standing
from softkv.storage.catalog.labels import LabelCounts, LabelEntry, require_counts
from softkv.storage.catalog.roster import Roster
from softkv.storage.catalog.secret import make_secret
from softkv.storage.catalog.tally import Tally
from softkv.storage.disk import files, locks
from softkv.storage.disk.arena import extend_windows, flat
from softkv.storage.layout import Layout, generation_name
from softkv.storage.protocol.committed import Committed, load
from softkv.storage.protocol.conflicts import resolved
from softkv.storage.protocol.generation import Complete, Generation, norms_of
from softkv.storage.protocol.leftovers import remove_retired
from softkv.storage.threads import beside

_WORTH_THREADS = 1 << 20  # bytes of a batch from which starting two threads pays


class Writer:
    """The state of the only handle that may change a store."""

    def __init__(
        self, directory: str, catalog: Catalog, lock: locks.FileLock, committed: Committed, *, retired: bool
    ) -> None:
        self.directory, self.catalog, self.lock, self.committed = directory, catalog, lock, committed
        self.retired = retired  # whether old generations wait for their last reader
        self.failure: StoreError | None = None
        self._stale = False  # whether the last change ended in the middle, so that memory may disagree with the catalog
        self._labels: LabelCounts | None = None
        self._looked = 0  # when old batches were looked for
        self._calling = False  # whether code of the caller runs in the middle of a change
        self.acknowledge()

    def newest(self) -> Committed:
        """The newest commit, from the catalog when memory may disagree with it."""
        if self.failure is not None:
            raise HandlePoisoned(
                f"{self.directory}: an earlier write failed ({self.failure}). Close this handle and open it again."
            ) from self.failure
        if self._stale and not self._calling:
            self._labels = None
            self.committed = load(self.catalog, self.directory, self.committed, write=True)
            self._stale, self.retired = False, True  # it may have been a compaction, so look for its old generation
        return self.committed

    @contextmanager
    def work(self, *, rebuilding: bool = False) -> Iterator[None]:
        """Wrap every change: refuse when it is not safe, and after a failure read everything from the catalog again."""
        committed = self.newest()
        if self._calling:
            raise InputError("the store is in the middle of a change that called this code: nothing else may change")
        locks.require_held(self.lock)
        if self.catalog.head() != committed.head:
            raise WriterFenced(f"{self.directory}: another writer has changed the store. Open it again.")
        if not rebuilding:
            require_finished(self.catalog, committed.head, self.directory)
        self._stale = True
        yield
        self._stale = False
        self.remove_retired()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Wrap code of the caller in the middle of a change: it may read the state before, and change nothing."""
        self._calling = True
        try:
            yield
        finally:
            self._calling = False

    def remove_retired(self) -> None:
        """Try to remove old generations. The change is acknowledged, so after a failure the next one tries again.

        A commit with unknown outcome ends this handle here as well, since nothing may be written behind it.
        """
        if not self.retired:
            return
        try:
            self.retired = not remove_retired(self.directory, self.catalog, self.committed.head)
        except CommitUncertain as error:
            # Not a failure that says that nothing happened: it would be taken for one of the change itself.
            told = CommitUncertain(
                f"{self.directory}: commit {self.committed.head.number} is kept, but when old rows were removed after "
                f"it, SQLite reported {error.__cause__}. Open the store again for writing."
            )
            self.failure = files.without_frames(told)
            raise told from error
        except StoreError:
            self.retired = True

    @contextmanager
    def poisoning(self) -> Iterator[None]:
        """Wrap syncs and commits: a failure ends this handle."""
        try:
            yield
        except (StoreError, OSError) as error:
            self.failure = files.without_frames(error if isinstance(error, StoreError) else StoreError(str(error)))
            raise

    @contextmanager
    def birth(self, number: int, layout: Layout, **changes: Any) -> Iterator[Generation]:
        """A commit that makes and names a new generation; when it fails, the files are removed again.

        Subtle: the transaction begins before the first file. So a writer that slept while another took over fails
        before it uses the name of a generation that the other has made meanwhile.
        """
        try:
            with self.commit(**changes) as head:
                new = Generation.create(head.store, self.directory, number, layout, self.catalog)
                try:
                    self.catalog.put_granule(number, new.arenas[0].granule)
                    yield new
                finally:
                    new.release()
        except BaseException:
            # Subtle: an interrupt may arrive right after the commit, so the catalog is asked, not memory.
            if self.failure is None:
                with suppress(StoreError), self.undisturbed():  # else the next writer removes them
                    if number not in self.catalog.generations():
                        files.remove_tree(os.path.join(self.directory, generation_name(number)))
            raise

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """A transaction without changes: no other writer has taken over, or can meanwhile."""
        with self.catalog.connection.writing():
            if self.catalog.head().epoch != self.committed.head.epoch:
                raise WriterFenced(f"{self.directory}: another writer has taken over. Open the store again.")
            yield

    @contextmanager
    def commit(self, **changes: Any) -> Iterator[Head]:
        """One transaction that ends in a new commit, which is then the state of this handle."""
        before = self.committed.head
        try:
            with self.catalog.connection.writing():
                yield self.catalog.advance(before, **{"number": before.number + 1, **changes})
                self._looked = batches.forget_old(self.catalog.connection, self._looked)
        except (CommitUncertain, WriterFenced) as error:
            self.failure = files.without_frames(error)
            raise
        self.committed = load(self.catalog, self.directory, self.committed, write=True)
        self.acknowledge()

    def acknowledge(self) -> None:
        """Note the newest commit outside the catalog, in LOCK."""
        with suppress(StoreError):  # the commit is acknowledged even without the note
            self.committed.acknowledged.put(self.lock)

    def append(self, batch: Batch, on_conflict: str, settings: Mapping[str, Any] | None, stamp: Stamp | None) -> Added:
        """Write a checked batch, new settings if there are any, and its name if it has one; wholly or not at all."""
        kept = None if settings is None else checked_settings(settings)
        with self.work():
            given, head = len(batch), self.committed.head
            roster = Roster(self.catalog, head.generation)
            batch, doomed, ordinals = resolved(batch, on_conflict, self.committed, roster, self.directory)
            ignored = given - len(batch) if on_conflict == "ignore" else 0
            added = Added(self.committed.rows, head.next_item, len(batch), len(doomed), ignored)
            note = partial(self._record, stamp, added)
            if len(batch):
                self._write(batch, doomed, ordinals, kept, note)
            elif stamp is not None:
                with self.commit():
                    note()
            return added

    def append_nothing(self, stamp: Stamp | None) -> Added:
        """Note that a batch of this name added nothing, if it has one."""
        with self.work():
            added = Added(self.committed.rows, self.committed.head.next_item, 0)
            with nullcontext() if stamp is None else self.commit():
                self._record(stamp, added)
            return added

    def _record(self, stamp: Stamp | None, result: Added | Sequence[int]) -> None:
        """Record the result of a batch that has a name, in the transaction that writes it."""
        if stamp is not None:
            told = astuple(result) if isinstance(result, Added) else result
            batches.record(self.catalog.connection, stamp, told, self.committed.head.number + 1)

    def _write(
        self, batch: Batch, doomed: Rows, ordinals: Sequence[int], settings: str | None, note: Callable[[], None]
    ) -> None:
        head, standing, generation = self.committed.head, self.committed.standing, self.committed.generation
        numbers = {"next_item": head.next_item + len(batch), "next_ordinal": head.next_ordinal + len(batch)}
        if standing is None or generation is None:
            standing = Standing(1, 0, batch.layout, (0, 0, 0), Tally.empty(), settings or head.settings, 0)
            with self.birth(1, batch.layout, generation=1, **numbers) as generation:
                self.catalog.create_items(1)
                self.catalog.index_items(1)
                self._write_into(generation, standing, batch, doomed, ordinals)
                note()
            return
        standing = replace(standing, settings=settings or standing.settings)
        # Subtle: rows are written in the transaction that names them, not before it. So a writer that slept while
        # another took over fails before it overwrites rows of the other.
        with self.giving_back(generation, standing.rows), self.commit(**numbers):
            self._write_into(generation, standing, batch, doomed, ordinals)
            note()

    @contextmanager
    def giving_back(self, generation: Generation, rows: int) -> Iterator[None]:
        """Wrap a batch: one too large for the disk must not keep it full, or nothing could be deleted or closed."""
        try:
            yield
        except StorageFull:
            with suppress(StoreError), self.undisturbed():  # so there are no rows of another writer
                if self.catalog.head() == self.committed.head:
                    generation.give_back(rows)
            raise

    def _write_into(
        self, generation: Generation, standing: Standing, batch: Batch, doomed: Rows, ordinals: Sequence[int]
    ) -> None:
        head, rows, fresh = self.committed.head, standing.rows, generation is not self.committed.generation
        values, labels, tally = self._changed(batch, generation, standing, doomed)
        with self.writing_rows(generation, standing, batch.vectors, values, sync=not fresh) as written:
            # The transaction ends when the rows are durable, so the catalog's part need not wait for the disk.
            self._let_die(standing.generation, doomed, head.number + 1)
            Roster(self.catalog, standing.generation).enrol(rows, head.next_item, ordinals, batch, head.number + 1)
        with self.poisoning():
            if fresh:
                generation.make_durable()
            elif generation.norms_due(rows, len(batch)):
                # Norms can be worked out again, so they are synced once per MiB only: see Generation.mend_norms.
                generation.arenas[2].sync()
        tails = self.put_written(generation, written)
        self._put_labels(labels)
        self.catalog.put_standing(replace(standing, rows=rows + len(batch), tails=tails, tally=tally))

    def put_written(self, generation: Generation, written: Sequence[Complete]) -> tuple[int, int, int]:
        """Note the checksums of rows that were written to each arena; returns those of the unfinished windows."""
        for arena, (windows, _) in zip(generation.arenas, written, strict=True):
            self.catalog.put_windows(generation.number, arena.shape.role, windows)
        keys, values, norms = (tail for _, tail in written)
        return keys, values, norms

    @contextmanager
    def writing_rows(
        self, generation: Generation, standing: Standing, keys: Matrix, values: AnyArray, *, sync: bool
    ) -> Iterator[list[Complete]]:
        """Write rows, and sync keys and values; large batches in threads, while the caller prepares the catalog's part.

        Their checksums are known when this ends. Nothing is still being written then, however it ends: a late write
        could cover a later batch.
        """
        jobs = [
            partial(self._write_rows, generation, standing, arena, cells, sync=sync)
            for arena, cells in enumerate((keys, values))
        ]
        large, written = keys.nbytes + values.nbytes >= _WORTH_THREADS, list[Complete]()
        with beside(*(jobs if large else ())) as running:
            found = [] if large else [job() for job in jobs]
            found.append(self._write_rows(generation, standing, 2, norms_of(keys), sync=False))
            yield written
        written += [*(job.result() for job in running), *found]

    def _write_rows(
        self, generation: Generation, standing: Standing, arena: int, cells: AnyArray, *, sync: bool
    ) -> Complete:
        into = generation.arenas[arena]
        into.write(standing.rows, cells)
        written, tail = standing.rows * into.shape.row_bytes, standing.tails[arena]
        complete = extend_windows(written, tail, flat(cells), into.granule)
        if sync:
            with self.poisoning():
                into.sync()
        return complete

    def _changed(
        self, batch: Batch | None, generation: Generation, standing: Standing, doomed: Rows
    ) -> tuple[AnyArray, list[LabelEntry], Tally]:
        """The cells of values.* for a batch, the label rows that change, and the sums once `doomed` have died."""
        gone = generation.values.take(doomed) if len(doomed) else np.empty((0, standing.layout.value_width))
        if standing.layout.kind.coded:
            if self._labels is None:
                rows = self.catalog.labels()
                require_counts(rows, standing.tally, self.directory)
                self._labels = LabelCounts(rows)
            born = batch.labels if batch and batch.labels else []
            codes, rows, tally = self._labels.changes(born, gone.astype(np.int32).ravel(), standing.tally)
            return codes.reshape(-1, 1), rows, tally
        values = batch.values if batch else np.empty((0, standing.layout.value_width))
        tally = standing.tally.changed(values, gone)
        return values, [], self._summed_anew(doomed, values) if tally.drowned else tally

    def _summed_anew(self, doomed: Rows, born: AnyArray) -> Tally:
        """The sums from the values themselves, without those about to die and with those about to be born."""
        committed = self.committed
        alive = committed.deaths.live(committed.rows).copy()
        alive[doomed] = False
        rows = np.flatnonzero(alive)
        tally = Tally.empty(np.zeros(born.shape[1]))
        for start in range(0, len(rows), 1 << 16):
            assert committed.generation is not None
            values = committed.generation.values.take(rows[start : start + (1 << 16)])
            tally = tally.plus(values) if start else tally.changed(values, values[:0])
        return tally.plus(born) if len(rows) else tally.changed(born, born[:0])

    def _put_labels(self, rows: list[LabelEntry]) -> None:
        self.catalog.put_labels(rows)
        if self._labels is not None:
            self._labels.apply(rows)  # when the commit fails, the next work reads them again

    def _let_die(self, generation: int, rows: Rows, number: int) -> None:
        if len(rows):
            Roster(self.catalog, generation).bury(rows, number)
            self.catalog.put_deaths(generation, self.committed.deaths.buried(rows).items(), number)

    def delete(self, rows: Rows, stamp: Stamp | None) -> None:
        """Delete these live rows, all or none; if the deletion has a name, it is recorded even for no rows."""
        with self.work():
            if not len(rows):
                with self.commit():
                    self._record(stamp, (0,))
                return
            standing, generation = self.committed.standing, self.committed.generation
            assert standing is not None
            assert generation is not None
            _, labels, tally = self._changed(None, generation, standing, rows)
            with self.commit() as new:
                self._let_die(standing.generation, rows, new.number)
                self._put_labels(labels)
                self.catalog.put_standing(replace(standing, tally=tally))
                self._record(stamp, (len(rows),))

    def close(self) -> None:
        """Mark the store as closed, and release it. A poisoned writer only releases it."""
        try:
            if self.failure is None and self.catalog.head() == self.newest().head:
                self._sign_off()
                with suppress(StorageFull):  # the log keeps every commit, until there is space in the catalog
                    self.catalog.connection.close()
            else:
                self.catalog.connection.abandon()
        except BaseException:
            self.catalog.connection.abandon()
            raise
        finally:
            if self.committed.generation:
                self.committed.generation.release()
            self.lock.release()

    def _sign_off(self) -> None:
        """Remove leftovers and mark the store as closed, so that the next writer has nothing to verify."""
        self.remove_retired()
        if self.committed.generation:
            self.committed.generation.arenas[2].sync()
        self.committed.acknowledged.put(self.lock, durably=True)
        with suppress(StorageFull), self.catalog.connection.writing():  # without it the next writer verifies a little
            self.catalog.advance(self.committed.head, writing=0)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings that the users of the store keep with it."""
        text = checked_settings(settings)
        with self.work():
            standing = self.committed.standing
            with self.commit(**({} if standing else {"settings": text})):
                if standing:
                    self.catalog.put_standing(replace(standing, settings=text))

    def set_apart(self) -> None:
        """Make a copy of a store a separate one, used beside the first in the same cluster.

        Its random draws become its own, so that the errors of the two are independent. It keeps the names of batches,
        so that one sent again is written to neither, but with results of 0, since the first store counts them.
        """
        with self.work(), self.commit():
            batches.count_nothing(self.catalog.connection)
            make_secret(self.catalog.connection)
