"""The queue of questions: what waits is asked together, one bad question fails alone, and nobody waits for ever."""

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from softkv.database.handle import StoreView
from softkv.doors.server import lane as lane_module
from softkv.doors.server.app import make_app
from softkv.doors.server.lane import MOST, Lane
from softkv.doors.server.served import Crew, Served, Stores
from softkv.errors import Busy, DeadlinePassed, InputError

from .databases import filled, vectors_of

QUERIES = vectors_of(200, seed=2)


class Asked:
    """Doubles numbers, and keeps the calls; the first waits until it is let go."""

    def __init__(self) -> None:
        self.calls: list[list[float]] = []
        self.began, self.gate = threading.Event(), threading.Event()

    def __call__(self, questions: Sequence[Any]) -> list[float]:
        """The answers to some questions; a negative one is refused."""
        self.calls.append(list(questions))
        self.began.set()
        assert self.gate.wait(30)
        if min(questions) < 0:
            raise InputError("expected a number from 0 on")
        return [2.0 * one for one in questions]


@contextmanager
def a_lane(**options: Any) -> Iterator[Lane]:
    """A lane with a thread of its own."""
    with ThreadPoolExecutor(1) as executor:
        yield Lane(executor, **options)


async def here() -> bool:
    """A client that has not gone."""
    return False


async def gone() -> bool:
    """A client that has gone."""
    return True


async def until(fact: Callable[[], bool]) -> None:
    """Let the loop run until something is so."""
    for _ in range(30_000):
        if fact():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


async def behind(lane: Lane, asked: Asked, *later: Callable[[], Awaitable[Any]]) -> list[Any]:
    """What questions come to that wait while a first one is asked."""
    first = asyncio.ensure_future(lane.ask("first", asked, 0.0, 30, here))
    await until(asked.began.is_set)
    waiting = [asyncio.ensure_future(one()) for one in later]
    await until(lambda: len(lane) + sum(one.done() for one in waiting) == len(later))
    asked.gate.set()
    return await asyncio.gather(first, *waiting, return_exceptions=True)


def test_what_waits_is_asked_in_one_call() -> None:
    """The first is asked at once, by itself; those who came meanwhile, together."""
    asked = Asked()
    with a_lane() as lane:
        later = [lambda n=n: lane.ask("same", asked, n, 30, here) for n in (1.0, 2.0, 3.0)]
        assert asyncio.run(behind(lane, asked, *later)) == [0.0, 2.0, 4.0, 6.0]
    assert asked.calls == [[0.0], [1.0, 2.0, 3.0]]


def test_other_options_are_asked_in_a_call_of_their_own() -> None:
    """Calls come in the order in which the first of each set came."""
    asked = Asked()
    with a_lane() as lane:
        told = [("a", 1.0), ("b", 2.0), ("a", 3.0), ("b", 4.0)]
        later = [lambda options=options, n=n: lane.ask(options, asked, n, 30, here) for options, n in told]
        assert asyncio.run(behind(lane, asked, *later)) == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert asked.calls == [[0.0], [1.0, 3.0], [2.0, 4.0]]


def test_a_crowd_of_one_set_does_not_keep_another_waiting() -> None:
    """After a call of at most so many, the next set has its turn."""
    asked = Asked()
    with a_lane(most=2) as lane:
        told = [*(("crowd", float(n)) for n in range(1, 6)), ("lonely", 9.0)]
        later = [lambda options=options, n=n: lane.ask(options, asked, n, 30, here) for options, n in told]
        asyncio.run(behind(lane, asked, *later))
    assert asked.calls == [[0.0], [1.0, 2.0], [9.0], [3.0, 4.0], [5.0]]


def test_one_bad_question_fails_alone() -> None:
    """The others of its call are answered."""
    asked = Asked()
    with a_lane() as lane:
        later = [lambda n=n: lane.ask("same", asked, n, 30, here) for n in (1.0, 2.0, -3.0, 4.0, 5.0)]
        *found, bad, four, five = asyncio.run(behind(lane, asked, *later))
    assert [*found, four, five] == [0.0, 2.0, 4.0, 8.0, 10.0]
    assert isinstance(bad, InputError)


