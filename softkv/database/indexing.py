"""Build the index of a store: arrange its rows in lists, lay them in that order, measure the lists, rehearse.

Lookups, adds and deletes go on meanwhile, except while rows are laid in their new order. An interrupted build leaves
the store as it was, and the next one goes on from the last finished stage (begun.py).

Does not look anything up, and does not know how files are written (storage/).
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from softkv.asking.given import array_of
from softkv.asking.indexed import NAME, summable, with_heads
from softkv.asking.learned import carried
from softkv.asking.profile import Profile
from softkv.asking.question import LEARNED
from softkv.asking.view import View
from softkv.database.begun import FEWEST, HalfBuilt, found, is_begun, wanted_of
from softkv.database.begun import NAME as UNFINISHED
from softkv.database.guarding import keep_count
from softkv.database.middles import signed
from softkv.database.refining import is_current, owners_of, refinable
from softkv.errors import EmptyStore, InputError, KindError, NotExpressible, ShapeError, StoreError
from softkv.index.building import arranged, list_count
from softkv.index.calibration import Calibration
from softkv.index.dividing import divided
from softkv.index.engine import chosen_backend
from softkv.index.forecast import Forecast, forecast
from softkv.index.lists import ListIndex
from softkv.index.opening import NEAREST
from softkv.index.outline import Outline
from softkv.index.rehearsal import Whole, rehearsed
from softkv.learning.temperature import size_of
from softkv.logs import log_of
from softkv.maths.blas import free_threads
from softkv.maths.compatibility import COMPATIBILITIES
from softkv.maths.forms import Form, form_of
from softkv.maths.inputs import is_whole
from softkv.maths.moments import ReadRows, measured, with_rows
from softkv.maths.ranking import Ranking
from softkv.maths.summaries import Lists
from softkv.ndarrays import Flags, Reals, Rows
from softkv.progress import Progress, Stages, untold
from softkv.storage import Snapshot, Store
from softkv.storage.protocol.publishing import FileContent

LOG = log_of(__name__)
REHEARSED = 1440  # items in a rehearsal; a third of them choose plans, the others test these
REFINED = 480  # items if lists are refined: as many as it takes to test a plan at a confidence of 99%
UNCHANGED = "nothing has changed since the index was built"
WARMTH = 1.5  # from one temperature to the next
COLDEST, WARMEST = -4, 5  # steps around the temperature of the store
WARMER = 2.4, 3  # and three more steps of 2.4: at warm temperatures errors change little
SMALLEST, LARGEST = 1e-8, 1e8  # sizes of keys whose squares, and those of their logits, stay within float32


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """The options of an index build; None means chosen automatically."""

    lists: int | None = None
    queries: Any = None  # vectors, (c, d), to calibrate on instead of items
    temperatures: tuple[float, float] | None = None  # the range that is calibrated
    backend: str = "auto"
    whole: bool = False  # whether all lists are made anew, also where those there are could be refined


def build(
    store: Store, lock: threading.RLock, view: Callable[[], View], wanted: Wanted, told: Stages | None
) -> ListIndex:
    """Build an index of everything that is in the store now; it is there when this returns."""
    progress = told or untold
    started, before = time.monotonic(), view()
    asked, backend = checked_queries(before, wanted.queries), chosen_backend(wanted.backend)
    form = form_for(before, asked)
    live = np.flatnonzero(before.snapshot.live)
    _require_enough(before, len(live))
    count, temperatures = _checked_count(wanted.lists, len(live)), rehearsed_temperatures(before, wanted.temperatures)
    wanted = replace(wanted, lists=None if wanted.lists is None else count)

    projection = before.profile.projection
    begun = found(before.snapshot, wanted_of(form, wanted.lists, projection))
    generation = before.snapshot.generation
    current = _current(before, form, wanted, temperatures)
    if current is not None:
        progress(UNCHANGED, len(live), len(live))
        LOG.info("%s of %s", UNCHANGED, store.path)
        return current
    if begun is None or (wanted.whole and begun.is_refined):
        begun = _arranged(before, form, wanted, count, backend, progress)
        put(store, lock, generation, UNFINISHED, begun.encoded())
    else:
        LOG.info("goes on with the index of %s: %s", store.path, begun.says)
        form = form_for(before, asked, begun.centre)
    del before  # it would keep the files of the old generation
    if len(begun.order):
        with lock:
            begun, generation = _laid(store, generation, begun, progress)
    with store.snapshot() as snapshot:
        if snapshot.generation != generation:
            raise _overtaken(store)
        if begun.lists is None:
            begun = replace(begun, lists=_measured(snapshot, form, begun.offsets, progress))
            put(store, lock, generation, UNFINISHED, begun.encoded())
        index = _rehearsed(snapshot, form, begun, asked, temperatures, progress)
        index = signed(index, snapshot, view(), progress)
        facts: dict[str, Any] = {"lists": len(begun.offsets) - 1, "items": begun.items, "whole": begun.whole}
        facts["seconds"] = round(time.monotonic() - started, 1)
        if form.metric is not None:
            facts["projection"] = projection
        index.facts.update(facts)
    put(store, lock, generation, NAME, index.encoded(), instead_of=UNFINISHED)
    LOG.info("built an index of %d lists over %d items in %.1f s", facts["lists"], begun.items, facts["seconds"])
    return index


def _current(view: View, form: Form, wanted: Wanted, temperatures: Reals) -> ListIndex | None:
    """The index that there is, if building it again would change nothing."""
    anew = wanted.whole or wanted.queries is not None or is_begun(view.snapshot)
    index = None if anew else refinable(view, form, wanted.lists)
    return index if index is not None and is_current(view, index, temperatures) else None


def forecast_of(view: View, wanted: Wanted) -> Forecast:
    """What building this takes, if nothing of it is done yet."""
    layout, items, form = view.layout, len(view.snapshot), form_for(view, None)
    _require_enough(view, items)
    refined = not wanted.whole and refinable(view, form, wanted.lists) is not None
    temperatures, asked = rehearsed_temperatures(view, wanted.temperatures), checked_queries(view, wanted.queries)
    most = REFINED if refined else REHEARSED
    found = forecast(
        rows=items,
        key_width=layout.key_width,
        value_width=len(view.labels) if view.labels is not None else layout.value_width,
        labelled=view.labels is not None,
        row_bytes=sum(shape.row_bytes for shape in layout.arenas),
        lists=_checked_count(wanted.lists, items),
        queries=min(items // 4, most) if asked is None else len(asked),
        refined=refined,
        temperatures=len(temperatures),
    )
    return found if _current(view, form, wanted, temperatures) is None else replace(found, seconds=0.0, meanwhile=0)


def put(
    store: Store, lock: threading.RLock, generation: int, name: str, content: FileContent, instead_of: str | None = None
) -> None:
    """Write an index file, if the rows still lie as they did when it was made of them."""
    with lock:
        with store.snapshot() as now:
            if now.generation != generation:
                raise _overtaken(store)
        store.put_index(name, content, instead_of=instead_of)


def form_for(view: View, asked: npt.NDArray[np.float32] | None, centre: Reals | None = None) -> Form:
    """The form of an index for the way in which this store compares; `centre` is that of one that was begun."""
    snapshot, compatibility, metric = view.snapshot, view.profile.compatibility or "dot", None
    if view.learned is not None:
        compatibility, metric = LEARNED, view.learned.metric
    if form_of(compatibility) is None:
        raise NotExpressible(
            f"this store compares by {compatibility!r}, which an index cannot help: its lookups scan. "
            f"Indexes are for {', '.join(one.name for one in COMPATIBILITIES.values() if one.form)}."
        )
    if metric is None:
        _require_size(view, compatibility)
    live = np.flatnonzero(snapshot.live)
    some = np.sort(np.random.default_rng(0).choice(live, min(len(live), 4096), replace=False))
    keys = snapshot.vectors(some).astype(np.float64)
    centre = keys.mean(0) if centre is None else centre
    form = Form(form_of(compatibility) or "", compatibility, centre, np.ones(3), metric)
    likely = keys if asked is None else asked
    compared = COMPATIBILITIES.get(compatibility)
    lengths = np.linalg.norm(form.queries(likely, compared, np.ones(len(likely)))[0], axis=1)
    return replace(form, lengths=np.array([lengths.min(), np.median(lengths), lengths.max()]))


def _require_size(view: View, compatibility: str) -> None:
    """Refuse keys whose squares the lists, which are float32, could not hold."""
    (block,) = view.snapshot.blocks(view.snapshot.rows)
    compared = COMPATIBILITIES[compatibility]
    size = size_of(block.vectors, block.live, compared) if compared.degree else 1.0
    if not (size == 0 or SMALLEST < size < LARGEST):
        raise NotExpressible(
            f"expected keys of sizes from {SMALLEST:g} to {LARGEST:g} to index, got {size:g}, of which lists could not "
            "hold the squares. Lookups scan these keys, and are right; for an index, scale the vectors."
        )


def _require_enough(view: View, rows: int) -> None:
    if rows < FEWEST:
        raise InputError(
            f"expected at least {FEWEST} items to build an index of, but {view.snapshot.path} has {rows}. "
            "Lookups scan them, which takes no time."
        )


def _checked_count(lists: int | None, rows: int) -> int:
    if lists is None:
        return list_count(rows)
    if not is_whole(lists) or not 1 <= lists <= rows:
        raise InputError(f"expected from 1 to {rows:,} lists, one for each item at most, got {lists!r}.")
    return int(lists)


def rehearsed_temperatures(view: View, given: tuple[float, float] | None) -> Reals:
    """The temperatures to rehearse at, rising; in a given range, at most a factor of WARMTH apart."""
    if given is None:
        near = view.usual_temperature * WARMTH ** np.arange(COLDEST, WARMEST + 1)
        return np.append(near, near[-1] * WARMER[0] ** np.arange(1, WARMER[1] + 1))
    try:
        low, high = (float(one) for one in given)
    except (TypeError, ValueError):
        low, high = 0.0, 0.0
    if not 0 < low <= high < float("inf"):
        raise InputError(f"expected the lowest and the highest temperature to calibrate for, got {given!r}.")
    steps = max(2, int(np.ceil(np.log(high / low) / np.log(WARMTH))) + 1)
    return np.unique(np.geomspace(low, high, steps).astype(np.float32)).astype(np.float64)


def checked_queries(view: View, given: Any) -> npt.NDArray[np.float32] | None:
    """The queries to calibrate on, as vectors, if there are any."""
    if given is None:
        return None
    vectors = array_of(given, "queries to calibrate on")
    if vectors.dtype.kind not in "fiu":
        raise KindError(f"expected queries to calibrate on as vectors of numbers, got {vectors.dtype}.")
    vectors = vectors.astype(np.float32, copy=False)
    if vectors.ndim != 2 or vectors.shape[1] != view.layout.key_width or not np.isfinite(vectors).all():
        raise ShapeError(
            f"expected queries to calibrate on as finite vectors of width {view.layout.key_width}, one in each row, "
            f"got shape {vectors.shape}."
        )
    if len(vectors) < 100:
        raise InputError(f"expected at least 100 queries to calibrate on, better 500 or more, got {len(vectors)}.")
    return vectors


@free_threads()
def _arranged(view: View, form: Form, wanted: Wanted, count: int, backend: str, progress: Stages) -> HalfBuilt:
    """Which rows belong to which list: to those they are in, if lists are refined, else to the nearest of new ones."""
    snapshot, whole = view.snapshot, len(view.snapshot)
    live, keys = np.flatnonzero(snapshot.live), lambda some: form.placed(snapshot.vectors(some))
    refined = None if wanted.whole else refinable(view, form, wanted.lists)
    if refined is None:
        order, offsets = arranged(keys, live, count, backend=backend, progress=progress)
    else:
        owners, made_of, whole = owners_of(view, refined, live), refined.made_of, refined.whole
        order, offsets = divided(keys, live, owners, made_of, backend=backend, progress=progress)
        LOG.info("refines %d lists of %s into %d", len(made_of), snapshot.path, len(offsets) - 1)
    order, heads = with_heads(snapshot, form, order, offsets)
    sought = wanted_of(form, wanted.lists, view.profile.projection)
    return HalfBuilt(sought, snapshot.rows, len(live), whole, refined is not None, form.centre, offsets, heads, order)


def _laid(store: Store, generation: int, begun: HalfBuilt, progress: Stages) -> tuple[HalfBuilt, int]:
    """Lay the rows in this order; rows added meanwhile come behind them, and deleted ones are left out."""
    with store.snapshot() as now:
        if now.generation != generation:
            raise _overtaken(store)
        live = now.live
        kept = live[begun.order]
        if not kept.any():
            raise EmptyStore(f"all that was in {store.path} was deleted while its index was built.")
        added = begun.rows + np.flatnonzero(live[begun.rows :])
        everything = np.concatenate([begun.order[kept], added])
        learned = carried(now, Profile.of(now.settings).projection, everything)
        keep_count(store, now)
    laid = begun.laid(kept)
    store.compact(
        everything, index=learned | {UNFINISHED: laid.encoded()}, progress=partial(progress, "laying rows in order")
    )
    with store.snapshot() as now:
        return laid, now.generation


def _overtaken(store: Store) -> StoreError:
    return StoreError(f"{store.path} was compacted while its index was built. Build it again.")


def _rows(snapshot: Snapshot, form: Form) -> ReadRows:
    """Keys as the form makes them, and values as vectors, or as they are where they are codes of labels."""

    def rows(start: int, stop: int) -> tuple[Reals, Reals]:
        edges = (
            (np.array([start]), np.array([stop])) if stop > start else (np.empty(0, np.int64), np.empty(0, np.int64))
        )
        block = snapshot.runs(*edges)
        return form.keys(block.vectors[start:stop]), summable(block.values[start:stop], snapshot)

    return rows


@free_threads()
def _measured(snapshot: Snapshot, form: Form, offsets: Rows, progress: Stages) -> Lists:
    """The statistics of the lists."""
    assert snapshot.layout is not None
    labels = len(snapshot.labels()) if snapshot.layout.kind.coded else 0
    return measured(_rows(snapshot, form), offsets, labels=labels, progress=partial(progress, "measuring lists"))


@free_threads()
def _rehearsed(
    snapshot: Snapshot,
    form: Form,
    begun: HalfBuilt,
    asked: npt.NDArray[np.float32] | None,
    temperatures: Reals,
    progress: Stages,
) -> ListIndex:
    """Rehearse: find out how wrong estimates by these lists are."""
    lists, offsets = begun.lists, begun.offsets
    assert lists is not None
    most = REFINED if begun.is_refined else REHEARSED
    held_out = _drawn(snapshot, begun.rows, most) if asked is None else np.full(len(asked), -1)
    rows, ranked = _rows(snapshot, form), list[tuple[Reals, Ranking]]()
    order = np.random.default_rng(2).permutation(len(held_out))  # some of them choose, and others judge
    askers = held_out[order]
    calibration = rehearsed_by(
        Askers(snapshot.vectors(askers) if asked is None else asked[order], askers, snapshot.live[: begun.rows]),
        partial(lists_of, lists, offsets, form, snapshot),
        offsets,
        rows,
        form,
        temperatures,
        scale=snapshot.value_scale,
        ranked_rows=lambda *given: ranked.append(given),
        progress=partial(progress, "rehearsing"),
    )
    facts = {"calibrated on": "items" if asked is None else "queries"}
    outline = Outline.of(lambda start, stop: rows(start, stop)[0], offsets, lists, partial(progress, "outlining rows"))
    if outline is not None:
        outline = outline.reaching(lists, offsets, *ranked[0], by_distance=form.measures_distance)
    return ListIndex(form, offsets, lists, calibration, facts, heads=begun.heads, outline=outline)


class Askers(NamedTuple):
    """The queries of a rehearsal."""

    queries: npt.NDArray[np.float32]
    rows: Rows  # the rows whose keys they are, which are held out; -1 for a query that is no row
    live: Flags  # the rows that lookups find


def lists_of(lists: Lists, offsets: Rows, form: Form, snapshot: Snapshot, some: Flags) -> Lists:
    """The statistics of lists, of only some of their rows."""
    gone = np.flatnonzero(~some)
    owners, values = np.searchsorted(offsets, gone, side="right") - 1, summable(snapshot.values(gone), snapshot)
    return with_rows(lists, owners, form.keys(snapshot.vectors(gone)), values, sign=-1.0)


def rehearsed_by(
    asked: Askers,
    among: Callable[[Flags], Lists],
    offsets: Rows,
    rows: ReadRows,
    form: Form,
    temperatures: Reals,
    *,
    scale: float,
    progress: Progress,
    ranked_rows: Callable[[Reals, Ranking], None] = untold,
) -> Calibration:
    """Rehearse lists; `among` computes their statistics from some rows only, and `ranked_rows` is told of the best."""
    vectors, compared = asked.queries, COMPATIBILITIES.get(form.compatibility)
    rewritten, added = form.queries(vectors, compared, np.ones(len(vectors)))
    queries = rewritten if form.measures_distance else rewritten.astype(np.float32)  # as dot products take them
    counted = asked.live.copy()
    counted[asked.rows[asked.rows >= 0]] = False
    whole = Whole(among(asked.live), asked.live, asked.rows, form.most(added))
    return rehearsed(
        among(counted),
        offsets,
        rows,
        counted,
        queries,
        added,
        temperatures,
        scale=scale,
        whole=whole,
        near=NEAREST,
        by_distance=form.measures_distance,
        ranked_rows=ranked_rows,
        progress=progress,
    )


def _drawn(snapshot: Snapshot, rows: int, most: int) -> Rows:
    """Some items to hold out and rehearse with; the choice does not depend on the order of the rows."""
    live = snapshot.in_order()
    live = live[live < rows]
    return live[np.sort(np.random.default_rng(1).choice(len(live), min(len(live) // 4, most), replace=False))]
