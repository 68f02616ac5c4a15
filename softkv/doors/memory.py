"""Rows held as tensors for the lookups of a layer: those that were given, or the most recent ones.

The rows are on one device, in one floating type: float32, or bfloat16 or float16, which are converted block by block
when they are compared. New rows replace the oldest.

Does not compare or blend anything (torch.py).

Shapes: n rows, d key width, p value width; "..." is any leading axes, such as a batch.
"""

from typing import Any

import torch
from torch import Tensor, nn

from softkv.errors import InputError, KindError, NotFinite, ShapeError, ZeroVector
from softkv.maths.compatibility import Compatibility
from softkv.maths.inputs import is_whole


class Memory(nn.Module):
    """Keys (..., n, d), and numbers (..., n), vectors (..., n, p) or codes of labels (..., n)."""

    keys: Tensor
    values: Tensor

    def __init__(
        self,
        keys: Tensor,
        values: Tensor,
        *,
        learn_values: bool = False,
        capacity: int | None = None,
        kept: bool = True,
    ) -> None:
        """Hold these rows. `capacity` is the most that are remembered; `kept` whether a state_dict contains them."""
        super().__init__()
        require_rows(keys, values)
        if learn_values and not values.is_floating_point():
            raise KindError(f"expected values that can learn, got codes of {values.dtype}. Learn vectors instead.")
        if learn_values and capacity is not None:
            raise InputError("expected values that learn, or a capacity for rows that come and go, got both.")
        self.axis, self.capacity, self.kept = keys.ndim - 2, capacity, kept
        self.filled, self.oldest = 0, 0
        if capacity is not None:
            self._make_room(keys, values, capacity)
            if keys.shape[self.axis]:
                self.remember(keys, values)
            return
        self.filled = keys.shape[self.axis]
        self.register_buffer("keys", keys, persistent=kept)
        if learn_values:
            self.values = values if isinstance(values, nn.Parameter) else nn.Parameter(values.detach().clone())
        else:
            self.register_buffer("values", values, persistent=kept)

    def _make_room(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        if not is_whole(capacity) or capacity < 1:
            raise InputError(f"expected capacity to be a number of rows from 1 on, got {capacity!r}.")
        for name, x in (("keys", keys), ("values", values)):
            shape = list(x.shape)
            shape[self.axis] = capacity
            self.register_buffer(name, x.new_zeros(shape), persistent=self.kept)

    def __len__(self) -> int:
        return self.filled

    def rows(self, *, in_order: bool = False) -> tuple[Tensor, Tensor]:
        """The keys and values that are there; `in_order` raises where they are not in the order in which they came."""
        if in_order and self.oldest and self.filled == self.capacity:
            raise InputError(
                "expected rows in the order in which they came, which causal goes by, but the newest have replaced the "
                "oldest in their places. Pass a mask, or make the capacity as large as what is remembered."
            )
        if self.filled == self.keys.shape[self.axis]:
            return self.keys, self.values
        return self.keys.narrow(self.axis, 0, self.filled), self.values.narrow(self.axis, 0, self.filled)

    @torch.no_grad()
    def remember(self, keys: Tensor, values: Tensor) -> None:
        """Add rows, without their gradients; the oldest are dropped where there is no room."""
        if self.capacity is None:
            raise InputError("expected a capacity to remember rows in, got none. Say capacity= when it is made.")
        keys, values = self._alike(keys, values)
        fresh = min(keys.shape[self.axis], self.capacity)
        skipped = keys.shape[self.axis] - fresh  # more than there is room for at all: only the last count
        places = (torch.arange(fresh, device=self.keys.device) + self.oldest) % self.capacity
        for old, new in ((self.keys, keys), (self.values, values)):
            old.index_copy_(self.axis, places, new.narrow(self.axis, skipped, fresh))
        self.oldest = (self.oldest + fresh) % self.capacity
        self.filled = min(self.filled + fresh, self.capacity)

    def _alike(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Rows that were checked, in the types and on the device of the present ones; raises if they do not match."""
        for name, old, new in (("keys", self.keys, keys), ("values", self.values, values)):
            if self._beside(old) != self._beside(new):
                raise ShapeError(f"expected {name} like those of shape {list(old.shape)}, got {list(new.shape)}.")
            if new.is_floating_point() and not old.is_floating_point():
                raise KindError(f"expected codes of labels to remember, got {new.dtype}.")
        keys, values = keys.to(self.keys), values.to(self.values)
        require_rows(keys, values)  # in a shorter type they may be infinite
        return keys, values

    def forget(self) -> None:
        """Remove all rows."""
        self.filled = self.oldest = 0

    def get_extra_state(self) -> dict[str, int]:
        """How many rows are filled, and which is the oldest."""
        return {"filled": self.filled, "oldest": self.oldest}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Nothing by itself: it goes with the rows that are loaded."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        saved = {name: state_dict[prefix + name] for name in ("keys", "values") if prefix + name in state_dict}
        alike = all(self._beside(one) == self._beside(getattr(self, name)) for name, one in saved.items())
        if self.kept and len(saved) == 2 and alike:
            rows = saved["keys"].shape[self.axis]
            state = state_dict.get(prefix + "_extra_state", {"filled": rows, "oldest": 0})
            self.filled, self.oldest = state["filled"], state["oldest"]
            if self.capacity != rows:
                for name, one in saved.items():
                    taken = self._in_order(one, state)
                    state_dict[prefix + name] = self._with_room(getattr(self, name), taken)
                    self.filled = taken.shape[self.axis]
                self.oldest = 0 if self.capacity is None else self.filled % self.capacity
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _in_order(self, saved: Tensor, state: dict[str, int]) -> Tensor:
        """Take over the rows of another memory, the oldest first; only the last if there is no room for all."""
        filled = state["filled"]
        full = filled == saved.shape[self.axis]
        rows = saved.narrow(self.axis, 0, filled).roll(-state["oldest"] if full else 0, self.axis)
        kept = filled if self.capacity is None else min(filled, self.capacity)
        return rows.narrow(self.axis, filled - kept, kept)

    def _beside(self, x: Tensor) -> list[int]:
        """The shape without the number of rows."""
        return [*x.shape[: self.axis], -1, *x.shape[self.axis + 1 :]]

    def _with_room(self, mine: Tensor, rows: Tensor) -> Tensor:
        """Rows checked for the shape of the present ones; without a capacity their number may differ."""
        if self.capacity is None:
            if mine.shape != rows.shape:
                mine.data, mine.grad = mine.data.new_empty(rows.shape), None
            return rows
        room = torch.zeros(mine.shape, dtype=rows.dtype, device=rows.device)
        room.narrow(self.axis, 0, rows.shape[self.axis]).copy_(rows)
        return room


def require_rows(keys: Tensor, values: Tensor) -> None:
    """Raise for rows with wrong shapes or types, or with numbers that are not finite."""
    for name, x in (("keys", keys), ("values", values)):
        if not isinstance(x, Tensor):
            raise KindError(f"expected {name} as a tensor, got {type(x).__name__}. Use torch.as_tensor.")
    if keys.ndim < 2 or not keys.is_floating_point():
        raise ShapeError(f"expected keys (..., n, d) of a floating type, got {keys.dtype} of {list(keys.shape)}.")
    if values.ndim not in (keys.ndim, keys.ndim - 1) or values.shape[: keys.ndim - 1] != keys.shape[:-1]:
        raise ShapeError(
            f"expected values (..., n) or (..., n, p) for keys of shape {list(keys.shape)}, got {list(values.shape)}."
        )
    for name, x in (("keys", keys), ("values", values)):
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise NotFinite(f"some {name} hold NaN or infinity. Leave those rows out.")


def require_usable(keys: Tensor, values: Tensor, labels: int | None, compared: Compatibility) -> None:
    """Raise for rows on which every later lookup would fail; `labels` is the number of labels."""
    if labels is not None and values.is_floating_point():
        raise KindError(f"expected the integer codes of labels as values, got {values.dtype}.")
    if labels is not None and values.numel() and not (0 <= int(values.min()) <= int(values.max()) < labels):
        raise KindError(f"expected codes of {labels} labels, got {int(values.min())} to {int(values.max())}.")
    if compared.with_lengths is not None and not keys.any(-1).all():
        raise ZeroVector(f"some key is zero and has no direction, so {compared.name} cannot compare it. Leave it out.")
