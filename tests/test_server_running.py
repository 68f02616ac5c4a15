"""Servers in processes of their own, on real sockets: how they begin, what slow clients can do, how they end."""

import http.client
import itertools
import json
import os
import platform
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import softkv
from softkv.doors import wire
from softkv.doors.server import endpoints, gate, items, jobs, lane, leases, protocol
from softkv.doors.server.app import ENDPOINTS
from softkv.doors.server.running import Settings, serve
from softkv.doors.server.served import HELD
from softkv.errors import InputError, ServerUnreachable, StoreError, StoreLocked, StoreNotFound
from softkv.storage.disk.announced import SERVER, announced
from tests.commands import ran
from tests.servers import LONGEST, Running, asked, eventually, films, is_closed, served

ROOT = Path(__file__).parents[1]
HEAD = "POST /v1/films/items HTTP/1.1\r\nHost: {0.host}:{0.port}\r\nAuthorization: Bearer {0.token}\r\n"


def head(server: Running, *more: str) -> bytes:
    """The headers of an add, with the token."""
    return (HEAD.format(server) + "".join(f"{line}\r\n" for line in more)).encode()


LIMITS = [
    f"At most {protocol.CONNECTIONS} connections are open",
    f"more slowly than {protocol.PACE >> 10} KiB a second",
    f"{protocol.UNTAKEN >> 20} MiB of them wait",
    f"more than {wire.LONGEST_BODY >> 20} MiB are refused by their length",
    f"headers of more than {gate.LONGEST_HEAD >> 10} KiB",
    f"at most {wire.MOST_VALUES:,} values of JSON",
    f"more than about {endpoints.LARGEST_REPLY >> 20} MiB",
    f"({endpoints.SECONDS:g} by default, at most {endpoints.LONGEST:g})",
    f"at most {lane.MOST} queries of the same options",
    f"At most {lane.ROOM:,} questions wait for a store, and {HELD >> 20} MiB of bodies for a server",
    f"holds at most {items.MOST:,} items",
    f"{items.SEARCHED:,} items are looked at for a page",
    f"which may hold {leases.MOST}",
    f"The last {jobs.FINISHED} that are over are remembered",
]


