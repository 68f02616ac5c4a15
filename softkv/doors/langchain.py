"""Stores in LangChain: a vector store, a retriever, and a selector of examples.

A document is an item: its id is the key, its text the value, which is embedded, its metadata the payload. A store whose
values are texts that were added otherwise, such as answers to questions, can be used as well.

Does not load models: texts are embedded by the store's embedder, or by embeddings of LangChain.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from softkv.answer import Contributor
from softkv.doors.document_stores import AnyStore, Holding, drop, heaviest, relevance_of
from softkv.errors import InputError, KeyMissing, KindError, MissingExtra, ShapeError
from softkv.kinds import ValueKind
from softkv.ndarrays import Matrix
from softkv.plain import soft_lookup
from softkv.progress import Progress
from softkv.storage import Item

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.example_selectors import SemanticSimilarityExampleSelector
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import run_in_executor
    from langchain_core.vectorstores import VectorStore
except ImportError as error:
    raise MissingExtra("softkv.doors.langchain", package="langchain-core", extra="langchain") from error

Filter = Mapping[str, Any]
K = 4  # documents where nothing else is said, as in LangChain


class LangChainEmbedder:
    """An embedder of softkv made from LangChain's `Embeddings`, for `softkv.open(path, embedder=...)`."""

    normalised, query_prompt, document_prompt = False, None, None

    def __init__(self, embedding: Embeddings) -> None:
        self.embedding = embedding
        self.name = f"{type(embedding).__module__}:{type(embedding).__qualname__}"

    @cached_property
    def width(self) -> int:
        """The width of vectors, found by embedding a text."""
        return len(self.embedding.embed_query("How many numbers?"))

    def documents(self, texts: Sequence[str], *, progress: Progress | None = None) -> Matrix:
        """The vectors of texts as keys."""
        found = np.asarray(self.embedding.embed_documents(list(texts)), np.float32)
        if progress is not None:
            progress(len(texts), len(texts))
        return found

    def queries(self, texts: Sequence[str]) -> Matrix:
        """The vectors of texts as queries."""
        return np.asarray([self.embedding.embed_query(text) for text in texts], np.float32)


