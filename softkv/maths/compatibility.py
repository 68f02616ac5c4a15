"""How alike are a query and a key? Scores, divided by a temperature into logits.

A Compatibility is given the queries once and then returns the logits of one block of keys after another, so what
depends on the queries alone is computed once:

    scorer = COMPATIBILITIES["cosine"].ask(queries, 1 / temperature)
    logits = scorer(keys[start:stop], start)

Where the score is a dot product with a rewritten query (`dot`, `scaled_dot`, `bilinear`), the temperature is folded
into that query: the logits then cost one matrix product and nothing else.

Does not turn logits into weights (weighting.py), and does not choose the blocks (lookup.py).

Shapes: b queries, n rows of a block, d key width; "..." is any leading axes, such as heads.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from softkv.errors import NotExpressible, ShapeError, ZeroVector
from softkv.maths.arrays import check_widths, inner, library_of, sharpened
from softkv.maths.distances import Scorer, by_differences, gaussian, gaussian_by_halves, in_parts
from softkv.maths.library import Array, Library, Sharpness

ALIKE, ISOLATED = 3.0, 1.2  # times that keys may differ in length: all but a few percent; the longest, from most others


@dataclass(frozen=True, slots=True)
class Compatibility:
    """A way to compare queries with keys.

    `rewrite` is there when the score is rewrite(query)·key; only then can learned heads be folded into the query.
    `form` is how it becomes a dot product (forms.py), which lists need; None where it does not.
    `with_lengths` makes it from 1 / ‖k‖ of all keys, where only directions count and so no vector may be zero.
    `with_halves` makes it from ½‖k‖² of all keys, which saves a pass over the keys, and a copy of them.
    `copies` says that scoring makes a copy of the block of keys, which should then be small enough for the cache.
    `pairs` says that every query is compared with every key in full width, which takes that much memory and time.
    `cancels` says that scores of rows far below the best are inexact, but low.
    `lukewarm` is a temperature at which it is neither hard nor flat, for items from which none can be learned.
    `degree` says how scores grow, where that is known: with vectors c times as long they are c^degree times as large.
    `terms` gives the size of the terms that a score sums, where that is known: their rounding matters, however small
    the score. It takes squares of the numbers of queries, and returns squares of the factors of a key's numbers,
    (..., b, d), and of all other terms, (..., b).
    """

    name: str
    ask: Callable[[Array, Sharpness], Scorer]
    rewrite: Callable[[Array], Array] | None = None
    copies: bool = False
    degree: int | None = None
    form: str | None = None
    with_lengths: "Callable[[Array], Compatibility] | None" = None
    with_halves: "Callable[[Array], Compatibility] | None" = None
    pairs: bool = False
    cancels: bool = False
    lukewarm: float = 1.0
    terms: Callable[[Array], tuple[Array, Array]] | None = None


def linear(
    name: str, rewrite: Callable[[Array], Array], terms: Callable[[Array], Array] | None = None
) -> Compatibility:
    """A compatibility whose score is a dot product with the rewritten query; `terms` rewrites squares with squares."""

    def ask(queries: Array, sharpness: Sharpness) -> Scorer:
        return scorer_of(sharpened(rewrite(queries), sharpness))

    def sizes(squares: Array) -> tuple[Array, Array]:
        return squares if terms is None else terms(squares), squares[..., 0] * 0.0

    return Compatibility(name, ask, rewrite, degree=2, form="dot", terms=sizes)


def scorer_of(rewritten: Array) -> Scorer:
    """Logits as plain dot products with queries that include everything else already."""
    return lambda keys, _first: inner(rewritten, keys)


def bilinear(matrix: Array) -> Compatibility:
    """The score qᵀWk: a dot product with Wᵀq, so that queries and keys may differ in width. W is (query width, d)."""

    def weights_for(queries: Array) -> Array:
        library = library_of(queries)
        weights = library.cast(library.array(matrix, like=queries), queries.dtype)
        if weights.ndim != 2 or weights.shape[0] != queries.shape[-1]:
            raise ShapeError(
                f"expected a matrix of shape (query width, key width) for queries of width {queries.shape[-1]}, "
                f"got {tuple(weights.shape)}. Transpose it if it is the other way round."
            )
        return weights

    return linear("bilinear", lambda some: some @ weights_for(some), lambda some: some @ weights_for(some) ** 2)


def additive(query_matrix: Array, key_matrix: Array, direction: Array) -> Compatibility:
    """The score vᵀtanh(W_q q + W_k k) of the first encoder-decoders. W_q is (a, query width), W_k (a, d), v (a,).

    The tanh stands between query and key, so nothing can be folded: every pair costs a row of width a.
    """

    def weights_for(queries: Array) -> Iterator[Array]:
        library = library_of(queries)
        given = (query_matrix, key_matrix, direction)
        return (library.cast(library.array(x, like=queries), queries.dtype) for x in given)

    def ask(queries: Array, sharpness: Sharpness) -> Scorer:
        library = library_of(queries)
        w_q, w_k, v = weights_for(queries)
        _check_additive(w_q, w_k, v, width=queries.shape[-1])
        asked = queries @ w_q.swapaxes(-1, -2)  # (..., b, d) x (d, a) -> (..., b, a)

        def pairs(some: Array) -> Array:  # (..., b, m, a) x (a,) -> (..., b, m)
            return library.tanh(asked[..., :, None, :] + some[..., None, :, :]) @ v

        def score(keys: Array, _first: int) -> Array:
            check_widths(w_k, keys)
            stored = keys @ w_k.swapaxes(-1, -2)
            return sharpened(in_parts(pairs, asked, stored), sharpness, spend=True)

        return score

    def terms(squares: Array) -> tuple[Array, Array]:  # a tanh is at most 1, and changes by no more than its argument
        w_q, w_k, v = (x**2 for x in weights_for(squares))
        return squares[..., :1] * 0.0 + v @ w_k, squares @ (v @ w_q) + v.sum()

    return Compatibility("additive", ask, copies=True, pairs=True, terms=terms)


def cosine(inverse_lengths: Array) -> Compatibility:
    """The cosine with keys of which 1 / ‖k‖ is known, (n,), so that only a dot product is left to compute."""

    def known(keys: Array, first: int) -> Array:
        return inverse_lengths[first : first + keys.shape[-2]][None, :]

    def ask(queries: Array, sharpness: Sharpness) -> Scorer:
        return _by_directions(queries, sharpness, known)

    return replace(COMPATIBILITIES["cosine"], ask=ask)


def by_halves(halves: Array) -> Compatibility:
    """The gaussian of keys of which ½‖k‖² is known, (n,)."""
    return replace(COMPATIBILITIES["gaussian"], ask=partial(gaussian_by_halves, halves), copies=False)


def are_alike(lengths: Array) -> bool:
    """Whether keys of such lengths, (n,), are ranked nearly alike by their directions, and with their lengths."""
    last = len(lengths) - 1
    places = [int(share * last) for share in (0.01, 0.99, 0.999, 1.0)]
    shortest, long, longer, longest = np.partition(lengths, places)[places].tolist()
    return bool(long <= ALIKE * shortest and longest <= ISOLATED * longer)


def custom(function: Callable[[Any, Any], Any]) -> Compatibility:
    """Any f(queries, keys) -> scores of the user's own, called with one block of keys at a time."""

    def ask(queries: Array, sharpness: Sharpness) -> Scorer:
        library = library_of(queries)

        def score(keys: Array, _first: int) -> Array:
            scores = library.array(function(queries, keys), like=queries)
            if tuple(scores.shape[-2:]) != (queries.shape[-2], keys.shape[-2]):
                raise ShapeError(
                    f"expected scores of shape {(queries.shape[-2], keys.shape[-2])} from the compatibility function, "
                    f"got {tuple(scores.shape)}. It is given (queries, keys) and must return one score per pair."
                )
            # Not spent: the function may keep its own array.
            return sharpened(library.cast(scores, queries.dtype), sharpness)

        return score

    return Compatibility(getattr(function, "__name__", "callable"), ask)


