"""The inputs of a lookup, checked and converted to one library and one floating type.

Mistakes are named here, before anything is computed; NaN and infinity are looked for in the results, and then traced
back to the row they came from, so that a million clean rows are not read twice.

Does not convert keys or values as a whole: that happens block by block, when they are used.

Shapes: b queries, n rows, q query width, d key width, p value width, h heads; "..." is any leading axes.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from softkv.errors import AllMasked, EmptyStore, KindError, NotExpressible, NotFinite, ShapeError, TemperatureError
from softkv.maths.arrays import columns_where, has_float, library_of
from softkv.maths.blending import Blend, Labels, Values, Vectors
from softkv.maths.heads import Heads
from softkv.maths.library import Array, DType, Library, Sharpness
from softkv.maths.weighting import NEVER


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The checked inputs of a lookup."""

    library: Library
    queries: Array  # (..., b, q), in the type that is computed with
    keys: Array  # (..., n, d), as given
    values: Values  # as given; with heads and leading axes, (..., 1, n, p)
    leading: tuple[int, ...]
    temperature: Any  # a float, or an array () or (..., b) of float64
    k: int | None  # None when all rows are blended
    mask: Array | None  # (..., b or 1, n)
    bias: Array | None  # (..., b or 1, n)
    heads: Heads | None
    show: int

    @property
    def dtype(self) -> DType:
        """The floating type that is computed with."""
        return self.queries.dtype

    @property
    def count(self) -> int:
        """How many queries there are."""
        return int(self.queries.shape[-2])

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.keys.shape[-2])

    @property
    def asked_per_query(self) -> int:
        """How many logits one query has for each row: one for each head and leading index."""
        return math.prod(self.leading) * (1 if self.heads is None else len(self.heads))

    def sharpness(self, queries: slice) -> Sharpness:
        """1 / temperature of some queries, ready to multiply queries or logits."""
        if isinstance(self.temperature, float):
            return 1.0 / self.temperature
        inverse = 1.0 / self.temperature
        return inverse if inverse.ndim == 0 else self.over_heads(inverse[..., queries, None])

    def over_heads(self, x: Array) -> Array:
        """An array (..., b, n) ready to meet one with heads, (..., h, b, n)."""
        return x if self.heads is None or x.ndim == 2 else x[..., None, :, :]


def checked(
    queries: Any,
    keys: Any,
    values: Values,
    *,
    temperature: Any,
    k: int | None = None,
    mask: Any = None,
    bias: Any = None,
    heads: Heads | None = None,
    show: int = 0,
) -> Inputs:
    """Check the arguments of a lookup, and that they fit together."""
    library = library_of(queries, keys, values.array)
    keys = library.array(keys, like=queries)
    queries = _queries(library, queries, keys)
    leading = _check_shapes(queries, keys, values, heads)
    shape = (*leading, queries.shape[-2], keys.shape[-2])
    if heads is not None and keys.ndim > 2:
        values = Vectors(values.array[..., None, :, :])
    inputs = Inputs(
        library=library,
        queries=queries,
        keys=keys,
        values=values,
        leading=leading,
        temperature=temperature_of(library, temperature, queries, leading),
        k=None if k is None or whole_number("k", k, least=1) >= keys.shape[-2] else int(k),
        mask=None if mask is None else _mask(library, mask, queries, shape),
        bias=None if bias is None else _bias(library, bias, queries, shape),
        heads=None if heads is None else heads.like(queries, queries.dtype),
        show=min(whole_number("show", show, least=0), int(keys.shape[-2])),
    )
    _check_numbers("queries", library, queries, 0)
    if inputs.heads is not None:
        _check_heads(library, inputs.heads)
    return inputs


def refuse_scores(inputs: Inputs, logits: Array, first: int) -> None:
    """Raise unless all scores of a block are finite, naming the first row that is not."""
    library = inputs.library
    # One sum tells of NaN and infinity anywhere in the block; a sum that overflows by itself is looked at again.
    if library.finite(library.total(library.constant(logits))).all() or library.finite(logits).all():
        return
    count = logits.shape[-1]
    _check_numbers("keys", library, inputs.keys[..., first : first + count, :], first)
    bad = columns_where(~library.finite(logits))
    raise NotFinite(
        f"the score of row {first + int(bad[0])} is not a finite number, although query and key are: it overflows "
        f"{logits.dtype}, or the compatibility is not defined there. Scale the vectors down, raise the temperature, or "
        f"use float64."
    )


