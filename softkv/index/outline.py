"""A few bytes of each row, which tell roughly how it scores: enough to say which rows of a list are worth reading.

A key is the mean of its list and a difference from it. Of that, the parts along the leading axes of the lists
(maths/summaries.py) are kept in 8 bits each, and of all that they leave, the squared length. If what is left points
nowhere in particular, a logit is normal, with a mean and a variance that follow. An outline is made where the leading
axes tell enough, and takes a small part of what the keys take.

Does not choose which rows to read (screening.py).

Shapes: n rows in lists, l lists, d key width, r leading axes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from softkv.index.calibration import quantile_of
from softkv.index.opening import NEAREST, nearest
from softkv.maths.farfield import tilted
from softkv.maths.ranking import Ranking
from softkv.maths.summaries import Lists
from softkv.ndarrays import AnyArray, Counts, Reals
from softkv.progress import Progress, untold

SMALLER = 12  # it takes at most one in so many bytes of the keys
TELLING = 0.2  # the least share of the variance within lists that the leading axes have
SPAN = 6.0  # standard deviations that 8 bits span; what is farther counts among what is left
LEVEL = 127  # the largest number of 8 bits, with a sign
SHORTEST, LONGER = 1e-6, 1.12  # the first squared length, as a share of the usual one, and from each to the next
LONGEST = 1e38  # the last, which stands for all longer ones
PREFIX = "outline."  # of the names of its arrays
MATTERING = 16  # of the best rows, as far as a reach has to go
USUAL, LENIENT, LEAST_REACH = 0.995, 1.2, 5.0  # that of so many queries suffices, times a factor; and the least reach
LEAST = 1e-30  # the smallest variance
BLOCK = 1 << 13  # rows looked at together
Keys = Callable[[int, int], Reals]
Coded = tuple[npt.NDArray[np.int8], npt.NDArray[np.uint8]]  # codes and rests of some rows


def is_worth_it(lists: Lists) -> bool:
    """Whether an outline of the rows of these lists is small, and tells something."""
    variances, beyond = lists.within
    along = float(variances.sum())
    small = SMALLER * (lists.leading + 1) <= 4 * lists.means.shape[1]
    return small and 0 < along + beyond < LONGEST and along >= TELLING * (along + beyond)


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """Where rows lie within their lists."""

    codes: npt.NDArray[np.int8]  # (n, r), along the leading axes
    steps: npt.NDArray[np.float32]  # (r,), what a code of 1 stands for
    rests: npt.NDArray[np.uint8]  # (n,), which of the lengths
    lengths: npt.NDArray[np.float32]  # (256,), of what codes leave, squared; rounded up
    # (1,), how many standard deviations a row that matters may be above what is foretold of it; infinite if unknown.
    reach: npt.NDArray[np.float32] = field(default_factory=lambda: np.full(1, np.inf, np.float32))

    @classmethod
    def of(cls, keys: Keys, offsets: Counts, lists: Lists, progress: Progress = untold) -> "Outline | None":
        """The outline of the rows of these lists; None where it would be large, or tell little.

        `keys` gives those of some consecutive rows, as the form makes them.
        """
        if not is_worth_it(lists):
            return None
        along, beyond = lists.within
        whole, leading, total = float(along.sum()) + beyond, lists.leading, int(offsets[-1])
        steps = (SPAN / LEVEL * np.sqrt(np.maximum(along, SHORTEST * whole))).astype(np.float32)
        shortest = SHORTEST * max(beyond, SHORTEST * whole)
        lengths = (shortest * LONGER ** np.arange(256)).astype(np.float32)
        lengths[-1] = LONGEST
        found = cls(np.empty((total, leading), np.int8), steps, np.empty(total, np.uint8), lengths)
        for start in range(0, total, BLOCK):
            stop = min(start + BLOCK, total)
            owners = np.searchsorted(offsets, np.arange(start, stop), side="right") - 1
            found.codes[start:stop], found.rests[start:stop] = found.coded(keys(start, stop), owners, lists)
            progress(stop, total)
        return found

    def coded(self, keys: Reals, owners: Counts, lists: Lists) -> Coded:
        """The codes, (m, r), and rests, (m,), of other rows of the lists `owners`, in the same steps and lengths."""
        moved = (keys - lists.means[owners]).astype(np.float32)
        along = moved @ lists.axes[:, : lists.leading].astype(np.float32)
        codes = np.clip(np.rint(along / self.steps), -LEVEL, LEVEL)
        missed = along - codes * self.steps
        left = np.einsum("nd,nd->n", moved, moved) - np.einsum("nr,nr->n", along, along)
        left = np.maximum(left, 0.0) + np.einsum("nr,nr->n", missed, missed)
        rests = np.minimum(np.searchsorted(self.lengths, left), len(self.lengths) - 1)
        return codes.astype(np.int8), rests.astype(np.uint8)

    def reaching(self, lists: Lists, offsets: Counts, queries: Reals, best: Ranking, *, by_distance: bool) -> "Outline":
        """The outline with a reach that suits queries, (c, d), of which the best rows are known.

        Rows in the lists that are nearest to a query do not count: they are read anyway.
        """
        tilt = tilted(lists, queries.astype(np.float64))
        read = nearest(lists, tilt, queries, NEAREST, by_distance=by_distance)
        missed, highest = np.square(tilt.beyond) @ lists.profile, np.zeros(len(queries))
        for number, query in enumerate(queries):
            rows, scores = best.rows[number, :MATTERING], best.logits[number, :MATTERING]
            owners = np.searchsorted(offsets, rows, side="right") - 1
            some = (rows >= 0) & ~np.isin(owners, read[number])
            along, rests = self.of_some(rows[some], tilt.reduced[number])
            away = scores[some] - (lists.means[owners[some]] @ query + along)
            highest[number] = (away / np.sqrt(np.maximum(rests * missed[number], LEAST))).max(initial=0.0)
        farthest = LENIENT * float(quantile_of(highest, USUAL)) if len(highest) else np.inf
        return replace(self, reach=np.full(1, max(LEAST_REACH, farthest), np.float32))

    def nothing(self, count: int) -> Coded:
        """Codes and rests of so many rows that are in no list."""
        return np.zeros((count, len(self.steps)), np.int8), np.zeros(count, np.uint8)

    def of_runs(self, runs: Sequence[tuple[int, int]], asked: Reals) -> tuple[Reals, Reals]:
        """What a query, (r,) along the leading axes, scores with rows of some runs, and how much of them it misses.

        Scores, (n,), are counted from those of the means of the lists; the others are squared lengths, (n,).
        """
        ends = np.cumsum([0, *(stop - start for start, stop in runs)]).tolist()
        codes, rests = np.empty((ends[-1], len(self.steps)), np.float32), np.empty(ends[-1], np.uint8)
        for (start, stop), place, end in zip(runs, ends, ends[1:], strict=False):
            codes[place:end], rests[place:end] = self.codes[start:stop], self.rests[start:stop]
        return codes @ (asked * self.steps).astype(np.float32), self.lengths[rests]

    def of_some(self, rows: Counts, asked: Reals) -> tuple[Reals, Reals]:
        """The scores and the squared lengths of what they miss, as `of_runs` has them, of single rows."""
        weights = (asked * self.steps).astype(np.float32)
        return self.codes[rows].astype(np.float32) @ weights, self.lengths[self.rests[rows]]

    def encoded(self) -> dict[str, AnyArray]:
        """The outline as arrays."""
        return {f"{PREFIX}{one.name}": getattr(self, one.name) for one in fields(self)}

    @classmethod
    def decoded(cls, arrays: Mapping[str, AnyArray]) -> "Outline | None":
        """The outline in these arrays, which may be anything (`problem_of`); None where there is none."""
        names = [f"{PREFIX}{one.name}" for one in fields(cls)]
        return cls(*(arrays[name] for name in names)) if any(name in arrays for name in names) else None

    def problem(self, rows: int, leading: int) -> str | None:
        """Why this cannot be the outline of so many rows, if so."""
        numbers = np.concatenate([self.steps.ravel(), self.lengths.ravel()])
        if self.steps.shape != (leading,) or self.lengths.shape != (256,) or numbers.dtype != np.float32:
            return "holds an outline in steps that are none"
        if self.reach.shape != (1,) or self.reach.dtype != np.float32 or not self.reach[0] > 0:
            return "holds an outline that reaches nowhere"
        if not (np.isfinite(numbers) & (numbers >= 0)).all():
            return "holds an outline whose steps are no lengths"
        return self.problem_of(rows, self.codes, self.rests)

    def problem_of(self, rows: int, codes: AnyArray, rests: AnyArray) -> str | None:
        """Why these cannot be the codes and rests of so many rows, if so."""
        fits = codes.shape == (rows, len(self.steps)) and rests.shape == (rows,)
        return None if fits and codes.dtype == np.int8 and rests.dtype == np.uint8 else "holds an outline that is none"
