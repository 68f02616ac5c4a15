"""What CPython asks of every mapping, asked of a store, of one behind a URL, and of a cluster."""

import itertools
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import softkv
from softkv.database import SoftKV
from softkv.doors.cluster.handle import create

from .listening import listening

mapping_tests = pytest.importorskip("test.mapping_tests", reason="this Python comes without its own tests")


class TestStore(mapping_tests.BasicTestMappingProtocol):  # type: ignore[misc,name-defined]
    """A store of texts as a mapping."""

    type2test = SoftKV

    def setUp(self) -> None:
        """A folder for the stores of one test."""
        self._folder = tempfile.TemporaryDirectory()
        self._numbers, self._ending = itertools.count(), ExitStack()
        self._opened: list[SoftKV] = []

    def tearDown(self) -> None:
        """Check and close them all."""
        for db in self._opened:
            assert db.check().ok
        self._ending.close()
        self._folder.cleanup()

    def _reference(self) -> dict[Any, Any]:
        """Texts alone: keys are embedded, and a store has values of one kind."""
        return {"the first key": "one value", "the second key": "another value", "the third key": "a third value"}

    def _named(self, path: Path) -> Path | str:
        """What opens a new store there."""
        softkv.open(path, value="text").close()
        return path

    def _empty_mapping(self) -> SoftKV:
        name = self._named(Path(self._folder.name) / str(next(self._numbers)))
        self._opened.append(self._ending.enter_context(softkv.open(name)))
        return self._opened[-1]

    def _full_mapping(self, data: dict[Any, Any]) -> SoftKV:
        db = self._empty_mapping()
        db.update(data)
        return db


class TestRemote(TestStore):
    """A store behind a URL as a mapping."""

    def _named(self, path: Path) -> str:
        return f"{self._ending.enter_context(listening(super()._named(path)))}/{path.name}"


class TestCluster(TestStore):
    """A cluster as a mapping."""

    def _named(self, path: Path) -> Path:
        create(path, 3, value="text")
        return path
