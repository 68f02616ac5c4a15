"""A server that is killed at any moment loses nothing that it acknowledged, and writes nothing twice.

Clients add items without keys and delete some of them, each write under the name of a batch, and send it again to the
next server until one has answered. So every value is there once, or gone, as it was acknowledged.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

import softkv
from softkv.doors.server.running import Settings, serve
from tests.crash.children import Child, Say
from tests.limits import fill, small_disk
from tests.servers import films, served

pytestmark = pytest.mark.slow

CLIENTS, TOGETHER = 3, 3  # items of a batch
BUSY = 12  # acknowledgements within which a server is killed
PATIENCE = 60.0
TOKEN = "a-token-of-tests-and-of-nobody-else"


def live(folder: Path, say: Say) -> None:
    """One server after the other, until one ends by itself."""
    settings = Settings(port=0, token_file=str(folder / "token"))
    while True:
        pid = os.fork()
        if not pid:
            serve([str(folder / "fruit")], settings, lambda url, _: say("began", os.getpid(), url))
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        say("ended", status)
        if os.WIFEXITED(status):
            return


@dataclass
class Toll:
    """The server that lives now, and what clients were told."""

    life: int = 0
    url: str = ""
    answers: int = 0
    repeated: int = 0  # requests that broke off, and were sent again
    failures: list[str] = field(default_factory=list)
    closing: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, **facts: Any) -> None:
        """Something is otherwise by now."""
        with self.changed:
            for name, value in facts.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def answered(self, failure: str | None = None) -> None:
        """A client has an answer."""
        with self.changed:
            self.answers += 1
            if failure is not None:
                self.failures.append(failure)
            self.changed.notify_all()

    def wait(self, answers: int) -> None:
        """Until there are so many answers."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.answers >= answers or self.failures, PATIENCE)
            assert not self.failures, self.failures


class Client(threading.Thread):
    """Adds and deletes, one batch after the other, each until it is acknowledged."""

    def __init__(self, number: int, toll: Toll) -> None:
        super().__init__(daemon=True)
        self.number, self.toll, self.expected = number, toll, list[float]()
        self.http = httpx.Client(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENCE)

    def run(self) -> None:
        """Work until the test is over; what is begun is finished."""
        batch, before = 0, ""
        try:
            while not self.toll.closing:
                values = [float(self.number * 10**6 + batch * 10 + one) for one in range(TOGETHER)]
                vectors = [[1.0, value % 7, value % 3] for value in values]
                added = self.sent(
                    "items", {"values": values, "vectors": vectors, "batch": f"{self.number} adds {batch}"}
                )
                self.expected += values
                if before:
                    self.sent("items/delete", {"keys": [before], "batch": f"{self.number} deletes {batch}"})
                    self.expected.remove(values[0] - 10)
                before, batch = f"#{added['first_number']}", batch + 1
        except Exception as error:
            self.toll.answered(f"{type(error).__name__}: {error}")
        finally:
            self.http.close()

    def sent(self, path: str, document: dict[str, Any]) -> Any:
        """What a server answers to a write, be it the next one."""
        while True:
            life, url = self.toll.life, self.toll.url
            try:
                reply = self.http.post(f"{url}v1/fruit/{path}", json=document)
            except httpx.TransportError:
                with self.toll.changed:
                    self.toll.repeated += 1
                    assert self.toll.changed.wait_for(lambda life=life: self.toll.life > life, PATIENCE)
                continue
            assert reply.status_code == 200, reply.text
            self.toll.answered()
            return reply.json()


@contextmanager
def lives(folder: Path) -> Iterator[Child]:
    """The process that starts servers; nothing of it is left."""
    (folder / "token").touch(0o600)
    (folder / "token").write_text(TOKEN)
    with softkv.open(folder / "fruit", value="number", compatibility="gaussian"):
        pass
    with Child(lambda say: live(folder, say)) as child:
        yield child


def test_a_killed_server_loses_nothing_and_writes_nothing_twice(seed: int, thorough: bool, tmp_path: Path) -> None:
    """It may have been doing anything; clients go on with the next one."""
    random, toll, kills = Random(f"{seed} server"), Toll(), 1000 if thorough else 3
    clients = [Client(number, toll) for number in range(CLIENTS)]
    pid: int | None = None
    with lives(tmp_path) as child:
        try:
            for life in range(1, kills + 2):
                began = child.hear(PATIENCE)
                assert began is not None
                assert began[0] == "began", began
                _, pid, url = began
                toll.note(life=life, url=url)
                if life == 1:
                    for client in clients:
                        client.start()
                toll.wait(toll.answers + random.randrange(1, BUSY))
                if life > kills:
                    break
                _spend(random.random() * 0.01)
                os.kill(pid, signal.SIGKILL)
                assert child.hear() == ["ended", signal.SIGKILL]
            toll.note(closing=True)
            for client in clients:
                client.join(PATIENCE)
                assert not client.is_alive()
            assert not toll.failures, toll.failures
            os.kill(pid, signal.SIGTERM)
            assert child.hear() == ["ended", 0]
        finally:
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    print(f"{toll.answers} answers, {toll.repeated} requests broke off")
    assert toll.repeated >= kills  # else the kills fall between the requests and test nothing
    with softkv.open(tmp_path / "fruit", "r") as db:
        assert sorted(db.values()) == sorted(value for client in clients for value in client.expected)
        assert db.check().ok


def _spend(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_a_server_on_a_full_disk_says_so_and_goes_on(tmp_path: Path) -> None:
    """What does not fit is refused whole; what is there is read, and when there is room again, more is written."""
    items = {"values": [5.0] * 2000, "vectors": [[1.0, float(one)] for one in range(2000)], "batch": "large"}
    with small_disk(tmp_path / "disk", "8m") as disk, served(films(disk / "films")) as server:
        fill(disk / "filler", 1 << 12)
        for _ in range(2):
            status, problem = server.ask("POST", "/v1/films/items", items)
            assert (status, problem["error"]) == (507, "StorageFull")
            assert str(tmp_path) not in problem["detail"]
        assert server.ask("POST", "/v1/films/items/get", {"keys": ["k1"]})[1]["values"] == [1.0]
        (disk / "filler").unlink()
        for _ in range(2):
            status, added = server.ask("POST", "/v1/films/items", items)
            assert (status, added["count"]) == (200, 2000)
        assert server.ask("GET", "/v1/films/info")[1]["items"] == 2002
        assert server.end() == 0
        with softkv.open(disk / "films", "r") as db:
            assert db.check().ok


def test_an_export_that_does_not_fit_the_disk_is_refused_and_leaves_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun takes no room then, and a smaller one is sent."""
    with small_disk(tmp_path / "disk", "256k") as disk:
        monkeypatch.setenv("TMPDIR", str(disk))
        with served(films(tmp_path / "films", 20_000), films(tmp_path / "few")) as server:
            for name in ("jsonl", "npz", "csv"):
                status, problem = server.ask("GET", f"/v1/films/export?format={name}")
                assert (status, problem["error"]) == (507, "StorageFull"), name
                assert str(tmp_path) not in problem["detail"]
            assert server.ask("GET", "/v1/few/export?format=csv")[0] == 200
            assert server.ask("GET", "/v1/films/info")[1]["items"] == 20_000
            assert server.end() == 0
