"""Long work over HTTP: watched as it goes on, cancelled, refused where there is too much of it; and what came of it."""

import asyncio
import gc
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import softkv
from softkv.database import SoftKV
from softkv.database.summary import Info
from softkv.database.training import Fit
from softkv.doors import wire
from softkv.doors.server import jobs
from softkv.doors.server.app import make_app
from softkv.doors.server.served import Stores
from softkv.learning.tuning import Tuned
from softkv.storage import Backup, Report

from .databases import filled, values_of, vectors_of
from .serving import ask, refused, serving

JOBS = "/v1/fruit/jobs"
PATIENCE = 60.0


def store(folder: Path, count: int = 600, **options: Any) -> Path:
    """A store of numbers in a folder of its own."""
    filled(folder / "fruit", "number", count, **options).close()
    return folder / "fruit"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """A client of a store that an index can be built of."""
    (tmp_path / "backups").mkdir()
    with serving(store(tmp_path), backups=str(tmp_path / "backups"), model="static") as found:
        yield found


def handle(client: TestClient) -> SoftKV:
    """The handle of the server itself."""
    stores: Any = client.app
    found: SoftKV = stores.state.stores["fruit"].handle
    return found


def start(client: TestClient, work: str, **options: Any) -> str:
    """The path of a new job."""
    reply = client.post(JOBS, json={"work": work, "options": options})
    assert reply.status_code == 202, reply.text
    return f"{JOBS}/{reply.json()['job']}"


def until(true: Callable[[], bool]) -> None:
    """Look again and again, until something is so."""
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.001)


def ended(client: TestClient, path: str) -> dict[str, Any]:
    """A job when it is over."""
    until(lambda: client.get(path).json()["state"] not in ("waiting", "running"))
    found: dict[str, Any] = client.get(path).json()
    return found


