"""All workloads are ended before, after, and in the middle of every call that they make of the operating system.

Whoever comes first, a reader, finds each of them wholly done or not at all, and done when it was acknowledged. Then a
writer opens the store, and is ended at a call as well; the next one finds the same, and goes on.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.crash.canonical import CHANGING, NAMES, WORKLOADS, Canon
from tests.crash.recorder import AFTER, BEFORE, MIDWAY, Nursery
from tests.crash.stage import Stage, canons, killed, share

pytestmark = pytest.mark.slow

POINTS = 24  # of each workload, in the default share
MOMENTS = {BEFORE: "before", AFTER: "after", MIDWAY: "midway"}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_death_at_any_call_leaves_all_or_nothing(
    name: str, nursery: Nursery, seed: int, thorough: bool, tmp_path: Path
) -> None:
    """The calls are those of a workload, and of the recovery after it."""
    random = Random(f"{seed} points")
    stage = Stage(nursery, tmp_path / "stage", canons(random)[NAMES.index(name)])
    points = list(_points(stage))
    random = Random(f"{seed} {name}")
    for fatal, moment in share(points, 0 if thorough else POINTS, random):
        _die_and_recover(stage, fatal, moment, random)
    found = stage.counted
    print(f"{stage.canon}: {len(points)} points; {dict(found)}")
    assert found["killed"] >= 0.9 * found["points"]
    if name in CHANGING:
        assert found["in doubt"]
    assert found["killed while recovering"] > found["points"] // 3


def test_half_a_batch_is_noticed(nursery: Nursery, tmp_path: Path) -> None:
    """A store that did in two commits what is to happen at once would be found out."""
    stage = Stage(nursery, tmp_path / "stage", Canon("batch", "number", False))
    stage.set()
    stage.play("tests.crash.chores:half_a_batch")
    with pytest.raises(AssertionError, match="back or too many"):
        recover(stage, 0, done=None)


def test_a_lost_batch_is_noticed(nursery: Nursery, tmp_path: Path) -> None:
    """A store that acknowledged what it did not keep would be found out."""
    stage = Stage(nursery, tmp_path / "stage", Canon("batch", "number", False))
    stage.set()
    with pytest.raises(AssertionError, match="lost"):
        recover(stage, 0, done=True)


def _points(stage: Stage) -> Iterator[tuple[int, int]]:
    """Every call of a workload, and the moments at which one can die there."""
    stage.set()
    status, said, log = stage.play("tests.crash.canonical:run")
    assert (status, said) == (0, [["begin"], ["done"]])
    recover(stage, 0, done=True)
    for call in log:
        yield call.number, BEFORE
        if call.name == "write" and call.length > 1:
            yield call.number, MIDWAY
        yield call.number, AFTER


def _die_and_recover(stage: Stage, fatal: int, moment: int, random: Random) -> None:
    stage.set()
    status, said, log = stage.play("tests.crash.canonical:run", fatal=fatal, moment=moment)
    done = ["done"] in said
    where = f"killed {MOMENTS[moment]} call {fatal}, after {log[-1:]}, in {stage.canon}"
    stage.counted.update({"points": 1, "killed": killed(status), "in doubt": killed(status) and not done})
    try:
        happened = recover(stage, random.randrange(1, 60), done=done or None)
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error
    stage.counted["came through"] += happened and not done and stage.canon.name in CHANGING


def recover(stage: Stage, fatal: int, *, done: bool | None) -> bool:
    """Read, then write after another death in the opening, if there is to be one; whether the workload happened."""
    if fatal:
        status, said, _ = stage.play("tests.crash.canonical:recover", done, fatal=fatal, moment=BEFORE)
        stage.counted["killed while recovering"] += killed(status)
        if not killed(status):
            return bool(said[0][1])
        done = bool(said[0][1])
    _, said, _ = stage.play("tests.crash.canonical:recover", done)
    return bool(said[0][1])
