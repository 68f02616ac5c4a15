"""Soft lookup over all rows: score a block, weigh it, blend it, and merge it into what was blended before.

There is one lookup. Full, top-k, masked, causal, self- and cross-attention differ only in which rows may count; several
heads are more queries over the same rows. A matrix of all queries by all rows is never held: the logits of a block fit
the cache, and all that a query keeps is its Blend.

Does not know where arrays come from, what the rows are called, or what a label means (softkv/plain.py).

Shapes: b queries, n rows, q query width, d key width, p value width, h heads, s rows shown; "..." is any leading axes.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from softkv.maths.arrays import sharpened
from softkv.maths.blending import (
    Blend,
    Labels,
    Values,
    Vectors,
    adds_nothing,
    blend_of_rows,
    gather_rows,
    merge,
    stand_in,
)
from softkv.maths.blocks import LogitBlock, Stretch, side_by_side
from softkv.maths.compatibility import Compatibility, compatibility_of, scorer_of
from softkv.maths.distances import COPIED
from softkv.maths.heads import Heads
from softkv.maths.inputs import Inputs, checked, refuse_all_masked, refuse_scores, refuse_values
from softkv.maths.library import Array
from softkv.maths.ranking import Ranking, no_ranking
from softkv.maths.weighting import NEVER, Mask, cut, weigh

QUERIES = 1024  # queries asked at once, counting each head as one
LOGITS = 3 << 19  # logits of one block: 6 MB of float32, which stay in the cache through max, exp and the sums
ROWS = 1 << 17  # the most rows in a block, enough to hide the overhead of Python for one query
GATHERED = 1 << 24  # the most numbers of values gathered at once for top-k


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a lookup finds, for each query. Masses, shares and scores are float64; with heads masses are (..., b, h)."""

    value: Array  # (..., b, p), or (..., b, labels), or with heads (..., b, o)
    spread: Array | None  # (..., b, 1), for numbers
    log_mass: Array  # (..., b), of all rows
    effective: Array  # (..., b), of the rows in the value
    mass: Array  # (..., b), the share of the full mass that the rows in the value hold
    scored: Array  # (..., b), how many rows are in the value
    seen: Array  # (..., b), how many rows the query may see
    rows: Array  # (..., b, s), the heaviest first; -1 where there are fewer
    weights: Array  # (..., b, s), shares of the full mass; the mean over the heads
    scores: Array  # (..., b, s), compatibilities, without bias; the mean over the heads
    head_weights: Array | None  # (..., b, h, s)
    # With k, the logits of the rows in the value and of the next one: (..., b, k + 1), with heads (..., b, h, k + 1).
    ranked: Array | None


def lookup(
    queries: Any,
    keys: Any,
    values: Values,
    *,
    compatibility: str | Compatibility | Callable[[Any, Any], Any] = "scaled_dot",
    temperature: Any = 1.0,
    k: int | None = None,
    mask: Any = None,
    causal: bool = False,
    bias: Any = None,
    heads: Heads | None = None,
    show: int = 10,
) -> Found:
    """Look up (..., b, q) queries among (..., n, d) keys with softmax weights, and blend their values.

    `k` blends only the k heaviest rows. `mask` is True where a query may see a row; `causal` lets query i see the rows
    up to i. `bias` is added to the scores before they are divided by the temperature: T x log(w) weighs a row by w.
    `show` is how many of the heaviest rows are named, if there are that many.
    """
    compared = compatibility_of(compatibility)
    inputs = checked(queries, keys, values, temperature=temperature, k=k, mask=mask, bias=bias, heads=heads, show=show)
    step = _queries_at_once(inputs)
    slices = [slice(start, min(start + step, inputs.count)) for start in range(0, max(inputs.count, 1), step)]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is found and named
        found = [_Part(inputs, compared, some, causal=causal).find() for some in slices]
    return found[0] if len(found) == 1 else _joined(inputs, found)


