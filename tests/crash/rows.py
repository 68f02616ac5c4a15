"""Rows that prove themselves: vector, value and payload all follow from a name and a version."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from softkv.storage import Added, Item, Store
from softkv.storage.catalog.batches import Stamp

KEY_WIDTH, VALUE_WIDTH = 24, 12
KINDS = ("number", "vector", "label", "text")


@dataclass(frozen=True)
class Proof:
    """What a row with this name and version must hold, in a store of this kind."""

    name: str
    version: int

    @property
    def _bytes(self) -> bytes:
        return blake2b(f"{self.name} {self.version}".encode(), digest_size=KEY_WIDTH + VALUE_WIDTH).digest()

    @property
    def vector(self) -> Any:
        """The key vector."""
        return np.frombuffer(self._bytes[:KEY_WIDTH], np.uint8).astype(np.float32)

    @property
    def cells(self) -> Any:
        """The value, or its embedding, as a vector."""
        return np.frombuffer(self._bytes[KEY_WIDTH:], np.uint8).astype(np.float32)

    @property
    def payload(self) -> Any:
        """Carried along by most, not by all."""
        return None if self._bytes[0] % 4 == 0 else {"name": self.name, "version": self.version}

    def value(self, kind: str) -> Any:
        """The value."""
        if kind == "number":
            return float(self.version) + self._bytes[1] / 256
        if kind == "vector":
            return self.cells
        return f"label {self._bytes[1] % 9}" if kind == "label" else f"{self.name} at {self.version}"

    def holds(self, item: Item, kind: str) -> bool:
        """Whether an item is exactly this."""
        return (
            np.array_equal(item.vector, self.vector)
            and np.array_equal(item.value, self.value(kind))
            and item.payload == self.payload
        )


def append(
    store: Store,
    kind: str,
    keys: list[str | None],
    proofs: list[Proof],
    on_conflict: str = "error",
    *,
    stamp: Stamp | None = None,
) -> Added:
    """Write these rows as one batch."""
    values = [proof.value(kind) for proof in proofs]
    return store.append(
        np.array([proof.vector for proof in proofs]),
        np.array(values) if kind in ("number", "vector") else values,
        keys=keys,
        payloads=[proof.payload for proof in proofs],
        value_vectors=np.array([proof.cells for proof in proofs]) if kind == "text" else None,
        on_conflict=on_conflict,
        stamp=stamp,
    )
