"""The door to Haystack, where its suites do not look: see test_doors_haystack_suite.py."""

import asyncio
import random
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError as HaystackFilterError
from haystack.utils.filters import document_matches_filter

import softkv
from softkv.doors.haystack import SoftKVDocumentStore, SoftKVEmbeddingRetriever
from softkv.errors import (
    AccessRefused,
    EmbedderNeeded,
    InputError,
    KeyTextError,
    KindError,
    PayloadError,
    ShapeError,
    StoreLocked,
)

from .servers import served

TEXTS = ["Returns are free for 30 days.", "We deliver on Mondays.", "Our shop is in Rome.", "Call us at night."]


def documents(texts: list[str]) -> list[Document]:
    """Documents without embeddings, whose ids are a, b, c."""
    return [Document(id=chr(97 + place), content=text, meta={"page": place}) for place, text in enumerate(texts)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SoftKVDocumentStore]:
    """A store that embeds by itself, whole at the end."""
    with SoftKVDocumentStore(tmp_path / "help.softkv") as opened:
        yield opened
        assert opened.db.check().ok


def test_all_of_a_document_comes_back(store: SoftKVDocumentStore) -> None:
    """Bytes, a sparse embedding, a score, no content, nested metadata, and metadata called as fields of documents."""
    whole = Document(
        blob=ByteStream(b"\x00\xff", meta={"name": "x"}, mime_type="image/png"),
        meta={"a": {"b": [1, None]}, "none": None, "id": "other", "content": 5},
        embedding=[1.0, 0.0, 0.5],
        sparse_embedding=SparseEmbedding([1, 5], [0.5, 0.25]),
        score=0.25,
    )
    plain = Document(content="", embedding=[0.0, 1.0, 0.0])
    assert store.write_documents([whole, plain, whole], DuplicatePolicy.SKIP) == 2
    assert store.filter_documents() == [whole, plain]
    assert store.filter_documents({"field": "id", "operator": "==", "value": plain.id}) == [plain]
    assert store.filter_documents({"field": "content", "operator": "==", "value": None}) == [whole]
    assert store.filter_documents({"field": "embedding", "operator": "!=", "value": None}) == [whole, plain]
    found = store.retrieve([1.0, 0.0, 0.5], return_embedding=True)
    assert (found[0].id, found[0].embedding) == (whole.id, whole.embedding)
    assert found[0].score == pytest.approx(1.0)
    assert store.retrieve([1.0, 0.0, 0.5], top_k=1)[0].embedding is None


def test_what_cannot_be_kept_is_refused_whole(store: SoftKVDocumentStore) -> None:
    """The name of an item without a key, a date, nothing to compare, other widths; nothing is written."""
    good = Document(id="good", content="good")
    for bad, error, message in [
        (Document(id="#1", content="x"), KeyTextError, "starts with '#'"),
        (Document(content="x", meta={"day": date(2024, 1, 1)}), PayloadError, "a date"),
        (Document(meta={"a": 1}), InputError, "neither"),
    ]:
        with pytest.raises(error, match=message):
            store.write_documents([good, bad])
    with pytest.raises(ShapeError):
        store.write_documents([Document(content="x", embedding=[1.0]), Document(content="y", embedding=[1.0, 2.0])])
    assert store.count_documents() == 0
    assert store.write_documents([]) == 0
    assert store.write_documents([good]) == 1
    with pytest.raises(ShapeError, match="256"):
        store.write_documents([Document(content="x", embedding=[1.0, 2.0])])
    with pytest.raises(DuplicateDocumentError, match=r"good.* say policy=DuplicatePolicy\.OVERWRITE"):
        store.write_documents([Document(content="new"), good])
    assert store.count_documents() == 1


