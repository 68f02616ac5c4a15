"""Memories of agents: what is remembered is found, corrected and forgotten, and what is returned has an end."""

import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import softkv
from softkv.doors.mcp.memories import BYTES, MOST, Memories, Remembered, plain
from softkv.doors.mcp.reaching import Reaching
from softkv.errors import InputError, KeyMissing, UnknownText
from softkv.portrait import as_json
from tests.servers import served

NAMES = ["Anna", "Bruno", "Carla", "David", "Elena", "Franz", "Greta", "Hugo", "Irene", "Jonas", "Karin", "Luca"]
LIKED = [
    "tea",
    "coffee",
    "chess",
    "football",
    "opera",
    "hiking",
    "sailing",
    "painting",
    "cooking",
    "gardening",
    "poetry",
    "cycling",
]
WHEN = ["on Monday", "on Friday", "in winter", "in summer"]
FACTS = [f"{one} likes {what} {when}" for one, what, when in itertools.product(NAMES, LIKED, WHEN)]
QUESTION = "Greta likes poetry in winter"


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reaching]:
    """A store of texts that is served, and ends whole."""
    path = tmp_path_factory.mktemp("memories") / "m.softkv"
    softkv.open(path, value="text").close()
    with served(path) as server:
        with closing(Reaching(str(path), ["false"])) as found:
            yield found
        assert server.end() == 0
    with softkv.open(path, "r") as db:
        assert db.check().ok


@pytest.fixture
def memories(reached: Reaching) -> Memories:
    """A memory of which nothing is remembered."""
    reached.ask(lambda db: db.clear())
    return Memories(reached)


def size(found: Any) -> int:
    """The bytes of a result."""
    return len(as_json(plain(found)).encode())


def texts(found: Any) -> list[str]:
    """What memories say."""
    return [one.text for one in found.memories]


def test_what_was_remembered_is_recalled(memories: Memories) -> None:
    """The likest first, with weights that add up with those that are left out, and what the answer rests on."""
    memories.remember("The user drinks tea with milk", payload={"about": "user"})
    memories.remember("Releases are built with make", key="releases")
    found = memories.recall("what does the user drink?")
    assert (found.memories[0].text, found.memories[0].payload) == ("The user drinks tea with milk", {"about": "user"})
    assert found.evidence is not None
    assert found.evidence["weights"] == "exact"
    assert 1 < float(found.evidence["effective"]) < 2
    assert sum(one.weight or 0 for one in memories.recall("a", below=True).memories) >= 0.9
    assert texts(memories.recall("what does the user drink?", limit=1)) == ["The user drinks tea with milk"]
    assert memories.recall("a", limit=1).more == 1


def test_without_a_guard_nothing_is_said_to_be_known(memories: Memories) -> None:
    """A weight compares memories with each other, so where nobody vouches for them that is said."""
    memories.remember("The user drinks tea with milk")
    found = memories.recall("quantum chromodynamics")
    assert (found.known, len(found.memories)) == ("unsure", 1)
    assert "no guard" in (found.why or "")
    assert "unsure" not in as_json(plain(memories.list_()))


def test_nothing_is_known_where_nothing_is_remembered(memories: Memories) -> None:
    """Where nothing is remembered, or no memory matches, nothing is known; that is an answer and no error."""
    assert memories.recall("tea") == memories.recall("tea", below=True)
    assert memories.recall("tea").why == "there are no memories"
    memories.remember("The user drinks tea")
    assert memories.recall("tea", where={"about": "user"}).why == "there are no memories that match"
    assert memories.recall("tea", where={"about": "user"}).known == "no"


def test_the_same_is_remembered_once(memories: Memories) -> None:
    """Nothing else is under its key, so that nobody overwrites what somebody else remembered."""
    first = memories.remember("The user drinks tea")
    assert memories.remember("The user drinks tea") == Remembered(first.key, new=False)
    memories.remember("make release", key="releases")
    with pytest.raises(InputError, match=r"'releases' is remembered already, with another text\. Use"):
        memories.remember("ninja release", key="releases")
    assert texts(memories.list_()) == ["The user drinks tea", "make release"]


@pytest.mark.parametrize("other", [{"payload": {"year": 2026}}, {"found_by": "what is in the cup?"}])
def test_what_else_is_said_of_a_memory_is_not_dropped(memories: Memories, other: dict[str, Any]) -> None:
    """Where it is another than before, that is refused by its name; where it is as before, it is remembered once."""
    before: dict[str, Any] = {"text": "The user drinks tea", "payload": {"year": 2025}, "found_by": "which drink?"}
    key = memories.remember(**before).key
    for given in (before, {"text": before["text"]}):
        assert memories.remember(**given) == Remembered(key, new=False)
    with pytest.raises(InputError, match=f"is remembered already, with another {next(iter(other))}. Use correct"):
        memories.remember(**before | other)
    assert memories.list_().memories[0].payload == {"year": 2025}


