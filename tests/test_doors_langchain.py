"""The door to LangChain, where its suites do not look: see test_doors_langchain_suite.py."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores.utils import maximal_marginal_relevance

import softkv
from softkv.doors.langchain import LangChainEmbedder, SoftKVExampleSelector, SoftKVRetriever, SoftKVVectorStore
from softkv.errors import (
    AccessRefused,
    EmbedderMismatch,
    EmbedderNotFound,
    InputError,
    KeyTextError,
    KindError,
    NotExpressible,
    NotRemote,
    PayloadError,
    ShapeError,
)

from .servers import served

TEXTS = ["Returns are free for 30 days.", "We deliver on Mondays.", "Our shop is in Rome.", "Call us at night."]


class Points(Embeddings):
    """A text of numbers is where they lie, and any other text is far off; counts the texts it is given."""

    def __init__(self) -> None:
        self.count = 0

    def embed_query(self, text: str) -> list[float]:
        """Where a text lies."""
        try:
            return [float(part) for part in text.split()]
        except ValueError:
            return [-1.0, -1.0, float(len(text))]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Where texts lie."""
        self.count += len(texts)
        return [self.embed_query(text) for text in texts]


def points(seed: int, count: int) -> list[str]:
    """Texts that lie near (1, 0, 0)."""
    spots = [1.0, 0.0, 0.0] + 0.2 * np.random.default_rng(seed).standard_normal((count, 3))
    return [" ".join(f"{x:.4f}" for x in spot) for spot in spots]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SoftKVVectorStore]:
    """A store that embeds by itself, whole at the end."""
    with SoftKVVectorStore(tmp_path / "help.softkv") as opened:
        yield opened
        assert opened.db.check().ok


def test_documents_of_the_same_text_are_all_kept(store: SoftKVVectorStore) -> None:
    """Each under its id, without a word about labels; one more than there are is asked for, and then a great many."""
    ids = store.add_texts(["Call us."] * 10)
    assert len(set(ids)) == 10
    for k in (11, 10**12):
        found = store.similarity_search("Call us.", k=k)
        assert sorted(str(one.id) for one in found) == sorted(ids)
    assert {one.page_content for one in store.get_by_ids(ids)} == {"Call us."}


def test_an_id_like_a_number_is_refused_before_anything_is_written(store: SoftKVVectorStore) -> None:
    """Items without keys are named so, and are found and deleted by these names."""
    with pytest.raises(KeyTextError, match="starts with '#'"):
        store.add_texts(TEXTS[:2], ids=["a", "#1"])
    assert len(store.db) == 0
    store.db.add(None, TEXTS, texts=TEXTS)
    assert [one.page_content for one in store.get_by_ids(["#2", "no", "#9", "#1"])] == [TEXTS[1], TEXTS[0]]
    assert store.delete(["#2", "#2", "#9"])
    assert store.similarity_search("deliver on Mondays", k=9, filter=None)[0].id != "#2"
    assert len(store.db) == 3


@pytest.mark.parametrize("metadata", [{}, {"a": {"b": [1, None, {"c": 2.5}]}, "none": None, "é": "日本"}])
def test_metadata_come_back_as_they_were(store: SoftKVVectorStore, metadata: dict[str, Any]) -> None:
    """They may be nested, empty, or None."""
    (name,) = store.add_texts(TEXTS[:1], [metadata])
    assert store.get_by_ids([name])[0].metadata == metadata
    assert store.similarity_search("returns")[0].metadata == metadata


def test_metadata_that_json_would_not_give_back_are_refused(store: SoftKVVectorStore) -> None:
    """A date is one, and nothing is written."""
    with pytest.raises(PayloadError, match="payload 1 holds a date"):
        store.add_texts(TEXTS[:2], [{}, {"day": date(2024, 1, 1)}])
    with pytest.raises(ShapeError, match="expected metadatas for 2 texts, got 1"):
        store.add_texts(TEXTS[:2], [{}])
    with pytest.raises(ShapeError, match="expected ids for 1 texts, got 2"):
        store.add_texts(TEXTS[:1], ids=["1", "2"])
    assert len(store.db) == 0
    assert store.add_texts([]) == []


