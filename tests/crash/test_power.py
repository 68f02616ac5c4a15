"""The power is lost after any call of the operating system, with any of what was not synced.

Sessions of one writer are recorded, every call of Python's and of SQLite's. After some calls of each session, and for
some of the states in which the disk may be left then, the store is laid down, opened and compared with what the session
had been told. Some of the recoveries are recorded as well, and the power is lost in the middle of them.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.crash.blackouts import Hunt, Toll, recorded, recoveries, stale_memory
from tests.crash.recorder import Nursery
from tests.crash.rows import KINDS
from tests.crash.sessions import COURSES, Session

pytestmark = [pytest.mark.slow, pytest.mark.ci]

STATES, THOROUGH = 1_000, 100_000  # different ones, at least
POINTS, EACH = 30, 6  # calls of a session after which the power is lost, and ways in which it is
LONG = 3  # times as many of both in the long version


def test_nothing_acknowledged_is_lost_with_the_power(
    nursery: Nursery, quick: Path, tmp_path: Path, seed: int, thorough: bool
) -> None:
    """It may end after any call, with any of what was not synced: operations are whole, sound, and work goes on."""
    random, total = Random(f"{seed} power"), Toll()
    while total.states < (THOROUGH if thorough else STATES):
        for session in sessions(random):
            total.add(blackout(nursery, session, quick, tmp_path / "wrong", random, LONG if thorough else 1))
            if thorough:
                print(f"{session}: {total}", flush=True)
    print(total)
    assert total.in_doubt > total.states // 3  # else the power is never lost when it matters
    assert total.came_through
    assert total.recoveries


def sessions(random: Random) -> Iterator[Session]:
    """One of each course, with values of a kind by chance."""
    for name in COURSES:
        kind = {"lists": "number", "notes": "vector"}.get(name) or random.choice(KINDS)
        yield Session(name, kind, random.randrange(10**6), tiny=random.random() < 0.5)


def blackout(nursery: Nursery, session: Session, folder: Path, evidence: Path, random: Random, times: int) -> Toll:
    """Record a session and lose the power in it, and in some recoveries."""
    log, seed = recorded(nursery, session, folder), random.random()
    hunt = Hunt(session, log, folder, evidence, EACH * times, stale=stale_memory(session, log, folder))
    toll, left = hunt.run(seed, hunt.points(random, POINTS * times), kept=0.2)
    toll.sessions = 1
    for second in recoveries(nursery, hunt, seed, random.sample(left, min(len(left), times)), POINTS * times // 6):
        toll.add(second)
    return toll