def test_embeddings_are_not_mixed_with_those_of_a_model_that_nobody_named(tmp_path: Path) -> None:
    """Beside embeddings that were given, contents are embedded by the model of the store, or of the caller."""
    mixed = [Document(content="a", embedding=[1.0, 0.0]), Document(content="b")]
    with SoftKVDocumentStore(tmp_path / "bare") as store:
        with pytest.raises(EmbedderNeeded, match="embedder="):
            store.write_documents(mixed)
        assert store.write_documents(mixed[:1]) == 1
        with pytest.raises(EmbedderNeeded, match="holds bare vectors"):
            store.write_documents(mixed[1:])
        with pytest.raises(EmbedderNeeded, match="holds bare vectors"):
            store.retrieve("a")
    with SoftKVDocumentStore(tmp_path / "named", embedder=lambda texts: [[0.0, 1.0]] * len(texts)) as store:
        assert store.write_documents(mixed) == 2
        assert [one.embedding for one in store.filter_documents()] == [[1.0, 0.0], None]
        assert [one.content for one in store.retrieve("anything")] == ["b", "a"]


def test_a_store_that_holds_no_documents_is_refused(tmp_path: Path) -> None:
    """Its path is refused, and can be opened again at once, and so is its handle."""
    with softkv.open(tmp_path / "rents", embedder="static") as db:
        db["a room"] = 500
        with pytest.raises(KindError, match="'a room'"):
            SoftKVDocumentStore(db)
    with pytest.raises(KindError, match="'a room'"):
        SoftKVDocumentStore(tmp_path / "rents")
    softkv.open(tmp_path / "rents").close()


def test_a_pipeline_is_written_down_and_read_again(tmp_path: Path) -> None:
    """It finds its store by the path, its options, and a model by its name; beside the one that writes it reads."""
    path = tmp_path / "help"
    with SoftKVDocumentStore(path, embedder="static") as store:
        store.write_documents(documents(TEXTS))
        with pytest.raises(StoreLocked):
            SoftKVDocumentStore.from_dict(store.to_dict())
        with SoftKVDocumentStore(path, mode="r") as reader:
            where = {"field": "meta.page", "operator": ">=", "value": 1}
            retriever = SoftKVEmbeddingRetriever(reader, where, 3, 0.9, 0.05, scale_score=True, filter_policy="merge")
            pipeline = Pipeline()
            pipeline.add_component("retriever", retriever)
            asked = {"query": "where is the shop?"}
            expected = pipeline.run(asked)
            again = Pipeline.loads(pipeline.dumps(), allowed_modules=["softkv.doors.haystack"])
            assert again.run(asked) == expected
            assert asyncio.run(again.run_async(asked)) == expected
            (found,) = expected["retriever"]["documents"]
            assert (found.id, 0.5 < found.score < 1.0) == ("c", True)
            assert again.get_component("retriever").to_dict() == retriever.to_dict()
            again.get_component("retriever").document_store.close()
            with pytest.raises(AccessRefused):
                reader.write_documents(documents(["more"]))
    with (
        SoftKVDocumentStore(tmp_path / "own", embedder=lambda texts: [[1.0]] * len(texts)) as store,
        pytest.raises(KindError, match="with a name"),
    ):
        store.to_dict()


def test_a_retriever_takes_a_text_or_an_embedding(store: SoftKVDocumentStore) -> None:
    """One of them; filters of a call take the place of its own, and top_k may be 0."""
    store.write_documents(documents(TEXTS))
    retriever = SoftKVEmbeddingRetriever(store, {"field": "page", "operator": "==", "value": 0}, return_embedding=True)
    vector = store.db.item("c").vector.tolist()
    assert [one.id for one in retriever.run(query="shop")["documents"]] == ["a"]
    everything = {"field": "meta.page", "operator": ">=", "value": 0}
    found = retriever.run(query_embedding=vector, filters=everything)["documents"]
    assert (found[0].id, len(found)) == ("c", 4)
    assert found[0].embedding is None  # it was given none
    assert retriever.run(query="shop", top_k=0) == {"documents": []}
    assert retriever.run(query="shop", filters={"field": "meta.no", "operator": "==", "value": 1})["documents"] == []
    for given in ({}, {"query": "a", "query_embedding": vector}):
        with pytest.raises(InputError, match="one of them"):
            retriever.run(**given)
    with pytest.raises(KindError, match="whole number of at least 1"):
        retriever.run(query="shop", top_k=-1)
    with pytest.raises(KindError, match="SoftKVDocumentStore"):
        SoftKVEmbeddingRetriever(store.db)