@pytest.mark.parametrize("words", LIMITS)
def test_limits_are_those_that_the_page_names(words: str) -> None:
    """docs/server.md states each limit of the server with the number that the code has."""
    assert words in " ".join((ROOT / "docs" / "server.md").read_text(encoding="utf-8").split())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store to serve."""
    return films(tmp_path / "films.softkv")


def test_a_store_is_served_under_the_name_of_its_directory(store: Path) -> None:
    """The URL and the token are printed, and stand in the store for as long as it is served."""
    with served(store) as server:
        assert server.ask("GET", "/v1/stores")[1][0]["name"] == "films"
        found = announced(str(store))
        assert found is not None
        assert found.url == f"http://127.0.0.1:{server.port}/films"
        assert (found.token, found.pid) == (server.token, server.process.pid)
        assert server.ask("GET", "/ready") == (204, "")
        assert server.end() == 0
    assert SERVER not in os.listdir(store)


def test_headers_that_do_not_end_are_not_waited_for(store: Path) -> None:
    """Nothing may come, or one byte after another."""
    with served(store, patience=1.0) as server, server.connection() as silent, server.connection() as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: ")

        def dribbled() -> bool:
            try:
                slow.sendall(b"x")
            except OSError:
                return True
            return is_closed(slow)

        assert eventually(dribbled, 6.0)
        assert eventually(lambda: is_closed(silent), 6.0)


def test_a_connection_on_which_nothing_is_asked_is_closed(store: Path) -> None:
    """It is though its first request was answered; nobody is impatient with it."""
    assert protocol.IDLE == 15
    with served(store, idle=0.3) as server:
        client = http.client.HTTPConnection(server.host, server.port, timeout=LONGEST)
        assert asked(client, "GET", "/health")[0] == 204
        assert eventually(lambda: is_closed(client.sock), 8.0)
        client.close()


def test_a_body_that_trickles_is_not_waited_for(store: Path) -> None:
    """A byte now and then is no progress; others are answered meanwhile."""
    with served(store, patience=1.0) as server, server.connection() as slow:
        slow.sendall(head(server, "Content-Length: 100000", "Content-Type: application/json") + b"\r\n")

        def dribbled() -> bool:
            try:
                slow.sendall(b" ")
            except OSError:
                return True
            return is_closed(slow)

        assert not eventually(dribbled, 0.3)
        assert server.ask("GET", "/health")[0] == 204
        assert eventually(dribbled, 6.0)


def test_an_answer_that_is_not_taken_is_broken_off(store: Path) -> None:
    """However many answers a client asks for without reading, its connection is closed and its memory given back."""
    with served(store, patience=1.0) as server:
        before = server.descriptors()
        asking = head(server).replace(b"POST /v1/films/items", b"GET /openapi.json") + b"\r\n"
        greedy = socket.socket()
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.connect((server.host, server.port))
        greedy.setblocking(False)
        with greedy:
            for _ in range(2000):
                try:
                    greedy.send(asking)
                except OSError:
                    break
            assert eventually(lambda: server.descriptors() == before + 1, 5.0)
            assert eventually(lambda: server.descriptors() == before, 15.0)
        assert server.ask("GET", "/health")[0] == 204


def test_an_answer_over_tls_that_is_not_taken_is_broken_off(store: Path, certificate: tuple[Path, Path]) -> None:
    """Encryption keeps bytes of its own in between, and these do not hide that nothing is taken."""
    options = ("--tls-cert", certificate[0], "--tls-key", certificate[1])
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with served(store, options=options, patience=1.0) as server:
        before = server.descriptors()
        with context.wrap_socket(server.connection(), server_hostname="localhost") as greedy:
            greedy.settimeout(0.5)
            assert server.descriptors() > before
            asking = head(server).replace(b"POST /v1/films/items", b"GET /openapi.json") + b"\r\n"
            try:
                for _ in range(2000):
                    greedy.sendall(asking)
            except OSError:
                pass
            assert eventually(lambda: server.descriptors() == before, 15.0)
        assert "Traceback" not in server.log()


def test_a_handle_trusts_the_certificate_that_the_environment_names(
    store: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that finds the server through the store does, too; one that is not named is said to be unknown."""
    with served(store, options=("--tls-cert", certificate[0], "--tls-key", certificate[1])) as server:
        url = f"https://127.0.0.1:{server.port}/films"
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(ServerUnreachable, match="in the variable SSL_CERT_FILE"):
            softkv.open(url, token=server.token)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        with softkv.open(url, token=server.token) as db:
            assert db["k1"] == 1.0
        assert ran("set", "7", "k1", "--db", store).err == "changed 1\n"


def test_a_store_in_which_nothing_can_be_said_is_not_served(store: Path, tmp_path: Path) -> None:
    """Others could not find the server; what was said in another store is taken back."""
    other = films(tmp_path / "other")
    (other / SERVER).mkdir()
    refused(StoreError, "cannot write", store, other)
    assert SERVER not in os.listdir(store)
    with softkv.open(other, "w") as db:
        assert db.check().ok