def refuse_values(values: Values, blend: Blend) -> None:
    """Raise unless the blended values are finite, naming the first row that is not."""
    library = library_of(blend.total)
    if library.finite(blend.total).all():
        return
    _check_numbers("values", library, values.array, 0)
    raise NotFinite("the sum of the values overflows float64. Scale them down.")


def refuse_all_masked(seen: Array, first: int) -> None:
    """Raise if there is nothing to average for some query; (..., b) rows seen, from the first query of this number."""
    empty = library_of(seen).true_indices((seen == 0).reshape(-1))
    if len(empty):
        raise AllMasked(
            f"query {first + int(empty[0]) % seen.shape[-1]} may see no row: all are masked or have a bias of "
            "-inf. Leave such queries out, or allow them at least one row."
        )


def _queries(library: Library, queries: Any, keys: Array) -> Array:
    insisting = [library.array(x, like=keys) for x in (queries, keys) if has_float(x)]
    queries = library.array(queries, like=keys)
    if 0 in keys.shape[:-1] or tuple(keys.shape) == (0,):
        raise EmptyStore(
            "there are no rows to look up in. Add some first: a soft answer is an average, at least of one."
        )
    if queries.ndim < 2 or keys.ndim < 2:
        raise ShapeError(
            f"expected queries of shape (..., b, q) and keys of shape (..., n, d), got {tuple(queries.shape)} and "
            f"{tuple(keys.shape)}. A single vector is an array of one row."
        )
    # A list has no precision to insist on, so float32 keys are not scored in float64 because of it.
    return library.cast(queries, library.shared_float(*(insisting or [queries, keys])))


def _check_shapes(queries: Array, keys: Array, values: Values, heads: Heads | None) -> tuple[int, ...]:
    if 0 in (queries.shape[-1], keys.shape[-1]):
        raise ShapeError("expected queries and keys of width 1 or more, got width 0. Give them numbers to compare.")
    held = tuple(values.array.shape if isinstance(values, Labels) else values.array.shape[:-1])
    if held != tuple(keys.shape[:-1]):
        raise ShapeError(
            f"expected one value for each of the keys {tuple(keys.shape[:-1])}, got {held}. Pass as many of both."
        )
    if heads is not None:
        _check_heads_fit(queries, keys, values, heads)
    try:
        return tuple(np.broadcast_shapes(tuple(queries.shape[:-2]), tuple(keys.shape[:-2])))
    except ValueError:
        raise ShapeError(
            f"the leading axes of the queries {tuple(queries.shape[:-2])} and keys {tuple(keys.shape[:-2])} do not "
            f"broadcast. Make them equal, or leave one of them without."
        ) from None


def _check_heads_fit(queries: Array, keys: Array, values: Values, heads: Heads) -> None:
    if isinstance(values, Labels):
        raise NotExpressible(
            "heads project values, and a distribution over labels has no projection. Leave out heads or labels."
        )
    for what, x, width in (("queries", queries, heads.query_width), ("keys", keys, heads.key_width)):
        if x.shape[-1] != width:
            raise ShapeError(
                f"the {what} have width {x.shape[-1]}, but these heads take width {width}. Pass {what} of that width."
            )
    if heads.w_v is None:
        _check_unprojected(heads, int(values.array.shape[-1]))
    given, taken = values.array.shape[-1], heads.value_width
    if taken is not None and given != taken:
        raise ShapeError(
            f"the values have width {given}, but these heads take width {taken}. Pass values of that width."
        )


def _check_unprojected(heads: Heads, width: int) -> None:
    """Refuse projections that do not fit values of this width, which no w_v makes narrower or wider."""
    w_o, joined = heads.w_o, len(heads) * width
    for name, x, fitting in (
        ("b_v", heads.b_v, (len(heads), width)),
        ("w_o", w_o, (None if w_o is None else int(w_o.shape[0]), joined)),
        ("b_o", heads.b_o if w_o is None else None, (joined,)),
    ):
        if x is not None and tuple(x.shape) != fitting:
            raise ShapeError(
                f"expected {name} of shape {fitting} for {len(heads)} heads and values of width {width} without w_v, "
                f"got {tuple(x.shape)}. Make it fit, or pass w_v."
            )