def test_an_empty_store_finds_nothing(store: SoftKVDocumentStore) -> None:
    """It may be asked anything."""
    assert store.retrieve("shop") == store.retrieve([1.0], mass=0.9) == store.filter_documents() == []


def test_a_guard_declines_and_mass_is_held(tmp_path: Path) -> None:
    """Both do what lookups of the store say."""
    spots = np.array([1.0, 0.0, 0.0]) + 0.2 * np.random.default_rng(0).standard_normal((600, 3))
    with SoftKVDocumentStore(tmp_path / "s") as store:
        store.write_documents([Document(content=str(spot), embedding=spot.tolist()) for spot in spots])
        near, far = [1.0, 0.1, 0.0], [-1.0, 0.2, 0.9]
        for count in (len(store.retrieve(near, top_k=600, mass=mass, temperature=0.1)) for mass in (0.5, 0.9)):
            held = np.cumsum([one.weight for one in store.db.lookup(near, show=600, temperature=0.1).contributors])
            assert held[count - 2] < (0.5 if count < 300 else 0.9) <= held[count - 1]
        assert len(store.retrieve(far)) == 10
        store.db.tune()
        store.db.guard()
        assert store.retrieve(far) == []
        assert len(store.retrieve(near)) == 10


def test_an_order_does_not_fail_over_what_is_stored(store: SoftKVDocumentStore) -> None:
    """Numbers are compared with numbers alone, and dates with all texts, where Haystack raises an error."""
    stored: list[Any] = ["hello", "2024-01-01", 3, True, [1], {"a": 1}, None]
    kept = [Document(id=f"d{place}", content="x", meta={"n": one}) for place, one in enumerate(stored)]
    store.write_documents(kept)
    for value, greater, others in ((2, ["d2"], []), ("2024-05-01", ["d0"], ["d1"])):
        for operator, expected in ((">", greater), ("<=", others)):
            where = {"field": "meta.n", "operator": operator, "value": value}
            assert [one.id for one in store.filter_documents(where)] == expected
            with pytest.raises(HaystackFilterError):
                document_matches_filter(where, kept[0])


VALUES: list[Any] = [None, 0, 1, 2.5, -3, "a", "b", "2024-01-01", "2024-05-01", True]
FIELDS = ["meta.n", "meta.t", "meta.d", "meta.deep.n", "n", "content", "meta.missing", "id"]


def some_filter(chance: random.Random, depth: int = 2) -> dict[str, Any]:
    """A filter of Haystack on fields of one type each, or of none."""
    if depth and chance.random() < 0.5:
        conditions = [some_filter(chance, depth - 1) for _ in range(chance.randint(1, 3))]
        return {"operator": chance.choice(["AND", "OR", "NOT"]), "conditions": conditions}
    field = chance.choice(FIELDS)
    values = {
        "meta.d": ["2024-01-01", "2024-05-01", None],
        "meta.t": ["a", "b", None],
        "content": ["x", "y", None],
        "id": ["0", "7", None],
    }.get(field, [0, 1, 2.5, -3, None])
    worded = field in ("meta.t", "content", "id")
    operators = ["==", "!=", "in", "not in"] + ([] if worded else [">", ">=", "<", "<="])
    operator = chance.choice(operators)
    several = chance.sample(values, chance.randint(0, len(values)))
    return {"field": field, "operator": operator, "value": several if "in" in operator else chance.choice(values)}


def test_filters_mean_what_they_mean_to_haystack(store: SoftKVDocumentStore) -> None:
    """Over documents with missing, null and nested fields, each lets through what it does in Haystack."""
    chance = random.Random(0)
    held = []
    for number in range(60):
        meta: dict[str, Any] = {"n": chance.choice([0, 1, 2.5, -3, None]), "t": chance.choice(["a", "b", None])}
        meta |= {"d": chance.choice(["2024-01-01", "2024-05-01", None])}
        meta |= {"deep": chance.choice([{"n": 1}, {"n": None}, {}, None, {"n": -3}])}
        kept = {name: one for name, one in meta.items() if chance.random() < 0.7}
        content = chance.choice(["x", "y", None])
        held.append(Document(id=str(number), content=content, meta=kept, embedding=[1.0, float(number)]))
    store.write_documents(held)
    sizes = set()
    for _ in range(400):
        where = some_filter(chance)
        expected = [one.id for one in held if document_matches_filter(where, one)]
        assert [one.id for one in store.filter_documents(where)] == expected, where
        sizes.add(len(expected))
    assert len(sizes) > 20
    for operator in ("AND", "OR", "NOT"):
        nothing = {"operator": operator, "conditions": []}
        within = {"operator": "AND", "conditions": [some_filter(chance), nothing]}
        for where in (nothing, within):
            expected = [one.id for one in held if document_matches_filter(where, one)]
            assert [one.id for one in store.filter_documents(where)] == expected, where


