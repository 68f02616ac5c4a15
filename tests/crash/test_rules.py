"""The rules for recorded processes are kept by a store, and each is seen broken once."""

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.crash import calls
from tests.crash.calls import Call
from tests.crash.recorder import Nursery, Plan, sqlite_is_told
from tests.crash.rules import broken, durable_commits

pytestmark = pytest.mark.slow


def calls_of(nursery: Nursery, chore: str, path: Path, log: Path, **plan: Any) -> list[Call]:
    """The calls of one chore."""
    log.unlink(missing_ok=True)
    with nursery.child(f"tests.crash.chores:{chore}", path, Plan(str(path.parent), str(log), **plan)) as child:
        list(child.all())
        assert child.wait() == 0
    return calls.read(log)


def test_a_store_keeps_the_rules(nursery: Nursery, tmp_path: Path) -> None:
    """It does so from its making to its close; and each of its commits is synced."""
    (tmp_path / "in").mkdir()
    log = calls_of(nursery, "whole_store", tmp_path / "in" / "store", tmp_path / "log")
    assert not broken(log, told=sqlite_is_told())
    assert (
        durable_commits(log) == 9
    )  # two to make it, to open, add, delete, index and compact, to tidy up, and to close


def test_every_rule_is_seen_broken(nursery: Nursery, tmp_path: Path) -> None:
    """A map for writing, the catalog opened by somebody else, rows that are named without a sync."""
    path = tmp_path / "in" / "store"
    path.parent.mkdir()
    calls_of(nursery, "whole_store", path, tmp_path / "log")
    found = "\n".join(broken(calls_of(nursery, "bad_manners", path, tmp_path / "log")))
    assert "maps a file for writing" in found
    assert "opens the catalog beside SQLite" in found
    assert "keys.f32 is named by a commit before it is durable" in found
    assert "values.number is named by a commit before it is durable" in found


def test_a_second_sync_after_a_failed_one_is_noticed(nursery: Nursery, tmp_path: Path) -> None:
    """The system reports success then, over pages that it has dropped."""
    (tmp_path / "in").mkdir()
    log = calls_of(nursery, "stubborn", tmp_path / "in" / "file", tmp_path / "log", failing=2, error=errno.EIO)
    assert [one.split(":")[0] for one in broken(log)] == ["syncs again what failed to be synced"]


@pytest.mark.parametrize(
    "left_out", ["generation-000001/keys.f32", "generation-000001/values.number", "index/3", "index"]
)
def test_a_sync_that_is_left_out_is_noticed(nursery: Nursery, tmp_path: Path, left_out: str) -> None:
    """It may be of a file or of a directory: whatever needs it does not pass without it."""
    path = tmp_path / "in" / "store"
    path.parent.mkdir()
    log = calls_of(nursery, "whole_store", path, tmp_path / "log")
    kept = [call for call in log if not (call.name in ("fsync", "fdatasync") and call.path.endswith(left_out))]
    assert len(kept) < len(log)
    assert broken(kept)


def test_a_commit_that_is_not_synced_is_noticed(nursery: Nursery, tmp_path: Path) -> None:
    """The rules find a commit that is not synced, and a log of SQLite whose name is not."""
    path = tmp_path / "in" / "store"
    path.parent.mkdir()
    log = calls_of(nursery, "whole_store", path, tmp_path / "log")
    kept = [call for call in log if not (call.name == "fdatasync" and call.path.endswith("-wal"))]
    assert any("is acknowledged before it is durable" in one for one in broken(kept))
    kept = [call for call in log if not (call.name in ("fsync", "fdatasync") and call.path == "store")]
    assert any("catalog.sqlite-wal is acknowledged before" in one for one in broken(kept))


@pytest.mark.parametrize("failed", [0, errno.ENOSPC])
def test_a_commit_of_which_the_last_page_did_not_fit_is_none(failed: int) -> None:
    """A part of it was written, and the rest was not: that is no commit, and one of which all was written is."""
    log = "store/catalog.sqlite-wal"
    header = Call(1, "write", log, 32, 24, bytes(4) + b"\0\0\0\7" + bytes(16))
    pages = [Call(2, "write", log, 56, 1000), Call(3, "write", log, 1056, 3096, error=failed)]
    wrong = broken([header, *pages, Call(4, "mark", "", target="done")])
    assert [one.split(" before")[0] for one in wrong] == ([] if failed else [f"{log} is acknowledged"])
