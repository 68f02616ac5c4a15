"""Write the live rows into a new generation, in their order or in another, and switch to it in one transaction.

Readers keep the generation they pinned; the old files are removed when the last reader has released them. The catalog's
part runs beside two threads that copy keys and values. Index files of the new generation are named in the same
transaction; those of the old one stay with it.

Does not decide when to compact, nor in which order.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from softkv.errors import InputError
from softkv.logs import log_of
from softkv.ndarrays import AnyArray, Flags, Rows
from softkv.progress import Progress
from softkv.storage.catalog.catalog import Standing
from softkv.storage.catalog.roster import COPIED, Roster
from softkv.storage.disk import files
from softkv.storage.disk.arena import Arena, VerifiedRows, extend_windows, flat
from softkv.storage.disk.numbers import believable
from softkv.storage.layout import RowShape
from softkv.storage.protocol.generation import Complete, Generation
from softkv.storage.protocol.ordering import checked_order, gathered, gathered_norms
from softkv.storage.protocol.publishing import FileContent, room_for, written
from softkv.storage.protocol.writer import Writer
from softkv.storage.threads import beside

LOG = log_of(__name__)

_STRIDE = 4 << 20  # bytes copied at a time
_PATIENCE = 0.1  # seconds between two reports of progress


@dataclass(slots=True)
class _Course:
    """The progress of a copy, shared by its threads and the caller's."""

    writer: Writer
    total: int
    progress: Progress | None
    done: list[int] = field(default_factory=lambda: [0, 0, 0, 0])  # keys, values, norms, items
    told: int = -1
    stopped: bool = False

    def tell(self) -> None:
        """Tell the caller how many rows are copied: a row with its four parts counts as one."""
        done = sum(self.done) // len(self.done)
        if self.progress is not None and done != self.told:
            self.told = done
            with self.writer.calling():
                self.progress(done, self.total)

    def follow(self, copying: "list[Future[Complete]]", *, to_the_end: bool = False) -> None:
        """Report progress, and raise the error of a thread that has failed."""
        self.tell()
        while True:
            running = wait(copying, _PATIENCE if to_the_end else 0, FIRST_EXCEPTION)
            for job in running.done:
                job.result()
            if not running.not_done or not to_the_end:
                return
            self.tell()


def compact(writer: Writer, order: Any, index: Mapping[str, FileContent] | None, progress: Progress | None) -> None:
    """Remove dead rows. Does nothing to a store without any, unless there is an order or an index."""
    with writer.work():
        standing, deaths = writer.committed.standing, writer.committed.deaths
        rows = None if order is None else checked_order(order, deaths.live(writer.committed.rows))
        if standing is None:
            if index:
                raise InputError(f"{writer.directory} has no rows yet, so there is nothing to index. Add items first.")
        elif deaths.count or index or rows is not None:
            _rewrite(writer, standing, rows, index or {}, progress)
            writer.retired = True
            LOG.info("rewrote %s: %d rows are left of %d", writer.directory, writer.committed.rows, standing.rows)


def _rewrite(
    writer: Writer, standing: Standing, order: Rows | None, index: Mapping[str, FileContent], progress: Progress | None
) -> None:
    old = writer.committed.generation
    assert old is not None
    course = _Course(writer, standing.rows - writer.committed.deaths.count, progress)
    needed = sum(shape.row_bytes for shape in standing.layout.arenas) * course.total
    files.require_room(writer.directory, needed + needed // 8 + room_for(index), f"compacting {writer.directory}")
    number = max(writer.catalog.generations()) + 1
    with (
        written(writer, index, number, course.total) as records,
        writer.birth(number, standing.layout, generation=number) as new,
    ):
        copied = _copy(old, new, standing, order, course)
        with writer.poisoning():
            new.make_durable()
        tails = writer.put_written(new, copied)
        for record in records:
            writer.catalog.put_index(record)
        writer.catalog.put_standing(replace(standing, generation=number, rows=course.total, tails=tails))
        writer.catalog.put_standing(replace(standing, retired=1))


def _copy(old: Generation, new: Generation, standing: Standing, order: Rows | None, course: _Course) -> list[Complete]:
    """Copy rows and items side by side; returns the checksums of the new arenas."""
    writer, shapes = course.writer, standing.layout.arenas
    live = writer.committed.deaths.live(standing.rows)
    sources = [_read_ahead(writer, old, standing, position) for position in (0, 1)]
    blocks = [_blocks(source, shape, live, order) for source, shape in zip(sources, shapes[:2], strict=True)]
    with beside(*(partial(_copy_rows, new.arenas[i], blocks[i], course, i) for i in (0, 1))) as copying:
        try:
            writer.catalog.create_items(new.number)
            _copy_items(Roster(writer.catalog, old.number), new.number, order, course, copying)
            writer.catalog.index_items(new.number)
            norms = _norms(old, live) if order is None else gathered_norms(old, order)
            copied = _copy_rows(new.arenas[2], norms, course, 2)
            course.follow(copying, to_the_end=True)
        except BaseException:
            course.stopped = True
            raise
    course.tell()
    return [*(copy.result() for copy in copying), copied]


def _copy_items(
    roster: Roster, generation: int, order: Rows | None, course: _Course, copying: "list[Future[Complete]]"
) -> None:
    """The catalog's part: at once, or in the order block by block, so that memory does not grow with the store."""
    if order is None:
        roster.copy_live(generation, course.total)
    else:
        for start in range(0, len(order), COPIED):
            course.follow(copying)
            roster.copy(generation, start, order[start : start + COPIED])
            course.done[3] = min(start + COPIED, len(order))
    course.done[3] = course.total


def _read_ahead(writer: Writer, old: Generation, standing: Standing, position: int) -> VerifiedRows:
    """Rows of an arena with all their checksums at hand, so that threads need not wait for the catalog."""
    arena = old.arenas[position]
    complete = standing.rows * arena.shape.row_bytes // arena.granule
    checksums = writer.catalog.windows(old.number, arena.shape.role, range(complete))
    labels = writer.catalog.label_count()
    rows = VerifiedRows(arena, lambda some: [checksums[one] for one in some], believable(arena.shape, lambda: labels))
    rows.grow(standing.rows, standing.tails[position])
    return rows


def _blocks(source: VerifiedRows, shape: RowShape, live: Flags, order: Rows | None) -> Iterator[AnyArray]:
    stride = max(1, _STRIDE // shape.row_bytes)
    return _kept(source, stride, live) if order is None else gathered(source, len(live), order, stride)


def _kept(source: VerifiedRows, stride: int, live: Flags) -> Iterator[AnyArray]:
    """The live rows in the order of the file."""
    for start in range(0, len(live), stride):
        alive = live[start : start + stride]
        block = source.block(start, start + len(alive))
        yield block if alive.all() else np.take(block, np.flatnonzero(alive), axis=0)


def _norms(source: Generation, live: Flags) -> Iterator[AnyArray]:
    for start in range(0, len(live), 1 << 16):
        alive = live[start : start + (1 << 16)]
        yield source.norms(start, start + len(alive))[alive].reshape(-1, 1)


def _copy_rows(arena: Arena, blocks: Iterator[AnyArray], course: _Course, position: int) -> Complete:
    finished: list[tuple[int, int]] = []
    row = tail = 0
    for block in blocks:
        if course.stopped:
            break  # the result is no longer needed
        arena.write(row, block)
        complete, tail = extend_windows(row * arena.shape.row_bytes, tail, flat(block), arena.granule)
        finished += complete
        row += len(block)
        course.done[position] = row
    return finished, tail
