"""Make a file of llm's embeddings and a directory of Chroma by these libraries: `python make.py FOLDER`.

llm.db beside this file was made so with llm 0.36. Needs llm and chromadb, and nothing of softkv.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromadb
import llm
import numpy as np
import sqlite_utils
from chromadb.config import Settings

FILMS = {"a boy seeks treasure": (4.0, "tale"), "two boats": (3.5, "sea"), "the lost map": (5, "tale")}


def letters(text: str) -> list[float]:
    """A vector of a text."""
    return [*(float(text.count(letter)) for letter in "aeiotn"), 1.0]


class Letters(llm.EmbeddingModel):  # type: ignore[misc]
    """The model by which llm embeds texts."""

    model_id = "letters"

    def embed_batch(self, items: Any) -> Iterator[list[float]]:
        """The vectors of texts."""
        return map(letters, items)


class Counting(chromadb.EmbeddingFunction):  # type: ignore[misc,type-arg]
    """The function by which Chroma embeds texts: no other process can make it, as with one that needs a key."""

    def __init__(self) -> None:
        pass

    def __call__(self, input: list[str]) -> list[Any]:  # noqa: A002 - as Chroma names it
        """The vectors of texts."""
        return [np.array(letters(text), np.float32) for text in input]

    @staticmethod
    def name() -> str:
        """The name that a collection remembers."""
        return "counting"

    def get_config(self) -> dict[str, Any]:
        """What a collection remembers beside it."""
        return {}

    @staticmethod
    def build_from_config(_config: dict[str, Any]) -> "Counting":
        """The function anew."""
        return Counting()


def make_llm(path: Path) -> None:
    """Three collections: with texts and metadata, with neither, and an empty one."""
    file, model = sqlite_utils.Database(str(path)), Letters()
    films = llm.Collection("films", file, model=model)
    told = [
        (str(row), text, {"stars": stars, "label": label}) for row, (text, (stars, label)) in enumerate(FILMS.items())
    ]
    films.embed_multi_with_metadata(told, store=True)
    films.embed("4", "no metadata", store=True)
    llm.Collection("bare", file, model=model).embed_multi([("x", "coffee"), ("y", "tea")])
    llm.Collection("empty", file, model=model)


def make_chroma(path: Path) -> None:
    """A collection of texts, and one of vectors that is larger than a page."""
    client = chromadb.PersistentClient(path=str(path), settings=Settings(anonymized_telemetry=False))
    films = client.create_collection(
        "films", embedding_function=Counting(), configuration={"hnsw": {"space": "cosine"}}
    )
    metadatas = [{"stars": 4.0}, {"stars": 3.5, "label": "sea"}, None]
    films.add(ids=["0", "1", "2"], documents=list(FILMS), metadatas=metadatas)
    bare = client.create_collection("bare", embedding_function=None)
    vectors = np.random.default_rng(0).normal(size=(1500, 3))
    bare.add(
        ids=[f"v{row}" for row in range(1500)], embeddings=vectors, metadatas=[{"row": row} for row in range(1500)]
    )


if __name__ == "__main__":
    make_llm(Path(sys.argv[1]) / "llm.db")
    make_chroma(Path(sys.argv[1]) / "chroma")