def test_filters_are_those_of_the_store(store: SoftKVVectorStore) -> None:
    """A field that is missing meets none, and where nothing is left nothing is found."""
    store.add_texts(TEXTS, [{"page": 1}, {"page": 2, "by": {"name": "Ann"}}, {}, {"page": None}])

    def found(where: dict[str, Any]) -> set[str]:
        by_retriever = store.as_retriever(search_kwargs={"k": 9, "filter": where}).invoke("shop")
        assert by_retriever == store.recall("shop", 9, filter=where)
        return {one.page_content for one in by_retriever}

    assert found({"page": {"$gte": 1}}) == set(TEXTS[:2])
    assert found({"by": {"name": "Ann"}}) == {TEXTS[1]}
    assert found({"page": {"$exists": False}}) == {TEXTS[2]}
    assert found({"page": None}) == {TEXTS[3]}
    assert found({"color": "red"}) == set()
    assert store.max_marginal_relevance_search("shop", filter={"color": "red"}) == []
    assert store.similarity_search_with_relevance_scores("shop", filter={"color": "red"}) == []


def test_what_is_there_is_replaced_and_the_last_of_one_id_counts(store: SoftKVVectorStore) -> None:
    """It is within a call as well; without ids all are deleted."""
    store.add_documents([Document("old", id="a"), Document(TEXTS[0], id="b")])
    assert store.add_texts([TEXTS[1], TEXTS[2]], ids=["a", "a"]) == ["a", "a"]
    assert [one.page_content for one in store.get_by_ids(["a", "b"])] == [TEXTS[2], TEXTS[0]]
    assert store.delete()
    assert store.similarity_search("shop") == []


def test_answers_to_questions_are_documents(tmp_path: Path) -> None:
    """A store that was made otherwise: its keys are ids, its values texts, and a payload that is no object is kept."""
    with softkv.open(tmp_path / "faq.softkv") as db:
        db.add(["where are you", "what does it cost"], ["In Rome.", "5 euros."], payloads=[["list"], None])
        with SoftKVVectorStore(db) as store:
            found = store.similarity_search("where is it", k=1)
            assert found == [Document("In Rome.", id="where are you", metadata={"payload": ["list"]})]
        assert db["where are you"] == "In Rome."  # it was given open, and stays so


def test_a_store_without_texts_is_refused(tmp_path: Path) -> None:
    """Its path is refused and its handle is; the path can be opened again at once."""
    path = tmp_path / "rents.softkv"
    with softkv.open(path) as db:
        db.add(None, [1.0, 2.0], vectors=np.eye(2))
        with pytest.raises(KindError, match="values are texts"):
            SoftKVVectorStore(db)
    with pytest.raises(KindError, match="holds values of kind 'number'"):
        SoftKVVectorStore(path)
    softkv.open(path).close()


def test_a_store_that_is_open_for_reading_is_asked_and_not_written(store: SoftKVVectorStore, tmp_path: Path) -> None:
    """It sees the documents of the handle beside it that writes."""
    store.add_texts(TEXTS)
    with softkv.open(tmp_path / "help.softkv", "r") as db:
        reader = SoftKVVectorStore(db)
        assert reader.similarity_search("shop", k=1)[0].page_content == TEXTS[2]
        with pytest.raises(AccessRefused):
            reader.add_texts(["more"])
        with pytest.raises(AccessRefused):
            reader.delete()


def test_embeddings_of_langchain_belong_to_the_store(tmp_path: Path) -> None:
    """Each text is embedded once; another model is refused, and one that cannot be found by its name is asked for."""
    path, embedding = tmp_path / "points.softkv", Points()
    with SoftKVVectorStore.from_texts(points(0, 4), embedding, store=path) as store:
        assert store.embeddings is embedding
        embedding.count = 0
        store.add_texts(points(1, 20))
        assert embedding.count == 20
        lying = points(2, 1)[0]
        assert store.similarity_search_with_score(lying) == store.similarity_search_with_score(
            embedding.embed_query(lying)
        )
    with SoftKVVectorStore(path) as store, pytest.raises(EmbedderNotFound, match="Points"):
        store.similarity_search("1 0 0")
    with softkv.open(path, embedder="static") as db, pytest.raises(EmbedderMismatch):
        SoftKVVectorStore(db).similarity_search("1 0 0")
    with softkv.open(path, embedder=LangChainEmbedder(embedding)) as db:
        assert len(SoftKVVectorStore(db).similarity_search("1 0 0", k=30)) == 24
        with pytest.raises(KindError, match="expected a path"):
            SoftKVVectorStore(db, embedding)


