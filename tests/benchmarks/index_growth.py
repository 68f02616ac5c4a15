"""What becomes of an index: how lookups grow with the store, and what is left of them when the store has changed."""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.mixtures import Mixture

import softkv

from . import index_data
from .index_contests import Taken, Work, singly, turns
from .index_data import TEMPERATURE, Array, DataSet, fill, store_of, truth
from .index_quality import Judged, judged_singly, shares
from .index_report import Bench, at_most

PARTS = (16, 4, 1)  # of the largest store, one in so many items
SLOWLY = 0.6  # the power of the items that rows and times may grow with
DELETED = 0.1  # of the items
SLOWER = 1.5  # at most, for each live row


def growth(bench: Bench) -> None:
    """The same items, ever more of them."""
    whole = index_data.narrow(bench)
    sets = [whole.first(whole.count // part) for part in PARTS]
    bench.begin(
        f"Growth: mixture, {index_data.NARROW} wide, T {TEMPERATURE}, {sets[0].count:,} to {whole.count:,} items"
    )
    with ExitStack() as stack:
        stores = [stack.enter_context(softkv.open(store_of(bench, data), "r")) for data in sets]
        found = turns(bench, _works(stores, whole.items.queries))
        judged = [_judged(bench, db, data) for db, data in zip(stores, sets, strict=True)]
    for data, one in zip(sets, judged, strict=True):
        _told(bench, data, one, found)
    _ratios(bench, sets, judged, found)


def _works(stores: list[Any], queries: Array) -> dict[str, Work]:
    works = {}
    for db in stores:
        works[f"index {len(db)}"] = singly(queries, lambda asked, db=db: db.lookup(asked, temperature=TEMPERATURE))
        works[f"scan {len(db)}"] = singly(
            queries, lambda asked, db=db: db.lookup(asked, temperature=TEMPERATURE, tolerance=0), burst=1
        )
    return works


def _judged(bench: Bench, db: Any, data: DataSet) -> Judged:
    queries = data.items.queries
    return judged_singly(db, queries, truth(bench, data, queries, TEMPERATURE), TEMPERATURE)


def _told(bench: Bench, data: DataSet, one: Judged, found: dict[str, Taken]) -> None:
    scan = found[f"scan {data.count}"]
    bench.row(f"{data.count:,} items: 1 query", str(found[f"index {data.count}"]), f"a scan, {scan}")
    one.row(bench, f"{data.count:,} items")
    bench.row(f"{data.count:,} items: rows read", f"{shares(one.rows)}", "mean, 95th percentile")


def _ratios(bench: Bench, sets: list[DataSet], judged: list[Judged], found: dict[str, Taken]) -> None:
    """The last beside the first."""
    times = (float(sets[-1].count) / sets[0].count) ** SLOWLY
    goal = at_most(times, f"{times:.2g} ×")
    read = [float(one.rows.mean() * data.count) for data, one in zip(sets, judged, strict=True)]
    taken = [found[f"index {data.count}"].p50 for data in sets]
    scanned = [found[f"scan {data.count}"].p50 for data in sets]
    for what, figures in (("rows read", read), ("time", taken)):
        ratio = figures[-1] / figures[0]
        bench.row(f"growth of {what}, {PARTS[0]} times the items", f"{ratio:.3g} ×", "itself", goal, ratio)
    kept = {"items": [data.count for data in sets], "index": taken, "scan": scanned, "rows": read}
    bench.keep("growth", {"width": index_data.NARROW, "temperature": TEMPERATURE, **kept})


def changed(bench: Bench) -> None:
    """Some items deleted and others added, and the index still the old one."""
    data = index_data.mixture(bench)
    kept, later = _after(data)
    path = _changed(bench, data, kept)
    with softkv.open(store_of(bench, data), "r") as before, softkv.open(path, "r") as after:
        gone, added = data.count - int(kept.sum()), later.count - int(kept.sum())
        bench.begin(f"Changed: {gone:,} of {data.count:,} items deleted and {added:,} added since the build")
        queries = data.items.queries
        works = {
            name: singly(queries, lambda asked, db=db: db.lookup(asked, temperature=TEMPERATURE))
            for name, db in (("before", before), ("after", after))
        }
        found = turns(bench, works)
        judged = {"before": _judged(bench, before, data), "after": _judged(bench, after, later)}
    for name, one in judged.items():
        one.row(bench, f"T {TEMPERATURE}, {name}")
        bench.row(f"T {TEMPERATURE}, {name}: rows read", shares(one.rows), "mean, 95th percentile")
    each = [found["before"].p50 / data.count, found["after"].p50 / later.count]
    ratio = each[1] / each[0]
    what, figure = f"T {TEMPERATURE}: 1 query, for each live row", f"{found['after']}: {ratio:.3g} ×"
    bench.row(what, figure, f"before, {found['before']}", at_most(SLOWER), ratio)


def _after(data: DataSet) -> tuple[Any, DataSet]:
    """Which items are kept, and what there is in the end."""
    assert data.spare is not None
    kept = np.ones(data.count, np.bool_)
    kept[np.random.default_rng(5).permutation(data.count)[: round(data.count * DELETED)]] = False
    keys, values = (
        np.concatenate([np.array(old)[kept], new]) for old, new in zip(data.items[:2], data.spare[:2], strict=True)
    )
    return kept, DataSet(f"{data.name}-changed", Mixture(keys, values, data.items.queries), data.temperatures)


def _changed(bench: Bench, data: DataSet, kept: Any) -> Path:
    """A copy of the store in which that was done."""
    assert data.spare is not None
    original, path = store_of(bench, data), bench.folder / f"{data.name}-changed.softkv"
    if path.exists():
        shutil.rmtree(path)
    shutil.copytree(original, path)
    with softkv.open(path, "w") as db:
        db.delete([f"#{number + 1}" for number in np.flatnonzero(~kept).tolist()])
        fill(db, data.spare.keys, data.spare.values)
    return path
