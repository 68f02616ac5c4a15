"""No damage to the files of a store makes it answer otherwise than before, hang, or take the process with it.

What a damaged store says is what the whole one says, or an error of ours, or, where an index cannot be believed, what
a scan says. Some damage of the catalog's trees cannot be seen by who looks at one place of them: a check must name it.
"""

import faulthandler
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from softkv.embedders import find
from softkv.storage import check
from softkv.storage.disk.arena import VerifiedRows
from softkv.storage.protocol.snapshot import Snapshot
from tests.crash import verdicts
from tests.crash.children import Child
from tests.crash.damage import Damage, cuts, flipped, flips, foreign, missing, pieces, stale
from tests.crash.originals import Original, Recipe, made
from tests.crash.questions import differing, outcomes
from tests.crash.verdicts import judged, laid
from tests.databases import count_as_large
from tests.stores import CATALOG
from tests.tiny import shrink

pytestmark = [pytest.mark.slow, pytest.mark.ci]

RECIPES = {
    "number": Recipe("number", 120, tiny=True),
    "vector": Recipe("vector", 40, index="HNSW8", unclean=True),
    "label": Recipe("label", 40, tiny=True),
    "text": Recipe("text", 24, page=4096, unclean=True),
}


@pytest.fixture(params=RECIPES)
def original(request: pytest.FixtureRequest, kept: dict[str, Original], folder: Path) -> Iterator[Original]:
    """A real store of each kind of value, made once."""
    recipe = RECIPES[request.param]
    find("static").documents(["warm"])
    with pytest.MonkeyPatch.context() as patch:
        count_as_large(patch)
        if recipe.tiny:
            shrink(patch, window=256, block=64)
        if request.param not in kept:
            kept[request.param] = made(recipe, folder / request.param)
        yield kept[request.param]


@pytest.fixture(scope="module")
def kept() -> dict[str, Original]:
    """The stores that were made so far."""
    return {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory where there is one: nothing here is about what a disk keeps."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path_factory.mktemp("damage")
    with TemporaryDirectory(prefix="softkv-damage-", dir=where) as name:
        yield Path(name)


def require(original: Original, damages: list[Damage], folder: Path, *, writing: float = 1.0) -> None:
    """Every one of these damages ends well; says how."""
    found = judged(original, damages, folder / "damaged", writing=writing)
    print(f"{original.recipe.kind}: {found}")
    assert sum(found.counts.values()) == len(damages)
    assert not found.wrong, found


def some(damages: Iterator[Damage], random: Random, thorough: bool, count: int) -> list[Damage]:
    """All of them, or so many drawn anew in every run."""
    every = list(damages)
    return every if thorough or len(every) <= count else random.sample(every, count)


def test_no_byte_is_believed_in_the_place_of_another(
    original: Original, folder: Path, seed: int, thorough: bool
) -> None:
    """Some of all files, more of the headers and the catalog, turned into another; or every byte of a smaller store."""
    random = Random(f"{seed} flips {original.recipe}")
    if thorough:
        original = made(
            replace(original.recipe, items=20, page=512, unclean=original.recipe.kind == "vector"),
            folder / f"small {original.recipe.kind}",
        )
    damages = list(flips(original, random, 5.0 if thorough else 0.05))
    require(original, damages if thorough else random.sample(damages, 150), folder, writing=0.2 if thorough else 0.5)


def test_no_length_is_believed(original: Original, folder: Path, seed: int, thorough: bool) -> None:
    """Files that end at any sector, also at their very start, and files with something behind their end."""
    random = Random(f"{seed} cuts {original.recipe}")
    require(original, some(cuts(original), random, thorough, 40), folder)


def test_no_piece_is_believed_in_another_place(original: Original, folder: Path, seed: int, thorough: bool) -> None:
    """Pieces of 1 KiB, of 4 KiB, and pages of the catalog: blank, in each other's place, or those of another file."""
    random = Random(f"{seed} pieces {original.recipe}")
    require(original, some(pieces(original, random), random, thorough, 50), folder, writing=0.5)


def test_no_page_is_believed_from_another_time(original: Original, folder: Path, seed: int, thorough: bool) -> None:
    """What was there before, as if its write were lost; what will be there later; what is there in another store."""
    random = Random(f"{seed} stale {original.recipe}")
    require(original, some(stale(original), random, thorough, 50), folder)


def test_what_is_missing_is_missed(original: Original, folder: Path) -> None:
    """Each file, and each directory; what is derived is done without."""
    require(original, list(missing(original)), folder)


def test_no_file_is_believed_from_another_copy(original: Original, folder: Path) -> None:
    """It may be of an earlier time, a later one, or another store of its shape: single files, and whole directories."""
    require(original, list(foreign(original)), folder)


def test_an_older_store_is_an_older_store(original: Original, folder: Path) -> None:
    """What nobody can tell: everything that knows of a commit comes from before it, the catalog and LOCK."""

    def ask(say: Any) -> None:
        laid(original.older, folder / "damaged")
        before = outcomes(folder / "damaged", ["item 1"])
        older = {name: content for name, content in original.older.items() if name.startswith((CATALOG, "LOCK"))}
        younger = {name: content for name, content in original.whole.items() if not name.startswith(CATALOG)}
        laid({**younger, **older}, folder / "damaged")
        say(differing(before, outcomes(folder / "damaged", ["item 1"])), check(folder / "damaged").ok)

    with Child(ask) as child:
        assert list(child.all()) == [[[], True]]


# The judge is seen finding each thing that it is there to find


def unverified(patch: pytest.MonkeyPatch) -> None:
    """A store that compares nothing with its checksums, not even in a check."""
    patch.setattr(VerifiedRows, "_verify", lambda *_: None)
    patch.setattr("softkv.storage.protocol.windows.Problems.among", lambda *_: iter(()))


def in_len(work: Any) -> Any:
    """A store that does this when a whole window of it is asked how long it is."""

    def broken(snapshot: Snapshot) -> int:
        if (Path(snapshot.path) / "broken").exists():
            work()
        return snapshot.rows - snapshot._deaths.count

    return lambda patch: patch.setattr(Snapshot, "__len__", broken)


def busy() -> None:
    """Compute for ever."""
    while True:
        time.process_time()


def crash() -> None:
    """Die as of a bug in C, without a traceback that would look like one of the tests."""
    faulthandler.disable()
    os.kill(os.getpid(), signal.SIGSEGV)


BUGS: dict[str, tuple[Any, str]] = {
    "believed": (unverified, "a check is content"),
    "a foreign error": (in_len(lambda: [][0]), "IndexError"),
    "death": (in_len(crash), f"died of signal {signal.SIGSEGV.value}"),
    "hanging": (in_len(busy), "hung"),
}


@pytest.mark.parametrize("original", ["label"], indirect=True)
@pytest.mark.parametrize("bug", BUGS)
def test_the_judge_finds_what_it_looks_for(
    original: Original, folder: Path, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    """Planted bugs make a store answer wrongly, raise errors that are not ours, die, or never end."""
    plant, told = BUGS[bug]
    plant(monkeypatch)
    monkeypatch.setattr(verdicts, "SECONDS", 1)
    keys = next(name for name in original.whole if name.endswith("keys.f32"))
    harmless = Damage("a file more", "broken", lambda files: {**files, "broken": b""})
    found = judged(original, [flipped(keys, 4100, 1), harmless, harmless], folder / "damaged")
    assert found.wrong
    assert all(told in one for one in found.wrong), found
    assert sum(found.counts.values()) == 3
