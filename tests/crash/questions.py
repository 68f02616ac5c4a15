"""What is asked of a store that may be damaged, and whether the answers are those of the whole store.

An answer is the same, or an error of ours that says what is wrong, or it is a different one. An answer by the index may
also be that of a scan, when it says so: an index that cannot be believed is none. Derived parts may be fewer.
"""

import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import softkv
from softkv.errors import SoftKVError, StoreError

QUERY = np.array([0.4, -0.3, 0.9, 0.1], np.float32)
INDEXED = {"calibrated": "warmer", "bound": "soft", "proposed": "best"}  # and what a scan answers instead
FIGURES = ("items", "dead_rows", "commit", "value_kind", "key_width", "value_width", "value_scale", "compatibility",
           "embedder", "temperature", "temperature_from")  # fmt: skip


@dataclass(frozen=True)
class Error:
    """A question that was refused, with an error that names damage."""

    name: str
    message: str


@dataclass(frozen=True)
class Crash:
    """An exception that is none of ours."""

    trace: str


Outcomes = dict[str, Any]  # by question: an answer, or an Error


def outcomes(path: Path, names: list[str]) -> Outcomes:
    """What a reader is told."""
    try:
        db = softkv.open(path, "r")
    except StoreError as error:
        return {"open": Error(type(error).__name__, str(error))}
    with db:
        found = {name: _asked(question, db) for name, question in QUESTIONS.items()}
        found |= {f"get {name}": _asked(lambda db, name=name: _item(db.item(name)), db) for name in names}
    return found


def crashes(found: Outcomes) -> list[str]:
    """The questions at which something broke, with the ends of their tracebacks."""
    return [f"{name}: {outcome.trace[-600:]}" for name, outcome in found.items() if isinstance(outcome, Crash)]


def differing(whole: Outcomes, found: Outcomes) -> list[str]:
    """The questions that were answered otherwise than by the whole store."""
    return [
        name
        for name, outcome in found.items()
        if not isinstance(outcome, (Error, Crash)) and not _is_right(whole, name, outcome)
    ]


def _is_right(whole: Outcomes, name: str, outcome: Any) -> bool:
    if name == "open":
        return True
    if name in INDEXED and outcome["kind"] == "exact":
        return _same(whole[INDEXED[name]], outcome)
    if name == "derived":  # what is damaged is done without
        return all(part in whole[name] for part in outcome)
    return name in whole and _same(whole[name], outcome)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.shape == other.shape and np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    return type(one) is type(other) and one == other


def _asked(question: Callable[[Any], Any], db: Any) -> Any:
    try:
        return question(db)
    except StoreError as error:
        return Error(type(error).__name__, str(error))
    except SoftKVError as error:  # a key that is there is missing, a store that is not empty is
        return f"{type(error).__name__}: {error}"
    except Exception:
        return Crash(traceback.format_exc())


def _item(item: Any) -> Any:
    value = item.value.tobytes() if isinstance(item.value, np.ndarray) else item.value
    value = struct.pack("d", value) if isinstance(value, float) else value
    return [item.row, item.number, item.key, item.vector.tobytes(), value, item.payload, item.text]


def _answer(answer: Any) -> dict[str, Any]:
    """What an answer says, but for its error, which depends on how it came about."""
    return {
        "kind": answer.error_kind,
        "value": np.asarray(answer.value, np.float64),
        "mass": np.array([answer.log_mass, answer.temperature], np.float64),
        "weights": np.array([one.weight for one in answer.contributors]),
        "names": [(one.key, str(one.payload)) for one in answer.contributors],
    }


def _lookup(**options: Any) -> Callable[[Any], Any]:
    return lambda db: _answer(db.lookup(QUERY, show=4, **options))


def _figures(info: Any) -> dict[str, Any]:
    return {name: getattr(info, name) for name in FIGURES}


def _derived(db: Any) -> Any:
    """The derived parts that say that they are of this store."""
    with db._store.snapshot() as snapshot:
        return [part for part in snapshot.derived("beside") if part[1].startswith(snapshot.store.encode())]


def _every_other(db: Any) -> Any:
    return np.arange(len(db)) % 2 == 0


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "len": len,
    "keys": list,
    "in": lambda db: ("item 1" in db, "nobody" in db),
    "soft": _lookup(tolerance=0),
    "warmer": _lookup(tolerance=0, temperature=1.0),
    "calibrated": _lookup(tolerance=0.9, confidence=0.8, temperature=1.0),
    "bound": _lookup(tolerance=0.9, guarantee="bound"),
    "best": _lookup(k=3, tolerance=0),
    "proposed": _lookup(k=3),
    "where": _lookup(where={"n": {"$gte": 40}}),
    "mask": lambda db: _answer(db.lookup(QUERY, show=4, mask=_every_other(db))),
    "nearest": lambda db: _answer(db.nearest(QUERY)),
    "select": lambda db: [item.name for item in db.select({"n": {"$gte": 40}})],
    "info": lambda db: _figures(db.info()),
    "derived": _derived,
}
