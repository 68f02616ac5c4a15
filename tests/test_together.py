"""Lookups of several threads to one handle: each gets the answer to its own question, whatever the others ask."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.answer import Answers
from softkv.asking import lists, scan
from softkv.asking.question import Question
from softkv.asking.together import Together
from softkv.errors import SoftKVError

from .databases import count_as_large

KEYS = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)


def at_once(works: list[Callable[[], Any]]) -> list[Any]:
    """What each returns or raises, all begun together in threads of their own."""
    found: list[Any] = [None] * len(works)
    gate = threading.Barrier(len(works))

    def run(place: int) -> None:
        gate.wait()
        try:
            found[place] = works[place]()
        except BaseException as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
        assert not one.is_alive()
    return found


def question(place: int, **more: Any) -> Question:
    """A question about one of the keys."""
    return Question(KEYS[place : place + 1], "dot", 1.0, **more)


def answered(_: object, asked: Question) -> Answers:
    """The answers of a plain lookup; the value is the key that weighs most."""
    return softkv.soft_lookup(asked.queries, KEYS, KEYS, compatibility="dot", temperature=0.01, show=asked.show)


class Held:
    """Answers when it is let go, and remembers how many were asked together, and how many at once."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.go, self.begun = threading.Event(), threading.Event()
        self.inside = self.most = 0

    def __call__(self, asked: object, given: Question) -> Answers:
        """The answers, once that is allowed."""
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.asked.append(len(given.queries))
        self.begun.set()
        assert self.go.wait(60)
        self.inside -= 1
        return answered(asked, given)


def while_held(together: Together[Any], held: Any, works: list[Callable[[], Any]]) -> list[Any]:
    """What these come to that are asked while the first question is computed."""
    first = threading.Thread(target=lambda: together.ask("store", question(49), held))
    first.start()
    assert held.begun.wait(60)

    def let_go() -> None:
        while len(together._waiting) < len(works):
            threading.Event().wait(0.001)
        held.go.set()

    found = at_once([*works, let_go])[:-1]
    first.join(60)
    return found


def test_those_who_wait_are_answered_together() -> None:
    """Each by its own answer; one thread computes at a time."""
    together: Together[Any] = Together()
    held = Held()
    works = [lambda place=place: together.ask("store", question(place), held) for place in range(20)]
    found = while_held(together, held, works)
    assert held.asked == [1, 20]
    assert held.most == 1
    for place, one in enumerate(found):
        alone = answered(None, question(place))
        assert len(one) == 1
        assert one.rows.tolist() == alone.rows.tolist()
        assert one.value == pytest.approx(alone.value, abs=1e-4)  # logits of 300 in float32


def test_threads_that_ask_again_are_waited_for() -> None:
    """Two threads that go on asking are answered by batches of two, also where each has to come back first."""
    together: Together[Any] = Together(share=200.0)
    asked: list[int] = []

    def working(_: object, given: Question) -> Answers:
        asked.append(len(given.queries))
        threading.Event().wait(0.005)  # what an answer takes
        return answered(_, given)

    def one_after_another(places: range) -> None:
        for place in places:
            together.ask("store", question(place), working)

    at_once([lambda: one_after_another(range(20)), lambda: one_after_another(range(20, 40))])
    assert sum(asked) == 40
    assert asked.count(2) >= 15


def test_threads_that_do_not_ask_again_are_waited_for_only_once() -> None:
    """After that the next questions do not wait for anybody."""
    together: Together[Any] = Together()
    held = Held()
    while_held(together, held, [lambda: together.ask("store", question(0), held)])
    assert len(together.ask("store", question(1), answered)) == 1
    assert together._crowd == 1


def test_each_is_answered_by_itself_where_that_is_wanted() -> None:
    """One thread after another, bit for bit as if nobody else had asked."""
    together: Together[Any] = Together(1)
    held = Held()
    works = [lambda place=place: together.ask("store", question(place), held) for place in range(20)]
    found = while_held(together, held, works)
    assert held.asked == [1] * 21
    assert held.most == 1
    for place, one in enumerate(found):
        assert one.value.tobytes() == answered(None, question(place)).value.tobytes()


def test_what_is_asked_otherwise_is_not_mixed() -> None:
    """Another temperature, number of contributors or commit is another batch."""
    together: Together[Any] = Together()
    held = Held()
    others = [{"show": 3}, {"show": 4}, {"tolerance": 0.5}, {"k": 2}]
    works: list[Callable[[], Any]] = [
        lambda place=place, more=more: together.ask("store", question(place, **more), held)
        for place, more in enumerate(others * 2)
    ]
    works.append(lambda: together.ask("another commit", question(9), held))
    found = while_held(together, held, works)
    assert sorted(held.asked) == [1, 1, 2, 2, 2, 2]
    assert [one.rows.shape[1] for one in found] == [3, 4, 10, 10, 3, 4, 10, 10, 10]


def test_an_error_is_that_of_its_own_thread() -> None:
    """The others get their answers."""
    together: Together[Any] = Together()
    held = Held()

    def ask(asked: object, given: Question) -> Answers:
        found = held(asked, given)
        if (given.queries == KEYS[3]).all(1).any():
            raise SoftKVError("this one cannot be asked")
        return found

    works = [lambda place=place: together.ask("store", question(place), ask) for place in range(8)]
    found = while_held(together, held, works)
    assert [place for place, one in enumerate(found) if isinstance(one, SoftKVError)] == [3]
    for place in (0, 1, 2, 4, 7):
        assert found[place].rows.tolist() == answered(None, question(place)).rows.tolist()