def test_a_memory_is_found_by_its_key_too(memories: Memories) -> None:
    """A memory is found by its key, or by what is said in its place."""
    memories.remember("blue", key="the favourite colour of the user")
    memories.remember("Sunday", key="day of the backup")
    memories.remember("42", found_by="how many seats does the hall have?")
    assert texts(memories.recall("which colour does the user like?", limit=1)) == ["blue"]
    assert texts(memories.recall("seats in the hall", limit=1)) == ["42"]


def test_a_correction_is_found_by_what_it_says_now(memories: Memories) -> None:
    """It keeps its payload unless another is given, tells what it replaces, and needs something to replace."""
    key = memories.remember("The user lives in Rome", payload={"about": "user"}).key
    memories.remember("Trains leave at noon")
    assert memories.correct(key, "The user keeps bees").before == "The user lives in Rome"
    assert texts(memories.recall("bees", limit=1)) == ["The user keeps bees"]
    assert memories.list_().memories[0].payload == {"about": "user"}
    memories.correct(key, "The user keeps bees", payload={"about": "hobbies"})
    assert memories.list_(where={"about": "hobbies"}).memories[0].key == key
    with pytest.raises(KeyMissing):
        memories.correct("nothing", "else")


def test_a_correction_keeps_what_a_memory_is_found_by(memories: Memories) -> None:
    """It keeps what was said; other words replace it."""
    memories.remember("Trains leave at noon")
    memories.remember("42", key="hall", found_by="how many seats are there?")
    memories.correct("hall", "43")
    assert texts(memories.recall("how many seats", limit=1)) == ["43"]
    memories.correct("hall", "43", found_by="the number of chairs")
    assert texts(memories.recall("chairs", limit=1)) == ["43"]


def test_memories_are_forgotten_together_or_not_at_all(memories: Memories) -> None:
    """A key that is not there is named, and nothing is gone."""
    keys = [memories.remember(one).key for one in FACTS[:3]]
    with pytest.raises(KeyMissing, match="'nothing'"):
        memories.forget([keys[0], "nothing"])
    assert len(memories.list_().memories) == 3
    assert memories.forget(keys[:2]).forgotten == 2
    assert texts(memories.list_()) == FACTS[2:3]


def test_words_that_nobody_knows_are_an_error(memories: Memories) -> None:
    """No text is like them."""
    memories.remember("The user drinks tea")
    for call in (memories.recall, memories.remember):
        with pytest.raises(UnknownText):
            call("🦀")


@pytest.mark.parametrize("budget", [300, 1000, 5000])
@pytest.mark.parametrize("where", [None, {"kind": "fact"}])
def test_a_list_ends_at_its_budget_and_goes_on(memories: Memories, budget: int, where: Any) -> None:
    """Page by page everything is listed once, in order; each says how many come after it."""
    added = [f"{one} {'and so on ' * (place % 7)}" for place, one in enumerate(FACTS[:200])]
    keys = [f"f{place}" for place in range(len(added))]
    kept = [{"kind": "fact"}] * len(added)
    memories._store.ask(lambda db: db.add(keys, added, payloads=kept))
    found, start, left = list[str](), 0, len(added)
    while True:
        page = memories.list_(start, where, budget)
        assert size(page) <= budget * BYTES
        assert page.memories
        found += texts(page)
        left -= len(page.memories)
        assert page.more == left
        if page.next is None:
            break
        assert page.next == start + len(page.memories)
        start = page.next
    assert found == added


def test_a_list_goes_on_after_those_that_were_counted(memories: Memories) -> None:
    """With a filter it counts up to a thousand, and there may be more."""
    keys = [f"{place}" for place in range(1100)]
    memories._store.ask(lambda db: db.add(keys, ["tea"] * 1100, payloads=[{"a": 1}] * 1100))
    found, start = list[str](), 0
    while start is not None:
        page = memories.list_(start, {"a": 1}, 20_000)
        found += [one.key for one in page.memories]
        start = page.next
    assert found == keys
    assert memories.list_(1090, {"a": 1}).more == 0
    assert memories.list_(budget=300).more > 1000
    assert memories.list_(5000) == memories.list_(5000, {"a": 1})


