"""The refusals of a real system: full disks, limits of a process, disks that can only be read.

What must hold is what refusals.py says. These are real, so they come in the combinations that a system makes of them: a
write that is cut short before it fails, files that cannot be opened in the middle of tidying up.
"""

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

import softkv
from softkv.errors import AccessRefused, StorageFailed, StorageFull
from softkv.storage import Store
from softkv.storage.protocol.checking import check
from tests.crash.canonical import Canon, agrees, outcomes_of, write_more
from tests.crash.recorder import Nursery
from tests.crash.stage import Stage, canons, share
from tests.limits import fill, open_files, read_only, small_disk
from tests.stores import bytes_of

pytestmark = pytest.mark.slow

FULL = {"done", "StorageFull", "StorageFailed", "CommitUncertain"}
FULL_OR_FAILED = StorageFull if sys.version_info >= (3, 11) else (StorageFull, StorageFailed)  # the driver's code
FEW_FILES = {"done", "StorageFailed", "AccessRefused", "CommitUncertain"}


def endured(stage: Stage, work: str, numbers: Iterable[int], outcomes: set[str]) -> None:
    """Do a workload under each of these limits."""
    for number in numbers:
        stage.set()
        try:
            # A log is a file as well, and would be cut short.
            status, said, _ = stage.play(f"tests.crash.refusals:{work}", number, logged="short" not in work)
            assert status == 0
        except AssertionError as failure:
            raise AssertionError(f"{work} {number}, {stage.canon}: {failure}") from failure
        outcome = said[0][1]
        assert outcome in outcomes_of(stage.canon, outcomes), f"{work} {number}, {stage.canon}: {said[0]}"
        stage.counted.update({"cases": 1, outcome: 1, "handle done": not said[1][1]})


def some(thorough: bool, everything: Iterable[int], count: int, random: Random) -> list[int]:
    """All of them, or a share."""
    return share(everything, 0 if thorough else count, random)


def told(stages: list[Stage]) -> None:
    """Print what happened, which must not all be success."""
    for stage in stages:
        print(f"{stage.canon}: {dict(stage.counted)}")
    counted = sum((stage.counted for stage in stages), start=stages[0].counted - stages[0].counted)
    assert counted["done"] < counted["cases"]


def stages(nursery: Nursery, folder: Path, random: Random, disk: Path | None = None) -> list[Stage]:
    """All workloads."""
    return [Stage(nursery, folder / canon.name.replace(" ", "-"), canon, disk) for canon in canons(random)]


def test_no_file_may_grow(nursery: Nursery, seed: int, thorough: bool, tmp_path: Path) -> None:
    """A limit on the size of files, whatever file meets it first."""
    random = Random(f"{seed} short files")
    everything = stages(nursery, tmp_path, random)
    for stage in everything:
        endured(stage, "attempt_with_short_files", some(thorough, range(0, 120_000, 2_000), 3, random), FULL)
    told(everything)


def test_no_file_can_be_opened(nursery: Nursery, seed: int, thorough: bool, tmp_path: Path) -> None:
    """A limit on the number of open files, met at any of them."""
    random = Random(f"{seed} few files")
    everything = stages(nursery, tmp_path, random)
    for stage in everything:
        endured(stage, "attempt_with_few_files", some(thorough, range(14), 3, random), FEW_FILES)
    told(everything)


def test_the_disk_is_full(nursery: Nursery, seed: int, thorough: bool, tmp_path: Path) -> None:
    """A real one, with any number of pages to spare."""
    random = Random(f"{seed} full disk")
    with small_disk(tmp_path / "disk", "2m") as disk:
        everything = stages(nursery, tmp_path, random, disk)
        for stage in everything:
            spares = [pages * 4096 for pages in some(thorough, range(24), 3, random)]
            endured(stage, "attempt_on_full_disk", spares, FULL)
        told(everything)