def test_who_went_away_is_not_asked_for() -> None:
    """One hung up while waiting, and one has no time left."""
    asked = Asked()
    with a_lane(patience=0.0) as lane:
        told = [(1.0, here, 30), (2.0, gone, 30), (3.0, here, 0.0), (4.0, here, 30)]
        later = [lambda n=n, is_gone=is_gone, s=s: lane.ask("same", asked, n, s, is_gone) for n, is_gone, s in told]

        async def all_of_them() -> list[Any]:
            first = asyncio.ensure_future(lane.ask("first", asked, 0.0, 30, here))
            await until(asked.began.is_set)
            waiting = [asyncio.ensure_future(one()) for one in later]
            await until(lambda: waiting[2].done())
            asked.gate.set()
            return await asyncio.gather(first, *waiting, return_exceptions=True)

        zero, one, left, late, four = asyncio.run(all_of_them())
    assert [zero, one, four] == [0.0, 2.0, 8.0]
    assert isinstance(left, DeadlinePassed)
    assert isinstance(late, DeadlinePassed)
    assert asked.calls == [[0.0], [1.0, 4.0]]


def test_a_full_queue_refuses() -> None:
    """The refusal says when to ask again; those who wait are answered."""
    asked = Asked()
    with a_lane(room=2) as lane:
        later = [lambda n=n: lane.ask("same", asked, n, 30, here) for n in (1.0, 2.0, 3.0)]
        *found, refused = asyncio.run(behind(lane, asked, *later))
    assert found == [0.0, 2.0, 4.0]
    assert isinstance(refused, Busy)
    assert refused.after == 1.0


def test_the_deadline_passes_for_a_question_that_is_being_asked() -> None:
    """Its client is told so, and the lane goes on."""
    asked = Asked()

    async def late() -> None:
        with pytest.raises(DeadlinePassed, match="did not come in time"):
            await lane.ask("same", asked, 1.0, 0.001, here)
        asked.gate.set()
        assert await lane.ask("same", asked, 2.0, 30, here) == 4.0

    with a_lane() as lane:
        asyncio.run(late())


def test_a_lane_without_threads_fails_its_questions() -> None:
    """It does so when the server is at its end."""

    async def asked() -> None:
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        with pytest.raises(RuntimeError, match="shutdown"):
            await Lane(executor).ask("same", Asked(), 1.0, 30, here)

    asyncio.run(asked())


def test_a_job_that_has_not_begun_in_time_is_never_begun() -> None:
    """A job that has not begun in time never begins: a write that its client was told is late does not happen."""
    gate, done = threading.Event(), []

    async def late() -> None:
        crew = Crew("writes", 1)
        first = asyncio.ensure_future(crew.run(lambda: gate.wait(30), 30))
        await until(lambda: len(crew) == 1)
        with pytest.raises(DeadlinePassed):
            await crew.run(lambda: done.append(1), 0.001)
        gate.set()
        assert await first
        assert await crew.run(lambda: "next", 30) == "next"
        assert len(crew) == 0
        crew.executor.shutdown()

    asyncio.run(late())
    assert done == []


def test_a_crew_takes_so_many_jobs_and_no_more() -> None:
    """The next is refused, and may come again."""
    gate = threading.Event()

    async def full() -> None:
        crew = Crew("reads", 1, room=2)
        waiting = [asyncio.ensure_future(crew.run(lambda: gate.wait(30), 30)) for _ in range(2)]
        await until(lambda: len(crew) == 2)
        with pytest.raises(Busy):
            await crew.run(lambda: True, 30)
        gate.set()
        assert all(await asyncio.gather(*waiting))
        crew.executor.shutdown()

    asyncio.run(full())


