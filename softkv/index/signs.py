"""On which side of some planes each row lies: enough to find the few rows that are like a query, wherever they lie.

Statistics of lists do not tell of a row that is like a query while the other rows of its list are not, as each of two
items is like the point in the middle between them. All planes go through the mean of the keys, in random directions: of
two keys with an angle α between them, a plane separates the share α/π (Goemans and Williamson, 1995; Charikar, 2002).
In 192 bits, those of a row that is like a query differ in far fewer places than those of any other. Keys are stretched
before, along each axis by the fourth root of their variance there: differences along a few axes, which many rows have
in common, then count less.

The first 64 planes tell which rows are worth comparing by the others. That does not rank rows: the keys of the best few
are compared themselves (search.py). Where signs are needed tells database/middles.py.

Shapes: n rows, d key width, w words of 64 bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from softkv.ndarrays import AnyArray, Counts, Flags, Floats, Reals, Rows
from softkv.progress import Progress, untold

PLANES = 192
TOLERANCES = 0.01, 0.05  # for which it is known up to which temperature rows have to be found by their signs
WORD = 64  # planes of a word
SAME = 1.05  # times a tolerance that is one of these all the same
SAMPLE = 1 << 14  # rows that tell how keys vary
LEAST = 1e-4  # the least variance along an axis, as a share of the largest
TINY = 1e-30  # the least variance of all
WORTH = 0.03  # the share of the rows that is compared by all planes
FOUND = 192  # rows that are found for each query: in clusters, others differ as little as one in the farther half
BLOCK = 1 << 15  # rows whose bits are compared together: they fit into the caches
CODED = 1 << 13  # rows that are coded together
PREFIX = "signs."  # of the names of its arrays
_NEED = "warmest", "share"
_SIGNS = "middle", "turn", "first", "rest"
_ONES = np.array([bin(number).count("1") for number in range(1 << 8)], np.uint8)

Known = TypeVar("Known")
PlacedKeys = Callable[[int, int], Reals]  # the keys of some consecutive rows, as a form places them


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """For which lookups rows have to be found by their signs, and in which lists."""

    warmest: npt.NDArray[np.float32]  # (3,), up to which temperature, for each of TOLERANCES, and for the k best
    share: npt.NDArray[np.float32]  # (1,), of the lists, those likeliest to hold the best rows

    def of(self, temperatures: Floats, tolerance: float | None) -> Flags:
        """Whether rows that are like a query have to be found, (b,), for a tolerance, or for the k best if None.

        Up to the first of TOLERANCES, and a little more, as for this one; above as for both. For an infinite one, as
        for all, since it is not known what is missed where rows are drawn.
        """
        small, large, best = self.warmest.tolist()
        if tolerance is None:
            warmest = best
        elif tolerance <= SAME * TOLERANCES[0]:
            warmest = small
        else:
            warmest = max(small, large, best) if tolerance == np.inf else max(small, large)
        found: Flags = temperatures <= warmest
        return found

    def encoded(self) -> dict[str, AnyArray]:
        """The arrays."""
        return {f"{PREFIX}{name}": getattr(self, name) for name in _NEED}

    @classmethod
    def decoded(cls, arrays: Mapping[str, AnyArray]) -> "Need | None":
        """What is in these arrays, which may be anything (`problem`); None where there is nothing."""
        return _decoded(cls, _NEED, arrays)

    @property
    def problem(self) -> str | None:
        """Why these numbers cannot be, if so."""
        problem = _problem_of(self, {"warmest": (len(TOLERANCES) + 1,), "share": (1,)})
        return problem or (None if 0.0 < self.share[0] <= 1.0 else "holds signs of no lists")


@dataclass(frozen=True, slots=True, eq=False)
class Signs:
    """The sides on which rows lie: those in lists, and those behind them where that is known of all."""

    middle: npt.NDArray[np.float32]  # (d,), where all planes meet
    turn: npt.NDArray[np.float32]  # (d, PLANES), their directions
    first: Counts  # (n,)
    rest: Counts  # (w - 1, n)
    late: tuple[Counts, Counts] | None = None  # the first and the other words of the rows behind the lists

    @classmethod
    def of(cls, placed: PlacedKeys, total: int, progress: Progress = untold) -> "Signs":
        """The signs of so many rows."""
        runs = np.linspace(0, max(0, total - SAMPLE // 32), 32).astype(np.int64)
        some = np.concatenate([placed(start, min(start + SAMPLE // 32, total)) for start in runs.tolist()])
        some = some.astype(np.float64)
        middle = some.mean(0)
        some = (some - middle) / (float(np.abs(some - middle).max(initial=0.0)) or 1.0)
        variances, axes = np.linalg.eigh(some.T @ some / len(some))
        stretched = np.maximum(variances, max(LEAST * float(variances[-1]), TINY)) ** -0.25
        normals = np.random.default_rng(0).standard_normal((len(axes), max(PLANES, len(axes))))
        normals = np.linalg.qr(normals)[0] if len(axes) >= PLANES else normals
        turn = (axes * stretched) @ normals[:, :PLANES]
        nothing = np.empty(0, np.int64), np.empty((PLANES // WORD - 1, 0), np.int64)
        found = cls(middle.astype(np.float32), turn.astype(np.float32), *nothing)
        return found.anew(placed, total, progress)

    def anew(self, placed: PlacedKeys, total: int, progress: Progress = untold) -> "Signs":
        """The signs of other rows by the same planes."""
        first, rest = np.empty(total, np.int64), np.empty((PLANES // WORD - 1, total), np.int64)
        for start in range(0, total, CODED):
            stop = min(start + CODED, total)
            words = self.coded(placed(start, stop))
            first[start:stop], rest[:, start:stop] = words[:, 0], words[:, 1:].T
            progress(stop, total)
        return replace(self, first=first, rest=rest, late=None)

    def coded(self, keys: Reals) -> Counts:
        """The words of some keys, (n, d) -> (n, w)."""
        with np.errstate(over="ignore", invalid="ignore"):  # a key beyond float32 is like no other
            sides = (keys.astype(np.float32, copy=False) - self.middle) @ self.turn > 0
        words: Counts = np.packbits(sides, axis=1).view(np.int64)
        return words

    def with_late(self, words: AnyArray | None) -> "Signs":
        """The signs with the words of the rows behind the lists, (n, w)."""
        parts = None if words is None else (np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1:].T))
        return replace(self, late=parts)

    def found(self, point: Reals, starts: Counts, stops: Counts, live: Flags | None) -> Rows:
        """The rows that are most like a point, (d,), as keys are placed: `live` ones of some runs, and late ones."""
        words = self.coded(point[None])[0]
        runs = list(zip(starts.tolist(), stops.tolist(), strict=True))
        near = np.concatenate([_apart(self.first[start:stop], words[0]) for start, stop in [(0, 0), *runs]])
        late = None if self.late is None else _apart(self.late[0], words[0])
        sample, ends = near[:: max(1, len(near) // SAMPLE)], (stops - starts).cumsum()
        place = int(WORTH * len(sample))
        worth = int(np.partition(sample, place)[place]) if len(sample) else WORD
        for most in (worth, WORD):
            some = np.flatnonzero(near <= most)
            rows = some + (stops - ends)[np.searchsorted(ends, some, side="right")]
            rows, far = _apart_in_all(rows, near[some], self.rest, words, live, 0)
            if self.late is not None and late is not None:
                some = np.flatnonzero(late <= most)
                also = _apart_in_all(some, late[some], self.late[1], words, live, len(self.first))
                rows, far = np.append(rows, also[0]), np.append(far, also[1])
            if len(rows) >= FOUND:  # else hardly any of those rows is live
                break
        found: Rows = rows[np.argpartition(far, FOUND)[:FOUND]] if len(rows) > FOUND else rows
        return found

    def encoded(self) -> dict[str, AnyArray]:
        """The arrays, but for those of late rows."""
        return {f"{PREFIX}{name}": getattr(self, name) for name in _SIGNS}

    @classmethod
    def decoded(cls, arrays: Mapping[str, AnyArray]) -> "Signs | None":
        """What is in these arrays, which may be anything (`problem`); None where there is nothing."""
        return _decoded(cls, _SIGNS, arrays)

    def problem(self, rows: int, width: int) -> str | None:
        """Why these cannot be the signs of so many rows of keys of this width, if so."""
        fits = self.first.shape == (rows,) and self.rest.shape == (PLANES // WORD - 1, rows)
        if not fits or not self.first.dtype == self.rest.dtype == np.int64:
            return "holds signs that are none"
        return _problem_of(self, {"middle": (width,), "turn": (width, PLANES)})

    @staticmethod
    def problem_of(rows: int, words: AnyArray) -> str | None:
        """Why these cannot be the words of so many rows, (n, w), if so."""
        fits = words.shape == (rows, PLANES // WORD) and words.dtype == np.int64
        return None if fits else "holds signs that are none"


def _decoded(kind: Callable[..., Known], names: Sequence[str], arrays: Mapping[str, AnyArray]) -> Known | None:
    """What was written by these names; None where nothing was."""
    written = [f"{PREFIX}{name}" for name in names]
    if not any(name in arrays for name in written):
        return None
    return kind(*(arrays[name] for name in written))


def _problem_of(known: Need | Signs, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Why arrays of these shapes cannot be, if so."""
    for name, shape in shapes.items():
        found = getattr(known, name)
        if found.shape != shape or found.dtype != np.float32 or np.isnan(found).any():
            return f"holds signs by a {name} that is none"
    return None


