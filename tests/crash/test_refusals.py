"""Every write-class call of all workloads is refused, with several errors, once and until space returns.

The error is ours and of the right kind; nothing is half committed; reading goes on with the same handle and a new one;
and the next write works, with the same handle or, where it says that it is done, with a new one.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from softkv.asking.indexed import CHECKED, NAME
from softkv.storage import Store
from tests.crash.calls import Call
from tests.crash.canonical import CHANGING, COPYING, NAMES, WORKLOADS, outcomes_of, windows
from tests.crash.recorder import KINDS, SHORT, Nursery
from tests.crash.rules import durable_commits
from tests.crash.stage import Stage, canons, share

pytestmark = pytest.mark.slow

CASES = 24  # of each workload, in the default share
ERRORS = {errno.ENOSPC: "ENOSPC", errno.EIO: "EIO", errno.EDQUOT: "EDQUOT", errno.EROFS: "EROFS", SHORT: "short"}
SYNCS = ("fsync", "fdatasync")
_SQLITE_KNOWS = {errno.ENOSPC: {"StorageFull"}, errno.EROFS: {"AccessRefused"}}
_OURS = {
    errno.ENOSPC: "StorageFull",
    errno.EDQUOT: "StorageFull",
    errno.EIO: "StorageFailed",
    errno.EROFS: "AccessRefused",
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_whatever_is_refused_is_said_and_nothing_is_lost(
    name: str, nursery: Nursery, seed: int, thorough: bool, tmp_path: Path
) -> None:
    """Space runs out for one call, and from a call on until it returns."""
    random = Random(f"{seed} refusals")
    stage = Stage(nursery, tmp_path / "stage", canons(random)[NAMES.index(name)])
    cases = list(_cases(stage))
    for call, error, sticky in share(cases, 0 if thorough else CASES, Random(f"{seed} {name}")):
        _refuse(stage, call, error, sticky=sticky)
    print(f"{stage.canon}: {len(cases)} cases; {dict(stage.counted)}")
    assert stage.counted["refused"] >= (0.9 if thorough else 0.7) * stage.counted["cases"]  # of few, chance takes some


def test_what_is_refused_to_a_note_is_that_of_a_real_one(nursery: Nursery, seed: int, tmp_path: Path) -> None:
    """An index is noted, and a verdict on its calibration: both are there once nothing was refused."""
    stage = Stage(nursery, tmp_path / "stage", canons(Random(f"{seed} notes"))[NAMES.index("note")])
    stage.set()
    stage.play("tests.crash.refusals:attempt")
    with windows(stage.canon), Store.open(stage.path, "r") as store, store.snapshot() as snapshot:
        assert snapshot.derived_numbers(NAME)
        assert snapshot.derived_numbers(CHECKED)


def _cases(stage: Stage) -> Iterator[tuple[Call, int, bool]]:
    """Every call of the workload that writes, every error it can meet there, once and lasting."""
    stage.set()
    _, said, log = stage.play("tests.crash.refusals:attempt")
    assert [message[1] for message in said] == ["done", stage.canon.name != "close"]
    end = next(call.number for call in log if call.target == "done")
    for call in log[:end]:
        for error in ERRORS:
            if call.name in KINDS[error] and not _cannot_fail(call, error):
                if error != errno.EROFS:  # a disk that was found faulty is read-only from then on
                    yield call, error, False
                yield call, error, True


def _cannot_fail(call: Call, error: int) -> bool:
    """An open that makes nothing, a truncate that takes no space, a byte that cannot be halved: left alone."""
    if call.name == "open":
        return not call.flags & os.O_CREAT
    if call.name == "truncate":
        return error not in (errno.EIO, errno.EROFS)
    return error == SHORT and call.length < 2


def _refuse(stage: Stage, call: Call, error: int, *, sticky: bool) -> None:
    stage.set()
    where = f"{ERRORS[error]}{' from' if sticky else ' at'} call {call} of {stage.canon}"
    try:
        status, said, log = stage.play("tests.crash.refusals:attempt", failing=call.number, error=error, sticky=sticky)
        assert status == 0
    except AssertionError as failure:
        raise AssertionError(f"{where}: {failure}") from failure
    outcome, usable = said[0][1], said[1][1]
    stage.counted.update({"cases": 1, "refused": any(one.error == error or error == SHORT for one in log), outcome: 1})
    stage.counted["handle done"] += not usable
    tellable = set.union({"done"}, *(right(one, error) for one in log if one.error == error))
    assert outcome in outcomes_of(stage.canon, tellable), f"{where} became {said[0]}"
    if outcome == "StorageFull" and stage.canon.name not in ("open", "migrate", "close", *COPYING):
        assert usable, f"{where} became {said[0]}, which promises that the handle goes on"
    if outcome == "done" and stage.canon.name in CHANGING:
        told = [number for number, one in enumerate(log) if one.name == "mark"][:2]
        assert durable_commits(log[told[0] : told[1]]), f"{where}: acknowledged, but no commit is durable"


def right(met: Call, error: int) -> set[str]:
    """The outcomes that tell the truth about this call having failed."""
    if error == SHORT:
        return {"done"}
    if met.sqlite and error == errno.ENOSPC and met.name == "write" and met.path.endswith("-wal"):
        return {"done", "StorageFull"}  # the commit certainly did not happen
    if met.sqlite:  # it has one word for all that it does not know
        opening = {"AccessRefused"} if met.name == "open" else set()  # "unable to open database file"
        return {"done", "StorageFailed", "CommitUncertain"} | opening | _SQLITE_KNOWS.get(error, set())
    if met.name in SYNCS:
        return {"done", "StorageFailed"}  # perhaps lost, for whatever reason: never to be tried again
    return {"done", _OURS[error]}