def test_an_interrupt_leaves_nobody_waiting() -> None:
    """Those whose questions the interrupted thread had taken ask by themselves."""
    together: Together[Any] = Together()
    held = Held()

    def ask(asked: object, given: Question) -> Answers:
        if len(given.queries) > 1:
            raise KeyboardInterrupt
        return held(asked, given)

    works = [lambda place=place: together.ask("store", question(place), ask) for place in range(8)]
    found = while_held(together, held, works)
    assert sum(isinstance(one, KeyboardInterrupt) for one in found) == 1
    assert sum(isinstance(one, Answers) for one in found) == 7
    assert together.ask("store", question(0), answered).rows[0, 0] == answered(None, question(0)).rows[0, 0]


def test_what_is_asked_in_the_middle_of_an_answer_does_not_wait_for_it() -> None:
    """A function of the caller that compares may look something up itself."""
    together: Together[Any] = Together()

    def ask(asked: object, given: Question) -> Answers:
        together.ask("store", question(1), answered)
        return answered(asked, given)

    (found,) = at_once([lambda: together.ask("store", question(0), ask)])
    assert found.rows.tolist() == answered(None, question(0)).rows.tolist()


def test_batches_masks_and_filters_do_not_wait() -> None:
    """They are computed beside the others."""
    together: Together[Any] = Together()
    held = Held()
    batch = Question(KEYS[:3], "dot", 1.0)
    first = threading.Thread(target=lambda: together.ask("store", question(49), held))
    first.start()
    assert held.begun.wait(60)
    assert len(together.ask("store", batch, answered)) == 3
    assert len(together.ask("store", question(0, where={"a": 1}), answered)) == 1
    held.go.set()
    first.join(60)


@pytest.mark.parametrize("kind", ["number", "label", "vector"])
def test_threads_get_what_one_thread_gets(kind: str, tmp_path: Path) -> None:
    """A store tells all of them all that an answer says."""
    rng = np.random.default_rng(1)
    keys = rng.standard_normal((3000, 16)).astype(np.float32)
    values = {"number": keys[:, 0] * 5.0, "label": [f"class {one}" for one in keys.argmax(1)], "vector": keys[:, :3]}
    with softkv.open(tmp_path / "s", value=kind, temperature=0.1) as db:
        db.add(vectors=keys, values=values[kind])
        queries = rng.standard_normal((64, 16)).astype(np.float32)
        expected = [db.lookup(one).to_dict() for one in queries]
        works = [lambda start=start: [db.lookup(one).to_dict() for one in queries[start::8]] for start in range(8)]
        for start, found in enumerate(at_once(works)):
            for one, other in zip(found, expected[start::8], strict=True):
                assert one.keys() == other.keys()
                assert one["value"] == pytest.approx(other["value"], abs=1e-5)
                assert one["error"] == pytest.approx(other["error"], rel=0.5)
                assert [c["key"] for c in one["contributors"]] == [c["key"] for c in other["contributors"]]


@pytest.mark.parametrize("indexed", [False, True])
def test_a_handle_computes_one_lookup_at_a_time(indexed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads ask, by a scan and by the index: no more threads work than one lookup keeps busy."""
    count_as_large(monkeypatch)
    module, name = (lists, "calibrated") if indexed else (scan, "lookup")
    real, inside, most = getattr(module, name), list[int](), list[int]()
    keys = np.random.default_rng(2).standard_normal((1000, 4)).astype(np.float32)
    with softkv.open(tmp_path / "s", temperature=0.5) as db:
        db.add(vectors=keys, values=keys[:, 0].astype(float))
        if indexed:
            db.build_index()

        def held(*given: Any, **options: Any) -> Any:
            inside.append(1)
            while not most and len(inside) == 1 and len(db._findings.together._waiting) < 7:  # until all have asked
                threading.Event().wait(0.001)
            most.append(len(inside))
            found = real(*given, **options)
            inside.pop()
            return found

        monkeypatch.setattr(module, name, held)
        found = at_once([lambda key=key: db.lookup(key, tolerance=0.3) for key in keys[:8]])
    assert most == [1, 1]
    assert {one.error_kind for one in found} - {"exact"} == ({"calibrated"} if indexed else set())


ASKED_BY_A_HANDLER = """
import signal, sys
import numpy as np, softkv
asked = []
def handler(*_):
    asked.append(db.lookup(np.ones(64)).value)
signal.signal(signal.SIGALRM, handler)
for number in range(20):
    with softkv.open(sys.argv[1], "r") as db:
        signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.002 * number)
        found = db.lookup(np.ones(64)).value
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert {*asked, found} == {found}, asked
assert asked
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no timers that signal")
def test_a_signal_handler_may_ask_during_the_first_lookup(tmp_path: Path) -> None:
    """While checksums are compared and the temperature by rule is found, a handler gets the same answer."""
    keys = np.random.default_rng(1).standard_normal((100_000, 64)).astype(np.float32)
    with softkv.open(tmp_path / "s", compatibility="dot", value="number") as db:
        db.add(vectors=keys, values=np.arange(len(keys)) % 10.0)
    subprocess.run([sys.executable, "-c", ASKED_BY_A_HANDLER, str(tmp_path / "s")], check=True, timeout=60)
