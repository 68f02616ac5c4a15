"""How much does each row count? The logits of one block become unnormalised weights.

A weight is exp(logit - peak), where the peak is the highest logit of the block, so the heaviest row weighs 1 and
nothing overflows. What the weights are divided by is not known before all blocks are seen (blending.py).

Does not score (compatibility.py). Does not normalise: a block cannot know the others.

Shapes: b queries, n rows of the block; "..." is any leading axes, such as heads.
"""

from dataclasses import dataclass

from softkv.maths.arrays import library_of
from softkv.maths.library import Array

NEVER = float("-inf")
FLOOR = -1000.0  # exp(-1000) is 0 in float64 and float32, and unlike exp(-inf) it may be multiplied by its logit


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """The weights of one block of rows, relative to its peak."""

    peak: Array  # (..., b); -inf where all rows of the block are masked
    weights: Array  # (..., b, n)
    mass: Array  # (..., b), the sum of the weights
    excess: Array | None  # (..., b), the sum of weight x (logit - peak), from which the entropy follows
    masked: bool = True  # whether some of the rows may be masked; those that are weigh 0, and others may

    def of(self, queries: slice) -> "Weights":
        """The weights of some of the queries."""
        excess = None if self.excess is None else self.excess[..., queries]
        some = self.weights[..., queries, :]
        return Weights(self.peak[..., queries], some, self.mass[..., queries], excess, self.masked)


def weigh(logits: Array, peak: Array, *, masked: bool, entropy: bool = True) -> Weights:
    """Turn the logits of one block, which are overwritten, into weights. `masked` says that some may be -inf.

    Without `entropy` there is no excess, which saves a pass and a second array.

    The peak is a constant: shifting all logits alike changes no answer, so no gradient flows through it.
    """
    library = library_of(logits)
    base = library.where(peak > NEVER, peak, 0.0) if masked else peak
    shifted = library.spend_minus(logits, base[..., None])
    if masked:
        shifted = library.spend_maximum(shifted, FLOOR)
    if not entropy:
        weights = library.spend_exp(shifted)
        return Weights(library.double(peak), weights, library.double(library.total(weights)), None, masked)
    # The sum of a product is one pass over two arrays that are in the cache; the entropy from the weights alone would
    # need their logarithms.
    weights, excess = library.spend_exp_times(shifted)
    return Weights(
        library.double(peak), weights, library.double(library.total(weights)), library.double(excess), masked
    )


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """Which query may see which row: a boolean array (..., b or 1, n), rows up to i for query i (`causal`), or both."""

    allowed: Array | None
    causal: bool

    def block(self, queries: slice, rows: slice, *, like: Array) -> Array | None:
        """The part of the mask for some queries and rows, or None where all is allowed."""
        part = None if self.allowed is None else cut(self.allowed, queries, rows)
        if not self.causal or rows.stop - 1 <= queries.start:
            return part
        library = library_of(like)
        now = library.indices(queries.start, queries.stop, like=like)
        past = library.indices(rows.start, rows.stop, like=like)[None, :] <= now[:, None]
        return past if part is None else part & past


def cut(x: Array, queries: slice, rows: slice) -> Array:
    """Some queries and rows of an array (..., b or 1, n)."""
    return x[..., queries if x.shape[-2] != 1 else slice(None), rows]