def test_a_refused_body_is_not_read_for_long(store: Path) -> None:
    """Without the token the answer comes before the body, and what is sent on is not taken forever."""
    with served(store, patience=1.0) as server, server.connection() as client:
        client.sendall(f"POST /v1/films/items HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n".encode())
        client.sendall(b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 401")

        def sent_on() -> bool:
            try:
                client.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
            except OSError:
                return True
            return False

        assert eventually(sent_on, 6.0)


def test_a_body_that_is_too_long_gets_an_answer(store: Path) -> None:
    """A body that is too long gets an answer, also for a client that sends all of it before it reads."""
    with served(store) as server:
        large = {"keys": ["x" * (17 << 20)]}
        status, problem = server.ask("POST", "/v1/films/items", large)
        assert (status, problem["error"]) == (413, "InputError")
        with server.connection() as client:
            client.sendall(head(server, "Transfer-Encoding: chunked", "Content-Type: application/json") + b"\r\n")
            for _ in range(17):
                client.sendall(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 413")


def _flooded(server: Running, connections: int, stack: list[socket.socket]) -> None:
    for _ in range(connections):
        stack.append(server.connection())


def test_idle_connections_leave_descriptors_to_the_stores(store: Path) -> None:
    """However many idle connections there are: a connected client goes on, and new ones get in once those are cut."""
    held: list[socket.socket] = []
    with served(store, patience=4.0, files=160) as server:
        client = http.client.HTTPConnection(server.host, server.port, timeout=LONGEST)
        ours = {"Authorization": f"Bearer {server.token}"}
        assert asked(client, "GET", "/v1/stores", **ours)[0] == 200
        try:
            _flooded(server, 300, held)
            assert eventually(lambda: sum(map(is_closed, held)) > 200, 2.0), "not at once"
            assert server.descriptors() < 150
            added = {"keys": ["new"], "values": [9.0], "vectors": [[1.0, 9.0]]}
            assert asked(client, "POST", "/v1/films/items", added, **ours)[0] == 200
            assert eventually(lambda: all(map(is_closed, held)))
        finally:
            client.close()
            for one in held:
                one.close()
        assert server.ask("GET", "/health")[0] == 204
        assert server.end() == 0
    with softkv.open(store, "r") as db:
        assert db["new"] == 9.0


def test_answers_that_nobody_takes_have_a_bound_together(store: Path) -> None:
    """The longest is broken off, however patient the server is, and others are answered."""
    with served(store, patience=60.0, untaken=1 << 20) as server, server.connection() as slow:
        for default, answered in (("x", True), ("x" * (12 << 20), False)):
            wanted = json.dumps({"keys": ["none"], "default": default})
            lines = [f"Host: {server.host}:{server.port}", f"Authorization: Bearer {server.token}"]
            lines += ["Content-Type: application/json", f"Content-Length: {len(wanted)}", "", wanted]
            slow.sendall("\r\n".join(["POST /v1/films/items/get HTTP/1.1", *lines]).encode())
            if answered:
                assert slow.recv(1 << 16)
                connected = server.descriptors()
        assert eventually(lambda: server.descriptors() < connected, 10.0)
        assert server.ask("GET", "/v1/stores")[0] == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost and db.example, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(folder / "key"), "-out", str(folder / "cert")),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "cert", folder / "key"


def test_handshakes_that_never_end_hold_no_descriptors(store: Path, certificate: tuple[Path, Path]) -> None:
    """They count as connections, and are cut as those without TLS are; who does end the handshake is answered."""
    held: list[socket.socket] = []
    options = ("--tls-cert", certificate[0], "--tls-key", certificate[1])
    with served(store, options=options, patience=4.0, files=160) as server:
        context = ssl.create_default_context(cafile=str(certificate[0]))

        def answers() -> bool:
            client = http.client.HTTPSConnection("localhost", server.port, timeout=LONGEST, context=context)
            try:
                return asked(client, "GET", "/v1/stores", Authorization=f"Bearer {server.token}")[0] == 200
            except OSError:
                return False
            finally:
                client.close()

        assert answers()
        before = server.descriptors()
        try:
            _flooded(server, 300, held)
            assert eventually(lambda: sum(map(is_closed, held)) > 200, 2.0), "not at once"
            assert server.descriptors() < 150
            assert eventually(answers)
            assert eventually(lambda: all(map(is_closed, held)))
        finally:
            for one in held:
                one.close()
        assert eventually(lambda: server.descriptors() <= before)
        assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "target",
    [
        "/v1/../films/info", "/v1/films/../../etc/info", "/v1/%2e%2e/info", "/v1/..%2f..%2fetc/info",
        "/v1/%2ffilms/info", "/v1/films%00/info", "/v1/films%2f/info", "/v1/films.softkv/info", "/v1/.films/info",
        "/v1/%/info", "/v1/films%0d%0aX:1/info", "/v1/%ff/info",
        "//v1/films/info", "/v1/FILMS/info", "/v1/" + "x" * 9000 + "/info",
    ],
)  # fmt: skip
def test_names_reach_no_other_directory(shared: Running, target: str) -> None:
    """They are looked up among those that are served, and nowhere else."""
    with shared.connection() as client:
        lines = f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{shared.port}\r\nAuthorization: Bearer {shared.token}\r\n"
        client.sendall(lines.encode() + b"Connection: close\r\n\r\n")
        said = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert said.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400", b"HTTP/1.1 422"))
    assert str(shared.errors.parent).encode() not in said


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One server for those who leave it as it was."""
    with served(films(tmp_path_factory.mktemp("shared") / "films.softkv")) as server:
        yield server


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\r\n" * 9000, 400),
        (b"GET /health\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 60 + b"\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000, 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET http://127.0.0.1/health HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", 400),
        (b"GET /health HTTP/1.0\r\n\r\n", 421),
        (b"GET /v1/stores?token=x HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", 400),
    ],
    ids=lambda given: str(given)[:60],
)
def test_what_is_no_request_is_refused_safely(shared: Running, sent: bytes, status: int) -> None:
    """The answer is a problem document with the headers of every answer."""
    with shared.connection() as client:
        client.sendall(sent.replace(b"%d", str(shared.port).encode()))
        client.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert said.startswith(f"HTTP/1.1 {status}".encode())
    for line in (b"application/problem+json", b"default-src 'none'", b"nosniff", b"no-store", b"no-referrer"):
        assert line in said


def test_neither_log_nor_figures_nor_description_tell_of_content(store: Path) -> None:
    """Neither logs, figures, the description nor problems tell of tokens, content, query strings or directories."""
    with served(store) as server:
        added = {
            "keys": ["hush-key"],
            "values": [12345.5],
            "vectors": [[1.0, 3.0]],
            "payloads": [{"p": "hush-payload"}],
        }
        assert server.ask("POST", "/v1/films/items", added)[0] == 200
        said = [
            server.ask("GET", "/v1/films/info?hush=query")[1],
            server.ask("POST", "/v1/films/lookup", {"query": [1.0, 2.0], "hush": "field"})[1]["error"],
            server.ask("POST", "/v1/hush-store/lookup", {"query": [1.0, 2.0]})[1]["error"],
            server.ask("GET", "/v1/films/items", Authorization="Bearer hush-token")[1],
            server.ask("GET", "/metrics")[1],
            server.ask("GET", "/openapi.json")[1],
        ]
        server.ask("HUSH", "/hush-path")
        assert server.end() == 0
        told = server.log()
    assert 'softkv_requests_total{method="POST",route="/v1/{store}/items",status="200"} 1' in said[4]
    assert 'softkv_store_items{store="films"} 3' in said[4]
    for text in (*map(str, said), told):
        for hidden in ("hush", "12345", server.token, str(store.parent)):
            assert hidden not in text
    assert len([line for line in told.splitlines() if " ms" in line]) == 8
    assert "POST /v1/{store}/lookup 422" in told


def test_a_reader_writes_nothing(store: Path, tmp_path: Path) -> None:
    """A reader's token does what changes nothing, and no more; an endpoint that is new has to be named here."""
    readers = tmp_path / "readers"
    readers.write_text("r" * 40 + "\n" + "s" * 40 + "\n")
    readers.chmod(0o600)
    reads = {"lookup", "nearest", "compare", "self_attention", "evaluate", "get", "select", "columns", "snapshots"}
    reads |= {"forecast_index", "scene"}
    with served(store, options=("--reader-token-file", readers)) as server:
        for one in ENDPOINTS:
            path = one.path.replace("{store}", "films").replace("{snapshot}", "none").replace("{job}", "none")
            harmless = one.method == "GET" or path.endswith("/snapshots/none") or path.rpartition("/")[2] in reads
            for token in ("r" * 40, "s" * 40):
                if "events" not in path:
                    document = {"work": "compact"} if path.endswith("/jobs") else {}
                    status, problem = server.ask(one.method, path, document, Authorization=f"Bearer {token}")
                    assert (status == 403) != harmless, f"{one.method} {path}: {problem}"
        assert server.ask("GET", "/v1/stores", Authorization="Bearer " + "x" * 40)[0] == 401


