"""One answer from those of several shards: what each says of its own items becomes what all say of all items.

Masses add. Where p is the share of a shard in the mass of all, values are means weighted by p, squares are those within
shards and those between their means, and the entropy is that within shards, weighted by p, and that of p itself. All of
it is computed in float64.

An answer of a shard may be off by E in its value v_s, and by λ in the logarithm of its mass, which moves p. The mean of
all is Σ p e^δ v_s / Σ p e^δ with |δ| ≤ λ, so it is off by no more than

    Σ p (e^λ E + (e^λ − 1) ‖v_s − v‖) / (p e^λ + Σ p' e^-λ')

where p' and λ' are those of the other shards, and a little more where a shard has most of the mass and may have less.
Errors that are measured come from draws that are independent of each other, so the squares of their terms add; other
terms add themselves. `log_mass_error` of an exact answer is how far rounding may have moved its mass.

Does not ask shards (asking.py), and knows no store.

Shapes: m shards, b queries, p value width, r rows shown.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers
from softkv.asking.joined import OF_EACH
from softkv.maths.quantiles import quantile

KINDS = ("exact", "bound", "measured", "calibrated", "unknown")  # of errors, the surest first
DRAWN = KINDS.index("measured")
DOUBLE, SINGLE = 2.0**-53, 2.0**-24  # the rounding of one operation
FEWEST = 8  # shards by which others are estimated
WIDEST = 2.0  # times how far values lie from their mean: how far apart they are at most
NOTHING = {"rows": -1, "log_mass": -np.inf, "scores": -np.inf, "effective": 1.0}  # where no row is seen, else 0

Floats = npt.NDArray[np.float64]


def merged(parts: Sequence[Answers], *, show: int, labels: tuple[object, ...] | None = None) -> Answers:
    """The answers of all rows, from those of disjoint sets of rows to the same queries.

    A part to which a query has no answer has the mass exp(-inf) there. `labels` are those of all, else of the parts.
    """
    sides = _Sides(tuple(parts), labels)
    first, rows = parts[0], _heaviest(parts, show)
    return replace(
        first,
        value=sides.presented(sides.value),
        spread=sides.spread,
        log_mass=sides.log_mass,
        effective=np.exp(sides.entropy),
        mass=None if any(one.mass is None for one in parts) else sides.mean([one.mass for one in parts]),
        **{name: np.sum([getattr(one, name) for one in parts], 0) for name in ("scored", "seen")},
        rows_read=None if first.rows_read is None else sides.column("rows_read").sum(0).astype(np.int64),
        rows=_picked(parts, "rows", rows),
        weights=_picked(parts, "weights", rows, sides.shares),
        scores=_picked(parts, "scores", rows),
        labels=sides.labels,
        error=sides.error,
        **sides.told(),
        log_mass_error=sides.where(sides.kinds.max(0) > 0, sides.log_mass_error),
        effective_error=sides.where(sides.is_drawn, sides.effective_error),
        spread_error=None if first.spread is None else sides.where(sides.is_drawn, sides.spread_error),
        count=sum(one.count for one in parts),
    )


def merged_best(
    parts: Sequence[Answers],
    k: int,
    temperature: Any,
    cells: Callable[[npt.NDArray[np.int64]], Any],
    *,
    show: int,
    labels: tuple[object, ...] | None = None,
) -> Answers:
    """The answers of the k best of all rows, from parts that each name their own k best and the next, if there is one.

    `cells` gives what is blended of rows, (n, p) or codes of the labels of all.
    """
    every = merged(parts, show=sum(one.rows.shape[1] for one in parts), labels=labels)
    logits = every.scores / np.reshape(temperature, (-1, 1))
    best = _Best.of(every, logits, k, cells, _Sides(tuple(parts), labels).column("log_mass_error").max(0))
    return replace(
        every,
        value=_like(every.value, best.value),
        spread=None if every.spread is None else best.spread,
        effective=best.effective,
        mass=np.minimum(np.exp(best.log_mass - every.log_mass), 1.0),
        scored=(every.rows[:, :k] >= 0).sum(1),
        rows=every.rows[:, :show],
        weights=np.where(every.rows >= 0, np.exp(logits - every.log_mass[:, None]), 0.0)[:, :show],
        scores=every.scores[:, :show],
        error=None if every.error is None else best.error + _Sides(tuple(parts), labels).column("error").max(0),
        log_mass_error=None,
        effective_error=None,
        spread_error=None,
    )


def widened(found: Answers, parts: Sequence[Answers], missing: float, confidence: float) -> Answers:
    """Answers of some shards as estimates of those of all, where others with a share `missing` of all keys are silent.

    Items are shared out by hash, so shards are like each other: how far an answer moves when each is left out tells how
    far it may be from that of all (the jackknife, for a sample without replacement). Where few shards make most of the
    difference, these count as the only ones that are known (Satterthwaite): with all of them as degrees of freedom, 86
    to 94% of statements held that are to hold in 95%. Of fewer than FEWEST shards nothing is stated.
    """
    silent: dict[str, Any] = {
        "out_of_reach": np.full(len(found), missing),
        "effective_error": None,
        "spread_error": None,
    }
    if len(parts) < FEWEST or found.error is None:
        return replace(found, **silent, error=None, error_kind="unknown", log_mass_error=None)
    sides = _Sides(tuple(parts), found.labels)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = (sides.value - sides.shares[..., None] * sides.values) / (1.0 - sides.shares)[..., None]
        masses = (found.log_mass + np.log1p(-sides.shares))[..., None]
    stated = np.asarray(found.log_mass_error if found.log_mass_error is not None else 0.0)
    return replace(
        found,
        **silent,
        log_mass=found.log_mass - np.log1p(-missing),
        error=found.error + _left_out(values, missing, confidence),
        error_kind="measured",
        log_mass_error=np.nan_to_num(stated) + _left_out(masses, missing, confidence),
    )


def _left_out(found: Floats, missing: float, confidence: float) -> Floats:
    """How far what is found without each of m shards, (m, b, p), may be from what all say, (b,)."""
    count = len(found)
    squares = np.square(found - found.mean(0)).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.square(squares.sum(0)) / np.square(squares).sum(0) - 1.0
    factors = np.array([quantile(1.0, confidence, max(1.0, one)) for one in np.nan_to_num(degrees, nan=1.0).tolist()])
    error: Floats = np.sqrt(factors * missing * (count - 1) / count * squares.sum(0))
    return np.where(np.isnan(error), np.inf, error)


def over_all(part: Answers, queries: npt.NDArray[np.int64], count: int) -> Answers:
    """Answers to some of `count` queries as answers to all: to the others, that no row is seen."""
    places, asked, columns = np.zeros(count, np.int64), np.zeros(count, np.bool_), dict[str, Any]()
    places[queries], asked[queries] = np.arange(len(queries)), True
    for name in (one.name for one in fields(Answers)):
        given = getattr(part, name)
        if isinstance(given, np.ndarray) and given.ndim:
            columns[name] = np.where(asked.reshape(-1, *[1] * (given.ndim - 1)), given[places], NOTHING.get(name, 0))
        elif name in OF_EACH and isinstance(given, tuple):
            columns[name] = tuple(given[place] for place in places.tolist())
    return replace(part, **columns)


@dataclass(frozen=True, eq=False)
class _Sides:
    """The answers of shards side by side."""

    parts: tuple[Answers, ...]
    given: tuple[object, ...] | None

    @cached_property
    def labels(self) -> tuple[object, ...] | None:
        """The labels of all parts, in the order in which the parts name them."""
        if self.given is not None or self.parts[0].labels is None:
            return self.given
        return tuple(dict.fromkeys(label for one in self.parts for label in one.labels or ()))

    @cached_property
    def log_masses(self) -> Floats:
        """(m, b)."""
        return np.stack([np.asarray(one.log_mass, np.float64) for one in self.parts])

    @cached_property
    def log_mass(self) -> Floats:
        """Of all, (b,)."""
        peak = self.log_masses.max(0)
        found: Floats = peak + np.log(np.exp(self.log_masses - peak).sum(0))
        return found

    @cached_property
    def shares(self) -> Floats:
        """p, (m, b)."""
        found: Floats = np.exp(self.log_masses - self.log_mass)
        return found

    @cached_property
    def values(self) -> Floats:
        """(m, b, p); of labels, shares of all labels."""
        if self.labels is None:
            values = np.stack([np.asarray(one.value, np.float64) for one in self.parts])
            return values if values.ndim > 2 else values[..., None]
        places = {label: place for place, label in enumerate(self.labels)}
        found = np.zeros((*self.shares.shape, len(places)))
        for number, one in enumerate(self.parts):
            found[number][:, [places[label] for label in one.labels or ()]] = one.value
        return found

    def mean(self, given: Sequence[Any]) -> Floats:
        """The mean over the parts, (b,) or (b, p)."""
        columns = np.stack([np.asarray(one, np.float64) for one in given])
        weights = self.shares.reshape(*self.shares.shape, *[1] * (columns.ndim - 2))
        found: Floats = (weights * columns).sum(0) / weights.sum(0)
        return found

    @cached_property
    def value(self) -> Floats:
        """v, (b, p)."""
        return self.mean(list(self.values))

    def presented(self, value: Floats) -> Any:
        """A value in the type and the shape in which parts have theirs."""
        return _like(self.parts[0].value, value)

    @cached_property
    def apart(self) -> Floats:
        """‖v_s − v‖, (m, b)."""
        found: Floats = np.linalg.norm(self.values - self.value, axis=-1)
        found[self.shares <= 0] = 0.0
        return found

    @cached_property
    def squares(self) -> Floats:
        """Of numbers, the mean square of the distance of the rows of each part from v, (m, b)."""
        return np.stack([np.asarray(one.spread, np.float64) for one in self.parts]) ** 2 + self.apart**2

    @cached_property
    def spread(self) -> Floats | None:
        """Of numbers, (b,)."""
        return None if self.parts[0].spread is None else np.sqrt(self.mean(list(self.squares)))

    @cached_property
    def entropies(self) -> Floats:
        """What the rows of each part add to the entropy for each share that they have, (m, b)."""
        within = np.log(np.stack([np.asarray(one.effective, np.float64) for one in self.parts]))
        return within - np.log(self.shares, out=np.zeros_like(self.shares), where=self.shares > 0)

    @cached_property
    def entropy(self) -> Floats:
        """(b,)."""
        return self.mean(list(self.entropies))

    # How sure that is

    @cached_property
    def kinds(self) -> npt.NDArray[np.int64]:
        """How sure each part is, by its place among KINDS, (m, b)."""
        told = [np.broadcast_to(np.array(one.error_kind, object), len(one)) for one in self.parts]
        return np.array([[KINDS.index(kind) for kind in one] for one in told], np.int64).reshape(self.shares.shape)

    @cached_property
    def is_drawn(self) -> npt.NDArray[np.bool_]:
        """Whether parts were measured, and none is less sure than that, (b,)."""
        found: npt.NDArray[np.bool_] = self.kinds.max(0) == DRAWN
        return found

    def told(self) -> dict[str, Any]:
        """How sure each query is, and how it was answered: as the part that is the least sure."""
        weakest = self.kinds.argmax(0).tolist()
        found = {}
        for name in OF_EACH:
            each = [_of_query(getattr(self.parts[part], name), query) for query, part in enumerate(weakest)]
            found[name] = getattr(self.parts[0], name) if not each else each[0] if len(set(each)) == 1 else tuple(each)
        return found

    def column(self, name: str) -> Floats:
        """Errors of the parts, or other numbers, (m, b); 0 where a part states none."""
        given = [getattr(one, name) for one in self.parts]
        return np.stack([np.zeros(len(self.log_mass)) if one is None else np.asarray(one, np.float64) for one in given])

    def where(self, there: npt.NDArray[np.bool_], found: Floats) -> Floats | None:
        """Errors of some queries, NaN of the others; None where there are none."""
        return np.where(there, found, np.nan) if there.any() else None

    @cached_property
    def moved(self) -> Floats:
        """λ, (m, b), with what is lost by taking masses from each other."""
        masses = np.where(self.shares > 0, np.abs(self.log_masses), 0.0) + np.abs(self.log_mass) + len(self.parts)
        return self.column("log_mass_error") + 4.0 * DOUBLE * masses

    def together(self, terms: Floats) -> Floats:
        """What the terms of parts, (m, b), amount to, (b,)."""
        terms, drawn = np.where(self.shares > 0, terms, 0.0), self.kinds == DRAWN
        found: Floats = np.where(drawn, 0.0, terms).sum(0) + np.sqrt(np.where(drawn, terms**2, 0.0).sum(0))
        return found

    @cached_property
    def others(self) -> Floats:
        """The least that the others beside each part may have, as shares of what all are thought to have, (m, b)."""
        least = self.shares * np.exp(-self.moved)
        return np.maximum(least.sum(0) - least, 0.0)

    @property
    def most(self) -> Floats:
        """The largest share that each part may have, (m, b)."""
        found: Floats = self.shares * np.exp(self.moved)
        return found / (found + self.others)

    @property
    def swayed(self) -> Floats:
        """How much larger or smaller a share may be, beside that of the others, (m, b)."""
        more, less = (self.shares * np.exp(sign * self.moved) for sign in (1.0, -1.0))
        found: Floats = np.maximum(
            (more - self.shares) / (more + self.others), (self.shares - less) / (less + self.others)
        )
        return found

    def off(self, errors: Floats, apart: Floats) -> Floats:
        """How far a mean may be off of what parts say with these errors, and this far apart from the mean, (b,)."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is no number is as far off as can be
            found = self.together(self.most * errors + self.swayed * apart)
        return np.where(np.isnan(found), np.inf, found)

    @cached_property
    def error(self) -> Floats | None:
        """How far the value may be off, (b,); None where a part does not know."""
        if any(one.error is None for one in self.parts):
            return None
        return self.off(self.column("error"), self.apart) + self.rounding

    @property
    def rounding(self) -> Floats:
        """What is lost in sums, and when means are rounded to the type of values, (b,)."""
        unit = SINGLE if self.parts[0].value.dtype == np.float32 else DOUBLE
        sizes = np.linalg.norm(self.values, axis=-1).max(0)
        found: Floats = unit * np.linalg.norm(self.value, axis=-1) + DOUBLE * (4.0 + len(self.parts)) * sizes
        return found

    @cached_property
    def log_mass_error(self) -> Floats:
        """(b,)."""
        with np.errstate(over="ignore", divide="ignore"):
            more = np.log1p(self.together(self.shares * np.expm1(self.moved)))
            less = self.together(-self.shares * np.expm1(-self.moved))
            return np.maximum(more, -np.log(np.maximum(1.0 - less, 0.0)))

    @cached_property
    def effective_error(self) -> Floats:
        """Where parts are measured or exact, (b,)."""
        effective = np.stack([np.asarray(one.effective, np.float64) for one in self.parts])
        errors = np.log1p(np.nan_to_num(self.column("effective_error")) / effective)
        return np.exp(self.entropy) * np.expm1(self.off(errors, np.abs(self.entropies - self.entropy)))

    @cached_property
    def spread_error(self) -> Floats:
        """Of numbers, where parts are measured or exact, (b,)."""
        assert self.spread is not None
        inside, errors = np.nan_to_num(self.column("spread_error")), self.column("error")
        spreads = np.stack([np.asarray(one.spread, np.float64) for one in self.parts])
        errors = inside * (2.0 * spreads + inside) + errors * (2.0 * self.apart + errors)
        square = self.off(errors, np.abs(self.squares - self.spread**2))
        return self.spread - np.sqrt(np.maximum(self.spread**2 - square, 0.0))


