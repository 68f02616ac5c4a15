"""Answer queries by lists that are opened as a plan of the calibration says; the others are estimated.

A query unlike those that the plan was made with gets no answer. Where the index has an outline of its rows, a long list
of lists is screened (screening.py): by then the plan keeps to a part of the tolerance, and what is drawn to the rest.

Shapes: b queries, l lists.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from softkv.index.calibration import Plan
from softkv.index.lists import ListIndex
from softkv.index.measuring import FLOOR
from softkv.index.opening import Opening, closed, opening
from softkv.index.opening import nearest as nearest_lists
from softkv.index.screening import Screened, screened
from softkv.index.search import (
    Asked,
    Estimate,
    Readable,
    both,
    joined_of,
    lists_alike,
    part_of,
    points_at_items,
    read_lists,
    replaced,
    some_of,
    tail_of,
)
from softkv.index.strata import LOG_MASS
from softkv.maths.blas import shared
from softkv.maths.blending import Numbers, merge
from softkv.maths.farfield import estimated, log_mass_of_frozen
from softkv.maths.nearfield import Near
from softkv.maths.quantiles import quantile
from softkv.ndarrays import Counts, Flags, Floats, Reals, Rows

LEAST = FLOOR * LOG_MASS  # the least error of a log mass to state, as in measured answers
HARMLESS = 0.05  # a doubt below this share of the tolerance does not count
AHEAD = 64  # with so many lists to read, the likeliest are read first, since they may show that the plan does not apply
LIGHTEST = 7.0  # rows that are read may weigh e^LIGHTEST times less than others on average; else too much is expected
GUESSED = 0.1  # frozen lists that are not opened may hold this share of the mass, more if its stated error has room
PLANNED = 0.7  # the share of the tolerance that a plan may use up where other rows are drawn
DRAWN = 0.1  # by chance, the error of what is drawn is larger than stated for so many times as few queries as may be


def calibrated(
    index: ListIndex,
    arena: Readable,
    asked: Asked,
    plans: Sequence[Plan],
    drawn: Flags,
    random: Callable[[int], np.random.Generator],
    *,
    tolerance: float,
    confidence: float,
    show: int,
) -> Estimate:
    """Estimates as their plans say, each with an error below the tolerance, a share of the scale of the arena.

    That is the value scale of the rehearsal, whatever it is by now.

    The stated error is the tolerance. The measured error of the plan is smaller; the difference is room for queries
    that are a little unlike those it was measured on, and for the error of rows that are drawn for those queries
    for which `drawn`, (b,), says so, by `random` of their numbers.
    """
    usual = near_enough(index, asked, plans)
    if not usual.any():  # so it costs little to find out that a query is unlike the items
        return _refused(_nothing(index, arena, asked, show))
    alike = lists_alike(index, arena, asked, tolerance)
    course = course_of(index, asked, plans, alike, scale=arena.scale, tolerance=tolerance)
    opened, stops, mass_doubts, nearest = course.opened, course.stops, course.mass_doubts, _nearest_of(plans)
    sure = usual & course.suits
    long, error = np.flatnonzero(sure & (stops > AHEAD)), np.array([plan.error for plan in plans])
    by_outline: dict[int, Screened] = {}
    starts, ahead = np.zeros_like(stops), None
    if len(long):
        firsts = opened.firsts.tolist()
        starts[long] = opened.firsts[long]
        first = [opened.order[number, : firsts[number]] for number in long.tolist()]
        ahead = read_lists(index, arena, part_of(asked, long), first, show)
        sure[long] = ahead.blend.peak * asked.temperatures[long] >= nearest[long]
        allowed = (tolerance - error) / _deviations(confidence)
        kept = np.flatnonzero(sure[long] & drawn[long])
        others = [opened.order[number, firsts[number] : stops[number]] for number in long[kept].tolist()]
        by_outline = _screened(
            index, arena, asked, opened, others, long[kept], some_of(ahead, kept), allowed, random, show
        )
    stops[~sure] = 0  # nothing need be read for queries without an answer
    if not sure.any():
        return _refused(_nothing(index, arena, asked, show))
    whole = stops.copy()
    whole[list(by_outline)] = 0
    lists = [order[start:stop] for order, start, stop in zip(opened.order, starts, whole, strict=True)]
    nothing = _nothing(index, arena, asked, show) if by_outline else None
    near = read_lists(index, arena, asked, lists, show) if nothing is None or whole.any() else nothing
    if ahead is not None:
        near = replaced(near, long, both(ahead, some_of(near, long), show))
    if nothing is not None:
        numbers, parts = np.array(list(by_outline)), list(by_outline.values())
        unread = replaced(nothing.blend, numbers, joined_of([one.unread for one in parts]))
        near = replaced(near, numbers, joined_of([one.near for one in parts]))
    sure &= near.blend.peak * asked.temperatures >= nearest
    if not sure.any():
        return _refused(near)
    unopened = closed(opened.order, stops, len(index.quick.counts))
    far = estimated(index.quick, asked.tilt, unopened, squares=isinstance(arena.values, Numbers))
    found_out = near.blend if nothing is None else merge(near.blend, unread)
    blend = merge(found_out, index.units.back(replace(far, peak=far.peak + asked.added)))
    # The lists that are opened are those of which most is expected.
    share = np.log(np.maximum(near.scored, 1)) - math.log(max(arena.rows, 1))
    sure &= found_out.log_mass - blend.log_mass >= share - LIGHTEST
    surprise = np.abs(blend.log_mass - opened.log_mass - asked.added)
    sure &= np.array([plan.surprise for plan in plans]) >= surprise
    error, doubtful = error * arena.scale, zip(plans, mass_doubts.tolist(), strict=True)
    log_mass_error = np.array([plan.log_mass_error_of(doubt) for plan, doubt in doubtful])
    for number, one in by_outline.items():
        of_value, of_mass = one.deviations(some_of(blend, np.array([number])))
        error[number] += _deviations(confidence) * of_value
        log_mass_error[number] += _deviations(confidence) * of_mass
    # Doubts are shares of the mass that was expected. Where far less is found in the lists that were opened, what was
    # negligible beside it may be most of the answer. Without it, the mass would be off by more than is stated.
    guessed = np.exp(log_mass_of_frozen(asked.tilt, unopened) + asked.added - blend.log_mass)
    sure &= guessed <= np.maximum(GUESSED, -np.expm1(-log_mass_error))
    found = Estimate(near, blend, error, log_mass_error, sure)
    if sure.any():
        found = _with_tail(index, arena, asked, found, show)
    stated = np.full(len(plans), tolerance * arena.scale)
    sure = found.sure & (found.error <= stated)
    return replace(found, error=stated, log_mass_error=np.maximum(found.log_mass_error, LEAST), sure=sure)


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """How far each query follows its plan."""

    opened: Opening
    stops: Counts  # (b,), how many lists it opens, in their order
    mass_doubts: Reals  # (b,), the expected error of the mass then, as a share of it
    suits: Flags  # (b,), whether no more error is expected then than of those that the plan was made with


def course_of(
    index: ListIndex, asked: Asked, plans: Sequence[Plan], alike: Counts | None, *, scale: float, tolerance: float
) -> Course:
    """Which lists are opened for each query, those `alike`, (b, m), in any case; `scale` is that of the rehearsal."""
    near = _near(index, asked)
    if alike is not None:
        near = np.hstack([near, alike]) if near is not None else alike
    opened = opening(
        index.quick, asked.tilt, scale=scale / index.units.size, near=near, made_of=index.made_of, likely=asked.likely
    )
    # A doubt that is tiny beside the tolerance does not count, even if those of the rehearsal were tinier.
    farthest = np.maximum([plan.farthest for plan in plans], HARMLESS * tolerance)
    each = zip(plans, opened.doubts, farthest.tolist(), strict=True)
    levels = np.array([[plan.goes_on(mine, most)] for plan, mine, most in each], np.int64)
    doubts, mass_doubts = (np.take_along_axis(x, levels, axis=1)[:, 0] for x in (opened.doubts, opened.mass_doubts))
    stops = np.take_along_axis(opened.stops, levels, axis=1)[:, 0]
    return Course(opened, stops, mass_doubts, farthest >= doubts)


def _nearest_of(plans: Sequence[Plan]) -> Floats:
    """The lowest usual best score by each plan."""
    return np.array([plan.nearest for plan in plans])


def near_enough(index: ListIndex, asked: Asked, plans: Sequence[Plan]) -> Flags:
    """Whether an item is expected to be as near to each query as is usual, (b,)."""
    found: Flags = (asked.likely.max(1) + asked.added) * asked.temperatures >= _nearest_of(plans)
    return found & points_at_items(index, asked)


def _deviations(confidence: float) -> float:
    """How many standard errors what is drawn may be off, so that hardly more answers are off than may be."""
    return math.sqrt(quantile(1.0, 1.0 - DRAWN * (1.0 - confidence)))


def _near(index: ListIndex, asked: Asked) -> Rows | None:
    """The lists nearest to each query that are opened in any case, as many as in the rehearsal."""
    count, by_distance = int(index.calibration.near[0]), index.form.measures_distance
    return nearest_lists(asked.lists, asked.tilt, asked.vectors, count, by_distance=by_distance) if count else None


def _screened(
    index: ListIndex,
    arena: Readable,
    asked: Asked,
    opened: Opening,
    others: Sequence[Rows],
    numbers: Rows,
    ahead: Near,
    allowed: Floats,
    random: Callable[[int], np.random.Generator],
    show: int,
) -> dict[int, Screened]:
    """What is read by the outline for queries of these numbers; those for which that takes no less time are left out.

    `others` are their lists, `ahead` the sums over those that were read before, and `allowed`, (b,), is how large the
    standard error of each query may be, as a share of the value scale.
    """
    outline = index.outline
    if outline is None:
        return {}
    unit = index.units.size / arena.scale if arena.scale else 0.0
    far = np.sqrt(np.square(opened.apart[numbers]) + index.quick.scatter) * unit
    found: list[Screened | None] = [None] * len(numbers)

    def screen(place: int) -> Screened | None:
        number = numbers[[place]]
        one = asked if len(asked.vectors) == 1 else part_of(asked, number)
        return screened(
            index,
            outline,
            arena,
            one,
            some_of(asked.tilt, number),
            others[place],
            far[place, others[place]],
            some_of(ahead, np.array([place])),
            allowed=float(allowed[number[0]]),
            random=random(int(number[0])),
            show=show,
        )

    def screen_some(first: int, last: int) -> None:
        with np.errstate(
            over="ignore", invalid="ignore", divide="ignore"
        ):  # a thread does not take over what is ignored
            found[first:last] = [screen(place) for place in range(first, last)]

    shared(screen_some, 0, len(numbers))
    return {int(number): one for number, one in zip(numbers, found, strict=True) if one is not None}


def _nothing(index: ListIndex, arena: Readable, asked: Asked, show: int) -> Near:
    """The sums over no rows."""
    return read_lists(index, arena, asked, [np.empty(0, np.int64)] * len(asked.vectors), show)


def _refused(near: Near) -> Estimate:
    """Estimates that are not sure, beside what was read for them."""
    unknown = np.full(len(near.scored), np.inf)
    return Estimate(near, near.blend, unknown, unknown, unknown < 0)


def _with_tail(index: ListIndex, arena: Readable, asked: Asked, found: Estimate, show: int) -> Estimate:
    """Estimates with the rows of no list."""
    tail = tail_of(index, arena, asked, show)
    if tail is None or not tail.scored.any():
        return found
    blend = merge(found.blend, tail.blend)
    # The error of the lists counts by their share, which is larger if their mass is larger than estimated; so does the
    # error of their mass, against the values of the others. A query with an infinite error is not sure.
    share = np.exp(np.minimum(found.blend.log_mass - blend.log_mass, 0.0))
    apart = np.linalg.norm(found.blend.value - blend.value, axis=1)
    grown = share * np.expm1(found.log_mass_error)
    error = (share + grown) / (1.0 + grown) * found.error + grown * apart
    return Estimate(both(found.near, tail, show), blend, error, np.log1p(grown), found.sure & np.isfinite(grown))
