"""What a store remembers of its embedder."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from softkv.embedders import Embedder, Identity, find
from softkv.errors import EmbedderMismatch, StoreDamaged
from softkv.progress import Progress

from .test_brought import Halves, letters


def turned(share: float, *, name: str = "static", queries_only: bool = False) -> Embedder:
    """The bundled embedder, but for noise of a share of each vector's length."""

    class Turned:
        width, normalised, query_prompt, document_prompt = 256, True, None, None

        def documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Any:
            return find("static").documents(texts, progress=progress) if queries_only else self.queries(texts)

        def queries(self, texts: Sequence[str]) -> Any:
            noise = np.random.default_rng(3).standard_normal((len(texts), 256))
            return find("static").queries(texts) + share * noise / np.linalg.norm(noise, axis=1, keepdims=True)

    Turned.name = name  # type: ignore[attr-defined]
    return find(Turned())  # type: ignore[arg-type]


def test_an_identity_survives_json() -> None:
    """What was written is read back the same, and takes a few kilobytes at most, whatever the width."""
    wide = find(lambda texts: np.outer([len(text) for text in texts], np.sin(np.arange(8192.0) + 1)))
    for embedder in (find("static"), find(Halves()), wide):
        identity = Identity.of(embedder)
        text = json.dumps(identity.to_json(), allow_nan=False)
        assert Identity.from_json(json.loads(text)) == identity
        assert len(text) < 4096


def test_the_same_embedder_is_accepted() -> None:
    """An embedder that does the same is accepted under another name."""
    identity = Identity.of(find("static"))
    identity.require(find("static"), "films.softkv")
    identity.require(turned(0.0, name="a folder"), "films.softkv")


def test_rounding_is_forgiven() -> None:
    """A difference of half a percent, as half precision or another processor makes it, is none."""
    Identity.of(find("static")).require(turned(0.005), "films.softkv")


@pytest.mark.parametrize("queries_only", [False, True])
def test_another_behaviour_is_refused(queries_only: bool) -> None:
    """A difference of a tenth is one, even if only queries differ; the command that mends it is given, quoted."""
    other = turned(0.1, name="my model", queries_only=queries_only)
    with pytest.raises(EmbedderMismatch) as caught:
        Identity.of(find("static")).require(other, "my films.softkv")
    said = str(caught.value)
    assert "made with the embedder 'static', and 'my model' behaves differently" in said
    assert ("the query" if queries_only else "the text") in said
    assert said.endswith("softkv reembed --db 'my films.softkv' -m 'my model'")


def test_a_change_under_the_same_name_is_refused() -> None:
    """A model that was trained on keeps its name, and is another all the same."""
    with pytest.raises(EmbedderMismatch, match="'static', and another version of it"):
        Identity.of(find("static")).require(turned(0.3), "films.softkv")


def test_another_width_is_refused() -> None:
    """Widths are named before anything else."""
    with pytest.raises(EmbedderMismatch, match="width 4, expected 256"):
        Identity.of(find("static")).require(find(letters), "films.softkv")


def test_a_prompt_that_changes_the_vectors_is_a_difference() -> None:
    """The prompt itself is only a name; what it does to the vectors is what is compared."""

    def prompted(prompt: str) -> Callable[[Sequence[str]], Any]:
        return lambda texts: letters([prompt + text for text in texts])

    identity = Identity.of(find(prompted("query: ")))
    identity.require(find(prompted("query: ")), "films.softkv")
    with pytest.raises(EmbedderMismatch):
        identity.require(find(prompted("passage about tea: ")), "films.softkv")


def test_an_embedder_that_knows_few_texts_has_an_identity() -> None:
    """Texts it knows nothing of are remembered as such, and learning one of them is a difference."""
    few = find(lambda texts: [[float("coffee" in text), float(text == "tea")] for text in texts])
    identity = Identity.of(few)
    assert identity.fingerprint.count(None) == 4
    assert Identity.from_json(identity.to_json()) == identity
    identity.require(few, "films.softkv")
    with pytest.raises(EmbedderMismatch, match="'treasure'"):
        identity.require(find(lambda texts: [[1.0, 0.0] for _ in texts]), "films.softkv")


def damaged(**changes: Any) -> dict[str, Any]:
    """The JSON of an identity, with some of it changed."""
    return {**Identity.of(find(letters)).to_json(), **changes}


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        {},
        damaged(name=None),
        damaged(width="4"),
        damaged(width=True),
        damaged(width=0),
        damaged(normalised=1),
        damaged(query_prompt=3),
        damaged(fingerprint=None),
        damaged(fingerprint=[]),
        damaged(fingerprint=[[1.0]] * 6),
        damaged(fingerprint=[["x"] * 32] * 6),
        damaged(fingerprint=[[float("nan")] * 32] * 6),
        damaged(fingerprint=[[float("inf")] * 32] * 6),
        damaged(fingerprint=[[10**400] * 32] * 6),
        damaged(fingerprint=[[True] * 32] * 6),
    ],
)
def test_damaged_content_is_refused(given: Any) -> None:
    """What is not an identity is named as damage, and never an error of Python's own."""
    with pytest.raises(StoreDamaged, match="softkv check"):
        Identity.from_json(given)


def test_an_identity_is_the_same_on_every_machine() -> None:
    """The signs that shorten a vector are fixed: one vector has one sketch, for ever."""
    unit = find(lambda texts: [[1.0, 0.0, 0.0]] * len(texts))
    signs = [number > 0 for number in Identity.of(unit).fingerprint[0] or ()]
    assert "".join("+" if sign else "-" for sign in signs) == "-+-+--+--+-+-++----+------+++-+-"
    assert {abs(number) for number in Identity.of(unit).fingerprint[0] or ()} == {0.176777}
