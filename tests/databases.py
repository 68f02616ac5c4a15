"""Small databases for tests, and what the reference says that their lookups should answer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.answer import Answer
from softkv.asking import route
from softkv.database import SoftKV

from . import reference
from .scales import scaled

LABELS = ["red", "green", "blue"]
WORDS = ["a fox", "two dogs", "the sea", "winter", "a red house", "bread and butter"]
KINDS = ("number", "vector", "label", "text")
STATIC: dict[str, Any] = {}


def count_as_large(patch: pytest.MonkeyPatch, **sizes: float) -> None:
    """Let stores count as large from the first item on, so that they are asked by their index; and scale what else."""
    scaled(patch, cheap=0, scattered=0, **sizes)


def measured_always(patch: pytest.MonkeyPatch) -> None:
    """Let stores count as large, few queries be rehearsed, and to draw rows take no time."""
    count_as_large(patch, rehearsed=400)
    for name in ("STARTED", "STARTED_EACH", "DRAWN_NUMBER", "ASKED_NUMBER"):
        patch.setattr(route, name, 0)
    patch.setattr(route, "DRAWN", 5)


def values_of(kind: str, count: int, seed: int = 0) -> Any:
    """Values of a kind, the same ones every time."""
    rng = np.random.default_rng([seed, count])
    if kind == "number":
        return rng.normal(3.0, 2.0, count)
    if kind == "vector":
        return rng.standard_normal((count, 3)).astype(np.float32)
    names = LABELS if kind == "label" else WORDS
    return [names[code] for code in rng.integers(0, len(names), count)]


def vectors_of(count: int, width: int = 5, seed: int = 0) -> np.ndarray:
    """Key vectors, the same ones every time."""
    return np.random.default_rng([seed, count, width]).standard_normal((count, width)).astype(np.float32)


def filled(path: Path, kind: str, count: int = 40, **options: Any) -> SoftKV:
    """A new database with keys "item 0", "item 1" ..., payloads {"n": 0} ... and values of a kind, for writing."""
    db = softkv.open(path, value=kind, **options)
    keys = [f"item {number}" for number in range(count)]
    payloads = [{"n": number, "even": number % 2 == 0} for number in range(count)]
    db.add(keys, values_of(kind, count), vectors=vectors_of(count), payloads=payloads)
    return db


def columns_of(db: Any, names: list[str]) -> list[list[float]]:
    """What is blended of each item: a number, the cells of a vector or of a text's embedding, or a one-hot label."""
    found: list[list[float]] = []
    for name in names:
        value = db[name]
        if isinstance(value, float):
            found.append([value])
        elif isinstance(value, str):
            found.append(list(_cells(db, value)))
        else:
            found.append([float(cell) for cell in value])
    return found


def _cells(db: Any, value: str) -> list[float]:
    if db.info().value_kind == "label":
        return [float(value == label) for label in label_order(db)]
    if value not in STATIC:
        from softkv.embedders import find

        STATIC[value] = [float(cell) for cell in find("static").documents([value])[0]]
    return list(STATIC[value])


def label_order(db: Any) -> list[str]:
    """The labels in the order in which the store first met them."""
    answer = db.lookup(np.zeros(db.info().key_width), compatibility="uniform")
    return list(answer.labels)


def expected(db: Any, query: np.ndarray, *, names: list[str] | None = None, **options: Any) -> reference.Expected:
    """The reference's answer over the items of these names, or all."""
    names = list(db) if names is None else names
    score = getattr(reference, options.pop("compatibility", None) or db.info().compatibility)
    temperature = options.pop("temperature", None) or db.info().temperature
    keys = [[float(cell) for cell in db.item(name).vector] for name in names]
    asked = [float(cell) for cell in query]
    return reference.lookup(asked, keys, columns_of(db, names), score=score, temperature=temperature, **options)


def distance(answer: Answer, found: reference.Expected) -> float:
    """How far an answer's value is from the reference's."""
    return float(np.linalg.norm(np.ravel(answer.value) - np.asarray(found.value)))
