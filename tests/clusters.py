"""Clusters for tests."""

from pathlib import Path
from typing import Any

import numpy as np

import softkv
from softkv.doors.cluster.handle import Cluster, create

from .databases import values_of, vectors_of


def opened(path: Path, **options: Any) -> Cluster:
    """A cluster that is there."""
    db = softkv.open(path, **options)
    assert isinstance(db, Cluster)
    return db


def clustered(path: Path, kind: str, count: int = 40, *, shards: int = 3, **options: Any) -> Cluster:
    """A new cluster with the items that `filled` gives a store, for writing."""
    create(path, shards, value=kind, **options)
    db = opened(path)
    keys = [f"item {number}" for number in range(count)]
    payloads = [{"n": number, "even": number % 2 == 0} for number in range(count)]
    db.add(keys, values_of(kind, count), vectors=vectors_of(count), payloads=payloads)
    return db


def value_like(found: Any, other: Any) -> Any:
    """The value of an answer, or of answers, with labels in the order of another."""
    if found.labels is None:
        return found.value
    return np.asarray(found.value)[..., [found.labels.index(label) for label in other.labels]]


def require_alike(found: Any, other: Any) -> None:
    """Refuse answers that are farther apart than they say that they may be, or that name other items."""
    allowed = np.asarray(found.error) + np.asarray(other.error)
    apart = value_like(found, other) - other.value
    missed = (
        np.abs(apart) if apart.ndim < 2 and found.kind == "number" else np.linalg.norm(np.atleast_2d(apart), axis=-1)
    )
    assert (missed <= allowed).all(), (missed, allowed)
    np.testing.assert_allclose(found.log_mass, other.log_mass, atol=1e-5)
    np.testing.assert_allclose(found.effective, other.effective, rtol=1e-5)
    np.testing.assert_allclose(found.mass, other.mass, rtol=1e-5)
    if other.spread is not None:
        np.testing.assert_allclose(found.spread, other.spread, atol=1e-5)
    for one, two in zip(found, other, strict=True):
        assert list(map(_called, one.contributors)) == list(map(_called, two.contributors)), "other items contributed"
        np.testing.assert_allclose(
            [item.weight for item in one.contributors], [item.weight for item in two.contributors], atol=1e-5
        )
        assert (one.error_kind, one.scored) == (two.error_kind, two.scored)


def _called(item: Any) -> str:
    """The key of a contributor; those without have numbers of their own in each store."""
    return "#" if item.key.startswith("#") else item.key
