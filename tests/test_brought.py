"""Embedders that users bring: functions and objects."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer

from softkv.embedders import Embedder, find
from softkv.embedders.brought import FunctionEmbedder, name_of
from softkv.errors import EmbedderError, KindError, NotFinite, ShapeError, UnknownText
from softkv.progress import Progress


def letters(texts: Sequence[str]) -> list[list[int]]:
    """Four numbers of a text: how often it holds each of four letters."""
    return [[text.count(letter) for letter in "aeot"] for text in texts]


def unless(text: str, otherwise: Any) -> Callable[[Sequence[str]], Any]:
    """The function above, but for one text."""
    return lambda texts: otherwise if text in texts else letters(texts)


class Halves:
    """An embedder of one's own: queries are halved, to be told from documents."""

    name = "halves"
    width = 4
    normalised = False
    query_prompt = "ask: "
    document_prompt: str | None = None

    def documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Any:
        """As letters."""
        if progress is not None:
            progress(len(texts), len(texts))
        return np.array(letters(texts))

    def queries(self, texts: Sequence[str]) -> Any:
        """Half as much."""
        return np.array(letters(texts)) / 2


def test_a_function_becomes_an_embedder() -> None:
    """Its width is found by asking it, and what it gives is float32."""
    embedder = find(letters)
    assert isinstance(embedder, Embedder)
    assert (embedder.width, embedder.normalised, embedder.query_prompt) == (4, False, None)
    vectors = embedder.documents(["to eat", "a tea"])
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[1, 1, 1, 2], [2, 1, 0, 1]]


def test_a_function_that_gives_unit_vectors_is_seen_to() -> None:
    """Vectors of length 1 are noticed on the texts that find the width."""

    def directions(texts: Sequence[str]) -> Any:
        rows = np.array(letters(texts), dtype=float) + 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    assert find(directions).normalised


def test_sparse_matrices_are_understood() -> None:
    """The vectorizers of scikit-learn, which give sparse float64, are embedders as they are."""
    embedder = find(HashingVectorizer(n_features=64, norm="l2").transform)
    assert (embedder.width, embedder.normalised) == (64, True)
    assert embedder.documents(["a tea", "to eat"]).shape == (2, 64)


def test_many_texts_come_in_rounds() -> None:
    """A long batch is handed over in parts, in order, and progress is told after each."""
    sizes: list[int] = []
    told: list[tuple[int, int]] = []

    def counted(texts: Sequence[str]) -> Any:
        sizes.append(len(texts))
        return [[float(text)] if text.isdigit() else [1.0] for text in texts]

    texts = [str(number) for number in range(1, 3001)]
    vectors = find(counted).documents(texts, progress=lambda done, total: told.append((done, total)))
    assert vectors[:, 0].tolist() == list(range(1, 3001))
    assert sum(sizes[1:]) == 3000
    assert max(sizes) < 3000
    assert told[-1] == (3000, 3000)


@pytest.mark.parametrize(
    ("otherwise", "error", "said"),
    [
        ([[1, 2, 3]], ShapeError, r"gave shape \(1, 3\) for 1 texts, expected \(1, 4\)"),
        ([1, 2, 3, 4], ShapeError, r"gave shape \(4,\)"),
        ([[1, 2, 3, 4]] * 2, ShapeError, r"gave shape \(2, 4\)"),
        ([[1, 2], [3]], ShapeError, "NumPy cannot read"),
        (None, KindError, "gave NoneType of dtype object"),
        ([["a", "b", "c", "d"]], KindError, "expected real numbers"),
        ([[1j, 0, 0, 0]], KindError, "complex"),
        ([[1, float("nan"), 0, 0]], NotFinite, "position 0, 'odd'"),
        ([[1e300, 0, 0, 0]], NotFinite, "beyond float32"),
        ([[0, 0, 0, 0]], UnknownText, "position 0, 'odd'"),
    ],
    ids=["width", "rank", "rows", "ragged", "nothing", "texts", "complex", "nan", "overflow", "zero"],
)
def test_what_a_function_gives_back_is_checked(otherwise: Any, error: type[Exception], said: str) -> None:
    """Every way to return something else is named, with the name of the function."""
    embedder = find(unless("odd", otherwise))
    with pytest.raises(error, match=said) as caught:
        embedder.documents(["odd"])
    assert "test_brought:unless.<locals>.<lambda>" in str(caught.value)


