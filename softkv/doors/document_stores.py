"""Shared code of the document stores for other libraries: which items answer a text, and how similar they are.

Does not know the libraries' documents (langchain.py, haystack.py).
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from softkv.answer import Contributor
from softkv.database import SoftKV
from softkv.database import open as open_store
from softkv.database.reader import Reader
from softkv.errors import InputError, KeyMissing, KindError, NotExpressible, NothingToBlend
from softkv.maths.inputs import is_whole
from softkv.storage.closing import Closing
from softkv.storage.disk.named import is_url

AnyStore = SoftKV | str | os.PathLike[str]
FIRST, MORE = 16, 4  # items in the first lookup, and the factor for the next where these hold too little weight
SHOWN = 1 << 30  # more than any store has, to ask for all
MISSING = object()


class Holding(Closing):
    """An object with a handle, `db`, which was given to it, or which it opened and closes."""

    def __init__(self, store: AnyStore, mode: str = "c", *, embedder: Any, value: str) -> None:
        self._opened = isinstance(store, str | os.PathLike)
        if isinstance(store, str | os.PathLike):
            self.db = open_store(store, mode, embedder=embedder, value=None if is_url(store) else value)
        elif embedder is not None:
            raise KindError(
                "expected a path with what embeds, got a handle, which has its own: softkv.open(embedder=)."
            )
        else:
            self.db = store
        self._closed = not self._opened

    def close(self) -> None:
        """Close the store, unless an open one was given."""
        self._closed = True
        if self._opened:
            self.db.close()


def heaviest(
    db: Reader,
    query: Any,
    *,
    k: int | None,
    mass: float | None = None,
    temperature: float | None = None,
    where: Mapping[str, Any] | None = None,
    projection: bool = True,
    declining: bool = False,
) -> list[Contributor]:
    """The k items that weigh most, or as many as hold this share of all weight, of these k at most.

    `declining`: none where the store has a guard that says that too little is known.
    """
    if mass is not None and not 0 < mass <= 1:
        raise InputError(f"expected mass to be a share of all weight, above 0 and up to 1, got {mass!r}.")
    most = SHOWN if k is None else k
    if is_whole(most) and most == 0:
        return []
    count = most if mass is None else min(most, FIRST)
    options: dict[str, Any] = {"temperature": temperature, "where": where, "projection": projection}
    try:
        while True:
            found = db.lookup(query, k=count, show=count, **options)
            if found.mass is None and mass is not None:  # by an index, the mass of the k best is unknown
                options["tolerance"] = 0
                found = db.lookup(query, k=count, show=count, **options)
            # The guard is about lookups of all items, so it is not asked about one of the k best.
            if declining and found.unguarded and db.lookup(query, show=1, **options).known is False:
                return []
            reached = np.cumsum([one.weight for one in found.contributors]) >= (mass or math.inf)
            if mass is None or reached.any() or count == most or found.scored < count:
                return list(found.contributors[: int(reached.argmax()) + 1 if reached.any() else None])
            count = min(most, count * MORE)
    except NothingToBlend:
        return []


def relevance_of(db: Reader) -> Callable[[float], float]:
    """The function that maps scores of this store to relevances from 0 to 1; equal vectors have relevance 1."""
    info = db.info()
    compared = info.compatibility if info.projection is None else "what it has learned"
    if compared in ("cosine", None):  # an empty store has not decided yet, and has no scores
        return lambda score: min(1.0, max(0.0, (1.0 + score) / 2))  # rounding may exceed the range
    if compared in ("gaussian", "laplace", "student"):
        return lambda score: min(1.0, math.exp(score))
    raise NotExpressible(
        f"expected a store whose scores have an upper end, to say how relevant its items are from 0 to 1; this one "
        f"compares by {compared!r}. Ask for scores, or make a store with compatibility='cosine'."
    )


def drop(db: SoftKV, names: Iterable[str]) -> int:
    """Delete those of these keys that exist; returns how many."""
    asked = list(dict.fromkeys(names))
    while there := [one for one, value in zip(asked, db.get_many(asked, MISSING), strict=True) if value is not MISSING]:
        try:
            return db.delete(there)
        except KeyMissing:  # another thread has just deleted one of them, and none was deleted here
            continue
    return 0