def _cosine(queries: Array, sharpness: Sharpness) -> Scorer:
    library = library_of(queries)
    return _by_directions(
        queries, sharpness, lambda keys, first: 1.0 / _norms(library, keys, "keys", first)[..., None, :]
    )


def _by_directions(queries: Array, sharpness: Sharpness, inverse: Callable[[Array, int], Array]) -> Scorer:
    """Cosines, with `inverse` giving 1 / ‖k‖ of a block: scaling logits is cheaper than a scaled copy of keys."""
    library = library_of(queries)
    directions = queries / _norms(library, queries, "queries", 0)[..., None]
    # Subtle: directions scaled by a sharpness below 1 could underflow with small keys; logits are then scaled instead.
    late = sharpness < 1.0 if isinstance(sharpness, float) else bool((sharpness < 1.0).any())
    directions = directions if late else sharpened(directions, sharpness)

    def score(keys: Array, first: int) -> Array:
        logits = library.spend_times(inner(directions, keys), inverse(keys, first))
        return sharpened(logits, sharpness, spend=True) if late else logits

    return score


def _of_directions(squares: Array) -> tuple[Array, Array]:
    """The terms of cosines, whose squares are at most 1 in all."""
    return squares * 0.0, squares[..., 0] * 0.0 + 1.0