@dataclass(frozen=True, eq=False)
class _Best:
    """The best rows of each query, the best first, with those that may be in their place."""

    k: int  # how many are blended
    moved: Floats  # (b,), how far rounding may have moved logits
    logits: Floats  # (b, r)
    values: Floats  # (b, r, p)

    @classmethod
    def of(cls, every: Answers, logits: Floats, k: int, cells: Any, moved: Floats) -> "_Best":
        """The k best of rows in their order, and others whose logits are as large but for rounding."""
        last = logits[:, min(k, logits.shape[1]) - 1 :][:, :1] - 2.0 * moved[:, None]
        count = max(k, int((logits >= last).sum(1).max(initial=0)))
        some = every.rows[:, :count]
        known = np.unique(some[some >= 0])
        found = np.asarray(cells(known))
        if every.labels is not None:
            found = np.eye(len(every.labels))[found]
        columns = (found if found.ndim > 1 else found[:, None]).astype(np.float64)
        places = np.searchsorted(known, np.maximum(some, 0))
        return cls(k, moved, logits[:, :count], columns[places])

    @cached_property
    def log_mass(self) -> Floats:
        """Of the k best, (b,)."""
        peak = self.logits[:, :1]
        found: Floats = peak[:, 0] + np.log(np.exp(self.logits[:, : self.k] - peak).sum(1))
        return found

    @cached_property
    def shares(self) -> Floats:
        """(b, k)."""
        found: Floats = np.exp(self.logits[:, : self.k] - self.log_mass[:, None])
        return found

    @cached_property
    def value(self) -> Floats:
        """(b, p)."""
        total = np.einsum("bk,bkp->bp", self.shares, self.values[:, : self.k])
        found: Floats = total / self.shares.sum(1)[:, None]
        return found

    @cached_property
    def apart(self) -> Floats:
        """How far the value of each row lies from that of all, (b, r)."""
        found: Floats = np.linalg.norm(self.values - self.value[:, None], axis=-1)
        found[self.logits == -np.inf] = 0.0
        return found

    @cached_property
    def spread(self) -> Floats:
        """(b,)."""
        found: Floats = np.sqrt((self.shares * self.apart[:, : self.k] ** 2).sum(1))
        return found

    @cached_property
    def effective(self) -> Floats:
        """How many rows really contributed, (b,)."""
        logs = np.log(self.shares, out=np.zeros_like(self.shares), where=self.shares > 0)
        found: Floats = np.exp(-(self.shares * logs).sum(1))
        return found

    @property
    def error(self) -> Floats:
        """How far rounding may move the mean, (b,): the weights, and which of the rows that are as near are blended."""
        moved, following = np.minimum(self.moved, 1.0), self.logits[:, self.k : self.k + 1].max(1, initial=-np.inf)
        near = (following[:, None] > -np.inf) & (self.logits <= (following + 2.0 * moved)[:, None])
        exchanged = np.where(near[:, : self.k], self.shares, 0.0).sum(1) * WIDEST * self.apart.max(1)
        found: Floats = np.expm1(2.0 * moved) * self.spread + exchanged
        return found


def _heaviest(parts: Sequence[Answers], show: int) -> npt.NDArray[np.int64]:
    """The places of the rows of the highest scores, side by side, (b, r)."""
    scores, rows = (np.concatenate([getattr(one, name) for one in parts], 1) for name in ("scores", "rows"))
    return np.lexsort((rows, -scores), axis=1)[:, :show]


def _picked(parts: Sequence[Answers], name: str, places: npt.NDArray[np.int64], shares: Floats | None = None) -> Any:
    """A column of the rows of all parts side by side, at these places, (b, r)."""
    columns = [getattr(one, name) for one in parts]
    if shares is not None:
        columns = [one * share[:, None] for one, share in zip(columns, shares, strict=True)]
    return np.take_along_axis(np.concatenate(columns, 1), places, 1)


def _like(given: Any, value: Floats) -> Any:
    """A value, (b, p), in the type and with the axes of another."""
    return (value[:, 0] if given.ndim == 1 else value).astype(given.dtype)


def _of_query(told: Any, query: int) -> Any:
    return told[query] if isinstance(told, tuple) else told
