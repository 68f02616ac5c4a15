"""Ask a new index for the middles of two items, to find out whether its plans miss rows that are like a query.

A query in the middle between two keys is like both, more than like any other key where keys have no clusters, and each
may lie in a list of which nothing is expected. Where too many answers leave out these and so are off by more than they
state, such rows have to be found by their signs (index/signs.py). A middle is shorter than the keys, and so unlike them
where all keys are equally long: it is asked for as it is, and made as long as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from softkv.asking.indexed import placed_by, with_labels
from softkv.asking.lists import Asking
from softkv.asking.question import Question
from softkv.asking.view import View
from softkv.index.calibration import quantile_of
from softkv.index.lists import ListIndex
from softkv.index.looks import scored
from softkv.index.rehearsal import USUAL
from softkv.index.signs import TOLERANCES, Need, Signs
from softkv.maths.blas import free_threads
from softkv.maths.forms import Form
from softkv.ndarrays import Floats, Matrix, Reals, Rows
from softkv.progress import Stages
from softkv.storage import Snapshot

ASKED = 64  # pairs of items
MISSED = 0.1  # so many may be off: they are unlike the items, of which one in twenty may be
FARTHER = 2.5  # items are searched in so many times as many lists as it takes for nineteen in twenty
LEFT = 0.5  # signs are kept if they leave no more than this share of those that are off
SHOWN = 128  # the heaviest rows that were read, among which is each that weighs more than a hundredth


@free_threads()
def signed(index: ListIndex, snapshot: Snapshot, now: View, progress: Stages) -> ListIndex:
    """A new index of these rows, with their signs if it needs them, and they help; `now` is the store.

    Where rows have been laid in another order meanwhile, the index will not be written, and stays as it is. So it does
    where the store has learned or forgotten a metric meanwhile, by which it would have to be asked.
    """
    moved = now.snapshot.generation != snapshot.generation
    if moved or not now.snapshot.live[: index.rows].any() or not _compares_so(now, index):
        return index
    index.facts["middles"], asked = asked_of(index.form), index
    if now.labels is not None:  # some may have come meanwhile
        asked = with_labels(index, len(now.labels))

    def with_signs() -> ListIndex:
        placed, told = placed_by(index.form, snapshot), partial(progress, "noting signs of rows")
        return replace(asked, signs=Signs.of(placed, index.rows, told))

    need, found = needed(asked, now, with_signs)
    return replace(index, signs=None if need is None else found.signs, need=need)


def needed(index: ListIndex, view: View, with_signs: Callable[[], ListIndex]) -> tuple[Need | None, ListIndex]:
    """For which lookups rows have to be found by their signs, if for any and it helps, and the index with signs.

    These are asked for where something is missing without them.
    """
    live = np.flatnonzero(view.snapshot.live[: index.known])
    live = live[index.owners(live) >= 0]
    if not len(live):
        return None, index
    both = _Middles.both(view, index, np.random.default_rng(3).choice(live, (ASKED, 2)))
    wrong = [middles.wrong(index) for middles in both]
    if not any(one.is_much for one in wrong):
        return None, index
    always, share = np.full(len(TOLERANCES) + 1, np.inf, np.float32), np.max([one.share(index) for one in both], axis=0)
    found = replace(with_signs(), need=Need(always, share))
    warmest = np.max([middles.helped(found, one) for middles, one in zip(both, wrong, strict=True)], axis=0)
    return Need(warmest, share) if warmest.any() else None, found


def asked_of(form: Form) -> int:
    """How many middles an index of this form is asked for."""
    return ASKED if form.name == "cosine" else 2 * ASKED


def _compares_so(now: View, index: ListIndex) -> bool:
    """Whether the store still has the metric that an index was made for, if it was made for one."""
    metric = index.form.metric
    return metric is None or (now.learned is not None and np.array_equal(now.learned.metric.factors, metric.factors))


class _Missing(NamedTuple):
    """Where too many answers are off."""

    warmest: float  # up to which temperature: the next one, since between two of them a plan is that for both
    temperature: float
    tolerance: float
    off: float  # how many are then


class _Wrong(NamedTuple):
    """What an index answers wrongly."""

    missing: list[_Missing | None]  # for each of TOLERANCES
    lost: float  # of the two best

    @property
    def is_much(self) -> bool:
        """Whether it is more than may be."""
        return any(self.missing) or self.lost > MISSED


@dataclass(frozen=True, slots=True, eq=False)
class _Middles:
    """The middles of some pairs of items."""

    view: View
    rows: Rows  # (c, 2)
    queries: Matrix  # (c, d)

    @classmethod
    def both(cls, view: View, index: ListIndex, rows: Rows) -> "list[_Middles]":
        """The middles of the keys of two rows each, and these made as long as the keys; one where lengths count not."""
        keys: Reals = view.snapshot.vectors(rows.ravel()).astype(np.float64)
        if index.form.name == "cosine":
            keys = index.form.keys(keys)
        keys = keys.reshape(*rows.shape, -1)
        middles = keys.mean(1)
        lengths, usual = np.linalg.norm(middles, axis=1, keepdims=True), np.linalg.norm(keys, axis=2).mean(1)[:, None]
        longer = middles * (usual / np.where(lengths > 0, lengths, np.inf))
        some = [middles] if index.form.name == "cosine" else [middles, longer]
        return [cls(view, rows, one.astype(np.float32)) for one in some]

    def wrong(self, index: ListIndex) -> _Wrong:
        """What an index without signs answers wrongly."""
        return _Wrong([self.missing(index, tolerance) for tolerance in TOLERANCES], self.lost(index))

    def helped(self, found: ListIndex, wrong: _Wrong) -> npt.NDArray[np.float32]:
        """Up to which temperature signs are needed, and help, (3,): for each of TOLERANCES, and the k best."""
        warmest = [
            one.warmest if one and self.off(found, one.temperature, one.tolerance) <= LEFT * one.off else 0.0
            for one in wrong.missing
        ]
        warmest.append(np.inf if wrong.lost > MISSED and self.lost(found) <= LEFT * wrong.lost else 0.0)
        return np.array(warmest, np.float32)

    def missing(self, index: ListIndex, tolerance: float) -> _Missing | None:
        """The warmest of the calibrated temperatures at which too many answers are off; None where there is none."""
        warmer = np.inf
        for temperature in reversed(index.calibration.temperatures.tolist()):
            if (off := self.off(index, temperature, tolerance)) > MISSED:
                return _Missing(warmer, temperature, tolerance, off)
            warmer = temperature
        return None

    def lost(self, index: ListIndex) -> float:
        """The share of which an item is among the two best, and is not found though the answer is sure."""
        question = Question(self.queries, index.form.compatibility, 1.0, k=2, tolerance=TOLERANCES[0])
        asking = Asking(self.view, index, question)
        some = np.flatnonzero(asking.suited())
        if not len(some):
            return 0.0
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = asking.answers(some)
            near = found.near
            better = self._logits(asking, some) > near.logits[:, 1:2]
        unread = ~(self.rows[some][:, :, None] == near.rows[:, None]).any(2)
        return float((found.sure & (better & unread).any(1)).sum()) / len(self.queries)

    def off(self, index: ListIndex, temperature: float, tolerance: float) -> float:
        """The share of those answered of which the answer is off by more than it states, since it leaves out an item.

        Few that are answered count as some more.
        """
        compared = index.form.compatibility
        question = Question(self.queries, compared, temperature, tolerance=tolerance, show=SHOWN)
        asking = Asking(self.view, index, question)
        some = np.flatnonzero(asking.suited())
        if not len(some):
            return 0.0
        arena, count = asking.arena(), 0
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is no answer
            found = asking.answers(some)
            logits = self._logits(asking, some)
            for place in np.flatnonzero(found.sure).tolist():
                pair = self.rows[some[place]]
                weights = np.exp(logits[place] - found.blend.log_mass[place])
                weights[np.isin(pair, found.near.rows[place])] = 0.0
                apart, total = np.sqrt(arena.some_values(pair).squares(found.blend.value[place])), weights.sum()
                wrong = weights @ apart > (1.0 + total) * found.error[place]
                count += int(wrong or np.log1p(total) > found.log_mass_error[place])
        return count / max(int(found.sure.sum()), len(self.queries) // 4)

    def share(self, index: ListIndex) -> npt.NDArray[np.float32]:
        """The share of the lists, those likeliest to hold the best rows, in which items are to be searched, (1,)."""
        asking = Asking(self.view, index, Question(self.queries, index.form.compatibility, 1.0))
        likely = asking.asked(np.arange(len(self.queries))).likely
        own: Reals = np.take_along_axis(likely, index.owners(self.rows.ravel()).reshape(self.rows.shape), axis=1)
        before: Floats = (likely[:, None] > own[:, :, None]).mean(2)
        usual = float(quantile_of(before.ravel(), USUAL))
        return np.full(1, min(1.0, FARTHER * usual + 1.0 / len(index.lists.counts)), np.float32)

    def _logits(self, asking: Asking, some: Rows) -> Reals:
        """The logits of some of them with the two items that each lies between, (b, 2)."""
        logits: Reals = scored(asking.asked(some), self.rows[some].ravel()).reshape(len(some), -1, 2)
        return logits[np.arange(len(some)), np.arange(len(some))]
