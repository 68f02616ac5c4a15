"""Merge the answers of several shards about their own items into one answer about all items.

Masses add. With p the share of a shard in the mass of all, values are means weighted by p, squares are those within
shards plus those between their means, and the entropy is that within shards, weighted by p, plus that of p itself. All
of it is computed in float64.

An answer of a shard may be off by E in its value v_s, and by λ in the logarithm of its mass, which moves p. The mean of
all is Σ p e^δ v_s / Σ p e^δ with |δ| ≤ λ, so it is off by no more than

    Σ p (e^λ E + (e^λ − 1) ‖v_s − v‖) / (p e^λ + Σ p' e^-λ')

where p' and λ' are those of the other shards, and a little more where a shard has most of the mass and may have less.
Measured errors come from independent draws, so the squares of their terms add; other terms add directly. The
`log_mass_error` of an exact answer is how far rounding may have moved its mass.

Does not ask shards (asking.py), and knows no store.

Shapes: m shards, b queries, p value width, r rows shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.answer import KINDS, Answers
from softkv.asking.joined import OF_EACH
from softkv.maths.sampling import Elsewhere
from softkv.ndarrays import Flags, Floats

DRAWN = KINDS.index("measured")
DOUBLE, SINGLE = 2.0**-53, 2.0**-24  # the rounding of one operation
NOTHING = {"rows": -1, "log_mass": -np.inf, "scores": -np.inf, "effective": 1.0}  # where no row is seen, else 0


def no_surer(told: str | tuple[str, ...], kind: str) -> str | tuple[str, ...]:
    """The kind of error, of all queries or of each, where an error of another kind is added to what is told."""
    if isinstance(told, str):
        return max(told, kind, key=KINDS.index)
    each = tuple(max(one, kind, key=KINDS.index) for one in told)
    return each[0] if len(set(each)) == 1 else each


def over_all(part: Answers, queries: npt.NDArray[np.int64], count: int) -> Answers:
    """Answers to some of `count` queries as answers to all; the others get an answer by no rows."""
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
class Sides:
    """The answers of shards to the same queries side by side, and the estimates of the others that each was given.

    A part that has no answer to a query has the mass exp(-inf) there.
    """

    parts: tuple[Answers, ...]
    given: tuple[object, ...] | None = None  # the labels of all; otherwise those of the parts
    beside: tuple[Elsewhere | None, ...] = ()

    def merged(self, show: int) -> Answers:
        """The answers of all rows, with the heaviest of them."""
        parts, first, rows = self.parts, self.parts[0], _heaviest(self.parts, show)
        return replace(
            first,
            value=self.presented(self.value),
            spread=self.spread,
            log_mass=self.log_mass,
            effective=np.exp(self.entropy),
            mass=None if any(one.mass is None for one in parts) else self.mean([one.mass for one in parts]),
            **{name: np.sum([getattr(one, name) for one in parts], 0) for name in ("scored", "seen")},
            rows_read=None if first.rows_read is None else self.column("rows_read").sum(0).astype(np.int64),
            rows=_picked(parts, "rows", rows),
            weights=_picked(parts, "weights", rows, self.shares),
            scores=_picked(parts, "scores", rows),
            labels=self.labels,
            error=self.error,
            **self.told(),
            log_mass_error=self.where((self.kinds.max(0) > 0) & ~np.isnan(self.log_mass), self.log_mass_error),
            effective_error=self.where(self.is_drawn, self.effective_error),
            spread_error=None if first.spread is None else self.where(self.is_drawn, self.spread_error),
            count=sum(one.count for one in parts),
        )

    @cached_property
    def labels(self) -> tuple[object, ...] | None:
        """The labels of all parts, in the order in which the parts name them."""
        if self.given is not None or self.parts[0].labels is None:
            return self.given
        return tuple(dict.fromkeys(label for one in self.parts for label in one.labels or ()))

    @cached_property
    def log_masses(self) -> Floats:
        """The log mass of each part, (m, b)."""
        return self.column("log_mass")

    @cached_property
    def log_mass(self) -> Floats:
        """The log mass of all parts together, (b,)."""
        peak = self.log_masses.max(0)
        found: Floats = peak + np.log(np.exp(self.log_masses - peak).sum(0))
        return found

    @cached_property
    def shares(self) -> Floats:
        """The share of each part in the mass of all: p, (m, b)."""
        found: Floats = np.exp(self.log_masses - self.log_mass)
        return found

    @cached_property
    def values(self) -> Floats:
        """The values of each part, (m, b, p); of labels, shares of all labels."""
        if self.labels is None:
            values = self.column("value")
            return values if values.ndim > 2 else values[..., None]
        places = {label: place for place, label in enumerate(self.labels)}
        found = np.zeros((*self.shares.shape, len(places)))
        for number, one in enumerate(self.parts):  # a part may name labels that are newer than what was asked
            known = {place: places[label] for place, label in enumerate(one.labels or ()) if label in places}
            found[number][:, list(known.values())] = one.value[..., list(known)]
        return found

    def mean(self, given: Sequence[Any]) -> Floats:
        """The mean over the parts, (b,) or (b, p)."""
        columns = np.stack([np.asarray(one, np.float64) for one in given])
        weights = self.shares.reshape(*self.shares.shape, *[1] * (columns.ndim - 2))
        found: Floats = (weights * columns).sum(0) / weights.sum(0)
        return found

    @cached_property
    def value(self) -> Floats:
        """The value of all parts together: v, (b, p)."""
        return self.mean(list(self.values))

    def presented(self, value: Floats) -> Any:
        """A value in the type and the shape in which parts have theirs."""
        return like(self.parts[0].value, value)

    @cached_property
    def apart(self) -> Floats:
        """The distance of each part from the mean: ‖v_s − v‖, (m, b)."""
        found: Floats = np.linalg.norm(self.values - self.value, axis=-1)
        found[self.shares <= 0] = 0.0
        return found

    @cached_property
    def astray(self) -> Floats:
        """How far v is from the value that the error of each part is about: v_s, or that of all, (m, b)."""
        found = self.apart.copy()
        for number, (one, mine) in enumerate(zip(self.beside, self.values, strict=False)):
            if one is not None:
                own = np.exp(-np.logaddexp(0.0, one.log_mass - self.log_masses[number]))[:, None]
                about = own * mine + (1.0 - own) * one.value
                there = self.kinds[number] == DRAWN
                found[number, there] = np.linalg.norm(about - self.value, axis=-1)[there]
        return found

    @cached_property
    def squares(self) -> Floats:
        """The mean square of the distance of the numbers of each part from v, (m, b)."""
        return self.column("spread") ** 2 + self.apart**2

    @cached_property
    def spread(self) -> Floats | None:
        """The spread of all parts together, (b,); None where values are no numbers."""
        return None if self.parts[0].spread is None else np.sqrt(self.mean(list(self.squares)))

    @cached_property
    def entropies(self) -> Floats:
        """The entropy within each part, (m, b)."""
        within = np.log(self.column("effective"))
        return within - np.log(self.shares, out=np.zeros_like(self.shares), where=self.shares > 0)

    @cached_property
    def entropy(self) -> Floats:
        """The entropy of all parts together, (b,)."""
        return self.mean(list(self.entropies))

    # How sure that is

    @cached_property
    def kinds(self) -> npt.NDArray[np.int64]:
        """How sure each part is, by its place among KINDS, (m, b)."""
        told = [np.broadcast_to(np.array(one.error_kind, object), len(one)) for one in self.parts]
        return np.array([[KINDS.index(kind) for kind in one] for one in told], np.int64).reshape(self.shares.shape)

    @cached_property
    def is_drawn(self) -> Flags:
        """Whether some parts were measured and all others are exact or bounded, (b,)."""
        found: Flags = self.kinds.max(0) == DRAWN
        return found

    def told(self) -> dict[str, Any]:
        """The error kind, route and reason of each query: those of its least sure part."""
        weakest = self.kinds.argmax(0).tolist()
        found = {}
        for name in OF_EACH:
            each = [_of_query(getattr(self.parts[part], name), query) for query, part in enumerate(weakest)]
            found[name] = getattr(self.parts[0], name) if not each else each[0] if len(set(each)) == 1 else tuple(each)
        return found

    def column(self, name: str) -> Floats:
        """Numbers of the parts by their name, (m, b) or as the value (m, b, p); 0 where a part states none."""
        given = [getattr(one, name) for one in self.parts]
        return np.stack([np.zeros(len(self.log_mass)) if one is None else np.asarray(one, np.float64) for one in given])

    def where(self, there: Flags, found: Floats) -> Floats | None:
        """Errors of some queries, NaN of the others; None where there are none."""
        return np.where(there, found, np.nan) if there.any() else None

    @cached_property
    def moved(self) -> Floats:
        """The error of the log mass of each part: λ, (m, b), with the rounding of subtracting masses."""
        masses = np.where(self.shares > 0, np.abs(self.log_masses), 0.0) + np.abs(self.log_mass) + len(self.parts)
        return self.column("log_mass_error") + 4.0 * DOUBLE * masses

    def together(self, terms: Floats) -> Floats:
        """The sum of the error terms of parts, (m, b) -> (b,)."""
        terms, drawn = np.where(self.shares > 0, terms, 0.0), self.kinds == DRAWN
        found: Floats = np.where(drawn, 0.0, terms).sum(0) + np.sqrt(np.where(drawn, terms**2, 0.0).sum(0))
        return found

    @cached_property
    def others(self) -> Floats:
        """The least mass that the parts beside each may have, as a share of the estimated mass of all, (m, b)."""
        least = self.shares * np.exp(-self.moved)
        found: Floats = np.maximum(least.sum(0) - least, 0.0)
        return found

    @property
    def most(self) -> Floats:
        """The largest share that each part may have, (m, b)."""
        found: Floats = self.shares * np.exp(self.moved)
        return found / (found + self.others)

    @property
    def swayed(self) -> Floats:
        """How much larger or smaller a share may be, beside that of the others, (m, b)."""
        more, less = (self.shares * np.exp(sign * self.moved) for sign in (1.0, -1.0))
        up, down = (more - self.shares) / (more + self.others), (self.shares - less) / (less + self.others)
        found: Floats = np.maximum(up, down)
        return found

    def off(self, errors: Floats, apart: Floats) -> Floats:
        """How far the mean over parts with these errors, and at these distances from it, may be off, (b,)."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is no number is as far off as can be
            careful = self.most * errors + self.swayed * apart
            plain = self.shares * (errors + np.expm1(self.moved) * apart)  # as in a single store that draws rows
            found = self.together(np.where(self.kinds == DRAWN, plain, careful))
        return np.where(np.isnan(found), np.inf, found)

    @cached_property
    def error(self) -> Floats | None:
        """How far the value may be off, (b,); None if that of a part is unknown."""
        if any(one.error is None for one in self.parts):
            return None
        return self.off(self.column("error"), self.astray) + self.rounding

    @property
    def rounding(self) -> Floats:
        """The rounding error of sums, and of means in the type of values, (b,)."""
        unit = SINGLE if self.parts[0].value.dtype == np.float32 else DOUBLE
        sizes = np.linalg.norm(self.values, axis=-1).max(0)
        found: Floats = unit * np.linalg.norm(self.value, axis=-1) + DOUBLE * (4.0 + len(self.parts)) * sizes
        return found

    @cached_property
    def log_mass_error(self) -> Floats:
        """How far the log mass of all parts may be off, (b,)."""
        with np.errstate(over="ignore", divide="ignore"):
            more, drawn = self.shares * np.expm1(self.moved), self.kinds == DRAWN
            less = self.together(np.where(drawn, more, -self.shares * np.expm1(-self.moved)))
            return np.maximum(np.log1p(self.together(more)), -np.log(np.maximum(1.0 - less, 0.0)))

    @cached_property
    def effective_error(self) -> Floats:
        """Where parts are measured or exact, (b,)."""
        errors = np.log1p(np.nan_to_num(self.column("effective_error")) / self.column("effective"))
        with np.errstate(over="ignore"):  # what is no number is as far off as can be
            return np.exp(self.entropy) * np.expm1(self.off(errors, np.abs(self.entropies - self.entropy)))

    @cached_property
    def spread_error(self) -> Floats:
        """How far the spread of numbers may be off, where parts are measured or exact, (b,)."""
        assert self.spread is not None
        inside, errors = np.nan_to_num(self.column("spread_error")), self.column("error")
        errors = inside * (2.0 * self.column("spread") + inside) + errors * (2.0 * self.apart + errors)
        square = self.off(errors, np.abs(self.squares - self.spread**2))
        return self.spread - np.sqrt(np.maximum(self.spread**2 - square, 0.0))


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


def like(given: Any, value: Floats) -> Any:
    """A value, (b, p), in the type and with the axes of another."""
    return (value[:, 0] if given.ndim == 1 else value).astype(given.dtype)


def _of_query(told: Any, query: int) -> Any:
    return told[query] if isinstance(told, tuple) else told
