"""Hostile stores, files and requests: each is refused in words, or answered rightly, at little cost, and harms nobody.

The corpus is made by code (hostile/). Every attempt runs in a child of its own, with 1 GiB of memory and 5 seconds for
a step; whatever lies around a store, and a store that is only read or refused, is compared before and after.
"""

import os
import shutil
import signal
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.errors import IndexDamaged, SoftKVError
from softkv.index.candidates import Proposer
from softkv.storage import Store
from softkv.storage.catalog import catalog
from tests.crash.hostile import arenas, catalogs, changes, confinement, indexes, inputs, pages, requests, templates
from tests.crash.hostile.attempts import command, read
from tests.crash.hostile.cases import CASES, Case, as_it_is
from tests.crash.hostile.confinement import Step, confined
from tests.crash.hostile.trial import Verdict, tried

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ci,
    pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="memory is measured as Linux tells it"),
]
CORPUS = (catalogs, pages, arenas, indexes, inputs, requests, changes)  # whose cases are in CASES
# How many cases of a group the default run tries; --thorough tries them all.
SHARES = {catalogs.GROUP: 16, arenas.GROUP: 12, indexes.GROUP: 12, inputs.GROUP: 24, requests.GROUP: 60}
STRUCK = 4  # altered proposers of each kind in the default run
NEEDS_ROOT = "device"  # in the names of cases that make one


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores that cases are made from; what reading them compiles is compiled before children are forked."""
    folder = tmp_path_factory.mktemp("templates")
    made = confined(lambda step: step("make", lambda: templates.make(folder)))
    assert not [one for one in made.wrong if "took" not in one], made.wrong
    shutil.copytree(folder / "number", folder / "warm" / "s")
    for attempt in (read, command):
        attempt(folder / "warm", _at_once)
    return folder


def _at_once(_: str, thing: Callable[[], Any]) -> Any:
    try:
        return thing()
    except SoftKVError:
        return None


def _chosen(group: str, random: Random, *, thorough: bool) -> list[Case]:
    """The cases to try: all, or a sample."""
    cases = [one for one in CASES if one.group == group and (thorough or not one.heavy)]
    if os.geteuid():
        cases = [one for one in cases if NEEDS_ROOT not in one.name]
    return cases if thorough else random.sample(cases, min(len(cases), SHARES[group]))


@pytest.mark.parametrize("group", SHARES)
def test_hostile_things_are_refused_or_answered(
    group: str, seed: int, thorough: bool, tmp_path: Path, good: Path
) -> None:
    """Each case by itself; all that went wrong is told together."""
    chosen = _chosen(group, Random(f"{seed} {group}"), thorough=thorough)
    found = [tried(one, tmp_path / f"{number}", good) for number, one in enumerate(chosen)]
    print(_told(group, found))
    wrong = {one.case.name: one.wrong for one in found if one.wrong}
    assert not wrong, "\n\n".join(f"{name}:\n" + "\n".join(told) for name, told in wrong.items())


def _told(group: str, found: list[Verdict]) -> str:
    attempts = sum(len(one.outcomes) for one in found)
    steps = Counter(step for one in found for outcome in one.outcomes.values() for step in outcome.steps.values())
    slowest, largest = max(found, key=lambda one: one.seconds), max(found, key=lambda one: one.memory)
    all_cases, answered = sum(one.group == group for one in CASES), steps.pop("answered", 0)
    return (
        f"{group}: {len(found)} of {all_cases} cases, {attempts} attempts, {answered + sum(steps.values())} steps, of "
        f"which {answered} were answered; at most {slowest.seconds:.1f} s ({slowest.case.name}) and "
        f"{largest.memory >> 20} MiB ({largest.case.name}); refused: {dict(steps.most_common())}"
    )


@pytest.mark.parametrize("kind", templates.PROPOSERS)
def test_what_faiss_reads_ends_nobody(kind: str, seed: int, thorough: bool, good: Path) -> None:
    """Any number in the part of FAISS altered, under a checksum that is right: refused, or rows that are there."""
    random, counts = Random(f"{seed} {kind}"), Counter[str]()
    with Store.open(good / f"proposed {kind}") as store, store.snapshot() as snapshot:
        file = snapshot.index("proposer")
        assert file is not None
        whole, rows, width = bytes(file.read()), store.rows, 12
    for strike in indexes.strikes(whole, random, 200 if thorough else STRUCK):
        altered = indexes.struck(whole, *strike)
        found = confined(lambda step, x=altered: _propose(step, x[8:], rows, width))  # type: ignore[misc]
        counts.update(found.steps.values())
        assert not found.wrong, f"{strike}: {found.wrong}"
    print(f"{kind}: {dict(counts)}")


def _propose(step: Step, given: bytes, rows: int, width: int) -> None:
    proposer = step("read", lambda: Proposer.from_bytes(given, width=width, rows=rows))
    queries = np.random.default_rng(0).standard_normal((20, width)).astype(np.float32)
    for count in (1, 5, rows) if proposer is not None else ():
        step(f"propose {count}", lambda n=count: _within(proposer.propose(queries, n, effort=n), rows))  # type: ignore[misc]


def _within(proposed: Any, rows: int) -> None:
    assert ((proposed >= -1) & (proposed < rows)).all()


def test_there_are_enough_cases() -> None:
    """Every group has enough, and no two have one name."""
    counts = Counter(one.group for one in CASES)
    print(dict(counts), "cases in all", sum(counts.values()))
    assert sum(counts.values()) >= 1000
    assert min(counts.values()) >= 100


# The checkers, seen failing


def _leak(folder: Path, step: Step) -> None:
    step("leak", lambda: {}["nothing"])


def _die(folder: Path, step: Step) -> None:
    step("live", lambda: None)
    step("die", lambda: os.kill(os.getpid(), signal.SIGSEGV))


def _litter(folder: Path, step: Step) -> None:
    step("litter", lambda: (folder / "elsewhere" / "victim").write_text("spoiled"))


def _spoil(folder: Path, step: Step) -> None:
    step("spoil", lambda: (folder / "s" / "LOCK").rename(folder / "s" / "LUCK"))


def _swell(folder: Path, step: Step) -> None:
    step("swell", lambda: np.ones(confinement.MEMORY * 2 // 8))


def _dawdle(folder: Path, step: Step) -> None:
    step("dawdle", lambda: sum(range(20_000_000)))


def _wait(folder: Path, step: Step) -> None:
    step("wait", signal.pause)


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (_leak, "leak: KeyError leaked"),
        (_die, r"after \['live'\]: ended by SIGSEGV"),
        (_litter, "something outside has changed: .*victim"),
        (_spoil, "something inside has changed: .*LUCK"),
        (_swell, "swell: MemoryError leaked"),
        (_dawdle, r"dawdle:  took \d"),
        (_wait, "has said nothing for 1"),
    ],
)
def test_harm_is_seen(attempt: Any, said: str, tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of another, a death, a change, too much memory or time: each is told with the name of its step."""
    monkeypatch.setattr(confinement, "SECONDS", 0.1)
    monkeypatch.setattr(confinement, "PATIENCE", 1.0 if attempt is _wait else 40.0)
    found = tried(Case("harm", "harm", as_it_is, "number", (attempt,)), tmp_path / "harm", good)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(f"{found.wrong}")