def test_what_fails_while_a_store_is_made_leaves_it_closed(tmp_path: Path) -> None:
    """A store can be opened again after what failed while it was made; where it is to be made has to be said."""
    path = tmp_path / "help.softkv"
    with pytest.raises(KeyTextError):
        SoftKVVectorStore.from_texts(TEXTS[:1], store=path, ids=["#"])
    with SoftKVVectorStore.from_documents([Document(TEXTS[0], id="a")], Points(), store=path) as store:
        assert store.get_by_ids(["a"])[0].page_content == TEXTS[0]
    with pytest.raises(InputError, match="expected store="):
        SoftKVVectorStore.from_texts(TEXTS)


def test_no_documents_are_found_where_none_are_wanted(store: SoftKVVectorStore) -> None:
    """The store of LangChain in memory gives none either; fewer than none cannot be."""
    store.add_texts(TEXTS)
    assert store.similarity_search(TEXTS[0], 0) == store.similarity_search_with_score(TEXTS[0], 0) == []
    assert store.max_marginal_relevance_search(TEXTS[0], 2, 0) == []
    with pytest.raises(KindError):
        store.similarity_search(TEXTS[0], -1)


def test_a_store_that_nobody_closed_says_nothing_when_the_process_ends(tmp_path: Path) -> None:
    """The interface of LangChain has no way to close one."""
    code = """
import sys
from softkv.doors.langchain import SoftKVVectorStore
store = SoftKVVectorStore(sys.argv[1])
store.add_texts([f"{number} words" for number in range(30)])
"""
    ran = subprocess.run([sys.executable, "-c", code, tmp_path / "s"], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    with softkv.open(tmp_path / "s", "r") as db:
        assert len(db) == 30
        assert db.check().ok


def test_options_that_mean_nothing_here_are_refused(store: SoftKVVectorStore) -> None:
    """They are, wherever LangChain lets them through."""
    for call in (store.similarity_search, store.max_marginal_relevance_search, store.delete):
        with pytest.raises(InputError, match="'namespace'"):
            call(["1"], namespace="mine")
    with pytest.raises(InputError, match="'namespace'"):
        store.add_texts(["1"], namespace="mine")


@pytest.mark.parametrize("compatibility", ["cosine", "gaussian", "dot"])
def test_diverse_documents_are_those_of_langchain(tmp_path: Path, compatibility: str) -> None:
    """With cosine they are just these; otherwise scores are those of the store, of which the first is the best."""
    embedding, texts = Points(), points(0, 30)
    with softkv.open(tmp_path / "s", compatibility=compatibility, embedder=LangChainEmbedder(embedding)) as db:
        store = SoftKVVectorStore(db)
        assert store.max_marginal_relevance_search("1 0 0") == []
        store.add_texts(texts)
        query = [1.0, 0.5, 0.0]
        for mult in (0.0, 0.3, 1.0):
            found = store.max_marginal_relevance_search_by_vector(query, 6, fetch_k=12, lambda_mult=mult)
            best = store.similarity_search_by_vector(query, 12)
            assert len({one.id for one in found}) == 6
            assert found[0] == best[0]
            if mult == 1.0:
                assert found == best[:6]
            if compatibility == "cosine":
                near = [np.array(embedding.embed_query(one.page_content)) for one in best]
                expected = maximal_marginal_relevance(np.array(query), near, lambda_mult=mult, k=6)
                assert found == [best[place] for place in expected]
        assert store.max_marginal_relevance_search("1 0.5 0", 50, 40, 1.0) == store.similarity_search("1 0.5 0", 40)


def test_relevance_goes_from_0_to_1(tmp_path: Path) -> None:
    """1 for what is the query itself, and in the order of the scores; not where scores have no upper end."""
    for compatibility in ("cosine", "gaussian", "laplace", "student"):
        path = tmp_path / compatibility
        with softkv.open(path, compatibility=compatibility, embedder=LangChainEmbedder(Points())) as db:
            store = SoftKVVectorStore(db)
            store.add_texts(["1 0 0", "-1 0 0", "9 9 9"])
            found = store.similarity_search_with_relevance_scores("1 0 0", k=3)
            scores = [score for _, score in found]
            assert scores[0] == pytest.approx(1.0, abs=1e-6)
            assert 1.0 >= scores[0] > scores[1] > scores[2] >= 0.0
            few = store.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.9})
            assert [one.page_content for one in few.invoke("1 0 0")] == ["1 0 0"]
    with softkv.open(tmp_path / "dot", compatibility="dot", embedder=LangChainEmbedder(Points())) as db:
        store = SoftKVVectorStore(db)
        store.add_texts(["1 0 0"])
        with pytest.raises(NotExpressible, match="by 'dot'"):
            store.similarity_search_with_relevance_scores("1 0 0")