def test_nobody_writes_to_a_store_that_is_served_to_be_read(store: Path) -> None:
    """Others may, since the server is no writer; so it does not say there that it answers."""
    with served(store, options=("--read-only",)) as server:
        added = {"keys": ["new"], "values": [9.0], "vectors": [[1.0, 9.0]]}
        assert server.ask("POST", "/v1/films/items", added)[0] == 403
        assert SERVER not in os.listdir(store)
        with softkv.open(store, "w") as db:
            db.add(["new"], [9.0], vectors=[[1.0, 9.0]])
        assert server.ask("GET", "/v1/stores")[1][0]["items"] == 3


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT], ids=["term", "ctrl-c"])
def test_what_runs_is_finished_before_the_end(store: Path, sent: signal.Signals) -> None:
    """An add whose body is on its way is carried out and answered; nobody new is let in; then the store is closed."""
    body = b'{"keys": ["late"], "values": [7.0], "vectors": [[1.0, 7.0]]}'
    with served(store) as server, server.connection() as idle, server.connection() as client:
        length = f"Content-Length: {len(body)}"
        client.sendall(head(server, length, "Content-Type: application/json") + b"\r\n" + body[:20])
        assert eventually(lambda: server.ask("GET", "/metrics")[1].count("softkv_requests_running 2"))
        server.process.send_signal(sent)

        def refuses() -> bool:
            try:
                server.connection().close()
            except OSError:
                return True
            return False

        assert eventually(refuses)
        assert eventually(lambda: is_closed(idle))
        client.sendall(body[20:])
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert server.process.wait(LONGEST) == 0
    assert SERVER not in os.listdir(store)
    with softkv.open(store) as db:
        assert db["late"] == 7.0
        assert db.check().ok


