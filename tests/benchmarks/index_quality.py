"""How exact estimates are, what they read, and how fast they are: mixture, spectrum and text.

An answer is within 1% when it is no further from the full softmax in float64 than 1% of the value scale, nor than the
error that it states, which is at most that 1%. Beside it stand the others: the best item, the best 32, and the lists
that were opened, without an estimate of those that were not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

import softkv
from softkv.asking.lists import Asking
from softkv.asking.question import Question
from softkv.index.calibration import Plan
from softkv.index.opening import LEVELS
from softkv.index.search import Estimate
from softkv.ndarrays import Counts, Flags, Floats, Matrix

from . import index_data
from .index_contests import BATCH_ASKED, EXACT, TOP, Torch, Work, compared, exact_torch, singly, together, turns
from .index_data import TEMPERATURE, DataSet, in_memory, store_of, truth
from .index_report import Bench, Goal, at_least, at_most, never_cheap

WITHIN = 0.01  # of the value scale
ENOUGH = 0.95  # of the queries
DRAWN = 32  # queries that the plots are drawn from
DRAWN_K = (1, 4, 16, 64, 256, 1024, 4096)


@dataclass(frozen=True, slots=True)
class Aims:
    """The goals of a data set."""

    rows: float  # the share that is read
    one: Goal | None = None  # the time of one query
    batch: Goal | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Answers beside the truth; errors are shares of the value scale."""

    errors: Floats  # (b,)
    stated: Floats  # (b,)
    rows: Floats  # (b,), the share of all items that was read
    scanned: Flags  # (b,), whether all of them were
    read: Counts  # (b,), how many rows were compared, also in vain
    routes: Any  # (b,), by which each was answered

    @property
    def within(self) -> float:
        """The share of the queries that are within 1%."""
        return float(np.logical_and.reduce(list(self._conditions().values())).mean())

    def __str__(self) -> str:
        """That share; where it is too small, what it is too small for; and how many were scanned."""
        told = f"{self.within:.1%}"
        if self.within < ENOUGH:
            told += f" ({', '.join(f'{name}: {held.mean():.1%}' for name, held in self._conditions().items())})"
        return f"{told}, {self.scanned.sum()} of {len(self.errors)} scanned"

    def _conditions(self) -> dict[str, Any]:
        """What has to hold for each query."""
        return {
            "error ≤ 1%": self.errors <= WITHIN,
            "error ≤ stated": self.errors <= self.stated,
            "stated ≤ 1%": self.stated <= WITHIN * (1 + 1e-9),  # but for the rounding of the division
        }

    def row(self, bench: Bench, what: str) -> None:
        """The line about it."""
        bench.row(f"{what}: within 1%", str(self), "", at_least(ENOUGH, f"{ENOUGH:.0%}"), self.within)


def judged(db: Any, queries: Matrix, true: Floats, temperature: float, *, confidence: float = 0.95) -> Judged:
    """Ask all queries together, and compare."""
    answers = db.lookup(queries, temperature=temperature, confidence=confidence)
    scale, count = db.info().value_scale, len(queries)
    kinds, routes = (np.broadcast_to(np.array(told), count) for told in (answers.error_kind, answers.route))
    off_by, stated, rows = off(answers.value, true, scale), answers.error / scale, answers.scored / len(db)
    return Judged(off_by, stated, rows, kinds == "exact", answers.rows_read, routes)


def judged_singly(db: Any, queries: Matrix, true: Floats, temperature: float) -> Judged:
    """Ask one query after the other, and compare."""
    parts = [judged(db, one[None], value[None], temperature) for one, value in zip(queries, true, strict=True)]
    return Judged(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Judged)))


def off(values: Any, true: Floats, scale: float) -> Floats:
    """How far values are from the truth, as shares of the value scale, (b,)."""
    found: Floats = np.linalg.norm(values - true, axis=1) / scale
    return found


def opened(db: Any, queries: Matrix, temperature: float, level: int | None = None) -> Estimate | None:
    """What the index says at a level, or where its plan says; None without a plan for this temperature."""
    view = db._view()
    question = Question(queries, "cosine", temperature, show=0, tolerance=WITHIN)
    asking = Asking(view, view.index, question)
    # Nothing is doubted at a level of our own choice: it is how wrong it is that we want to see.
    if level is not None:
        asking.plans = [Plan(-1.0, level, level, 0.0, ((0.0, np.inf),), np.inf, np.inf, -np.inf)] * len(queries)
    return None if None in asking.plans else asking.answers(np.arange(len(queries)))


def mixture(bench: Bench) -> None:
    """Clusters of very different sizes and spreads."""
    data = index_data.mixture(bench)
    aims = Aims(0.03, at_most(1 / 25, "1/25"), at_most(1 / 5, "1/5"))
    estimates(bench, "Mixture", data, (0.05, 0.07, 0.1), aims)
    with softkv.open(store_of(bench, data), "r") as db:
        seconds = db.info().index.built["seconds"]
    bench.row(
        f"building the index, {data.count:,} × {index_data.WIDTH}", f"{seconds} s", "", at_most(120, "120 s"), seconds
    )


def spectrum(bench: Bench) -> None:
    """No clusters at all."""
    aims = Aims(0.1, at_most(1 / 8, "1/8"))
    estimates(bench, "Spectrum", index_data.spectrum(bench), (0.05, 0.07, 0.1, 0.15), aims)


