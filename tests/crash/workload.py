"""A mixed workload that two processes can draw alike: the child performs it, the parent knows what it must leave.

Both draw from the same seed and the same expectation, so that the pipe between them need carry no more than numbers.
"""

import copy
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from softkv.storage import Snapshot, Store, ValueKind
from tests.crash.rows import Proof, append
from tests.stores import names_by_row, wrong_index

_MANY = 400  # items above which deleting becomes likely
_CHANGES = {
    "add": 5, "batch": 3, "replace": 3, "ignore": 1, "delete": 4, "compact": 3, "order": 5, "index": 4, "drop": 1,
    "rebuild": 3, "reopen": 2, "configure": 1, "derive": 4, "merge": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One call that must happen wholly or not at all."""

    what: str  # a key of _CHANGES, or what sessions.py and canonical.py do besides
    keys: list[str | None] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    token: int = 0  # in the derived part that is put

    def __str__(self) -> str:
        return f"{self.what} of {len(self.keys) + len(self.names)}"


@dataclass
class Expectation:
    """What the store must hold: items by name, in the order of the store."""

    kind: str
    items: dict[str, Proof] = field(default_factory=dict)
    next_number: int = 1
    versions: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    parts: list[list[int]] = field(default_factory=list)  # the tokens in each derived part, the newest part last
    tokens: int = 0
    dead: bool = False  # whether a compaction has something to leave behind
    doubted: bool = False  # whether a rebuild may have been left unfinished: who finishes it leaves parts behind

    def after(self, operation: Operation) -> "Expectation":
        """The expectation once this operation has happened."""
        if operation.what == "anew":
            return Expectation(self.kind, versions=self.versions)
        new = copy.copy(self)
        new.items = dict(self.items)
        new.versions += len(operation.proofs)
        for key, proof in zip(operation.keys, operation.proofs, strict=True):
            if operation.what != "ignore" or key is None or key not in self.items:
                new.items[f"#{new.next_number}" if key is None else key] = proof
                new.next_number += 1
        for name in operation.names:
            del new.items[name]
        new.settings = operation.settings or self.settings
        replaced = operation.keys if operation.what == "replace" else operation.names
        new.dead = self.dead or any(name in self.items for name in replaced)
        new.tokens = max(self.tokens, operation.token)
        new._derive(operation)
        return new

    def _derive(self, operation: Operation) -> None:
        """Let derived parts come, and go with what they are about."""
        gone = (self.parts[:-1] or self.parts) if operation.what == "merge" else []
        if operation.token:
            self.parts = [*self.parts[len(gone) :], [*(token for part in gone for token in part), operation.token]]
        elif operation.what in ("index", "drop", "migrate"):
            self.parts = []
        elif operation.what in ("order", "rebuild") and self.next_number > 1:
            self.parts, self.dead, self.doubted = [], False, False
        elif operation.what == "compact" and self.dead:
            self.parts, self.dead = self.parts if self.doubted else [], False

    def draw(self, random: Random) -> Operation:
        """The next operation."""
        what = random.choices(
            [*_CHANGES, "purge"],
            [*_CHANGES.values(), 1 + len(self.items) // _MANY * 20],
        )[0]
        return self.drawn(what, random)

    def drawn(self, what: str, random: Random) -> Operation:
        """The next operation of this kind; a compaction where there is nothing to delete."""
        names = list(self.items)
        self.doubted |= what in ("rebuild", "leave")
        if what in ("derive", "merge") and self.next_number > 1:
            return Operation("derive" if self.doubted or not self.parts else what, token=self.tokens + 1)
        if what in ("add", "batch", "many", "replace", "ignore"):
            return self._drawn_rows(what, random, names)
        if what in ("delete", "purge") and names:
            share = len(names) // 2 if what == "purge" else min(len(names), random.choice([1, 1, 3, 20]))
            return Operation("delete", names=random.sample(names, share)) if share else Operation("compact")
        if what == "configure":
            return Operation(what, settings={"number": random.randrange(1000)})
        return Operation("compact" if what in ("delete", "purge", "derive", "merge") else what)

    def _drawn_rows(self, what: str, random: Random, names: list[str]) -> Operation:
        count = {"add": 1, "many": 60}.get(what) or random.choice([2, 7, 40, 150])
        keys: list[str | None] = [None if random.random() < 0.3 else f"key {self.versions + i}" for i in range(count)]
        known = [name for name in names if not name.startswith("#")]
        if what in ("replace", "ignore"):
            share = min(len(known), count // 2)
            keys[:share] = random.sample(known, share)
        proofs = [Proof(key or "nameless", self.versions + i) for i, key in enumerate(keys)]
        return Operation("add" if what in ("batch", "many") else what, keys=keys, proofs=proofs)


def perform(store: Store, operation: Operation, kind: str) -> Store:
    """Do it; returns the handle to go on with. A rebuild that a death left is finished first, as anybody would."""
    if operation.what == "rebuild" or store.unfinished is not None:
        rebuild(store)
    if operation.what in ("add", "replace", "ignore"):
        conflict = "error" if operation.what == "add" else operation.what
        append(store, kind, operation.keys, operation.proofs, conflict)
    elif operation.what == "delete":
        store.delete(operation.names)
    elif operation.what == "compact":
        store.compact()
    elif operation.what in ("order", "index", "drop"):
        index(store, operation.what)
    elif operation.token:
        derive(store, operation)
    elif operation.what == "configure":
        store.configure(operation.settings)
    elif operation.what in ("reopen", "anew"):
        store.close()
        return Store.open(store.path, "w" if operation.what == "reopen" else "n")
    return store


def index(store: Store, what: str) -> None:
    """Put an index file that names the items by row, with their rows in another order or as they are; or drop it."""
    if what == "drop":
        store.drop_index("names")
    elif what == "order":
        order = np.random.default_rng(store.commit).permutation(np.flatnonzero(store.live))
        store.compact(order, index={"names": names_by_row(store, order)} if store.layout else None)
        assert store.layout is None or store.snapshot().index("names") is not None
    elif store.layout is not None:
        content = names_by_row(store, range(store.rows))
        store.put_index("names", [content[:100], content[100:]])
        assert store.snapshot().index("names") is not None


def derive(store: Store, operation: Operation) -> None:
    """Put a derived part that proves itself, and says what those say that it replaces."""
    held = [(number, json.loads(content)) for number, content in store.snapshot().derived("names")]
    gone = (held[:-1] or held) if operation.what == "merge" else []
    tokens = [token for _, told in gone for token in told["tokens"]]
    told = {"commit": store.commit, "rows": store.rows, "names": names_by_row(store, range(store.rows)).decode()}
    content = json.dumps({**told, "tokens": [*tokens, operation.token]}).encode()
    number = store.put_derived("names", content, instead_of=[number for number, _ in gone])
    assert number == store.commit


def rebuild(store: Store, batches: int = -1) -> None:
    """Write all items anew, with the vectors that they have, so that they still prove themselves; or begin to."""
    layout, begun = store.layout, store.unfinished
    if layout is None:
        return
    text = layout.kind is ValueKind.TEXT
    work = store.rebuild(
        key_width=layout.key_width,
        value_width=layout.value_width if text else None,
        settings=begun.settings if begun else store.settings,
    )
    while batches and (items := work.waiting(40)):
        values = store.values([item.row for item in items]) if text else None
        work.write(np.array([item.vector for item in items]), values)
        batches -= 1
    if not batches:
        return  # left in the middle
    work.finish()


def differences(snapshot: Snapshot, expected: Expectation) -> list[str]:
    """What a snapshot says otherwise than expected; nothing when all is well."""
    names = list(snapshot.keys())
    if names != list(expected.items):
        return [_difference_of_names(names, list(expected.items))]
    found = []
    if len(snapshot) != len(names) or int(snapshot.live.sum()) != len(names):
        found.append(f"{len(names)} names, but {len(snapshot)} items and {int(snapshot.live.sum())} live rows")
    if snapshot.settings != expected.settings:
        found.append(f"settings are {snapshot.settings} instead of {expected.settings}")
    for item, (name, proof) in zip(snapshot.items(snapshot.in_order()), expected.items.items(), strict=True):
        if item.name != name or not proof.holds(item, expected.kind):
            found.append(f"{name} is {item} instead of {proof}")
    found += wrong_index(snapshot) + _wrong_parts(snapshot, expected)
    named = [name for name in names if not name.startswith("#")]
    if (snapshot.find_many(named) < 0).any():
        found.append("some keys are listed but not found")
    if snapshot.rows:
        lengths = np.concatenate([np.linalg.norm(block.vectors, axis=1) for block in snapshot.blocks()])
        if not np.allclose(snapshot.norms(0, snapshot.rows), lengths, rtol=1e-5):
            found.append("norms are not the lengths of the key vectors")
    return found


def _wrong_parts(snapshot: Snapshot, expected: Expectation) -> list[str]:
    """Derived parts that are not of this commit's rows, and those that are missing or too many."""
    parts = [(number, json.loads(content)) for number, content in snapshot.derived("names")]
    found = [
        f"derived part {number} says {told} at commit {snapshot.commit}"[:300]
        for number, told in parts
        if told["commit"] != number - 1
        or not told["commit"] < number <= snapshot.commit
        or told["rows"] > snapshot.rows
        or told["names"] != names_by_row(snapshot, range(told["rows"])).decode()
    ]
    tokens, wanted = [told["tokens"] for _, told in parts], expected.parts
    known = [wanted[start:] for start in range(len(wanted) + 1)] if expected.doubted else [wanted]
    if tokens not in known or snapshot.derived_numbers("names") != [number for number, _ in parts]:
        found.append(f"derived parts have {tokens} instead of {wanted}")
    return found


def _difference_of_names(found: list[str], wanted: list[str]) -> str:
    lost, extra = [name for name in wanted if name not in found], [name for name in found if name not in wanted]
    return f"lost {lost[:5]} ({len(lost)}), back or too many {extra[:5]} ({len(extra)}), else out of order"
