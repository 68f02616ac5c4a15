"""The suites of LangChain for vector stores and retrievers, whole: langchain-tests has no unit tests of either."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import langchain_tests.unit_tests
import pytest
from langchain_core.retrievers import BaseRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests, VectorStoreIntegrationTests

from softkv.doors.langchain import SoftKVRetriever, SoftKVVectorStore

pytestmark = pytest.mark.ci
TEXTS = ["Returns are free for 30 days.", "We deliver on Mondays.", "Our shop is in Rome.", "Call us at night."]


class InALoop:
    """Coroutines are run by asyncio."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The loop that coroutines run in."""
        return "asyncio"


@pytest.mark.anyio
class TestVectorStore(InALoop, VectorStoreIntegrationTests):
    """With the embeddings of the suite."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[SoftKVVectorStore]:
        """An empty store, which is whole at the end."""
        with SoftKVVectorStore(tmp_path / "documents.softkv", self.get_embeddings()) as store:
            yield store
            assert store.db.check().ok


@pytest.mark.anyio
class TestVectorStoreThatEmbeds(InALoop, VectorStoreIntegrationTests):
    """With the model of the store."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[SoftKVVectorStore]:
        """An empty store, which is whole at the end."""
        with SoftKVVectorStore(tmp_path / "documents.softkv") as store:
            yield store
            assert store.db.check().ok


@pytest.mark.anyio
class TestRetriever(InALoop, RetrieversIntegrationTests):
    """Over a store of a few documents."""

    @pytest.fixture(autouse=True)
    def filled(self, tmp_path: Path) -> Iterator[None]:
        """A store of its own for each test."""
        with SoftKVVectorStore(tmp_path / "documents.softkv") as self.store:
            self.store.add_texts(TEXTS)
            yield

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        """What is tested."""
        return SoftKVRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        """What it is made of."""
        return {"vectorstore": self.store}

    @property
    def retriever_query_example(self) -> str:
        """What it is asked."""
        return "where is the shop?"


def test_there_are_no_unit_tests_of_either() -> None:
    """Where langchain-tests comes to have some, they are to be run."""
    made = dir(langchain_tests.unit_tests)
    assert "ChatModelUnitTests" in made
    assert [name for name in made if "VectorStore" in name or "Retriever" in name] == []


def test_the_page_counts_these_suites() -> None:
    """The table in docs/doors.md tells how many tests are run of each suite, and that all of them pass."""
    page = (Path(__file__).parent.parent / "docs" / "doors.md").read_text(encoding="utf-8")
    for row, classes in (("by the suite's", (TestVectorStore, TestVectorStoreThatEmbeds)), ("Retr", (TestRetriever,))):
        count = sum(name.startswith("test_") for one in classes for name in dir(one))
        assert re.search(rf"^\| LangChain .*{row}[^|]*\| {count} \| {count} \| \|$", page, re.MULTILINE)
