"""Every bug in planted.py is found by a test that was not written for it, and by what it says.

The same ways of looking find nothing in a store that is right.
"""

import re
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from tests import test_calibration, test_compaction, test_index_files, test_labels, test_snapshot
from tests.crash import hunters, test_processes
from tests.crash.hunters import Grounds, Hunter
from tests.crash.planted import BUGS
from tests.crash.recorder import Nursery, sqlite_is_told

pytestmark = [pytest.mark.slow, pytest.mark.ci]

_LOST = "lost|too many|StoreDamaged|IndexDamaged|do not match|the store is gone|index file|will stay for ever"

FOUND: dict[str, tuple[Hunter, str]] = {  # bug: who finds it, and what he says of it
    "values are not synced": (hunters.power(), _LOST),
    "index files are not synced": (hunters.power("index files"), _LOST),
    "new generations are not synced": (hunters.power(), _LOST),
    "directories are not synced": (hunters.power(), _LOST),
    "rows are written at the end of the file": (hunters.power(), _LOST),
    "the commit comes before the sync": (hunters.power(), _LOST),
    "the catalog is not synced at commits": (hunters.power(), _LOST),
    "the old generation goes before the switch": (hunters.points("compact"), "missing|cannot be pinned"),
    "a batch takes two commits": (hunters.points("batch"), "back or too many"),
    "rows behind the committed ones are shown": (
        hunters.points("batch"),
        "names, but|the list of items|StoreDamaged|out of bounds",
    ),
    "deaths do not reach the bitmaps": (hunters.kills(), "the list of items|do not add up"),
    "nobody tidies up after a crash": (hunters.points("compact"), "left over"),
    "norms that were not synced are not mended": (hunters.points("open"), "norms"),
    "a failed sync is tried again": (hunters.refusals("add"), "syncs again what failed"),
    "a failed sync does not end the handle": (hunters.refusals("add"), "syncs again what failed"),
    "a short write counts as whole": (hunters.refusals("batch"), _LOST),
    "an uncertain commit is said to have failed": (hunters.refusals("add"), "syncs again|reader says|handle says"),
    "label counts of a failed commit stay": (hunters.refusals("batch", "label"), "counts of labels"),
    "a second connection for writing is pooled": (hunters.refusals("add"), "still open"),
    "the catalog is opened beside SQLite": (hunters.points("add"), "opens the catalog beside"),
    "rows are mapped for writing": (hunters.points("replace"), "maps a file for writing"),
    "every question is a transaction of its own": (
        hunters.readers(),
        "the list of items|do not add up|not what commit \\d+ said|no such table: items_",
    ),
    "index files are believed without their checksum": (
        hunters.by_test(test_index_files.test_every_byte_of_an_index_file_counts),
        "DID NOT RAISE",
    ),
    "checksums are taken from the file": (
        hunters.by_test(test_snapshot.test_a_flipped_bit_is_an_error_where_it_is_read),
        "DID NOT RAISE",
    ),
    "compaction copies what it did not verify": (
        hunters.by_test(test_compaction.test_damage_is_not_carried_into_a_new_generation),
        "DID NOT RAISE",
    ),
    "a label is remembered that was never committed": (
        hunters.by_test(test_labels.test_a_label_that_was_never_committed_is_not_remembered),
        "blue",
    ),
    "no writer takes the lock": (
        hunters.by_test(test_processes.test_a_second_writer_is_refused_at_once_with_the_pid_of_the_first),
        "DID NOT RAISE",
    ),
    "no reader takes a pin": (
        hunters.by_test(test_compaction.test_a_snapshot_keeps_its_generation_until_it_is_closed),
        "no such table",
    ),
    "the end of a child releases the lock": (hunters.by_test(test_processes.test_a_forked_child_is_refused), "locked"),
    "a child keeps the lock of its parent": (
        hunters.by_test(test_processes.test_a_dead_parent_leaves_no_lock_with_its_forked_child),
        "StoreLocked",
    ),
    "a writer is fenced before its work only": (hunters.takeovers(), "UNIQUE"),
    "calibrated errors are understated": (
        hunters.by_test(test_calibration.test_plans_keep_what_they_promise, confidence=0.95, temperature=1),
        "assert .* <= 4|assert .* > ",
    ),
    "bounds are understated": (hunters.auditors(), "further off than an error that always holds"),
    "a reader stays at its first commit": (hunters.auditors(), "was seen or announced"),
    "a part has the number of another commit": (hunters.points("derive"), "derived part"),
    "a reader of an old commit sees newer parts": (hunters.auditors(), "a derived part is of a later commit"),
    "parts outlive the index file of their name": (hunters.power("parts of an index"), "derived parts have"),
    "deaths stay in the sums of lists": (hunters.points("note"), "lists count other rows|has another mean"),
    "an assignment is lost": (hunters.points("note", "vector"), "lists count other rows"),
    "a sum is noted without its row": (hunters.points("note"), "lists count other rows"),
    "a backup names rows before they are synced": (hunters.power("backups"), f"{_LOST}|was cut off|is missing"),
    "a backup keeps the note of the earlier one": (hunters.points("backup"), "the last writer closed at commit"),
}


FALSE_ALARMS = {hunter.name: hunter for hunter, _ in FOUND.values() if hunter.within > 1}


def test_every_planted_bug_is_looked_for() -> None:
    """None was forgotten."""
    assert set(FOUND) == set(BUGS) - {""}


@pytest.mark.parametrize("bug", FOUND)
def test_a_planted_bug_is_found(nursery: Nursery, quick: Path, tmp_path: Path, seed: int, bug: str) -> None:
    """Some runs of what the suite does anyway find it, and for the right reason."""
    if "beside SQLite" in bug and not sqlite_is_told():
        pytest.skip("SQLite's calls cannot be told from Python's here")
    hunter, words = FOUND[bug]
    grounds = Grounds(bug, Random(f"{seed} {bug}"), nursery, quick, tmp_path)
    runs, found = _looked(hunter, grounds, hunter.within)
    print(f"{bug} | {hunter.name} | {runs} | {found[-1:]}")
    assert found, f"{bug}: {hunter.name} noticed nothing in {runs} runs"
    assert re.search(words, "\n".join(found)), f"{bug} was found by something else: {found}"


@pytest.mark.parametrize("name", FALSE_ALARMS)
def test_nothing_is_found_where_no_bug_is(nursery: Nursery, quick: Path, tmp_path: Path, seed: int, name: str) -> None:
    """A way of looking that always cries would find every bug."""
    grounds = Grounds("", Random(f"{seed} {name}"), nursery, quick, tmp_path)
    assert _looked(FALSE_ALARMS[name], grounds, 1) == (1, [])


def _looked(hunter: Hunter, grounds: Grounds, most: int) -> tuple[int, list[str]]:
    """After how many runs something was found, and the lines that say what."""
    runs = 0
    try:
        for _ in islice(hunter.look(grounds), most):
            runs += 1
    except AssertionError as error:
        return runs + 1, str(error).rstrip().splitlines()
    return runs, []