def test_a_store_on_a_full_disk_is_read(tmp_path: Path) -> None:
    """One that nobody has open, without space for what SQLite puts beside it; and a later writer is followed."""
    with small_disk(tmp_path / "disk", "2m") as disk:
        path, filler = disk / "rents", disk / "filler"
        with softkv.open(path, temperature=1.0) as db:
            db.add(["a", "b"], [1.0, 2.0], vectors=[[1.0, 0.0], [0.0, 1.0]])
        fill(filler)
        for _ in range(2):  # also beside what the first attempt has left
            with softkv.open(path, "r") as reader:
                assert list(reader.items()) == [("a", 1.0), ("b", 2.0)]
                assert reader.lookup([1.0, 1.0]).value == pytest.approx(1.5)
                assert reader.check().ok
                with pytest.raises(FULL_OR_FAILED):
                    softkv.open(path, "w")
        with softkv.open(path, "r") as reader, reader.snapshot() as held:
            filler.unlink()
            with softkv.open(path, "w") as writer:
                writer.set_values("a", 3.0)
                assert held["a"] == 1.0
                assert reader["a"] == 3.0
            assert reader["a"] == 3.0
            assert reader.check().ok


def test_a_snapshot_on_a_full_disk_ends_with_what_is_written_later(tmp_path: Path) -> None:
    """Its pages of the catalog may be overwritten: it says so, and does not call the store damaged."""
    with small_disk(tmp_path / "disk", "2m") as disk:
        path, filler = disk / "rents", disk / "filler"
        with softkv.open(path, temperature=1.0) as db:
            db.add(["a", "b"], [1.0, 2.0], vectors=[[1.0, 0.0], [0.0, 1.0]])
        fill(filler)
        with softkv.open(path, "r") as reader, reader.snapshot() as held:
            assert held["a"] == 1.0
            filler.unlink()
            with softkv.open(path, "w") as writer:
                writer.set_values("a", 3.0)
            with pytest.raises(StorageFailed, match="take a new snapshot"):
                list(held.items())
            assert dict(reader.items()) == {"a": 3.0, "b": 2.0}
            assert reader.check().ok


def test_a_log_on_a_full_disk_is_no_damage(tmp_path: Path) -> None:
    """Without space for the index of the log, a check cannot say what is in it, and says no more than that."""
    with small_disk(tmp_path / "disk", "2m") as disk:
        path, copy = disk / "rents", disk / "copy"
        with softkv.open(path) as db:
            db.add(["a", "b"], [1.0, 2.0], vectors=[[1.0, 0.0], [0.0, 1.0]])
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*-shm"))
        fill(disk / "filler")
        with pytest.raises(FULL_OR_FAILED):
            softkv.open(copy, "r")
        if sys.version_info >= (3, 11):
            with pytest.raises(StorageFull, match="Make room"):
                check(str(copy))
        (disk / "filler").unlink()
        assert check(str(copy)).ok
        with softkv.open(copy, "r") as reader:
            assert reader["b"] == 2.0


@pytest.mark.parametrize("left", ["closed", "log", "log alone"])
def test_a_disk_that_can_only_be_read(nursery: Nursery, tmp_path: Path, left: str) -> None:
    """Is read, also after a crash, and not written to; a log that cannot be read without writing is said to be one."""
    with small_disk(tmp_path / "disk", "2m") as disk:
        stage = Stage(nursery, tmp_path / "add", Canon("add", "number", False), disk)
        stage.set()
        if left != "closed":
            stage.play("tests.crash.canonical:run")  # it ends without a close
        if left == "log alone":
            (stage.path / "catalog.sqlite-shm").unlink()
        before = bytes_of(stage.path)
        with read_only(disk):
            for mode in ("w", "c", "n"):
                with pytest.raises(AccessRefused):
                    Store.open(stage.path, mode)
            if left == "log alone":
                with pytest.raises(AccessRefused, match="-wal holds commits"):
                    Store.open(stage.path, "r")
            else:
                with Store.open(stage.path, "r") as reader:
                    assert agrees(reader, stage.canon, done=left == "log") == (left == "log", [])
                    assert reader.check().ok
            assert not open_files(disk)
        assert bytes_of(stage.path) == before
        with Store.open(stage.path, "w") as store:
            write_more(store, stage.canon, done=left != "closed")
            assert store.check().ok
