"""The suites of Haystack for document stores, sync and async, whole.

What the store is told of a document without an embedding, it embeds by a model of the width of the others.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from haystack import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.testing import document_store as suites
from haystack.testing import document_store_async as async_suites

from softkv.doors.haystack import SoftKVDocumentStore

pytestmark = pytest.mark.ci
WIDTH = 768  # of the embeddings in the suites


def letters(texts: Any) -> Any:
    """A model of that width: how often there is each letter."""
    return [[text.count(chr(letter)) + 0.01 for letter in range(WIDTH)] for text in texts]


class Stored:
    """A store for each test, which is whole at its end; embeddings come back as float32 holds them."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The loop that coroutines run in."""
        return "asyncio"

    @pytest.fixture
    def document_store(self, tmp_path: Path) -> Iterator[SoftKVDocumentStore]:
        """An empty store."""
        with SoftKVDocumentStore(tmp_path / "documents.softkv", embedder=letters) as store:
            yield store
            assert store.db.check().ok

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        """The same documents in the same order, with embeddings to the rounding of float32."""
        assert [_plain(one) for one in received] == [_plain(one) for one in expected]
        for one, other in zip(received, expected, strict=True):
            assert (one.embedding is None) == (other.embedding is None)
            if one.embedding is not None:
                assert np.float32(one.embedding).tolist() == np.float32(other.embedding).tolist()


def _plain(document: Document) -> dict[str, Any]:
    return {name: one for name, one in document.to_dict(flatten=False).items() if name != "embedding"}


class TestDocumentStore(
    Stored,
    suites.DocumentStoreBaseExtendedTests,
    suites.CountDocumentsByFilterTest,
    suites.CountUniqueMetadataByFilterTest,
    suites.GetMetadataFieldsInfoTest,
    suites.GetMetadataFieldMinMaxTest,
    suites.GetMetadataFieldUniqueValuesTest,
):
    """All suites that ask without a loop."""

    def test_write_documents(self, document_store: SoftKVDocumentStore) -> None:
        """Without a policy, a document that is there already is refused, and the suite leaves that to each store."""
        document = Document(content="test doc")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([document])


@pytest.mark.anyio
class TestDocumentStoreInALoop(
    Stored,
    async_suites.CountDocumentsAsyncTest,
    async_suites.CountDocumentsByFilterAsyncTest,
    async_suites.CountUniqueMetadataByFilterAsyncTest,
    async_suites.DeleteAllAsyncTest,
    async_suites.DeleteByFilterAsyncTest,
    async_suites.DeleteDocumentsAsyncTest,
    async_suites.FilterDocumentsAsyncTest,
    async_suites.GetMetadataFieldMinMaxAsyncTest,
    async_suites.GetMetadataFieldUniqueValuesAsyncTest,
    async_suites.GetMetadataFieldsInfoAsyncTest,
    async_suites.UpdateByFilterAsyncTest,
    async_suites.WriteDocumentsAsyncTest,
):
    """All suites that ask in a loop."""

    async def test_write_documents_async(self, document_store: SoftKVDocumentStore) -> None:
        """What the store does without a policy, which the suite leaves to each: it refuses a document that is there."""
        document = Document(content="test doc")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document])


@pytest.mark.parametrize(("suite", "run"), [(suites, TestDocumentStore), (async_suites, TestDocumentStoreInALoop)])
def test_no_suite_is_left_out(suite: Any, run: type) -> None:
    """A class of tests that Haystack adds is run as well, or this fails."""
    classes = [one for _, one in inspect.getmembers(suite, inspect.isclass) if one.__module__ == suite.__name__]
    tests = [one for one in classes if any(name.startswith("test_") for name in vars(one))]
    assert len(tests) > 8
    assert [one.__name__ for one in tests if not issubclass(run, one)] == []


@pytest.mark.parametrize(("suite", "run"), [(suites, TestDocumentStore), (async_suites, TestDocumentStoreInALoop)])
def test_the_page_counts_these_suites(suite: Any, run: type) -> None:
    """The table in docs/doors.md tells how many tests are run, and how many would make an index anew."""
    page = (Path(__file__).parent.parent / "docs" / "doors.md").read_text(encoding="utf-8")
    names = [name for name in dir(run) if name.startswith("test_")]
    left_out = sum("recreate_index" in name for name in names)
    row = f"`{suite.__name__}`, every class | {len(names)} | {len(names) - left_out} | {left_out}: "
    assert f"| {row}" in page