def text(bench: Bench) -> None:
    """Real questions."""
    with never_cheap() as note:
        estimates(bench, "Text", index_data.text(bench), (0.03, 0.05, 0.07, 0.1), Aims(0.08), note)


def estimates(
    bench: Bench, title: str, data: DataSet, temperatures: tuple[float, ...], aims: Aims, *notes: str
) -> None:
    """The table of one data set."""
    with softkv.open(store_of(bench, data), "r") as db:
        bench.begin(f"{title}: {data.count:,} × {data.items.keys.shape[1]}", str(db.info().index), *notes)
        times = _times(bench, db, data, temperatures)
        for temperature in temperatures:
            _told(bench, db, data, temperature, aims, times)
        _drawn(bench, title, db, data)


def _times(bench: Bench, db: Any, data: DataSet, temperatures: tuple[float, ...]) -> dict[str, Any]:
    """One query and many, by the index and by torch."""
    items, some = in_memory(data), _batch(bench, data.items.queries)
    torch = Torch(items.keys, items.values)
    one: dict[str, Work] = torch.works(items.queries, batch=False)
    many: dict[str, Work] = torch.works(some, batch=True)
    for temperature in temperatures:

        def ask(asked: Matrix, temperature: float = temperature) -> Any:
            return db.lookup(asked, temperature=temperature)

        one[f"{temperature}"], many[f"{temperature}"] = singly(items.queries, ask), together(some, ask)
    found: dict[str, Any] = {"one": turns(bench, one)}
    found["batch"] = turns(bench, many, max(2, bench.rounds // 5))
    return found


def _batch(bench: Bench, queries: Matrix) -> Matrix:
    """Those that are asked together."""
    return queries[: bench.sized(BATCH_ASKED, least=32)]


def _told(bench: Bench, db: Any, data: DataSet, temperature: float, aims: Aims, times: Mapping[str, Any]) -> None:
    """The rows of one temperature."""
    queries = data.items.queries
    true = truth(bench, data, queries, temperature)
    single, many = judged_singly(db, queries, true, temperature), judged(db, queries, true, temperature)
    for found, what, goal in ((single, "one", aims.one), (many, "batch", aims.batch)):
        taken = times[what]
        label = f"T {temperature:g}, {'1 query' if what == 'one' else f'{len(_batch(bench, queries))} queries'}"
        compared(bench, f"{label}: time", taken[f"{temperature}"], EXACT, exact_torch(taken), goal)
        found.row(bench, label)
    goal = at_most(aims.rows, f"{aims.rows:.0%}")
    bench.row(
        f"T {temperature:g}: rows read", shares(single.rows), "mean, 95th percentile", goal, float(single.rows.mean())
    )
    _beside(bench, db, queries, true, temperature, single)


def _beside(bench: Bench, db: Any, queries: Matrix, true: Floats, temperature: float, ours: Judged) -> None:
    """The errors of all ways."""
    told = [f"ours {_quantiles(ours.errors)}"]
    told += [f"{name} {_quantiles(errors)}" for name, errors in others(db, queries, true, temperature).items()]
    bench.row(f"T {temperature:g}: errors", "; ".join(told), "median, 95th percentile, of the value scale")


def others(db: Any, queries: Matrix, true: Floats, temperature: float) -> dict[str, Floats]:
    """The errors of what is not the mean of all."""
    scale, found = db.info().value_scale, {}
    for name, k in ((f"top-{TOP}", TOP), ("hard", 1)):
        found[name] = off(db.lookup(queries, k=k, temperature=temperature, tolerance=0).value, true, scale)
    estimate = opened(db, queries, temperature)
    if estimate is not None:
        found["opened lists alone"] = off(estimate.near.blend.value, true, scale)
    return found


def _drawn(bench: Bench, title: str, db: Any, data: DataSet) -> None:
    """Errors against rows read, of a few queries at one temperature, for the plots."""
    queries, scale = data.items.queries[:DRAWN], db.info().value_scale
    true = truth(bench, data, data.items.queries, TEMPERATURE)[:DRAWN]
    found: dict[str, Any] = {"title": title, "temperature": TEMPERATURE, "lists": [], "top": []}
    for level in range(len(LEVELS)):
        estimate = opened(db, queries, TEMPERATURE, level)
        assert estimate is not None
        alone, both = (np.median(off(one.value, true, scale)) for one in (estimate.near.blend, estimate.blend))
        found["lists"].append([float(estimate.near.scored.mean() / len(db)), float(alone), float(both)])
    for k in (one for one in DRAWN_K if one <= len(db)):
        answers = db.lookup(queries, k=k, temperature=TEMPERATURE, tolerance=0)
        found["top"].append([k / len(db), float(np.median(off(answers.value, true, scale)))])
    bench.keep(f"errors-{title.lower()}", found)


def _quantiles(errors: Floats) -> str:
    return f"{np.median(errors):.2g}, {np.quantile(errors, 0.95):.2g}"


def shares(rows: Floats) -> str:
    """The mean and the 95th percentile of shares."""
    return f"{rows.mean():.2%}, {np.quantile(rows, 0.95):.2%}"