@pytest.mark.parametrize(
    "where",
    [
        {"field": "meta.n", "operator": "~", "value": 1},
        {"operator": "XOR", "conditions": [{"field": "meta.n", "operator": "==", "value": 1}]},
        {"operator": "XOR", "conditions": []},
        {"field": "meta.n", "operator": "==", "value": [1]},
        {"field": "meta.n", "operator": ">", "value": {"a": 1}},
        {"field": "meta.n", "operator": "in", "value": [date(2024, 1, 1)]},
        {"field": "meta.$n", "operator": "==", "value": 1},
    ],
)
def test_what_no_filter_can_mean_is_an_error_of_haystack(store: SoftKVDocumentStore, where: dict[str, Any]) -> None:
    """A filter may be given anywhere, and to an empty store as well."""
    for ask in (store.filter_documents, store.delete_by_filter, lambda given: store.retrieve("x", given)):
        with pytest.raises(HaystackFilterError):
            ask(where)


def test_a_filter_that_asks_nothing_deletes_nothing(store: SoftKVDocumentStore) -> None:
    """Documents are all deleted by the call of that name."""
    store.write_documents(documents(TEXTS))
    with pytest.raises(InputError, match="neither"):
        store.delete_by_filter({})
    assert store.count_documents() == 4
    store.delete_documents(["a", "a", "nobody"])
    assert store.count_documents() == 3


def test_metadata_are_changed_beside_all_else(store: SoftKVDocumentStore) -> None:
    """What a document is compared by stays, and so do its other fields; in the threads of a loop as well."""
    store.write_documents(documents(TEXTS))
    before = store.retrieve("shop")

    async def update(number: int) -> None:
        await store.update_by_filter_async({"field": "page", "operator": "<", "value": 9}, {f"seen {number}": True})

    async def all_updates() -> None:
        await asyncio.gather(*(update(number) for number in range(8)))

    asyncio.run(all_updates())
    after = store.retrieve("shop")
    assert [(one.id, one.score) for one in after] == [(one.id, one.score) for one in before]
    assert after[0].meta == {**before[0].meta, **{f"seen {number}": True for number in range(8)}}


@pytest.mark.slow
def test_a_store_behind_a_url_is_one_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has all that there is, but for embeddings beside contents without."""
    with SoftKVDocumentStore(tmp_path / "help") as store:
        store.write_documents(documents(TEXTS))
        expected = store.retrieve("where is the shop?", top_k=2)
    with served(tmp_path / "help") as server:
        monkeypatch.setenv("SOFTKV_TOKEN", server.token)
        with SoftKVDocumentStore(f"http://127.0.0.1:{server.port}/help") as store:
            assert [one.id for one in store.retrieve("where is the shop?", top_k=2)] == [one.id for one in expected]
            assert [one.id for one in store.filter_documents({"field": "page", "operator": ">", "value": 2})] == ["d"]
            assert store.update_by_filter({"field": "id", "operator": "==", "value": "d"}, {"page": 9}) == 1
            assert store.get_metadata_field_min_max("page") == {"min": 0, "max": 9}
            with pytest.raises(DuplicateDocumentError):
                store.write_documents(documents(TEXTS))
            with pytest.raises(EmbedderNeeded, match="behind a URL"):
                store.write_documents([Document(content="x"), Document(content="y", embedding=[1.0] * 256)])
            assert store.delete_by_filter({"field": "page", "operator": "<", "value": 2}) == 2
            assert SoftKVDocumentStore.from_dict(store.to_dict()).count_documents() == 2
