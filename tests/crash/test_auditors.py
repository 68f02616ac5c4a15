"""The auditors notice what they are there for: each kind of wrong answer is planted once, and must not pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import asker
from softkv.database.handle import StoreView
from softkv.errors import StoreDamaged
from softkv.storage import Snapshot
from softkv.storage.protocol.following import Following
from tests.crash.auditors import Auditor, Tally
from tests.crash.bank import Bank
from tests.crash.ledger import Ledger
from tests.databases import count_as_large

pytestmark = pytest.mark.slow

TURNS = 12


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    """A bank that has worked for a while, and goes on from test to test."""
    with at_work(tmp_path_factory.mktemp("bank")) as bank:
        yield bank


@contextmanager
def at_work(folder: Path) -> Iterator[Bank]:
    """The same, below this folder."""
    with pytest.MonkeyPatch.context() as patch:
        count_as_large(patch, rehearsed=200)
        ledger, path = Ledger(), folder / "s"
        Bank.found(path, ledger, "number")
        bank = Bank(path, ledger, Random(1))
        for _ in range(20):
            bank.step()
        yield bank
        bank.close()


def _turns(bank: Bank) -> Tally:
    """What a reader finds while the bank goes on."""
    tally = Tally()
    with softkv.open(bank.path, "r") as db:
        auditor = Auditor(db, bank.ledger, Random(2), tally)
        for _ in range(TURNS):
            auditor.turn()
            bank.step()
        bank.derive()
        auditor._look_again()
        auditor.close()
    return tally


def test_auditors_are_content_with_a_store_that_is_right(bank: Bank) -> None:
    """Auditors that always complain would notice nothing."""
    tally = _turns(bank)
    assert min(tally.audits, tally.exact, tally.calibrated, tally.bound, tally.again) > 0
    assert tally.within >= 0.9 * tally.calibrated


def _stale(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "newest", lambda _following, known: known)


def _undead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Snapshot, "live", property(lambda snapshot: np.ones(snapshot.rows, np.bool_)))


def _moving(patch: pytest.MonkeyPatch) -> None:
    handles: list[Any] = []
    snapshot = softkv.database.SoftKV.snapshot

    def taken(db: Any) -> StoreView:
        handles.append(db)
        return snapshot(db)

    patch.setattr(softkv.database.SoftKV, "snapshot", taken)
    patch.setattr(StoreView, "_view", lambda _: handles[0]._view())


def _short(patch: pytest.MonkeyPatch) -> None:
    in_order = Snapshot.in_order
    patch.setattr(Snapshot, "in_order", lambda snapshot: in_order(snapshot)[:-1])


def _shuffled(patch: pytest.MonkeyPatch) -> None:
    in_order = Snapshot.in_order
    patch.setattr(Snapshot, "in_order", lambda snapshot: in_order(snapshot)[::-1])


def _other_value(patch: pytest.MonkeyPatch) -> None:
    told = Snapshot._told
    patch.setattr(Snapshot, "_told", lambda *given: [value * 1.01 for value in told(*given)])


def _other_answer(patch: pytest.MonkeyPatch) -> None:
    ask = asker.ask

    def slightly_off(view: Any, question: Any) -> Any:
        found = ask(view, question)
        return replace(found, value=found.value + 0.01)

    patch.setattr(asker, "ask", slightly_off)


def _sure_of_itself(patch: pytest.MonkeyPatch) -> None:
    ask = asker.ask

    def boasting(view: Any, question: Any) -> Any:
        found = ask(view, question)
        return replace(found, error=found.error * 1e-6) if question.guarantee else found

    patch.setattr(asker, "ask", boasting)


@pytest.mark.parametrize(
    "plant", [_stale, _undead, _moving, _short, _shuffled, _other_value, _other_answer, _sure_of_itself]
)
def test_auditors_notice_what_is_wrong(
    bank: Bank, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wrong thing each: an old commit, dead rows, a moving snapshot, a lost item, order, value, answer, error."""
    with monkeypatch.context() as patch:
        plant(patch)
        # Some of it the store notices by itself.
        with pytest.raises((AssertionError, StoreDamaged)):
            _turns(bank)
