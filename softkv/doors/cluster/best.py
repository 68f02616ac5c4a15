"""The k best of all rows, from the k best of each shard: they are ranked by their scores, and blended anew.

Does not ask shards (asking.py).

Shapes: b queries, k best, p value width, r rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.doors.cluster.merging import Sides, like
from softkv.maths.blending import Blend, Vectors, blend_of_rows
from softkv.ndarrays import Floats, Rows

WIDEST = 2.0  # times how far values lie from their mean: how far apart they are at most


def merged_best(sides: Sides, k: int, temperature: Any, cells: Callable[[Rows], Any], *, show: int) -> Answers:
    """The answers of the k best of all rows, from parts that name their own k best and, if there is one, the next.

    `cells` gives what is blended of rows, (n, p) or codes of the labels of all.
    """
    every = sides.merged(sum(one.rows.shape[1] for one in sides.parts))
    logits = every.scores / np.reshape(temperature, (-1, 1))
    moved = np.where(sides.kinds > 0, 0.0, sides.column("log_mass_error")).max(0)
    best = _Best.of(every, logits, k, cells, moved)
    log_mass: Floats = best.blend.log_mass
    unknown = np.isnan(every.log_mass)  # then others weigh nothing among the k
    shared = np.where(unknown, log_mass, every.log_mass)  # weights are shares of it
    shown = every.rows[:, :show].copy()
    shown[unknown, k:] = -1
    return replace(
        every,
        value=like(every.value, best.blend.value),
        spread=None if every.spread is None else best.spread,
        effective=best.blend.effective,
        mass=np.minimum(np.exp(log_mass - every.log_mass), 1.0),
        scored=(every.rows[:, :k] >= 0).sum(1),
        rows=shown,
        weights=np.where(shown >= 0, np.exp(logits - shared[:, None])[:, :show], 0.0),
        scores=np.where(shown >= 0, every.scores[:, :show], -np.inf),
        error=None if every.error is None else best.error + sides.column("error").max(0),
        effective_error=None,
        spread_error=None,
    )


@dataclass(frozen=True, eq=False)
class _Best:
    """The best rows of each query, the best first, with those that may belong among them."""

    k: int  # how many are blended
    moved: Floats  # (b,), how far rounding may have moved logits
    logits: Floats  # (b, r)
    values: Floats  # (b, r, p)
    blend: Blend  # of the k best

    @classmethod
    def of(cls, every: Answers, logits: Floats, k: int, cells: Any, moved: Floats) -> "_Best":
        """The k best rows in order, and others whose logits are as large within rounding."""
        last = logits[:, min(k, logits.shape[1]) - 1 :][:, :1] - 2.0 * moved[:, None]
        count = max(k, int((logits >= last).sum(1).max(initial=0)))
        some = every.rows[:, :count]
        known = np.unique(some[some >= 0])
        found = np.asarray(cells(known))
        if every.labels is not None:
            found = np.eye(len(every.labels))[found]
        columns = (found if found.ndim > 1 else found[:, None]).astype(np.float64)
        places = np.searchsorted(known, np.maximum(some, 0))
        blend = blend_of_rows(Vectors(columns), places[:, :k], logits[:, :k])
        return cls(k, moved, logits[:, :count], columns[places], blend)

    @cached_property
    def shares(self) -> Floats:
        """The share of each of the k best, (b, k)."""
        found: Floats = self.blend.shares(self.logits[:, : self.k])
        return found

    @cached_property
    def apart(self) -> Floats:
        """How far the value of each row lies from the mean, (b, r)."""
        found: Floats = np.linalg.norm(self.values - self.blend.value[:, None], axis=-1)
        found[self.logits == -np.inf] = 0.0
        return found

    @cached_property
    def spread(self) -> Floats:
        """The spread of the k best, (b,)."""
        found: Floats = np.sqrt((self.shares * self.apart[:, : self.k] ** 2).sum(1))
        return found

    @property
    def error(self) -> Floats:
        """How far rounding may move the mean, (b,): the weights, and which of the rows that are as near are blended."""
        moved, following = np.minimum(self.moved, 1.0), self.logits[:, self.k : self.k + 1].max(1, initial=-np.inf)
        near = (following[:, None] > -np.inf) & (self.logits <= (following + 2.0 * moved)[:, None])
        exchanged = np.where(near[:, : self.k], self.shares, 0.0).sum(1) * WIDEST * self.apart.max(1)
        found: Floats = np.expm1(2.0 * moved) * self.spread + exchanged
        return found