def test_a_store_that_is_let_in_is_seen(tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were definitions not compared, a trigger would get in, and the court would say so."""
    monkeypatch.setattr(catalog, "_is_ours", bool)
    (case,) = [one for one in CASES if one.name == "a trigger on insert"]
    found = tried(case, tmp_path / "trial", good)
    assert any("was opened, which is not expected" in one for one in found.wrong)


def test_a_proposer_of_a_lie_would_end_the_process(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it not compared with an empty one, a width would lead a search outside of a vector."""
    with Store.open(good / "proposed fast pq") as store, store.snapshot() as snapshot:
        file = snapshot.index("proposer")
        assert file is not None
        whole, rows = bytes(file.read()), store.rows
    place = whole.index(struct.pack("<12I", *range(12)))  # where the padding takes its numbers from
    altered = whole[:place] + struct.pack("<I", 1 << 30) + whole[place + 4 :]
    with pytest.raises(IndexDamaged, match="RemapDimensionsTransform"):
        Proposer.from_bytes(altered[8:], width=12, rows=rows)
    monkeypatch.setattr("softkv.index.candidates.difference", lambda *_: None)
    found = confined(lambda step: _propose(step, altered[8:], rows, 12))
    assert found.wrong


def test_the_good_stores_are_good(tmp_path: Path, good: Path) -> None:
    """Every attempt that is made with hostile stores succeeds with the ones they are made from."""
    for template in ("number", "vector", "label", "indexed number", "proposed hnsw"):
        attempts = ("read", "examine", "ask", "write")
        found = tried(Case(template, "good", as_it_is, template, attempts, refused=False), tmp_path / "t", good)
        assert not found.wrong
        refused = {step: how for one in found.outcomes.values() for step, how in one.steps.items() if how != "answered"}
        assert set(refused) <= {"lookup by text", "gaussian", "close", "filtered", "each other"}, refused
    with softkv.open(good / "number", "r") as db:
        assert db.check().ok
