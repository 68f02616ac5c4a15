"""A lookup by the lists of the index: the estimates, their errors, and the queries that must be answered otherwise.

Only questions that suit the index come here (route.py).

Shapes: b queries, n rows of the arena, d key width, s rows shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt

from softkv.answer import Answers
from softkv.asking.question import Question
from softkv.asking.rounding import moved_logits, rounding, summed
from softkv.asking.route import CALIBRATED, DEAR, UNSURE, against_plan, suits_form, unrehearsed
from softkv.asking.view import View
from softkv.index.calibration import Plan
from softkv.index.lists import OUTGROWN, ListIndex
from softkv.index.opening import LEVELS
from softkv.index.planned import PLANNED, calibrated
from softkv.index.screening import pays
from softkv.index.search import Asked, Estimate, Readable, assured, best, together
from softkv.maths.blas import at_most, shared
from softkv.maths.blending import Numbers, blend_of_rows
from softkv.maths.compatibility import Compatibility, compatibility_of
from softkv.maths.drawing import drawer
from softkv.maths.inputs import checked
from softkv.maths.lookup import Found
from softkv.maths.nearfield import Run, Score
from softkv.ndarrays import AnyArray, Flags, Floats, Matrix, Reals, Rows

LOGITS = 1 << 25  # held at once
SUMS = 1 << 24  # of values held at once
TOGETHER = 512  # queries that ask all lists at once
BROAD = 0.1  # the share of rows that is assumed to be read if no plan says how many
GATHERED = 1 << 18  # numbers of keys that are gathered at once
WORTH_THREADS = 4  # times GATHERED, from which on threads share the work
ROUNDING = 2.0**-22  # of logits, as a share of them
MOVED = 2.0**-25  # how far that usually moves a value, as a share of the value scale
SCREENED = 1  # the purpose of a draw of rows by an outline: if that fails, rows are drawn anew from lists


@dataclass(frozen=True, slots=True, eq=False)
class Estimated:
    """Estimates for the queries that suit the lists."""

    queries: Rows  # by number
    answers: Answers | None  # to these queries; None where there are none
    refused: dict[int, str]  # the numbers of the queries that have to be scanned, and why; some have answers, too
    asking: "Asking | None" = None  # the question, as far as it was prepared; None where some queries have answers


@at_most(1)
def estimate(view: View, question: Question, reason: str, *, drawn: bool = False) -> Estimated:
    """Answer a question by the index, with this reason; `drawn` if drawing rows was tried before."""
    index = view.bounding_index if question.guarantee else view.index
    assert index is not None
    asking = Asking(view, index, question)
    suited = asking.suited()
    refused = {number: asking.unrehearsed(number) for number in np.flatnonzero(~suited).tolist()}
    reasons = {number: asking.against_plan(number, drawn=drawn) for number in np.flatnonzero(suited).tolist()}
    dear = {number: why for number, why in reasons.items() if why is not None}
    suited[list(dear)] = False
    refused |= dear
    some = np.flatnonzero(suited)
    if not len(some):
        return Estimated(some, None, refused, asking)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what is not finite is scanned instead
        found = asking.answers(some)
        why = DEAR if question.guarantee else UNSURE
        if not found.sure.any():
            return Estimated(some[:0], None, refused | dict.fromkeys(some.tolist(), why), asking)
        answers = replace(asking.presented(found, some, question.guarantee or CALIBRATED), reason=reason)
    assert answers.error is not None
    sure = found.sure & np.isfinite(answers.error)  # values of 1e300 are numbers, and the squares of them are not
    refused |= dict.fromkeys(some[~sure].tolist(), why)
    return Estimated(some, answers, refused)


class Asking:
    """A question while it is answered by the index; `live` tells which rows count, if not all live ones do."""

    def __init__(self, view: View, index: ListIndex, question: Question, live: Flags | None = None) -> None:
        self.view, self.index, self.question = view, index, question
        snapshot = view.snapshot
        self.live = live if live is not None or len(snapshot) == snapshot.rows else snapshot.live
        self.block = view.snapshot.runs(np.empty(0, np.int64), np.empty(0, np.int64))
        self.values = self.view.blended(self.block.values)
        inputs = checked(
            question.queries,
            self.block.vectors,
            self.values,
            temperature=question.temperature,
            k=question.k,
            show=question.show,
        )
        self.queries, self.count, self.k, self.show = inputs.queries, inputs.count, inputs.k, inputs.show
        self.shown = self.show if self.k is None else min(self.k, self.show)  # others weigh nothing among the k
        self.suits_form, compared = suits_form(index, question), question.compatibility
        if question.by_learned or not self.suits_form:
            compared = view.comparing(compared)
        self.compatibility = compatibility_of(compared)
        self.temperatures = np.broadcast_to(np.asarray(question.temperature, np.float64), (self.count,))
        self.vectors, self.added = self.queries, np.zeros(self.count)
        if self.suits_form:
            with np.errstate(over="ignore", invalid="ignore"):
                self.vectors, self.added = index.form.queries(self.queries, self.compatibility, 1.0 / self.temperatures)

    @cached_property
    def equal(self) -> Reals:
        """The temperatures to look up in the calibration; inf for a query without length."""
        return self.index.form.temperatures(self.vectors, self.compatibility, 1.0 / self.temperatures)

    def suited(self) -> Flags:
        """Whether the index can answer each query, (b,)."""
        if self.question.guarantee or self.k is not None:
            known: Flags = np.isfinite(self.equal) & (self.k is None or self.depth is not None)
            return known
        return np.array([plan is not None for plan in self.plans], np.bool_)

    def against_plan(self, number: int, *, drawn: bool) -> str | None:
        """Why the plan of a query is not followed, if so: it reads so much that another route is faster."""
        plan = None if self.k is not None or self.question.guarantee else self.plans[number]
        if plan is None:
            return None
        return against_plan(self.view, self.question, plan.share, drawn=drawn, screened=bool(self.drawn[number]))

    def unrehearsed(self, number: int) -> str:
        """Why the index cannot answer a query."""
        at = float(self.temperatures[number])
        return unrehearsed(self.index, self.question, at, float(self.equal[number]))

    @cached_property
    def depth(self) -> tuple[int, float] | None:
        """How deep to search for the k best rows."""
        assert self.k is not None
        return self.depth_of(self.k)

    def depth_of(self, k: int) -> tuple[int, float] | None:
        """How deep to search for so many best rows."""
        if self.index.grown > OUTGROWN:
            return None
        known, changed = self.index.calibration, self.view.changes > 0
        return known.depth(k, self.question.confidence, grown=self.index.grown, changed=changed)

    @cached_property
    def plans(self) -> list[Plan | None]:
        """The plan of each query: one that leaves room for what is drawn, if rows are."""
        return [self._plan(one, drawn) for one, drawn in zip(self.equal.tolist(), self.drawn.tolist(), strict=True)]

    def _plan(self, temperature: float, drawn: bool) -> Plan | None:
        plan, confidence, found = self.index.calibration.plan, self.question.confidence, None
        tolerance, _ = self.rehearsed
        if not tolerance:
            return None
        if drawn:
            found = plan(temperature, PLANNED * tolerance, confidence)
        return found or plan(temperature, tolerance, confidence)

    @cached_property
    def rehearsed(self) -> tuple[float, float]:
        """The tolerance as a share of the value scale of the rehearsal, and that scale."""
        return self.index.calibration.as_share(self.question.tolerance, self.view.snapshot.value_scale)

    @cached_property
    def drawn(self) -> Flags:
        """For which queries rows of the lists are drawn, (b,)."""
        return pays(self.index, self.vectors)

    def answers(self, some: Rows) -> Estimate:
        """Estimate some of the queries, as many at once as there is room for their logits."""
        step = self._at_once()
        parts = [only_finite(self._found(some[start : start + step])) for start in range(0, len(some), step)]
        return together(parts)

    def _at_once(self) -> int:
        known = self.index.known
        behind = len(self.view.snapshot.live) - known + len(self.index.strangers)
        most = BROAD
        if self.k is None and not self.question.guarantee:
            most = max(LEVELS[plan.most] for plan in self.plans if plan is not None)
        width = self.view.layout.value_width if self.view.labels is None else len(self.view.labels)
        return max(1, min(TOGETHER, LOGITS // max(1, int(most * known) + behind), SUMS // width))

    def asked(self, some: Rows) -> Asked:
        """Some of the queries, in the form that the lists take."""
        return self._only if self.count == 1 and len(some) == 1 else self._asked(some)

    @cached_property
    def _only(self) -> Asked:
        """The only query: what was computed for it is kept."""
        return self._asked(np.zeros(1, np.int64))

    def _asked(self, some: Rows) -> Asked:
        return Asked(
            self.index.quick,
            self.vectors[some],
            self.added[some],
            self.equal[some].astype(np.float64) if self.suits_form else self.temperatures[some],
            self._score(some, self.compatibility, self.block.vectors, self._lengths(), self.live),
            partial(self._score_some, some),
        )

    def arena(self) -> Readable:
        """The rows of the store."""
        snapshot = self.view.snapshot
        return Readable(
            self.values,
            lambda rows: self.view.blended(snapshot.values(rows)),
            self._verify,
            self.live,
            snapshot.rows,
            snapshot.value_scale,
        )

    def _found(self, some: Rows) -> Estimate:
        arena, asked, tolerance = self.arena(), self.asked(some), self.question.tolerance
        if self.question.guarantee:
            return assured(self.index, arena, asked, tolerance, show=self.show)
        if self.k is not None:
            assert self.depth is not None
            return best(self.index, arena, asked, self.depth, show=max(self.k, self.show))
        plans = [plan for plan in (self.plans[number] for number in some.tolist()) if plan is not None]
        confidence, queries = self.question.confidence, some.tolist()
        stated, (tolerance, scale) = tolerance * arena.scale, self.rehearsed
        found = calibrated(
            self.index,
            replace(arena, scale=scale),
            asked,
            plans,
            self.drawn[some],
            lambda number: self.random(queries[number : number + 1], SCREENED),
            tolerance=tolerance,
            confidence=confidence,
            show=self.show,
        )
        return replace(found, error=np.where(found.sure, stated, found.error))

    def random(self, some: Sequence[int] | Rows, *purpose: int) -> np.random.Generator:
        """What is drawn for some of the queries: it follows from them, a purpose and the secret of the store."""
        snapshot, queries = self.view.snapshot, np.asarray(self.question.queries, np.float32)[some]
        return drawer(snapshot.secret, queries.tobytes().hex(), snapshot.generation, *purpose)

    def presented(self, found: Estimate, some: Rows, way: str) -> Answers:
        """Estimates as answers; the content of those that are not sure means nothing."""
        question, kind = self.question.part(some), self.view.layout.kind
        log_mass, read, used = found.blend.log_mass, found.near.blend, found.blend
        total = log_mass  # what weights are shares of
        scored, rows, logits = found.near.scored, found.near.rows[:, : self.shown], found.near.logits[:, : self.shown]
        if self.k is not None:
            chosen = found.near.rows[:, : self.k]
            read = used = blend_of_rows(self.values, chosen, found.near.logits[:, : self.k])
            scored = (chosen >= 0).sum(1)
            log_mass, total = np.full(len(some), np.nan), read.log_mass
        logits = np.where(rows >= 0, logits, -np.inf).astype(np.float64)
        temperatures = self.temperatures[some]
        answered = Found(
            value=used.value.astype(self.values.dtype or np.float32),
            spread=used.spread,
            log_mass=log_mass,
            effective=np.minimum(used.effective, len(self.view.snapshot)),  # of estimates, that may be more
            mass=np.minimum(np.exp(np.where(read.mass > 0, read.peak, -np.inf) - log_mass) * read.mass, 1.0),
            scored=scored,
            seen=np.full(len(some), len(self.view.snapshot)),
            rows=rows,
            weights=np.exp(logits - total[:, None]),
            scores=np.where(rows >= 0, logits * temperatures[:, None], -np.inf),
            head_weights=None,
            ranked=None,
        )
        error = found.error
        if self.k is not None:  # with this confidence, they are the k best
            error = np.full(len(some), question.tolerance * self.view.snapshot.value_scale)
        if question.guarantee:
            error = error + rounding(self.view, answered, self.block.values, question, gathered=False)
        else:  # where all values are alike, or logits are large, the tolerance may be less than rounding takes
            error = np.maximum(error, summed(self.view, answered, self.block.values, question))
            if self.k is None:
                error = np.maximum(error, MOVED * np.abs(found.blend.peak) * self.view.snapshot.value_scale)
        numbers = isinstance(self.values, Numbers)
        return replace(
            Answers.of(answered, question.temperature, self.view.labels, len(self.view.snapshot), numbers=numbers),
            kind=kind.value,
            error=error,
            error_kind=way,
            log_mass_error=None if self.k is not None else self._log_mass_error(found, question),
            effective_error=found.effective_error,
            spread_error=found.spread_error,
            route=way,
            rows_read=found.near.scored + (0 if found.tried is None else found.tried),
            source=self.view,
        )

    def _log_mass_error(self, found: Estimate, question: Question) -> Floats:
        error: Floats = found.log_mass_error + ROUNDING * (np.abs(found.blend.log_mass) + 1.0)
        return error + moved_logits(self.view, found.blend.log_mass, question) if question.guarantee else error

    def logits(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The logits of all queries with a run of rows, (b, n)."""
        everybody = np.arange(self.count)
        self._verify([Run(start, stop, everybody)])
        found = np.empty((self.count, stop - start), np.float32)
        score = self._score(everybody, self.compatibility, self.block.vectors, self._lengths(), self.live)
        score(everybody, start, stop, found)
        return found

    def _verify(self, runs: Sequence[Run]) -> None:
        """Compare rows with their checksums before they are first read."""
        starts, stops = (np.array([getattr(run, end) for run in runs], np.int64) for end in ("start", "stop"))
        self.view.snapshot.runs(starts, stops)

    def _lengths(self) -> npt.NDArray[np.float32] | None:
        return self.view.inverse_lengths if self.index.form.name == "cosine" else None

    def _score_some(self, some: Rows, rows: Rows) -> Score:
        """The logits of some queries with some rows, gathered a few at a time so that they fit into the caches."""
        lengths, step = self._lengths(), max(1, GATHERED // self.view.layout.key_width)

        def gathered(start: int, stop: int) -> Score:
            here, compared = rows[start:stop], self.compatibility
            if self.question.by_learned or not self.suits_form:
                compared = compatibility_of(self.view.comparing(self.question.compatibility, here))
            inverse = None if lengths is None else lengths[here]
            live = None if self.live is None else self.live[here]
            return self._score(some, compared, self.view.snapshot.vectors(here), inverse, live)

        def remembering(end: int) -> Score:
            """Scores of rows up to `end` that keep the keys copied last, for short runs that follow each other."""
            first, last, held = 0, 0, None

            def score(queries: Rows, start: int, stop: int, out: AnyArray) -> None:
                nonlocal first, last, held
                for at in range(start, stop, step):
                    until = min(at + step, stop)
                    if held is None or at < first or until > last:
                        first, last = at, min(at + step, end)
                        held = gathered(first, last)
                    held(queries, at - first, until - first, out[:, at - start : until - start])

            return score

        alone = remembering(len(rows))

        def score(queries: Rows, start: int, stop: int, out: AnyArray) -> None:
            if stop - start < WORTH_THREADS * step:
                return alone(queries, start, stop, out)
            # All at once, and so by two threads: those below would compare a little each, and wait for each other.
            self.view.snapshot.runs(rows[start:stop], rows[start:stop] + 1)
            return shared(lambda at, end: remembering(end)(queries, at, end, out[:, at - start :]), start, stop)

        return score

    def _score(
        self,
        some: Rows,
        compared: Compatibility,
        keys: Matrix,
        lengths: npt.NDArray[np.float32] | None,
        live: Flags | None,
    ) -> Score:
        """The logits of some of the queries with a run of rows of these keys, of which the live ones count."""
        if self.index.form.measures_distance or not self.suits_form:
            return self._score_by(compared, some, keys, live if compared.cancels else None)
        asked = self.vectors[some].astype(np.float32)

        def score(queries: Rows, start: int, stop: int, out: AnyArray) -> None:
            mine = asked if len(queries) == len(asked) else asked[queries]
            np.matmul(mine, keys[start:stop].T, out=out)
            if lengths is not None:
                out *= lengths[start:stop]

        return score

    def _score_by(self, compatibility: Compatibility, some: Rows, keys: Matrix, live: Flags | None) -> Score:
        asked, sharpness = self.queries[some], (1.0 / self.temperatures[some])[:, None]
        everyone = compatibility.ask(asked, sharpness)

        def score(queries: Rows, start: int, stop: int, out: AnyArray) -> None:
            scorer = everyone
            if len(queries) != len(asked):
                scorer = compatibility.ask(asked[queries], sharpness[queries])
            seen = () if live is None else (live[None, start:stop],)  # the best is one of these
            out[...] = scorer(keys[start:stop], start, *seen)

        return score


def only_finite(found: Estimate) -> Estimate:
    """Estimates of which only finite ones count as sure."""
    finite = np.isfinite(found.blend.total).all(1) & np.isfinite(found.blend.mass) & (found.blend.mass > 0)
    return replace(found, sure=found.sure & finite & np.isfinite(found.error))
