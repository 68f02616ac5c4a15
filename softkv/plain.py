"""A soft lookup in plain arrays, without a store.

Finds the kind of the values (numbers, vectors or labels) and returns an Answer for a single query, Answers for many.
The lookup itself is softkv/maths/lookup.py.

Does not store, embed or index anything.

Shapes: b queries, n rows, q query width, d key width, p value width; "..." is any leading axes, such as a batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

from softkv.answer import Answer, Answers
from softkv.errors import KindError, ShapeError
from softkv.maths.arrays import library_of
from softkv.maths.blending import Labels, Numbers, Values, Vectors
from softkv.maths.compatibility import Compatibility
from softkv.maths.heads import Heads
from softkv.maths.library import Array, Library
from softkv.maths.lookup import lookup


def soft_lookup(
    queries: Any,
    keys: Any,
    values: Any,
    *,
    compatibility: str | Compatibility | Callable[[Any, Any], Any] = "scaled_dot",
    temperature: Any = 1.0,
    k: int | None = None,
    mask: Any = None,
    causal: bool = False,
    bias: Any = None,
    heads: Heads | None = None,
    labels: int | Sequence[str] | None = None,
    show: int = 10,
) -> Answer | Answers:
    """Compare queries with all keys, and average the values by how well their keys compare.

    >>> import softkv
    >>> keys, incomes = [[1.0, 0.0], [0.0, 1.0]], [30_000, 50_000]
    >>> answer = softkv.soft_lookup([0.9, 0.1], keys, incomes, compatibility="dot", temperature=0.5)
    >>> round(answer.value), round(answer.effective, 2)
    (33360, 1.57)
    >>> softkv.soft_lookup([0.9, 0.1], keys, ["fruit", "company"], compatibility="dot").label
    'fruit'

    Args:
        queries: One query (q,), or many (..., b, q). One query gives an Answer, many give Answers.
        keys: (..., n, d).
        values: What is averaged: numbers (..., n), vectors (..., n, p), a list of strings as labels, or with `labels`
            their codes (..., n). Numbers come with their spread, labels give a distribution.
        compatibility: dot, scaled_dot, cosine, gaussian, laplace, student or uniform; bilinear(W) or additive(W_q, W_k,
            v) of softkv; or a function of (queries, keys) that returns scores.
        temperature: What scores are divided by; one for all, or one per query. Near 0 the best row has all weight.
        k: Blend only the k heaviest rows; `mass` then says what share of all they hold.
        mask: Boolean (rows,) or (queries, rows), True where a query may see a row. Masked rows must be finite, too.
        causal: Query i sees the rows up to i.
        bias: (rows,) or (queries, rows), added to the scores; temperature x log(w) weighs a row by w.
        heads: Learned projections, several lookups at once.
        labels: The names of the codes in `values`, or how many there are.
        show: How many of the heaviest rows to name as contributors.

    Tensors in, tensors out, with gradients. Sums are float64 whatever comes in, under `torch.autocast` as well; the
    value has the floating type of the values (at least float32). Values of rows that are too light to change the answer
    are not read, and so not checked.
    """
    library = library_of(queries, keys, values)
    keys = library.array(keys, like=queries)
    held, names = _values(library, values, keys, labels, project=heads is not None)
    asked = library.array(queries, like=keys)
    one = asked.ndim == 1
    with library.unrounded(keys):
        found = lookup(
            _alone(queries, asked) if one else queries,
            keys,
            held,
            compatibility=compatibility,
            temperature=temperature,
            k=k,
            mask=mask,
            causal=causal,
            bias=bias,
            heads=heads,
            show=show,
        )
    if not isinstance(temperature, (int, float)):
        temperature = library.array(temperature, like=keys)
    answers = Answers.of(found, temperature, names, int(keys.shape[-2]), numbers=isinstance(held, Numbers))
    return answers[0] if one else answers


def _alone(query: Any, array: Array) -> Any:
    """One query as a batch of one. A list stays a list, since an array would fix a floating type."""
    return array[None, :] if hasattr(query, "dtype") else [query]


def _values(
    library: Library, values: Any, keys: Array, labels: int | Sequence[str] | None, *, project: bool
) -> tuple[Values, tuple[object, ...] | None]:
    """The values in the form in which they are blended, and the names of the labels if they are labels."""
    if labels is not None:
        names = tuple(range(labels)) if isinstance(labels, int) else tuple(labels)
        return Labels(_codes(library, values, keys, len(names)), len(names)), names
    if _is_text(values):
        names = tuple(dict.fromkeys(values))
        numbered = {name: code for code, name in enumerate(names)}
        return Labels(library.array([numbered[name] for name in values], like=keys), len(names)), names
    array = library.array(values, like=keys)
    if keys.ndim > 1 and array.ndim not in (keys.ndim, keys.ndim - 1):
        raise ShapeError(
            f"expected one number or one vector for each of the keys {tuple(keys.shape)}, got values of shape "
            f"{tuple(array.shape)}. Pass shape {tuple(keys.shape[:-1])} or that with a width added."
        )
    if array.ndim >= max(2, keys.ndim):
        return Vectors(array), None
    return (Vectors(array[..., None]) if project else Numbers(array[..., None])), None


def _is_text(values: Any) -> bool:
    row = hasattr(values, "__getitem__") and getattr(values, "ndim", 1) == 1
    first = next(iter(values), None) if row else None  # the column of a table may have no place 0
    if isinstance(first, str) and not all(isinstance(value, str) for value in values):
        raise KindError(
            "expected all values to be strings (labels) or all numbers, got a mixture. Convert one of the two."
        )
    return isinstance(first, str)


def _codes(library: Library, values: Any, keys: Array, count: int) -> Array:
    codes = library.array(values, like=keys)
    if not library.is_integer(codes):
        raise KindError(f"expected the integer codes of labels, got {codes.dtype}. Leave out labels= to blend numbers.")
    if codes.shape and 0 not in codes.shape and not (int(codes.min()) >= 0 and int(codes.max()) < count):
        raise KindError(
            f"expected codes from 0 to {count - 1}, as there are {count} labels, got {int(codes.min())} to "
            f"{int(codes.max())}. Name more labels, or correct the codes."
        )
    return codes
