"""A server whose clock is set to another day: seconds go on as before, and only the age of batches follows."""

import time
from pathlib import Path
from typing import Any

import pytest

import softkv

from .databases import filled, vectors_of
from .listening import listening
from .serving import ask, serving

DAY = 24 * 3600.0
BEGAN = time.time() - time.monotonic()
ITEMS = "/v1/fruit/items"
BATCH = {"values": [1.0, 2.0], "vectors": vectors_of(2).tolist(), "batch": "monday"}


def set_clock(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Let the wall clock be wrong by so many days."""
    monkeypatch.setattr(time, "time", lambda: time.monotonic() + BEGAN + days * DAY)


@pytest.mark.parametrize("days", [-10_000, -1, 1, 10_000])
def test_snapshots_deadlines_and_jobs_do_not_follow_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    """None ends early, and none is kept longer, whichever way the clock jumps."""
    filled(tmp_path / "fruit", "number", 600).close()
    with listening(tmp_path / "fruit") as url, softkv.open(f"{url}/fruit", token="") as db:
        then, stages = db.snapshot(), list[str]()

        def jump(stage: str, *_: object) -> None:
            if not stages:
                set_clock(monkeypatch, days)
            stages.append(stage)

        assert db.build_index(lists=4, progress=jump).index is not None
        assert stages
        db.delete("item 1")
        assert (len(then), len(db)) == (600, 599)
        assert then.lookup(vectors_of(1)[0]).scored == 600
    with serving(tmp_path / "fruit") as client:
        lease = ask(client, "/v1/fruit/snapshots", {})
        set_clock(monkeypatch, -days)
        named = {"softkv_snapshot": lease["snapshot"], "softkv_deadline": "9"}
        assert ask(client, "/v1/fruit/lookup", {"query": [1.0] * 5}, **named)["scored"] == 599


@pytest.mark.parametrize("days", [-10_000, -1, 1, 6.9])
def test_a_batch_is_known_when_the_clock_has_jumped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    """Backwards by whatever time, and forwards by less than a week, also when others write and when it jumps back."""
    filled(tmp_path / "fruit", "number").close()
    with serving(tmp_path / "fruit") as client:
        first = ask(client, ITEMS, BATCH)
        for wrong in (days, 0.0):
            set_clock(monkeypatch, wrong)
            ask(client, ITEMS, BATCH | {"batch": f"at {wrong}"})
            assert ask(client, ITEMS, BATCH) == first
    with serving(tmp_path / "fruit") as client:
        assert ask(client, ITEMS, BATCH) == first


def test_a_clock_that_jumps_by_more_than_a_week_forgets_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent again after that is written again, which docs/server.md says."""
    filled(tmp_path / "fruit", "number").close()
    with serving(tmp_path / "fruit") as client:
        first: Any = ask(client, ITEMS, BATCH)
        set_clock(monkeypatch, 8)
        assert ask(client, ITEMS, BATCH)["first_number"] == first["first_number"] + 2
