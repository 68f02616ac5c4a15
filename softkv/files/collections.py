"""Collections of texts with their vectors from other programs: embeddings of `llm` (SQLite), and Chroma.

Items have the columns id, vector, content, payload (all metadata), and one for each field of the metadata. The content
is the value unless another column is; as the text it is embedded anew, and the vectors are left out.

llm's file is only read. Chroma's is opened by its own client, which may bring an old one up to its format; clients
before 1.0, which unpickle, are refused.
"""

import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import numpy as np

from softkv.errors import MissingExtra, SoftKVError
from softkv.files.notation import kind_of, parsed
from softkv.files.objects import Placed, records
from softkv.files.record import ROWS, Columns, Misfit, Record, Refusals, listed, shown

PAGE = 1000  # items of Chroma read at once
SPACES = {"l2": "gaussian", "ip": "dot", "cosine": "cosine"}  # Chroma's names for compatibilities, and ours

Kept = tuple[Any, Any, Any, Any]  # id, vector, content, metadata


def read(
    form: str, path: str, collection: str | None, columns: Columns, kind: str | None, refusals: Refusals
) -> Generator[Record, None, None]:
    """The records of a collection, of the only one unless it is named."""
    if form == "llm":
        yield from _records(_in_llm(path, collection, refusals), "cosine", columns, kind, refusals)
        return
    try:
        found, space = _chroma(path, collection, refusals)
        yield from _records(_in_pages(found), SPACES.get(space), columns, kind, refusals)
    except SoftKVError:
        raise
    except Exception as error:  # any error of Chroma or of the libraries below it
        raise refusals.fatal(f"Chroma cannot read it: {error}") from error


def _records(
    kept: Iterable[Kept], compared: str | None, columns: Columns, kind: str | None, refusals: Refusals
) -> Iterator[Record]:
    refusals = replace(refusals, form=ROWS)
    roles = replace(columns, key=columns.key or "id", value=columns.value or ("content",))
    found = records(_objects(kept, "content" in roles.value, roles.text is None, refusals), roles, kind, refusals)
    return (replace(one, compared=compared if one.vector is not None else None) for one in found)


def _objects(kept: Iterable[Kept], worded: bool, embedded: bool, refusals: Refusals) -> Iterator[Placed]:
    for row, (name, vector, content, metadata) in enumerate(kept, 1):
        if worded and content is None:
            raise refusals.fatal(f"the content of {name!r} was not kept; give value=, such as id", row)
        fields = dict(metadata or {}) | {"id": name, "content": content, "payload": metadata}
        yield row, fields | ({"vector": vector} if embedded else {}), 8 * len(vector)


def _in_llm(path: str, collection: str | None, refusals: Refusals) -> Iterator[Kept]:
    if not os.path.isfile(path):
        raise refusals.fatal("is no file")
    try:
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as file:
            file.execute("PRAGMA trusted_schema = OFF")
            known = dict(file.execute("SELECT name, id FROM collections ORDER BY id"))
            rows = file.execute(
                "SELECT id, embedding, content, metadata FROM embeddings WHERE collection_id = ? ORDER BY rowid",
                (known[_chosen(known, collection, refusals)],),
            )
            for name, vector, content, metadata in rows:
                try:
                    found = name, _numbers(vector), content, _fields(metadata)
                except Misfit as why:
                    raise refusals.fatal(f"the item {name!r} is damaged: {why}") from why
                yield found
    except sqlite3.Error as error:
        raise refusals.fatal(f"is no SQLite file of llm's embeddings: {error}") from error


def _numbers(vector: Any) -> list[float]:
    if not isinstance(vector, bytes) or len(vector) % 4:
        raise Misfit(f"expected its embedding as bytes, four for each number, got {shown(vector)}")
    numbers: list[float] = np.frombuffer(vector, "<f4").tolist()
    return numbers


def _fields(metadata: Any) -> dict[str, Any] | None:
    if metadata is None:
        return None
    if not isinstance(metadata, str):
        raise Misfit(f"expected its metadata as a JSON text, got {shown(metadata)}")
    found = parsed(metadata)
    if not isinstance(found, dict):
        raise Misfit(f"expected its metadata as a JSON object, got {kind_of(found)}")
    return found


def _chroma(path: str, collection: str | None, refusals: Refusals) -> tuple[Any, str]:
    if not os.path.isfile(os.path.join(path, "chroma.sqlite3")):
        raise refusals.fatal("is no directory of Chroma, which has a file chroma.sqlite3")
    try:
        import chromadb
        from chromadb.config import Settings
    except ImportError as error:
        raise MissingExtra("reading Chroma", package="chromadb", extra="chroma") from error
    if int(chromadb.__version__.split(".")[0]) < 1:
        raise refusals.fatal(f"chromadb {chromadb.__version__} unpickles what it reads; install 1.0 or newer")
    client = chromadb.PersistentClient(path=path, settings=Settings(anonymized_telemetry=False))
    name = _chosen(sorted(one.name for one in client.list_collections()), collection, refusals)
    found = client.get_collection(name, embedding_function=None)  # its own function might need an API key, or a network
    stated = found.configuration_json
    return found, str((stated.get("hnsw") or stated.get("spann") or {}).get("space"))


def _in_pages(collection: Any) -> Iterator[Kept]:
    for start in range(0, collection.count(), PAGE):
        page = collection.get(include=["embeddings", "documents", "metadatas"], limit=PAGE, offset=start)
        yield from zip(
            page["ids"], np.asarray(page["embeddings"]).tolist(), page["documents"], page["metadatas"], strict=True
        )


def _chosen(known: Iterable[str], wanted: str | None, refusals: Refusals) -> str:
    names = list(known)
    if wanted in names:
        return str(wanted)
    if wanted is None and len(names) == 1:
        return names[0]
    missing = "" if wanted is None else f"there is no collection {wanted!r}; "
    raise refusals.fatal(f"{missing}which collection? Give collection=; there are {listed(names)}")