def test_a_client_that_takes_its_time_does_not_keep_the_server(store: Path) -> None:
    """After some seconds it ends, and the store is closed in order."""
    with served(store) as server, server.connection() as client:
        client.sendall(head(server, "Content-Length: 100", "Content-Type: application/json") + b"\r\n{")
        assert eventually(lambda: server.ask("GET", "/metrics")[1].count("softkv_requests_running 2"))
        assert server.end() == 0
    assert SERVER not in os.listdir(store)


def test_an_acknowledged_add_outlives_the_server(store: Path) -> None:
    """An acknowledged add outlives the server, also a killed one; what it left behind misleads nobody."""
    for number in range(3):
        with served(store) as server:
            added = {"keys": [f"new{number}"], "values": [9.0], "vectors": [[1.0, 9.0]]}
            assert server.ask("POST", "/v1/films/items", added)[0] == 200
            server.end(signal.SIGKILL)
        assert SERVER in os.listdir(store)
        assert announced(str(store)) is None
        with softkv.open(store, "r") as db:
            assert f"new{number}" in db


def refused(kind: type[Exception], words: str, *paths: object, **settings: Any) -> None:
    """What is to be served is refused before anything listens."""
    with pytest.raises(kind, match=words):
        serve([str(path) for path in paths], Settings(**{"port": 0} | settings), lambda *_: pytest.fail("it began"))


def test_a_busy_port_is_refused(store: Path, shared: Running) -> None:
    """It is before the store is opened."""
    refused(InputError, "Address already in use", store, port=shared.port)
    with softkv.open(store, "w"):
        refused(InputError, "Address already in use", store, port=shared.port)


def test_two_servers_for_one_store_are_refused(store: Path) -> None:
    """The first goes on, and is still found."""
    with served(store) as server:
        refused(StoreLocked, "open for writing", store)
        assert announced(str(store)) is not None
        assert server.ask("GET", "/ready")[0] == 204