@pytest.mark.parametrize("rest", ["word ", "é", '"\\', "\x07", "日本 "])
def test_one_long_memory_shows_how_it_begins(memories: Memories, rest: str) -> None:
    """What does not fit whole is marked as cut, and fits whatever it is made of."""
    text = "how it begins " + rest * 5000
    key = memories.remember(text, found_by="how it begins", payload={"note": text}).key
    for found in (memories.recall("how does it begin", budget=300), memories.list_(budget=300)):
        (one,) = found.memories
        assert size(found) <= 300 * BYTES
        assert one.key == key
        assert one.cut
        assert text.startswith(one.text)
        assert len(one.text) > 30
    assert size(memories.correct(key, "short")) < 2000


def test_a_long_key_does_not_break_the_budget(memories: Memories) -> None:
    """Others may have given a key of any length."""
    memories.remember("a short text", key="long key " * 1000)
    (one,) = memories.list_(budget=300).memories
    assert one.cut
    assert one.key.startswith("long key long key")
    assert size(memories.list_(budget=300)) <= 300 * BYTES


def test_what_is_recalled_ends_at_its_budget(memories: Memories) -> None:
    """A recall stops at its budget, and says how many more memories there would be, of those that it looked at."""
    added = [f"{one} {'and so on ' * 20}" for one in FACTS[:100]]
    memories._store.ask(lambda db: db.add([f"f{place}" for place in range(100)], added))
    memories._store.ask(lambda db: db.set_temperature(10.0))
    try:
        small, large = (memories.recall("likes", limit=MOST, budget=budget) for budget in (300, 20_000))
    finally:
        memories._store.ask(lambda db: db.set_temperature(None))
    assert size(small) <= 300 * BYTES < size(large)
    assert 0 < len(small.memories) < len(large.memories) == MOST
    assert len(small.memories) + small.more == len(large.memories) + large.more == MOST


def test_with_a_guard_it_says_what_is_known(tmp_path: Path) -> None:
    """If nothing is, the memories just below are counted, and shown only to those who ask for them."""
    path = tmp_path / "guarded.softkv"
    with softkv.open(path, value="text") as db:
        db.add([f"m{place}" for place in range(len(FACTS))], FACTS, texts=FACTS)
        db.tune()
        db.guard()
    with served(path), closing(Reaching(str(path), ["false"])) as reached:
        memories = Memories(reached)
        known = memories.recall(QUESTION)
        assert (known.known, known.why, known.below) == ("yes", None, None)
        assert texts(known)[0] == QUESTION
        assert known.evidence is not None
        assert float(known.evidence["familiarity"]) > 0.05
        unknown = memories.recall("quantum chromodynamics")
        assert (unknown.known, unknown.memories) == ("no", [])
        assert f"nothing is known about this, {unknown.below} memories are just below" in (unknown.why or "")
        assert (unknown.below or 0) > 0
        shown = memories.recall("quantum chromodynamics", below=True, limit=MOST)
        assert (shown.known, len(shown.memories)) == ("no", unknown.below)
        filtered = memories.recall(QUESTION, where={"none": {"$exists": False}})
        assert filtered.known == "unsure"
        assert "filter" in (filtered.why or "")


def test_a_store_that_others_made_is_a_memory_too(tmp_path: Path) -> None:
    """It may hold answers by questions; a correction leaves the question, and what has no key can be forgotten."""
    path = tmp_path / "help.softkv"
    with softkv.open(path) as db:
        db["how do I reset my password"] = "Settings, Security, Reset."
        db["where is my parcel"] = "Open the tracking page."
        db.add([None], ["Write to us."], texts=["who can help me"])
    with served(path), closing(Reaching(str(path), ["false"])) as reached:
        memories = Memories(reached)
        found = memories.recall("I forgot my password", limit=1).memories[0]
        assert (found.key, found.text) == ("how do I reset my password", "Settings, Security, Reset.")
        memories.correct(found.key, "Ask the administrator.")
        assert texts(memories.recall("I forgot my password", limit=1)) == ["Ask the administrator."]
        last = memories.list_().memories[-1]
        assert last.text == "Write to us."
        with pytest.raises(InputError, match="no key"):
            memories.correct(last.key, "Call us.")
        assert memories.forget([last.key]).forgotten == 1


def test_results_are_plain_json(memories: Memories) -> None:
    """Payloads may hold anything, and nothing that is not there is told."""
    memories.remember("The user drinks tea", payload={"a": [1, None, {"b": 2.5}], "c": None})
    told = json.loads(as_json(plain(memories.list_())))
    key = told["memories"][0].pop("key")
    assert told == {
        "memories": [{"text": "The user drinks tea", "payload": {"a": [1, None, {"b": 2.5}], "c": None}}],
        "more": 0,
    }
    assert key.startswith("m-")