def temperature_of(library: Library, given: Any, queries: Array, leading: tuple[int, ...] = ()) -> Any:
    """Temperatures above 0: a float, or an array () or (..., b) of float64."""
    if isinstance(given, (int, float, np.number)) and not isinstance(given, bool):
        try:
            given = float(given)
        except OverflowError:
            given = math.inf
        if not (math.isfinite(given) and given > 0):
            raise TemperatureError(
                f"expected a temperature above 0, got {given}. For the single best row ask for k=1; for the plain mean "
                f"use compatibility='uniform'."
            )
        return given
    if isinstance(given, (bool, np.bool_)):
        raise TemperatureError(f"expected a temperature above 0, got {given}. Pass a number.")
    temperature = library.double(library.array(given, like=queries))  # beside float32 vectors it may leave float32
    plain = library.constant(temperature)
    if not (library.finite(plain) & (plain > 0)).all():
        raise TemperatureError(
            "expected temperatures above 0, got some that are 0, negative or not finite. Raise them."
        )
    if temperature.ndim == 0:
        return temperature
    shape = (*leading, queries.shape[-2])
    if tuple(temperature.shape) not in (shape, shape[-1:]):
        raise ShapeError(
            f"expected one temperature, or one per query {shape}, got shape {tuple(temperature.shape)}. "
            f"Pass a number, or an array of that shape."
        )
    return temperature


def is_whole(given: object) -> TypeGuard[int]:
    """Whether this is a whole number, of Python or of NumPy; True, False and spans of time are none."""
    return isinstance(given, (int, np.integer)) and not isinstance(given, (bool, np.timedelta64))


def whole_number(name: str, given: Any, *, least: int) -> int:
    """A whole number of something, such as rows; messages call it by `name`."""
    if not is_whole(given) or given < least:
        raise KindError(f"expected {name} to be a whole number of at least {least}, got {given!r}. Pass such a number.")
    return int(given)


def _mask(library: Library, given: Any, queries: Array, shape: tuple[int, ...]) -> Array:
    mask = library.array(given, like=queries)
    if not library.is_boolean(mask):
        raise KindError(
            f"expected a boolean mask, True where a query may see a row, got {mask.dtype}. "
            f"Numbers to add to the scores are a bias: pass bias=."
        )
    return _fitting("mask", mask, shape)


def _bias(library: Library, given: Any, queries: Array, shape: tuple[int, ...]) -> Array:
    bias = library.cast(library.array(given, like=queries), queries.dtype)
    if not (library.finite(bias) | (bias == NEVER)).all():
        raise NotFinite("expected a bias of finite numbers, or -inf to leave a row out, got NaN or inf. Remove them.")
    return _fitting("bias", bias, shape)


def _fitting(name: str, x: Array, shape: tuple[int, ...]) -> Array:
    """The array as (..., b or 1, n)."""
    x = x[None, :] if x.ndim == 1 else x
    try:
        fits = x.ndim >= 2 and x.shape[-1] == shape[-1] and np.broadcast_shapes(tuple(x.shape), shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"expected a {name} of shape {shape} (queries, rows), or (rows,) for all queries alike, "
            f"got {tuple(x.shape)}. Its last axis is that of the rows."
        )
    return x


def _check_heads(library: Library, heads: Heads) -> None:
    for name, x in heads.arrays().items():
        if not library.finite(x).all():
            raise NotFinite(f"{name} of the heads holds NaN or infinity. Pass finite numbers.")


def _check_numbers(what: str, library: Library, x: Array, first: int) -> None:
    """Raise if x holds NaN or infinity, naming its first row that does."""
    rows = x.reshape(-1, x.shape[-1])
    for start in range(0, rows.shape[0], 1 << 16):
        bad = columns_where((~library.finite(rows[start : start + (1 << 16)])).swapaxes(-1, -2))
        if len(bad):
            row = first + (start + int(bad[0])) % x.shape[-2]
            raise NotFinite(f"{what}[{row}] holds NaN or infinity; expected finite numbers. Repair or remove that row.")
