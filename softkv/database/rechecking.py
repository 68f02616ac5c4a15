"""Check, after many items were added or deleted, whether the errors that the index states still hold.

A few hundred items are drawn, left out, and asked at some temperatures: exactly, by reading all rows, and by the index
without these items. Whether their k best would be found follows from the lists in which these lie. The work is done
within the writes of one handle, for MOST seconds in each, on the rows as they were when the check began. Its progress
is kept by the handle alone: with another generation, or in another process, a check begins again. The verdict is a
derived part of the store, in a commit of its own; if it is lost, the check is made again.

An index that was calibrated on queries of its own is not checked: left-out items are unlike them.

Does not judge (index/verdict.py), and does not decide who may use the index then (asking/route.py).

Shapes: b left-out items, n rows of a slice, t temperatures.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from softkv.asking.indexed import CHECKED, summable, with_labels
from softkv.asking.lists import Asking
from softkv.asking.question import CONFIDENCE, TOLERANCE, Question
from softkv.asking.route import CALIBRATED, against_calibration, against_loose, is_cheap
from softkv.asking.view import View
from softkv.errors import SoftKVError
from softkv.index.calibration import BEST
from softkv.index.lists import ListIndex
from softkv.index.opening import needed, ranked
from softkv.index.verdict import CHANGED, Truth, Verdict, moved
from softkv.logs import log_of
from softkv.maths.farfield import tilted
from softkv.maths.ranking import Ranking, no_ranking
from softkv.maths.summaries import Units
from softkv.ndarrays import AnyArray, Flags, Rows
from softkv.storage import Store

LOG = log_of(__name__)
ASKED = 256  # items that are left out
HELD = 1 << 22  # sums of values held at once
MOST = 0.008  # seconds of work in a write: about 10 ms, since the last step may take longer than expected
SCANNED, ESTIMATED = 0.002, 0.005  # seconds that a step of a scan, or of estimates, should take
FIRST = 128  # rows of the first slice
FEWEST, AGAIN = 100, 0.01  # changes, or a share of the items, after which a failed or useless check is tried again

clock = time.perf_counter
Steps = Generator[float, None, Verdict]  # tells how many seconds the next step will take


class Rechecking:
    """The check in progress of a handle that writes, if any."""

    def __init__(self) -> None:
        self.drop()

    def drop(self) -> None:
        """Give up the check and release what it pins, since the rows or the index have been replaced."""
        self._steps: Steps | None = None
        self._about: tuple[int, int] | None = None  # generation, and commit of the index
        self._due = 0.0  # how many additions and deletions there must have been before a check may be due

    def go_on(self, store: Store, view: Callable[[], View]) -> None:
        """Do a little work on a check that is due. A failure is only logged, since the write itself is done."""
        try:
            self._go_on(store, view())
        except Exception as error:
            self._steps = None
            LOG.warning(
                "the calibration of the index of %s could not be checked: %s",
                store.path,
                error,
                exc_info=not isinstance(error, SoftKVError),
            )

    def _go_on(self, store: Store, seen: View) -> None:
        if self._steps is None:
            if not self._begins(seen):
                return
            self._about = seen.snapshot.generation, seen.index_as_written.commit
            self._steps = _check(seen, seen.index_as_written.commit)
        elif self._about != (seen.snapshot.generation, seen.index_as_written.commit):
            self.drop()
            return
        verdict = self._worked(self._steps)
        if verdict is not None:
            self._steps = None
            store.put_derived(CHECKED, verdict.encoded(), instead_of=seen.snapshot.derived_numbers(CHECKED))
            self._due = 0.0
            LOG.log(*_told(verdict), store.path, verdict)

    def _begins(self, seen: View) -> bool:
        """Whether a check is due and useful: lookups have to be answered by the index."""
        rows, items = seen.snapshot.rows, len(seen.snapshot)
        moved = 2 * rows - items  # all rows that were added, and all that were deleted
        if moved < self._due:
            return False
        self._due = moved + max(FEWEST, AGAIN * items)
        index = seen.index_as_written.index
        if index is None or index.facts.get("calibrated on") != "items" or is_cheap(seen):
            return False
        last, made_of = seen.verdict, index.facts.get("items")
        before, then = (last.changes, last.items) if last else (0, made_of if isinstance(made_of, int) else index.rows)
        early = before + CHANGED * then - seen.changes
        if early > 0:
            self._due = moved + early
            return False
        followed = seen.followed
        return followed is not None and not against_calibration(seen) and not against_loose(followed.joined, rows)

    def _worked(self, steps: Steps) -> Verdict | None:
        """The verdict, if it is found in time: do at least one step, and more while they fit in."""
        end = clock() + MOST
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is not counted
                while clock() + next(steps) <= end:
                    pass
        except StopIteration as found:
            verdict: Verdict | None = found.value
            return verdict
        return None


def still_checked(view: View, index: ListIndex) -> ListIndex:
    """An index of the live rows in another order, with the last verdict on its calibration."""
    return replace(index, facts=moved(index, view.changes, len(view.snapshot), view.verdict))


def _told(verdict: Verdict) -> tuple[int, str]:
    if verdict.withdrawn:
        return (
            logging.WARNING,
            "the calibration of the index of %s no longer holds, so answers are measured, or all items scanned: %s",
        )
    if verdict.lost():
        return logging.WARNING, "the k best by the index of %s are scanned, since too few of them are found: %s"
    return logging.INFO, "checked the calibration of the index of %s: %s"


def _check(view: View, file: int) -> Steps:
    """Find the verdict on the index of a commit; yields before each step how long it will take."""
    live = np.flatnonzero(view.snapshot.live)
    left_out = np.sort(np.random.default_rng(view.snapshot.commit).choice(live, min(ASKED, len(live) // 4), False))
    yield MOST
    index = yield from _leaving(view, left_out)
    counted = view.snapshot.live.copy()
    counted[left_out] = False
    temperatures = _temperatures(view, index)
    seen, best = np.zeros((3, len(temperatures)), np.int64), np.zeros(1 + len(BEST), np.int64)
    for some in _portions(view, left_out, len(temperatures)):
        asked = [Asking(view, index, _question(view, index, some, one), counted) for one in temperatures]
        truths, ranking = yield from _exactly(view, index, asked, counted)
        for place, (asking, truth) in enumerate(zip(asked, truths, strict=True)):
            seen[:, place] += yield from _compared(asking, truth)
        best += yield from _found(asked[0], ranking)
    (answered, values, masses), (ranked, *found) = (tuple(some) for some in seen.tolist()), best.tolist()
    each = tuple(temperatures), answered, values, masses, ranked, tuple(found)
    return Verdict(file, view.changes, len(view.snapshot), CONFIDENCE, *each)


def _leaving(view: View, rows: Rows) -> Generator[float, None, ListIndex]:
    """The index without some rows."""
    assert view.followed is not None
    index = view.followed.joined
    for part in view.followed.leaving(view.snapshot, rows):
        index = part
        yield MOST
    return index if view.labels is None else with_labels(index, len(view.labels))


def _portions(view: View, left_out: Rows, temperatures: int) -> Iterator[Rows]:
    """How many left-out items are asked at once: as many as there is room for the sums of their values."""
    width = view.layout.value_width if view.labels is None else len(view.labels)
    step = max(1, HELD // (width * temperatures))
    return (left_out[start : start + step] for start in range(0, len(left_out), step))


def _temperatures(view: View, index: ListIndex) -> list[float]:
    """The lowest that was calibrated, that of the store, and the highest."""
    low, high = (float(one) for one in index.calibration.temperatures[[0, -1]])
    return sorted({low, min(max(low, view.usual_temperature), high), high})


def _question(view: View, index: ListIndex, rows: Rows, temperature: float) -> Question:
    """A lookup with default options, with the keys of some rows as queries, in the way that was calibrated."""
    keys, compared = view.snapshot.vectors(rows), index.form.compatibility
    return Question(keys, compatibility=compared, temperature=temperature, tolerance=TOLERANCE, show=0)


class _Pace:
    """The size of a step, so that it takes about so many seconds."""

    def __init__(self, first: int, seconds: float) -> None:
        self.size, self._seconds, self.next = first, seconds, seconds  # what the next is expected to take

    @contextmanager
    def measured(self, done: int) -> Iterator[None]:
        """Measure how long a step takes, and adapt the size of the next one."""
        before = clock()
        yield
        took = max(clock() - before, 1e-6)
        self.size = max(1, min(2 * done, int(done * self._seconds / took)))
        self.next = took * self.size / done


def _exactly(
    view: View, index: ListIndex, asked: list[Asking], counted: Flags
) -> Generator[float, None, tuple[list[Truth], Ranking]]:
    """The exact answers to all questions, and the best rows of each, by all rows that count.

    Values are in the units of the index.
    """
    snapshot, coldest, pace, start = view.snapshot, asked[0], _Pace(FIRST, SCANNED), 0
    width = view.layout.value_width if view.labels is None else len(view.labels)
    found = [Truth(coldest.count, width) for _ in asked]
    ranking = no_ranking(np.empty((coldest.count, 0), np.float32), BEST[-1])
    while start < snapshot.rows:
        stop = min(start + pace.size, snapshot.rows)
        with pace.measured(stop - start):
            logits = coldest.logits(start, stop)
            logits[:, ~counted[start:stop]] = -np.inf
            ranking = ranking.offer(logits, logits.max(1), start)
            values = _in_units(summable(snapshot.values(np.arange(start, stop)), snapshot), index.units)
            for asking, truth in zip(asked, found, strict=True):
                cooler = np.float32(coldest.temperatures[0] / asking.temperatures[0])
                truth.add(logits * cooler, values, counted[start:stop])
        start = stop
        yield pace.next
    return found, ranking.in_order()


def _in_units(values: AnyArray, units: Units) -> AnyArray:
    """Values in the units of the statistics, so that sums in float32 lose little; codes of labels as they are."""
    return values if values.ndim == 1 else ((values - units.middle) / units.size).astype(np.float32)


def _compared(asking: Asking, truth: Truth) -> Generator[float, None, npt.NDArray[np.int64]]:
    """How many are answered by the index, and of these, how many values and log masses are within the stated error."""
    suited, pace, seen = np.flatnonzero(asking.suited()), _Pace(1, ESTIMATED), np.zeros(3, np.int64)
    yield MOST
    while len(suited):
        some, suited = suited[: pace.size], suited[pace.size :]
        with pace.measured(len(some)):
            found = asking.answers(some)
            stated = asking.presented(found, some, CALIBRATED)
            assert stated.error is not None
            assert stated.log_mass_error is not None
            units = asking.index.units
            apart = np.linalg.norm(truth.values[some] * units.size + units.middle - found.blend.value, axis=1)
            sure = found.sure & np.isfinite(stated.error) & np.isfinite(apart)
            off = np.abs(found.blend.log_mass - truth.log_masses[some])
            within = sure & (apart <= stated.error), sure & (off <= stated.log_mass_error)
            seen += [int(one.sum()) for one in (sure, *within)]
        yield pace.next
    return seen


def _found(asking: Asking, ranking: Ranking) -> Generator[float, None, npt.NDArray[np.int64]]:
    """How many of the queries are like those rehearsed, and for how many of these the k best are found, for each k."""
    index, pace, seen = asking.index, _Pace(1, ESTIMATED), np.zeros(1 + len(BEST), np.int64)
    equal = np.where(np.isfinite(asking.equal), asking.equal, np.nan)
    usual = np.flatnonzero(ranking.logits[:, 0] * equal >= index.calibration.strange)
    owners, seen[0] = index.owners(ranking.rows[usual].ravel()).reshape(len(usual), -1), len(usual)
    yield MOST
    for place, k in enumerate(BEST, 1):
        depth, start = asking.depth_of(k), 0
        if depth is None:  # nothing is stated of so many
            seen[place] = len(usual)
            continue
        while start < len(usual):
            some = usual[start : start + pace.size]
            with pace.measured(len(some)):
                tilt, most = tilted(index.quick, asking.vectors[some]), index.form.most(asking.added[some])
                order, before = ranked(index.quick, tilt, k, most)
                shares = needed(index.quick, order, before, owners[start : start + len(some), :k])
                seen[place] += int((shares <= depth[1]).sum())
            start += len(some)
            yield pace.next
    return seen
