"""Stores in Haystack: a document store, with Haystack's filters, and an embedding retriever.

A document is an item of value 1: its id is the key, its embedding the key vector, and all else the payload. One without
an embedding is embedded by the store, from its content.

Does not embed queries by components of Haystack, or search for words.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import fields
from functools import wraps
from types import MappingProxyType
from typing import Any

from softkv.answer import Contributor
from softkv.asking.profile import Profile
from softkv.doors.document_stores import AnyStore, Holding, drop, heaviest, relevance_of
from softkv.errors import DuplicateKey, EmbedderNeeded, FilterError, InputError, KindError, MissingExtra
from softkv.storage import Item
from softkv.storage.disk.named import is_url
from softkv.storage.filters.worded import condition_of

try:
    from haystack import Document, component, default_from_dict, default_to_dict
    from haystack.document_stores.errors import DuplicateDocumentError
    from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy
    from haystack.errors import FilterError as HaystackFilterError
except ImportError as error:
    raise MissingExtra("softkv.doors.haystack", package="haystack-ai", extra="haystack") from error

Filters = Mapping[str, Any] | None
CONFLICTS = {DuplicatePolicy.SKIP: "ignore", DuplicatePolicy.OVERWRITE: "replace"}
FIELDS = {one.name for one in fields(Document)}
TYPES = {bool: "boolean", int: "int", float: "float"}
ORDERS = {">": "$gt", ">=": "$gte", "<": "$lt", "<=": "$lte"}
NONE = {"id": {"$exists": False}}  # a filter that no document meets
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:.*)?")


def _in_thread(method: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A coroutine that runs a method in a thread."""

    @wraps(method)
    async def call(*given: Any, **named: Any) -> Any:
        return await asyncio.to_thread(method, *given, **named)

    return call