def lookup_along(queries: Any, stretches: Sequence[Stretch], *, temperature: Any = 1.0, show: int = 10) -> Found:
    """Look up (b, q) queries among the rows of all stretches, as `lookup` does among those of one array.

    What does not depend on the rows is done once. No stretch is empty, and they differ in their rows alone, so only
    the first is checked.
    """
    rows, head = sum(len(one.keys) for one in stretches), stretches[0]
    inputs = checked(queries, head.keys, head.values, temperature=temperature, show=show)
    inputs = replace(inputs, show=min(show, rows))
    each = [replace(inputs, keys=one.keys, values=one.values, mask=one.mask) for one in stretches]
    compared = [compatibility_of(one.compatibility) for one in stretches]
    found, step = [], _queries_at_once(inputs)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is found and named
        for start in range(0, max(inputs.count, 1), step):
            some = slice(start, min(start + step, inputs.count))
            parts = [_Part(given, like, some, causal=False) for given, like in zip(each, compared, strict=True)]
            parts[0].may_mask = any(part.may_mask for part in parts)
            pairs = zip(parts, stretches, strict=True)
            blocks = chain.from_iterable(part.blocks_of(one.values, one.first) for part, one in pairs)
            together = side_by_side(blocks, parts[0].step) if inputs.count == 1 else blocks
            full = parts[0].folded(together, inputs.show, sum(math.ceil(part.rows / part.step) for part in parts))
            found.append(parts[0].whole(full))
    return found[0] if len(found) == 1 else _joined(inputs, found)