def test_what_a_store_has_learned_is_asked_and_has_no_relevance(tmp_path: Path) -> None:
    """Documents come in the order of its lookups; unlike ones are found without it."""
    with SoftKVVectorStore(tmp_path / "s", Points()) as store:
        store.add_texts(points(0, 300))
        store.db.fit()
        assert store.db.info().projection is not None
        best = [one.key for one in store.db.lookup("1 0.1 0", show=4).contributors]
        assert [one.id for one in store.similarity_search("1 0.1 0")] == best
        assert len(store.max_marginal_relevance_search("1 0.1 0")) == 4
        with pytest.raises(NotExpressible, match="has learned"):
            store.similarity_search_with_relevance_scores("1 0.1 0")


def test_a_retriever_gives_as_many_as_hold_the_mass(tmp_path: Path) -> None:
    """Counted by the weights of the lookup itself; beside k, at most so many; more than are first asked for."""
    with SoftKVVectorStore(tmp_path / "s", Points()) as store:
        assert store.recall("1 0 0", mass=0.9) == store.similarity_search_with_relevance_scores("1 0 0") == []
        store.add_texts(points(0, 400))
        for temperature in (0.001, 0.05, 5.0, None):
            answer = store.db.lookup("1 0.1 0", show=400, temperature=temperature)
            shares = np.cumsum([one.weight for one in answer.contributors])
            for mass in (0.1, 0.9, 1.0):
                found = SoftKVRetriever(vectorstore=store, mass=mass, temperature=temperature).invoke("1 0.1 0")
                assert [one.id for one in found] == [one.key for one in answer.contributors][: len(found)]
                assert len(found) == 400 or shares[len(found) - 1] >= mass - 1e-9
                assert len(found) == 1 or shares[len(found) - 2] < mass + 1e-9
        retriever = SoftKVRetriever(vectorstore=store, mass=0.9, temperature=5.0, k=20)
        assert len(retriever.invoke("1 0 0")) == 20
        assert len(retriever.invoke("1 0 0", temperature=0.0001)) < 20
        assert len(retriever.invoke("1 0 0", k=None, filter={"page": 1})) == 0
        for mass in (0.0, 1.1, -1.0, float("nan")):
            with pytest.raises(InputError, match="share of all weight"):
                retriever.invoke("1 0 0", mass=mass)


def test_a_retriever_declines_where_the_guard_does(tmp_path: Path) -> None:
    """A retriever gives nothing where the guard declines, but does with a filter or at another temperature."""
    with SoftKVVectorStore(tmp_path / "s", Points()) as store:
        store.add_texts(points(0, 600), [{"page": 1}] * 600)
        retriever = SoftKVRetriever(vectorstore=store, mass=0.5, k=9)
        near, far = "1 0.1 0", "-1 0.2 0.9"
        assert len(retriever.invoke(far)) > 0
        store.db.tune()
        store.db.guard()
        assert store.db.lookup(near).known is True
        assert store.db.lookup(far).known is False
        assert retriever.invoke(far) == SoftKVRetriever(vectorstore=store).invoke(far) == []
        assert asyncio.run(retriever.ainvoke(far)) == []
        assert len(retriever.invoke(near)) > 0
        assert len(retriever.invoke(far, filter={"page": 1})) > 0
        assert len(retriever.invoke(far, temperature=0.5)) > 0
        assert len(store.similarity_search(far)) == 4  # who asks a vector store for four gets four


def test_an_index_is_asked_and_gives_the_same_documents(tmp_path: Path) -> None:
    """All but those few that it may miss, of queries like its items; and the mass is held."""
    embedding = Points()
    with SoftKVVectorStore(tmp_path / "s", embedding) as store:
        store.add_texts(points(0, 3000))
        asked = points(1, 20)
        before = [{one.id for one in store.similarity_search(query, k=10)} for query in asked]
        store.db.build_index()
        after = [{one.id for one in store.similarity_search(query, k=10)} for query in asked]
        assert sum(len(one & other) for one, other in zip(before, after, strict=True)) >= 0.95 * 200
        for query in asked:
            found = store.recall(query, mass=0.5)
            answer = store.db.lookup(embedding.embed_query(query), show=3000, tolerance=0)
            held = {one.key: one.weight for one in answer.contributors}
            assert sum(held[one.id] for one in found) > 0.49


