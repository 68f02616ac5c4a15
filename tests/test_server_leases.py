"""Snapshots on loan last a minute after their last use, belong to one token, and are not closed under a reader."""

from pathlib import Path

import pytest

from softkv.database.handle import SoftKV
from softkv.doors.server.leases import MOST, SECONDS, Leases
from softkv.errors import Busy, HandleClosed, SnapshotExpired

from .databases import filled
from .servers import eventually
from .serving import ask, refused, serving


class Clock:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@pytest.fixture
def db(tmp_path: Path) -> SoftKV:
    """A store of 40 numbers."""
    return filled(tmp_path / "fruit", "number")


def test_a_snapshot_lasts_a_minute(db: SoftKV) -> None:
    """A snapshot on loan is closed when its minute is over, and no moment later."""
    assert (SECONDS, MOST) == (60, 16)
    clock = Clock()
    leases = Leases(db.snapshot, clock)
    lease = leases.take("mine")
    clock.now = SECONDS - 0.1
    with leases.using(lease.name, "mine") as view:
        assert len(view) == 40
    clock.now += SECONDS
    with pytest.raises(SnapshotExpired), leases.using(lease.name, "mine"):
        raise AssertionError
    with pytest.raises(HandleClosed):
        len(list(lease.view.select()))
    assert len(leases) == 0
    db.close()


def test_use_renews_it(db: SoftKV) -> None:
    """The end of each use renews it, however often."""
    clock = Clock()
    leases = Leases(db.snapshot, clock)
    lease = leases.take("mine")
    db.clear()
    for _ in range(5):
        clock.now += SECONDS - 1
        with leases.using(lease.name, "mine") as view:
            assert len(view) == 40
    leases.close()
    db.close()


def test_a_snapshot_in_use_is_not_closed(db: SoftKV) -> None:
    """When its time is over, it is let go, or all are closed, it waits until nobody reads it."""
    clock = Clock()
    leases = Leases(db.snapshot, clock)
    for finish in ("time", "end", "close"):
        lease = leases.take("mine")
        with leases.using(lease.name, "mine") as view:
            clock.now += 2 * SECONDS
            if finish == "end":
                leases.end(lease.name, "mine")
            elif finish == "close":
                leases.close()
            leases.sweep()
            assert len(list(view.select())) == 40
        clock.now += 2 * SECONDS
        leases.sweep()
        with pytest.raises(HandleClosed):
            list(lease.view.select())
    db.close()


def test_a_token_holds_so_many_and_no_more(db: SoftKV) -> None:
    """Those of others do not count; one that is let go or expired makes room."""
    clock = Clock()
    leases = Leases(db.snapshot, clock)
    mine = [leases.take("mine") for _ in range(MOST)]
    with pytest.raises(Busy, match="16 snapshots") as caught:
        leases.take("mine")
    assert caught.value.after == SECONDS
    leases.take("other")
    leases.end(mine[0].name, "mine")
    leases.take("mine")
    clock.now = SECONDS
    assert [leases.take("mine") for _ in range(MOST)]
    leases.close()
    db.close()


def test_a_snapshot_that_cannot_be_closed_is_in_the_way_of_nobody(
    db: SoftKV, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Others are closed and taken, and the log names it."""
    clock = Clock()
    for finish in (Leases.sweep, Leases.close, lambda leases: leases.take("other")):
        leases = Leases(db.snapshot, clock)
        stuck, free = (leases.take("mine").view for _ in range(2))
        monkeypatch.setattr(stuck, "close", lambda: 1 // 0)
        clock.now += SECONDS
        finish(leases)
        with pytest.raises(HandleClosed):
            list(free.select())
        assert f"a snapshot of commit {db.info().commit} could not be closed: integer division" in caplog.messages.pop()
        monkeypatch.undo()
        stuck.close()
        leases.close()
    db.close()


def test_a_snapshot_is_of_no_use_to_another_token(db: SoftKV) -> None:
    """It is not read and not closed; the words are those for one that is not there."""
    leases = Leases(db.snapshot, Clock())
    lease = leases.take("mine")
    for use in (lambda: leases.using(lease.name, "other").__enter__(), lambda: leases.end(lease.name, "other")):
        with pytest.raises(SnapshotExpired, match="Take a new one"):
            use()
    with leases.using(lease.name, "mine") as view:
        assert len(view) == 40
    leases.close()
    db.close()


def test_snapshots_over_http_are_taken_read_and_given_back(tmp_path: Path) -> None:
    """What is written later is not in them; sixteen are the most; what is closed or made up is gone."""
    filled(tmp_path / "fruit", "number").close()
    with serving(tmp_path / "fruit") as client:
        names = [ask(client, "/v1/fruit/snapshots", {})["snapshot"] for _ in range(MOST)]
        assert refused(client, "/v1/fruit/snapshots", {})[:2] == (429, "Busy")
        next(iter(client.app.state.stores)).handle.clear()  # type: ignore[attr-defined]
        told = {"query": [1.0, 0.0, 0.0, 0.0, 0.0], "show": 1}
        assert ask(client, "/v1/fruit/lookup", told, softkv_snapshot=names[0])["scored"] == 40
        assert refused(client, "/v1/fruit/lookup", told)[:2] == (422, "EmptyStore")
        assert client.delete(f"/v1/fruit/snapshots/{names[0]}").status_code == 204
        for name in (names[0], "made-up", ""):
            assert refused(client, "/v1/fruit/lookup", told, softkv_snapshot=name)[:2] == (410, "SnapshotExpired")
        assert client.delete("/v1/fruit/snapshots/made-up").json()["error"] == "SnapshotExpired"


def test_snapshots_that_nobody_uses_are_closed_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are while the application runs, without a request, and also after that has failed once."""
    filled(tmp_path / "fruit", "number").close()
    monkeypatch.setattr("softkv.doors.server.app.SWEEP", 0.01)
    with serving(tmp_path / "fruit") as client:
        leases = next(iter(client.app.state.stores)).leases  # type: ignore[attr-defined]
        lease = leases.take("mine")
        with monkeypatch.context() as failing:
            failing.setattr(leases, "sweep", lambda: 1 // 0)
            assert eventually(lambda: "unused snapshots could not be closed: integer division" in caplog.text)
        lease.ends = 0.0
        for _ in range(10_000):
            if not leases:
                break
            client.get("/v1/stores")
        assert not leases
        with pytest.raises(HandleClosed):
            list(lease.view.select())
