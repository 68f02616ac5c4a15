"""Embedders of the user's own: a function from texts to a matrix, or an object with the methods of `Embedder`.

They are wrapped, so that their results are checked: one row for each text, one width, finite, no zero vectors.

Does not catch exceptions that they raise while embedding: the traceback leads into the user's code.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, final

from softkv.embedders.embedder import Embedder
from softkv.embedders.vectors import PROBES, checked_texts, checked_vectors, embedded, known_vectors, of_length_one
from softkv.errors import EmbedderError, KindError, SoftKVError
from softkv.ndarrays import Matrix
from softkv.progress import Progress

Function: TypeAlias = Callable[[Sequence[str]], Any]  # texts -> a matrix with one row for each

_TEXTS = 1024  # texts in one call of a function, so that progress can be reported between calls
_ATTRIBUTES = ("name", "width", "normalised", "query_prompt", "document_prompt")


@final
class FunctionEmbedder:
    """A function of the user's. Its width, and whether its vectors have length 1, are found from fixed texts."""

    def __init__(self, function: Function, name: str | None = None) -> None:
        self.name = name_of(function) if name is None else name
        self.query_prompt: str | None = None
        self.document_prompt: str | None = None
        self._function = function
        probes = checked_vectors(self._tried(), PROBES, name=self.name, width=None)
        if probes.shape[1] == 0:
            raise EmbedderError(
                f"the embedder {self.name!r} gives vectors of width 0, expected 1 or more. It has to return a matrix "
                f"with one row for each text."
            )
        self.width = int(probes.shape[1])
        self.normalised = of_length_one(probes)

    def documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Matrix:
        """The vectors that the function returns, checked."""

        def embed(block: list[str], first: int) -> Matrix:
            return known_vectors(self._function(block), block, name=self.name, width=self.width, first=first)

        return embedded(texts, self.width, _TEXTS, embed, progress)

    def queries(self, texts: Sequence[str]) -> Matrix:
        """The vectors of texts that ask, which a function embeds as it does documents."""
        return self.documents(texts)

    def _tried(self) -> Any:
        try:
            return self._function(list(PROBES))
        except SoftKVError:
            raise
        except Exception as error:
            raise EmbedderError(
                f"the embedder {self.name!r} failed on {list(PROBES)}, which are there to find its width: "
                f"{type(error).__name__}: {error}. It has to take any text; for one of which it knows nothing it may "
                f"return a row of zeros."
            ) from error


@final
class ObjectEmbedder:
    """An object of the user's with the methods of `Embedder`, under the name by which it is found."""

    def __init__(self, embedder: Embedder, name: str | None = None) -> None:
        _check_attributes(embedder)
        self.name = embedder.name if name is None else name
        self.width = int(embedder.width)
        self.normalised = bool(embedder.normalised)
        self.query_prompt = embedder.query_prompt
        self.document_prompt = embedder.document_prompt
        self._embedder = embedder

    def documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Matrix:
        """The vectors that the object returns for documents, checked."""
        texts = checked_texts(texts)
        given = self._embedder.documents(texts, progress=progress)
        return known_vectors(given, texts, name=self.name, width=self.width)

    def queries(self, texts: Sequence[str]) -> Matrix:
        """The vectors that the object returns for queries, checked."""
        texts = checked_texts(texts)
        return known_vectors(self._embedder.queries(texts), texts, name=self.name, width=self.width)


def brought(given: Any, name: str | None = None) -> Embedder:
    """An embedder made of the user's function or object, with its own name if none is given."""
    if isinstance(given, (FunctionEmbedder, ObjectEmbedder)) and name in (None, given.name):
        return given
    if not isinstance(given, type) and hasattr(given, "documents") and hasattr(given, "queries"):
        return ObjectEmbedder(given, name)
    if callable(given) and not isinstance(given, type):
        return FunctionEmbedder(given, name)
    what = f"the class {given.__name__}; pass an instance" if isinstance(given, type) else type(given).__name__
    raise KindError(
        f"expected an embedder: a name, a folder, a function from texts to a matrix, or an object with documents() and "
        f"queries(), got {what}."
    )


def name_of(function: Function) -> str:
    """The module and the name of a function; for a lambda also the line."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    name = f"{named.__module__}:{named.__qualname__}"
    return f"{name} (line {function.__code__.co_firstlineno})" if name.endswith("<lambda>") else name


def _check_attributes(embedder: Embedder) -> None:
    missing = [name for name in _ATTRIBUTES if not hasattr(embedder, name)]
    if missing:
        raise KindError(
            f"an embedder of type {type(embedder).__name__} has no {', '.join(missing)}; expected all of "
            f"{', '.join(_ATTRIBUTES)}. Add them, or pass a function from texts to a matrix."
        )
    if isinstance(embedder.width, bool) or not isinstance(embedder.width, int) or embedder.width < 1:
        raise KindError(
            f"the embedder {embedder.name!r} has width {embedder.width!r}, expected a whole number of 1 or more. Give "
            f"it the number of columns that it returns."
        )