class SoftKVDocumentStore(Holding):
    """Documents of Haystack in a store of softkv.

    >>> import os, tempfile
    >>> from haystack import Document
    >>> from softkv.doors.haystack import SoftKVDocumentStore
    >>> with SoftKVDocumentStore(os.path.join(tempfile.mkdtemp(), "help.softkv")) as store:
    ...     written = store.write_documents([Document(content="Our shop is in Rome."), Document(content="Call us.")])
    ...     store.retrieve("where is the shop?", top_k=1)[0].content
    'Our shop is in Rome.'

    Args:
        store: A handle that `softkv.open` gave, or the path or URL of a store; one at a path is made if need be.
        embedder: What embeds documents without an embedding, and queries that are texts, as in `softkv.open`.
        mode: "c", or "r" to read alone, beside another process or pipeline that writes.
    """

    def __init__(self, store: AnyStore, *, embedder: Any = None, mode: str = "c") -> None:
        super().__init__(store, mode, embedder=embedder, value="number")
        self._embedder, self._mode = embedder, mode
        first = next(self.db.select(stop=1), None)
        if first is not None and not (isinstance(first.payload, dict) and "meta" in first.payload):
            self.close()
            raise KindError(f"expected a store of documents, got one with {first.name!r:.60}. Make another for them.")

    def to_dict(self) -> dict[str, Any]:
        """The data to open the store again: its path, not its contents."""
        if not isinstance(self._embedder, str | None):
            raise KindError("expected an embedder with a name, to write it down: softkv.embedders.register(name, ...).")
        return default_to_dict(self, store=str(self.db.path), embedder=self._embedder, mode=self._mode)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SoftKVDocumentStore":
        """Open the store that `to_dict` describes."""
        found: SoftKVDocumentStore = default_from_dict(cls, data)
        return found

    # Documents

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Add documents, all or none, and return how many were written. NONE is FAIL."""
        if not isinstance(documents, list) or not all(isinstance(one, Document) for one in documents):
            raise InputError("expected a list of Haystack documents, got something else. Make Documents of it.")
        if not documents:
            return 0
        names, payloads = [one.id for one in documents], [_payload(one) for one in documents]
        options = {"on_conflict": CONFLICTS.get(policy, "error"), **self._compared(documents)}
        try:
            added = self.db.add(names, [1.0] * len(names), payloads=payloads, **options)
        except DuplicateKey as error:
            words = str(error).partition("Nothing was written")[0]
            choices = "Nothing was written; say policy=DuplicatePolicy.OVERWRITE or DuplicatePolicy.SKIP."
            raise DuplicateDocumentError(words + choices) from error
        return len(names) if policy is DuplicatePolicy.OVERWRITE else added.count

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete the documents of these ids, as far as they are there."""
        drop(self.db, document_ids)

    def delete_all_documents(self) -> None:
        """Delete all documents."""
        self.db.clear()

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match a filter, all or none, and return how many."""
        return self.db.delete(where=where_of(filters))

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set fields of the metadata of all documents that match a filter, and return how many.

        Behind a URL, what another client writes to these documents meanwhile may be lost.
        """
        with self.db._changing:  # so that no other thread writes between reading and writing
            found = list(self._items(filters))
            if found:
                payloads = [{**one.payload, "meta": {**one.payload["meta"], **meta}} for one in found]
                self.db.set_values([one.name for one in found], [one.value for one in found], payloads=payloads)
            return len(found)

    def count_documents(self) -> int:
        """How many documents there are."""
        return len(self.db)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """How many documents match a filter."""
        return sum(1 for _ in self._items(filters))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """The documents that match a filter, or all, in the order in which they were first written."""
        return [_document(one, one) for one in self._items(filters)]

    # Metadata

    def count_unique_metadata_by_filter(self, filters: dict[str, Any], metadata_fields: list[str]) -> dict[str, int]:
        """How many values each of these fields has among the documents that match."""
        return {name.removeprefix("meta."): len(self._unique(name, filters)) for name in metadata_fields}

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """The type of each field of metadata, by the last document that has it."""
        pairs = [pair for one in self._items(None) for pair in one.payload["meta"].items()]
        return {name: {"type": TYPES.get(type(value), "keyword")} for name, value in pairs if value is not None}

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """The least and the largest number or text in a field; None if there is none, or they cannot be compared."""
        values = [one for one in self._unique(metadata_field, None).values() if isinstance(one, int | float | str)]
        try:
            return {"min": min(values), "max": max(values)}
        except (TypeError, ValueError):
            return {"min": None, "max": None}

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Some of the values of a field in their order as texts, and how many there are."""
        found = self._unique(metadata_field, filters)
        wanted = [name for name in found if (search_term or "").lower() in str(found[name]).lower()]
        wanted.sort(key=lambda name: (str(found[name]), name))
        return [found[name] for name in wanted[from_ : from_ + size]], len(wanted)

    # Questions

    def retrieve(
        self,
        query: str | list[float],
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        *,
        mass: float | None = None,
        temperature: float | None = None,
        scale_score: bool = False,
        return_embedding: bool = False,
    ) -> list[Document]:
        """The documents of the largest weight for a text or an embedding; see `SoftKVEmbeddingRetriever`."""
        if top_k == 0:
            return []
        options: dict[str, Any] = {"mass": mass, "temperature": temperature, "where": where_of(filters)}
        with self.db.snapshot() if return_embedding else nullcontext(self.db) as db:
            found = heaviest(db, query, k=top_k, declining=True, **options)
            wholes = [db.item(str(one.key)) if return_embedding else None for one in found]
        scaled = relevance_of(self.db) if scale_score and found else float
        return [_document(one, whole, {"score": scaled(one.score)}) for one, whole in zip(found, wholes, strict=True)]

    count_documents_async = _in_thread(count_documents)
    filter_documents_async = _in_thread(filter_documents)
    write_documents_async = _in_thread(write_documents)
    delete_documents_async = _in_thread(delete_documents)
    delete_all_documents_async = _in_thread(delete_all_documents)
    delete_by_filter_async = _in_thread(delete_by_filter)
    update_by_filter_async = _in_thread(update_by_filter)
    count_documents_by_filter_async = _in_thread(count_documents_by_filter)
    count_unique_metadata_by_filter_async = _in_thread(count_unique_metadata_by_filter)
    get_metadata_fields_info_async = _in_thread(get_metadata_fields_info)
    get_metadata_field_min_max_async = _in_thread(get_metadata_field_min_max)
    get_metadata_field_unique_values_async = _in_thread(get_metadata_field_unique_values)

    def _items(self, filters: Filters) -> Iterator[Item]:
        return self.db.select(where_of(filters))

    def _unique(self, field: str, filters: Filters) -> dict[tuple[str, str], Any]:
        """The values of a field of metadata, once each; 1, 1.0, True and "1" are four."""
        values = [one.payload["meta"].get(field.removeprefix("meta.")) for one in self._items(filters)]
        return {(type(x).__name__, json.dumps(x, sort_keys=True)): x for x in values if x is not None}

    def _compared(self, documents: list[Document]) -> dict[str, Any]:
        """The vectors of documents: their embeddings, or those of their contents where they have none."""
        contents = [one.content for one in documents if one.embedding is None]
        if None in contents:
            raise InputError("expected a content or an embedding of each document, got neither of one. Give it one.")
        if len(contents) == len(documents):
            return {"texts": contents}
        made = iter(self._embedded(contents) if contents else ())
        return {"vectors": [next(made) if one.embedding is None else one.embedding for one in documents]}

    def _embedded(self, texts: list[Any]) -> Any:
        """The vectors of contents beside embeddings that were given: by a model of the store, never by a guess."""
        if is_url(self.db.path):
            raise EmbedderNeeded("expected documents all with an embedding, or all without, for a store behind a URL.")
        embedding, kept = self.db._embedding, Profile.of(self.db._store.settings).embedder
        if kept is None and not embedding.is_given:
            raise EmbedderNeeded(
                "expected embeddings of all documents, or embedder= with the model that they come from."
            )
        return embedding.documents(texts, kept, None)


@component
class SoftKVEmbeddingRetriever:
    """Retrieve the documents that weigh most for the embedding of a query, or for a text that the store embeds.

    None where the store has a guard (`db.guard()`), and it says that too little is known.

    Args:
        document_store: Where to look.
        filters: Which documents to look at.
        top_k: How many documents at most.
        mass: No more than hold this share of all weight.
        temperature: What scores are divided by to become weights; by default that of the store.
        scale_score: Scores from 0 to 1.
        return_embedding: Give embeddings back.
        filter_policy: Whether filters at runtime replace these, or are merged with them.
    """

    def __init__(
        self,
        document_store: SoftKVDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        mass: float | None = None,
        temperature: float | None = None,
        scale_score: bool = False,
        return_embedding: bool = False,
        filter_policy: FilterPolicy | str = FilterPolicy.REPLACE,
    ) -> None:
        if not isinstance(document_store, SoftKVDocumentStore):
            raise KindError(f"expected a SoftKVDocumentStore, got {type(document_store).__name__}. Make one of a path.")
        self.document_store, self.filters, self.top_k = document_store, filters, top_k
        self.filter_policy = FilterPolicy(str(filter_policy))
        self._options: dict[str, Any] = {"mass": mass, "temperature": temperature}
        self._options |= {"scale_score": scale_score, "return_embedding": return_embedding}

    def to_dict(self) -> dict[str, Any]:
        """The data to make the retriever again."""
        kept = {"document_store": self.document_store.to_dict(), "filters": self.filters, "top_k": self.top_k}
        return default_to_dict(self, **kept, **self._options, filter_policy=str(self.filter_policy))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SoftKVEmbeddingRetriever":
        """Make the retriever that `to_dict` describes."""
        given = dict(data["init_parameters"])
        return cls(SoftKVDocumentStore.from_dict(given.pop("document_store")), **given)

    @component.output_types(documents=list[Document])
    def run(
        self,
        query_embedding: list[float] | None = None,
        query: str | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Look up an embedding, or a text."""
        if (query is None) == (query_embedding is None):
            raise InputError("expected query_embedding or query, one of them. Connect an embedder, or give a text.")
        asked: Any = query if query_embedding is None else query_embedding
        wanted = apply_filter_policy(self.filter_policy, self.filters, filters)
        most = self.top_k if top_k is None else top_k
        return {"documents": self.document_store.retrieve(asked, wanted, most, **self._options)}

    run_async = _in_thread(run)


