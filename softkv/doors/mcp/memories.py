"""Memories of agents in a store of texts: remember, recall, correct, forget, list.

A memory is an item: its value is the text, its key is what it is corrected and forgotten by, its payload is whatever
filters are to look at. It is found by what it says and by its key, or by what `found_by` says in their place.

What is returned has an end: items are counted in tokens, and the first that would be too much ends it. Does not speak
any protocol (tools.py).
"""

import re
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from softkv.doors.mcp.reaching import Reaching
from softkv.errors import DuplicateKey, InputError, NothingToBlend
from softkv.guard.judged import NOT_GUARDED
from softkv.portrait import as_json

BYTES = 3  # of UTF-8 that count as a token, which is rather too few
MASS = 0.9  # of all weight, that what is recalled has together
MOST = 50  # memories in an answer
LONGEST = 100_000  # characters of a text; with many that are longer an answer could not be sent
_KNOWN: dict[bool | None, Any] = {True: "yes", False: "no", None: "unsure"}
_MADE = re.compile(r"m-[0-9a-f]{12}\Z")  # keys of memories that were given none
BEYOND = 1000  # memories that are looked at for a page, so that those left out can be counted

Key: TypeAlias = Annotated[
    str, Field(min_length=1, description="The key of the memory, as remember or recall told it.")
]
Text: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=LONGEST, description="What to remember, in words that stand by themselves.")
]
FoundBy: TypeAlias = Annotated[
    str,
    Field(
        max_length=LONGEST,
        description="What it is found by, in the place of its key and text: questions that it answers.",
    ),
]
Payload: TypeAlias = Annotated[
    dict[str, Any] | None, Field(description='Facts to filter by, such as {"project": "atlas", "year": 2026}.')
]
Where: TypeAlias = Annotated[
    dict[str, Any] | None,
    Field(description='Only memories whose payload matches: {"project": "atlas"}, {"year": {"$gte": 2025}}.'),
]
Budget: TypeAlias = Annotated[
    int, Field(ge=300, le=20_000, description="About how many tokens to return at most; what is left out is counted.")
]


@dataclass(frozen=True, slots=True)
class OneMemory:
    """One memory; `weight` is its share of the answer, `cut` says that there is more of it."""

    key: str
    text: str
    weight: float | None = None
    payload: Any = None
    cut: bool | None = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """Under which key it is remembered; `new` is false where the same was there already."""

    key: str
    new: bool


