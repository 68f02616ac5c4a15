"""Learn from the items of a store: a temperature (`tune`), or a whole metric (`fit`).

Both leave items out, ask the others, and compare the answers with the values left out. Only the items are used, unless
queries with their targets are given.

Does not compute losses or gradients (learning/) or lookups (softkv/asking).

Shapes: n items, d key width, p value width.
"""

import math
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from softkv.asking.learned import PREFIX, Learned
from softkv.asking.profile import Profile, Temperature
from softkv.asking.view import View
from softkv.database.held_out import checked_hold_out, held_out, last_number
from softkv.database.intake import SHORTEST
from softkv.database.targets import targets_of
from softkv.errors import InputError, KindError, ShapeError, StoreError, ZeroVector
from softkv.learning.fitting import SMALLEST, Examples, best_fit, is_better, loss_of, middle_of
from softkv.learning.slopes import WIDEST, may_be_read_off
from softkv.learning.temperature import size_of, typical_temperature
from softkv.learning.tuning import Curve, Tuned, chosen, curves_of_items, lowest_log_mass, told
from softkv.maths.blas import free_threads
from softkv.maths.compatibility import COMPATIBILITIES, compatibility_of
from softkv.maths.inputs import is_whole
from softkv.maths.metric import Metric
from softkv.ndarrays import AnyArray, Flags, Matrix, Rows
from softkv.progress import Stages
from softkv.storage import Store

MOST = 50_000  # items that are used; of more, so many are drawn
FEWEST = 20  # items that anything can be learned from
PAIRS = 1 << 27  # pairs of items that `tune` compares: up to 11,585 items are all left out, of more a sample,
SAMPLED = 1024  # of at least so many
LARGEST = 1e36  # number in a key: differences of larger ones would leave float32
LARGEST_RANK = 384  # unless another is asked for


@dataclass(frozen=True, slots=True)
class Fit:
    """What was learned, in a few figures."""

    items: int  # that it was learned from
    rank: int
    measure: str  # "log-loss" or "squared error"
    loss: float  # on items, or queries, that took no part
    before: float  # the loss of these without the metric
    planes: bool  # whether numbers are read off planes
    steps: int
    seconds: float
    curve: tuple[tuple[int, float], ...]

    @property
    def kept(self) -> bool:
        """Whether it is better, so that lookups use it from then on."""
        return is_better(self.loss, self.before)

    def __str__(self) -> str:
        begun, end = ("", "") if self.kept else (" nothing that is better", ". Nothing has changed")
        planes = ", with planes through the items" if self.planes and self.kept else ""
        return (
            f"learned{begun} from {self.items:,} items in {self.seconds:.0f} s: "
            f"{told(self.measure, self.loss, self.before)}, rank {self.rank}{planes}{end}"
        )


@free_threads()
def learn(
    store: Store,
    lock: threading.RLock,
    view: View,
    *,
    queries: Any,
    targets: Any,
    rank: int | None,
    planes: bool | None,
    hold_out: float,
    seed: int,
    told: Stages | None,
) -> Fit:
    """Learn a metric from the items, or from queries whose answers are known, and remember it if it is better."""
    started, snapshot = time.monotonic(), view.snapshot
    hold_out = checked_hold_out(hold_out)
    rows = drawn(_learned_from(view, hold_out, least=SMALLEST), MOST, seed)
    items = Examples(snapshot.vectors(rows), _columns(view, rows))
    asking = _asking(view, queries, targets)
    directions = compatibility_of(view.profile.compatibility or "dot").with_lengths is not None
    if directions and asking is not None and not asking.vectors.any(1).all():
        raise ZeroVector(
            f"query {np.flatnonzero(~asking.vectors.any(1))[0]} is zero and has no direction, so cosine cannot compare "
            "it. Leave it out."
        )
    planes, rank = _checked_planes(view, planes, directions), _checked_rank(view, rank)

    usual = view.profile.compatibility or "dot"
    fitted = best_fit(items, asking, directions=directions, planes=planes, rank=rank, seed=seed, told=told)
    found = Fit(
        items=len(rows),
        rank=len(fitted.metric.factors),
        measure=view.layout.kind.measure,
        loss=fitted.loss,
        before=loss_of(compatibility_of(usual), view.temperature(usual).value, items, asking, fitted),
        planes=fitted.ridge is not None,
        steps=fitted.steps,
        seconds=time.monotonic() - started,
        curve=fitted.curve,
    )
    floor = _lowest_log_mass(fitted.metric, items.vectors, seed)
    facts = {"items": found.items, "measure": found.measure, "loss": found.loss, "before": found.before, "floor": floor}
    facts |= {"seed": seed, "held": hold_out, "last": last_number(view)}
    learned = Learned(fitted.metric, np.empty(0, np.float32), fitted.units.astype(np.float32), fitted.ridge, facts)
    if found.kept:
        _keep(store, lock, view, learned)
    return found


