"""What lies between a handle and its server: tokens, lost answers, restarts, proxies, and what cannot be sent."""

import json
import logging
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import SoftKV, handle, summary
from softkv.doors.remote import connection
from softkv.errors import (
    AccessRefused,
    BadRecord,
    BatchMismatch,
    HandleClosed,
    InputError,
    KeyMissing,
    KindError,
    MissingExtra,
    NotRemote,
    ServerError,
    ServerUnreachable,
    SnapshotExpired,
    SoftKVError,
    StoreNotFound,
    Unauthorized,
)
from softkv.maths.compatibility import bilinear

from .databases import filled, values_of, vectors_of
from .listening import listening
from .scales import scaled
from .servers import LONGEST, Running, eventually, served

SECRET = "a-token-that-nobody-may-see-anywhere"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server of a store of numbers, in a process of its own."""
    filled(tmp_path / "s", "number").close()
    with served(tmp_path / "s") as server:
        yield server


def opened(server: Running, **options: Any) -> SoftKV:
    """A handle on its store."""
    return softkv.open(f"http://127.0.0.1:{server.port}/s", **{"token": server.token} | options)


class Relay:
    """A port in front of a server that loses what comes back as often as it is told to."""

    def __init__(self, behind: int) -> None:
        self.behind, self.losing, self.lost, self.refused = behind, 0, 0, 0
        self.most = 1 << 40  # bytes of answers on one connection
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        """Hand on every piece; in the place of an answer that is lost the connection ends."""
        if not self.behind:
            self.refused += 1
            client.close()
            return
        with client, socket.create_connection(("127.0.0.1", self.behind)) as server:

            def forth() -> None:
                try:
                    while piece := client.recv(1 << 16):
                        server.sendall(piece)
                except OSError:
                    return

            threading.Thread(target=forth, daemon=True).start()
            room = self.most
            try:
                while piece := server.recv(1 << 16):
                    room -= len(piece)
                    if room < 0:
                        client.shutdown(socket.SHUT_RDWR)
                        return
                    if self.losing:
                        self.losing, self.lost = self.losing - 1, self.lost + 1
                        client.shutdown(socket.SHUT_RDWR)
                        return
                    client.sendall(piece)
            except OSError:
                return


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[tuple[Relay, SoftKV]]:
    """A handle on a store of numbers whose answers can be lost on the way."""
    filled(tmp_path / "s", "number").close()
    with (
        listening(tmp_path / "s") as url,
        closing(Relay(int(url.rpartition(":")[2]))) as relay,
        softkv.open(f"http://127.0.0.1:{relay.port}/s", token=SECRET) as db,
    ):
        yield relay, db


def test_a_lost_answer_is_asked_for_again_and_nothing_is_written_twice(relayed: tuple[Relay, SoftKV]) -> None:
    """Items without keys would be there twice; a deletion would find nothing the second time."""
    relay, db = relayed
    changes: list[Any] = [
        lambda: db.add(vectors=vectors_of(3), values=[1.0, 2.0, 3.0]),
        lambda: db.set_values(["item 1"], [7.0], expected=[db["item 1"]]),
        lambda: db.delete(["item 2", "#41"]),
        lambda: db.add("new", 4, vectors=vectors_of(1)[0]),
        lambda: db.pop("new"),
        lambda: db.set_temperature(0.5),
    ]
    for change in changes:
        db.info()  # what is lost next is the answer to the change, or to what it begins with
        relay.losing = 2
        change()
    assert relay.lost == 2 * len(changes)
    assert len(db) == 40 + 3 - 2
    assert db.check().ok


def test_an_item_that_was_popped_is_nobody_elses(relayed: tuple[Relay, SoftKV]) -> None:
    """It is not, even where answers are lost, and others pop and write at the same time."""
    relay, db = relayed
    told: list[tuple[str, float]] = []

    def take() -> None:
        with suppress(KeyMissing):
            while True:
                told.append(db.popitem())

    relay.losing = 5
    takers = [threading.Thread(target=take) for _ in range(4)]
    for one in takers:
        one.start()
    for one in takers:
        one.join()
    assert relay.lost == 5
    assert sorted(told) == sorted((f"item {n}", value) for n, value in enumerate(values_of("number", 40).tolist()))
    db.add("last", 7.0, vectors=vectors_of(1)[0])
    relay.losing = 1
    assert (db.pop("last"), db.pop("last", None), len(db)) == (7.0, None, 0)


def test_a_server_that_was_killed_and_came_back_has_every_item_once(tmp_path: Path) -> None:
    """Writers go on trying, and what they were told is in is in."""
    filled(tmp_path / "s", "number").close()
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(SECRET)
    told: list[str] = []
    with served(tmp_path / "s", options=("--token-file", tmp_path / "token")) as first:
        port = first.port
        with softkv.open(f"http://127.0.0.1:{port}/s", token=SECRET) as db:
            then = db.snapshot()

            def write() -> None:
                for number in range(60):
                    db.add(f"late {number}", float(number), vectors=vectors_of(1)[0])
                    told.append(f"late {number}")

            writer = threading.Thread(target=write)
            writer.start()
            assert eventually(lambda: len(told) > 10)
            first.end(signal.SIGKILL)
            known = len(told)
            with served(tmp_path / "s", options=("--token-file", tmp_path / "token", "--port", port)):
                writer.join()
                assert known < len(told) == 60
                assert len(db) == 100
                assert db.get_many(told) == [float(number) for number in range(60)]
                with pytest.raises(SnapshotExpired):
                    len(then)
                assert db.check().ok


def test_a_job_of_a_server_that_was_killed_is_to_be_called_again(tmp_path: Path) -> None:
    """The server that came back knows of no job, which is no key that is missing; called again, it is done."""
    filled(tmp_path / "s", "number").close()
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(SECRET)
    with ExitStack() as ending:
        first = ending.enter_context(served(tmp_path / "s", options=("--token-file", tmp_path / "token")))
        again = ("--token-file", tmp_path / "token", "--port", first.port)
        with softkv.open(f"http://127.0.0.1:{first.port}/s", token=SECRET) as db:

            def killed(*_progress: object) -> None:
                if first.process.poll() is None:
                    first.end(signal.SIGKILL)
                    ending.enter_context(served(tmp_path / "s", options=again))

            with pytest.raises(ServerError, match=r"started anew while `tune` ran.* Call it again"):
                db.tune(progress=killed)
            assert db.tune().temperature == db.info().temperature
            assert db.check().ok


def test_nobody_at_the_address_is_said_at_once(tmp_path: Path) -> None:
    """What to do is said; and no item is believed to be written."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ServerUnreachable, match=r"softkv serve"):
        softkv.open(f"http://127.0.0.1:{port}/s", token=SECRET)