@dataclass(frozen=True, slots=True)
class Corrected:
    """The key of the memory, and what it said before."""

    key: str
    before: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many memories are gone."""

    forgotten: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPage:
    """Memories, the oldest first; `more` come after them, with `where` counted up to 1000, from `start` = `next` on."""

    memories: list[OneMemory]
    more: int
    next: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """Memories, the heaviest first; `more` have a share too; `below` do not answer; the evidence is how much is known.

    A familiarity of 0.01 is as strange as 1 in 100; a log mass below its floor is unlike all that is remembered.
    """

    known: Literal["yes", "no", "unsure"]
    why: str | None = None
    memories: list[OneMemory]
    more: int = 0
    below: int | None = None
    evidence: dict[str, float | str] | None = None


class Memories:
    """The memories in a store. Threads may share it."""

    def __init__(self, store: Reaching) -> None:
        self._store = store

    def remember(
        self,
        text: Text,
        key: Annotated[str, Field(description="A short name for it; without one it gets one.")] = "",
        payload: Payload = None,
        found_by: FoundBy = "",
    ) -> Remembered:
        """Remember something for later sessions: a fact, a decision, a preference, how something is done.

        One thing a memory. What is remembered already under the key is not overwritten, nor its payload: use correct.
        """
        key = key or f"m-{sha256(text.encode()).hexdigest()[:12]}"
        batch, found = str(uuid.uuid4()), [found_by or _found_by(key, text)]
        try:
            self._store.ask(lambda db: db.add([key], [text], texts=found, payloads=[payload], batch=batch))
        except DuplicateKey:
            there = self._store.ask(lambda db: db.item(key))
            other = {"text": there.value != text, "payload": payload is not None and there.payload != payload}
            other["found_by"] = found_by not in ("", there.text)
            if any(other.values()):
                what = " and another ".join(name for name, differs in other.items() if differs)
                raise InputError(f"{key!r} is remembered already, with another {what}. Use correct.") from None
            return Remembered(key, new=False)
        return Remembered(key, new=True)

    def recall(
        self,
        query: Annotated[str, Field(min_length=1, description="What to recall, as a question or in a few words.")],
        limit: Annotated[int, Field(ge=1, le=MOST, description="At most so many memories.")] = 10,
        where: Where = None,
        below: Annotated[
            bool, Field(description="Also show what is like the question, but does not answer it.")
        ] = False,
        budget: Budget = 2000,
    ) -> Recalled:
        """Recall what is like a question: the memories that together have 90% of the weight, and what that rests on.

        `known` is "no" where the memories do not answer the question: then say so, and do not guess from them. It is
        "unsure" where nothing can vouch for them: a weight says which is most like the question, not that any is.
        """
        try:
            answer = self._store.ask(lambda db: db.lookup(query, show=MOST, where=where))
        except NothingToBlend:
            return Recalled(known="no", why="there are no memories" + (" that match" if where else ""), memories=[])
        found, held = list[OneMemory](), 0.0
        for one in answer.contributors:
            if held < MASS:
                found.append(OneMemory(str(one.key), str(one.value), round(one.weight, 4), one.payload))
                held += one.weight
        hidden = answer.known is False and not below
        empty = Recalled(
            known=_KNOWN[answer.known],
            why=_why(answer, len(found)),
            memories=[],
            below=len(found) if answer.known is False else None,
            evidence=_evidence(answer),
        )
        shown = [] if hidden else _within(found[:limit], budget, empty)
        return replace(empty, memories=shown, more=0 if hidden else len(found) - len(shown))

    def correct(self, key: Key, text: Text, payload: Payload = None, found_by: FoundBy = "") -> Corrected:
        """Replace the text of a memory that is wrong or out of date; what else is not given stays as it was."""
        batch, former = str(uuid.uuid4()), self._store.ask(lambda db: db.item(key))
        usual, before = former.text == _found_by(key, str(former.value)), _shortened(str(former.value), 1000)
        given: dict[str, Any] = {
            "texts": [found_by or (_found_by(key, text) if usual else former.text)],
            "payloads": [former.payload if payload is None else payload],
        }
        self._store.ask(lambda db: db.add([key], [text], on_conflict="replace", batch=batch, **given))
        return Corrected(key, before)

    def forget(self, keys: Annotated[list[Key], Field(min_length=1, max_length=1000)]) -> Forgotten:
        """Forget memories for good, all of these or, where one of them is not there, none."""
        batch = str(uuid.uuid4())
        return Forgotten(self._store.ask(lambda db: db.delete(keys, batch=batch)))

    def list_(
        self,
        start: Annotated[int, Field(ge=0, description="Pass over so many.")] = 0,
        where: Where = None,
        budget: Budget = 2000,
    ) -> MemoryPage:
        """List memories in the order in which they were first remembered, as many as the budget allows."""

        def page(db: Any) -> MemoryPage:
            with db.snapshot() as then:
                items = list(then.select(where, start=start, stop=start + BEYOND + 1))
                whole = len(items) if where else max(0, len(then) - start)
            found = [OneMemory(one.name, str(one.value), payload=one.payload) for one in items]
            shown = _within(found[:BEYOND], budget, MemoryPage(memories=[], more=whole, next=start))
            more = whole - len(shown)
            return MemoryPage(memories=shown, more=more, next=start + len(shown) if more else None)

        return self._store.ask(page)


def plain(found: Any) -> Any:
    """A result as plain Python, without what is None."""
    return asdict(found, dict_factory=lambda told: {name: one for name, one in told if one is not None})


def _found_by(key: str, text: str) -> str:
    """What a memory is found by: its text, and its key where that is a name that somebody gave it."""
    return text if _MADE.match(key) else f"{key}: {text}"


def _why(answer: Any, found: int) -> str | None:
    """Why an answer is not known, or why nobody can tell; None where it is known."""
    if answer.known is None:
        far = " It is less like them than each of them is like the others." if answer.is_far else ""
        return f"nothing vouches that these memories answer it: {answer.why_unknown or NOT_GUARDED}{far}"
    words = f"nothing is known about this, {found} memories are just below (below=true shows them)"
    return None if answer.known else f"{words}: {answer.why_unknown}"


def _evidence(answer: Any) -> dict[str, Any]:
    told = {name: getattr(answer, name) for name in ("log_mass", "log_mass_floor", "familiarity", "effective")}
    rounded = {name: round(float(one), 4) for name, one in told.items() if one is not None}
    return {**rounded, "weights": answer.error_kind}


def _within(found: Sequence[OneMemory], budget: int, empty: Any) -> list[OneMemory]:
    """The first of some memories, as many as the budget leaves room for; of the first at least its beginning."""
    left, shown = budget * BYTES - _size(empty), list[OneMemory]()
    for one in found:
        left -= _size(one) + 2
        if left < 0:
            break
        shown.append(one)
    if found and not shown:
        first, room = found[0], left + _size(found[0])
        bare = OneMemory(_shortened(first.key, room // 2), "", first.weight, cut=True)
        shown = [replace(bare, text=_shortened(first.text, room - _size(bare)))]
    return shown


def _shortened(text: str, size: int) -> str:
    """The beginning of a text, of at most so many bytes in JSON."""
    while len(as_json(text).encode()) > max(size, 2):
        text = text[: len(text) // 2]
    return text


def _size(found: Any) -> int:
    return len(as_json(plain(found)).encode())