def _lowest_log_mass(metric: Metric, vectors: Matrix, seed: int) -> float | None:
    """The lowest log mass of items with these vectors, each left out, when they are compared by a metric."""
    inverse = None
    if metric.directions:
        with np.errstate(over="ignore"):  # what cannot be divided by is refused as a score
            inverse = (1.0 / np.linalg.norm(vectors.astype(np.float64), axis=1)).astype(np.float32)
    compared = metric.compatibility(metric.numbers(vectors), inverse)
    return lowest_log_mass(vectors, np.ones(len(vectors), np.bool_), compared, 1.0, seed=seed)


def _keep(store: Store, lock: threading.RLock, view: View, learned: Learned) -> None:
    """Store the metric, with the numbers of all keys, and compare by it from now on."""
    learned = learned.with_numbers(view.snapshot)
    with lock:
        with store.snapshot() as now:
            if now.generation != view.snapshot.generation:
                raise StoreError(f"{store.path} was compacted while it learned. Fit it again.")
        name = PREFIX + secrets.token_hex(8)
        # The settings name the file once it is there, so no reader is ever without it.
        store.put_index(name, learned.encoded())
        remember_metric(store, name)


def remember_metric(store: Store, name: str | None) -> bool:
    """Compare by the metric in this file, or without one, from now on; returns whether that is a change."""
    profile = Profile.of(store.settings)
    if profile.projection == name:
        return False
    store.configure(replace(profile, projection=name).settings())
    if profile.projection is not None:
        store.drop_index(profile.projection)
    return True


@free_threads()
def tune(
    view: View, *, compatibilities: Sequence[str], ks: Sequence[int], hold_out: float, seed: int, told: Stages | None
) -> Tuned:
    """The temperature, and what else was asked for, at which the items predict each other best."""
    snapshot, found, asked = view.snapshot, list[Curve](), 0
    if view.layout.kind.embedded:
        return _by_rule(view, compatibilities, hold_out)
    rows = _learned_from(view, hold_out, least=SHORTEST)
    values = _values(view, rows)
    if len(rows) <= MOST:
        keys, live = snapshot.vectors(rows), None
        who = left_out_of(np.arange(len(rows)), seed)
    else:
        (block,) = snapshot.blocks(snapshot.rows)
        keys, live = block.vectors, np.isin(np.arange(snapshot.rows), rows)
        # All other rows have the value 0: theirs could be so large that the middle of all left no digits to the rest.
        used, values = values, np.zeros((snapshot.rows, *values.shape[1:]), values.dtype)
        values[rows] = used
        who = left_out_of(rows, seed)
    for compatibility in compatibilities:
        progress = None if told is None else lambda done, total, name=compatibility: told(f"tuning {name}", done, total)
        fresh, asked = curves_of_items(
            keys,
            values,
            compatibility=compatibility,
            first=_rule(keys, np.ones(len(keys), np.bool_) if live is None else live, compatibility),
            asked=who,
            live=live,
            ks=ks,
            told=progress,
        )
        found += fresh
    if not asked:
        raise InputError("no two items share a label, so none can be predicted. Give items that share labels.")
    tuned = chosen(found, measure=view.layout.kind.measure, asked=asked, items=len(rows))
    return replace(tuned, sampled=None if len(who) == len(rows) else len(who))


def _by_rule(view: View, compatibilities: Sequence[str], hold_out: float) -> Tuned:
    """The temperature at which about ten items contribute, for texts, whose averages have no right or wrong."""
    if len(compatibilities) > 1:
        raise KindError("texts as values tell no way to compare from another. Name one compatibility.")
    (compatibility,) = compatibilities
    (block,) = view.snapshot.blocks(view.snapshot.rows)
    live = view.snapshot.live & ~held_out(view, hold_out)
    items = int(live.sum())
    if not items:
        raise InputError(
            f"expected items that take part, but all {len(view.snapshot):,} of {view.snapshot.path} are held out "
            f"(hold_out={hold_out:g}). Add more, or tune with hold_out=0, which leaves none for `guard`."
        )
    value, wanted = _rule(block.vectors, live, compatibility), min(10.0, items / 4)
    floor = lowest_log_mass(block.vectors, live, compatibility, value)
    curve = Curve(compatibility, None, (value,), (wanted,), (math.nan if floor is None else floor,))
    return Tuned(value, compatibility, None, wanted, "effective number", min(256, items), items, (curve,))


def _rule(keys: Matrix, live: Flags, compatibility: str) -> float:
    """The temperature by rule of some of the items."""
    return typical_temperature(keys, live, compatibility) or compatibility_of(compatibility).lukewarm


def remember_temperature(store: Store, view: View, tuned: Tuned, hold_out: float) -> None:
    """Store a temperature, with the share of items that took no part in choosing it, and the last number they had.

    Refused if other vectors have taken the place of those in the view; that rows have moved is no matter.
    """
    profile, full = Profile.of(store.settings), tuned.full
    with store.snapshot() as now:
        if now.generation != view.snapshot.generation and profile.embedder != view.profile.embedder:
            raise StoreError(f"the items of {store.path} were embedded anew while it was tuned. Tune it again.")
    temperature = Temperature(full.best[1], "tuned", tuned.items, tuned.floor, hold_out, last_number(view))
    store.configure(replace(profile, temperature=temperature, compatibility=full.compatibility).settings())