class SoftKVVectorStore(Holding, VectorStore):
    """Documents in a store of softkv.

    >>> import os, tempfile
    >>> from softkv.doors.langchain import SoftKVVectorStore
    >>> path = os.path.join(tempfile.mkdtemp(), "help.softkv")
    >>> with SoftKVVectorStore(path) as store:
    ...     ids = store.add_texts(["Returns are free for 30 days.", "We deliver on Mondays."], [{"page": 3}, {}])
    ...     store.similarity_search("can I send it back?", k=1)[0].metadata
    {'page': 3}

    Args:
        store: A handle that `softkv.open` gave, or the path or URL of a store; one at a path is made if need be.
        embedding: What embeds documents and queries. Otherwise the store does, as it always does.
    """

    def __init__(self, store: AnyStore, embedding: Embeddings | None = None) -> None:
        super().__init__(store, embedder=None if embedding is None else LangChainEmbedder(embedding), value="text")
        self._embeddings = embedding
        kind = self.db.value_kind
        if kind is not None and not ValueKind(kind).embedded:
            self.close()
            raise KindError(
                f"expected a store whose values are texts, to read documents from, got one of values of kind {kind!r}. "
                "Make another store for documents."
            )

    @property
    def embeddings(self) -> Embeddings | None:
        """The embeddings that were given."""
        return self._embeddings

    # Documents

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add documents, all or none, and return their ids; one whose id is there takes the place of that."""
        kwargs.pop("batch_size", None)  # from LangChain's `index`, to which the store need not hold
        _refuse(kwargs)
        contents = list(texts)
        for name, column in (("metadatas", metadatas), ("ids", ids)):
            if column and len(column) != len(contents):
                raise ShapeError(f"expected {name} for {len(contents)} texts, got {len(column)}. Give one for each.")
        names = [one or str(uuid.uuid4()) for one in ids or [None] * len(contents)]
        if contents:
            payloads = metadatas or [{}] * len(contents)
            self.db.add(names, contents, texts=contents, payloads=payloads, on_conflict="replace")
        return names

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete the documents of these ids, as far as they are there; without ids all of them, as LangChain says."""
        _refuse(kwargs)
        if ids is None:
            self.db.clear()
        else:
            drop(self.db, ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, as far as they exist, in the order of the ids."""
        found = []
        for name in ids:
            try:
                found.append(_document(self.db.item(name)))
            except KeyMissing:
                continue
        return found

    # Questions

    def recall(
        self,
        query: str | Sequence[float],
        k: int | None = None,
        *,
        mass: float | None = None,
        temperature: float | None = None,
        filter: Filter | None = None,
    ) -> list[Document]:
        """The documents that a soft lookup is made of, the heaviest first; none where the guard of the store declines.

        Args:
            query: A text or a vector.
            k: How many at most; 4 where neither this nor mass is given.
            mass: As many as hold this share of all weight.
            temperature: What scores are divided by; by default that of the store. A guard is about that one alone.
            filter: Only documents whose metadata match, as in docs/filters.md. A guard is about all of them alone.
        """
        options: dict[str, Any] = {"mass": mass, "temperature": temperature, "where": filter}
        most = K if k is None and mass is None else k
        return [_document(one) for one in heaviest(self.db, query, k=most, declining=True, **options)]

    def similarity_search_with_score(
        self, query: str | Sequence[float], k: int = K, filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The k most similar documents with their scores, which are higher the more alike they are."""
        _refuse(kwargs)
        return [(_document(one), one.score) for one in heaviest(self.db, query, k=k, where=filter)]

    def similarity_search(self, query: str | Sequence[float], k: int = K, **kwargs: Any) -> list[Document]:
        """The k most similar documents; `filter` is as in docs/filters.md."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_by_vector(self, embedding: list[float], k: int = K, **kwargs: Any) -> list[Document]:
        """The k documents that are most similar to a vector."""
        return self.similarity_search(embedding, k, **kwargs)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return relevance_of(self.db)

    def max_marginal_relevance_search(
        self,
        query: str | Sequence[float],
        k: int = K,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """The k documents, of the `fetch_k` most similar ones, that are similar to the query and unlike each other.

        Both as the store compares, without what it has learned; in a store by cosine just as LangChain has it.
        """
        _refuse(kwargs)
        with self.db.snapshot() as db:
            found = heaviest(db, query, k=fetch_k, where=filter, projection=False)
            vectors = np.array([db.item(str(one.key)).vector for one in found])
        chosen = _diverse(found, vectors, self.db.info().compatibility or "dot", k, lambda_mult)
        return [_document(found[place]) for place in chosen]

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = K, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """`max_marginal_relevance_search` with a vector."""
        return self.max_marginal_relevance_search(embedding, k, fetch_k, lambda_mult, **kwargs)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        store: AnyStore | None = None,
        **kwargs: Any,
    ) -> "SoftKVVectorStore":
        """Add documents to the store that `store` names, and return it."""
        _refuse(kwargs)
        if store is None:
            raise InputError("expected store=, a path, a URL or a handle, to put documents into. Give one.")
        made = cls(store, embedding)
        try:
            made.add_texts(texts, metadatas, ids=ids)
        except BaseException:
            made.close()
            raise
        return made


class SoftKVRetriever(BaseRetriever):
    """Retrieve the documents that a soft lookup is made of: the k heaviest, or as many as hold a share of all weight.

    Where the store has a guard (`db.guard()`), and it says that too little is known of a query, there are none.

    >>> import os, tempfile
    >>> from softkv.doors.langchain import SoftKVRetriever, SoftKVVectorStore
    >>> store = SoftKVVectorStore(os.path.join(tempfile.mkdtemp(), "help.softkv"))
    >>> ids = store.add_texts(["Returns are free for 30 days.", "We deliver on Mondays.", "Our shop is in Rome."])
    >>> retriever = SoftKVRetriever(vectorstore=store, mass=0.9, temperature=0.05)
    >>> [document.page_content for document in retriever.invoke("where is the shop?")]
    ['Our shop is in Rome.']
    """

    vectorstore: SoftKVVectorStore
    k: int | None = None
    mass: float | None = None
    temperature: float | None = None
    filter: dict[str, Any] | None = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        asked = {"k": self.k, "mass": self.mass, "temperature": self.temperature, "filter": self.filter}
        return self.vectorstore.recall(query, **{**asked, **options})


class SoftKVExampleSelector(SemanticSimilarityExampleSelector):
    """Choose examples for a prompt as a retriever would: k of them, or as many as hold a share of all weight.

    Examples are metadata of documents; `from_examples(examples, None, SoftKVVectorStore, store=path)` puts them in.
    """

    mass: float | None = None
    temperature: float | None = None

    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """The examples of the largest weight for the input, at most `k`."""
        if not isinstance(self.vectorstore, SoftKVVectorStore):
            raise KindError(f"expected a SoftKVVectorStore, got {type(self.vectorstore).__name__}. Make one of a path.")
        text = self._example_to_text(input_variables, self.input_keys)
        options = {"mass": self.mass, "temperature": self.temperature, **(self.vectorstore_kwargs or {})}
        return self._documents_to_examples(self.vectorstore.recall(text, self.k, **options))

    async def aselect_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        """`select_examples`, in a thread."""
        return await run_in_executor(None, self.select_examples, input_variables)


def _document(one: Item | Contributor) -> Document:
    """An item as a document; a payload that is not an object becomes the field "payload"."""
    payload = {} if one.payload is None else one.payload
    return Document(
        id=one.name if isinstance(one, Item) else one.key,
        page_content=str(one.value),
        metadata=payload if isinstance(payload, dict) else {"payload": payload},
    )


def _diverse(
    found: Sequence[Contributor], vectors: Matrix, compatibility: str, k: int, lambda_mult: float
) -> list[int]:
    """The places of k, chosen one by one: each like the query, and unlike those already chosen."""
    if not found:
        return []
    answers: Any = soft_lookup(vectors, vectors, vectors, compatibility=compatibility, show=len(vectors))
    alike = np.empty((len(vectors), len(vectors)))
    np.put_along_axis(alike, np.asarray(answers.rows), np.asarray(answers.scores, np.float64), axis=1)
    wanted, chosen = np.array([one.score for one in found]), list[int]()
    while len(chosen) < min(k, len(found)):
        worth = lambda_mult * wanted - (1 - lambda_mult) * (alike[:, chosen].max(1) if chosen else 0.0)
        worth[chosen] = -np.inf
        chosen.append(int(worth.argmax()))
    return chosen


def _refuse(options: Mapping[str, Any]) -> None:
    """Raise for options that would otherwise be ignored."""
    if options:
        raise InputError(f"expected no option {next(iter(options))!r}, which a store of softkv does not know. Drop it.")
