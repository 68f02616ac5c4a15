"""The share of each label among the rows of each list; only labels that occur are held.

A list of fifty rows has fifty labels at most, however many the store has. Tallies are held, so that adding and removing
rows leaves no rounding behind; products and distances use shares. Labels count as vectors that are 1 at their code and
0 elsewhere; no such vector is ever made. How labels change with keys, the slope, is known for the most frequent ones.

Does not measure keys (moments.py) or estimate anything (farfield.py).

Shapes: l lists, m labels that occur in lists, p labels, s labels with a slope, n rows, b queries, d key width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from softkv.ndarrays import AnyArray, Codes, Counts, Floats, Reals

SLOPED = 1024  # labels that have a slope; the others have too few rows each to estimate one
FULL = 8  # up to this many shares for each nonzero one, they are multiplied as a dense matrix
MOST = 1 << 31  # labels
_NONE: Counts = np.empty(0, np.int64)
PARTS = ("starts", "codes", "tallies", "sloped", "labels")  # that shares are kept as
ROUNDED = 2.0**-40  # by how much squares that are a difference of squares are taken to be larger


@dataclass(frozen=True, eq=False)
class Shares:
    """The shares of labels in lists, (l, p)."""

    starts: Counts  # (l + 1,), where the labels of each list begin
    codes: Counts  # (m,), rising within a list
    tallies: Reals  # (m,), how many of its rows have them
    sloped: Counts  # (s,), the codes that have a slope, rising
    labels: int  # p

    __array_ufunc__ = None  # so that array @ shares calls __rmatmul__ of this class

    @classmethod
    def of(cls, owners: Counts, codes: Codes, tallies: Reals, *, lists: int, labels: int) -> "Shares":
        """Shares from the numbers of rows of labels in lists; labels whose numbers add up to 0 are left out."""
        labels = max(labels, int(codes.max(initial=-1)) + 1)
        places, entries = np.unique(owners * labels + codes, return_inverse=True)
        sums = np.bincount(entries, tallies, len(places)).astype(np.float64)
        there = sums > 0
        places, sums = places[there], sums[there]
        starts = np.searchsorted(places, np.arange(lists + 1) * labels)
        return cls(starts, places % labels, sums, _NONE, labels)

    @classmethod
    def joined(cls, parts: Sequence["Shares"], *, lists: int, labels: int) -> "Shares":
        """The shares among the rows of all parts together."""
        owners, codes = (np.concatenate([*(getattr(one, x) for one in parts), _NONE]) for x in ("owners", "codes"))
        tallies = np.concatenate([np.empty(0), *(one.tallies for one in parts)])
        return cls.of(owners, codes, tallies, lists=lists, labels=labels)

    @property
    def shape(self) -> tuple[int, int]:
        """How many lists and labels there are."""
        return len(self.starts) - 1, self.labels

    @cached_property
    def owners(self) -> Counts:
        """The lists that labels occur in, (m,)."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.starts))

    @cached_property
    def rows(self) -> Floats:
        """How many rows each list has, (l,)."""
        return np.bincount(self.owners, self.tallies, self.shape[0]).astype(np.float64)

    @cached_property
    def amounts(self) -> Floats:
        """The shares, (m,), in float64, as sums by label are."""
        return self.tallies / self.rows[self.owners]

    @property
    def steep(self) -> slice | Counts:
        """Where the labels are that have a slope."""
        return slice(None) if len(self.sloped) == self.labels else self.sloped

    @cached_property
    def squares(self) -> Floats:
        """The squared length of the shares of each list, (l,)."""
        return np.bincount(self.owners, self.amounts * self.amounts, self.shape[0]).astype(np.float64)

    def astype(self, dtype: npt.DTypeLike) -> "Shares":
        """Shares that are numbers of this type."""
        return replace(self, tallies=self.tallies.astype(dtype))

    def copy(self) -> "Shares":
        """The shares themselves, since they never change."""
        return self

    def with_labels(self, labels: int) -> "Shares":
        """The shares where there are more labels, which no list has."""
        return self if labels <= self.labels else replace(self, labels=labels)

    def with_slope_of_frequent(self) -> "Shares":
        """The shares with a slope for the most frequent labels."""
        rows = np.bincount(self.codes, self.tallies, self.labels)
        return replace(self, sloped=np.sort(np.argsort(-rows, kind="stable")[:SLOPED]))

    def with_more(self, owners: Counts, codes: Counts, amount: float) -> "Shares":
        """The shares once so many rows of each of these labels are in these lists; fewer where it is below zero."""
        more = np.concatenate([self.tallies, np.full(len(codes), amount)])
        owners, codes = np.concatenate([self.owners, owners]), np.concatenate([self.codes, codes])
        found = Shares.of(owners, codes, more, lists=self.shape[0], labels=self.labels)
        return replace(found, sloped=self.sloped)

    def __rmatmul__(self, masses: Reals) -> Floats:
        """Masses of lists times their shares, (b, l) -> (b, p)."""
        if self._dense is not None:
            return masses @ self._dense
        found, sizes = np.empty((len(masses), self.labels)), np.diff(self.starts)
        for total, mass in zip(found, masses.astype(np.float64), strict=True):
            total[:] = np.bincount(self.codes, np.repeat(mass, sizes) * self.amounts, self.labels)
        return found

    @cached_property
    def _dense(self) -> Floats | None:
        """All shares as a matrix, where so few are zero that multiplying them all is faster; else None."""
        if self.labels * self.shape[0] > FULL * len(self.codes):
            return None
        found = np.zeros(self.shape)
        found[self.owners, self.codes] = self.amounts
        return found

    def with_pull(self, totals: Floats, pulled: Reals) -> Floats:
        """Totals, (b, p), and what the slope adds to those of the labels that have one, (b, s)."""
        totals[:, self.steep] += pulled
        return totals

    def distances(self, centres: Reals) -> Floats:
        """How far the shares of each list lie from some distributions, (b, p) -> (b, l); never too short."""
        centres = centres.astype(np.float64, copy=False)
        if self._dense is not None:
            crossed = centres @ self._dense.T
        else:
            crossed, filled = np.zeros((len(centres), self.shape[0])), np.flatnonzero(np.diff(self.starts))
            for some, centre in zip(crossed, centres, strict=True):
                some[filled] = np.add.reduceat(np.take(centre, self.codes) * self.amounts, self.starts[filled])
        whole = np.einsum("bp,bp->b", centres, centres)[:, None]
        lost = (1.0 + whole) * (self.labels + 2) * 2.0**-50  # what sums of so many terms may lose
        found: Floats = np.sqrt(np.maximum(self.squares - 2.0 * crossed + whole, 0.0) + lost)
        return found

    def apart(self, owners: Counts, codes: Codes) -> Floats:
        """The squared distances of rows of these labels from the shares of these lists, (n,)."""
        known = self.with_labels(int(codes.max(initial=-1)) + 1)
        return np.maximum(1.0 - 2.0 * known._amounts_of(owners, codes) + known.squares[owners], 0.0)

    def of_rows(self, owners: Counts, codes: Counts, slope: Reals) -> "Labelled":
        """Rows of these labels, counted from the shares of their lists."""
        known = self.with_labels(int(codes.max(initial=-1)) + 1)
        lists, places = np.unique(owners, return_inverse=True)
        squares, own = known.apart(owners, codes), known._slopes(slope)[known._place[codes]]
        return Labelled(squares, own - known._sloping(lists, slope)[places], codes, own)

    def add_by_slope(self, sums: Floats, codes: Codes, y: Reals) -> None:
        """Add keys, (n, d), to the sums of the labels that have a slope, (s, d)."""
        places, found = sums_by(self._place[codes], y)
        known = places < len(sums)
        sums[places[known]] += found[known]

    def moved_to(self, after: "Shares", lists: Counts, slope: Reals) -> "Turned":
        """How far the shares of some lists have moved."""
        before = self.with_labels(after.labels)
        places, entries = np.unique(np.concatenate([before._places, after._places]), return_inverse=True)
        apart = np.bincount(entries, np.concatenate([-before.amounts, after.amounts]), len(places))
        squares = np.bincount(places // after.labels, apart * apart, self.shape[0]).astype(np.float64)
        return Turned(squares[lists], after._sloping(lists, slope) - before._sloping(lists, slope))

    def encoded(self, name: str) -> dict[str, AnyArray]:
        """The shares as arrays whose names begin like this."""
        arrays = self.starts, self.codes, self.tallies, self.sloped, np.array([self.labels])
        return {f"{name}.{part}": x for part, x in zip(PARTS, arrays, strict=True)}

    @classmethod
    def decoded(cls, name: str, arrays: Mapping[str, AnyArray]) -> "Shares":
        """The shares in arrays, which may be anything (`problem`)."""
        starts, codes, tallies, sloped, labels = (arrays[f"{name}.{part}"] for part in PARTS)
        flat = all(x.ndim == 1 for x in (starts, codes, tallies, sloped))
        if not flat or labels.shape != (1,) or labels.dtype != np.int64:
            raise ValueError(f"{name} that are shares")
        return cls(starts, codes, tallies, sloped, int(labels[0]))

    def problem(self, counts: Reals) -> str | None:
        """Why these cannot be the shares of lists with so many rows, if they cannot; `counts` may be anything, too."""
        starts, codes, sloped = arrays = self.starts, self.codes, self.sloped
        if any(x.dtype != np.int64 for x in arrays) or self.tallies.dtype != np.float64:
            return "holds shares of another type"
        if self.tallies.shape != codes.shape or not 0 < self.labels < MOST:
            return f"holds {len(codes)} shares of {self.labels} labels"
        if counts.shape != (len(starts) - 1,) or starts[0] or starts[-1] != len(codes) or (np.diff(starts) < 0).any():
            return "does not divide labels into lists"
        if not (_within(codes, self.labels) and _within(sloped, self.labels) and (np.diff(sloped) > 0).all()):
            return "holds labels that are not there"
        if not ((np.diff(self._places) > 0).all() and (self.tallies > 0).all() and (self.rows == counts).all()):
            return "counts other labels than rows"
        return None

    @cached_property
    def _places(self) -> Counts:
        """The places of list and label among all of them, (m,), rising."""
        return self.owners * self.labels + self.codes

    def _slopes(self, slope: Reals) -> Floats:
        """The slopes of labels by `_place`, (s + 1, d)."""
        return np.vstack([slope, np.zeros((1, slope.shape[1]))])

    @cached_property
    def _place(self) -> Counts:
        """Where the slope of each label is, (p,)."""
        found = np.full(self.labels, len(self.sloped))
        found[self.sloped] = np.arange(len(self.sloped))
        return found

    def _sloping(self, lists: Counts, slope: Reals) -> Floats:
        """The shares of some lists times the slope, (l, d)."""
        slopes, places = self._slopes(slope), self._place[self.codes]
        bounds = zip(self.starts[lists].tolist(), self.starts[lists + 1].tolist(), strict=True)
        found = [self.amounts[start:stop] @ slopes[places[start:stop]] for start, stop in bounds]
        return np.array(found).reshape(len(lists), slope.shape[1])

    def _amounts_of(self, owners: Counts, codes: Counts) -> Floats:
        """The share of each of these labels in these lists, (n,)."""
        wanted = owners * self.labels + codes
        entries = np.minimum(np.searchsorted(self._places, wanted), max(len(self.codes) - 1, 0))
        if not len(self.codes):
            return np.zeros(len(codes))
        return np.where(self._places[entries] == wanted, self.amounts[entries], 0.0)


@dataclass(frozen=True, eq=False)
class Turned:
    """What statistics need of values relative to means, or of changes of means."""

    squares: Floats  # (n,), their squared lengths
    turned: Floats  # (n, d), their products with the slope

    def left(self, slope: Reals, axes: slice, x: Reals) -> Floats:
        """‖u − Ax‖², (n,), for what lies along some axes, (n, r) of (n, d); never less."""
        x = x.astype(np.float64, copy=False)
        some = slope[:, axes].astype(np.float64, copy=False)
        pulled = np.einsum("ij,ij->i", x @ (some.T @ some), x)
        left = self.squares - 2.0 * np.einsum("ij,ij->i", self.turned[:, axes], x) + pulled
        found: Floats = np.maximum(left, 0.0) + ROUNDED * (self.squares + pulled)
        return found


@dataclass(frozen=True, eq=False)
class Labelled(Turned):
    """Labels of rows, counted from the shares of their lists."""

    codes: Counts  # (n,)
    own: Floats  # (n, d), the slopes of the labels themselves

    def gaps(self, rows: slice, y: Reals, spread: Reals, slope: Reals, profile: Reals) -> tuple[float, float]:
        """‖C − AΣ‖, times their number, of some rows of one list: along the leading axes and along the others.

        C is the sums of keys by label, since the keys of a list add up to zero; `spread` is Σ along the leading
        axes, times the number.
        """
        y, spread = (x.astype(np.float64, copy=False) for x in (y, spread))
        lead, own, (_, sums) = len(spread), self.own[rows], sums_by(self.codes[rows], y)
        outside = float((y[:, lead:] ** 2).sum())
        moved = slope[:, :lead] @ spread, slope[:, lead:] * (outside * profile)
        crossed = (own[:, :lead].T @ y[:, :lead]) * spread, own[:, lead:] * y[:, lead:] * (outside * profile)
        inner, outer = (
            _apart(float((some**2).sum()), float(between.sum()), float((others**2).sum()))
            for some, between, others in zip((sums[:, :lead], sums[:, lead:]), crossed, moved, strict=True)
        )
        return inner, outer


def _apart(left: float, crossed: float, right: float) -> float:
    """‖x − y‖ by ‖x‖², x·y and ‖y‖², and never less."""
    return math.sqrt(max(left - 2.0 * crossed + right, 0.0) + ROUNDED * (left + right))


def sums_by(codes: Counts, x: Reals) -> tuple[Counts, Floats]:
    """The codes that occur, (m,), rising, and the sums of the rows that have them, (m, d)."""
    order = np.argsort(codes, kind="stable")
    ranked = codes[order]
    firsts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])[: len(ranked)])
    sums: Floats = np.add.reduceat(x[order], firsts, axis=0, dtype=np.float64)
    return ranked[firsts], sums


def _within(codes: Counts, labels: int) -> bool:
    return bool(((codes >= 0) & (codes < labels)).all())