def checked_ways(view: View, given: Any) -> list[str]:
    """The ways to compare that are to be tried."""
    if given is None:
        return [view.profile.compatibility or "dot"]
    names = _listed(given)
    for name in names:
        if not isinstance(name, str) or name not in COMPATIBILITIES:
            raise InputError(
                f"expected compatibilities out of {', '.join(COMPATIBILITIES)}, got {name!r}. Check the spelling."
            )
    if not names:
        raise InputError("expected at least one compatibility to try, got none.")
    return sorted(set(names), key=lambda name: (name != view.profile.compatibility, names.index(name)))


def checked_ks(given: Any) -> list[int]:
    """The numbers of best rows that are to be tried."""
    numbers = [] if given is None else _listed(given)
    for k in numbers:
        if not is_whole(k) or not 1 <= k <= 4096:
            raise InputError(f"expected numbers of best items from 1 to 4,096 to try, got {k!r}.")
    return sorted(set(map(int, numbers)))


def _listed(given: Any) -> list[Any]:
    """What was given, one or several, as a list."""
    try:
        return [given] if isinstance(given, str) else list(given)
    except TypeError:
        return [given]


def _learned_from(view: View, hold_out: float, *, least: float) -> Rows:
    """The items that take part in learning; an error if there are too few, or if their keys are too large or small."""
    items = len(view.snapshot)
    if items < FEWEST:
        raise InputError(f"expected at least {FEWEST} items to learn from, but {view.snapshot.path} has {items}.")
    (block,) = view.snapshot.blocks(view.snapshot.rows)
    size = size_of(block.vectors, block.live, COMPATIBILITIES["dot"])
    if not (size == 0 or least <= size <= LARGEST):
        raise InputError(
            f"expected keys of sizes from {least:g} to {LARGEST:g} to learn from, which float32 can divide by and "
            f"multiply, got {size:g}. Make the store anew from scaled vectors."
        )
    return np.flatnonzero(view.snapshot.live & ~held_out(view, hold_out))


def left_out_of(rows: Rows, seed: int) -> Rows:
    """The items that are left out in turn to choose a temperature: all, or so many that it does not take long."""
    return drawn(rows, max(SAMPLED, PAIRS // len(rows)), seed)


def drawn(rows: Rows, most: int, seed: int) -> Rows:
    """Rows in order: all that are given, or so many drawn from them."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def _values(view: View, rows: Rows) -> AnyArray:
    """What is to be predicted: codes of labels, or values counted from their middle so that no digits are lost."""
    columns = _columns(view, rows)
    if view.layout.kind.coded:
        return columns
    centred: AnyArray = columns - middle_of(columns)
    return centred if view.layout.kind.scalar else centred.astype(np.float32)


def _columns(view: View, rows: Rows) -> AnyArray:
    """The codes of labels (n,), or float64 values (n, p)."""
    values = view.snapshot.values(rows)
    return values if view.layout.kind.coded else values.reshape(len(values), -1).astype(np.float64)


def _asking(view: View, queries: Any, targets: Any) -> Examples | None:
    if queries is None and targets is None:
        return None
    if queries is None or targets is None:
        raise InputError("expected queries and their targets together, or neither.")
    vectors = np.asarray(queries, np.float32)
    if not np.isfinite(vectors).all():
        raise ShapeError("expected queries to learn from as finite vectors. Leave those with inf or NaN out.")
    wanted = targets_of(view, targets)
    if len(vectors) < FEWEST or len(wanted) != len(vectors):
        raise ShapeError(
            f"expected at least {FEWEST} queries and a target for each, got {len(vectors)} queries and {len(wanted)} "
            "targets."
        )
    if view.labels is not None and (wanted < 0).any():
        unknown = str(list(targets)[int(np.flatnonzero(wanted < 0)[0])])
        raise InputError(f"no item has the label {unknown!r}, which a query should get. Leave such queries out.")
    return Examples(vectors, wanted.astype(np.int32) if view.labels is not None else wanted.reshape(len(wanted), -1))


def _checked_rank(view: View, rank: int | None) -> int:
    width = view.layout.key_width
    if rank is None:
        return min(width, LARGEST_RANK)
    if not is_whole(rank) or not 1 <= rank <= width:
        raise InputError(f"expected a rank from 1 to {width}, the width of the keys, got {rank!r}.")
    return int(rank)


def _checked_planes(view: View, planes: bool | None, directions: bool) -> bool | None:
    """Whether there are to be planes; None for whatever turns out better, where there may be any."""
    may = may_be_read_off(numbers=view.layout.kind.scalar, width=view.layout.key_width, directions=directions)
    if planes and not may:
        raise InputError(
            f"planes are for numbers as values and keys of at most {WIDEST} features that are not compared by cosine; "
            f"this store has values of kind {view.layout.kind.value!r}, keys of width {view.layout.key_width}, and "
            f"compares by {view.profile.compatibility!r}. Leave them out."
        )
    return planes if may else False
