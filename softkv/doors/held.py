"""What an estimator has learned from: items in memory, or a store on the disk. Both answer the same way.

In memory every answer is exact, in the floating type of the items. A store answers as it always does, within a
tolerance where it has an index, and can be larger than memory.

Does not know scikit-learn (sklearn.py).

Shapes: n items, b queries, d key width, p value width.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers
from softkv.database import SoftKV
from softkv.database import open as open_store
from softkv.database.learned import Learned
from softkv.database.training import FEWEST, MOST, PAIRS
from softkv.errors import InputError, KindError, NotExpressible, StoreExists
from softkv.learning.fitting import Examples, best_fit
from softkv.learning.slopes import WIDEST, planes
from softkv.learning.temperature import typical_temperature
from softkv.learning.tuning import curves_of_items
from softkv.maths.compatibility import Compatibility, compatibility_of
from softkv.plain import soft_lookup

TOGETHER = 256  # queries whose planes are worked out together

Array = npt.NDArray[Any]
Compared = str | Compatibility | Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """What is to be held: keys (n, d), and numbers (n,), vectors (n, p) or the codes of labels (n,)."""

    keys: Array
    values: Array
    labels: tuple[str, ...] | None = None  # the names of the codes
    shares: Array | None = None  # (n,), how much each counts, all above 0

    @property
    def kind(self) -> str:
        """What values are, in the words of a store."""
        if self.labels is not None:
            return "label"
        return "number" if self.values.ndim == 1 else "vector"

    def wanted(self) -> Array:
        """What predictions are measured by: the codes, or (n, p) values, of which every column counts alike."""
        if self.labels is not None:
            return self.values
        columns = self.values.reshape(len(self.values), -1).astype(np.float64)
        deviations = columns.std(0)
        scaled: Array = (columns - columns.mean(0)) / np.where(deviations > 0, deviations, 1.0)
        return scaled

    def some(self, seed: int) -> "Items":
        """At most as many as anything is learned from."""
        if len(self.keys) <= MOST:
            return self
        rows = np.sort(np.random.default_rng(seed).choice(len(self.keys), MOST, replace=False))
        return replace(self, keys=self.keys[rows], values=self.values[rows])


@dataclass(frozen=True, slots=True)
class Way:
    """How queries and keys are compared, as an estimator was told."""

    compatibility: Compared
    temperature: float | None  # None for the one by which the items predict each other best
    k: int | None
    projection: bool
    seed: int
    by_rule: bool = False  # without a temperature, take the one at which about ten items contribute


class Held(Protocol):
    """Items that can be asked."""

    @property
    def temperature(self) -> float:
        """What scores are divided by."""

    def ask(self, queries: Array, *, k: int | None, tolerance: float) -> Answers:
        """Look up (b, d) queries."""


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """Items as arrays, and how they are compared."""

    items: Items
    compatibility: Compared
    temperature: float
    learned: Learned | None = None
    inverse_lengths: Array | None = None  # (n,), where only the directions of keys count

    @classmethod
    def of(cls, items: Items, way: Way) -> "InMemory":
        """Hold these items, and find out what is to be learned from them."""
        if way.projection:
            return cls._learning(items, way)
        temperature = _tuned(items, way) if way.temperature is None else way.temperature
        return cls(items, way.compatibility, temperature)

    @classmethod
    def _learning(cls, items: Items, way: Way) -> "InMemory":
        if way.compatibility not in ("gaussian", "cosine"):
            raise NotExpressible(
                f"a projection is learned for gaussian, or by directions for cosine, got {way.compatibility!r}."
            )
        if len(items.keys) < FEWEST:
            raise InputError(
                f"expected at least {FEWEST} samples to learn a projection from, got n_samples = {len(items.keys)}."
            )
        some, directions = items.some(way.seed), way.compatibility == "cosine"
        flat = items.kind == "number" and items.keys.shape[1] <= WIDEST and not directions
        fitted = best_fit(
            Examples(some.keys, some.wanted()), directions=directions, planes=None if flat else False, seed=way.seed
        )
        learned = Learned(
            fitted.metric, fitted.metric.numbers(items.keys), fitted.units.astype(np.float32), fitted.ridge
        )
        lengths = np.linalg.norm(items.keys, axis=1)
        inverse = 1.0 / np.where(lengths > 0, lengths, 1.0)
        return cls(items, way.compatibility, way.temperature or 1.0, learned, inverse if directions else None)

    def ask(self, queries: Array, *, k: int | None, tolerance: float) -> Answers:  # noqa: ARG002 - all of it is exact
        """Look up (b, d) queries."""
        items, compared = self.items, self._compared()
        shares = None if items.shares is None else self.temperature * np.log(items.shares)
        answers = soft_lookup(
            queries,
            items.keys,
            items.values,
            compatibility=compared,
            temperature=self.temperature,
            k=k,
            bias=shares,
            labels=items.labels,
            show=0,
        )
        assert isinstance(answers, Answers)
        if k is None and self.learned is not None and self.learned.ridge is not None:
            return replace(answers, value=self._on_planes(queries, answers.log_mass, compatibility_of(compared)))
        return answers

    def _compared(self) -> Compared:
        return self.compatibility if self.learned is None else self.learned.compatibility(self.inverse_lengths)

    def _on_planes(self, queries: Array, log_mass: Array, compared: Compatibility) -> Array:
        learned = self.learned
        assert learned is not None
        assert learned.ridge is not None
        heights = np.empty(len(queries))
        for start in range(0, len(queries), TOGETHER):
            some = slice(start, start + TOGETHER)
            found = planes(
                compared.ask(queries[some], 1.0 / self.temperature),
                log_mass[some],
                self.items.keys,
                self.items.values,
                features=learned.features,
                ridge=learned.ridge,
                shares=self.items.shares,
            )
            heights[some] = found.at(learned.features(queries[some]))
        return heights


def _tuned(items: Items, way: Way) -> float:
    """The temperature at which the items, left out, are best predicted by the others, or the one by rule."""
    count = len(items.keys)
    usual = typical_temperature(items.keys, np.ones(count, np.bool_), way.compatibility)  # type: ignore[arg-type]
    if usual is None or count < FEWEST or way.by_rule:
        return usual or 1.0
    asked = None
    if count > MOST:
        asked = np.random.default_rng(way.seed).choice(count, max(256, PAIRS // count), replace=False)
    ks = [] if way.k is None else [min(way.k, count - 1)]
    found, _ = curves_of_items(
        items.keys,
        items.wanted(),
        compatibility=compatibility_of(way.compatibility),
        first=usual,
        asked=asked,
        shares=items.shares,
        ks=ks,
    )
    return found[-1].best[1]


@dataclass(slots=True, eq=False)
class OnDisk:
    """A store, opened to read by whoever asks first. Copies and pickles carry its path, not what is open."""

    path: str
    temperature: float
    asked_temperature: float | None = None  # where an estimator insists on one
    _db: SoftKV | None = field(default=None, repr=False)

    @classmethod
    def of(cls, items: Items, way: Way, path: str | os.PathLike[str], *, overwrite: bool) -> "OnDisk":
        """Make a store of these items, and let it learn what is to be learned."""
        if not isinstance(way.compatibility, str):
            raise NotExpressible("a store compares in one of the ways that have a name. Leave out path= to hold items.")
        if items.shares is not None:
            raise NotExpressible("a store keeps no weights of samples. Leave out path=, or add items more than once.")
        values: Sequence[Any] | Array = items.values
        if items.labels is not None:
            values = [items.labels[code] for code in items.values.tolist()]
        with open_store(
            path,
            "n" if overwrite else "c",
            value=items.kind,
            compatibility=way.compatibility,
            temperature=way.temperature,
        ) as db:
            if len(db):
                raise StoreExists(
                    f"{db.path} holds {len(db):,} items. Ask them with from_store, choose another path, or say "
                    "overwrite=True to lose them."
                )
            db.add(vectors=items.keys, values=values)
            if way.projection:
                db.fit(seed=way.seed)
            elif way.temperature is None and len(db) >= FEWEST and not way.by_rule:
                tuned = db.tune(k=way.k, seed=way.seed)
                db.set_temperature(next(curve for curve in tuned.curves if curve.k == way.k).best[1])
        return cls.there(path, way.temperature)

    @classmethod
    def there(cls, path: str | os.PathLike[str], temperature: float | None) -> "OnDisk":
        """A store that is there already."""
        held = cls(os.path.abspath(os.fspath(path)), 1.0, temperature)
        info = held.db().info()
        held.temperature = temperature or (1.0 if info.projection else info.temperature) or 1.0
        return held

    def db(self) -> SoftKV:
        """The store, open to read."""
        if self._db is None:
            self._db = open_store(self.path, "r")
        return self._db

    def ask(self, queries: Array, *, k: int | None, tolerance: float) -> Answers:
        """Look up (b, d) queries."""
        answers = self.db().lookup(queries, k=k, temperature=self.asked_temperature, tolerance=tolerance, show=0)
        assert isinstance(answers, Answers)
        return answers

    def __getstate__(self) -> tuple[str, float, float | None]:
        return self.path, self.temperature, self.asked_temperature

    def __setstate__(self, state: tuple[str, float, float | None]) -> None:
        self.path, self.temperature, self.asked_temperature = state
        self._db = None


def require_kind(db: SoftKV, kinds: Sequence[str], who: str) -> str:
    """The kind of values of a store, if this estimator can predict such."""
    kind = db.info().value_kind
    if kind is None or kind not in kinds:
        raise KindError(f"{who} predicts {' or '.join(kinds)} values, but {db.path} holds {kind or 'nothing'}.")
    return kind
