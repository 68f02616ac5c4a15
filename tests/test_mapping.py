"""A database as a mapping, by the tests that CPython has for mappings; and what an iteration sees."""

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest

import softkv
from softkv.database import SoftKV

mapping_tests = pytest.importorskip("test.mapping_tests", reason="this Python comes without its own tests")


class TestProtocol(mapping_tests.BasicTestMappingProtocol):  # type: ignore[misc,name-defined]
    """What CPython asks of every mapping, asked of a database of texts."""

    type2test = SoftKV

    def setUp(self) -> None:
        """A folder for the databases of one test."""
        self._folder = tempfile.TemporaryDirectory()
        self._numbers = itertools.count()
        self._opened: list[SoftKV] = []

    def tearDown(self) -> None:
        """Close and check them all."""
        for db in self._opened:
            assert db.check().ok
            db.close()
        self._folder.cleanup()

    def _reference(self) -> dict[Any, Any]:
        """Texts alone: keys are embedded, and a database has values of one kind."""
        return {"the first key": "one value", "the second key": "another value", "the third key": "a third value"}

    def _empty_mapping(self) -> SoftKV:
        db = softkv.open(Path(self._folder.name) / str(next(self._numbers)), value="text")
        self._opened.append(db)
        return db

    def _full_mapping(self, data: dict[Any, Any]) -> SoftKV:
        db = self._empty_mapping()
        db.update(data)
        return db


def test_an_iteration_runs_over_the_commit_that_it_started_on(tmp_path: Path) -> None:
    """What is added, replaced, deleted or compacted meanwhile changes nothing of it."""
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=[[float(number), 1.0] for number in range(5)], values=[float(number) for number in range(5)])
        for iteration in (iter(db), iter(db.items()), iter(db.values()), db.select()):
            before = len(db)
            seen = [next(iteration)]
            db.delete(next(iter(db)))
            db.add(vectors=[[9.0, 9.0]], values=[9.0])
            db.compact()
            assert len(seen + list(iteration)) == before
        assert db.check().ok
