"""What becomes of an index: how lookups grow with the store, and what is left of them when the store has changed."""

import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli.mixtures import Mixture

import softkv
from softkv.ndarrays import Matrix

from . import index_data
from .index_contests import Taken, Work, singly, turns
from .index_data import TEMPERATURE, DataSet, fill, store_of, truth
from .index_quality import Judged, judged_singly, shares
from .index_report import Bench, at_most

PARTS = (16, 4, 1)  # of the largest store, one in so many items
STRANGE = 100  # random directions that are asked
ROWS, TIMES = 1.3, 2.0  # how much more is read, and how much longer it takes, for 16 times the items
DELETED = 0.1  # of the items
SLOWER = 1.5  # at most, for each live row


def growth(bench: Bench) -> None:
    """The same items, ever more of them, asked by queries like them and by random directions."""
    whole = index_data.narrow(bench)
    sets = [whole.first(whole.count // part) for part in PARTS]
    strange = np.random.default_rng(1).standard_normal((STRANGE, index_data.NARROW)).astype(np.float32)
    kept: dict[str, Any] = {
        "width": index_data.NARROW,
        "temperature": TEMPERATURE,
        "items": [one.count for one in sets],
    }
    for name, queries in (("like the items", whole.items.queries), ("random directions", strange)):
        bench.begin(
            f"Growth: mixture, {index_data.NARROW} wide, T {TEMPERATURE}, "
            f"{sets[0].count:,} to {whole.count:,} items, asked by queries {name}"
        )
        with ExitStack() as stack:
            stores = [stack.enter_context(softkv.open(store_of(bench, data), "r")) for data in sets]
            found = turns(bench, _works(stores, queries))
            judged = [_judged(bench, db, data, queries, name) for db, data in zip(stores, sets, strict=True)]
        for data, one in zip(sets, judged, strict=True):
            _told(bench, data, one, found)
        kept[name] = _ratios(bench, sets, judged, found)
    bench.keep("growth", kept)


def _works(stores: list[Any], queries: Matrix) -> dict[str, Work]:
    works = {}
    for db in stores:
        works[f"index {len(db)}"] = singly(queries, lambda asked, db=db: db.lookup(asked, temperature=TEMPERATURE))
        works[f"scan {len(db)}"] = singly(
            queries, lambda asked, db=db: db.lookup(asked, temperature=TEMPERATURE, tolerance=0), burst=1
        )
    return works


def _judged(bench: Bench, db: Any, data: DataSet, queries: Matrix, name: str = "queries") -> Judged:
    return judged_singly(db, queries, truth(bench, data, queries, TEMPERATURE, name), TEMPERATURE)


def _told(bench: Bench, data: DataSet, one: Judged, found: dict[str, Taken]) -> None:
    scan = found[f"scan {data.count}"]
    bench.row(f"{data.count:,} items: 1 query", str(found[f"index {data.count}"]), f"a scan, {scan}")
    one.row(bench, f"{data.count:,} items")
    bench.row(f"{data.count:,} items: rows read", f"{shares(one.rows)}", "mean, 95th percentile")


def _ratios(bench: Bench, sets: list[DataSet], judged: list[Judged], found: dict[str, Taken]) -> dict[str, list[float]]:
    """The last beside the first; what a plot shows of it."""
    read = [float(one.rows.mean() * data.count) for data, one in zip(sets, judged, strict=True)]
    taken = [found[f"index {data.count}"].p50 for data in sets]
    for what, figures, most in (("rows read", read, ROWS), ("time", taken, TIMES)):
        ratio = figures[-1] / figures[0]
        goal = at_most(most, f"{most:g} ×")
        bench.row(f"growth of {what}, {PARTS[0]} times the items", f"{ratio:.3g} ×", "itself", goal, ratio)
    return {"index": taken, "scan": [found[f"scan {data.count}"].p50 for data in sets], "rows": read}


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
        judged = {
            "before": _judged(bench, before, data, queries),
            "after": _judged(bench, after, later, queries),
        }
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
