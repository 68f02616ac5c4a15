"""Servers that end by themselves when nobody asks them anything: `softkv serve --idle-end`."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import softkv
from softkv.doors.server.gate import Gate
from softkv.doors.server.metrics import Metrics
from softkv.doors.server.served import Stores
from softkv.storage.disk.announced import SERVER
from tests.commands import ran
from tests.servers import LONGEST, films, served
from tests.test_server_gate import OURS, RULES, WRITER

LATER = 1000.0  # seconds


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    """One store, as a server has it."""
    found = Stores.open([films(tmp_path / "films.softkv")])
    try:
        yield found
    finally:
        found.close()


def later(stores: Stores, route: str = "", status: int = 200) -> float:
    """For how long nothing was asked, when much time has gone by, and then perhaps a request came."""
    metrics = Metrics(stores)
    metrics._used -= LATER
    if route:
        metrics.count({"method": "GET", "softkv.route": route}, status, 0.1)
    return metrics.idle()


def test_a_server_ends_when_nothing_is_asked(tmp_path: Path) -> None:
    """It ends in order: what was written is there, SERVER is not, and others may write."""
    store = films(tmp_path / "films.softkv")
    with served(store, options=("--idle-end", "1")) as server:
        added = {"keys": ["new"], "values": [9.0], "vectors": [[1.0, 9.0]]}
        assert server.ask("POST", "/v1/films/items", added)[0] == 200
        assert server.process.wait(LONGEST) == 0
        assert "Traceback" not in server.log()
    assert not (store / SERVER).exists()
    with softkv.open(store, "w") as db:
        assert db["new"] == 9.0
        assert db.check().ok


def test_requests_count_and_probes_do_not(stores: Stores) -> None:
    """Requests without a token do not count either: they come to no route."""
    assert later(stores) >= LATER
    assert later(stores, "/v1/{store}/lookup") < 1
    assert later(stores, "/v1/{store}/lookup", 422) < 1
    for route in ("/health", "/ready", "/metrics", "none"):
        assert later(stores, route) >= LATER


def test_a_request_that_runs_is_waited_for(stores: Stores) -> None:
    """It may take any time; the time of the server begins when it is over."""
    metrics = Metrics(stores)
    metrics._used -= LATER
    metrics.asked = 1
    assert metrics.idle() < 1
    metrics.asked = 0
    assert metrics.idle() < 1


@pytest.mark.parametrize(
    ("path", "token", "waits"),
    [("/v1/stores", WRITER, True), ("/v1/stores", "x", False), ("/", "", False), ("/ready", "", False)],
)
def test_only_a_request_with_a_token_is_waited_for(stores: Stores, path: str, token: str, waits: bool) -> None:
    """While others are answered, however slowly they take it, the time goes on."""
    metrics, idle = Metrics(stores), list[float]()
    metrics._used -= LATER

    async def sends(*_: Any) -> None:
        idle.append(metrics.idle())

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b""}
    headers = {**OURS, "authorization": f"Bearer {token}"}.items()
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers]
    asyncio.run(Gate(app, RULES, metrics)(scope, sends, sends))
    assert (idle[0] < 1) == waits
    assert (metrics.asked, metrics.running) == (0, 0)


def test_a_snapshot_on_loan_is_waited_for(stores: Stores) -> None:
    """The server does not end before it is given back."""
    lease = stores["films"].leases.take("token")
    assert later(stores) < 1
    stores["films"].leases.end(lease.name, "token")
    assert later(stores) >= LATER


def test_a_job_is_waited_for(stores: Stores) -> None:
    """A server waits for its jobs before it ends, also for one that has not begun."""
    jobs, free = stores["films"].jobs, threading.Event()
    jobs._lanes[False].submit(free.wait, LONGEST)
    job = jobs.start("check", {})
    assert later(stores) < 1
    free.set()
    jobs._lanes[False].submit(int).result(LONGEST)
    assert job.state == "done"
    assert later(stores) >= LATER


@pytest.mark.parametrize("given", ["0", "-1", "nan", "soon"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, given: str) -> None:
    """Nothing is served then."""
    for command in (["serve", films(tmp_path / "films.softkv")], ["mcp", "--db", tmp_path / "films.softkv"]):
        done = ran(*command, "--idle-end", given)
        assert (done.code, "--idle-end" in done.err) == (2, True)


def test_a_quiet_server_tells_no_requests(tmp_path: Path) -> None:
    """It tells where it is, and nothing else."""
    with served(films(tmp_path / "films.softkv"), options=("--quiet",)) as server:
        assert server.ask("GET", "/v1/stores")[0] == 200
        assert server.end() == 0
        assert server.log() == "serving films; Ctrl-C ends it\n"