def test_the_position_counts_from_the_first_text() -> None:
    """The position counts from the first text, also when the text is in a later round."""
    with pytest.raises(UnknownText, match="position 2500, 'xyz'"):
        find(letters).documents([*["tea"] * 2500, "xyz"])


def test_a_function_that_knows_few_texts_may_say_so() -> None:
    """Zeros for the texts that find the width are no error; zeros for a user's text are."""
    embedder = find(lambda texts: [[float(text == "tea")] for text in texts])
    assert embedder.width == 1
    assert embedder.documents(["tea"]).tolist() == [[1]]
    with pytest.raises(UnknownText, match="'coffee'"):
        embedder.documents(["coffee"])


def test_a_function_that_fails_at_once_is_named() -> None:
    """A function that cannot take any text is told what is expected of it, with its own error as the cause."""
    known = {"tea": [1.0]}
    with pytest.raises(EmbedderError, match="has to take any text") as caught:
        find(lambda texts: [known[text] for text in texts])
    assert isinstance(caught.value.__cause__, KeyError)


def test_what_a_function_raises_later_is_not_touched() -> None:
    """The user's own error comes through as it is."""

    def moody(texts: Sequence[str]) -> Any:
        if "bad" in texts:
            raise ConnectionError("the service is away")
        return letters(texts)

    with pytest.raises(ConnectionError, match="the service is away"):
        find(moody).documents(["bad"])


def test_a_function_without_width_is_refused() -> None:
    """Vectors of no numbers compare with nothing."""
    with pytest.raises(EmbedderError, match="width 0"):
        find(lambda texts: [[] for _ in texts])


def test_functions_are_named_by_where_they_stand() -> None:
    """Module and name; the line for a lambda; the function inside a partial; the type of an object that is called."""

    class Called:
        def __call__(self, texts: Sequence[str]) -> Any:
            return letters(texts)

    here = __name__
    first, second = (lambda texts: letters(texts)), None
    second = lambda texts: letters(texts)  # noqa: E731
    assert name_of(letters) == f"{here}:letters"
    assert name_of(partial(partial(letters))) == f"{here}:letters"
    assert name_of(Called()).endswith("<locals>.Called")
    assert name_of(Halves().documents) == f"{here}:Halves.documents"
    assert name_of(first) != name_of(second)
    assert "<lambda> (line " in name_of(first)


def test_an_object_is_taken_at_its_word() -> None:
    """Its attributes are kept, and queries go to queries."""
    embedder = find(Halves())
    assert (embedder.name, embedder.width, embedder.query_prompt) == ("halves", 4, "ask: ")
    told: list[tuple[int, int]] = []
    assert embedder.documents(["tea"], progress=lambda *at: told.append(at)).tolist() == [[1, 1, 0, 1]]
    assert embedder.queries(["tea"]).tolist() == [[0.5, 0.5, 0, 0.5]]
    assert told == [(1, 1)]


def test_what_an_object_gives_back_is_checked_too() -> None:
    """A width other than the promised one, and zeros, are refused."""
    wider = Halves()
    wider.width = 5
    with pytest.raises(ShapeError, match=r"'halves' gave shape \(1, 4\)"):
        find(wider).documents(["tea"])
    with pytest.raises(UnknownText, match="'xyz'"):
        find(Halves()).queries(["xyz"])


def test_an_object_that_lacks_something_is_told_what() -> None:
    """The missing attributes are named."""

    class Bare:
        name = "bare"

        def documents(self, texts: Sequence[str]) -> Any:
            return letters(texts)

        queries = documents

    with pytest.raises(KindError, match="has no width, normalised, query_prompt, document_prompt"):
        find(Bare())  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [0, -1, True, 2.0, "4"])
def test_an_object_of_impossible_width_is_refused(width: Any) -> None:
    """A width is a whole number of at least 1."""
    odd = Halves()
    odd.width = width
    with pytest.raises(KindError, match="of 1 or more"):
        find(odd)


@pytest.mark.parametrize(("given", "said"), [(7, "got int"), (None, "got NoneType"), (Halves, "pass an instance")])
def test_what_cannot_embed_is_refused(given: Any, said: str) -> None:
    """The error lists what could have been passed."""
    with pytest.raises(KindError, match=said):
        find(given)


def test_what_was_found_is_found_again() -> None:
    """An embedder that came out of find goes through it unchanged."""
    embedder = find(letters)
    assert isinstance(embedder, FunctionEmbedder)
    assert find(embedder) is embedder
    assert find(find(Halves())).name == "halves"
