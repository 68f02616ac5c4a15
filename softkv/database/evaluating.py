"""How well a store answers queries whose answers are known, for each way to look up.

Queries are embedded once, and all are asked of one commit. Nothing is chosen by these queries: temperatures are those
of the store, and the widths for numbers are found on items, each left out in turn.

Does not compute measures (learning/measures.py) and draws no plots.

Shapes: b queries, n items, c labels, p value width.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers
from softkv.asking.asker import Asker
from softkv.asking.joined import joined
from softkv.asking.view import View
from softkv.database.targets import targets_of
from softkv.errors import InputError, KindError, ShapeError
from softkv.kinds import ValueKind
from softkv.learning import measures
from softkv.ndarrays import AnyArray, Floats
from softkv.portrait import as_table
from softkv.progress import Stages

TOGETHER = 1000  # queries in a lookup
EVEN, NEARLY = 64, 20  # octaves above the usual temperature at which weights are equal; with huge scores, nearly equal
LEFT_OUT = 256  # items on which the widths are found
AT_A_TIME = 32  # of them in a lookup, since each has a mask over all items
LEAST = 2.0 ** np.arange(-10.0, 1.0)  # the least spreads that are tried, as shares of the value scale
POINTS = 200  # of a curve, at most
MEASURES: tuple[str, ...] = ("accuracy", "log_loss", "calibration_error", "rmse", "log_likelihood", "auroc")
MEASURES += ("known", "wrong_known", "strangers_known")

CurvePoints = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Way:
    """The measures of one way to look up. None means does not apply: labels have no RMSE, exact matches no AUROC."""

    way: str
    temperature: float | None
    answered: float  # the share of queries that got any answer: the exact way fails where a dict would
    accuracy: float | None = None  # of labels; no answer is a wrong one
    log_loss: float | None = None
    calibration_error: float | None = None
    rmse: float | None = None  # of numbers and vectors; None unless all queries got an answer
    log_likelihood: float | None = None  # of numbers
    auroc: float | None = None  # of log_mass, of the queries against those out of scope
    known: float | None = None  # the share of queries that are known, if a guard covers such answers
    wrong_known: float | None = None  # of labels, the share of wrong answers among the known
    strangers_known: float | None = None  # the share of out-of-scope queries that are known
    reliability: CurvePoints = ()  # (confidence, accuracy) of labels; of numbers (level of an interval, targets within)
    abstention: CurvePoints = ()  # (share that is answered, error) when those of the least log_mass are left out
    warmth: CurvePoints = ()  # (temperature, error), where temperatures were asked for
    routes: Mapping[str, int] = field(default_factory=dict)  # how many queries were answered by each route
    scanned: str | None = None  # the most frequent reason for scans, unless the store is small
    rows_read: float | None = None  # how many rows were compared for a query, on the average


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Every way to look up, measured on the same queries."""

    kind: str  # of the values
    items: int
    queries: int
    out_of_scope: int
    k: int
    ways: tuple[Way, ...]

    @property
    def error(self) -> str:
        """The error that curves show: the share of labels that are wrong, or the RMSE."""
        return "error rate" if ValueKind(self.kind).coded else "RMSE"

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that apply to any way."""
        return tuple(name for name in MEASURES if any(getattr(one, name) is not None for one in self.ways))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python."""
        return asdict(self)

    def _rows(self) -> list[list[str]]:
        """A head, and a line for each way."""
        names = ("way", "temperature", "answered", *self.measures)
        rows = [[name.replace("_", " ") for name in names]]
        return rows + [[_figure(getattr(one, name)) for name in names] for one in self.ways]

    def _repr_html_(self) -> str:
        head, *rows = self._rows()
        asked = "1 query" if self.queries == 1 else f"{self.queries:,} queries"
        return as_table(f"{asked} of {self.items:,} items, in every way", head, rows)

    def __str__(self) -> str:
        rows = self._rows()
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in rows]
        return "\n".join(lines)