def where_of(filters: Filters) -> dict[str, Any] | None:
    """A filter of Haystack as one of softkv (docs/filters.md)."""
    if not filters:
        return None
    where = _where(filters)
    try:
        condition_of(where)
    except FilterError as error:
        raise HaystackFilterError(f"{filters} cannot be asked for: {error}") from error
    return where


def _where(filters: Any) -> dict[str, Any]:
    needed = ("field", "operator", "value") if "field" in filters else ("operator", "conditions")
    for name in needed:
        if name not in filters:
            raise HaystackFilterError(f"expected {', '.join(needed)} in a filter, got {filters}. Give {name!r}.")
    if "field" in filters:
        return _comparison(_nested(filters["field"]), filters["operator"], filters["value"])
    conditions = [_where(one) for one in filters["conditions"]]
    if conditions:
        logic: dict[str, dict[str, Any]] = {
            "AND": {"$and": conditions},
            "OR": {"$or": conditions},
            "NOT": {"$not": {"$and": conditions}},
        }
    else:  # all of none hold, and not one of them
        logic = {"AND": {}, "OR": NONE, "NOT": NONE}
    if filters["operator"] not in logic:
        raise HaystackFilterError(f"expected AND, OR or NOT, or a field, got {filters['operator']!r} in {filters}.")
    return logic[filters["operator"]]