def test_jobs_that_were_given_up_count_until_a_thread_comes_to_them() -> None:
    """Jobs that were given up count until a thread comes to them; what they hold is let go of at once."""
    gate = threading.Event()

    async def given_up() -> None:
        crew = Crew("reads", 1, room=2)
        first = asyncio.ensure_future(crew.run(lambda: gate.wait(30), 30))
        await until(lambda: len(crew) == 1)
        late = Asked()
        held = weakref.ref(late)
        with pytest.raises(DeadlinePassed):
            await crew.run(partial(late, [1.0]), 0.001)
        del late
        with pytest.raises(Busy):
            await crew.run(lambda: True, 30)
        await until(lambda: held() is None)
        gate.set()
        assert await first
        await until(lambda: len(crew) == 0)
        crew.executor.shutdown()

    asyncio.run(given_up())


class Held:
    """A store that is served, whose next call of a lookup waits until it is let go; counts the queries of each call."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        filled(path, "number").close()
        self.stores = Stores.open([path])
        self.served: Served = next(iter(self.stores))
        self.calls: list[int] = []
        self.began, self.gate = threading.Event(), threading.Event()
        asked = StoreView.lookup

        def lookup(view: StoreView, query: Any, **options: Any) -> Any:
            self.calls.append(len(query) if np.ndim(query) == 2 else 1)
            self.began.set()
            assert self.gate.wait(30)
            return asked(view, query, **options)

        monkeypatch.setattr(StoreView, "lookup", lookup)

    def client(self) -> httpx.AsyncClient:
        """A client of an application over it."""
        return httpx.AsyncClient(transport=httpx.ASGITransport(make_app(self.stores)), base_url="http://server")

    def post(self, client: httpx.AsyncClient, document: Any, **headers: str) -> "asyncio.Task[httpx.Response]":
        """A lookup that is on its way."""
        return asyncio.ensure_future(client.post("/v1/fruit/lookup", json=document, headers=headers))


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """A store whose first lookup waits."""
    found = Held(tmp_path / "fruit", monkeypatch)
    yield found
    found.gate.set()
    found.stores.close()


def test_lookups_of_many_clients_are_one_call_of_the_handle(held: Held) -> None:
    """A call has at most 64 queries; those who ask to be alone are."""

    async def asked() -> None:
        async with held.client() as client:
            first = held.post(client, {"query": QUERIES[0].tolist()})
            await until(held.began.is_set)
            waiting = [held.post(client, {"query": one.tolist()}) for one in QUERIES[1:101]]
            waiting.append(held.post(client, {"query": QUERIES[101].tolist()}, **{"softkv-alone": "1"}))
            await until(lambda: len(held.served.lane) == 101)
            held.gate.set()
            assert all(reply.status_code == 200 for reply in await asyncio.gather(first, *waiting))

    asyncio.run(asked())
    assert held.calls == [1, MOST, 1, 100 - MOST]


def test_a_bad_query_of_a_joint_call_is_the_only_one_refused(held: Held) -> None:
    """A query without a direction, among queries that have one."""

    async def asked() -> list[httpx.Response]:
        async with held.client() as client:
            first = held.post(client, {"query": QUERIES[0].tolist(), "compatibility": "cosine"})
            await until(held.began.is_set)
            queries = [*QUERIES[1:6].tolist(), [0.0] * 5, *QUERIES[6:9].tolist()]
            waiting = [held.post(client, {"query": one, "compatibility": "cosine"}) for one in queries]
            await until(lambda: len(held.served.lane) == 9)
            held.gate.set()
            return list(await asyncio.gather(first, *waiting))

    found = asyncio.run(asked())
    assert [one.status_code for one in found] == [200] * 6 + [422] + [200] * 3
    assert found[6].json()["error"] == "ZeroVector"


def test_a_late_answer_is_a_504_and_a_full_queue_a_429(held: Held) -> None:
    """Each has the words that say what to do."""

    async def asked() -> None:
        held.served.lane._room = 1
        async with held.client() as client:
            late = held.post(client, {"query": QUERIES[0].tolist()}, **{"softkv-deadline": "0.05"})
            await until(held.began.is_set)
            waiting = held.post(client, {"query": QUERIES[1].tolist()})
            await until(lambda: len(held.served.lane) == 1)
            busy = await held.post(client, {"query": QUERIES[2].tolist()})
            assert (busy.status_code, busy.json()["error"], busy.headers["retry-after"]) == (429, "Busy", "1")
            passed = await late
            assert (passed.status_code, passed.json()["error"]) == (504, "DeadlinePassed")
            held.gate.set()
            assert (await waiting).status_code == 200

    asyncio.run(asked())


def test_long_work_of_a_request_that_was_cancelled_ends(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the server as well, which does not wait until all deadlines have passed."""
    ended = threading.Event()

    def endless(*_: Any, progress: Callable[[int, int], None], **__: Any) -> None:
        held.began.set()
        try:
            while not held.gate.wait(0.001):
                progress(0, 1)
        finally:
            ended.set()

    monkeypatch.setattr(StoreView, "evaluate", endless)

    async def cancelled() -> None:
        async with held.client() as client:
            document = {"queries": QUERIES[:2].tolist(), "targets": [1.0, 2.0]}
            asked = asyncio.ensure_future(client.post("/v1/fruit/evaluate", json=document))
            await until(held.began.is_set)
            asked.cancel()
            await until(ended.is_set)

    asyncio.run(cancelled())
    assert not held.gate.is_set()


