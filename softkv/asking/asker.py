"""Lookups in one commit of a store: fill in the defaults of a question, and answer it by the route chosen for it.

A query is a text, a vector, or many of either. route.py decides how it is answered; this file carries that out.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from softkv.answer import Answer, Answers
from softkv.asking import lists, proposed, sampled
from softkv.asking.embedding import Embedding
from softkv.asking.given import check_promise, comparison_of, require_one, temperatures_of, texts_of, vectors_of
from softkv.asking.heads import Rewritten, of_all_heads
from softkv.asking.joined import joined
from softkv.asking.lists import Asking
from softkv.asking.profile import checked_temperature
from softkv.asking.promised import promised
from softkv.asking.question import CONFIDENCE, LEARNED, TOLERANCE, Compared, Question
from softkv.asking.route import (
    BOUND,
    CALIBRATED,
    LARGE,
    MEASURED,
    NOTHING,
    PLANNED,
    PROPOSED,
    SCAN,
    UNMEASURED,
    UNSURE,
    gathers_rather,
    measures,
    route,
)
from softkv.asking.scan import answer_among, ask_each, require_items, row_equal_to, rows_left, scan
from softkv.asking.view import View
from softkv.comparison import Comparison, Exact, Warmth
from softkv.errors import KindError, ShapeError
from softkv.logs import log_of
from softkv.maths.heads import Heads
from softkv.ndarrays import Flags

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from softkv.asking.asked import Lookup, Many, Nearest, One

LOG = log_of(__name__)
BY_ITEMS = "the guard is about lookups, and not about items that ask all items"
PROBED, MANY = 4, 128  # in a batch of at least MANY queries, PROBED of them tell whether all are unlike those rehearsed
STEPS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0, 16.0, 64.0)  # temperatures of a comparison, as shares of the usual one


def ask(view: View, question: Question) -> Answers:
    """Answer a question, possibly in one batch with questions of other threads."""
    return view.findings.together.ask(view, question.checked(), _ask)


def _ask(view: View, question: Question) -> Answers:
    found = by_route(view, question) if view.elsewhere is None else view.elsewhere(question)
    return replace(_logged(view, found), log_mass_floor=_floor(view, question), **promised(*view.guard, question))


def by_route(view: View, question: Question) -> Answers:
    """Answer a question by the route chosen for it."""
    way, reason = route(view, question)
    if question.heads is not None and way in (CALIBRATED, BOUND, MEASURED):
        # Each head asks a plain question; their answers are projected.
        asked = Rewritten.of(view, question)
        return of_all_heads(view, question, asked, by_route(view, asked.flat(question)))
    if way in (CALIBRATED, BOUND):
        return _by_lists(view, question, reason)
    if way == MEASURED:
        return _among(view, question, reason)
    return _by_proposals(view, question, reason) if way == PROPOSED else scan(view, question, reason)


def _logged(view: View, found: Answers) -> Answers:
    size = view.snapshot.rows * view.layout.key_width
    if size > LARGE and SCAN in found.routes:
        LOG.info("scanned %d numbers for %d queries: %s", size, found.routes[SCAN], found.scanned)
    return found


def _by_lists(view: View, question: Question, reason: str, *, drawn: bool = False) -> Answers:
    """Estimate the queries that suit the lists; measure the others, or scan them if rows were already `drawn`."""
    if _suits_none(view, question, reason):
        return _measured(view, question, None, [UNSURE] * len(question.queries), None)
    found = lists.estimate(view, question, reason, drawn=drawn)
    if not found.refused:
        assert found.answers is not None
        return found.answers
    rest = np.array(sorted(found.refused))
    everyone = len(rest) == len(question.queries)
    others, reasons = question if everyone else question.part(rest), [found.refused[n] for n in rest.tolist()]
    answers = _scanned(view, others, reasons) if drawn else _measured(view, others, None, reasons, found.asking)
    parts = [] if everyone or found.answers is None else [(found.queries, found.answers)]
    return joined([*parts, (rest, answers)], question.temperature)


def _suits_none(view: View, question: Question, reason: str) -> bool:
    """Whether the queries of a large batch are unlike those rehearsed, judged by a few of them."""
    count = len(question.queries)
    if count < MANY or question.guarantee or question.k is not None:
        return False
    some = lists.estimate(view, question.part(np.linspace(0, count - 1, PROBED).astype(np.int64)), reason)
    return list(some.refused.values()) == [UNSURE] * PROBED


def _among(view: View, question: Question, reason: str) -> Answers:
    """Measured answers about the items that a filter or a mask leaves; if only a few are left, scan these."""
    if question.asks_all:
        return _measured(view, question, None, [reason] * len(question.queries), None)
    mask = rows_left(view, question)
    if gathers_rather(int(mask.sum()), view, question):
        return scan(view, question, reason)
    return _measured(view, question, mask, [reason] * len(question.queries), None)


def _measured(view: View, question: Question, mask: Flags | None, reasons: list[str], asking: Asking | None) -> Answers:
    """Measured answers for these reasons, or scans where these cost less; `asking` as another route prepared it."""
    if not measures(view, question):
        return _scanned(view, question, reasons)
    found = sampled.estimate(view, question, mask, _told(reasons), asking)
    assert found.answers is not None
    parts = [(found.queries, found.answers)]
    planned = np.array([number for number in sorted(found.refused) if reasons[number] == PLANNED], np.int64)
    if len(planned):
        parts.append((planned, _by_lists(view, question.part(planned), "drawing some rows would not do", drawn=True)))
    rest = np.setdiff1d(sorted(found.refused), planned).astype(np.int64)
    if len(rest):
        hint = "; a larger tolerance needs fewer" if view.snapshot.value_scale else ""  # else all values are equal
        told = [f"{reasons[number]}, and {UNMEASURED}{hint}" for number in rest.tolist()]
        parts.append((rest, _scanned(view, question.part(rest), told)))
    return found.answers if len(parts) == 1 else joined(parts, question.temperature)


def _scanned(view: View, question: Question, reasons: list[str]) -> Answers:
    """Answers by scans, with these reasons."""
    return replace(scan(view, question, ""), reason=_told(reasons))


def _told(reasons: list[str]) -> str | tuple[str, ...]:
    return reasons[0] if len(set(reasons)) == 1 else tuple(reasons)


def _by_proposals(view: View, question: Question, reason: str) -> Answers:
    """Blend the k best of the rows that another index proposes for each query."""
    candidates = proposed.candidates(view, question)
    if candidates is None:
        return scan(view, question, NOTHING)
    numbers = [np.array([number]) for number in range(len(candidates))]
    parts = [(one, answer_among(view, question.part(one), rows)) for one, rows in zip(numbers, candidates, strict=True)]
    found, seen = joined(parts, question.temperature), np.full(len(parts), len(view.snapshot))
    assert found.mass is not None
    among = found.weights / found.mass[:, None]  # shares of the k: the weight of all other rows is unknown
    unknown: dict[str, Any] = {"error": None, "error_kind": "unknown", "mass": None, "log_mass": np.nan * found.mass}
    return replace(found, **unknown, weights=among, seen=seen, reason=reason)


def _floor(view: View, question: Question) -> float | None:
    """The lowest log mass of the items, each left out; None if it was not measured for this kind of question."""
    compared, temperature = question.compatibility, question.temperature
    if not question.asks_all or question.heads is not None or not isinstance(compared, str) or np.ndim(temperature):
        return None
    known = view.known_temperature(compared)
    return known.floor_among(len(view.snapshot)) if known is not None and known.value == temperature else None


class Asker(ABC):
    """Ways to look up by likeness in one commit of a store."""

    _embedding: Embedding

    @abstractmethod
    def _view(self) -> View:
        """The commit to read."""

    @overload
    def lookup(self, query: "One", **options: "Unpack[Lookup]") -> Answer: ...
    @overload
    def lookup(self, query: "Many", **options: "Unpack[Lookup]") -> Answers: ...
    @overload
    def lookup(self, query: Any, **options: "Unpack[Lookup]") -> Any: ...
    def lookup(
        self,
        query: Any,
        *,
        k: int | None = None,
        temperature: Any = None,
        compatibility: Compared | None = None,
        tolerance: float = TOLERANCE,
        confidence: float = CONFIDENCE,
        guarantee: str | None = None,
        where: Mapping[str, Any] | None = None,
        mask: Any = None,
        heads: Heads | None = None,
        projection: bool = True,
        show: int = 10,
        partial: bool = False,
    ) -> Any:
        """Look a query up softly: the average of all values, each weighted by how well its key compares.

        Args:
            query: A text or a vector gives an Answer; a list of texts or a matrix gives Answers.
            k: Blend only the k heaviest items; `mass` then says what share of all they hold.
            temperature: What scores are divided by; one, or one for each query. By default that of the store (`info`).
            compatibility: Another way to compare than that of the store.
            tolerance: How far the value may be from that of the exact full softmax, as a share of the value scale.
            confidence: How sure that is to be, where the answer is estimated.
            guarantee: "bound" for an error that always holds, whatever is asked; by default it holds as surely as
                `confidence` says, for queries like those that the index was calibrated on. Without an index, with
                `tolerance=0`, and where a promise could not be kept otherwise, all items are scanned.
            where: Only items whose payload matches, such as {"year": {"$gte": 2000}}.
            mask: Boolean, (items,) or (queries, items) in the order of the store: True where a query may see an item.
            heads: Learned projections, several lookups at once, by scaled_dot at temperature 1 unless others are given.
            projection: Compare as the store has learned to (`fit`), if it has, and not by another compatibility or with
                heads; the temperature is then 1, unless given. False compares as if it had never learned.
            show: How many of the heaviest items to name as contributors.
            partial: Where shards of a cluster do not answer, estimate from the others, and state `out_of_reach`.
        """
        check_promise(tolerance, confidence, guarantee)
        view = self._asked_view(partial=partial)
        queries, rounded, one = self._queries(view, query, compatibility, heads)
        compared = self._compared(view, compatibility, heads, projection)
        question = Question(
            queries,
            compatibility=compared,
            temperature=self._temperature(view, temperature, compared, heads),
            k=k,
            where=where,
            mask=mask,
            heads=heads,
            show=show,
            rounded=rounded,
            tolerance=tolerance,
            confidence=confidence,
            guarantee=guarantee,
        )
        found = ask(view, question)
        return found[0] if one else found

    @overload
    def nearest(self, query: "One", **options: "Unpack[Nearest]") -> Answer: ...
    @overload
    def nearest(self, query: "Many", **options: "Unpack[Nearest]") -> Answers: ...
    @overload
    def nearest(self, query: Any, **options: "Unpack[Nearest]") -> Any: ...
    def nearest(
        self,
        query: Any,
        *,
        temperature: Any = None,
        compatibility: Compared | None = None,
        where: Mapping[str, Any] | None = None,
        mask: Any = None,
        projection: bool = True,
        tolerance: float = 0.0,
    ) -> Any:
        """Look a query up the hard way: the best key takes all. An Answer with one contributor, or Answers of such.

        With a `tolerance`, the best key is one that the index found, which it is with confidence 0.95.
        """
        options: dict[str, Any] = {"temperature": temperature, "compatibility": compatibility, "tolerance": tolerance}
        return self.lookup(query, k=1, where=where, mask=mask, projection=projection, show=1, **options)

    def compare(
        self,
        query: Any,
        *,
        k: int = 10,
        temperature: float | None = None,
        compatibility: Compared | None = None,
        where: Mapping[str, Any] | None = None,
        projection: bool = True,
        show: int = 10,
        tolerance: float = TOLERANCE,
        confidence: float = CONFIDENCE,
    ) -> Comparison:
        """Look one query up in every way: by equality, the best key, the k best, and all; also at other temperatures.

        By equality means that a text is a key of the store, or that a vector is, number by number, a key vector. With
        an index answers are estimated, each as `lookup` would; `tolerance=0` looks at all items.
        """
        check_promise(tolerance, confidence, None)
        view = self._asked_view()
        queries, rounded, one = self._queries(view, query, compatibility, None)
        require_one(one)
        compared = self._compared(view, compatibility, None, projection)
        usual = checked_temperature(self._temperature(view, temperature, compared, None))
        soft = Question(
            queries,
            compatibility=compared,
            temperature=usual,
            where=where,
            show=show,
            rounded=rounded,
            tolerance=tolerance,
            confidence=confidence,
        )
        strip = replace(soft.part(np.zeros(len(STEPS), np.int64)), temperature=usual * np.array(STEPS), show=1)
        return Comparison(
            exact=self._equal(view, query),
            hard=ask(view, replace(soft, k=1, show=1))[0],
            top_k=ask(view, replace(soft, k=k))[0],
            soft=ask(view, soft)[0],
            strip=tuple(Warmth.of(answer) for answer in ask(view, strip)),
        )

    def self_attention(
        self,
        *,
        causal: bool = False,
        temperature: Any = None,
        compatibility: Compared | None = None,
        k: int | None = None,
        mask: Any = None,
        heads: Heads | None = None,
        show: int = 10,
    ) -> Answers:
        """Every item asks all items, itself included, in the order of the store; `causal`: only those up to itself."""
        view = self._asked_view()
        compared = self._compared(view, compatibility, heads, False)
        asked = Question(
            None,
            compatibility=compared,
            temperature=self._temperature(view, temperature, compared, heads),
            k=k,
            mask=mask,
            causal=causal,
            heads=heads,
            show=show,
        )
        found = _logged(view, ask_each(view, asked))
        return found if view.guard[0] is None else replace(found, unguarded=BY_ITEMS)

    def _partial_view(self) -> View:
        """The commit of those shards that answer; a single store is always complete."""
        return self._view()

    def _asked_view(self, *, partial: bool = False) -> View:
        view = self._partial_view() if partial else self._view()
        require_items(view.snapshot)
        return view

    def _queries(
        self, view: View, query: Any, compatibility: Compared | None, heads: Heads | None
    ) -> tuple[Any, Any, bool]:
        """The queries as a matrix, how far its numbers are from those given, and whether there was one, not a batch."""
        texts = texts_of(query)
        if texts is not None:
            embedded = self._embedding.queries(texts, view.profile.embedder, view.layout.key_width)
            return embedded, 0.0, isinstance(query, str)
        array = vectors_of(query)
        if array.shape == (0,):  # an empty list asks nothing, be it of texts or of vectors
            array = np.empty((0, getattr(heads, "query_width", view.layout.key_width)), np.float32)
        free = heads is not None or not (compatibility is None or isinstance(compatibility, str))
        if array.shape[-1] != view.layout.key_width and not free:
            known = view.profile.embedder
            made = "" if known is None else f" (embedder {known.name!r})"
            raise ShapeError(
                f"the query has width {array.shape[-1]}, but this store holds keys of width {view.layout.key_width}"
                f"{made}. Embed it with the same model, or open another store."
            )
        given = np.atleast_2d(array)
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by name, in the lookup
            queries = given.astype(np.float32)
            return queries, np.abs(given - queries), array.ndim == 1

    def _compared(self, view: View, given: Compared | None, heads: Heads | None, projection: bool) -> Compared:
        if heads is not None and not isinstance(heads, Heads):
            raise KindError(
                f"expected heads to be softkv.Heads, got {type(heads).__name__}. Stack the projections in it."
            )
        if not isinstance(projection, bool):
            raise KindError(f"expected projection to be True or False, got {projection!r}. Learn one with `fit`.")
        if given is not None:
            return comparison_of(given)
        if projection and heads is None and view.learned is not None:
            return LEARNED
        return "scaled_dot" if heads is not None else view.profile.compatibility or "dot"

    def _temperature(self, view: View, given: Any, compared: Compared, heads: Heads | None) -> Any:
        if given is not None:
            return temperatures_of(given)
        # The scores of a function, a matrix or what was learned have a scale of their own, which is not ours to choose.
        known = isinstance(compared, str) and compared != LEARNED and heads is None
        return view.temperature(str(compared)).value if known else 1.0

    def _equal(self, view: View, query: Any) -> Exact | None:
        snapshot = view.snapshot
        if isinstance(query, str):
            item = snapshot.get(query) if query in snapshot else None
        else:
            row = row_equal_to(snapshot, np.asarray(query, np.float32))
            item = None if row is None else snapshot.items([row])[0]
        return None if item is None else Exact(item.name, item.value, item.payload)
