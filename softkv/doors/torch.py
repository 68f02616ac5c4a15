"""Soft lookup as a torch module: attention over a store, over tensors, or over recent rows.

    layer = SoftKVLayer.from_store("films.softkv")      all items, compared as the store compares them
    layer = SoftKVLayer(keys, values)                    rows that were given
    layer = SoftKVLayer(keys, values, capacity=4096)     the most recent rows, `remember`ed step by step

Queries, the temperature and projections are learned, and values on request; these can be written back to the store
they came from. The lookup is softkv/maths/lookup.py, whose gradients are torch's own.

Where the weights of all queries would take too much memory until the backward pass, queries are looked up in parts, and
their weights are computed again for it.

Does not change a store, except by `write_back`, and does not notice when a store changes: make the layer again.

Shapes: b queries, q query width, n rows, d key width, p value width, c labels, h heads, o output width; "..." is any
leading axes, such as a batch.
"""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.asking.profile import REAL
from softkv.database import open as open_store
from softkv.database.changes import Changes
from softkv.database.reader import Reader
from softkv.errors import AllMasked, InputError, KindError, MissingExtra, NotExpressible, NotFinite, ShapeError
from softkv.kinds import ValueKind
from softkv.maths.compatibility import compatibility_of
from softkv.maths.heads import Heads
from softkv.plain import soft_lookup

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise MissingExtra("softkv.doors.torch", package="torch", extra="torch") from error

from softkv.doors.memory import Memory, require_rows, require_usable
from softkv.doors.query_parts import for_queries, in_parts, no_later
from softkv.doors.taken import TOGETHER, Projecting, known_from, names_of, of_columns, reading, require_names, tensor_of
from softkv.doors.weighing import evidence_of, may_be_in_blocks, weighed
from softkv.maths.tensors import TORCH

KEPT = 1 << 26  # most numbers that are kept for the backward pass
PER_WEIGHT = 3  # numbers kept for each pair of query and row; with k twice as many

Compared = Any  # a name, a Compatibility, or a function of (queries, keys)


