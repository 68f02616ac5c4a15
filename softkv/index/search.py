"""Read the lists of an index: for the k best rows, and until an error bound is small enough.

The bound holds for any distribution of the rows that are not read; a query for which nearly all lists would have to be
read gets no answer. Other ways to answer (planned.py, measuring.py) read lists by the same functions.

Shapes: b queries, l lists, d key width, p value width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from softkv.index.lists import ListIndex, runs_of
from softkv.index.opening import closeness, likeliest, ranked
from softkv.maths.blas import shared
from softkv.maths.blending import Blend, Numbers, Values, Vectors, merge
from softkv.maths.farfield import Tilt, bounded, tilted
from softkv.maths.nearfield import Near, Run, Score, read
from softkv.maths.summaries import Lists
from softkv.ndarrays import Counts, Flags, Floats, Reals, Rows

LONG = 1 << 23  # numbers of keys that a thread reads at once
KIN = 4  # rows most like a query whose lists are read
MOST = 0.5  # a query that would read a larger share of the rows is scanned


@dataclass(frozen=True, eq=False)
class Asked:
    """Some queries: as dot products (forms.py), and how to score rows with them."""

    lists: Lists
    vectors: Reals  # (b, d), times β
    added: Floats  # (b,), to every logit
    temperatures: Floats  # (b,), as the calibration knows them
    score: Score
    score_some: Callable[[Rows], Score]  # the same for some rows, that are gathered

    @cached_property
    def tilt(self) -> Tilt:
        """How the queries weigh all lists."""
        return tilted(self.lists, self.vectors)

    @cached_property
    def likely(self) -> Reals:
        """The expected logit of the best row of each list, as lists count logits, (b, l)."""
        return likeliest(self.lists, self.tilt)


@dataclass(frozen=True, slots=True, eq=False)
class Readable:
    """What can be read: all rows, those in lists and those behind them."""

    values: Values
    some_values: Callable[[Rows], Values]  # of some rows, in a copy
    verify: Callable[[Sequence[Run]], None]  # called before rows are read
    live: Flags | None  # None when all rows are
    rows: int
    scale: float  # the value scale


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Answers, and for which queries they hold."""

    near: Near
    blend: Blend  # of all rows
    error: Floats  # (b,)
    log_mass_error: Floats  # (b,)
    sure: Flags  # (b,)
    effective_error: Floats | None = None  # (b,), of the effective number of rows, where it is known
    spread_error: Floats | None = None  # (b,), of the spread, where it is known
    tried: Rows | None = None  # (b,), how many more rows were compared, to find out how many to read


def best(index: ListIndex, arena: Readable, asked: Asked, depth: tuple[int, float], *, show: int) -> Estimate:
    """The best rows, found as deep as a calibration says; the mass of all other rows stays unknown.

    The result is the rows that `near` names: no values are read, and both blends have none.
    """
    # Lists without any of the best rows may hold most of the mass, and more than their statistics say: in stores of
    # clusters estimates were off by e^10. Finding the lists that matter takes as long as finding the best rows.
    arena = replace(arena, values=_no_values(arena.rows), some_values=lambda rows: _no_values(len(rows)))
    most = index.form.most(asked.added)
    order, before = ranked(index.quick, asked.tilt, depth[0], most)
    stops = np.maximum((before <= depth[1]).sum(1), 1)
    opened = [some[:stop] for some, stop in zip(order, stops, strict=True)]
    if (alike := lists_alike(index, arena, asked)) is not None:
        opened = [distinct(np.append(some, more)) for some, more in zip(opened, alike, strict=True)]
    near = read_lists(index, arena, asked, opened, show)
    sure = (near.blend.peak * asked.temperatures >= index.calibration.strange) & points_at_items(index, asked)
    near, nothing = both(near, tail_of(index, arena, asked, show), show), np.zeros(len(sure))
    return Estimate(near, near.blend, nothing, nothing, sure)


def points_at_items(index: ListIndex, asked: Asked) -> Flags:
    """Whether each query points to a list as closely as usual queries do, (b,); asked of dot products alone.

    Long keys have large products with queries unlike all items, too, so that these do not tell such queries apart.
    """
    if index.form.name != "dot":
        return np.ones(len(asked.vectors), np.bool_)
    found: Flags = closeness(index.quick, asked.tilt, asked.vectors) >= index.calibration.astray
    return found


