"""Choose a temperature: the one at which the items, left out one at a time, are best predicted by the others.

Temperatures a quarter of an octave apart, around the one by rule, are tried in one pass over all scores; more are tried
while the best lies at an edge; and in the end some between the best and its neighbours. Other compatibilities, and
numbers of best rows, are tried in the same way if asked for.

Does not store the choice (database/training.py).

Shapes: n items, d key width, p value width, t temperatures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softkv.learning.leaving import Losses, Scores, left_out
from softkv.learning.temperature import ASKED, SCORED, asked_of, finest_temperature, unit_of_scores
from softkv.maths.compatibility import Compatibility, compatibility_of
from softkv.ndarrays import Flags, Floats, Reals, Rows
from softkv.portrait import Share, as_table
from softkv.progress import Progress

STEP = 2.0**0.25  # ratio of one temperature to the one before
STEPS = 10  # temperatures tried on each side of the first
FINER = 5  # temperatures tried between the best and each of its neighbours
AGAIN = 6  # how often the range may be extended

Lose = Callable[[Floats], Losses]  # temperatures -> losses
BAR = 40  # characters of the longest bar


def told(measure: str, *losses: float) -> str:
    """A loss, or one instead of another, as text; squared errors also as RMSE, which `evaluate` gives."""
    text = f"{measure} {' instead of '.join(f'{loss:.4g}' for loss in losses)}"
    roots = " instead of ".join(f"{loss**0.5:.4g}" for loss in losses)
    return f"{text} (RMSE {roots})" if measure == "squared error" else text


@dataclass(frozen=True, slots=True)
class Curve:
    """The loss at each temperature that was tried, for one compatibility, with the k best rows, or all (k is None)."""

    compatibility: str
    k: int | None
    temperatures: tuple[float, ...]
    losses: tuple[float, ...]
    lowest: tuple[float, ...] = ()  # the lowest log mass of an item, computed with all rows whatever k is

    @property
    def best(self) -> tuple[float, float]:
        """The lowest loss and its temperature; of equal losses the one at the highest temperature."""
        return min(zip(self.losses, self.temperatures, strict=True), key=lambda pair: (pair[0], -pair[1]))


@dataclass(frozen=True, slots=True)
class Tuned:
    """The temperature, compatibility and k that were chosen, and the losses that decided."""

    temperature: float
    compatibility: str
    k: int | None  # None for all rows
    loss: float
    measure: str  # "log-loss", "squared error", or "effective number"
    asked: int  # items that were left out and asked
    items: int
    curves: tuple[Curve, ...]
    sampled: int | None = None  # how many items were drawn to be left out; None when all were

    @property
    def full(self) -> Curve:
        """The best of the curves with all rows; a store keeps its temperature and compatibility."""
        return _best([curve for curve in self.curves if curve.k is None])

    @property
    def floor(self) -> float | None:
        """The lowest log mass of an item that was asked, for the curve whose temperature a store keeps."""
        full = self.full
        return _finite(full.lowest[full.temperatures.index(full.best[1])])

    def __str__(self) -> str:
        lines = [self._chosen]
        for temperature, loss, share in self._steps():
            mark = " <" if temperature == self.temperature else ""
            lines.append(f"{temperature:10.4g} {loss:10.4g} {'█' * max(1, round(share * BAR))}{mark}")
        for other in self.curves:
            if (other.compatibility, other.k) != (self.compatibility, self.k):
                loss, temperature = other.best
                rows = "all items" if other.k is None else f"the {other.k} best"
                lines.append(f"{told(self.measure, loss)} at {temperature:.4g} by {other.compatibility}, {rows}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [(f"{one:.4g}", f"{loss:.4g}", Share(share)) for one, loss, share in self._steps()]
        return as_table(self._chosen, ("temperature", self.measure, "from the best to the worst", ""), rows)

    @property
    def _chosen(self) -> str:
        kept = "" if self.k is None else f", the {self.k} best"
        return (
            f"temperature {self.temperature:.4g} ({self.compatibility}{kept}): {told(self.measure, self.loss)} "
            f"for {self.asked:,} of {self.items:,} items, each left out"
            + ("" if self.sampled is None else f"; a sample of {self.sampled:,} was enough")
        )

    def _steps(self) -> list[tuple[float, float, float]]:
        """Each temperature of the chosen curve, its loss, and where this lies from the best (0) to the worst (1)."""
        (curve,) = [one for one in self.curves if (one.compatibility, one.k) == (self.compatibility, self.k)]
        least, most = min(curve.losses), max(curve.losses)
        shares = [(loss - least) / (most - least) if most > least else 0.0 for loss in curve.losses]
        return list(zip(curve.temperatures, curve.losses, shares, strict=True))


def curves_of_items(
    keys: Any,
    values: Any,
    *,
    compatibility: str | Compatibility,
    first: float,
    asked: Rows,
    live: Flags | None = None,
    shares: Floats | None = None,
    ks: Sequence[int] = (),
    told: Progress | None = None,
) -> tuple[list[Curve], int]:
    """The curves of one compatibility, for keys (n, d) with codes of labels (n,) or vectors (n, p) as `values`.

    Only `live` items answer (by default all), and those in `asked` are left out in turn.
    """
    compared = compatibility_of(compatibility)
    unit = unit_of_scores(keys, live, compared)
    scores = _scores(keys, live, compared, unit)

    def lose(temperatures: Floats) -> Losses:
        return left_out(scores, values, asked, temperatures / unit, ks=ks, shares=shares, told=told)

    finest = finest_temperature(keys, live, compared, asked[:: max(1, len(asked) // ASKED)], unit)
    return curves(lose, compared.name, max(first, finest), ks, finest)


def lowest_log_mass(
    keys: Any,
    live: Flags,
    compatibility: str | Compatibility,
    temperature: float,
    *,
    seed: int = 0,
    unit: float | None = None,
) -> float | None:
    """The lowest log mass of a sample of the live items, each left out; None if there is one item, or none is finite.

    `unit` is `unit_of_scores`, if it is known.
    """
    rows = np.flatnonzero(live)
    if len(rows) < 2:
        return None
    asked, compared = asked_of(keys, rows, seed, 2 * SCORED), compatibility_of(compatibility)
    unit = unit_of_scores(keys, live, compared) if unit is None else unit
    scores, nothing = _scores(keys, live, compared, unit), np.empty((len(keys), 0))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = left_out(scores, nothing, asked, np.array([temperature / unit]))
    return _finite(float(found.lowest[0]))


def _finite(x: float) -> float | None:
    return x if np.isfinite(x) else None


def _scores(keys: Any, live: Flags | None, compared: Compatibility, unit: float) -> Scores:
    def scores(some: Rows, start: int, stop: int) -> Reals:
        block: Reals = np.array(compared.ask(keys[some], 1.0 / unit)(keys[start:stop], start))
        if live is not None:
            block[:, ~live[start:stop]] = -np.inf
        return block

    return scores


def curves(
    lose: Lose, compatibility: str, first: float, ks: Sequence[int] = (), finest: float = 0.0
) -> tuple[list[Curve], int]:
    """The curves of one compatibility, with temperatures around a first one; and how many items were asked.

    No temperature below the `finest` is tried.
    """
    around = first * STEP ** np.arange(-STEPS, STEPS + 1.0)
    around = around[around >= finest]
    tried = _merged([], lose(around), around, compatibility, ks)
    for _ in range(AGAIN):
        beyond = _beyond(tried)
        beyond = beyond[beyond >= finest]
        if not len(beyond):
            break
        tried = _merged(tried, lose(beyond), beyond, compatibility, ks)
    between = _between(tried)
    found = lose(between)
    return _merged(tried, found, between, compatibility, ks), found.asked


def chosen(found: Sequence[Curve], *, measure: str, asked: int, items: int) -> Tuned:
    """The result for the best of all curves; of equal ones the first."""
    best = _best(found)
    loss, temperature = best.best
    return Tuned(temperature, best.compatibility, best.k, loss, measure, asked, items, tuple(found))


def _best(found: Sequence[Curve]) -> Curve:
    # Subtle: on vectors of length 1 cosine and dot differ only by rounding, which must not decide.
    return min(found, key=lambda curve: float(f"{curve.best[0]:.6g}"))


def _beyond(tried: Sequence[Curve]) -> Floats:
    """Temperatures beyond those tried, for curves whose best lies at an edge."""
    more: set[float] = set()
    for curve in tried:
        low, high, best = curve.temperatures[0], curve.temperatures[-1], curve.best[1]
        if best == low:
            more.update((low * STEP ** np.arange(-float(STEPS), 0.0)).tolist())
        if best == high and curve.losses[-1] < curve.losses[-2] * (1 - 1e-6):  # else all are equal from here on
            more.update((high * STEP ** np.arange(1.0, STEPS + 1.0)).tolist())
    return np.array(sorted(more))


def _between(tried: Sequence[Curve]) -> Floats:
    """Temperatures between the best of each curve and the neighbours of it."""
    more: set[float] = set()
    for curve in tried:
        place = curve.temperatures.index(curve.best[1])
        for one in (place - 1, place + 1):
            if 0 <= one < len(curve.temperatures):
                more.update(np.geomspace(curve.best[1], curve.temperatures[one], FINER + 2)[1:-1].tolist())
    return np.array(sorted(more))


def _merged(
    tried: Sequence[Curve], fresh: Losses, temperatures: Floats, compatibility: str, ks: Sequence[int]
) -> list[Curve]:
    """The curves extended by fresh losses, with temperatures in order."""
    known = {curve.k: curve for curve in tried} or {k: Curve(compatibility, k, (), ()) for k in (None, *ks)}
    merged = []
    for k, curve in known.items():
        losses = fresh.full if k is None else fresh.best[k]
        points = zip(temperatures.tolist(), losses.tolist(), fresh.lowest.tolist(), strict=True)
        known_points = zip(curve.temperatures, curve.losses, curve.lowest, strict=True)
        ordered = sorted({point[0]: point for point in (*known_points, *points)}.values())
        columns = (tuple(column) for column in zip(*ordered, strict=True))
        merged.append(Curve(curve.compatibility, curve.k, *columns))
    return merged
