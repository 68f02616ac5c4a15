"""How a compatibility becomes a dot product: logit = (q′·k′)/T + a number for the query alone.

The statistics of lists describe k′, and queries to lists are q′. A form is a way to make both:

    dot       k′ = k            q′ = q; also scaled_dot, bilinear and heads, which rewrite the query
    cosine    k′ = k / ‖k‖      q′ = q / ‖q‖
    gaussian  k′ = (k − c, −½‖k − c‖²)   q′ = (q − c, 1), and −½‖q − c‖² for the query, with c the mean of the keys
    learned   as gaussian, but of L(k − c) and L(q − c), with the L and c of a metric (metric.py)

Rows themselves are scored by compatibility.py, as in any scan; only the far field is asked this way.

Shapes: b queries, n rows, d key width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from softkv.maths.compatibility import Compatibility, compatibility_of
from softkv.maths.metric import Metric
from softkv.ndarrays import Floats, Reals

LEEWAY = 1.1  # how much shorter or longer than any that were measured queries may be
FORMS = ("dot", "cosine", "gaussian", "learned")


def form_of(compatibility: Any) -> str | None:
    """The form that a compatibility has, or None when it has none and must be scanned."""
    if isinstance(compatibility, str) and compatibility == "learned":
        return compatibility
    return compatibility_of(compatibility).form


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """One of the forms, with the lengths of the queries that it was measured with."""

    name: str
    compatibility: str  # that was made a dot product
    centre: Reals  # (d,), the mean of the keys, for forms that measure from it
    lengths: Reals  # (3,), of the shortest, a typical and the longest q′
    metric: Metric | None = None  # for the learned form

    @property
    def measures_distance(self) -> bool:
        """Whether k′ has a number of its own beside the vector."""
        return self.name in ("gaussian", "learned")

    @property
    def of_directions(self) -> bool:
        """Whether the lengths of keys play no part in k′."""
        return self.name == "cosine" or (self.metric is not None and self.metric.directions)

    def width(self, key_width: int) -> int:
        """How wide k′ is."""
        return self.placed_width(key_width) + self.measures_distance

    def placed_width(self, key_width: int) -> int:
        """The width of the part of k′ by which rows are arranged."""
        return key_width if self.metric is None else len(self.metric.factors)

    def placed(self, keys: Reals) -> Reals:
        """The part of k′ by which rows are arranged, in the precision of the keys."""
        if self.metric is not None:
            return self.metric.projected(keys.astype(np.float32, copy=False))
        if self.measures_distance:
            return keys - self.centre.astype(keys.dtype)
        return self.keys(keys)

    def _moved(self, vectors: Reals) -> Floats:
        if self.metric is not None:
            return self.metric.projected(vectors.astype(np.float32)).astype(np.float64)
        return vectors.astype(np.float64) - self.centre

    def keys(self, keys: Reals) -> Reals:
        """k′ of some keys, (n, d) -> (n, d or d + 1).

        Lengths are computed anew, not taken from the store: stored lengths are derived, and statistics last.
        """
        if self.name == "cosine":
            lengths = np.sqrt(np.einsum("ij,ij->i", keys, keys, dtype=np.float64))[:, None]
            return keys * (1.0 / np.where(lengths > 0, lengths, np.inf)).astype(keys.dtype)
        if self.measures_distance:
            moved = self._moved(keys)
            return np.concatenate([moved, -0.5 * np.einsum("ij,ij->i", moved, moved)[:, None]], axis=1)
        return keys

    def onto(self, other: "Form") -> tuple[Floats, Floats]:
        """The matrix, (d, d), and then the offset that turn k′ of this form into k′ with another centre."""
        width = self.width(len(self.centre))
        turn, shift = np.eye(width), np.zeros(width)
        if self.name == "gaussian":
            moved = self.centre - other.centre
            turn[-1, :-1], shift[:-1], shift[-1] = -moved, moved, -0.5 * moved @ moved
        return turn, shift

    def queries(self, queries: Reals, compatibility: Compatibility | None, sharpness: Reals) -> tuple[Reals, Floats]:
        """q′ times β, (b, q) -> (b, d or d + 1), and what is added to every logit of a query, (b,)."""
        nothing = np.zeros(len(queries))
        if self.name == "cosine":
            lengths = np.linalg.norm(queries.astype(np.float64), axis=1)[:, None]
            return queries / np.where(lengths > 0, lengths, 1.0) * sharpness[:, None], nothing
        if self.measures_distance:
            moved = self._moved(queries)
            added: Floats = -0.5 * np.einsum("ij,ij->i", moved, moved) * sharpness
            return np.concatenate([moved, np.ones((len(moved), 1))], axis=1) * sharpness[:, None], added
        assert compatibility is not None
        assert compatibility.rewrite is not None
        return compatibility.rewrite(queries) * sharpness[:, None], nothing

    def most(self, added: Floats) -> Floats:
        """The highest product q′·k′ that a key can have, (b,): that of distance 0, where distances are measured."""
        return -added if self.measures_distance else np.full(len(added), np.inf)

    def temperatures(self, queries: Reals, compatibility: Compatibility, sharpness: Reals) -> Reals:
        """The temperature at which to look up the error of an estimate, (b,), of q′ times β; inf where it is unknown.

        Queries that are compared in the measured way must have lengths like those it was measured on. Compared in
        another way of the same form, they count as if they had a typical length.
        """
        shortest, typical, longest = self.lengths.tolist()
        lengths = np.linalg.norm(queries.astype(np.float64), axis=1) / sharpness
        with np.errstate(divide="ignore"):
            equal: Reals = 1.0 / sharpness * np.where(compatibility.name == self.compatibility, 1.0, typical / lengths)
        known = (lengths >= shortest / LEEWAY) & (lengths <= longest * LEEWAY)
        return np.where(known | (compatibility.name != self.compatibility), equal, np.inf)
