"""One commit of a store, with what a lookup needs to know of it, found once.

Does not look anything up (asking.py).
"""

import threading
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from softkv.answer import Described
from softkv.database.profile import Profile, Temperature
from softkv.errors import ZeroVector
from softkv.learning.temperature import typical_temperature
from softkv.storage import Layout, Snapshot, ValueKind

LUKEWARM = {"cosine": 0.1}  # where the items tell nothing: there are fewer than two, or all are alike


class View:
    """A snapshot, its profile, its labels, and how long its keys are."""

    def __init__(self, snapshot: Snapshot, temperatures: "Temperatures") -> None:
        self.snapshot, self._temperatures = snapshot, temperatures
        self.profile = Profile.of(snapshot.settings)

    @property
    def layout(self) -> Layout:
        """Widths and kind; only asked of a store that has items."""
        assert self.snapshot.layout is not None
        return self.snapshot.layout

    @cached_property
    def labels(self) -> tuple[str, ...] | None:
        """The labels in the order of their codes, or None when values are not labels."""
        return tuple(self.snapshot.labels()) if self.layout.kind is ValueKind.LABEL else None

    @cached_property
    def lengths(self) -> npt.NDArray[np.float32]:
        """‖key‖ of every row, (n,)."""
        return self.snapshot.norms(0, self.snapshot.rows)

    @cached_property
    def longest_key(self) -> float:
        """The length of the longest key vector."""
        return float(self.lengths.max())

    @cached_property
    def inverse_lengths(self) -> npt.NDArray[np.float32]:
        """1 / ‖key‖ of every row, (n,), for cosines; refused where a live key has no direction."""
        pointless = np.flatnonzero((self.lengths == 0) & self.snapshot.live)
        if len(pointless):
            (item,) = self.snapshot.items(pointless[:1])
            raise ZeroVector(
                f"the key vector of {item.name!r} is zero and has no direction, so cosine cannot compare it. Delete "
                "it, or use compatibility='dot' or 'gaussian'."
            )
        with np.errstate(divide="ignore"):
            return np.where(self.lengths > 0, np.float32(1.0) / self.lengths, np.float32(0.0))

    def temperature(self, compatibility: str) -> Temperature:
        """The temperature that the store remembers, or else the one by rule."""
        kept = self.profile.temperature
        if kept is not None and compatibility == self.profile.compatibility and kept.suits(len(self.snapshot)):
            return kept
        return self._temperatures.by_rule(self.snapshot, compatibility)

    def describe(self, rows: Sequence[int]) -> list[Described]:
        """The items in these rows."""
        return [Described(item.name, item.value, item.payload) for item in self.snapshot.items(list(rows))]


class Temperatures:
    """The temperatures by rule of a handle, one for each compatibility, found again when the store has grown."""

    def __init__(self) -> None:
        self._found: dict[str, Temperature] = {}
        self._lock = threading.Lock()

    def by_rule(self, snapshot: Snapshot, compatibility: str) -> Temperature:
        """The temperature at which about ten items contribute."""
        with self._lock:
            found = self._found.get(compatibility)
            if found is None or not found.suits(len(snapshot)):
                (block,) = snapshot.blocks(snapshot.rows)
                value = typical_temperature(block.vectors, block.live, compatibility)
                found = Temperature(value or LUKEWARM.get(compatibility, 1.0), "rule", len(snapshot))
                self._found[compatibility] = found
            return found

    def forget(self) -> None:
        """The keys are others now."""
        with self._lock:
            self._found.clear()
