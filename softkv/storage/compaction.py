"""Write the live rows into a new generation, and switch to it in one transaction.

Readers keep the generation they pinned; the old files go when the last of them has let go. The catalog's part runs
beside two threads that copy keys and values.

Does not decide when to compact.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from softkv.storage import files
from softkv.storage.arena import WINDOW, Arena, Array, VerifiedRows, extend_windows, flat
from softkv.storage.catalog import Standing
from softkv.storage.generation import Generation
from softkv.storage.layout import Mask, RowShape
from softkv.storage.roster import Roster
from softkv.storage.threads import beside
from softkv.storage.writer import Writer

_STRIDE = 4 << 20  # bytes copied at a time


@dataclass(frozen=True, slots=True)
class _Copied:
    """What one arena of the new generation has for the catalog."""

    finished: list[tuple[int, int]]
    tail: int


def compact(writer: Writer) -> None:
    """Leave the dead behind. Does nothing to a store without any."""
    with writer.work():
        if writer.committed.deaths.count and writer.committed.standing is not None:
            _rewrite(writer, writer.committed.standing)
            writer.retired = True


def _rewrite(writer: Writer, standing: Standing) -> None:
    old = writer.committed.generation
    assert old is not None
    kept = standing.rows - writer.committed.deaths.count
    needed = sum(shape.row_bytes for shape in standing.layout.arenas) * kept
    files.require_room(writer.directory, needed + needed // 8, f"compacting {writer.directory}")
    number = max(writer.catalog.generations()) + 1
    new = Generation.create(writer.committed.head.store, writer.directory, number, standing.layout, writer.catalog)
    with writer.newborn(new), writer.commit(generation=number):
        copied = _copy(writer, old, new, standing)
        with writer.poisoning():
            new.make_durable()
        for shape, copy in zip(standing.layout.arenas, copied, strict=True):
            writer.catalog.put_windows(number, shape.role, copy.finished)
        tails = (copied[0].tail, copied[1].tail, copied[2].tail)
        writer.catalog.put_standing(replace(standing, generation=number, rows=kept, tails=tails))
        writer.catalog.put_standing(replace(standing, retired=1))


def _copy(writer: Writer, old: Generation, new: Generation, standing: Standing) -> list[_Copied]:
    """Copy rows and items side by side; returns the checksums of the new arenas."""
    live = writer.committed.deaths.live(standing.rows)
    sources = [_read_ahead(writer, old, standing, position) for position in (0, 1)]
    blocks = (_blocks(sources[0], standing.layout.keys, live), _blocks(sources[1], standing.layout.values, live))
    with beside(*(partial(_copy_rows, new.arenas[i], blocks[i]) for i in (0, 1))) as copying:
        writer.catalog.create_items(new.number)
        Roster(writer.catalog, old.number).copy_live(new.number)
        writer.catalog.index_items(new.number)
        norms = _copy_rows(new.arenas[2], _norms(old, live))
    return [*(copy.result() for copy in copying), norms]


def _read_ahead(writer: Writer, old: Generation, standing: Standing, position: int) -> VerifiedRows:
    """Rows of an arena with all their checksums at hand, so that threads need not wait for the catalog."""
    arena = old.arenas[position]
    complete = standing.rows * arena.shape.row_bytes // WINDOW
    checksums = writer.catalog.windows(old.number, arena.shape.role, 0, complete)
    rows = VerifiedRows(arena, lambda first, last: checksums[first:last])
    rows.grow(standing.rows, standing.tails[position])
    return rows


def _blocks(source: VerifiedRows, shape: RowShape, live: Mask) -> Iterator[Array]:
    stride = max(1, _STRIDE // shape.row_bytes)
    for start in range(0, len(live), stride):
        alive = live[start : start + stride]
        block = source.block(start, start + len(alive))
        yield block if alive.all() else np.take(block, np.flatnonzero(alive), axis=0)


def _norms(source: Generation, live: Mask) -> Iterator[Array]:
    for start in range(0, len(live), 1 << 16):
        alive = live[start : start + (1 << 16)]
        yield source.norms(start, start + len(alive))[alive].reshape(-1, 1)


def _copy_rows(arena: Arena, blocks: Iterator[Array]) -> _Copied:
    finished: list[tuple[int, int]] = []
    row = tail = 0
    for block in blocks:
        arena.write(row, block)
        complete, tail = extend_windows(row * arena.shape.row_bytes, tail, flat(block))
        finished += complete
        row += len(block)
    return _Copied(finished, tail)
