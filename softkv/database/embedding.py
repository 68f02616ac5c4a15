"""The embedder of one store: found when the first text needs it, and compared with the one the store was made with.

Loading a model takes from milliseconds to many seconds, so nothing is loaded to open a store. The comparison is one of
behaviour: the vectors of a few fixed texts (softkv/embedders). It is made once for each handle.

Does not decide what is embedded (intake.py).
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from softkv.embedders import DEFAULT, Embedder, Identity, find
from softkv.errors import EmbedderNeeded
from softkv.storage.layout import Matrix

Given = str | Callable[[Sequence[str]], Any] | Embedder | None
Progress = Callable[[int, int], None]


class Embedding:
    """The embedder of a store, shared by a handle and its snapshots."""

    def __init__(self, given: Given, path: str) -> None:
        self.path = path
        self._given = given
        self._lock = threading.Lock()
        self._found: Embedder | None = None
        self._identity: Identity | None = None

    @property
    def is_given(self) -> bool:
        """Whether the user named an embedder for this handle."""
        return self._given is not None

    def embedder(self, remembered: Identity | None) -> Embedder:
        """The embedder that was given, or the one the store remembers, or the default; refused if they disagree."""
        with self._lock:
            if self._found is None:
                given = self._given
                self._found = find((remembered.name if remembered else DEFAULT) if given is None else given)
            if remembered is not None and remembered != self._identity:
                remembered.require(self._found, self.path)
                self._identity = remembered
            return self._found

    def identity(self, remembered: Identity | None) -> Identity:
        """What the store has to remember of its embedder."""
        if remembered is None:
            remembered = self._identity = Identity.of(self.embedder(None))
        return remembered

    def queries(self, texts: Sequence[str], remembered: Identity | None, key_width: int) -> Matrix:
        """The vectors of texts that ask, for keys of this width."""
        if remembered is None and not self.is_given:
            raise EmbedderNeeded(
                f"{self.path} holds bare vectors, and knows no embedder that turns a text into one. Ask with a vector "
                f"of width {key_width}, or open the store with embedder= and the model that its vectors come from."
            )
        embedder = self.embedder(remembered)
        if embedder.width != key_width:
            raise EmbedderNeeded(
                f"{self.path} holds keys of width {key_width}, but its embedder {embedder.name!r} makes vectors of "
                f"width {embedder.width}. Ask with a vector of width {key_width}."
            )
        return embedder.queries(texts)

    def documents(self, texts: Sequence[str], remembered: Identity | None, progress: Progress | None) -> Matrix:
        """The vectors of texts that are stored."""
        return self.embedder(remembered).documents(texts, progress=progress)

    def replace(self, given: Given) -> None:
        """Go on with another embedder."""
        with self._lock:
            self._given, self._found, self._identity = given, None, None