def lists_alike(
    index: ListIndex, arena: Readable, asked: Asked, tolerance: float | None = None, some: Flags | None = None
) -> Counts | None:
    """The lists of those rows that signs tell are most like each query, (b, m); None where no query needs them.

    Whether it does depends on the tolerance (`Need.of`). The others get lists that are read anyway, and so do all but
    `some`, (b,).
    """
    if index.need is None:
        return None
    needs = index.need.of(asked.temperatures, tolerance)
    needed = np.flatnonzero(needs if some is None else needs & some)
    if not len(needed):
        return None
    found = np.repeat(asked.likely.argmax(1)[:, None], KIN, axis=1)
    most = math.ceil(index.need.share[0] * asked.likely.shape[1])

    def find(start: int, stop: int) -> None:
        for number in needed[start:stop].tolist():
            lists = np.argpartition(-asked.likely[number], most - 1)[:most]
            rows = index.alike(index.point_of(asked.vectors[number]), np.sort(lists), arena.live)
            logits = np.empty((1, len(rows)), np.float32)
            if len(rows):
                asked.score_some(rows)(np.array([number]), 0, len(rows), logits)
            owners = index.owners(rows[np.argsort(-logits[0], kind="stable")[:KIN]])
            found[number, : len(owners)] = np.where(owners >= 0, owners, found[number, 0])

    shared(find, 0, len(needed))
    return found


def _no_values(rows: int) -> Values:
    return Vectors(np.empty((rows, 0), np.float32))


def assured(index: ListIndex, arena: Readable, asked: Asked, tolerance: float, *, show: int) -> Estimate:
    """Answers whose error is bounded by the tolerance, a share of the value scale; not sure if that takes too long."""
    numbers = np.arange(len(asked.vectors))[:, None]
    found = [_assured(index, arena, part_of(asked, number), tolerance, show) for number in numbers]
    return together(found)


def _assured(index: ListIndex, arena: Readable, asked: Asked, tolerance: float, show: int) -> Estimate:
    lists, wanted = index.lists, tolerance * arena.scale
    tilt, squares = tilted(lists, asked.vectors.astype(np.float64)), isinstance(arena.values, Numbers)
    unread, tail = (lists.counts > 0)[None, :].copy(), tail_of(index, arena, asked, show)

    def read_so_far() -> Near:
        return both(read_lists(index, arena, asked, [np.flatnonzero(~unread[0])], show), tail, show)

    near = read_so_far()
    while True:
        far = bounded(lists, tilt, unread, squares=squares)
        far = replace(far, blend=replace(far.blend, peak=far.blend.peak + asked.added))
        error = far.error(lists, near.blend)
        if error[0] <= wanted or not unread.any():
            break
        wrong, mass = far.parts(lists, near.blend)
        more = _dearest(np.where(np.isnan(wrong[0]), np.inf, wrong[0]), lists.counts, 0.8 * wanted * float(mass[0]))
        if not unread[0, more].any():  # with NaN it would not end otherwise
            more = np.flatnonzero(unread[0])
        unread[0, more] = False
        if lists.counts[~unread[0]].sum() > MOST * lists.counts.sum():
            return Estimate(near, near.blend, np.full(1, np.inf), np.full(1, np.inf), np.zeros(1, np.bool_))
        near = read_so_far()
    return Estimate(near, merge(near.blend, far.blend), error, far.log_mass_error(near.blend), error <= wanted)


def _dearest(wrong: Floats, counts: Reals, allowed: float) -> Rows:
    """The lists to open so that the others add at most the allowed error: those that add most per row."""
    order = np.argsort(-wrong / np.maximum(counts, 1))
    left = wrong[order][::-1].cumsum()[::-1]
    return order[: max(1, int((left > allowed).sum()))]


def part_of(asked: Asked, numbers: Rows) -> Asked:
    """Some of the queries."""

    def of_those(score: Score) -> Score:
        def scored(queries: Rows, start: int, stop: int, out: Reals) -> None:
            score(numbers[queries], start, stop, out)

        return scored

    return Asked(
        asked.lists,
        asked.vectors[numbers],
        asked.added[numbers],
        asked.temperatures[numbers],
        of_those(asked.score),
        lambda rows: of_those(asked.score_some(rows)),
    )


def each_array(work: Callable[..., Any], *given: Any) -> Any:
    """Results of one type with arrays inside, each array that there is made by `work` from those in the same place."""
    if is_dataclass(given[0]):
        kind: Any = type(given[0])
        return kind(*(each_array(work, *(getattr(one, field.name) for one in given)) for field in fields(kind)))
    return None if given[0] is None else work(*given)


def some_of(given: Any, some: Rows) -> Any:
    """The results of some of the queries."""
    return each_array(lambda x: x[some], given)


def replaced(given: Any, numbers: Rows, part: Any) -> Any:
    """The results of all queries, with those of these numbers replaced."""

    def put(old: Any, new: Any) -> Any:
        whole = old.copy()
        whole[numbers] = new
        return whole

    return each_array(put, given, part)


def together(found: Sequence[Estimate]) -> Estimate:
    """Estimates of some queries after those of others."""
    joined: Estimate = joined_of(found)
    return joined


def joined_of(found: Sequence[Any]) -> Any:
    """Results of some queries after those of others."""
    return found[0] if len(found) == 1 else each_array(lambda *parts: np.concatenate(parts), *found)