def _nested(field: str) -> Callable[[Any], dict[str, Any]]:
    """A condition on a field as a filter on payloads; names that are not fields of a document are its metadata."""
    path = field.split(".") if "." in field or field in FIELDS else ["meta", field]

    def nested(condition: Any) -> dict[str, Any]:
        for name in reversed(path):
            condition = {name: condition}
        return dict(condition)

    return nested


def _comparison(field: Callable[[Any], dict[str, Any]], operator: str, value: Any) -> dict[str, Any]:
    """One comparison. To Haystack a field that is missing is None, which equals None and differs from all else."""
    if operator in ORDERS:
        if isinstance(value, list) or (isinstance(value, str) and not DATE.fullmatch(value)):
            raise HaystackFilterError(f"expected a number or an ISO date to compare by {operator}, got {value!r}.")
        return NONE if value is None else field({ORDERS[operator]: value})
    if operator in ("in", "not in") and not isinstance(value, list):
        raise HaystackFilterError(f"expected a list of values for {operator!r}, got {value!r}.")
    missing = {"$not": field({"$ne": None})}
    if operator in ("==", "!="):
        found = missing if value is None else field({"$eq": value})
    elif operator in ("in", "not in"):
        found = field({"$in": [one for one in value if one is not None]})
        found = {"$or": [found, missing]} if None in value else found
    else:
        raise HaystackFilterError(f"expected one of == != > >= < <= in 'not in', got {operator!r}.")
    return {"$not": found} if operator in ("!=", "not in") else found


def _payload(document: Document) -> dict[str, Any]:
    """All fields of a document except its embedding, with a mark whether it had one."""
    kept = {name: one for name, one in document.to_dict(flatten=False).items() if one is not None}
    return kept | {"embedding": True} if "embedding" in kept else kept


def _document(
    one: Item | Contributor, whole: Item | None, others: Mapping[str, Any] = MappingProxyType({})
) -> Document:
    """An item as a document; with the embedding it was added with, if the item was read with its vector."""
    vector = whole.vector.tolist() if whole is not None and "embedding" in whole.payload else None
    return Document.from_dict({**one.payload, "embedding": vector, **others})
