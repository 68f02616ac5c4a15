"""What the crash tests share: the process that forks recorded children, started once."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import recorder
from tests.databases import count_as_large


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[recorder.Nursery]:
    """Forks children whose calls are recorded; see recorder.py."""
    if reason := recorder.why_not():
        pytest.skip(reason)
    started = recorder.Nursery(tmp_path_factory.mktemp("recorder"))
    yield started
    started.close()


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one, since nothing here need survive."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir=shared))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on, and few queries are rehearsed; children inherit it."""
    count_as_large(monkeypatch, rehearsed=400)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store of a test lies."""
    return tmp_path / "shared.softkv"
