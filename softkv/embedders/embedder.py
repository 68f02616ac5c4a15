"""The protocol of embedders.

Does not say how texts are embedded: by a table, a network or a service.

Shapes: n texts, w width.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from softkv.ndarrays import Matrix
from softkv.progress import Progress


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors of one width; the same text always into (nearly) the same vector."""

    name: str  # recorded by stores, and accepted by `find`
    width: int
    normalised: bool  # whether vectors have length 1
    query_prompt: str | None  # put before queries; None for none
    document_prompt: str | None  # put before documents; None for none

    def documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Matrix:
        """The vectors of texts as keys, which are found by queries."""

    def queries(self, texts: Sequence[str]) -> Matrix:
        """The vectors of texts as queries."""
