"""Several learned views of the same rows at once: multi-head lookup, as rewritten queries.

A head compares W_q q + b_q with W_k k + b_k. That is (W_kᵀ(W_q q + b_q))·k plus a number that is the same for all keys,
so one query becomes h queries over the SAME raw keys, and nothing is projected or stored on the key side. A mean of
projected values is the projected mean, so W_v, b_v, W_o and b_o act once, after the blend.

Does not look anything up (lookup.py), and does not learn (softkv/learning).

Shapes: h heads, b queries, a head width, q query width, d key width, p value width, c width of a head's value,
o output width; "..." is any leading axes, such as a batch.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from softkv.errors import NotExpressible, ShapeError
from softkv.maths.arrays import library_of
from softkv.maths.compatibility import Compatibility
from softkv.maths.library import NUMPY, Array, DType


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Learned projections of queries, keys and values, one set per head. What is None is left out.

    >>> heads = Heads.random(2, query_width=3, key_width=4, value_width=5, head_width=2, seed=0)
    >>> len(heads), heads.output_width(5)
    (2, 5)
    """

    w_q: Array  # (h, a, q)
    w_k: Array  # (h, a, d)
    w_v: Array | None = None  # (h, c, p)
    w_o: Array | None = None  # (o, h x c)
    b_q: Array | None = None  # (h, a)
    b_k: Array | None = None  # (h, a)
    b_v: Array | None = None  # (h, c)
    b_o: Array | None = None  # (o,)

    def __post_init__(self) -> None:
        for name, x in self.arrays().items():
            axes = _AXES[name]
            if getattr(x, "ndim", None) != axes:
                raise ShapeError(
                    f"expected {name} to be an array with {axes} axes, got shape {np.shape(x)}. "
                    f"Stack the heads on the first axis: w_q (h, a, q), w_k (h, a, d), w_v (h, c, p), w_o (o, h*c)."
                )
        self._check_counts()

    def __len__(self) -> int:
        return int(self.w_q.shape[0])

    @property
    def query_width(self) -> int:
        """The width of the queries that these heads take."""
        return int(self.w_q.shape[2])

    @property
    def value_width(self) -> int | None:
        """The width of the values that these heads take; None for any."""
        return None if self.w_v is None else int(self.w_v.shape[2])

    @property
    def key_width(self) -> int:
        """The width of the keys that these heads take."""
        return int(self.w_k.shape[2])

    def output_width(self, value_width: int) -> int:
        """The width of the answer for values of this width."""
        if self.w_o is not None:
            return int(self.w_o.shape[0])
        return len(self) * (value_width if self.w_v is None else int(self.w_v.shape[1]))

    def rewrite(self, queries: Array, compatibility: Compatibility) -> tuple[Array, Array]:
        """The queries to ask the raw keys, and what to add to their scores: (..., b, q) -> (..., h, b, d), (..., h, b).

        What is added is the same for all keys. It cancels in the weights, and belongs to scores and log_mass.
        """
        if compatibility.rewrite is None:
            raise NotExpressible(
                f"heads project queries and keys, which only dot, scaled_dot and bilinear can fold into the query; "
                f"got {compatibility.name!r}. Use one of the three, or project queries and keys yourself."
            )
        library = library_of(queries)
        projected = queries[..., None, :, :] @ self.w_q.swapaxes(-1, -2)  # (..., 1, b, q) x (h, q, a) -> (..., h, b, a)
        if self.b_q is not None:
            projected = projected + self.b_q[:, None, :]
        projected = compatibility.rewrite(projected)
        if self.b_k is None:
            constant = (projected * 0.0).sum(-1)
        else:
            constant = library.multiply_total(projected, self.b_k[:, None, :])
        return projected @ self.w_k, constant  # (..., h, b, a) x (h, a, d) -> (..., h, b, d)

    def project(self, means: Array) -> Array:
        """The answer from the blended raw values: (..., h, b, p) -> (..., b, o)."""
        if self.w_v is not None:
            means = means @ self.w_v.swapaxes(-1, -2)
        if self.b_v is not None:
            means = means + self.b_v[:, None, :]
        means = means.swapaxes(-3, -2)
        joined = means.reshape(
            *means.shape[:-2], means.shape[-2] * means.shape[-1]
        )  # (..., b, h, c) -> (..., b, h x c)
        if self.w_o is not None:
            joined = joined @ self.w_o.swapaxes(-1, -2)
        return joined if self.b_o is None else joined + self.b_o

    def like(self, array: Array, dtype: DType) -> "Heads":
        """The heads as arrays of another's library and device, in this dtype; gradients flow from torch to torch."""
        library = library_of(array)
        arrays = self.arrays()
        if library is NUMPY:
            arrays = {name: x.detach() if hasattr(x, "detach") else x for name, x in arrays.items()}
        return Heads(**{name: library.cast(library.array(x, like=array), dtype) for name, x in arrays.items()})

    def squared(self) -> "Heads":
        """The projections squared, in float64: from squares of queries they make the squares of all terms of a sum."""
        exact = self.like(np.empty(0), np.float64)
        return Heads(**{name: x**2 for name, x in exact.arrays().items()})

    def arrays(self) -> dict[str, Array]:
        """The projections that are there, by name."""
        named = {name: getattr(self, name) for name in _AXES}
        return {name: x for name, x in named.items() if x is not None}

    def _check_counts(self) -> None:
        shapes = {name: tuple(x.shape) for name, x in self.arrays().items()}
        counts = {name: shape[0] for name, shape in shapes.items() if name not in ("w_o", "b_o")}
        if len(set(counts.values())) != 1 or len(self) == 0:
            raise ShapeError(
                f"expected the same number of heads, at least one, in every array, got {counts}. Stack as many."
            )
        joined = len(self) * shapes["w_v"][1] if "w_v" in shapes else None
        for named, widths in {
            "one head width": [shapes[name][1] for name in ("w_q", "w_k", "b_q", "b_k") if name in shapes],
            "one value width": [shapes[name][1] for name in ("w_v", "b_v") if name in shapes],
            "one output width": [shapes[name][0] for name in ("w_o", "b_o") if name in shapes],
            "w_o to take the joined heads": [shapes["w_o"][1], joined] if "w_o" in shapes and joined else [],
        }.items():
            if len(set(widths)) > 1:
                raise ShapeError(f"expected {named}, got {widths}. Check the shapes {shapes}.")

    @classmethod
    def identity(cls, count: int, *, width: int, value_width: int | None = None) -> "Heads":
        """Heads that project nothing: each sees its own slice of the queries and keys, and of the values.

        One identity head is the plain lookup.
        """
        values = width if value_width is None else value_width
        for name, size in (("width", width), ("value_width", values)):
            if count < 1 or size % count:
                raise ShapeError(f"expected a {name} that {count} heads can share, got {size}. Use a divisor of it.")
        keys = np.eye(width).reshape(count, width // count, width)
        return cls(w_q=keys, w_k=keys, w_v=np.eye(values).reshape(count, values // count, values))

    @classmethod
    def random(
        cls,
        count: int,
        *,
        query_width: int,
        key_width: int,
        value_width: int,
        head_width: int,
        output_width: int | None = None,
        seed: int,
    ) -> "Heads":
        """Heads with random projections (normal, of variance 1 / width taken) and no offsets."""
        generator = np.random.default_rng(seed)

        def draw(*shape: int) -> Any:
            return generator.standard_normal(shape) / math.sqrt(shape[-1])

        return cls(
            w_q=draw(count, head_width, query_width),
            w_k=draw(count, head_width, key_width),
            w_v=draw(count, head_width, value_width),
            w_o=draw(value_width if output_width is None else output_width, count * head_width),
        )

    @classmethod
    def from_torch(cls, module: Any) -> "Heads":
        """The heads of an nn.MultiheadAttention: lookups give the module's own outputs.

        The parameters are shared, not copied, so gradients reach the module and training it changes the heads.
        """
        if not any(kind.__name__ == "MultiheadAttention" for kind in type(module).__mro__):
            raise NotExpressible(
                f"expected a torch.nn.MultiheadAttention, got {type(module).__name__}. Use Heads(w_q=...)."
            )
        _refuse_inexpressible(module)
        h = module.num_heads
        apart = module.in_proj_weight is None  # where queries, keys and values differ in width
        each = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        w_q, w_k, w_v = each if apart else module.in_proj_weight.chunk(3)
        offsets = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        b_q, b_k, b_v = (None if x is None else x.reshape(h, -1) for x in offsets)
        return cls(
            w_q=w_q.reshape(h, -1, w_q.shape[1]),
            w_k=w_k.reshape(h, -1, w_k.shape[1]),
            w_v=w_v.reshape(h, -1, w_v.shape[1]),
            w_o=module.out_proj.weight,
            b_q=b_q,
            b_k=b_k,
            b_v=b_v,
            b_o=module.out_proj.bias,
        )


_AXES = {"w_q": 3, "w_k": 3, "w_v": 3, "w_o": 2, "b_q": 2, "b_k": 2, "b_v": 2, "b_o": 1}


def _refuse_inexpressible(module: Any) -> None:
    if module.bias_k is not None or module.bias_v is not None:
        raise NotExpressible(
            "add_bias_kv appends a learned row to the keys, which is not a projection. Add it to the keys and values."
        )
    if module.add_zero_attn:
        raise NotExpressible("add_zero_attn appends a row of zeros to the keys. Add that row to the keys and values.")
    if module.training and module.dropout > 0:
        raise NotExpressible(
            f"the module is in training mode with dropout={module.dropout}, so its own outputs are random. "
            f"Call module.eval() first."
        )
