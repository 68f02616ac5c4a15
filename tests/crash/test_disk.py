"""The model of a disk that loses its power, against logs small enough to say by hand what may be left."""

import os
from random import Random

import pytest

from tests.crash.calls import Call
from tests.crash.disk import DELETED, PAGE, SECTOR, Disk, Tree
from tests.crash.outages import outages

MANY = 400  # outages, enough to meet all states of a small log
A, B, C, Z = (letter * SECTOR for letter in (b"a", b"b", b"c", b"\0"))
CREATE = os.O_CREAT | os.O_RDWR


def log(*calls: tuple[object, ...]) -> list[Call]:
    """A log from short lines: the name of the call, the path, and what else it takes."""
    return [_call(number, *call) for number, call in enumerate(calls, 1)]


def _call(number: int, name: str, path: str, *more: object) -> Call:
    fields = {"open": ["flags"], "write": ["offset", "data", "error"], "truncate": ["length"], "rename": ["target"]}
    return Call(number, name, path, **dict(zip(fields.get(name, ["error"]), more, strict=False)))  # type: ignore[arg-type]


def left(calls: list[Call], beginning: Tree | None = None) -> list[Tree]:
    """All that may be found, each once, the emptiest first."""
    disk, random = Disk(beginning).replay(calls), Random(7)
    found = {tuple(sorted(one.tree(disk, random).items())) for one in outages(disk, random, MANY)}
    return [dict(one) for one in sorted(found, key=lambda tree: [(name, content or b"") for name, content in tree])]


def contents(calls: list[Call], beginning: bytes, name: str = "f") -> set[bytes | None]:
    """All that may be found in one file of one directory that is there from the beginning."""
    return {tree.get(name) for tree in left(calls, {name: beginning})}


# Contents


def test_what_was_not_synced_may_be_there_or_not() -> None:
    """Old and new are possible, and nothing else: a sector is written wholly or not at all."""
    assert contents(log(("write", "f", 0, B)), A) == {A, B}


def test_what_was_synced_is_there() -> None:
    """Either sync will do; what follows is in doubt again."""
    for sync in ("fsync", "fdatasync"):
        assert contents(log(("write", "f", 0, B), (sync, "f")), A) == {B}
        assert contents(log(("write", "f", 0, B), (sync, "f"), ("write", "f", 0, C)), A) == {B, C}


def test_a_failed_sync_makes_nothing_durable() -> None:
    """A sync that fails makes nothing durable, and a write that fails writes no more than a part."""
    assert contents(log(("write", "f", 0, B), ("fsync", "f", 5)), A) == {A, B}
    assert contents(log(("write", "f", 0, B, 28), ("write", "f", 0, b"", 28)), A + A) == {A + A, B + A}


def test_a_page_may_be_torn_between_sectors() -> None:
    """Each sector of a page is old or new, in all combinations."""
    assert contents(log(("write", "f", 0, B + B)), A + A) == {A + A, A + B, B + A, B + B}


def test_pages_are_written_in_any_order() -> None:
    """The second may be there without the first."""
    old, new = b"a" * PAGE, b"b" * PAGE
    found = contents(log(("write", "f", 0, new), ("write", "f", PAGE, new)), old + old)
    assert {old + old, old + new, new + old, new + new} <= found
    assert all(len(state or b"") == 2 * PAGE for state in found)


def test_a_page_may_be_as_it_was_between_two_writes() -> None:
    """The system may write it at any time."""
    assert contents(log(("write", "f", 0, B), ("write", "f", 0, C)), A) == {A, B, C}


def test_a_file_may_have_grown_without_what_was_written() -> None:
    """Its length is old, new or between; behind the durable end are zeros, garbage or what was written."""
    found = contents(log(("write", "f", SECTOR, B)), A)
    assert {A, A + B, A + Z} <= found
    assert all((state or b"").startswith(A) and len(state or b"") <= 2 * SECTOR for state in found)
    strange = {state for state in found if state and state[SECTOR:] not in (b[: len(state) - SECTOR] for b in (B, Z))}
    assert strange, "nowhere is garbage"
    assert {len(state or b"") for state in found} - {SECTOR, 2 * SECTOR}, "no length is between"


def test_a_truncation_may_not_have_happened() -> None:
    """It is one change: nothing between, and no zeros in what was cut away."""
    assert contents(log(("truncate", "f", SECTOR)), A + B) == {A + B, A}
    assert contents(log(("truncate", "f", 0)), A * 40) == {A * 40, b""}
    assert contents(log(("truncate", "f", 0), ("fsync", "f")), A + B) == {b""}


def test_what_was_cut_away_does_not_come_back_with_what_was_written_later() -> None:
    """A file that shrank and grew is as it was before, or shrunk, or grown from there."""
    found = contents(log(("truncate", "f", 0), ("write", "f", SECTOR, C)), A + B + B)
    assert {A + B + B, b"", Z + C, Z + Z} <= found
    assert all(state == A + B + B or not (A in state or B in state) for state in found if state is not None)
    assert any(state and set(state) - set(A + B + C + Z) for state in found), "nowhere is garbage"


def test_opening_may_truncate() -> None:
    """A file is emptied where the flag says so."""
    assert {A, b""} <= contents(log(("open", "f", os.O_WRONLY | os.O_TRUNC)), A)
    assert contents(log(("open", "f", os.O_WRONLY | os.O_CREAT)), A) == {A}


def test_a_gap_holds_zeros() -> None:
    """What was never written is never garbage."""
    found = contents(log(("write", "f", 2 * PAGE, B), ("fsync", "f")), A)
    assert found == {A + bytes(2 * PAGE - SECTOR) + B}


