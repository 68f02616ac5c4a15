"""Checks of the texts that go into an embedder and of the vectors that come out.

A text without any known word is refused here, since a zero vector cannot be compared.

Does not embed anything.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from softkv.errors import KindError, NotFinite, ShapeError, UnknownText
from softkv.ndarrays import AnyArray, Flags, Matrix
from softkv.progress import Progress

# Texts by which the behaviour of an embedder is tested: of several lengths, in words that any model knows.
# Never change them: stores record fingerprints of their vectors.
PROBES = ("treasure", "How much does a cup of coffee cost?", "The train to the city leaves at 7:45.", "42 red cars")


def checked_texts(texts: Sequence[str]) -> list[str]:
    """The texts as a list; an error names the first element that is not a text."""
    if isinstance(texts, str):
        raise KindError(f"expected a list of texts, got one text, {shown(texts)}. Pass [text].")
    found = list(texts)
    for position, text in enumerate(found):
        if not isinstance(text, str):
            raise KindError(f"expected texts, got {type(text).__name__} at position {position}. Pass strings only.")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise KindError(
                f"the text at position {position}, {shown(text)}, holds half of a surrogate pair and cannot be written "
                f"as UTF-8. Decode it anew from its source."
            ) from None
    return found


def embedded(
    texts: Sequence[str], width: int, at_once: int, embed: Callable[[list[str], int], Matrix], told: Progress | None
) -> Matrix:
    """The vectors of texts, `at_once` at a time; `embed` is given a block of them and the position of its first."""
    checked = checked_texts(texts)
    vectors = np.empty((len(checked), width), dtype=np.float32)
    for first in range(0, len(checked), at_once):
        block = checked[first : first + at_once]
        vectors[first : first + len(block)] = embed(block, first)
        if told is not None:
            told(first + len(block), len(checked))
    return vectors


def known_vectors(given: Any, texts: Sequence[str], *, name: str, width: int, first: int = 0) -> Matrix:
    """The result of an embedder for these texts, checked, as float32; a zero row is refused as an unknown text."""
    vectors = checked_vectors(given, texts, name=name, width=width, first=first)
    refuse_unknown(texts, (vectors != 0).any(axis=1), name, first=first)
    return vectors


def refuse_unknown(texts: Sequence[str], known: Flags, name: str, *, first: int = 0) -> None:
    """Raise for the first text that is not known; `first` is the position of texts[0] among all texts."""
    if known.all():
        return
    position = int(np.argmin(known))
    text = texts[position]
    what = "it holds no word that the model knows" if text.strip() else "it is empty"
    raise UnknownText(
        f"the embedder {name!r} can make nothing of the text at position {first + position}, {shown(text)}: {what}. "
        f"Leave it out, reword it, or use another embedder."
    )


def checked_vectors(given: Any, texts: Sequence[str], *, name: str, width: int | None, first: int = 0) -> Matrix:
    """The result of an embedder for these texts, checked, as float32; zero rows are allowed."""
    matrix = _matrix(given, name)
    if matrix.ndim != 2 or len(matrix) != len(texts) or width not in (None, matrix.shape[1]):
        wide = "width" if width is None else width
        raise ShapeError(
            f"the embedder {name!r} gave shape {matrix.shape} for {len(texts)} texts, expected ({len(texts)}, {wide}). "
            f"It has to return a matrix with one row for each text."
        )
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(matrix, dtype=np.float32)
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        position = int(np.argmax(bad))
        raise NotFinite(
            f"the embedder {name!r} gave NaN, infinity or a number beyond float32 for the text at position "
            f"{first + position}, {shown(texts[position])}; expected finite numbers. Repair the embedder."
        )
    return vectors


def of_length_one(vectors: Matrix) -> bool:
    """Whether all vectors that are not zero have length 1, up to rounding."""
    lengths = np.linalg.norm(vectors, axis=1)
    known = lengths[lengths > 0]
    return bool(known.size) and bool((np.abs(known - 1.0) < 1e-3).all())


def shown(text: str) -> str:
    """A text as an error may quote it."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _matrix(given: Any, name: str) -> AnyArray:
    if hasattr(given, "toarray"):  # a sparse matrix, as the vectorizers of scikit-learn give it
        given = given.toarray()
    try:
        matrix = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(
            f"the embedder {name!r} gave {type(given).__name__}, which NumPy cannot read as a matrix: {error}. "
            f"It has to return a matrix with one row for each text."
        ) from error
    if matrix.size and matrix.dtype.kind not in "fiu":
        raise KindError(
            f"the embedder {name!r} gave {type(given).__name__} of dtype {matrix.dtype}, expected real numbers. "
            f"It has to return a matrix with one row for each text."
        )
    return matrix