class SoftKVLayer(nn.Module):
    """Look queries up among rows: (..., b, q) gives numbers (..., b), vectors (..., b, p), or shares of labels.

    >>> import torch
    >>> from softkv.doors.torch import SoftKVLayer
    >>> layer = SoftKVLayer(torch.eye(3), torch.tensor([10.0, 20.0, 30.0]), compatibility="dot", temperature=0.5)
    >>> found = layer(torch.tensor([[1.0, 0.0, 0.0]]))
    >>> round(found.item(), 2)
    13.2
    >>> found.sum().backward()
    >>> layer.log_temperature.grad is not None
    True

    Args:
        keys: (..., n, d), on the device and in the floating type in which they stay.
        values: Numbers (..., n), vectors (..., n, p), or with `labels` the codes of labels (..., n).
        compatibility: How queries and keys compare, as in `softkv.soft_lookup`.
        temperature: What scores are divided by, to begin with.
        k: Blend only the k heaviest rows.
        heads: Several learned views at once: `softkv.Heads`, whose projections learn, or an nn.MultiheadAttention,
            which becomes part of this module.
        labels: The names of the codes in `values`, or how many there are.
        query: A module that every query goes through first, such as an nn.Linear.
        learn_temperature: Whether the temperature is a parameter.
        learn_values: Whether the values are.
        capacity: How many rows `remember` keeps; the rows given are the first.
    """

    def __init__(
        self,
        keys: Tensor,
        values: Tensor,
        *,
        compatibility: Compared = "scaled_dot",
        temperature: float = 1.0,
        k: int | None = None,
        heads: Heads | nn.MultiheadAttention | None = None,
        labels: int | Sequence[str] | None = None,
        query: nn.Module | None = None,
        learn_temperature: bool = True,
        learn_values: bool = False,
        capacity: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(temperature, bool) or not isinstance(temperature, REAL) or not 0 < temperature < math.inf:
            raise InputError(f"expected temperature to be a number above 0, got {temperature!r}.")
        if k is not None and (isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1):
            raise InputError(f"expected k to be None or a number of rows from 1 on, got {k!r}.")
        if heads is not None and (labels is not None or compatibility_of(compatibility).rewrite is None):
            raise NotExpressible("heads blend vectors, compared by dot or scaled_dot. Leave out heads, or labels.")
        self.memory = Memory(keys, values, learn_values=learn_values, capacity=capacity)
        self.query, self.compatibility, self.k, self.labels = query, compatibility, k, labels
        require_usable(keys, values, self._label_count(), compatibility_of(compatibility))
        wide = torch.promote_types(keys.dtype, torch.float32)
        start = torch.tensor(math.log(temperature), dtype=wide, device=keys.device)
        self.log_temperature = nn.Parameter(start, requires_grad=learn_temperature)
        self.attention: nn.MultiheadAttention | None = None
        self.projections: nn.ParameterDict | None = None
        if isinstance(heads, Heads):
            arrays = {name: torch.as_tensor(x).to(keys.device, wide) for name, x in heads.arrays().items()}
            self.projections = nn.ParameterDict({name: nn.Parameter(x.clone()) for name, x in arrays.items()})
        elif heads is not None:
            Heads.from_torch(heads)  # raises now if they cannot be expressed
            self.attention = heads
        self.threshold: float | None = None  # from which evidence on queries are known, of a store with a guard
        self.names: list[str] | None = None
        self._origin: tuple[str, Any, Tensor] | None = None  # the store, its values, and these as they were held first

    @classmethod
    def from_store(
        cls,
        store: Reader | str | os.PathLike[str],
        *,
        dtype: torch.dtype = torch.float32,
        device: Any = None,
        temperature: float | None = None,
        k: int | None = None,
        heads: Heads | nn.MultiheadAttention | None = None,
        query: nn.Module | None = None,
        projection: bool = True,
        learn_temperature: bool = True,
        learn_values: bool = False,
    ) -> "SoftKVLayer":
        """A layer over all items of a store, as they are now, which answers as the store does.

        Args:
            store: An open store, a snapshot of one, or a path.
            dtype: The floating type of keys and values: float32, bfloat16 or float16 (or float64). Values that learn
                are float32 at least, or they would not notice small steps.
            device: Where they lie, such as "cuda".
            temperature: Otherwise that of the store.
            k: Blend only the k heaviest items.
            heads: Several learned views at once; they compare by scaled dot products, at temperature 1.
            query: A module that every query goes through first.
            projection: Whether queries begin as the store has learned to project them (`fit`), and go on learning.
            learn_temperature: Whether the temperature is a parameter.
            learn_values: Whether the values are; `write_back` gives them to the store, and `names` says whose they are.
        """
        with reading(store) as columns:
            learned = columns.learned if projection and heads is None else None
            if learned is not None and learned.ridge is not None:
                raise NotExpressible(
                    "this store reads numbers off planes, which a layer does not. Say projection=False, or fit it with "
                    "planes=False."
                )
            if learn_values and ValueKind(columns.kind).worded:
                raise KindError(f"expected numbers or vectors, which can learn, got values of kind {columns.kind!r}.")
            wide = torch.promote_types(dtype, torch.float32) if learn_values else dtype
            keys, values = of_columns(
                columns, dtype=dtype, values_dtype=wide, device=device, projected=learned is not None
            )
            usual, compared = columns.temperature, columns.compatibility
            if heads is not None or learned is not None:
                usual, compared = 1.0, "scaled_dot" if learned is None else "gaussian"
            usual = usual if temperature is None else temperature
            projecting = None if learned is None else Projecting(learned.metric, device)
            seeing = [one for one in (query, projecting) if one is not None]
            layer = cls(
                keys,
                values,
                compatibility=compared,
                temperature=usual,
                k=k,
                heads=heads,
                labels=columns.labels,
                query=nn.Sequential(*seeing) if seeing else None,
                learn_temperature=learn_temperature,
            )
            if query is None:
                layer.threshold = known_from(columns, usual, k=k, heads=heads, projected=learned is not None)
            # A state_dict need not carry what the store holds.
            layer.memory = Memory(keys, values, learn_values=learn_values, kept=False)
            if learn_values:
                layer.names = names_of(columns)
                exact = np.concatenate([some for _, some in columns.blocks()])
                layer._origin = columns.store, exact, values.detach().to("cpu", copy=True)
        return layer

    @property
    def temperature(self) -> Tensor:
        """What scores are divided by."""
        wide: Tensor = TORCH.double(self.log_temperature)  # of tiny vectors it lies below float32, its gradient beyond
        return wide.exp()

    def __len__(self) -> int:
        return len(self.memory)

    def forward(
        self, queries: Tensor, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """The values of the answers to queries (..., b, q). `mask` and `bias` are as in `softkv.soft_lookup`."""
        return self._found(queries, mask, bias, causal)

    def evidence(
        self, queries: Tensor, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """The evidence of the queries, (..., b), with gradients: the quantity that a guard compares."""
        if self._heads() is not None:
            raise NotExpressible("each head has a log mass of its own, and so no evidence. Ask a layer without heads.")
        return self._found(queries, mask, bias, causal, evidence_of)

    def _found(
        self, queries: Tensor, mask: Any, bias: Any, causal: bool, told: Callable[[Answers], Tensor] | None = None
    ) -> Tensor:
        """The value of the answers, or what is `told` of them, with gradients."""
        asked = self._asked(queries)
        keys, values = self.memory.rows(in_order=causal)
        heads, temperature, labels = self._heads(), self.temperature, self._label_count()
        mask, bias = (for_queries(one, asked) for one in (mask, bias))
        learning = self._learning(asked, bias)
        step, short = self._at_once(asked, keys, heads), keys.dtype != torch.promote_types(asked.dtype, torch.float32)
        plain = self.k is None and told is None and may_be_in_blocks(values, bias, labels)
        in_blocks = plain and (short or step < asked.shape[-2])
        compared = compatibility_of(self.compatibility)
        how: Any = {"compatibility": compared, "heads": heads, "labels": labels, "in_blocks": in_blocks}

        def ask(queries: Tensor, temperature: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
            if learning and self.k is None and told is None:
                with torch.autocast(queries.device.type, enabled=False):
                    found = weighed(queries, keys, values, temperature=temperature, mask=mask, bias=bias, **how)
                if found is not None and torch.isfinite(found).all():
                    return found
            answers = self._answers(queries, keys, values, temperature, heads, mask, bias, causal, 0)
            value: Tensor = answers.value if told is None else told(answers)
            return value

        if learning and causal:
            mask, causal = no_later(mask, asked, keys), False
        if step >= asked.shape[-2] or in_blocks or not learning:
            return ask(asked, temperature, mask, bias)
        numbers = values.ndim < keys.ndim and self.labels is None and heads is None
        held = [keys, values, *(heads.arrays().values() if heads else ())]
        try:
            axis = -1 if numbers or told else -2
            return in_parts(ask, asked, temperature, mask, bias, held=held, step=step, axis=axis)
        except (AllMasked, NotFinite):
            with torch.no_grad():  # a part numbers its own queries; asked whole, the one that is wrong has its number
                self._answers(asked, keys, values, temperature, heads, mask, bias, causal, 0)
            raise

    def lookup(
        self,
        queries: Tensor,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        show: int = 10,
    ) -> Answers:
        """Look up as `forward` does, and return Answers: weights, log_mass, effective, which rows contributed."""
        rows = self.memory.rows(in_order=causal)
        return self._answers(self._asked(queries), *rows, self.temperature, self._heads(), mask, bias, causal, show)

    def remember(self, keys: Tensor, values: Tensor) -> None:
        """Take up more rows (..., n, d) with their values, without gradients; the oldest go where there is no room.

        Rows are written in place, so do this when the gradients of earlier lookups have been asked for.
        """
        require_rows(keys, values)
        require_usable(keys, values, self._label_count(), compatibility_of(self.compatibility))
        self.memory.remember(keys, values)

    def forget(self) -> None:
        """Remove all rows."""
        self.memory.forget()

    def write_back(self, store: Changes | str | os.PathLike[str]) -> int:
        """Give the values that have learned to the items they came from; returns how many were changed.

        They are written some tens of thousands at a time, and each such batch wholly or not at all: not where an item
        is gone, or has got another value than it had when the layer was made.
        """
        if self.names is None or self._origin is None:
            raise InputError("expected values that have learned, got none. Say learn_values=True in from_store.")
        if not isinstance(store, Changes):
            with open_store(store, "w") as db:
                return self.write_back(db)
        origin, before, held = self._origin
        if store.columns().store != origin:
            raise InputError(f"{store.path} is not the store that these values came from. Write them back to that one.")
        now = self.memory.values.detach().cpu()
        kinds = (now.dtype, held.dtype, tensor_of(before[:0]).dtype)
        short = min(kinds, key=lambda dtype: dtype.itemsize)  # what is rounded has not learned
        changed = (now.to(short) != held.to(short)).reshape(len(now), -1).any(1).nonzero()[:, 0].tolist()
        require_names([self.names[row] for row in changed])
        odd = [self.names[row] for row in changed if not torch.isfinite(now[row]).all()]
        if odd:
            raise NotFinite(f"the value of {odd[0]!r} has become NaN or infinite, so nothing was written.")
        for start in range(0, len(changed), TOGETHER):
            rows = changed[start : start + TOGETHER]
            fresh = now[rows].to(torch.float64).numpy().astype(before.dtype)
            store.set_values([self.names[row] for row in rows], fresh, expected=before[rows])
            before[rows], held[rows] = fresh, now[rows].to(held.dtype)
        return len(changed)

    def get_extra_state(self) -> dict[str, list[str] | None]:
        """Whose values have learned."""
        return {"names": self.names}

    def set_extra_state(self, state: dict[str, list[str] | None]) -> None:
        """Nothing by itself: it goes with the values that are loaded."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = state_dict.get(prefix + "_extra_state", {}).get("names")
        values = state_dict.get(prefix + "memory.values")
        if self.names is not None and values is not None and saved != self.names:
            places = {name: place for place, name in enumerate(saved or ())}
            if places.keys() != set(self.names):
                raise InputError(
                    "the values that were saved belong to other items than this layer was made of. Load them into a "
                    "layer over a store with the same items."
                )
            state_dict[prefix + "memory.values"] = values[[places[name] for name in self.names]]
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _asked(self, queries: Tensor) -> Tensor:
        if not isinstance(queries, Tensor):
            raise KindError(f"expected queries as a tensor, got {type(queries).__name__}. Use torch.as_tensor.")
        if queries.ndim < 2:
            raise ShapeError(
                f"expected queries (..., b, q), got shape {list(queries.shape)}. Add an axis to one query."
            )
        return queries if self.query is None else self.query(queries)

    def _heads(self) -> Heads | None:
        if self.attention is not None:
            return Heads.from_torch(self.attention)
        return None if self.projections is None else Heads(**dict(self.projections.items()))

    def _answers(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        temperature: Tensor,
        heads: Heads | None,
        mask: Any,
        bias: Any,
        causal: bool,
        show: int,
    ) -> Answers:
        answers = soft_lookup(
            queries,
            keys,
            values,
            compatibility=self.compatibility,
            temperature=temperature,
            k=self.k,
            mask=mask,
            causal=causal,
            bias=bias,
            heads=heads,
            labels=self.labels,
            show=show,
        )
        assert isinstance(answers, Answers)
        return answers

    def _apply(self, change: Callable[[Tensor], Tensor], recurse: bool = True) -> "SoftKVLayer":
        """Change tensors, as `half()` and `to` do; the temperature stays as long as float32, which its log needs."""
        exact = self.log_temperature.detach()
        super()._apply(change, recurse)  # type: ignore[no-untyped-call]
        if self.log_temperature.dtype.itemsize < torch.float32.itemsize:
            self.log_temperature.data = exact.to(self.log_temperature.device, copy=True)
            self.log_temperature.grad = None
        return self

    def _learning(self, queries: Tensor, bias: Tensor | None) -> bool:
        given = (queries, *(() if bias is None else (bias,)), *self.parameters())
        return torch.is_grad_enabled() and any(one.requires_grad for one in given)

    def _at_once(self, queries: Tensor, keys: Tensor, heads: Heads | None) -> int:
        """How many queries can keep all that gradients need in memory."""
        leading = math.prod(np.broadcast_shapes(queries.shape[:-2], keys.shape[:-2]))
        paired = compatibility_of(self.compatibility).pairs
        numbers = PER_WEIGHT * (1 if self.k is None else 2) + (int(keys.shape[-1]) if paired else 0)
        weights = len(self) * leading * (1 if heads is None else len(heads))
        return max(1, KEPT // max(1, weights * numbers))

    def _label_count(self) -> int | None:
        return self.labels if self.labels is None or isinstance(self.labels, int) else len(self.labels)

    def extra_repr(self) -> str:
        """What print shows beside the modules."""
        rows = f"{len(self):,} rows of width {self.memory.keys.shape[-1]}"
        return f"{rows}, compatibility={self.compatibility!r}, temperature={self.temperature.item():.4g}"