def read_lists(index: ListIndex, arena: Readable, asked: Asked, lists: Sequence[Rows], show: int) -> Near:
    """Read the lists of each query, with the rows that joined them."""
    runs = _runs(index.offsets, lists)
    arena.verify(runs)
    near = _read(arena, asked, runs, show)
    members, starts = index.members
    return both(near, _gathered(arena, asked, members, _runs(starts, lists), show), show)


def _read(arena: Readable, asked: Asked, runs: Sequence[Run], show: int) -> Near:
    """Read runs of rows that are verified; many rows of a single query are read by several threads."""
    count, ends = len(asked.vectors), np.cumsum([0, *(run.stop - run.start for run in runs)])
    width = asked.lists.means.shape[1]
    parts = 1 if count > 1 else max(1, 2 * (int(ends[-1]) * width // (2 * LONG)))  # often there are two threads
    cuts = np.unique(np.searchsorted(ends, np.arange(parts + 1) * int(ends[-1]) // parts))
    if len(cuts) < 3:
        return read(asked.score, arena.values, runs, arena.live, count=count, show=show)
    found: list[Any] = [None] * (len(cuts) - 1)

    def part(first: int, last: int) -> None:
        for number in range(first, last):
            some = runs[cuts[number] : cuts[number + 1]]
            found[number] = read(asked.score, arena.values, some, arena.live, count=count, show=show)

    shared(part, 0, len(found))
    near: Near = reduce(lambda near, more: both(near, more, show), found)
    return near


def _gathered(arena: Readable, asked: Asked, rows: Rows, runs: Sequence[Run], show: int) -> Near | None:
    """Read runs of some rows that do not lie side by side, or nothing when there are none."""
    if not runs:
        return None
    rows = np.concatenate([rows[run.start : run.stop] for run in runs])
    stops = np.cumsum([run.stop - run.start for run in runs]).tolist()
    moved = [Run(stop - (run.stop - run.start), stop, run.queries) for run, stop in zip(runs, stops, strict=True)]
    if len(asked.vectors) == 1:  # a single query reads all of them
        moved = [Run(0, len(rows), runs[0].queries)]
    live = None if arena.live is None else arena.live[rows]
    near = read(asked.score_some(rows), arena.some_values(rows), moved, live, count=len(asked.vectors), show=show)
    return replace(near, rows=np.where(near.rows < 0, -1, rows[near.rows]))


def both(near: Near, more: Near | None, show: int) -> Near:
    """The sums over two sets of rows."""
    if more is None:
        return near
    return Near(merge(near.blend, more.blend), *_heaviest(near, more, show), near.scored + more.scored)


def distinct(lists: Rows) -> Rows:
    """The numbers of some lists in order, each once."""
    ordered = np.sort(lists)
    return ordered[np.diff(ordered, prepend=-1) > 0]  # np.unique would load numpy.ma, 12 ms of a process


def _runs(offsets: Rows, lists: Sequence[Rows]) -> list[Run]:
    """The runs to read, so that every list is read once, for all queries that open it."""
    if len(lists) == 1:
        return neighbours(offsets, np.sort(lists[0]))
    opened = np.concatenate([*lists, np.empty(0, np.int64)]).astype(np.int64)
    askers = np.repeat(np.arange(len(lists)), [len(some) for some in lists])
    order = np.argsort(opened, kind="stable")
    numbers, firsts = np.unique(opened[order], return_index=True)
    queries = np.split(askers[order], firsts[1:])
    bounds = zip(offsets[numbers].tolist(), offsets[numbers + 1].tolist(), queries, strict=False)
    return [Run(start, stop, some) for start, stop, some in bounds if stop > start]


def neighbours(offsets: Rows, lists: Rows) -> list[Run]:
    """The runs of lists for a single query, where those that lie side by side are one."""
    starts, stops = runs_of(offsets, lists)
    alone = np.zeros(1, np.int64)
    return [Run(start, stop, alone) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


def tail_of(index: ListIndex, arena: Readable, asked: Asked, show: int) -> Near | None:
    """The rows of no list, which are read by every query; None where there are none."""
    everybody = np.arange(len(asked.vectors))
    strangers = [Run(0, len(index.strangers), everybody)] if len(index.strangers) else []
    behind = [Run(index.known, arena.rows, everybody)] if index.known < arena.rows else []
    apart = _gathered(arena, asked, index.strangers, strangers, show)
    if not behind:
        return apart
    arena.verify(behind)
    return both(_read(arena, asked, behind, show), apart, show)


def _heaviest(left: Near, right: Near, show: int) -> tuple[Rows, Reals]:
    rows, logits = np.hstack([left.rows, right.rows]), np.hstack([left.logits, right.logits])
    order = np.lexsort((rows, -logits), axis=1)[:, :show]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(logits, order, axis=1)