class _Part:
    """Some of the queries, on their way through all blocks of rows."""

    def __init__(self, inputs: Inputs, compatibility: Compatibility, queries: slice, *, causal: bool) -> None:
        self.inputs, self.library, self.queries = inputs, inputs.library, queries
        self.sharpness = inputs.sharpness(queries)
        self.mask = Mask(inputs.mask, causal)
        self.may_mask = inputs.mask is not None or causal or inputs.bias is not None
        last = max(1, queries.stop) if causal else inputs.rows  # none of these queries sees a later row
        self.rows = min(inputs.rows, last)
        self.step = _rows_at_once(inputs, queries, copies=compatibility.copies)
        self.keys = inputs.over_heads(inputs.keys)
        asked = inputs.queries[..., queries, :]
        self.cancels = compatibility.cancels and inputs.heads is None
        if inputs.heads is None:
            self.asked, self.constant = asked, asked[..., :0].sum(-1)
            self.scorer = compatibility.ask(asked, self.sharpness)
        else:
            self.asked, self.constant = inputs.heads.rewrite(asked, compatibility)
            self.scorer = scorer_of(sharpened(self.asked, self.sharpness))

    def find(self) -> Found:
        """The findings for these queries."""
        inputs = self.inputs
        shown = inputs.show if inputs.heads is None else 0
        if inputs.k is None:
            return self.whole(self.fold(inputs.values, shown))
        full = self.fold(Vectors(self.keys[..., :0]), max(inputs.k + 1, shown))
        best = (x[..., : inputs.k] for x in (full.ranking.rows, full.ranking.logits))
        return self.presented(full, blend_of_rows(inputs.values, *best), self.library.minimum(full.seen, inputs.k))

    def whole(self, full: "_Folded") -> Found:
        """The findings where all rows are blended."""
        return self.presented(full, full.blend, full.seen)

    def presented(self, full: "_Folded", used: Blend, seen: Array) -> Found:
        """The findings, from the rows that are blended; `seen` counts those of each query."""
        refuse_all_masked(full.seen, self.queries.start)
        refuse_values(self.inputs.values, used)
        return self.found(full, used, seen) if self.inputs.heads is None else self.found_by_heads(full, used, seen)

    def fold(self, values: Values, shown: int) -> "_Folded":
        """All rows, a block at a time."""
        return self.folded(self.blocks_of(values), shown, math.ceil(self.rows / self.step))

    def folded(self, blocks: Iterable[LogitBlock], shown: int, count: int) -> "_Folded":
        """The rows of these blocks, of which there are at most `count`."""
        folded: _Folded | None = None
        negligible = self.library.epsilon(self.inputs.dtype) / (4 * count)
        for first, logits, seen, values in blocks:
            peak = self.library.largest(self.library.constant(logits))
            ranking = no_ranking(logits, shown) if folded is None else folded.ranking
            ranking = ranking.offer(logits, peak, first)
            weights = weigh(logits, peak, masked=self.may_mask, entropy=self.inputs.k is None)
            if folded is None:
                folded = _Folded(values().blend(weights), ranking, seen)
            else:
                # Blocks that all together stay below rounding are counted, but their values are not blended.
                light = adds_nothing(folded.blend, weights, values, share=negligible)
                part = stand_in(folded.blend, weights) if light else values().blend(weights)
                folded = _Folded(merge(folded.blend, part), ranking, folded.seen + seen)
            del logits, weights  # the next block is then written where this one was, which is still in the cache
        assert folded is not None
        return replace(folded, ranking=folded.ranking.in_order())

    def blocks_of(self, values: Values, first: int = 0) -> Iterator[LogitBlock]:
        """All rows, with their values, of which the first has this number."""
        for rows, logits in self.blocks():
            yield first + rows.start, logits, self._seen(logits, rows), partial(values.part, rows)
            del logits

    def blocks(self) -> Iterator[tuple[slice, Array]]:
        """The logits of one block of rows after the other, -inf where masked, for the caller to overwrite."""
        for start in range(0, self.rows, self.step):
            rows = slice(start, min(start + self.step, self.rows))
            yield rows, self._masked(self._biased(self._scored(rows), rows), rows)

    def _scored(self, rows: slice) -> Array:
        keys = self.library.cast(self.keys[..., rows, :], self.inputs.dtype)
        if self.cancels:
            seen = self.mask.block(self.queries, rows, like=self.asked)
            bias = None if self.inputs.bias is None else cut(self.inputs.bias, self.queries, rows)
            added = None if bias is None else sharpened(self.library.constant(bias), self.sharpness)
            logits = self.scorer(keys, rows.start, seen, added)
        else:
            logits = self.scorer(keys, rows.start)
        refuse_scores(self.inputs, logits, rows.start)
        return logits

    def _biased(self, logits: Array, rows: slice) -> Array:
        if self.inputs.bias is None:
            return logits
        bias = self.inputs.over_heads(cut(self.inputs.bias, self.queries, rows))
        never = bias == NEVER
        if not never.any():
            return self.library.spend_plus(logits, sharpened(bias, self.sharpness))
        # Subtle: -inf must not meet the temperature, or its gradient would be NaN.
        biased = self.library.spend_plus(logits, sharpened(self.library.where(never, 0.0, bias), self.sharpness))
        return self.library.where(never, NEVER, biased)

    def _masked(self, logits: Array, rows: slice) -> Array:
        allowed = self.mask.block(self.queries, rows, like=logits)
        if allowed is None:
            return logits
        never = self.library.where(allowed, 0.0, NEVER)  # to add it to a block is faster than to choose within it
        return self.library.spend_plus(logits, self.library.cast(self.inputs.over_heads(never), logits.dtype))

    def _seen(self, logits: Array, rows: slice) -> Array:
        """How many rows of the block each query sees, whatever the head."""
        library = self.library
        if self.inputs.heads is not None:
            logits = logits[..., 0, :, :]
        if self.inputs.bias is not None:
            return (logits > NEVER).sum(-1)
        count = library.full(logits.shape[:-1], logits.shape[-1], like=library.indices(0, 1, like=logits))
        allowed = self.mask.block(self.queries, rows, like=logits)
        return count if allowed is None else count * 0 + allowed.sum(-1)

    def found(self, full: "_Folded", used: Blend, seen: Array) -> Found:
        """The findings without heads."""
        library, show = self.library, self.inputs.show
        logits, rows = full.ranking.logits[..., :show], full.ranking.rows[..., :show]
        dtype = self.inputs.values.dtype
        return Found(
            value=library.cast(used.value, self.inputs.dtype if dtype is None else dtype),
            spread=used.spread,
            log_mass=full.blend.log_mass,
            effective=used.effective,
            mass=self._share(used, full.blend),
            scored=seen,
            seen=full.seen,
            rows=rows,
            weights=full.blend.shares(logits),
            scores=self._scores(logits, rows),
            head_weights=None,
            ranked=self._ranked(full),
        )

    def found_by_heads(self, full: "_Folded", used: Blend, seen: Array) -> Found:
        """The findings with heads: the projections of values act now, on the means."""
        inputs, library = self.inputs, self.library
        assert inputs.heads is not None
        rows = self.rank_heads(full.blend)
        chosen = library.cast(gather_rows(inputs.keys, rows), inputs.dtype)
        scores = library.einsum("...hbd,...bsd->...hbs", self.asked, chosen)
        logits = sharpened(scores + inputs.over_heads(self._bias_of(rows)), self.sharpness)
        shares = full.blend.shares(logits)
        shares = library.where(inputs.over_heads(rows) >= 0, shares, 0.0)
        return Found(
            value=inputs.heads.project(library.cast(used.value, inputs.dtype)),
            spread=None,
            log_mass=(full.blend.log_mass + library.double(self._in_logits(self.constant))).swapaxes(-1, -2),
            effective=used.effective.swapaxes(-1, -2),
            mass=self._share(used, full.blend).swapaxes(-1, -2),
            scored=seen,
            seen=full.seen,
            rows=rows,
            weights=shares.mean(-3),
            scores=library.where(rows >= 0, library.double(scores + self.constant[..., None]).mean(-3), NEVER),
            head_weights=shares.swapaxes(-3, -2),
            ranked=None if inputs.k is None else self._ranked(full).swapaxes(-3, -2),
        )

    def rank_heads(self, blend: Blend) -> Array:
        """The rows of the largest mean weight over the heads.

        A second pass: a head's weights are known once its mass is, and the heaviest row on average need not be among
        the heaviest of any head.
        """
        ranking: Ranking | None = None
        library, show = self.library, self.inputs.show
        peak, mass = (library.cast(library.constant(x), self.inputs.dtype)[..., None] for x in (blend.peak, blend.mass))
        for rows, logits in self.blocks() if show else ():
            shares = library.exp(library.constant(logits) - peak) / mass
            mean = library.where(logits[..., 0, :, :] > NEVER, shares.mean(-3), NEVER)  # (..., h, b, n) -> (..., b, n)
            ranking = (no_ranking(mean, show) if ranking is None else ranking).offer(
                mean, library.largest(mean), rows.start
            )
        return no_ranking(blend.mass[..., 0, :, None], 0).rows if ranking is None else ranking.in_order().rows

    def _ranked(self, full: "_Folded") -> Any:
        return None if self.inputs.k is None else full.ranking.logits[..., : self.inputs.k + 1]

    def _share(self, used: Blend, full: Blend) -> Array:
        """The share of the full mass that the rows in the value hold."""
        if used is full:
            return full.mass / full.mass
        # Both masses are rounded, so the share of nearly all could come out a rounding above all.
        return self.library.minimum(self.library.exp(used.peak - full.peak) * used.mass / full.mass, 1.0)

    def _bias_of(self, rows: Array) -> Array:
        """The bias of each query's own rows, (..., b, s)."""
        if self.inputs.bias is None:
            return self.library.cast(rows * 0, self.inputs.dtype)
        bias = cut(self.inputs.bias, self.queries, slice(None))
        spread = self.library.spread_out(bias, (*rows.shape[:-1], bias.shape[-1]))
        return self.library.take_along(spread, self.library.maximum(rows, 0), -1)

    def _scores(self, logits: Array, rows: Array) -> Array:
        """The scores behind the logits of each query's own rows, -inf where there is none."""
        # Subtle: -inf must not meet the temperature, or its gradient would be NaN.
        there = self.library.double(self.library.where(rows >= 0, logits, 0.0))
        return self.library.where(rows >= 0, there / self.sharpness - self._bias_of(rows), NEVER)

    def _in_logits(self, scores: Array) -> Array:
        """Scores (..., b) divided by the temperature."""
        return sharpened(scores, self.sharpness if getattr(self.sharpness, "ndim", 0) == 0 else self.sharpness[..., 0])