def _apart_in_all(
    rows: Rows, near: npt.NDArray[np.uint8], rest: Counts, words: Counts, live: Flags | None, first: int
) -> tuple[Rows, npt.NDArray[np.uint8]]:
    """The live ones of some rows, counted from the `first`, and in how many bits all their words differ from a query's.

    Their first words differ in `near` bits.
    """
    if live is not None:
        there = live[first + rows]
        rows, near = rows[there], near[there]
    for others, word in zip(rest, words[1:], strict=True):
        near = near + _ones(others[rows] ^ word)
    return first + rows, near


def _apart(words: Counts, word: np.int64) -> npt.NDArray[np.uint8]:
    """In how many bits words differ from one, (n,)."""
    found, differing = np.empty(len(words), np.uint8), np.empty(BLOCK, np.int64)
    for start in range(0, len(words), BLOCK):
        stop = min(start + BLOCK, len(words))
        found[start:stop] = _ones(np.bitwise_xor(words[start:stop], word, out=differing[: stop - start]))
    return found


def _ones(words: Counts) -> npt.NDArray[np.uint8]:
    """How many bits of each word are 1.

    >>> _ones(np.array([0, 1, -1])).tolist()
    [0, 1, 64]
    """
    if hasattr(np, "bitwise_count"):  # from NumPy 2 on, and many times as fast
        found: npt.NDArray[np.uint8] = np.bitwise_count(words.view(np.uint64))
    else:
        bits = _ONES[np.ascontiguousarray(words).view(np.uint8)]
        found = bits.reshape(*words.shape, 8).sum(-1, dtype=np.uint8)
    return found