def test_a_file_written_through_memory_is_never_durable() -> None:
    """It may be gone, old, zeros or garbage, synced or not."""
    calls = log(("write", "f", 0, B), ("fsync", "f"), ("fsync", ""))
    calls.append(Call(4, "mmap", "f", length=SECTOR, flags=0x103))
    found = contents(calls, A)
    assert {None, B, bytes(PAGE)} < found
    calls[-1] = Call(4, "mmap", "f", length=SECTOR, flags=0x101)  # only read
    assert contents(calls, A) == {B}


# Names


def test_a_new_file_is_there_once_its_directory_was_synced() -> None:
    """Syncing the file makes its content durable, not its name."""
    calls = log(("open", "f", CREATE), ("write", "f", 0, B), ("fsync", "f"), ("fsync", ""))
    assert left(calls[:3]) == [{}, {"f": B}]
    assert left(calls) == [{"f": B}]
    assert left([*calls[:2], calls[3]]) != [{"f": B}]


def test_a_rename_is_one_change() -> None:
    """The file has one name of the two, and what it had replaced is there or gone."""
    calls = log(("rename", "f", "g"), ("fsync", ""))
    assert left(calls[:1], {"f": A}) == [{"f": A}, {"g": A}]
    assert left(calls[:1], {"f": A, "g": B}) == [{"f": A, "g": B}, {"g": A}]
    assert left(calls, {"f": A, "g": B}) == [{"g": A}]


def test_a_removed_file_may_come_back() -> None:
    """A file that was removed may be back until its directory is synced."""
    calls = log(("unlink", "f"), ("fsync", ""))
    assert left(calls[:1], {"f": A}) == [{}, {"f": A}]
    assert left(calls, {"f": A}) == [{}]


def test_changes_of_names_happen_in_any_order() -> None:
    """The later may be there without the earlier."""
    found = left(log(("open", "f", CREATE), ("unlink", "g")), {"g": A})
    assert sorted(sorted(tree) for tree in found) == [[], ["f"], ["f", "g"], ["g"]]


def test_a_name_may_lead_to_what_it_led_to_before() -> None:
    """A file that was removed and made again is old, gone or new."""
    calls = log(("unlink", "f"), ("open", "f", CREATE), ("write", "f", 0, B), ("fsync", "f"))
    assert left(calls, {"f": A}) == [{}, {"f": A}, {"f": B}]


def test_what_lies_in_a_new_directory_is_there_when_both_are() -> None:
    """The names in it need its own sync, its name that of the directory above."""
    calls = log(("mkdir", "d"), ("open", "d/f", CREATE), ("fsync", "d"), ("fsync", ""))
    assert left(calls[:2]) == [{}, {"d": None}, {"d": None, "d/f": b""}]
    assert left(calls[:3]) == [{}, {"d": None, "d/f": b""}]
    assert left([*calls[:2], calls[3]]) == [{"d": None}, {"d": None, "d/f": b""}]
    assert left(calls) == [{"d": None, "d/f": b""}]


def test_a_removed_directory_may_come_back_empty_or_not() -> None:
    """Its files went for themselves."""
    found = left(log(("unlink", "d/f"), ("rmdir", "d")), {"d": None, "d/f": A})
    assert found == [{}, {"d": None}, {"d": None, "d/f": A}]


def test_a_file_keeps_its_content_when_its_directory_is_renamed() -> None:
    """It may be named as before or as now when it is synced or written."""
    calls = log(("mkdir", "d"), ("open", "d/f", CREATE), ("fsync", "d"), ("rename", "d", "e"), ("fsync", ""))
    for name in ("d/f", "e/f"):
        more = log(("write", name, 0, B), ("fsync", name))
        assert left([*calls, *more]) == [{"e": None, "e/f": B}]


def test_a_removed_file_that_is_open_takes_writes() -> None:
    """They go with it, unless its removal did not happen; another file of its name gets none of them."""
    calls = log(("unlink", "f"), ("write", "f" + DELETED, 0, B), ("fsync", "f" + DELETED))
    assert left(calls, {"f": A}) == [{}, {"f": B}]
    calls.insert(1, Call(9, "open", "f", flags=CREATE))
    assert left(calls, {"f": A}) == [{}, {"f": b""}, {"f": B}]
    calls[:2] = log(("rename", "g", "f"))
    assert left(calls, {"f": A, "g": C}) == [{"f": B, "g": C}, {"f": C}]


def test_other_calls_change_nothing() -> None:
    """Calls of other kinds, and those that failed, change nothing."""
    calls = log(("mark", ""), ("close", "f"), ("flock", "f"), ("open", "f", os.O_RDONLY), ("unlink", "f", 13))
    assert left(calls, {"f": A, "d": None}) == [{"d": None, "f": A}]


# Outages


def test_outages_follow_from_the_seed() -> None:
    """An outage follows from its seed, so that what was found can be found again."""
    disk = Disk({"f": A}).replay(log(("write", "f", 0, B * 40), ("open", "g", CREATE)))
    runs = [[one.tree(disk, Random(3)) for one in outages(disk, Random(seed), 50)] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert len(runs[0]) == 50


@pytest.mark.parametrize("count", [1, 5, 200])
def test_there_are_as_many_outages_as_were_asked_for(count: int) -> None:
    """A disk on which all is durable has few, and others have any number."""
    disk = Disk({"f": A}).replay(log(("write", "f", 0, B)))
    assert len(list(outages(disk, Random(1), count))) == count
    states = [one.tree(Disk({"f": A}), Random(1)) for one in outages(Disk({"f": A}), Random(1), count)]
    assert states == [{"f": A}] * len(states)