def test_a_server_that_begins_late_is_waited_for(tmp_path: Path) -> None:
    """A first answer is for as long as was asked for."""
    filled(tmp_path / "s", "number").close()
    with ExitStack() as ending:
        relay = ending.enter_context(closing(Relay(0)))  # which reaches nobody yet

        def begin() -> None:
            assert eventually(lambda: relay.refused > 1)
            relay.behind = int(ending.enter_context(listening(tmp_path / "s")).rpartition(":")[2])

        thread = threading.Thread(target=begin)
        thread.start()
        with softkv.open(f"http://127.0.0.1:{relay.port}/s", token=SECRET, wait=LONGEST) as db:
            thread.join()
            assert len(db) == 40


def test_a_server_that_is_gone_for_good_is_given_up(relayed: tuple[Relay, SoftKV]) -> None:
    """It is after the time that a handle has patience for."""
    relay, db = relayed
    requests: Any = db
    requests._connection.patience = 0.2
    relay.losing = 10**6
    with pytest.raises(ServerUnreachable):
        db.add("new", 1.0, vectors=vectors_of(1)[0])
    relay.losing = 0
    assert len(db) in (40, 41)  # its answer was lost, and whether it was written is not known


def test_a_long_job_is_cancelled_where_waiting_for_it_is(relayed: tuple[Relay, SoftKV]) -> None:
    """An error in the caller's own function of progress is raised as it is, and the server stops working."""
    _, db = relayed
    db.add(vectors=vectors_of(3000, seed=1), values=np.arange(3000.0))

    def interrupted(*_progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        db.fit(progress=interrupted)
    told: Any = db
    assert eventually(lambda: told._ask("GET", "jobs", told=list)[-1]["state"] == "cancelled")


def test_a_job_whose_start_was_not_answered_is_started_once(relayed: tuple[Relay, SoftKV]) -> None:
    """Asking again finds the job that is there."""
    relay, db = relayed
    told: Any = db
    for lost, work in enumerate((db.tune, db.check, db.compact), 1):
        db.info()
        relay.losing = 2
        work()
        assert (relay.lost, len(told._ask("GET", "jobs", told=list))) == (2 * lost, lost)


def test_how_many_there_are_is_asked_without_looking_at_the_disk(
    relayed: tuple[Relay, SoftKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind of the values is, too; of a snapshot as well."""
    _, db = relayed
    monkeypatch.setattr(summary, "summary", None)
    monkeypatch.setattr(handle, "summary", None)
    with db.snapshot() as then:
        db.delete("item 1")
        assert (len(db), db.value_kind, len(then), then.value_kind) == (39, "number", 40, "number")


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("http://user:{}@127.0.0.1:1/s", "nothing more"),
        ("http://{}@127.0.0.1:1/s", "nothing more"),
        ("http://127.0.0.1:1/s?token={}", "nothing more"),
        ("http://127.0.0.1:1/s#{}", "nothing more"),
        ("http://127.0.0.1:1/#{}", "nothing more"),
        ("http://127.0.0.1:70000/s", "odd host or port"),
        ("http://127.0.0.1:{}/s", "odd host or port"),
        ("http://[{}/s", "odd host or port"),
        ("http://127.0.0.1:1/", "one of its stores"),
        ("http://127.0.0.1:1/a/b", "one of its stores"),
        ("http:///s", "one of its stores"),
    ],
)
def test_a_url_names_a_store_and_holds_no_token(url: str, match: str) -> None:
    """It is refused before anything is sent, in words that do not repeat it."""
    with pytest.raises(InputError, match=match) as refused:
        softkv.open(url.format(SECRET))
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_a_token_is_seen_nowhere(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """No name of a handle has it, no error with all it came from, and no log."""
    caplog.set_level(logging.DEBUG)
    with opened(running) as db, db.snapshot() as then:
        told = [repr(db), repr(then), repr(db.columns()), str(db.info()), repr(vars(db)), repr(vars(db._connection))]  # type: ignore[attr-defined]
        running.end()
        db._connection.patience = 0.0  # type: ignore[attr-defined]
        for wrong in (lambda: db["item 1"], lambda: softkv.open(db.path, token=running.token)):
            with pytest.raises(SoftKVError) as refused:
                wrong()
            told += traceback.format_exception(refused.value)
    assert running.token not in "".join([*told, caplog.text, running.log()])


def test_a_token_comes_from_the_environment(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does where none is given; without one, or with a wrong one, nothing is answered."""
    url = f"http://127.0.0.1:{running.port}/s"
    monkeypatch.delenv("SOFTKV_TOKEN", raising=False)
    with pytest.raises(Unauthorized, match=rf"127.0.0.1:{running.port} wants a token, and was shown none"):
        softkv.open(url)
    with pytest.raises(Unauthorized, match=r"one that it does not know. Give what stands behind the #.* as token="):
        softkv.open(url, token=SECRET)
    with pytest.raises(InputError, match="ASCII"):
        softkv.open(url, token=SECRET + "\r\nX-More: 1")
    monkeypatch.setenv("SOFTKV_TOKEN", running.token)
    with softkv.open(url) as db:
        assert len(db) == 40


def test_a_token_is_for_servers_alone(tmp_path: Path) -> None:
    """A path with one is a mistake, and no store is made."""
    with pytest.raises(InputError, match="URL"):
        softkv.open(tmp_path / "s", token=SECRET)
    assert not (tmp_path / "s").exists()


def test_an_unknown_store_is_not_found(running: Running) -> None:
    """Its error is of the class that a path without a store has."""
    with pytest.raises(StoreNotFound, match="'t'"):
        softkv.open(f"http://127.0.0.1:{running.port}/t", token=running.token)


def test_a_handle_that_was_opened_to_read_writes_nothing(running: Running) -> None:
    """It does not even send a request."""
    with opened(running, mode="r") as db:
        changes: list[Any] = [db.clear, db.compact, db.drop_index, db.tune, lambda: db.update(a=1.0), db.forget_fit]
        for change in changes:
            with pytest.raises(AccessRefused, match="mode 'r'"):
                change()
        assert len(db) == 40


def test_proxies_of_the_environment_are_not_asked_for_this_machine(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would see the token, and reach another machine."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with opened(running) as db:
        assert len(db) == 40


def test_what_is_no_server_of_ours_is_said_so(tmp_path: Path) -> None:
    """A redirect is not followed, and a page is no answer."""
    replies = [
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\n<b>hi",
        b"HTTP/1.1 500 Oh\r\nContent-Type: application/problem+json\r\nContent-Length: 4\r\n\r\n{{{{",
    ]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for reply in replies:
                client, _ = listener.accept()
                with client:
                    client.recv(1 << 16)
                    client.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        for _ in replies:
            with pytest.raises(ServerError):
                softkv.open(f"http://127.0.0.1:{listener.getsockname()[1]}/s", token=SECRET)
        thread.join()


def test_what_cannot_be_sent_is_refused_before_anything_is(relayed: tuple[Relay, SoftKV]) -> None:
    """Functions, models and paths are for local handles; so is making a store."""
    relay, db = relayed
    url, query = db.path, vectors_of(1)[0]
    relay.losing = 10**6  # a request would not come back
    wrong: list[Any] = [
        lambda: softkv.open(url, "n"),
        lambda: softkv.open(url, force=True),
        lambda: db.lookup(query, compatibility=lambda queries, keys: queries @ keys.T),
        lambda: db.nearest(query, compatibility=bilinear(np.eye(5))),
        lambda: db.tune(compatibility=[max]),
        lambda: db.add("a", object(), vectors=query),
        lambda: db.set_values(["item 1"], [{1, 2}]),
        lambda: db.set_values(["item 1"], [np.longdouble(1)]),
        lambda: db.lookup(query, where={"n": np.longdouble(1)}),
        lambda: db.reembed("static"),
        lambda: db.backup("somewhere"),
        lambda: db._view(),
    ]
    for one in wrong:
        with pytest.raises(NotRemote):
            one()
    with pytest.raises(KindError):
        db.lookup([1.0, "a"])
    assert relay.lost == 0
    relay.losing = 0


def test_what_a_store_was_made_with_may_be_named_again(running: Running) -> None:
    """What contradicts the store, or would settle what it leaves open, is refused."""
    with opened(running, value="number", compatibility="cosine") as db:
        assert len(db) == 40
    for options in ({"value": "label"}, {"compatibility": "dot"}, {"temperature": 2.0}, {"embedder": "static"}):
        with pytest.raises(InputError):
            opened(running, **options)


def test_an_add_that_does_not_fit_a_request_is_refused_whole(relayed: tuple[Relay, SoftKV]) -> None:
    """An add that is larger than a request may be is refused; `load` divides the records of a file."""
    _, db = relayed
    with pytest.raises(InputError, match=r"wholly or not at all.*`load`"):
        db.add(vectors=np.ones((1 << 20, 5), np.float32), values=np.ones(1 << 20))
    assert len(db) == 40


def test_a_store_is_cleared_whatever_its_keys_take(tmp_path: Path) -> None:
    """Keys that fit no request are deleted in one commit, also where its answer is lost."""
    with softkv.open(tmp_path / "s", value="number") as db:
        db.add([f"{number:060000}" for number in range(300)], np.ones(300), vectors=np.ones((300, 2)))
    with (
        listening(tmp_path / "s") as url,
        closing(Relay(int(url.rpartition(":")[2]))) as relay,
        softkv.open(f"http://127.0.0.1:{relay.port}/s") as db,
    ):
        before = db.info().commit
        relay.losing = 1
        db.clear()
        assert (relay.lost, len(db), db.info().commit - before) == (1, 0, 1)
        db.clear()
        assert db.check().ok


def test_many_keys_are_read_in_several_requests(tmp_path: Path) -> None:
    """Values are found and missed by keys that fit no request together."""
    keys = [f"{number:060000}" for number in range(300)]
    with softkv.open(tmp_path / "s", value="number") as db:
        db.add(keys[:-1], np.arange(299.0), vectors=np.ones((299, 2)))
    with listening(tmp_path / "s") as url, softkv.open(f"{url}/s") as db:
        assert db.get_many([keys[-1], *keys], -1) == [-1, *range(299), -1]
        with db.snapshot() as then:
            db.clear()
            assert then.get_many(keys, -1) == [*range(299), -1]


def test_values_of_several_pages_are_of_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are while another client gives all items another value, again and again."""
    monkeypatch.setattr("softkv.doors.server.items.PAGE", 60)  # bytes, for two numbers or three
    keys, ended = [f"k{number}" for number in range(12)], threading.Event()
    with softkv.open(tmp_path / "s", value="number") as db:
        db.add(keys, np.zeros(12), vectors=np.ones((12, 2)))
    with listening(tmp_path / "s") as url, softkv.open(f"{url}/s") as db, softkv.open(f"{url}/s") as other:

        def write() -> None:
            while not ended.is_set():
                other.set_values(keys, [other["k0"] + 1] * 12)

        writing = threading.Thread(target=write)
        writing.start()
        try:
            for _ in range(20):
                assert len(set(db.get_many(keys))) == 1
        finally:
            ended.set()
            writing.join()


def test_records_of_a_file_are_sent_in_portions(relayed: tuple[Relay, SoftKV], tmp_path: Path) -> None:
    """Each of them once, also when answers are lost, and when the file is given again under its name."""
    relay, db = relayed
    words = "many words " * 400
    lines = [f'{{"vector": [1, {n}, 3, 4, 5], "value": {n}, "payload": {{"words": "{words}"}}}}' for n in range(5000)]
    (tmp_path / "items.jsonl").write_text("\n".join(lines))
    db.info()
    relay.losing = 2
    assert db.load(tmp_path / "items.jsonl", batch="the file").count == 5000
    assert db.load(tmp_path / "items.jsonl", batch="the file").count == 5000
    assert len(db) == 5040
    assert db.info().commit > 3  # more than one batch


def test_portions_hold_no_more_values_than_a_server_takes(relayed: tuple[Relay, SoftKV], tmp_path: Path) -> None:
    """Short numbers in payloads are few bytes and many values."""
    _, db = relayed
    given = {"vector": [1, 2, 3, 4, 5], "value": 1, "payload": {"flags": [0] * 50_000}}
    (tmp_path / "flags.jsonl").write_text("\n".join([json.dumps(given)] * 60))
    assert db.load(tmp_path / "flags.jsonl").count == 60


@pytest.mark.parametrize("keyed", [False, True])
def test_a_file_whose_answer_was_lost_may_be_stored(
    relayed: tuple[Relay, SoftKV], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    """The error says so, and how to go on; keys tell by themselves what is there."""
    relay, db = relayed
    scaled(monkeypatch, loaded=10)
    lines = [{"vector": [1, n, 3, 4, 5], "value": n} | ({"key": f"line {n}"} if keyed else {}) for n in range(30)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))

    def then_lose(done: int, _of: int) -> None:
        relay.losing, db._connection.patience = (1, 0.0) if done == 10 else (0, 30.0)  # type: ignore[attr-defined]

    with pytest.raises(ServerUnreachable, match="first 10 records are stored, and the next 10 may be") as lost:
        db.load(tmp_path / "items.jsonl", progress=then_lose)
    then_lose(20, 0)
    assert len(db) == 60
    if keyed:
        assert "Go on with skip=10 and on_conflict='ignore'" in str(lost.value)
        db.load(tmp_path / "items.jsonl", skip=10, on_conflict="ignore")
    else:
        assert "Look whether they are: if so, go on with skip=20, else with skip=10." in str(lost.value)
        db.load(tmp_path / "items.jsonl", skip=20)
    assert len(db) == 70


def test_how_much_of_a_file_is_there_is_counted_in_all_portions_of_a_batch(
    relayed: tuple[Relay, SoftKV], tmp_path: Path
) -> None:
    """A batch is divided where it does not fit into a request; the advice is where to go on."""
    _, db = relayed
    given = {"vector": [1, 2, 3, 4, 5], "value": 1, "payload": "many words " * 400}
    lines = [json.dumps({"key": f"line {n}", **given}) for n in range(5000)]
    for count in (4000, 5000):
        (tmp_path / f"{count}.jsonl").write_text("\n".join(lines[:count]))
    before = db.info().commit
    assert db.load(tmp_path / "4000.jsonl").count == 4000
    assert db.info().commit > before + 1, "the file was sent in one portion"
    with pytest.raises(BadRecord, match=r"first 4,000 records. If an earlier run stored them, go on with skip=4000\."):
        db.load(tmp_path / "5000.jsonl")
    assert db.load(tmp_path / "5000.jsonl", skip=4000).count == 1000


@pytest.mark.parametrize("ending", ["jsonl", "npz"])
def test_an_export_that_breaks_off_leaves_no_file(relayed: tuple[Relay, SoftKV], tmp_path: Path, ending: str) -> None:
    """A file that was there is as it was, also where it was to be overwritten."""
    relay, db = relayed
    db.add(vectors=vectors_of(3000, seed=1), values=np.arange(3000.0))
    (tmp_path / f"old.{ending}").write_text("old")
    relay.most = 40_000
    with softkv.open(db.path, token=SECRET) as again:
        for name, force in (("new", False), ("old", True)):
            with pytest.raises(ServerUnreachable):
                again.export(tmp_path / f"{name}.{ending}", force=force)
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"old.{ending}", "s"]
    assert (tmp_path / f"old.{ending}").read_text() == "old"
    assert db.export(tmp_path / f"old.{ending}", force=True) == 3040


@pytest.mark.parametrize("values", [[1, 9, 3], [1, 2, 3, 4], [1, 2]], ids=["changed", "longer", "shorter"])
def test_another_file_under_the_name_of_one_is_refused(running: Running, tmp_path: Path, values: list[int]) -> None:
    """No record is there twice, and none of the other file is written."""

    def loaded(numbers: list[int]) -> int:
        lines = [f'{{"vector": [1, {n}, 3, 4, 5], "value": {n}}}' for n in numbers]
        (tmp_path / "items.jsonl").write_text("\n".join(lines))
        return db.load(tmp_path / "items.jsonl", batch="the file").count

    with opened(running) as db:
        assert loaded([1, 2, 3]) == loaded([1, 2, 3]) == 3
        with pytest.raises(BatchMismatch, match="the file"):
            loaded(values)
        assert len(db) == 43


def test_a_snapshot_that_is_gone_says_so(relayed: tuple[Relay, SoftKV]) -> None:
    """It goes after a minute without a question, or with a restart."""
    _, db = relayed
    then = db.snapshot()
    named: Any = then
    db._ask("DELETE", f"snapshots/{named._name}", told=type(None))  # type: ignore[attr-defined]
    with pytest.raises(SnapshotExpired, match="Take a new one"):
        then["item 1"]
    then.close()


def test_iterations_that_were_left_hold_no_snapshots(relayed: tuple[Relay, SoftKV]) -> None:
    """There may be many of them, and a token may hold sixteen."""
    _, db = relayed
    for _ in range(8):
        assert next(iter(db)) == "item 0"
        iter(db)
        db.select()


def test_threads_share_a_handle(running: Running) -> None:
    """They read and write at the same time."""
    with opened(running) as db:

        def work(name: int) -> None:
            for number in range(10):
                db.add(f"{name} {number}", float(number), vectors=vectors_of(1)[0])
                assert db.lookup(vectors_of(1)[0], k=1).scored == 1

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(db) == 100


def test_httpx_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the pip line is told."""
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtra, match=r"softkv\[remote\]"):
        connection.ServerConnection("http://127.0.0.1:1/s", None)


def test_a_handle_that_is_closed_while_a_request_is_sent_again_says_so() -> None:
    """A handle says that it is closed, also where another thread closes it while a request is sent again."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = connection.ServerConnection(f"http://127.0.0.1:{silent.getsockname()[1]}/s", SECRET, wait=LONGEST)
        found: list[Exception] = []

        def ask() -> None:
            try:
                asked.ask("GET", "brief", dict)
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        with silent.accept()[0]:
            asked.close()
        thread.join(LONGEST)
    assert [type(one) for one in found] == [HandleClosed]