@dataclass(frozen=True, slots=True, eq=False)
class _Folded:
    """All rows: their blend, the heaviest of them, and how many each query saw."""

    blend: Blend
    ranking: Ranking
    seen: Array


def _queries_at_once(inputs: Inputs) -> int:
    width = 1 if isinstance(inputs.values, Labels) else int(inputs.values.array.shape[-1])
    gathered = (inputs.k or 0) * width
    most = min(QUERIES, GATHERED // max(1, gathered))
    return max(1, most // max(1, inputs.asked_per_query))


def _rows_at_once(inputs: Inputs, queries: slice, *, copies: bool) -> int:
    asked = max(1, inputs.asked_per_query * int(queries.stop - queries.start))
    library, keys = inputs.library, inputs.keys
    rows = min(library.at_once(keys, ROWS), library.at_once(keys, LOGITS) // asked)
    if copies or keys.dtype != inputs.dtype:
        rows = min(rows, library.at_once(keys, COPIED) // int(keys.shape[-1]))
    return max(1, rows)


def _joined(inputs: Inputs, found: list[Found]) -> Found:
    axis = len(inputs.leading)

    def join(name: str) -> Array:
        parts = [getattr(one, name) for one in found]
        return None if parts[0] is None else inputs.library.join(parts, axis)

    return Found(**{field.name: join(field.name) for field in fields(Found)})