def test_examples_are_chosen_by_their_weight(tmp_path: Path) -> None:
    """What is asked alone weighs them, by k and mass, in a loop and without, and what is added later as well."""
    examples = [{"question": "where are you", "answer": "Rome"}, {"question": "what does it cost", "answer": "5 euros"}]
    selector = SoftKVExampleSelector.from_examples(
        examples, None, SoftKVVectorStore, input_keys=["question"], store=tmp_path / "s"
    )
    with selector.vectorstore:
        asked = {"question": "where is your office"}
        assert selector.select_examples(asked) == examples
        selector.mass, selector.temperature = 0.5, 0.05
        assert selector.select_examples(asked) == asyncio.run(selector.aselect_examples(asked)) == examples[:1]
        name = selector.add_example({"question": "where is your office", "answer": "In a tower"})
        assert selector.select_examples(asked)[0]["answer"] == "In a tower"
        selector.vectorstore.delete([name])
        selector.example_keys = ["answer"]
        assert selector.select_examples(asked) == [{"answer": "Rome"}]


def test_the_indexing_of_langchain_keeps_a_store_up_to_date(store: SoftKVVectorStore) -> None:
    """It adds what is new, passes over what is there, and deletes what has gone."""
    records = InMemoryRecordManager("help")
    records.create_schema()
    documents = [Document(text, metadata={"source": "help"}) for text in TEXTS]
    options: dict[str, Any] = {"cleanup": "full", "source_id_key": "source", "key_encoder": "sha256"}
    assert index(documents, records, store, **options)["num_added"] == 4
    found = index(documents[:3], records, store, **options)
    assert (found["num_added"], found["num_skipped"], found["num_deleted"]) == (0, 3, 1)
    assert {one.page_content for one in store.similarity_search("shop", k=9)} == set(TEXTS[:3])


def test_many_coroutines_share_a_store(store: SoftKVVectorStore) -> None:
    """They run in threads, add, ask and delete at once, and nothing is lost."""

    async def work(number: int) -> None:
        ids = [f"{number}-{place}" for place in range(4)]
        await store.aadd_texts(TEXTS, ids=ids)
        assert (await store.asimilarity_search("shop in Rome", k=1))[0].page_content == TEXTS[2]
        assert len(await store.aget_by_ids(ids)) == 4
        await asyncio.gather(*(store.adelete([ids[0], "shared"]) for _ in range(3)))
        await store.aadd_texts(["shared"], ids=["shared"])

    async def all_work() -> None:
        await asyncio.gather(*(work(number) for number in range(12)))

    asyncio.run(all_work())
    assert set(store.db) == {f"{number}-{place}" for number in range(12) for place in (1, 2, 3)} | {"shared"}


@pytest.mark.slow
def test_a_store_behind_a_url_is_one_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has all that there is, but for a model of one's own."""
    with SoftKVVectorStore(tmp_path / "help") as store:
        store.add_texts(TEXTS, [{"page": page} for page in range(4)], ids=list("abcd"))
        expected = store.similarity_search_with_score("where is the shop?", 3)
    with served(tmp_path / "help") as server:
        monkeypatch.setenv("SOFTKV_TOKEN", server.token)
        with SoftKVVectorStore(f"http://127.0.0.1:{server.port}/help") as store:
            found = store.similarity_search_with_score("where is the shop?", 3)
            assert [one for one, _ in found] == [one for one, _ in expected]
            assert store.recall("where is the shop?", mass=0.9, temperature=0.01) == [expected[0][0]]
            assert len(store.max_marginal_relevance_search("shop", 3)) == 3
            assert store.similarity_search("shop", filter={"page": 1})[0].id == "b"
            store.add_texts(["Ask at the door."], ids=["e"])
            assert store.delete(["a", "nobody"])
            with pytest.raises(NotRemote):
                SoftKVVectorStore(store.db.path, Points())
            assert [one.id for one in store.get_by_ids(list("abe"))] == ["b", "e"]
            assert len(store.similarity_search("shop", k=10**9)) == 4
            (_, score), *_ = store.similarity_search_with_relevance_scores("Ask at the door.")
            assert 0.99 < score <= 1.0
