"""The items of a fitted estimator: arrays in memory, or a store on disk, with the same methods.

In memory every answer is exact, in the floating type of the items, or in float64 where items have weights. A store
answers within a tolerance if it has an index, and can be larger than memory.

Does not know scikit-learn (sklearn.py).

Shapes: n items, b queries, d key width, p value width.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softkv.answer import Answers
from softkv.asking.learned import Learned
from softkv.asking.question import Compared
from softkv.database import SoftKV
from softkv.database import open as open_store
from softkv.database.evaluating import equals
from softkv.database.making import made
from softkv.database.training import FEWEST, LARGEST_RANK, MOST, drawn, left_out_of
from softkv.errors import InputError, KindError, NotExpressible, ZeroVector
from softkv.kinds import ValueKind
from softkv.learning.fitting import Examples, best_fit, is_better, loss_of
from softkv.learning.slopes import may_be_read_off, on_planes
from softkv.learning.temperature import typical_temperature, unit_near
from softkv.learning.tuning import curves_of_items
from softkv.logs import hint
from softkv.maths.compatibility import Compatibility, compatibility_of
from softkv.ndarrays import AnyArray, Flags
from softkv.plain import soft_lookup

REPEATED = 1 << 14  # most items to which integer weights are expanded
LOST = 1e-3  # the share of the standard deviation of a column from which on float32 is said to move it
CONSTANT = 1e-12  # of its largest number: a column that varies less is constant, but for rounding


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """The items to fit: keys (n, d), and numbers (n,), vectors (n, p) or the codes of labels (n,)."""

    keys: AnyArray
    values: AnyArray
    labels: tuple[str, ...] | None = None  # the names of the codes
    shares: AnyArray | None = None  # (n,), how much each counts, all above 0

    @property
    def kind(self) -> str:
        """The kind of the values, as a store names it."""
        if self.labels is not None:
            return "label"
        return "number" if self.values.ndim == 1 else "vector"

    def wanted(self) -> AnyArray:
        """The targets by which predictions are measured: codes, or values (n, p) whose columns count equally."""
        if self.labels is not None:
            return self.values
        columns = self.values.reshape(len(self.values), -1).astype(np.float64)
        columns /= unit_near(float(np.abs(columns).max()))
        columns -= np.average(columns, 0, self.shares)
        deviations = np.average(columns**2, 0, self.shares) ** 0.5
        scaled: AnyArray = columns / np.where(deviations > 0, deviations, 1.0)
        return scaled

    @property
    def count(self) -> int:
        """The number of items; one of weight 2 counts as two."""
        return max(len(self.keys), 0 if self.shares is None else int(self.shares.sum()))

    def repeated(self) -> AnyArray:
        """The keys, each repeated by its weight, if weights are whole numbers and the result is not too large."""
        if self.shares is None or self.count > REPEATED or (self.shares % 1).any():
            return self.keys
        return np.repeat(self.keys, self.shares.astype(np.int64), axis=0)


@dataclass(frozen=True, slots=True)
class Choices:
    """How queries and keys are compared, from the parameters of an estimator."""

    compatibility: Compared
    temperature: float | None  # None for the one by which the items predict each other best
    k: int | None
    projection: bool
    seed: int
    by_rule: bool = False  # without a temperature, take the one at which about ten items contribute

    def tunes(self, items: Items) -> bool:
        """Whether the temperature is chosen by the items."""
        return self.temperature is None and not self.by_rule and items.count >= FEWEST

    def require_possible(self, items: Items) -> None:
        """Raise, before anything is learned or written, if these parameters do not fit the items."""
        compatibility_of(self.compatibility)
        if self.projection and self.compatibility not in ("gaussian", "cosine"):
            raise NotExpressible(
                f"a projection is learned for gaussian, or by directions for cosine, got {self.compatibility!r}. Take "
                "one of the two, or say projection=False."
            )
        if self.projection and self.temperature is not None:
            raise NotExpressible(
                "a projection brings its own scale, in which a given temperature means something else. Leave it 'auto'."
            )
        if self.projection and len(items.keys) < FEWEST:
            raise InputError(
                f"expected at least {FEWEST} samples to learn a projection from, got n_samples = {len(items.keys)}."
            )
        if self.k is not None and items.shares is not None and self.temperature is None:
            raise NotExpressible(
                "with weights of samples the k heaviest differ from temperature to temperature, so none is chosen for "
                "them. Give a temperature, or leave out k."
            )
        if compatibility_of(self.compatibility).with_lengths is not None:
            pointless = np.flatnonzero(~items.keys.any(1))
            if len(pointless):
                raise ZeroVector(
                    f"sample {pointless[0]} is zero and has no direction, so cosine cannot compare it. Leave it out, "
                    "or take compatibility='gaussian'."
                )


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """Items as arrays, scaled to ordinary size, and how they are compared."""

    items: Items
    compatibility: Compared
    in_unit: float  # the temperature for the scaled items
    unit: float = 1.0  # items are divided by it; a power of two, so that nothing is rounded
    learned: Learned | None = None
    inverse_lengths: AnyArray | None = None  # (n,), where only the directions of keys count

    @classmethod
    def of(cls, items: Items, way: Choices) -> "InMemory":
        """Copy these items, and choose the temperature or learn the metric where that is asked for."""
        way.require_possible(items)
        compared = compatibility_of(way.compatibility)
        unit = 1.0 if compared.degree is None else unit_near(float(np.abs(items.keys).max()))
        items = replace(items, keys=items.keys / items.keys.dtype.type(unit), values=items.values.copy())
        if way.temperature is None:
            temperature = _tuned(items, way)
        else:  # even of numbers that are far apart, all or one is what counts beyond these
            temperature = min(max(way.temperature / unit ** (compared.degree or 0), 1e-300), 1e300)
        plain = cls(items, way.compatibility, temperature, unit)
        return plain._learning(way) if way.projection else plain

    def _learning(self, way: Choices) -> "InMemory":
        """The items compared by a metric that is learned from them, if that is better."""
        items, directions = self.items, way.compatibility == "cosine"
        rows = drawn(np.arange(len(items.keys)), MOST, way.seed)
        some = Examples(items.keys[rows], items.wanted()[rows])
        width = items.keys.shape[1]
        flat = may_be_read_off(numbers=ValueKind(items.kind).scalar, width=width, directions=directions)
        fitted = best_fit(
            some, directions=directions, planes=None if flat else False, rank=min(width, LARGEST_RANK), seed=way.seed
        )
        if not is_better(fitted.loss, loss_of(self._compared(), self.in_unit, some, None, fitted)):
            return self
        learned = Learned(
            fitted.metric, fitted.metric.numbers(items.keys), fitted.units.astype(np.float32), fitted.ridge
        )
        inverse = 1.0 / np.linalg.norm(items.keys.astype(np.float64), axis=1) if directions else None
        return replace(self, in_unit=1.0, learned=learned, inverse_lengths=inverse)

    @property
    def goes_by(self) -> dict[str, Any]:
        """What may change answers without another `fit`: nothing in memory."""
        return {}

    @property
    def extent(self) -> tuple[int, int]:
        """How many rows and items there are."""
        return (len(self.items.keys),) * 2

    @property
    def temperature(self) -> float:
        """What scores are divided by."""
        degree = compatibility_of(self.compatibility).degree if self.learned is None else None
        return self.in_unit * self.unit ** (degree or 0)

    def ask(self, queries: AnyArray, *, k: int | None, tolerance: float) -> Answers:  # noqa: ARG002 - all of it is exact
        """Look up (b, d) queries."""
        items, compared = self.items, self._compared()
        # Weights are numbers beside scores, which they have to leave digits of: in float32 they would lose their own.
        kinds = (queries, items.keys) if items.shares is None else (queries, items.keys, np.float64)
        queries = queries.astype(np.result_type(*kinds)) / self.unit
        answers = soft_lookup(
            queries,
            items.keys,
            items.values,
            compatibility=compared,
            temperature=self.in_unit,
            k=None if k is None else min(k, len(items.keys)),
            bias=None if items.shares is None else self.in_unit * np.log(items.shares),
            labels=items.labels,
            show=0,
        )
        assert isinstance(answers, Answers)
        learned = self.learned
        if k is not None or learned is None or learned.ridge is None:
            return answers
        found = on_planes(
            compared,
            queries,
            np.full(len(queries), self.in_unit),
            answers.value,
            items.keys,
            items.values,
            features=learned.features,
            ridge=learned.ridge,
            shares=items.shares,
        )
        return replace(answers, value=found.heights, spread=found.spreads)

    def holds(self, queries: AnyArray) -> Flags:
        """Which of (b, d) queries are the key of an item, as far as the coarser type of the two tells, (b,)."""
        coarse = min(queries.dtype, self.items.keys.dtype)
        with np.errstate(over="ignore"):
            keys, asked = ((some + 0.0).astype(coarse) for some in (self.items.keys, queries / self.unit))  # -0 is 0
        there = {key.tobytes() for key in keys}
        return np.array([one.tobytes() in there for one in asked], np.bool_)

    def _compared(self) -> Compatibility:
        if self.learned is not None:
            return self.learned.compatibility(self.inverse_lengths)
        return compatibility_of(self.compatibility)


def _tuned(items: Items, way: Choices) -> float:
    """The temperature at which the items, left out, are best predicted by the others, or the one by rule."""
    count, compared = len(items.keys), compatibility_of(way.compatibility)
    keys = items.repeated()
    usual = typical_temperature(keys, np.ones(len(keys), np.bool_), compared) or compared.lukewarm
    if not way.tunes(items):
        return usual
    found, asked = curves_of_items(
        items.keys,
        items.wanted(),
        compatibility=compared,
        first=usual,
        asked=left_out_of(np.arange(count), way.seed),
        shares=items.shares,
        ks=[] if way.k is None else [min(way.k, count - 1)],
    )
    return found[-1].best[1] if asked else usual


class TargetsRounded(UserWarning):
    """Several targets of a sample are stored in float32, which loses much of how they differ."""


class SamplesRounded(UserWarning):
    """Samples are stored in float32, which loses much of how they differ."""


def _stored(columns: AnyArray, what: str, kind: type[Warning]) -> AnyArray:
    """Columns (n, c) as float32 keeps them, in float64; warn if that moves any by much beside its standard deviation.

    Those beyond the range of float32 stay as they are: the store says what is wrong with them.
    """
    exact = columns.astype(np.float64)
    with np.errstate(over="ignore"):
        kept: AnyArray = exact.astype(np.float32).astype(np.float64)
    if not np.isfinite(kept).all() or not kept.any():
        return columns
    lost, spread = np.abs(exact - kept).max(0, initial=0.0), exact.std(0)
    much = (lost > LOST * spread) & (spread > CONSTANT * np.abs(exact).max(0, initial=0.0))
    if much.any():
        hint(
            f"{what} stored in float32, which moves them by up to {lost[much].max():.3g} here. Subtract their means "
            "before you fit, or leave out path=.",
            kind,
        )
    return kept


class OnDisk:
    """A store, opened to read when it is asked. Copies and pickles carry its path, not what is open."""

    def __init__(self, path: str, asked_temperature: float | None, kind: str | None = None) -> None:
        self.path, self.asked_temperature, self.kind = path, asked_temperature, kind
        self._lock = threading.Lock()
        self._db: SoftKV | None = None
        self._opened: tuple[int, int] | None = None  # by which process, and which directory

    @classmethod
    def of(cls, items: Items, way: Choices, path: str | os.PathLike[str], *, overwrite: bool) -> "OnDisk":
        """Make a store of these items, and let it learn what is to be learned."""
        way.require_possible(items)
        path = os.path.abspath(os.path.expanduser(path))  # wherever this process goes meanwhile
        if not isinstance(way.compatibility, str):
            raise NotExpressible("a store compares in one of the ways that have a name. Leave out path= to hold items.")
        if items.shares is not None:
            raise NotExpressible("a store keeps no weights of samples. Leave out path=, or add items more than once.")
        values: Sequence[Any] | AnyArray = items.values
        keys = _stored(items.keys, "features of the samples are", SamplesRounded)
        if np.ndim(values) == 2:
            _stored(items.values, "several targets of a sample are", TargetsRounded)
        if items.labels is not None:
            values = [items.labels[code] for code in items.values.tolist()]
        temperature = _tuned(replace(items, keys=keys), way) if way.tunes(items) else way.temperature
        with made(
            path, value=items.kind, compatibility=way.compatibility, temperature=temperature, overwrite=overwrite
        ) as db:
            db.add(vectors=items.keys, values=values)
            if way.projection:
                db.fit(hold_out=0.0, seed=way.seed)
        return cls.there(path, way.temperature)

    @classmethod
    def there(cls, path: str | os.PathLike[str], temperature: float | None) -> "OnDisk":
        """A store that is there already."""
        held = cls(os.path.abspath(os.path.expanduser(path)), temperature)
        held.kind = held.db().info().value_kind
        return held

    @property
    def goes_by(self) -> dict[str, Any]:
        """What answers go by and may change without another `fit`: how the store compares, and where its rows lie."""
        view = self.db()._view()
        there = f"{view.snapshot.store} {view.snapshot.generation}"  # a compaction moves them, another store has others
        return {"projection": view.profile.projection, "compatibility": view.profile.compatibility, "rows": there}

    @property
    def extent(self) -> tuple[int, int]:
        """How many rows and items there are."""
        snapshot = self.db()._view().snapshot
        return snapshot.rows, len(snapshot)

    @property
    def temperature(self) -> float:
        """What scores are divided by."""
        return self.asked_temperature or self.db().info().temperature or 1.0

    def db(self) -> SoftKV:
        """The store that is at the path now, open to read in this process."""
        with self._lock:
            try:
                here = os.getpid(), os.stat(self.path).st_ino
            except OSError:
                here = os.getpid(), -1  # opening it says what is wrong
            if self._db is None or self._opened != here:
                db = open_store(self.path, "r")
                if self.kind is not None:
                    require_kind(db, (self.kind,), "an estimator that was fitted on this store")
                self._db, self._opened = db, here
            return self._db

    def ask(self, queries: AnyArray, *, k: int | None, tolerance: float) -> Answers:
        """Look up (b, d) queries."""
        answers = self.db().lookup(queries, k=k, temperature=self.asked_temperature, tolerance=tolerance, show=0)
        assert isinstance(answers, Answers)
        return answers

    def holds(self, queries: AnyArray) -> Flags:
        """Which of (b, d) queries are the vector of an item, (b,)."""
        return equals(self.db()._view(), (), queries.astype(np.float32)) >= 0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.asked_temperature, self.kind)


def require_kind(db: SoftKV, kinds: Sequence[str], who: str) -> None:
    """Refuse a store whose values this estimator does not predict."""
    kind = db.info().value_kind
    if kind is None or kind not in kinds:
        raise KindError(f"{who} predicts {' or '.join(kinds)} values, but {db.path} holds {kind or 'nothing'}.")
