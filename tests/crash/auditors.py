"""Readers that check all that they are told, against the ledger and against the plainest arithmetic, and keep count."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np

import softkv
from softkv.answer import Answers
from softkv.database import SoftKV
from softkv.database.handle import StoreView
from tests.crash.bank import ACCOUNTS, DEPOSIT, GUESTS, PARTS, WIDTH, Audit, audit, facts
from tests.crash.children import Say
from tests.crash.ledger import Ledger

TOLERANCE = 0.05
QUERIES = 12
KEPT = 3  # snapshots that a reader holds while others are made
Result = TypeVar("Result")


@dataclass
class Tally:
    """What readers did, and what they met."""

    calls: int = 0
    audits: int = 0
    again: int = 0  # snapshots that were looked at again, later
    opened: int = 0
    exact: int = 0
    calibrated: int = 0
    within: int = 0  # of them, within the error that was stated
    bound: int = 0
    scanned: int = 0  # although an estimate was asked for
    longest: float = 0.0  # seconds in one call
    commits: list[int] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)

    def timed(self, call: Callable[[], Result]) -> Result:
        """Call, and take note of how long it took."""
        start = time.monotonic()
        result = call()
        self.calls, self.longest = self.calls + 1, max(self.longest, time.monotonic() - start)
        return result

    def __add__(self, other: "Tally") -> "Tally":
        """Those of two readers."""
        mine, others = asdict(self), asdict(other)
        joined = {name: mine[name] + others[name] for name in mine if name not in ("longest", "commits", "generations")}
        seen = {name: sorted({*mine[name], *others[name]}) for name in ("commits", "generations")}
        return Tally(**joined, **seen, longest=max(self.longest, other.longest))

    def __str__(self) -> str:
        return (
            f"{self.calls} reads, {self.audits} whole commits and {self.again} of them again, {len(self.commits)} "
            f"commits and {len(self.generations)} generations seen, {self.opened} handles; {self.exact} exact lookups, "
            f"{self.calibrated} calibrated ({self.within} within their error), {self.bound} bound, {self.scanned} "
            f"scanned instead; longest pause {self.longest:.2f} s"
        )


@dataclass
class Kept:
    """A snapshot that is held, with what was found in it."""

    view: StoreView
    found: Audit
    queries: Any
    values: Any
    log_masses: Any


class Auditor:
    """A reader, with a handle of its own or one that it shares."""

    def __init__(self, db: SoftKV, ledger: Ledger, random: Random, tally: Tally, number: int = 0) -> None:
        self.db, self.ledger, self.random, self.tally, self.number = db, ledger, random, tally, number
        self.newest, self.kept = 0, list[Kept]()

    def turn(self) -> None:
        """Read once: a new snapshot, one that was kept, or without any."""
        chance = self.random.random()
        if chance < 0.5 or not self.kept:
            self._look_at_the_newest()
        elif chance < 0.7:
            self._look_again()
        else:
            self._ask_the_handle()
        self.ledger.turned(self.number)

    def _look_at_the_newest(self) -> None:
        least = max(self.newest, self.ledger.announced)
        view = self.tally.timed(self.db.snapshot)
        assert view.commit >= least, f"commit {view.commit}, after {least} was seen or announced"
        self.newest = view.commit
        found = self._audited(view)
        queries = _queries(self.random, found.values.shape[1])
        values, log_masses = self._ask(view, found, queries)
        self.tally.audits += 1
        self.tally.commits.append(view.commit)
        self.tally.generations.append(view._view().snapshot.generation)
        self.kept.append(Kept(view, found, queries, values, log_masses))
        while len(self.kept) > KEPT:
            self.kept.pop(self.random.randrange(len(self.kept))).view.close()

    def _audited(self, view: StoreView) -> Audit:
        items = self.tally.timed(lambda: list(view.select()))
        found = audit(items)
        assert found.entry == self.ledger.entry(view.commit), f"commit {view.commit} does not hold what it must"
        for number, content in view._view().snapshot.derived(PARTS):
            assert number <= view.commit, "a derived part is of a later commit"
            assert content == repr(self.ledger.entry(number)).encode(), "a derived part says what another says"
        assert len(view) == len(found.names)
        assert self.tally.timed(lambda: list(view)) == found.names
        return found

    def _ask(self, view: StoreView, found: Audit, queries: Any) -> tuple[Any, Any]:
        """By a scan, within a tolerance and within a bound: each against the plain sum over what was found."""
        values, log_masses = found.reference(queries)
        exact = self.tally.timed(lambda: view.lookup(queries, tolerance=0.0))
        self._require_exact(exact, values, log_masses)
        likely = self.tally.timed(lambda: view.lookup(queries, tolerance=TOLERANCE))
        sure = self.tally.timed(lambda: view.lookup(queries, tolerance=TOLERANCE, guarantee="bound"))
        for answers in (likely, sure):
            kinds, apart = _kinds(answers), _apart(answers, values)
            held = apart <= answers.error + 1e-9
            self.tally.scanned += int((kinds == "exact").sum())
            self.tally.calibrated += int((kinds == "calibrated").sum())
            self.tally.within += int(held[kinds == "calibrated"].sum())
            self.tally.bound += int((kinds == "bound").sum())
            assert held[kinds != "calibrated"].all(), "further off than an error that always holds"
            assert (apart < 1.0).all(), "far off any error"
        self._add_up(view, found)
        return exact.value, exact.log_mass

    def _require_exact(self, answers: Answers, values: Any, log_masses: Any) -> None:
        assert (_kinds(answers) == "exact").all()
        assert (_apart(answers, values) <= answers.error + 1e-9).all(), "a scan is further off than its rounding"
        assert np.allclose(answers.log_mass, log_masses, atol=1e-3)
        self.tally.exact += len(values)

    def _add_up(self, view: StoreView, found: Audit) -> None:
        """Means times counts are sums: of all accounts, and of everything."""
        queries = np.ones((1, WIDTH), np.float32)
        uniform = self.tally.timed(lambda: view.lookup(queries, compatibility="uniform", tolerance=0.0))
        assert np.allclose(np.ravel(uniform.value), found.values.mean(axis=0), atol=1e-5)
        _require_all_money(view, self.tally)
        best = self.tally.timed(lambda: view.nearest(_queries(self.random, 1)[0]))
        assert best.contributors[0].key in found.names

    def _look_again(self) -> None:
        """A snapshot is what it was, whatever was written since."""
        kept = self.random.choice(self.kept)
        again = self._audited(kept.view)
        assert again.entry == kept.found.entry
        assert again.names == kept.found.names
        assert np.array_equal(again.keys, kept.found.keys)
        assert np.array_equal(again.values, kept.found.values)
        answers = self.tally.timed(lambda: kept.view.lookup(kept.queries, tolerance=0.0))
        assert np.allclose(np.ravel(answers.value), np.ravel(kept.values), rtol=1e-5, atol=1e-6)
        assert np.allclose(answers.log_mass, kept.log_masses, atol=1e-4)
        self.tally.again += 1

    def _ask_the_handle(self) -> None:
        """Calls that each see a commit of their own."""
        _require_all_money(self.db, self.tally)
        name = f"guest {self.random.randrange(GUESTS)}"
        start = self.random.randrange(ACCOUNTS)  # so many never go; with guests there may be fewer than a hundred items
        item = self.tally.timed(lambda: next(iter(self.db.select({"serial": {"$gte": 0}}, start=start)), None))
        assert item is not None, f"no item from {start} on has a serial"
        vectors, _ = facts([item.name], [item.payload["version"]], 1)
        assert np.array_equal(item.vector, vectors[0])
        value = self.tally.timed(lambda: self.db.get(name))
        assert value is None or np.isfinite(value).all()
        assert self.tally.timed(lambda: f"account {self.random.randrange(ACCOUNTS)}" in self.db)
        answer = self.tally.timed(lambda: self.db.lookup(_queries(self.random, 1)[0], tolerance=TOLERANCE))
        assert all(one.key is not None for one in answer.contributors)

    def close(self) -> None:
        """Let go of what was kept."""
        for kept in self.kept:
            kept.view.close()
        self.kept.clear()


def read(path: Path, ledger: Ledger, number: int, random: Random, say: Say) -> None:
    """A reader in a process of its own, with a handle that is sometimes closed and opened again."""
    tally = Tally(opened=1)
    auditor = Auditor(tally.timed(lambda: softkv.open(path, "r")), ledger, random, tally, number)
    while not ledger.over:
        auditor.turn()
        if random.random() < 0.04:
            least = auditor.newest
            auditor.db.close()
            auditor.kept.clear()
            db = tally.timed(lambda: softkv.open(path, "r"))
            auditor.db, auditor.newest, tally.opened = db, least, tally.opened + 1
    auditor.close()
    auditor.db.close()
    say("done", asdict(tally))


def _queries(random: Random, columns: int) -> Any:
    """Vectors like those of items, most of which never were in the store."""
    names = [f"guest {random.randrange(GUESTS)}" for _ in range(QUERIES)]
    return facts(names, (random.randrange(1 << 40) for _ in names), columns)[0]


def _kinds(answers: Answers) -> Any:
    kinds = answers.error_kind
    return np.array([kinds] * len(answers) if isinstance(kinds, str) else kinds)


def _apart(answers: Answers, values: Any) -> Any:
    return np.linalg.norm(np.asarray(answers.value, np.float64).reshape(len(values), -1) - values, axis=1)


def _require_all_money(reader: Any, tally: Tally) -> None:
    """In one call: the mean balance of all accounts is what it was at the beginning."""
    query = np.ones(WIDTH, np.float32)
    answer = tally.timed(lambda: reader.lookup(query, compatibility="uniform", where={"account": True}))
    assert np.allclose(answer.value, DEPOSIT, atol=1e-5), f"{answer.value} on average instead of {DEPOSIT}"
    assert answer.scored == ACCOUNTS
