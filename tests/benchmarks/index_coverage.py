"""How often the stated error holds, for queries like those that were rehearsed and for others.

Like the items: held out from them. Unlike: from around the same centres but nearer or farther; of another domain;
in random directions, where no keys are; and at temperatures between the rehearsed ones. Outside of these nothing may be
estimated. Coverage is that of the estimated answers alone: those that are scanned are exact, and would only flatter it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from softkv_cli.mixtures import of_length_1

import softkv
from softkv.ndarrays import Matrix

from . import index_data
from .index_data import DataSet, store_of, truth
from .index_quality import Judged, judged
from .index_report import Bench, at_least, never_cheap

CONFIDENCES = (0.8, 0.9, 0.95, 0.99)
STEP = 2.0  # how far outside of the calibrated temperatures


class Kind(NamedTuple):
    """Queries of one kind, and at which temperatures they are asked."""

    label: str  # of the files of their exact answers
    told: str
    queries: Matrix
    temperatures: tuple[float, ...]
    promised: bool = False  # whether coverage is promised to them


def coverage(bench: Bench) -> None:
    """All data sets, all kinds."""
    observed: dict[str, list[float | None]] = {}
    with never_cheap() as note:
        title = "Coverage: the share of estimated answers whose error is at most what is stated"
        bench.begin(title, *([note] if bench.texts else []))
        for name, data, like, others in _asked(bench):
            with softkv.open(store_of(bench, data), "r") as db:
                for kind in [*_alike(db, like), *others]:
                    observed[f"{name}, {kind.told}"] = _told(bench, db, data, name, kind)
                _outside(bench, db, data, name)
    bench.keep("coverage", {"nominal": CONFIDENCES, "observed": observed})


def _asked(bench: Bench) -> Iterator[tuple[str, DataSet, tuple[str, Matrix], list[Kind]]]:
    """What to call a data set, itself, queries like its items with their label, and others."""
    mixture, spectrum = index_data.mixture(bench), index_data.spectrum(bench)
    assert mixture.spare is not None
    other = Kind("queries", "nearer or farther from the centres", mixture.items.queries, (0.05, 0.07, 0.1))
    yield "mixture", mixture, ("like", mixture.spare.queries), [other, _random(mixture)]
    yield "spectrum", spectrum, ("queries", spectrum.items.queries), [_random(spectrum)]
    if not bench.texts:
        return
    text = index_data.text(bench)
    yield "text", text, ("queries", text.items.queries), [_random(text)]
    for data, name in zip(index_data.domains(bench), ("CLINC150 alone", "Banking77 alone"), strict=True):
        assert data.strange is not None
        strange = Kind("strange", "of the other domain", data.strange, (0.03, 0.05, 0.07, 0.1))
        yield name, data, ("queries", data.items.queries), [strange]


def _alike(db: Any, like: tuple[str, Matrix]) -> list[Kind]:
    """Queries like the items, at the temperatures that were rehearsed, and between them."""
    label, queries = like
    rehearsed = db._view().index.calibration.temperatures.astype(np.float64)
    between = np.sqrt(rehearsed[1:] * rehearsed[:-1])
    return [
        Kind(label, "like the items", queries, tuple(rehearsed.tolist()), promised=True),
        Kind(label, "at temperatures between", queries, tuple(between.tolist())),
    ]


def _random(data: DataSet) -> Kind:
    """Directions in which there are no keys."""
    low, high = data.temperatures
    vectors = np.random.default_rng(7).standard_normal(data.items.queries.shape, dtype=np.float32)
    return Kind("random", "in random directions", of_length_1(vectors), (round((low * high) ** 0.5, 3),))


def _told(bench: Bench, db: Any, data: DataSet, title: str, kind: Kind) -> list[float | None]:
    """The rows of one kind; what was observed at each confidence."""
    observed = []
    for confidence in CONFIDENCES:
        found = []
        for temperature in kind.temperatures:
            true = truth(bench, data, kind.queries, temperature, kind.label)
            found.append(judged(db, kind.queries, true, temperature, confidence=confidence))
        observed.append(_row(bench, f"{title}, {kind.told}, asked for {confidence:.0%}", found, kind, confidence))
    return observed


def _row(bench: Bench, what: str, found: list[Judged], kind: Kind, confidence: float) -> float | None:
    """All temperatures together, and the worst of them."""
    held = [(one.errors <= one.stated)[~one.scanned] for one in found]
    scanned = float(np.mean([one.scanned.mean() for one in found]))
    read = float(np.mean([one.rows.mean() for one in found]))
    against = f"{scanned:.1%} scanned, {read:.1%} of the rows read"
    goal = at_least(confidence, f"{confidence:.0%}") if kind.promised else None
    shares = [float(one.mean()) for one in held if len(one)]
    if not shares:
        bench.row(what, "all scanned", against, goal)
        return None
    covered, worst, count = float(np.concatenate(held).mean()), min(shares), sum(map(len, held))
    bench.row(what, f"{covered:.1%} of {count:,}, at one temperature {worst:.1%}", against, goal, covered)
    return covered


def _outside(bench: Bench, db: Any, data: DataSet, title: str) -> None:
    """Colder and warmer than anything that was rehearsed."""
    low, high = data.temperatures
    for temperature in (low / STEP, high * STEP):
        kinds = db.lookup(data.items.queries, temperature=temperature).error_kind
        kinds = [kinds] if isinstance(kinds, str) else kinds
        scanned = float(np.mean([kind == "exact" for kind in kinds]))
        what = f"{title}, T {temperature:.3g}, outside of {low:g} to {high:g}: scanned"
        bench.row(what, f"{scanned:.1%}", "", at_least(1.0, "100%"), scanned)