def evaluate(
    reader: Asker,
    queries: Any,
    targets: Any,
    *,
    out_of_scope: Any = None,
    k: int = 10,
    temperature: float | None = None,
    compatibility: str | None = None,
    projection: bool = True,
    tolerance: float = 0.01,
    temperatures: Sequence[float] = (),
    seed: int = 0,
    progress: Stages | None = None,
) -> Evaluation:
    """Look queries up whose answers are known, in every way, and measure how good the answers are.

    By equality, by the best key, by the mean of the k best, by these weighted, by all weighted, and the same as the
    store has learned to compare (`fit`), if it has.

    Args:
        reader: The store, or a snapshot of it.
        queries: Texts, or vectors, that are not items of the store.
        targets: What they should be answered: labels, numbers or vectors.
        out_of_scope: Queries that no item answers; `auroc` is how well log_mass tells them from the others.
        k: How many items are blended where not all are.
        temperature: Another temperature than that of the store; what was learned is asked at its own.
        compatibility: Another way to compare than that of the store.
        projection: Whether to measure what the store has learned, too.
        tolerance: How far from exact the full softmax may be, as in `lookup`.
        temperatures: As multiples of the usual one, for a curve of the error. None of them is chosen.
        seed: Chooses the items by which it is found how wide spreads have to be taken.
        progress: Called with (way, done, all).
    """
    kept: AbstractContextManager[Any] = reader.snapshot() if hasattr(reader, "snapshot") else nullcontext(reader)
    with kept as frozen:
        view = frozen._asked_view()
        if view.layout.kind.embedded:
            raise KindError(
                "expected a store of labels, numbers or vectors to evaluate, but this one holds texts, whose mean is "
                "neither right nor wrong. Texts that repeat are labels: start the store anew with value='label'."
            )
        asked, aims = vectors_of_many(frozen, view, queries), targets_of(view, targets)
        if len(asked) != len(aims) or not len(aims):
            raise ShapeError(f"expected queries and a target for each, got {len(asked)} queries, {len(aims)} targets.")
        strangers = None if out_of_scope is None else vectors_of_many(frozen, view, out_of_scope)
        if strangers is not None and not len(strangers):
            raise InputError("expected queries that are out of scope, got none. Leave out_of_scope out.")
        usual = view.temperature(compatibility or view.profile.compatibility or "dot").value
        octave = math.frexp(usual)[1]
        # A power of two, so that no score is rounded on the way, or vanishes.
        even = 2.0 ** min(octave + EVEN, max(octave + NEARLY, EVEN))
        plain = {
            "projection": False,
            "temperature": temperature,
            "compatibility": compatibility,
            "tolerance": tolerance,
        }
        ways: dict[str, dict[str, Any]] = {
            "hard": {**plain, "k": 1, "tolerance": 0.0},  # as `nearest` asks
            f"mean of {k}": {**plain, "k": k, "temperature": even},
            f"top {k}": {**plain, "k": k},
            "full soft": plain,
        }
        if projection and view.learned is not None:
            ways["learned"] = {"tolerance": tolerance}
        evaluating = _Evaluating(frozen, view, asked, aims, strangers, tuple(temperatures), even, seed, progress)
        exact = evaluating.exact(queries)
        return Evaluation(
            kind=view.layout.kind.value,
            items=len(view.snapshot),
            queries=len(aims),
            out_of_scope=0 if strangers is None else len(strangers),
            k=k,
            ways=(exact, *(evaluating.way(name, options) for name, options in ways.items())),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Evaluating:
    """An evaluation in progress: the view, the queries, and the answers that are right."""

    reader: Any
    view: View
    asked: npt.NDArray[np.float32]
    aims: AnyArray
    strangers: npt.NDArray[np.float32] | None
    temperatures: tuple[float, ...]
    even: float
    seed: int
    told: Stages | None

    def exact(self, queries: Any) -> Way:
        """Answer as a dict would: by the item whose key is the query."""
        found = equals(self.view, queries, self.asked)
        there = found >= 0
        values, share = self.view.snapshot.values(found[there]), float(there.mean())
        if self.view.labels is not None:
            shares = np.zeros((len(found), len(self.view.labels)), np.float32)
            shares[np.flatnonzero(there), values] = 1.0
            right = there & (shares.argmax(1) == self.aims)
            return Way("exact", None, share, float(right.mean()), measures.log_loss(shares, self.aims))
        # An RMSE over a few queries could not be compared with those of the other ways, which answer all of them.
        return Way("exact", None, share, rmse=measures.rmse(values, self.aims) if there.all() else None)

    def way(self, name: str, options: Mapping[str, Any]) -> Way:
        """One way to look up."""
        found = self._replies(self.asked, name, options)
        known: dict[str, Any] = self._of_values(found, options) if self.view.labels is None else self._of_labels(found)
        if found.guard is not None:
            sure = np.equal(np.asarray(found.known), True)  # None where it is undecided
            known["known"] = float(sure.mean())
            if self.view.labels is not None and sure.any():
                known["wrong_known"] = float(self._losses(found)[sure].mean())
        if options.get("temperature") != self.even:  # or log_mass would say nothing
            known["abstention"] = self._abstention(found)
            if self.strangers is not None:
                others = self._replies(self.strangers, f"{name}, out of scope", options)
                known["auroc"] = measures.auroc(found.log_mass, others.log_mass)
                sure = np.equal(np.asarray(others.known), True)
                known["strangers_known"] = None if others.guard is None else float(sure.mean())
            temperature: float | None = found.temperature
        else:
            temperature = None
        if "k" not in options:
            known["warmth"] = tuple(self._warmth(name, options, found.temperature))
        read = None if found.rows_read is None else float(found.rows_read.mean())
        return Way(name, temperature, 1.0, **known, routes=found.routes, scanned=found.scanned, rows_read=read)

    def _of_labels(self, found: Answers) -> dict[str, Any]:
        right = measures.correct(found.value, self.aims)
        bins = measures.reliability(found.value.max(1), right)
        return {
            "accuracy": float(right.mean()),
            "log_loss": measures.log_loss(found.value, self.aims),
            "calibration_error": measures.calibration_error(bins),
            "reliability": tuple((one.confidence, one.accuracy) for one in bins),
        }

    def _of_values(self, found: Answers, options: Mapping[str, Any]) -> dict[str, Any]:
        known: dict[str, Any] = {"rmse": measures.rmse(found.value, self.aims)}
        if self.view.layout.kind.scalar:
            spreads = self._widths(options).of(np.asarray(found.spread, np.float64))
            known["log_likelihood"] = measures.log_likelihood(found.value, spreads, self.aims)
            known["reliability"] = measures.coverage(found.value, spreads, self.aims)
        return known

    def _widths(self, options: Mapping[str, Any]) -> measures.Widths:
        """The widths at which items, each left out, are most likely."""
        order, snapshot, parts = self.view.order, self.view.snapshot, []
        least = LEAST * (snapshot.value_scale or 1.0)
        if len(order) < 2:
            return measures.Widths(least=float(least[-1]))
        places = np.random.default_rng(self.seed).permutation(len(order))[:LEFT_OUT]
        for start in range(0, len(places), AT_A_TIME):
            some = places[start : start + AT_A_TIME]
            mask = np.ones((len(some), len(order)), np.bool_)
            mask[np.arange(len(some)), some] = False
            answers = self.reader.lookup(snapshot.vectors(order[some]), mask=mask, show=1, **options)
            parts.append((start + np.arange(len(some)), answers))
        found = joined(parts, None)
        spreads = np.asarray(found.spread, np.float64)
        return measures.likeliest_widths(found.value, spreads, snapshot.values(order[places]), least)

    def _losses(self, found: Answers) -> Floats:
        """The loss of each query, of which the error is the mean, (b,)."""
        if self.view.labels is not None:
            return (~measures.correct(found.value, self.aims)).astype(np.float64)
        return measures.squared(found.value, self.aims)

    def _error(self, loss: float) -> float:
        return math.sqrt(loss) if self.view.labels is None else loss

    def _abstention(self, found: Answers) -> CurvePoints:
        shares, means = measures.abstention(found.log_mass, self._losses(found))
        some = np.unique(np.linspace(0, len(shares) - 1, POINTS).astype(np.int64))
        return tuple((float(shares[one]), self._error(float(means[one]))) for one in some)

    def _warmth(self, name: str, options: Mapping[str, Any], usual: float) -> Iterator[tuple[float, float]]:
        for step in self.temperatures:
            warm = {**options, "temperature": usual * step}
            found = self._replies(self.asked, f"{name} at {usual * step:.3g}", warm)
            yield usual * step, self._error(float(self._losses(found).mean()))

    def _replies(self, queries: npt.NDArray[np.float32], name: str, options: Mapping[str, Any]) -> Answers:
        parts = []
        for start in range(0, len(queries), TOGETHER):
            some = np.arange(start, min(start + TOGETHER, len(queries)))
            found = self.reader.lookup(queries[some], show=1, **options)
            unknown = np.isnan(found.log_mass) & (options.get("temperature") != self.even)
            if unknown.any():  # of the k best by an index, while of all items it is known
                whole = self.reader.lookup(queries[some[unknown]], show=1, **{**options, "k": None})
                found.log_mass[unknown] = whole.log_mass
            parts.append((some, found))
            if self.told is not None:
                self.told(name, int(some[-1]) + 1, len(queries))
        return joined(parts, float(parts[0][1].temperature))


def vectors_of_many(reader: Any, view: View, given: Any) -> npt.NDArray[np.float32]:
    """The vectors of many queries, texts or vectors."""
    found, _, one = reader._queries(view, given, None, None)
    if one:
        raise ShapeError("expected many queries, as a list of texts or a matrix, got one. Put it into a list.")
    vectors: npt.NDArray[np.float32] = found
    return vectors


def equals(view: View, queries: Any, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The row whose key, a text or a vector, is the query; -1 where there is none, (b,)."""
    found = np.full(len(vectors), -1, np.int64)
    texts = [one for one in queries if isinstance(one, str)]
    if texts:
        for place, text in enumerate(texts):
            if text in view.snapshot:
                found[place] = view.snapshot.get(text).row
        return found
    wanted: dict[bytes, list[int]] = {}
    for place, vector in enumerate(vectors + np.float32(0.0)):  # -0 is 0, and has to have its bytes
        wanted.setdefault(vector.tobytes(), []).append(place)
    for block in view.snapshot.blocks():
        likely = np.flatnonzero(np.isin(block.vectors[:, 0], vectors[:, 0]) & block.live)
        for row in likely.tolist():
            for place in wanted.pop((block.vectors[row] + np.float32(0.0)).tobytes(), ()):
                found[place] = block.start + row
    return found


def _figure(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.4g}"
