"""Soft lookup as a torch module: attention over a store, over tensors, or over what was remembered.

    layer = SoftKVLayer.from_store("films.softkv")      all items, compared as the store compares them
    layer = SoftKVLayer(keys, values)                    rows that were given
    layer = SoftKVLayer(keys, values, capacity=4096)     the most recent rows, `remember`ed step by step

Queries, the temperature and projections learn, and values if they are asked to; these can be written back to the store
they came from. The lookup is softkv/maths/lookup.py, whose gradients are torch's own.

Where the weights of all queries at once would be too much to keep for the way back, queries are taken some at a time,
and their weights are worked out again when gradients ask for them.

Does not change a store, except by `write_back`, and does not notice when a store changes: make the layer again.

Shapes: b queries, q query width, n rows, d key width, p value width, c labels, h heads, o output width; "..." is any
leading axes, such as a batch.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.database import open as open_store
from softkv.database.columns import Columns
from softkv.database.reader import Reader
from softkv.errors import InputError, KindError, MissingExtra, NotExpressible, ShapeError
from softkv.maths.heads import Heads
from softkv.plain import soft_lookup

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    raise MissingExtra("softkv.doors.torch", package="torch", extra="torch") from error

from softkv.doors.memory import TOGETHER, Memory, names_of, of_columns, require_names, tensor_of

KEPT = 1 << 26  # weights that are kept for the way back, at most

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
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 < temperature < math.inf:
            raise InputError(f"expected temperature to be a number above 0, got {temperature!r}.")
        self.memory = Memory(keys, values, learn_values=learn_values, capacity=capacity)
        if labels is not None and values.is_floating_point():
            raise KindError(f"expected the integer codes of labels as values, got {values.dtype}.")
        self.query, self.compatibility, self.k, self.labels = query, compatibility, k, labels
        wide = torch.promote_types(keys.dtype, torch.float32)
        start = torch.tensor(math.log(temperature), dtype=wide, device=keys.device)
        self.log_temperature = nn.Parameter(start, requires_grad=learn_temperature)
        self.attention: nn.MultiheadAttention | None = None
        self.projections: nn.ParameterDict | None = None
        if isinstance(heads, Heads):
            arrays = {name: torch.as_tensor(x).to(keys.device, wide) for name, x in heads.arrays().items()}
            self.projections = nn.ParameterDict({name: nn.Parameter(x.clone()) for name, x in arrays.items()})
        elif heads is not None:
            Heads.from_torch(heads)  # says now what cannot be expressed
            self.attention = heads
        self.names: list[str] | None = None
        self._written: Tensor | None = None

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
        projection: bool = True,
        learn_temperature: bool = True,
        learn_values: bool = False,
    ) -> "SoftKVLayer":
        """A layer over all items of a store, as they are now, which answers as the store does.

        Args:
            store: An open store, a snapshot of one, or a path.
            dtype: The floating type of keys and values: float32, bfloat16 or float16.
            device: Where they lie, such as "cuda".
            temperature: Otherwise that of the store.
            k: Blend only the k heaviest items.
            heads: Several learned views at once; they compare by scaled dot products, at temperature 1.
            projection: Whether queries begin as the store has learned to project them (`fit`), and go on learning.
            learn_temperature: Whether the temperature is a parameter.
            learn_values: Whether the values are; `write_back` gives them to the store.
        """
        with _reading(store) as columns:
            learned = columns.learned if projection and heads is None else None
            if learned is not None and learned.ridge is not None:
                raise NotExpressible(
                    "this store reads numbers off planes, which a layer does not. Say projection=False, or fit it with "
                    "planes=False."
                )
            keys, values = of_columns(columns, dtype=dtype, device=device, projected=learned is not None)
            usual, compared = columns.temperature, columns.compatibility
            if heads is not None or learned is not None:
                usual, compared = 1.0, "scaled_dot" if learned is None else "gaussian"
            layer = cls(
                keys,
                values,
                compatibility=compared,
                temperature=usual if temperature is None else temperature,
                k=k,
                heads=heads,
                labels=columns.labels,
                query=None if learned is None else _Projecting(learned.metric, device),
                learn_temperature=learn_temperature,
            )
            # A state_dict need not carry what the store holds.
            layer.memory = Memory(keys, values, learn_values=learn_values, kept=False)
            if learn_values:
                layer.names, layer._written = names_of(columns), values.detach().to("cpu", copy=True)
        return layer

    @property
    def temperature(self) -> Tensor:
        """What scores are divided by."""
        return self.log_temperature.exp()

    def __len__(self) -> int:
        return len(self.memory)

    def forward(
        self, queries: Tensor, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """What the queries (..., b, q) find. `mask` and `bias`, (n,) or (..., b, n), are as in `softkv.soft_lookup`."""
        asked = self._asked(queries)
        step = self._at_once(asked)
        if step >= asked.shape[-2] or causal or not self._learning(asked):
            return self._found(asked, mask, bias, causal)
        starts = range(0, asked.shape[-2], step)
        parts = [
            checkpoint(
                self._found,
                asked[..., start : start + step, :],
                _of_queries(mask, start, step),
                _of_queries(bias, start, step),
                False,
                use_reentrant=False,
            )
            for start in starts
        ]
        return torch.cat(parts, asked.ndim - 2)

    def lookup(
        self,
        queries: Tensor,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        show: int = 10,
    ) -> Answers:
        """The same with everything there is to say: weights, log_mass, effective, and which rows contributed."""
        return self._answers(self._asked(queries), mask, bias, causal, show)

    def remember(self, keys: Tensor, values: Tensor) -> None:
        """Take up more rows (..., n, d) with their values, without gradients; the oldest go where there is no room.

        Rows are written in place, so do this when the gradients of earlier lookups have been asked for.
        """
        self.memory.remember(keys, values)

    def forget(self) -> None:
        """Have no rows."""
        self.memory.forget()

    def write_back(self, store: Any) -> int:
        """Give the values that have learned to the items they came from; returns how many were changed.

        They are written some tens of thousands at a time, and each such batch wholly or not at all.
        """
        if self.names is None or self._written is None:
            raise InputError("expected values that have learned, got none. Say learn_values=True in from_store.")
        now = self.memory.values.detach().to("cpu", copy=True)
        changed = (now != self._written).reshape(len(now), -1).any(1).nonzero()[:, 0].tolist()
        require_names([self.names[row] for row in changed])
        for start in range(0, len(changed), TOGETHER):
            rows = changed[start : start + TOGETHER]
            store.set_values([self.names[row] for row in rows], now[rows].to(torch.float64).numpy())
            self._written[rows] = now[rows]
        return len(changed)

    def _asked(self, queries: Tensor) -> Tensor:
        if queries.ndim < 2:
            raise ShapeError(
                f"expected queries (..., b, q), got shape {list(queries.shape)}. Add an axis to one query."
            )
        return queries if self.query is None else self.query(queries)

    def _heads(self) -> Heads | None:
        if self.attention is not None:
            return Heads.from_torch(self.attention)
        return None if self.projections is None else Heads(**dict(self.projections.items()))

    def _found(self, queries: Tensor, mask: Tensor | None, bias: Tensor | None, causal: bool) -> Tensor:
        found: Tensor = self._answers(queries, mask, bias, causal, 0).value
        return found

    def _answers(self, queries: Tensor, mask: Tensor | None, bias: Tensor | None, causal: bool, show: int) -> Answers:
        keys, values = self.memory.rows()
        answers = soft_lookup(
            queries,
            keys,
            values,
            compatibility=self.compatibility,
            temperature=self.temperature,
            k=self.k,
            mask=mask,
            causal=causal,
            bias=bias,
            heads=self._heads(),
            labels=self.labels,
            show=show,
        )
        assert isinstance(answers, Answers)
        return answers

    def _learning(self, queries: Tensor) -> bool:
        return torch.is_grad_enabled() and (
            queries.requires_grad or any(one.requires_grad for one in self.parameters())
        )

    def _at_once(self, queries: Tensor) -> int:
        heads = self._heads()
        weights = len(self) * math.prod(queries.shape[:-2]) * (1 if heads is None else len(heads))
        return max(1, KEPT // max(1, weights))

    def extra_repr(self) -> str:
        """What print shows beside the modules."""
        return f"{len(self):,} rows of width {self.memory.keys.shape[-1]}, compatibility={self.compatibility!r}"


class _Projecting(nn.Module):
    """Queries as a store has learned to see them: L(q − c), of the direction of q where only that counts."""

    def __init__(self, metric: Any, device: Any) -> None:
        super().__init__()
        self.directions = metric.directions
        rank, width = metric.factors.shape
        self.linear = nn.Linear(width, rank, device=device)
        with torch.no_grad():
            self.linear.weight.copy_(tensor_of(metric.factors))
            self.linear.bias.copy_(tensor_of(-(metric.factors.astype(np.float64) @ metric.centre)))

    def forward(self, queries: Tensor) -> Tensor:
        """The projected queries, (..., b, d) -> (..., b, r)."""
        queries = queries.to(self.linear.weight.dtype)
        found: Tensor = self.linear(functional.normalize(queries, dim=-1) if self.directions else queries)
        return found


@contextmanager
def _reading(store: Reader | str | os.PathLike[str]) -> Iterator[Columns]:
    if isinstance(store, Reader):
        yield store.columns()
        return
    with open_store(store, "r") as db:
        yield db.columns()


def _of_queries(given: Tensor | None, start: int, step: int) -> Tensor | None:
    """The part of a mask or a bias that goes with some queries."""
    if given is None or given.ndim < 2 or given.shape[-2] == 1:
        return given
    return given[..., start : start + step, :]
