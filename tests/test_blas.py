"""Products of matrices by one thread, for as long as somebody wants that."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import softkv
from softkv.asking import lists, route, sampled, scan
from softkv.asking.view import View
from softkv.maths.blas import Switched, one_thread

BLAS = ThreadpoolController().select(user_api="blas")


def counts() -> set[int]:
    """How many threads each BLAS of this process has."""
    return {one.num_threads for one in BLAS.lib_controllers}


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Two, whatever the machine has; and as many afterwards."""
    with BLAS.limit(limits=2, user_api="blas"):
        yield
        assert counts() == {2}


def test_one_thread_inside_and_as_many_as_before_afterwards() -> None:
    """Also where one is inside twice, and when it raises."""
    with one_thread:
        assert counts() == {1}
        with one_thread:
            assert counts() == {1}
        assert counts() == {1}
    assert counts() == {2}
    with pytest.raises(ValueError, match="inside"), one_thread:
        raise ValueError("inside")


def test_the_last_to_leave_puts_back_what_was_there() -> None:
    """Two threads that overlap, of which the first to come is the first to go."""
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with one_thread:
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=other)
    with one_thread:
        thread.start()
        assert entered.wait(10)
    assert counts() == {1}
    left.set()
    thread.join()
    assert counts() == {2}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_has_as_many_threads_as_its_parent_had_outside() -> None:
    """It has none of the threads that were inside, so nobody would put anything back there."""
    read, write = os.pipe()
    with one_thread:
        child = os.fork()
        if not child:
            with one_thread:
                inside = counts()
            os.write(write, repr((inside, counts())).encode())
            os._exit(0)
        os.waitpid(child, 0)
    assert os.read(read, 100).decode() in ("({1}, {2})", "({1}, {1})")  # a BLAS may start a child with one
    os.close(read)
    os.close(write)


def test_what_cannot_be_changed_leaves_nobody_inside() -> None:
    """The next one tries again."""
    told = list[str]()

    def change() -> Any:
        told.append("change")
        if len(told) == 1:
            raise OSError("not now")
        return lambda: told.append("back")

    switched = Switched(change)
    with pytest.raises(OSError, match="not now"), switched:
        pass
    with switched, switched:
        pass
    assert told == ["change", "change", "back"]


def test_lists_are_asked_and_kept_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their products are small; a scan of all items takes all threads."""
    seen: dict[str, set[int]] = {}

    def watched(module: Any, name: str) -> None:
        inner = getattr(module, name)

        def outer(*given: Any, **options: Any) -> Any:
            seen[name] = counts()
            return inner(*given, **options)

        monkeypatch.setattr(module, name, outer)

    rng = np.random.default_rng(0)
    vectors, values = rng.standard_normal((3000, 8)).astype(np.float32), rng.standard_normal((3000, 2))
    monkeypatch.setattr(route, "CHEAP", 0)
    monkeypatch.setattr(route, "STARTED", 0)
    monkeypatch.setattr(route, "STARTED_EACH", 0)
    monkeypatch.setattr(route, "DRAWN", 0)
    for module, name in ((lists, "calibrated"), (sampled, "measured"), (scan, "lookup"), (View, "next_change")):
        watched(module, name)
    with softkv.open(tmp_path / "s", temperature=0.5) as db:
        db.add(vectors=vectors[:2000], values=values[:2000])
        db.build_index()
        db.add(vectors=vectors[2000:], values=values[2000:])
        db.lookup(vectors[:4], tolerance=0.05)
        db.lookup(vectors[0], tolerance=0.05, temperature=500.0)
        db.lookup(vectors[0], tolerance=0)
    assert seen == {"next_change": {1}, "calibrated": {1}, "measured": {1}, "lookup": {2}}