def _of_distances(squares: Array) -> tuple[Array, Array]:
    """The terms of distances along the axes, which do not cancel."""
    return squares * 0.0 + 1.0, squares.sum(-1) * squares.shape[-1]


def _uniform(queries: Array, _sharpness: Sharpness) -> Scorer:
    library = library_of(queries)

    def score(keys: Array, _first: int) -> Array:
        leading = np.broadcast_shapes(tuple(queries.shape[:-2]), tuple(keys.shape[:-2]))
        return library.full((*leading, queries.shape[-2], keys.shape[-2]), 0.0, like=queries)

    return score


def student(apart: Array) -> Array:
    """-log(1 + ½‖q-k‖²), whose weights fall as a power of the distance."""
    library = library_of(apart)
    squares = library.multiply_total(apart, apart)
    if not library.finite(library.constant(squares)).all():  # their logarithms are of ordinary size
        wide = library.double(apart)
        squares = library.multiply_total(wide, wide)
    return library.cast(-library.log1p(squares * 0.5), apart.dtype)


def laplace(apart: Array) -> Array:
    """-‖q-k‖₁, from the sum of the absolute differences."""
    return -abs(apart).sum(-1)


def _norms(library: Library, vectors: Array, what: str, first: int) -> Array:
    """The lengths of vectors, without overflow or underflow on the way; zero vectors are refused."""
    squares = library.multiply_total(vectors, vectors)
    plain = library.constant(squares)
    if ((plain < 1e-24) | (plain > 1e24)).any():
        scale = library.largest(abs(library.constant(vectors)))
        zero = library.true_indices((scale == 0).reshape(-1))
        if len(zero):
            raise ZeroVector(
                f"{what}[{first + int(zero[0]) % vectors.shape[-2]}] is a zero vector, which has no direction; cosine "
                f"cannot compare it. Remove it, or use compatibility='dot' or 'gaussian'."
            )
        scaled = vectors / scale[..., None]
        return library.multiply_total(scaled, scaled) ** 0.5 * scale
    return squares**0.5


def _check_additive(w_q: Array, w_k: Array, v: Array, *, width: int) -> None:
    if w_q.ndim != 2 or w_k.ndim != 2 or v.ndim != 1 or not (w_q.shape[0] == w_k.shape[0] == v.shape[0]):
        raise ShapeError(
            f"additive takes matrices of shape (a, query width) and (a, key width) and a vector of width a, "
            f"got {tuple(w_q.shape)}, {tuple(w_k.shape)} and {tuple(v.shape)}. Make their first axes equal."
        )
    if w_q.shape[1] != width:
        raise ShapeError(
            f"the queries have width {width}, but the query matrix takes width {w_q.shape[1]}. "
            f"Pass queries of that width, or another matrix."
        )


COMPATIBILITIES = {
    one.name: one
    for one in (
        linear("dot", lambda queries: queries),
        linear("scaled_dot", lambda some: some * (1.0 / math.sqrt(some.shape[-1])), lambda some: some / some.shape[-1]),
        Compatibility(
            "cosine", _cosine, degree=0, form="cosine", with_lengths=cosine, lukewarm=0.1, terms=_of_directions
        ),
        Compatibility(
            "gaussian", gaussian, copies=True, degree=2, form="gaussian", with_halves=by_halves, cancels=True
        ),
        Compatibility(
            "laplace", partial(by_differences, laplace), copies=True, degree=1, pairs=True, terms=_of_distances
        ),
        Compatibility("student", partial(by_differences, student), copies=True, pairs=True, terms=_of_distances),
        Compatibility("uniform", _uniform, degree=0, terms=lambda squares: (squares * 0.0, squares[..., 0] * 0.0)),
    )
}


def compatibility_of(given: str | Compatibility | Callable[[Any, Any], Any]) -> Compatibility:
    """The compatibility of that name, or the one given, or a function of the user's own."""
    if isinstance(given, Compatibility):
        return given
    if callable(given):
        return custom(given)
    if isinstance(given, str) and given in COMPATIBILITIES:
        return COMPATIBILITIES[given]
    if given in ("bilinear", "additive"):
        raise NotExpressible(f"{given!r} needs its matrices. Pass compatibility={given}(...), imported from softkv.")
    raise NotExpressible(
        f"expected one of {', '.join(COMPATIBILITIES)}, bilinear(W), additive(W_q, W_k, v) or a function, "
        f"got {given!r}. Check the spelling."
    )
