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
from softkv.ndarrays import Matrix
from softkv.progress import Progress

AnyEmbedder = str | Callable[[Sequence[str]], Any] | Embedder | None


class Embedding:
    """The embedder of a store, shared by a handle and its snapshots."""

    def __init__(self, given: AnyEmbedder, path: str) -> None:
        self.path = path
        self._given = given
        self._lock = threading.RLock()  # reentrant: a signal handler may ask; who finds an embedder twice keeps one
        self._found: dict[str | None, Embedder] = {}  # by name; None for the one that was given
        self._compared: dict[Identity, Embedder] = {}  # a snapshot may remember another than the handle

    @property
    def is_given(self) -> bool:
        """Whether the user named an embedder for this handle."""
        return self._given is not None

    def embedder(self, remembered: Identity | None) -> Embedder:
        """The embedder that was given, or the one the store remembers, or the default; refused if they disagree."""
        with self._lock:
            if remembered is None:
                return self._find(DEFAULT)
            if remembered not in self._compared:
                found = self._find(remembered.name)
                remembered.require(found, self.path)
                self._compared[remembered] = found
            return self._compared[remembered]

    def identity(self, remembered: Identity | None) -> Identity:
        """What the store has to remember of its embedder."""
        if remembered is None:
            found = self.embedder(None)
            remembered = Identity.of(found)
            self._compared[remembered] = found
        return remembered

    def queries(self, texts: Sequence[str], remembered: Identity | None, key_width: int) -> Matrix:
        """The vectors of query texts, for keys of this width."""
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

    def go_on_with(self, given: AnyEmbedder, remembered: Identity) -> None:
        """Take note that the store was just embedded again, by the given embedder or the one of this name."""
        with self._lock:
            self._compared[remembered] = find(remembered.name if given is None else given)

    def _find(self, name: str) -> Embedder:
        """The embedder that was given, or else the one of this name."""
        place = None if self.is_given else name
        if place not in self._found:
            self._found[place] = find(name if self._given is None else self._given)
        return self._found[place]
