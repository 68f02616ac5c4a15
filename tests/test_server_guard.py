"""Guards behind a server: what a handle on it and the command say is what they say of the files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv.doors.torch import SoftKVLayer
from softkv.errors import InputError, KindError

from .commands import ran
from .servers import Running, served
from .test_guarding import spots, store_of

KINDS = ("label", "number", "vector")
ASKED = np.concatenate([spots(5, 20), spots(6, 5) * 4.0])
NEAR, FAR = "2.2,2.2", "60,60"


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server of tuned stores of several kinds, with guards but for `bare`; its token is in the environment."""
    for kind in KINDS:
        with store_of(tmp_path / kind, kind) as db:
            db.guard(wrong_at_most=0.2)
    store_of(tmp_path / "bare", "label").close()
    with served(*(tmp_path / name for name in (*KINDS, "bare"))) as server:
        monkeypatch.setenv("SOFTKV_TOKEN", server.token)
        yield server


def url_of(running: Running, name: str) -> str:
    """Where a store is served."""
    return f"http://127.0.0.1:{running.port}/{name}"


def test_a_stale_guard_stays_stale_through_the_jobs_of_a_server(running: Running) -> None:
    """Those that lay out rows anew count what had changed before."""
    with softkv.open(url_of(running, "number")) as db:
        db.set_values([f"spot 0 {n}" for n in range(100)], [0.0] * 100)
        for job in (db.build_index, db.compact):
            job()
            assert "100 items changed" in db.info().guard
            assert db.lookup(ASKED[0]).known is None


@pytest.mark.parametrize("kind", KINDS)
def test_promises_of_a_handle_on_a_server_are_those_of_the_files(running: Running, tmp_path: Path, kind: str) -> None:
    """They are those of one answer, of many, and of what the guard is not about."""
    says = {"label": "labels_within", "number": "interval", "vector": "radius"}
    with softkv.open(url_of(running, kind)) as remote, softkv.open(tmp_path / kind, "r") as local:
        one, many = ([db.lookup(asked) for db in (remote, local)] for asked in (ASKED[-1], ASKED))
        for mine, expected in (one, many):
            assert np.asarray(mine.known).tolist() == np.asarray(expected.known).tolist()
            assert mine.familiarity == pytest.approx(expected.familiarity)
            told, wanted = (getattr(found, says[kind])(0.8) for found in (mine, expected))
            assert told == wanted if kind == "label" else told == pytest.approx(wanted)
        assert one[0].why_unknown == one[1].why_unknown
        assert repr(one[0]) == repr(one[1])
        assert (remote.info().guard, remote.compare(ASKED[0]).soft.known) == (local.info().guard, True)
        for other in ({"temperature": 0.5}, {"k": 3}, {"mask": np.ones(600, np.bool_)}):
            assert "the guard is about" in remote.lookup(ASKED[0], **other).why_unknown
        with pytest.raises(KindError if kind != "number" else InputError):
            many[0].labels_within() if kind != "label" else many[0].interval()
        assert "embedder" not in {**one[0].guard.about, **many[0].guard.about, **remote.columns().guard[0].about}
        assert SoftKVLayer.from_store(remote).threshold == SoftKVLayer.from_store(local).threshold is not None


def test_a_guard_is_made_and_dropped_through_a_server(running: Running, tmp_path: Path) -> None:
    """Progress is told, queries and strangers of one's own are taken; a snapshot keeps what it had."""
    told: list[str] = []
    with softkv.open(url_of(running, "bare")) as db:
        with pytest.raises(InputError, match="has no guard"):
            db.lookup(ASKED).labels_within()
        made = db.guard(0.2, 0.1, strangers=spots(9, 100) + 40.0, progress=lambda name, *_: told.append(name))
        assert db.info().guard == str(made)
        assert "embedder" not in made.about  # whose name may be a directory of the server
        assert "0.0% of strangers are known" in str(made)
        assert set(told) <= {"calibrating", "asking strangers", "asking all items", "observing"}
        with db.snapshot() as frozen:
            assert (db.forget_guard(), db.forget_guard(), db.info().guard) == (True, False, None)
            assert frozen.lookup(ASKED[0]).known
            assert db.lookup(ASKED[0]).known is None
        with pytest.raises(InputError, match="wrong_at_most"):
            db.guard(2)
        with pytest.raises(InputError, match="at least"):
            db.guard(0.001)


@pytest.mark.parametrize("form", ["--json", "--csv", "--plain", "table"])
def test_known_queries_are_told_apart_through_a_server(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The URL alone tells them in the words of the path, and with the same exit codes."""
    from softkv_cli import served as through

    commands = [
        [*asked, *more]
        for asked in (("--vector", NEAR), ("--vector", FAR))
        for more in ((), ("--known",), ("--known", "-T", "0.5"), ("--known", "--hard"), ("--known", "-k", "2"))
    ]
    for kind in (*KINDS, "bare"):
        for command in commands:
            whole = ["query", *command, *([] if form == "table" else [form])]
            by_url = ran(*whole, "--db", url_of(running, kind), terminal=form == "table")
            by_itself = ran(*whole, "--db", tmp_path / kind, terminal=form == "table")
            with monkeypatch.context() as alone:
                alone.setattr(through, "asked", lambda *_: None)
                by_path = ran(*whole, "--db", tmp_path / kind, terminal=form == "table")
            assert by_url == by_itself == by_path, whole
            if command == ["--vector", FAR, "--known"]:
                assert by_path.code == 3
            if "--known" in command and len(command) > 3 and (kind != "bare" or "-T" in command):
                assert (by_path.code, by_path.out) == (1, "")


def test_the_command_makes_and_drops_a_guard_through_a_server(running: Running, tmp_path: Path) -> None:
    """The URL will do, and the path, whose lock the server has."""
    for where in (url_of(running, "bare"), tmp_path / "bare"):
        assert ran("guard", "--wrong-at-most", 0.2, "--db", where).code == 0
        assert ran("query", "--vector", FAR, "--known", "--db", where).code == 3
        assert ran("guard", "--drop", "--db", where) == (0, "", "dropped\n")
        assert "softkv guard" in ran("query", "--vector", FAR, "--known", "--db", where).err


def test_a_guard_is_made_on_average_over_the_wire(running: Running) -> None:
    """It has no confidence, which is told as it is by the files."""
    with softkv.open(url_of(running, "bare")) as remote:
        guard = remote.guard(0.1, confidence=None)
        assert guard.asked["confidence"] is None
        assert remote.info().guard == str(guard)
        assert remote.lookup(ASKED[0]).known
