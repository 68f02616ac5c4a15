"""What builds indexes here, and where, in a few words."""

import subprocess
import sys
from importlib import metadata

import pytest

from softkv.database import backend
from softkv.database.backend import backend_name


def test_the_build_of_faiss_is_named_with_its_version() -> None:
    """The name is the one that pip knows; a build for the CPU works on the CPU."""
    assert backend_name() == f"faiss-cpu {metadata.version('faiss-cpu')} on the cpu"


def test_without_faiss_there_is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A faiss that nobody can import is none."""
    monkeypatch.setattr(backend, "BUILDS", ())
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert backend_name() == "numpy only"


def test_a_build_of_another_name_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be imported, so it is there."""
    monkeypatch.setattr(backend, "BUILDS", ())
    assert backend_name() == "faiss of an unknown build on the cpu"


def test_two_builds_are_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """They overwrite each other's files, and it is said here, without an error."""
    monkeypatch.setattr(backend, "BUILDS", ("numpy", "no such package", "click"))
    versions = metadata.version("numpy"), metadata.version("click")
    assert backend_name() == f"numpy {versions[0]} and click {versions[1]}, of which only one may be installed"


def test_a_build_that_cannot_be_loaded_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed is named all the same."""
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert backend_name().endswith("on the cpu")


@pytest.mark.slow
def test_finding_the_backend_does_not_import_it() -> None:
    """To find the backend neither imports it nor starts a GPU."""
    told = "from softkv.database.backend import backend_name; print(backend_name())"
    script = f"{told}\nimport sys; print('faiss' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [backend_name(), "False"]