def test_a_client_that_hangs_up_while_it_waits_is_not_asked_for(held: Held) -> None:
    """What it asked is not in the next call."""
    app, document = make_app(held.stores), b'{"query": [1, 2, 3, 4, 5]}'
    held.served.lane._patience = 0.0

    async def raw(left: asyncio.Event) -> None:
        parts = iter([{"type": "http.request", "body": document, "more_body": False}])

        async def receive() -> Any:
            for part in parts:
                return part
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            """Nothing is there any more to send to."""

        headers = [(b"content-type", b"application/json")]
        path = "/v1/fruit/lookup"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}
        await app(scope | {"query_string": b"", "http_version": "1.1", "scheme": "http"}, receive, send)

    async def asked() -> None:
        async with held.client() as client:
            first = held.post(client, {"query": QUERIES[0].tolist()})
            await until(held.began.is_set)
            left, stayed = asyncio.Event(), asyncio.Event()
            gone = asyncio.ensure_future(raw(left))
            others = [asyncio.ensure_future(raw(stayed)) for _ in range(2)]
            await until(lambda: len(held.served.lane) == 3)
            left.set()
            held.gate.set()
            await asyncio.gather(first, *others, gone)

    asyncio.run(asked())
    assert held.calls == [1, 2]


async def clients(lane: Lane, asked: Asked, *times: int) -> list[int]:
    """How many questions each call had, of clients that ask again when answered; the first is asked before the rest."""

    async def client(number: int, count: int) -> None:
        for _ in range(count):
            assert await lane.ask("same", asked, float(number), 30, here) == 2.0 * number

    first = asyncio.ensure_future(client(0, times[0]))
    await until(asked.began.is_set)
    rest = [asyncio.ensure_future(client(number, count)) for number, count in enumerate(times[1:], 1)]
    await until(lambda: len(lane) == len(rest))
    asked.gate.set()
    await asyncio.gather(first, *rest)
    return [len(one) for one in asked.calls]


def test_those_who_were_just_answered_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They mostly ask again, so none of them is asked alone while the others are about to."""
    monkeypatch.setattr(lane_module, "SHARE", 1e9)
    with a_lane() as lane:
        assert asyncio.run(clients(lane, Asked(), 4, 3, 3, 3)) == [1, 4, 4, 4]
    with a_lane(most=2) as lane:
        assert asyncio.run(clients(lane, Asked(), 3, 2, 2)) == [1, 2, 2, 2]


def test_they_are_not_waited_for_long() -> None:
    """A client that asks once more than the others is answered, though they do not ask again."""
    with a_lane() as lane:
        assert sum(asyncio.run(clients(lane, Asked(), 1, 5, 1, 1))) == 8


def test_a_single_client_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """There was nobody else to wait for."""
    monkeypatch.setattr(lane_module, "SHARE", 1e9)
    with a_lane() as lane:
        assert asyncio.run(clients(lane, Asked(), 5)) == [1, 1, 1, 1, 1]
