"""How a question is answered, and why: the only place that decides it.

    gather      compare the few rows that a filter or a mask leaves
    scan        compare all rows
    calibrated  by the lists of the index, with an error found in its rehearsal
    measured    by rows drawn from the lists of the index, with an error estimated from these rows
    bound       by the lists of the index, with an error that always holds
    proposed    score the rows that another index proposes, for the k best

For lists there are two conditions: the question has to suit the index, and each query has to be like those rehearsed.
A query that is not, or whose estimate turns out not to be sure, is measured if that is faster than a scan, and scanned
otherwise; its reason says so.

Does not answer anything.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from softkv.asking.given import array_of
from softkv.asking.planes import reads_planes
from softkv.asking.question import Question
from softkv.asking.view import View
from softkv.index.calibration import BEST
from softkv.index.lists import OUTGROWN, ListIndex
from softkv.index.measuring import TOGETHER
from softkv.maths.compatibility import COMPATIBILITIES, compatibility_of
from softkv.maths.forms import form_of

GATHER, SCAN, CALIBRATED, MEASURED = "gather", "scan", "calibrated", "measured"
BOUND, PROPOSED = "bound", "proposed"
GATHERED, ALONE = 4, 16  # rows are gathered if they are at most one in so many: for several queries, for one
MOST_LOOSE = 0.5  # the share of rows in no list up to which lists are asked
COPIED = 3  # gathering a row takes so many times as long as reading it in place
CHEAP = 1 << 24  # numbers in keys: up to so many, a scan takes no longer than finding out which lists to read
LARGE = 1 << 26  # numbers: a scan that reads more is slow, and a hint says so
FEW = ""  # the reason for scanning so few items needs no words
UNSURE = "the query is unlike those rehearsed; `softkv index build --queries` rehearses others"
DEAR = "the bound would need most rows; a larger tolerance needs fewer"
NOTHING = "the index proposed no rows"
FILTERED = "the index was not rehearsed for some of the items"
PLANNED = "so many rows would be read as rehearsed that drawing some takes less time"
MOST_READ = "so many rows would be read as rehearsed that a scan takes no longer"
CHANGED = (
    "few items are among the {} best of most queries, and others may be by now; `softkv index build` rehearses again"
)
SPREAD = "to find the {} best by the index as surely as asked for takes as long as a scan"
UNMEASURED = "so many rows would have to be drawn that all are read"
MOST_DRAWN = 0.4  # a scan replaces a draw of more than this share of the rows
# The time that drawing takes, as how many numbers of keys a scan reads in it.
STARTED, STARTED_EACH = 47_000_000, 8_000_000  # to find out how many to draw, for a draw and for each of its queries
DRAWN, DRAWN_NUMBER = 500, 7.0  # for each row, and each of its numbers
BY_THREADS = 0.5  # the share of that for the rows of one query, which are read by several threads
ASKED_NUMBER = 1.0  # for each number of a row, for each query
BATCHED = 7  # a scan takes so many times less for one of many queries than for one alone
# Reading a row in a list counts so many times as much as in a scan, beside drawing: for one query, for each of several.
LISTED = 2.0, 1.0
OUTLINED = 100  # and a row that is screened takes as long as reading so many numbers, whatever their width
SCATTERED = 4.0  # and when compared with a scan of few numbers
TYPICAL = 22_000  # rows that an ordinary query draws
FINEST = 1e-5  # a tolerance below this is one that rounding in float32 does not keep


class Route(NamedTuple):
    """A way to answer, and why: the fact that decided it, and how to change that."""

    way: str
    reason: str


def is_cheap(view: View) -> bool:
    """Whether a scan is at least as fast as any other route."""
    return view.snapshot.rows * view.layout.key_width <= CHEAP


def gathers(rows: int, view: View, queries: int) -> bool:
    """Whether so few rows are left that only these are copied and compared.

    Copying a row takes as long as comparing it, in place, with several queries.
    """
    return rows * max(GATHERED, ALONE // max(1, queries)) <= view.snapshot.rows


def route(view: View, question: Question) -> Route:
    """The route of a question: by an index if one suits it, else by a scan."""
    why = _against_estimates(view, question)
    if why is not None:
        return Route(SCAN, why)
    why = _against_lists(view, question)
    if why is None:
        why = _against_form(view, question) or _against_rehearsals(view, question)
        if why is None:
            return Route(question.guarantee or CALIBRATED, "the index was built for this")
        if measures(view, question) and is_known(view, question):
            return Route(MEASURED, why)
    if _suits_proposer(view, question):
        proposer, problem = view.proposer_or_problem
        if proposer is not None:
            return Route(PROPOSED, "the index proposes rows for the k best")
        why = problem or why
    return Route(SCAN, why)


def _against_estimates(view: View, question: Question) -> str | None:
    """Why all items have to be read, even with an index."""
    if not len(question.queries) or is_cheap(view):
        return FEW
    if question.tolerance < FINEST:
        return f"tolerance {question.tolerance:g} asks for all items"
    masked = question.mask is not None and (
        array_of(question.mask, "rows of `mask`").ndim != 1 or not measures(view, question)
    )
    if question.causal or masked:
        return "a mask is applied to all items"
    if question.where is not None and not measures(view, question):
        return f"a filter is applied to all items{', as a bound needs' if question.guarantee else ''}"
    return None


def _against_lists(view: View, question: Question) -> str | None:
    """Why lists cannot answer a question; they answer plain lookups over all items, and heads of such lookups."""
    if question.k is not None and (question.guarantee or question.heads is not None):
        return f"the k best {'with a guarantee' if question.guarantee else 'of heads'} are found among all items"
    if question.heads is not None and view.layout.kind.coded:
        return "heads do not project labels"
    if reads_planes(view, question):
        return "planes are read off all items; `softkv fit --no-planes` does without"
    if view.index is None:
        if question.heads is None and form_of(question.compatibility) is None:
            return _against_form(view, question)
        problem = view.index_as_written.problem
        return f"the index cannot be used: {problem}" if problem else "there is no index; `softkv index build`"
    return against_loose(view.bounding_index if question.guarantee else view.index, view.snapshot.rows)


def _against_form(view: View, question: Question) -> str | None:
    """Why the statistics of the lists do not apply to a question that would use the lists."""
    form = "dot" if question.heads is not None else form_of(question.compatibility)
    if form is None:
        name = compatibility_of(question.compatibility).name
        return (
            f"no index is for {name}; it is for {', '.join(one.name for one in COMPATIBILITIES.values() if one.form)}"
        )
    if suits_form(view.index, question):
        return None
    built = "" if view.index is None else view.index.form.compatibility
    return f"the index was built for {built}; `softkv index build` makes one for how the store compares"


def suits_form(index: ListIndex | None, question: Question) -> bool:
    """Whether an index was built for a way to compare like that of a question."""
    form = "dot" if question.heads is not None else form_of(question.compatibility)
    return index is not None and index.form.name == form


def is_known(view: View, question: Question) -> bool:
    """Whether rows may be drawn for a way to compare: the index was built for it, or it is one of softkv's own.

    For what was learned since, and for heads, only those of an index that was built for it.
    Where lists are of directions, and the way to compare goes by lengths as well, or the other way round, these have to
    be alike: a few rows of a list do not show that a far longer one of them holds all of the mass.
    """
    if question.heads is not None or question.by_learned or suits_form(view.index, question):
        return suits_form(view.index, question)
    if not isinstance(question.compatibility, str) and form_of(question.compatibility) is None:
        return False
    assert view.index is not None
    same = view.index.form.of_directions == (compatibility_of(question.compatibility).degree == 0)
    return same or view.has_alike_keys


def _against_rehearsals(view: View, question: Question) -> str | None:
    """Why the rehearsal does not apply to a question that suits the lists."""
    if question.guarantee:
        return None
    return against_calibration(view, question.k) or (None if question.asks_all else FILTERED)


def against_calibration(view: View, k: int | None = None) -> str | None:
    """Why the calibration of the index no longer holds; with `k`, that of the k best."""
    verdict = view.verdict
    if view.uncalibrated or verdict is None or not (verdict.withdrawn or (k is not None and verdict.lost(k))):
        return view.uncalibrated
    return f"the calibration of the index no longer holds: {verdict}; `softkv index build`"


def against_loose(index: ListIndex | None, rows: int) -> str | None:
    """Why a scan is as fast as the lists together with the rows that are in no list, which every query reads."""
    if index is None:
        return None
    behind, apart = rows - index.known, len(index.strangers)
    if behind + COPIED * apart <= MOST_LOOSE * rows:
        return None
    return f"{behind + apart:,} of {rows:,} rows are in no list; `softkv index build` puts them into some"


def worth_drawing(view: View, queries: int) -> float:
    """How many rows each of so many queries may draw before a scan takes less time; at most 0 if a scan always does."""
    started, each = _drawing(view, queries)
    scanned = view.snapshot.rows * view.layout.key_width * _for_each(queries)
    return min((scanned - started) / each, MOST_DRAWN * view.snapshot.rows)


def listed_as_drawn(view: View, queries: int) -> float:
    """What a row of a whole list takes, as a share of a drawn one: enough to keep to the largest share of all rows."""
    _, each = _drawing(view, queries)
    least = worth_drawing(view, queries) / (MOST_DRAWN * view.snapshot.rows)
    return min(1.0, max(LISTED[queries > 1] * numbers_of(view) / each, least))


def _for_each(queries: int) -> float:
    """What a scan for so many queries takes for each, beside a scan for one alone."""
    return 1.0 / min(BATCHED, math.sqrt(queries))


def _drawing(view: View, queries: int) -> tuple[float, float]:
    """The cost of drawing for each of so many queries: at the start, and for each row."""
    layout, shared = view.layout, min(queries, TOGETHER)
    numbers = layout.key_width + (0 if layout.kind.coded else 2 * layout.value_width)
    row = (DRAWN + DRAWN_NUMBER * numbers) * (BY_THREADS if queries == 1 else 1.0 / shared)
    return STARTED / shared + STARTED_EACH, row + ASKED_NUMBER * numbers


def gathers_rather(rows: int, view: View, question: Question) -> bool:
    """Whether gathering the rows that are left takes less time than drawing as many as usual."""
    count = len(question.queries)
    started, each = _drawing(view, count)
    compared = COPIED / count + _for_each(count)
    return gathers(rows, view, count) and rows * numbers_of(view) * compared <= started + TYPICAL * each


def against_plan(
    view: View, question: Question, share: float, *, drawn: bool = False, screened: bool = False
) -> str | None:
    """Why lists are not read as planned if that takes this share of their rows.

    `drawn` is whether drawing was tried before, and `screened` whether an outline tells which of the rows to read.
    """
    index, rows = view.index, view.snapshot.rows
    assert index is not None
    planned = share * (min(numbers_of(view), OUTLINED) if screened else numbers_of(view))
    if not drawn and measures(view, question):
        started, each = _drawing(view, len(question.queries))
        if LISTED[len(question.queries) > 1] * planned * rows > started + TYPICAL * each:
            return PLANNED
    return MOST_READ if takes_as_long(view, planned) else None


def takes_as_long(view: View, planned: float) -> bool:
    """Whether reading so many numbers, for each row that is in a list, takes no less time than a scan."""
    index, rows, numbers = view.index, view.snapshot.rows, numbers_of(view)
    assert index is not None
    read = planned * index.known + ((rows - index.known) + COPIED * len(index.strangers)) * numbers
    return CHEAP + SCATTERED * read > rows * numbers


def numbers_of(view: View) -> int:
    """How many numbers a row has, in its key and its value."""
    return view.layout.key_width + (0 if view.layout.kind.coded else view.layout.value_width)


def measures(view: View, question: Question) -> bool:
    """Whether rows may be drawn for a question that suits the lists."""
    plain = question.k is None and question.guarantee is None
    return plain and worth_drawing(view, len(question.queries)) > 0


def _suits_proposer(view: View, question: Question) -> bool:
    """Whether another index can propose the k best: it is built for the way in which the store compares."""
    if question.k is None or question.guarantee or question.heads is not None:
        return False
    form = form_of(question.compatibility)
    return form is not None and form == form_of(view.profile.compatibility)


def unrehearsed(index: ListIndex, question: Question, temperature: float, equal: float) -> str:
    """Why a query at this temperature, which counts as `equal` in rehearsals, was not rehearsed."""
    if not math.isfinite(equal):
        return "queries of this length were not rehearsed; `softkv index build --queries` rehearses others"
    calibration = index.calibration
    if question.k is not None and index.grown > OUTGROWN:
        return f"the best of {index.grown:.1f} times as many items were not rehearsed; `softkv index build` does"
    if question.k is not None and question.k > BEST[-1]:
        return f"at most the {BEST[-1]} best are found by the index, and {question.k:,} were not rehearsed"
    if question.k is not None:
        kept = calibration.depth(question.k, question.confidence, grown=index.grown) is not None
        return (CHANGED if kept else SPREAD).format(question.k)
    low, high = (float(one) * temperature / equal for one in calibration.temperatures[[0, -1]])
    if low <= temperature <= high:
        sure = f"{100 * question.confidence:.15g}%"
        if not calibration.can_be(question.confidence):
            return f"too few queries were rehearsed to be {sure} sure; `softkv index build --queries` takes more"
        return f"no plan keeps within {question.tolerance:g} for {sure}; a larger tolerance is kept"
    wider = f"{_rounded(min(low, temperature), math.floor)} {_rounded(max(high, temperature), math.ceil)}"
    return (
        f"temperature {temperature:.3g} was not rehearsed ({low:.3g} to {high:.3g}); "
        f"`softkv index build --temperatures {wider}`"
    )


def _rounded(temperature: float, towards: Callable[[float], int]) -> str:
    """Three digits of a temperature, rounded so that a range goes at least as far."""
    unit = 10.0 ** max(-300, math.floor(math.log10(temperature)) - 2)
    return f"{towards(temperature / unit) * unit:.3g}"