def test_another_writer_is_waited_for(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is for as long as the server was told to, and then the store is served."""
    other, began = softkv.open(store), list[Sequence[str]]()
    refused(StoreLocked, "open for writing", store, wait=0.01)
    monkeypatch.setattr("softkv.storage.disk.locks.time.sleep", lambda _seconds: other.close())

    def begin(_url: str, names: Sequence[str]) -> None:
        began.append(names)
        signal.raise_signal(signal.SIGTERM)

    serve([str(store)], Settings(port=0, wait=60.0), begin)
    assert began == [["films"]]


def test_a_writer_that_is_refused_is_told_where_the_server_is(store: Path) -> None:
    """The URL may be opened in the place of the path; the token is not in the words, but in the file."""
    with served(store) as server:
        with pytest.raises(StoreLocked, match=rf"served at http://127.0.0.1:{server.port}/films") as refused:
            softkv.open(store)
        found = announced(str(store))
        assert found is not None
        assert found.token not in str(refused.value)
        with softkv.open(found.url, token=found.token) as db:
            assert db["k1"] == 1.0
    with softkv.open(store), pytest.raises(StoreLocked) as refused:
        softkv.open(store)
    assert "served" not in str(refused.value)


def test_what_is_no_store_is_refused(store: Path, tmp_path: Path) -> None:
    """Nothing is made, and stores that were opened before are closed again."""
    refused(StoreNotFound, "no store", store, tmp_path / "nothing")
    (tmp_path / "file").touch()
    refused(StoreError, "file", tmp_path / "file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    refused(StoreError, "not a store", tmp_path / "other")
    assert not (tmp_path / "nothing").exists()
    with softkv.open(store, "w"):
        pass


@pytest.mark.parametrize("name", ["a b", "é", "%2e", ".softkv", "..softkv", "-x", "a" * 120, "a\nb", "a?b", "_"])
def test_names_that_are_odd_in_a_url_are_refused(tmp_path: Path, name: str) -> None:
    """The refusal says what to do about it."""
    refused(InputError, "Rename", films(tmp_path / name))


def test_names_that_collide_are_refused(store: Path, tmp_path: Path) -> None:
    """They may collide in any way."""
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to(store)
    for other in (films(tmp_path / "b" / "films.softkv"), films(tmp_path / "films"), tmp_path / "link", store):
        refused(InputError, "would be called 'films'", store, other)


KEEPING = """
import re, sys, threading
from pathlib import Path
import numpy as np
from softkv.doors.server.running import Settings, serve
from softkv.errors import StoreNotFound

def kept():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

if len(sys.argv) > 1:
    try:
        serve([sys.argv[1]], Settings(port=0), print)
    except StoreNotFound:
        pass
before = kept()
for _ in range(3):
    thread = threading.Thread(target=lambda: [np.ones(20 << 20, np.uint8).sum() for _ in range(3)])
    thread.start()
    thread.join()
print(kept() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps what was freed")
def test_large_blocks_that_are_freed_go_back_to_the_system(tmp_path: Path) -> None:
    """A process that serves keeps none of 20 MiB; one that does not keeps them."""
    command = [sys.executable, "-c", KEEPING]
    runs = [
        subprocess.run([*command, *more], capture_output=True, text=True, check=True) for more in ([tmp_path / "s"], [])
    ]
    serving, other = (int(run.stdout) for run in runs)
    assert serving < 10_000 < 15_000 < other


def test_others_are_served_only_with_a_name_a_token_and_tls(
    store: Path, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    """Each that is missing is named."""
    tokens = tmp_path / "tokens"
    tokens.write_text("t" * 40)
    tokens.chmod(0o600)
    tls = {"tls_cert": str(certificate[0]), "tls_key": str(certificate[1])}
    whole = {"host": "0.0.0.0", "allow_hosts": ["db.example"], "token_file": str(tokens), **tls}
    for host in ("0.0.0.0", "::", "0"):
        refused(InputError, "allow-host NAME, --token-file FILE, --tls-cert", store, host=host)
    for host in ("192.0.2.1", "db.example", "", "localhost.example", "::ffff:0.0.0.0"):
        refused(InputError, "cannot listen at|no address to listen at|allow-host NAME", store, host=host)
    for missing, words in (
        ("allow_hosts", "allow-host"),
        ("token_file", "token-file"),
        ("tls_cert", "belong together"),
    ):
        refused(InputError, words, store, **{name: one for name, one in whole.items() if name != missing})
    refused(InputError, "does TLS", store, behind_proxy="10.0.0.7")
    refused(InputError, "does TLS", store, **whole, behind_proxy="10.0.0.7")
    refused(InputError, "IP address", store, behind_proxy="proxy.example", allow_hosts=["db.example"])
    refused(InputError, "no name of a host", store, **whole | {"allow_hosts": ["*"]})
    refused(InputError, "of no use for TLS", store, **whole | {"tls_key": str(tokens)})
    refused(InputError, "no directory", store, backups=str(tokens))
    with served(store, options=_options(whole)) as server:
        assert server.token == ""
        context = ssl.create_default_context(cafile=str(certificate[0]))
        client = http.client.HTTPSConnection("localhost", server.port, timeout=LONGEST, context=context)
        ours = {"Authorization": "Bearer " + "t" * 40}
        for host, status in (("db.example", 200), (f"DB.example:{server.port}", 200), ("localhost", 421)):
            assert asked(client, "GET", "/v1/stores", Host=host, **ours)[0] == status
        client.close()
        found = announced(str(store))
        assert found is not None
        assert found.url == f"https://db.example:{server.port}/films"


def test_a_name_that_was_allowed_with_a_port_is_answered_at_that_one(store: Path) -> None:
    """One without a port is at that which is listened at, and at the usual one."""
    options = ("--allow-host", "db.example:8443", "--allow-host", "other.example")
    with served(store, options=options) as server:
        found = {"db.example:8443": 200, "db.example": 421, f"db.example:{server.port}": 421}
        found |= {"other.example": 200, f"other.example:{server.port}": 200, "other.example:8443": 421}
        assert {host: server.ask("GET", "/v1/stores", Host=host)[0] for host in found} == found


def test_behind_a_proxy_this_machine_asks_past_it(store: Path, tmp_path: Path) -> None:
    """It asks by the loopback, also where the server listens at all addresses."""
    tokens = tmp_path / "tokens"
    tokens.write_text("t" * 40)
    tokens.chmod(0o600)
    for host, local in (
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.2", "127.0.0.2"),
        ("::1", "[::1]"),
        ("localhost", "127.0.0.1"),
    ):
        proxied = {"host": host, "behind_proxy": "10.0.0.7", "allow_hosts": ["db.example"], "token_file": str(tokens)}
        with served(store, options=_options(proxied)) as server:
            found = announced(str(store))
            assert found is not None
            assert found.url == f"http://{local}:{server.port}/films"
            for name in (f"{local}:{server.port}", "db.example"):
                assert server.ask("GET", "/v1/stores", Host=name, Authorization="Bearer " + "t" * 40)[0] == 200


def _options(settings: dict[str, Any]) -> tuple[str, ...]:
    named = {"--" + name.replace("_", "-"): one for name, one in settings.items() if name != "allow_hosts"}
    return ("--allow-host", settings["allow_hosts"][0], *itertools.chain(*named.items()))


@pytest.mark.parametrize(
    ("said", "mode", "words"),
    [
        ("t" * 40, 0o644, "chmod 600"),
        ("t" * 40, 0o620, "chmod 600"),
        ("", 0o600, "20 to 200"),
        ("short", 0o600, "20 to 200"),
        ("t" * 40 + "\n" + "é" * 40, 0o600, "20 to 200"),
        ("t" * 300, 0o600, "20 to 200"),
        ("k=" + "t" * 40, 0o600, "'=' only at the end"),
        ("k" + "=" * 40, 0o600, "'=' only at the end"),
    ],
)
def test_a_file_of_tokens_that_is_no_secret_is_refused(store: Path, said: str, mode: int, words: str) -> None:
    """Tokens that can be guessed are refused, too."""
    file = store.parent / "tokens"
    file.write_text(said)
    file.chmod(mode)
    refused(InputError, words, store, token_file=str(file))
    refused(InputError, words, store, reader_token_file=str(file))


def test_a_file_of_tokens_is_a_file(store: Path) -> None:
    """A link, a pipe or nothing is none; and no token both reads and writes."""
    os.mkfifo(store.parent / "pipe")
    for name in ("pipe", "nothing", "."):
        refused(InputError, "no file with a token", store, token_file=str(store.parent / name))
    file = store.parent / "tokens"
    file.write_text("t" * 40)
    file.chmod(0o600)
    refused(InputError, "Give readers others", store, token_file=str(file), reader_token_file=str(file))
