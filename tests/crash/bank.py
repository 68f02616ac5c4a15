"""A store in which accounts always add up to the same, and guests come, change and go; every item proves itself.

Vectors and the values of guests follow from a name and a version, balances stand in the payload as well, and serial
numbers tell the order. A Bank is the only one to change its store; what each commit must hold is in the ledger.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import softkv
from softkv.database import SoftKV
from softkv.errors import HandleClosed
from softkv.storage import Item
from tests.crash.ledger import Entry, Ledger

ACCOUNTS, DEPOSIT = 24, 1.0
COIN = 1 / 64  # sums of coins are exact in float32, in any order
GUESTS = 2000  # names of guests; about half of them are in the store
WIDTH = 16
COLUMNS = {"number": 1, "vector": 3}
PARTS = "ledger"  # the name of derived parts
AHEAD = 16  # commits that change nothing, at most, between two that do
TEMPERATURE = 0.05
_CENTRES = np.random.default_rng(5).standard_normal((30, WIDTH)).astype(np.float32)
_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class Held:
    """What the writer knows of an item."""

    serial: int
    version: int
    balance: tuple[float, ...] | None  # of an account

    def payload(self) -> dict[str, Any]:
        """What is carried along."""
        balance = None if self.balance is None else list(self.balance)
        return {"serial": self.serial, "version": self.version, "account": balance is not None, "balance": balance}


def facts(names: list[str], versions: Iterable[int], columns: int) -> tuple[Any, Any]:
    """Key vectors around some centres, and values, as they follow from names and versions."""
    digests = [
        blake2b(f"{name} {version}".encode(), digest_size=64).digest()
        for name, version in zip(names, versions, strict=True)
    ]
    cells = np.frombuffer(b"".join(digests), np.uint8).reshape(len(names), 64)
    noise = (cells[:, :WIDTH].astype(np.float32) - 127.5) / 256
    vectors = _CENTRES[cells[:, 40] % len(_CENTRES)] + noise
    values = np.tanh(vectors[:, :columns]) + cells[:, 41 : 41 + columns].astype(np.float32) / 1024
    return vectors, values.astype(np.float32).astype(np.float64)


def seal(name: str, serial: int, version: int, balance: Iterable[float] | None) -> int:
    """A number that stands for an item; those of all items are added up."""
    balance = None if balance is None else tuple(balance)
    return int.from_bytes(blake2b(repr((name, serial, version, balance)).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, eq=False)
class Audit:
    """What was found in one commit: it is as it should be, else this was not made."""

    entry: Entry
    names: list[str]
    keys: Any  # (n, d), float64
    values: Any  # (n, p), float64

    def reference(self, queries: Any, compatibility: str = "cosine") -> tuple[Any, Any]:
        """The exact full softmax in float64 and the plainest way: values (b, p) and log masses (b,)."""
        scores = np.zeros((len(queries), len(self.keys)))
        if compatibility == "cosine":
            lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(self.keys, axis=1)[None, :]
            scores = queries.astype(np.float64) @ self.keys.T / lengths / TEMPERATURE
        peaks = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - peaks)
        mass = weights.sum(axis=1, keepdims=True)
        return weights @ self.values / mass, (peaks + np.log(mass))[:, 0]


def audit(items: list[Item]) -> Audit:
    """Look at all items of one commit, in their order."""
    names, payloads = [item.name for item in items], [item.payload for item in items]
    keys, values = np.array([item.vector for item in items]), np.array([item.value for item in items], np.float64)
    values = values.reshape(len(items), -1)
    vectors, wanted = facts(names, (payload["version"] for payload in payloads), values.shape[1])
    accounts = np.array([payload["account"] for payload in payloads])
    wanted[accounts] = [payload["balance"] for payload in payloads if payload["account"]]
    assert np.array_equal(keys, vectors), "a key vector is another item's, or of another time"
    assert np.array_equal(values, wanted), "a value is another item's, or of another time"
    serials = [payload["serial"] for payload in payloads]
    assert serials == sorted(set(serials)), "out of order"
    assert accounts.sum() == ACCOUNTS
    assert (values[accounts].sum(axis=0) == ACCOUNTS * DEPOSIT).all(), "money was made or lost"
    seals = (
        seal(name, payload["serial"], payload["version"], payload["balance"])
        for name, payload in zip(names, payloads, strict=True)
    )
    return Audit((sum(seals) % _MODULUS, len(items)), names, keys.astype(np.float64), values)


class Bank:
    """The writer. `step` makes one change at random; `compact`, `build` and `reopen` change nothing that is held."""

    def __init__(self, path: Path, ledger: Ledger, random: Random) -> None:
        self.path, self.ledger, self.random = path, ledger, random
        self.db: SoftKV = softkv.open(path, "w")
        self.held: dict[str, Held] = {}
        self._builder: threading.Thread | None = None
        self._failures: list[BaseException] = []
        self.commits = self.compactions = self.builds = self.overtaken = 0
        self.resume()

    @staticmethod
    def found(path: Path, ledger: Ledger, kind: str) -> None:
        """Make the store, with all accounts and some guests, and an index."""
        db = softkv.open(path, "c", value=kind, compatibility="cosine", temperature=TEMPERATURE)
        held = {f"account {number}": Held(number, 0, (DEPOSIT,) * COLUMNS[kind]) for number in range(ACCOUNTS)} | {
            f"guest {number}": Held(ACCOUNTS + number, 0, None) for number in range(0, GUESTS, 2)
        }
        _put(db, kind, held)
        entry = (
            sum(seal(name, one.serial, one.version, one.balance) for name, one in held.items()) % _MODULUS,
            len(held),
        )
        with db.snapshot() as view:
            ledger.enter(view.commit, entry, commits=AHEAD)
            ledger.announce(view.commit)
        db.build_index()
        db.close()

    def resume(self) -> None:
        """Learn what is there, and that it is what the newest commit must hold."""
        with self.db.snapshot() as view:
            items = list(view.select())
            assert audit(items).entry == self.ledger.entry(view.commit), f"commit {view.commit} holds something else"
            assert view.commit >= self.ledger.announced
            self.ledger.enter(view.commit + 1, self.ledger.entry(view.commit), commits=AHEAD)
            self.kind = view.value_kind or ""
        for item in items:
            balance = item.payload["balance"]
            told = item.payload["serial"], item.payload["version"]
            self.held[item.name] = Held(*told, None if balance is None else tuple(balance))
        self.serials = max(one.serial for one in self.held.values()) + 1
        self.versions = max(one.version for one in self.held.values()) + 1
        self.sum = self.ledger.entry(view.commit)[0]

    def step(self) -> None:
        """One change: money moves between accounts, or guests come, change or go; each is one commit.

        Some are followed by another, of a derived part.
        """
        self._change_something()
        if self.random.random() < 0.3:
            self.derive()

    def _change_something(self) -> None:
        chance = self.random.random()
        if chance < 0.4:
            self._change(self._transfer())
        elif chance < 0.75:
            self._change(self._arrivals())
        else:
            guests = [name for name, one in self.held.items() if one.balance is None]
            self._remove(self.random.sample(guests, min(len(guests) // 4, self.random.choice([1, 1, 3, 40]))))

    def derive(self) -> None:
        """Put a derived part that says what its commit holds, now and then in the place of all others."""
        with self.db._changing:
            store = self.db._store
            told = store.snapshot().derived_numbers(PARTS) if self.random.random() < 0.2 else []
            store.put_derived(PARTS, repr((self.sum, len(self.held))).encode(), instead_of=told)
            self._acknowledged()
        self.commits += 1

    def _transfer(self) -> dict[str, Held]:
        """Between two accounts or more, in one batch."""
        chosen = self.random.sample(range(ACCOUNTS), self.random.randint(2, ACCOUNTS))
        balances = {number: list(self.held[f"account {number}"].balance or ()) for number in chosen}
        for giver, taker in zip(chosen, chosen[1:] + chosen[:1], strict=True):
            for column in range(COLUMNS[self.kind]):
                amount = COIN * self.random.randint(0, 5)
                balances[giver][column] -= amount
                balances[taker][column] += amount
        names = {number: f"account {number}" for number in chosen}
        return {
            names[number]: Held(self.held[names[number]].serial, self.versions, tuple(balances[number]))
            for number in chosen
        }

    def _arrivals(self) -> dict[str, Held]:
        """New guests, and such as are there already, in another version."""
        count = self.random.choice([1, 1, 1, 5, 60])
        fresh = dict.fromkeys(f"guest {self.random.randrange(GUESTS)}" for _ in range(count))
        new = {}
        for name in fresh:
            known = self.held.get(name)
            new[name] = Held(known.serial if known else self.serials, self.versions, None)
            self.serials += known is None
        return new

    def _change(self, new: dict[str, Held]) -> None:
        self.versions += 1
        sealed = self.sum + sum(seal(name, one.serial, one.version, one.balance) for name, one in new.items())
        sealed -= sum(self._seal(name) for name in new if name in self.held)
        self._commit(sealed, {**self.held, **new}, lambda: _put(self.db, self.kind, new))

    def _remove(self, names: list[str]) -> None:
        if names:
            left = {name: one for name, one in self.held.items() if name not in set(names)}
            self._commit(self.sum - sum(map(self._seal, names)), left, lambda: self.db.delete(names))

    def _seal(self, name: str) -> int:
        one = self.held[name]
        return seal(name, one.serial, one.version, one.balance)

    def _commit(self, sealed: int, held: dict[str, Held], write: Any) -> None:
        entry = sealed % _MODULUS, len(held)
        with self.db._changing:  # an index that is being built elsewhere must not commit in between
            commit = self.commit + 1
            self.ledger.enter(commit, entry, commits=AHEAD)  # the lists of rows may be noted in commits that follow
            write()
            self.sum, self.held = entry[0], held
            self._acknowledged()
            assert commit <= self.commit < commit + AHEAD
        self.commits += 1

    def _acknowledged(self) -> None:
        commit = self.commit
        self.ledger.enter(commit + 1, (self.sum, len(self.held)), commits=AHEAD)
        self.ledger.announce(commit)

    @property
    def commit(self) -> int:
        """The number of the newest commit."""
        return self.db._store.commit

    def compact(self) -> None:
        """Leave the dead behind."""
        with self.db._changing:
            self.db.compact()
            self._acknowledged()
        self.compactions += 1

    @property
    def building(self) -> bool:
        """Whether an index is being built; what went wrong with one is raised."""
        if self._failures:
            raise self._failures[0]
        return self._builder is not None and self._builder.is_alive()

    def build(self) -> None:
        """Build an index, while steps go on."""
        if not self.building:
            self._builder = threading.Thread(target=self._build, args=(self.db,))
            self._builder.start()

    def _build(self, db: SoftKV) -> None:
        try:
            db.build_index()
            self.builds += 1
        except HandleClosed:
            pass  # in the middle of it, by us
        except BaseException as error:
            if "was compacted while its index was built" in str(error):
                self.overtaken += 1
            else:
                self._failures.append(error)

    def wait(self) -> None:
        """Until no index is being built."""
        if self._builder is not None:
            self._builder.join()
        assert not self.building

    def reopen(self) -> None:
        """Close, perhaps in the middle of a build, and open again."""
        self.db.close()
        self.wait()
        self.db = softkv.open(self.path, "w")
        with self.db._changing:
            self._acknowledged()

    def close(self) -> None:
        """Finish."""
        self.wait()
        self.db.close()


def _put(db: SoftKV, kind: str, new: dict[str, Held]) -> None:
    names = list(new)
    vectors, values = facts(names, (one.version for one in new.values()), COLUMNS[kind])
    for position, one in enumerate(new.values()):
        if one.balance is not None:
            values[position] = one.balance
    values = values[:, 0] if kind == "number" else values
    db.add(names, values, vectors=vectors, payloads=[one.payload() for one in new.values()], on_conflict="replace")