def events_in(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream: their names and documents."""
    found = []
    for part in text.split("\n\n")[:-1]:
        if not part.startswith(":"):
            name, data = part.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_a_build_is_watched_to_its_end(client: TestClient) -> None:
    """Its stages come as events, its result at last; and the index is there."""
    reply = client.get(start(client, "build_index", lists=12) + "/events")
    assert reply.headers["content-type"].startswith("text/event-stream")
    *progress, (name, last) = events_in(reply.text)
    assert {one for one, _ in progress} <= {"progress"}
    assert (name, last["state"], last["problem"]) == ("result", "done", None)
    assert last["progress"]["stage"] in ("rehearsing", "noting signs of rows")
    assert last["progress"]["done"] == last["progress"]["all"]
    assert last["result"]["path"] == "fruit"
    assert last["result"]["index"]["lists"] == 12
    assert client.get("/v1/fruit/info").json() == last["result"]


def test_results_come_with_their_classes(client: TestClient) -> None:
    """A handle gives the same, when they are asked for packed."""
    db, kinds = handle(client), {"tune": Tuned, "build_index": Info, "check": Report, "compact": type(None)}
    kinds |= {"fit": Fit, "backup": Backup}
    for work, kind in kinds.items():
        path = start(client, work)
        assert ended(client, path)["state"] == "done"
        found = wire.unpacked(client.get(path, headers={"accept": wire.MEDIA_TYPE}).content, classes=True)
        assert isinstance(found["result"], kind)
        if work == "tune":
            assert str(db.info().temperature_from).startswith("tuned")
    told = client.get(JOBS).json()
    assert [(one["work"], one["state"]) for one in told] == [(work, "done") for work in kinds]
    assert not any("result" in one for one in told)


def test_arrays_are_sent_along(client: TestClient) -> None:
    """They are queries to calibrate on, and to fit by."""
    queries, headers = vectors_of(150, seed=5), {"content-type": wire.MEDIA_TYPE}
    for work, options in (
        ("build_index", {"queries": queries, "temperatures": [0.1, 1.0]}),
        ("fit", {"queries": queries, "targets": values_of("number", 150), "rank": 2}),
    ):
        reply = client.post(JOBS, content=wire.packed({"work": work, "options": options}), headers=headers)
        assert reply.status_code == 202, reply.text
        assert ended(client, f"{JOBS}/{reply.json()['job']}")["state"] == "done"


def test_a_backup_goes_to_the_folder_of_the_server(client: TestClient, tmp_path: Path) -> None:
    """It has the name of the store; the answer does not tell where that is."""
    found = ended(client, start(client, "backup"))
    assert found["result"] | {"written": 0} == {
        "path": "fruit",
        "commit": handle(client).info().commit,
        "items": 600,
        "written": 0,
        "left_out": [],
    }
    assert ended(client, start(client, "backup"))["state"] == "done"
    with softkv.open(tmp_path / "backups" / "fruit", "r") as backup:
        assert dict(backup) == dict(handle(client))


def test_a_failing_backup_does_not_tell_where_it_should_have_gone(client: TestClient, tmp_path: Path) -> None:
    """A folder that is no backup is refused in the words of the library."""
    (tmp_path / "backups" / "fruit").mkdir()
    (tmp_path / "backups" / "fruit" / "letter").write_text("dear")
    found = ended(client, start(client, "backup"))
    assert (found["state"], found["problem"]["error"]) == ("failed", "BackupRefused")
    assert str(tmp_path) not in json.dumps(found)
    assert "the backup of fruit" in found["problem"]["detail"]


def test_texts_are_embedded_anew_with_the_model_of_the_server(tmp_path: Path) -> None:
    """A server embeds texts anew with the model that it was given, and with no other."""
    with softkv.open(tmp_path / "fruit", embedder=lambda texts: np.ones((len(texts), 2), np.float32)) as db:
        db.add(["a fox", "two dogs"], [1.0, 2.0])
    with serving(tmp_path / "fruit", model="static") as client:
        assert refused(client, JOBS, {"work": "reembed", "options": {"embedder": "static"}})[:2] == (422, "InputError")
        assert ended(client, start(client, "reembed"))["result"] == 2
        assert ask(client, "/v1/fruit/lookup", {"query": "a fox"})["value"] < 1.5
        assert client.get("/v1/fruit/info").json()["embedder"] == "static"


def test_hints_are_told_with_what_came_of_a_job(tmp_path: Path) -> None:
    """They do not name the directory of the store; a handle gives them to its caller, of their class."""
    with softkv.open(tmp_path / "fruit", embedder=lambda texts: np.eye(4, dtype=np.float32)[: len(texts)]) as db:
        keys = [f"item {n}" for n in range(4)]
        db.add(keys, [1.0, 2.0, 3.0, 4.0])
        found: Any = db
        found._store.configure(found._store.settings | {"projection": "learned"})
    with serving(tmp_path / "fruit", model="static") as client:
        said = ended(client, start(client, "reembed"))
    assert (said["state"], [kind for kind, _ in said["hints"]]) == ("done", ["LearnedNotCarried"])
    assert str(tmp_path) not in said["hints"][0][1]


def test_neither_paths_nor_models_are_taken_from_clients(tmp_path: Path) -> None:
    """Clients name neither paths nor models, and do nothing for which the server was given no place."""
    with serving(store(tmp_path)) as client:
        assert "softkv serve --backups DIR" in refused(client, JOBS, {"work": "backup"})[2]
        assert "softkv serve --model NAME" in refused(client, JOBS, {"work": "reembed"})[2]
        for work, options in (
            ("backup", {"directory": str(tmp_path / "elsewhere")}),
            ("backup", {"force": True}),
            ("reembed", {"embedder": "static"}),
            ("build_index", {"kind": "PCA80,Flat"}),
            ("build_index", {"progress": "x"}),
            ("build_index", {"lists": "12"}),
            ("erase", {}),
        ):
            assert refused(client, JOBS, {"work": work, "options": options})[:2] == (422, "InputError")
        assert refused(client, JOBS, {"options": {}})[2] == "the body: expected the field 'work'."
        assert client.get(JOBS).json() == []
    assert sorted(one.name for one in tmp_path.iterdir()) == ["fruit"]


def test_a_job_fails_with_the_problem_of_its_error(tmp_path: Path) -> None:
    """The words are those of the library, without the directory of the store."""
    with serving(store(tmp_path, 3)) as client:
        path = start(client, "build_index")
        found = ended(client, path)
        assert (found["state"], found["result"], found["problem"]["status"]) == ("failed", None, 422)
        assert found["problem"]["error"] == "InputError"
        assert "but fruit has 3" in found["problem"]["detail"]
        assert events_in(client.get(f"{path}/events").text) == [("result", found)]
        assert ended(client, start(client, "tune", compatibility="sideways"))["state"] == "failed"


def test_a_build_is_cancelled_and_goes_on_later(client: TestClient) -> None:
    """The store is as good as before; the next build goes on from the last stage that was done."""
    db = handle(client)
    with db._changing:  # which the build waits for when its rows are in lists
        path = start(client, "build_index")
        until(lambda: (client.get(path).json()["progress"] or {}).get("stage") == "assigning rows")
        assert ask(client, "/v1/fruit/lookup", {"query": [0.0] * 4 + [1.0]})["scored"] == 600
        reply = client.delete(path)
        assert (reply.status_code, reply.json()["state"]) == (202, "running")
    found = ended(client, path)
    assert (found["state"], found["result"], found["problem"]) == ("cancelled", None, None)
    assert db.info().index is None
    assert db.info().building is not None
    assert db.check().ok
    assert client.delete(path).json()["detail"].endswith("is cancelled already, so there is nothing to cancel.")
    assert ended(client, start(client, "build_index"))["state"] == "done"
    assert db.info().index is not None


@pytest.mark.parametrize("work", ["tune", "fit", "guard", "backup", "reembed"])
def test_what_tells_its_progress_is_cancelled(tmp_path: Path, work: str) -> None:
    """The first word of it cancels here, since a cancelled job that has not begun does not begin either."""
    with softkv.open(tmp_path / "fruit", value="number") as db:
        db.add([f"{n} red houses by the sea" for n in range(40)], np.arange(40.0))
    (tmp_path / "backups").mkdir()
    with serving(tmp_path / "fruit", backups=str(tmp_path / "backups"), model="static") as client:
        found = client.app.state.stores["fruit"].jobs  # type: ignore[attr-defined]
        before = dict(handle(client)), handle(client).info().temperature_from
        asked = {"queries": [f"{n} houses" for n in range(40)], "answers": np.arange(40.0), "wrong_at_most": 0.4}
        job = jobs.Job(
            "job",
            work,
            b"",
            lambda told: (job.cancel(), jobs.WORKS[work].run(found, told, {} if work != "guard" else asked)),
        )
        job.go()
        assert (job.state, job.problem) == ("cancelled", None)
        assert (dict(handle(client)), handle(client).info().temperature_from) == before
        if work == "reembed":
            handle(client).abandon_reembedding()
        assert [one.name for one in (tmp_path / "backups").iterdir()] == []


def test_what_cannot_be_cancelled_says_so(client: TestClient) -> None:
    """It says so while it runs; while it waits, everything can be."""
    with handle(client)._changing:
        running, waiting = start(client, "compact"), start(client, "compact")
        until(lambda: client.get(running).json()["state"] == "running")
        reply = client.delete(running)
        assert (reply.status_code, reply.json()["error"]) == (409, "StoreError")
        assert reply.json()["detail"] == "compact cannot be cancelled once it runs. Wait until it is done."
        assert client.get(waiting).json()["state"] == "waiting"
        assert client.delete(waiting).json()["state"] == "cancelled"
    assert ended(client, running)["state"] == "done"
    assert client.get(waiting).json()["state"] == "cancelled"


def test_a_job_that_is_over_holds_nothing_of_what_it_was_given(client: TestClient) -> None:
    """A job that is over holds nothing while it waits in the queue: whoever starts and cancels jobs fills no memory."""
    found, queries = client.app.state.stores["fruit"].jobs, vectors_of(150)  # type: ignore[attr-defined]
    alive = weakref.ref(queries)
    with handle(client)._changing:
        start(client, "compact")
        job = found.start("build_index", {"queries": queries})
        del queries
        job.cancel()
        gc.collect()
        assert alive() is None


def test_only_so_many_jobs_wait(client: TestClient) -> None:
    """Nine are refused until one is over; those that only read have their own turn."""
    with handle(client)._changing:
        paths = [start(client, "compact") for _ in range(7)]
        assert ended(client, start(client, "check"))["state"] == "done"
        paths.append(start(client, "tune"))
        reply = client.post(JOBS, json={"work": "check"})
        assert (reply.status_code, reply.json()["error"], reply.headers["retry-after"]) == (429, "Busy", "5")
        client.delete(paths[3])
        check = start(client, "check")
    assert [ended(client, path)["state"] for path in [*paths, check]] == ["done"] * 3 + ["cancelled"] + ["done"] * 5


def test_a_job_that_is_started_again_under_its_name_is_the_same(client: TestClient) -> None:
    """It waits, runs or is over; other work or options under the name are refused."""
    document = {"work": "check", "options": {"at_least": 1}, "id": "a-name-of-my-own"}
    with handle(client)._changing:
        first = client.post(JOBS, json=document)
        again = client.post(JOBS, json=document)
        assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["job"] == again.json()["job"] == "a-name-of-my-own"
    ended(client, f"{JOBS}/a-name-of-my-own")
    assert client.post(JOBS, json=document).json()["state"] == "done"
    assert len(client.get(JOBS).json()) == 1
    for other in ({"work": "compact", "options": {}}, {"options": {"at_least": 2}}):
        assert refused(client, JOBS, document | other)[:2] == (409, "BatchMismatch")
    for odd in ("short", "x" * 65, "with/slash", "with blank", "é" * 9):
        assert refused(client, JOBS, document | {"id": odd})[0] == 422


def test_only_so_many_jobs_are_remembered(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of those that are over are forgotten first."""
    monkeypatch.setattr(jobs, "FINISHED", 3)
    paths = []
    for _ in range(5):
        paths.append(start(client, "compact"))
        ended(client, paths[-1])
    reply = client.get(paths[0])
    assert (reply.status_code, reply.json()["error"]) == (404, "KeyMissing")
    assert [f"{JOBS}/{one['job']}" for one in client.get(JOBS).json()] == paths[-3:]


def test_jobs_are_for_those_who_may_write(tmp_path: Path) -> None:
    """A reader may look at them, and a store that is only read may be checked and copied."""
    (tmp_path / "backups").mkdir()
    path = store(tmp_path)
    with serving(path, reader=True) as client:
        for work in jobs.WORKS:
            assert refused(client, JOBS, {"work": work})[:2] == (403, "AccessRefused")
        assert client.delete(f"{JOBS}/any").status_code == 403
        assert client.get(JOBS).json() == []
    with serving(path, read_only=True, backups=str(tmp_path / "backups"), model="static") as client:
        for work in (name for name, one in jobs.WORKS.items() if one.writes):
            assert refused(client, JOBS, {"work": work})[:2] == (403, "AccessRefused")
        for work in ("check", "backup"):
            assert ended(client, start(client, work))["state"] == "done"


def test_items_are_added_and_looked_up_while_a_store_is_tuned(tmp_path: Path) -> None:
    """The job runs before, between and after."""
    with serving(store(tmp_path, 8000)) as client:
        path = start(client, "tune")
        until(lambda: client.get(path).json()["progress"] is not None)
        for number in range(3):
            added = ask(client, "/v1/fruit/items", {"keys": f"new {number}", "values": 1.0, "vectors": [1.0] * 5})
            assert added["count"] == 1
            assert ask(client, "/v1/fruit/lookup", {"query": [1.0] * 5})["scored"] == 8001 + number
            assert client.get(path).json()["state"] == "running"
        client.delete(path)
        assert ended(client, path)["state"] == "cancelled"


def test_a_server_that_ends_cancels_its_jobs(tmp_path: Path) -> None:
    """Those that wait do not begin, and those that run end soon."""
    stores = Stores.open([store(tmp_path, 8000)])
    served = stores["fruit"]
    tuning, waiting = served.jobs.start("tune", {}), served.jobs.start("build_index", {})
    until(lambda: tuning.told()["progress"] is not None)
    stores.close()
    assert (tuning.state, waiting.state) == ("cancelled", "cancelled")
    with softkv.open(tmp_path / "fruit") as db:
        assert db.check().ok


def test_a_server_that_ends_waits_for_what_cannot_be_cancelled(tmp_path: Path) -> None:
    """The work is done then, whatever else has ended meanwhile."""
    stores = Stores.open([store(tmp_path)])
    served = stores["fruit"]
    with served.handle._changing:
        job = served.jobs.start("compact", {})
        until(lambda: job.state == "running")
        ending = threading.Thread(target=stores.close)
        ending.start()
        until(lambda: served.jobs._lanes[True]._shutdown)
    ending.join(PATIENCE)
    assert (job.state, job.problem) == ("done", None)


async def watched(app: Any, path: str, enough: Callable[[str], bool]) -> str:
    """What a client receives that leaves when it has enough."""
    left, heard = asyncio.Event(), []

    async def receive() -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        heard.append(message.get("body", b"").decode())
        if enough("".join(heard)):
            left.set()

    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http"}
    scope |= {"method": "GET", "path": path, "query_string": b"", "headers": [], "server": ("x", 80), "root_path": ""}
    await asyncio.wait_for(app(scope, receive, send), PATIENCE)
    return "".join(heard)


def test_who_watches_hears_that_the_server_is_there_and_may_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats come while there is nothing new; afterwards nobody is told anything, and the job goes on."""
    monkeypatch.setattr(jobs, "HEARTBEAT", 0.01)
    stores = Stores.open([store(tmp_path)])
    served, app = stores["fruit"], make_app(stores)
    with served.handle._changing:
        job = served.jobs.start("compact", {})
        path = f"{JOBS}/{job.id}/events"

        async def several() -> list[str]:
            enough: Callable[[str], bool] = lambda text: text.count(": nothing new") > 2  # noqa: E731
            found = await asyncio.gather(*(watched(app, path, enough) for _ in range(5)))
            for _ in range(3):
                await asyncio.sleep(0)  # generators are closed by the loop
            return list(found)

        heard = asyncio.run(several())
    assert all(events_in(text)[0][1]["state"] == "running" for text in heard)
    assert not job._watchers
    last = asyncio.run(watched(app, path, lambda text: "event: result" in text))
    assert events_in(last)[-1][1]["state"] == "done"
    stores.close()
