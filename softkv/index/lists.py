"""An index of lists: where each list lies in a generation, its statistics, and how wrong estimates are.

Lists are consecutive rows of the arena, so the index holds no rows and no row numbers: only offsets, statistics and a
calibration. Rows that are added later lie behind all lists, but most of them belong to one (late.py).

Does not read rows (search.py), find the lists of late rows (late.py), or build an index (building.py).

Shapes: l lists, m rows behind the lists that were looked at, d key width, p value width.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from softkv.errors import IndexDamaged
from softkv.index.calibration import BEST, Calibration, quantile_of
from softkv.index.encoding import decoded, encoded
from softkv.index.opening import LEVELS
from softkv.index.outline import Outline
from softkv.index.shuffling import problem_of_heads
from softkv.index.signs import Need, Signs
from softkv.maths.forms import FORMS, Form
from softkv.maths.metric import Metric
from softkv.maths.moments import with_rows
from softkv.maths.shares import Shares
from softkv.maths.summaries import Lists, Units
from softkv.ndarrays import AnyArray, Counts, Flags, Reals

OUTGROWN = 2.0  # an index should be built again once there are so many times as many rows
BETWEEN = 1 << 12  # rows of other lists that are compared by signs, too, since many short runs take longer
FAR = 1.15  # how far a late row may be from the mean of its list, in radii of the list
MEASURED = (
    "temperatures",
    "doubts",
    "errors",
    "log_mass_errors",
    "surprises",
    "best",
    "depths",
    "independent",
    "near",
    "scale",
    "closest",
    "mass_doubts",
)
# What stands for figures that earlier versions did not measure.
UNKNOWN: dict[str, AnyArray] = {
    "independent": np.zeros(len(BEST)),
    "near": np.zeros(1),
    "scale": np.full(1, -1.0),
    "closest": np.empty(0),
    "mass_doubts": np.empty((0, 0, len(LEVELS))),
}


def _nobody() -> Counts:
    return np.empty(0, np.int64)


class Rehearsed(NamedTuple):
    """What lists have rehearsed."""

    calibration: Calibration
    need: Need | None  # for which lookups rows have to be found by their signs
    middles: int  # how many middles of two items were asked to find that out


class IndexPart(NamedTuple):
    """An index whose rows and lists are some of those of another one."""

    of: "ListIndex"
    row: int  # the first of its rows there
    first: int  # the first of its lists there


@dataclass(frozen=True, eq=False)
class ListIndex:
    """Lists of the first rows of an arena."""

    form: Form
    offsets: Counts  # (l + 1,): list i is rows offsets[i] .. offsets[i + 1] - 1
    lists: Lists
    calibration: Calibration
    facts: dict[str, Any] = field(default_factory=dict)  # how it was built, for people
    joined: Counts = field(default_factory=_nobody)  # (m,), the lists of the first rows behind them; -1 for no list
    estimates: Lists | None = None  # the current `quick`, if it has changed since it was measured
    sizes: Counts | None = None  # (l,), how many rows lists were made of, if late rows were laid into them since
    heads: Counts | None = None  # (l,), how many of the first rows of each list are its head, dead ones included
    bodies: tuple[Counts, Counts] | None = None  # (l,) each: the range in which joined rows lie in random order
    outline: Outline | None = None  # of the rows in lists, where it is worth its size
    late: Outline | None = None  # of the rows behind them, where it is known of all
    signs: Signs | None = None  # of the rows in lists and behind them, where plans miss rows that are like a query
    need: Need | None = None  # for which lookups these have to be found
    parts: Sequence[IndexPart] = ()  # whose signs are looked at, where the rows are those of several stores

    @property
    def rows(self) -> int:
        """How many rows lie in lists, dead ones included."""
        return int(self.offsets[-1])

    @property
    def known(self) -> int:
        """How many rows lie in lists, or behind them and are assigned or known to belong to none."""
        return self.rows + len(self.joined)

    @cached_property
    def quick(self) -> Lists:
        """The statistics used for estimates: in float32, with values in `units`."""
        return self.lists.rounded() if self.estimates is None else self.estimates

    @cached_property
    def units(self) -> Units:
        """The units of the values in `quick`."""
        return self.lists.units

    @cached_property
    def narrow_units(self) -> Units:
        """The units with a middle in float32: values of that type lose nothing where it is subtracted."""
        return replace(self.units, middle=self.units.middle.astype(np.float32).astype(np.float64))

    @cached_property
    def narrow_means(self) -> Reals | None:
        """The means of the values of all lists in `narrow_units`, (l, p), in float32; None where they are labels."""
        if isinstance(self.quick.values, Shares):
            return None
        moved = (self.units.middle - self.narrow_units.middle) / self.units.size
        return self.quick.values + moved.astype(np.float32)

    @cached_property
    def made_of(self) -> Counts:
        """How many rows each list was made of, (l,)."""
        return np.diff(self.offsets) if self.sizes is None else self.sizes

    @property
    def whole(self) -> int:
        """How many items there were when all lists were last made anew; 0 if unknown."""
        known = self.facts.get("whole", self.facts.get("items"))
        return known if isinstance(known, int) and known > 0 else 0

    @cached_property
    def grown(self) -> float:
        """The factor by which the rows in lists have grown since it was made; at least 1."""
        made_of = self.facts.get("items")
        rows = float(self.quick.counts.sum())
        return max(1.0, rows / made_of) if isinstance(made_of, int) and made_of > 0 else 1.0

    @cached_property
    def reaches(self) -> tuple[Reals, Reals]:
        """How far a late row may be from the means of each list, by its key and by its value, (l,) each.

        A little farther than any row that the lists were made of; where these lie close together, as far as in most.
        """
        there = self.lists.counts > 0
        radii = np.linalg.norm(self.lists.radii, axis=1), self.lists.value_radii
        keys, values = (FAR * np.maximum(one, quantile_of(one[there], 0.5) if there.any() else 0.0) for one in radii)
        return keys, values

    @cached_property
    def members(self) -> tuple[Counts, Counts]:
        """The rows behind the lists that joined one, list by list, and where each list begins among them, (l + 1,)."""
        few = len(self.offsets) < np.iinfo(np.int16).max  # such numbers are sorted ten times as fast
        joined = self.joined.astype(np.int16) if few else self.joined
        starts = np.bincount(self.joined + 1, minlength=len(self.offsets)).cumsum()
        return self.rows + np.argsort(joined, kind="stable"), starts

    @cached_property
    def strangers(self) -> Counts:
        """The rows behind the lists that are known to belong to none."""
        return self.rows + np.flatnonzero(self.joined < 0)

    def owners(self, rows: Counts) -> Counts:
        """The list of each of these rows, -1 for those of no list and for those not assigned yet."""
        found = np.searchsorted(self.offsets, rows, side="right") - 1
        behind = rows >= self.rows
        found[behind] = np.append(self.joined, -1)[np.minimum(rows[behind], self.known) - self.rows]
        return found

    def point_of(self, query: Reals) -> Reals:
        """Where a query, as dot products take it, lies among keys as the form places them.

        Where logits are no distances, only its direction is known, and it counts as being as long as usual keys.
        """
        if self.form.measures_distance:
            point: Reals = query[:-1] / query[-1]
            return point
        length = float(np.linalg.norm(query))
        return query * (self.quick.usual_length / length) if length > 0 else query

    def alike(self, point: Reals, lists: Counts, live: Flags | None) -> Counts:
        """The rows that signs tell are most like a point (`point_of`): `live` ones of some lists, in order, late ones.

        So may be rows of lists that lie between these. Where there are several parts, as many of each.
        """
        if self.signs is not None:
            return self.signs.found(point, *runs_of(self.offsets, lists, BETWEEN), live)
        found = [np.empty(0, np.int64)]
        for part, row, first in self.parts:
            own = lists[np.searchsorted(lists, first) : np.searchsorted(lists, first + len(part.made_of))] - first
            moved = self.form.centre - part.form.centre if self.form.measures_distance else 0.0
            there = None if live is None else live[row : row + part.known]
            found.append(row + part.alike(point + moved, own, there))
        return np.concatenate(found)

    def without(self, rows: Counts, keys: Reals, values: Reals) -> "ListIndex":
        """The index without these rows, given by their keys (as the form makes them) and values."""
        owners = self.owners(rows)
        counted = owners >= 0
        lists = with_rows(self.lists, owners[counted], keys[counted], values[counted], sign=-1.0)
        return replace(self, lists=lists)

    def relaid(self, owners: Counts, keys: Reals, values: Reals) -> "ListIndex":
        """The index after late rows were laid into their lists `owners`, and deleted rows left the arena.

        Keys come as the form makes them. Deleted rows have left the statistics before.
        """
        lists = with_rows(self.lists, owners, keys, values)
        offsets = np.concatenate([[0], np.maximum(lists.counts, 0).astype(np.int64).cumsum()])
        changed = replace(self, lists=lists, offsets=offsets, joined=_nobody(), estimates=None, sizes=self.made_of)
        return replace(changed, heads=None, outline=None, signs=None)

    def encoded(self) -> Iterator[bytes | memoryview]:
        """The index as bytes, piece by piece."""
        arrays = statistics_encoded(self.lists, "lists.")
        arrays |= {f"calibration.{name}": getattr(self.calibration, name) for name in MEASURED}
        facts = {"form": self.form.name, "compatibility": self.form.compatibility, "built": self.facts}
        rows = {"offsets": self.offsets, "joined": self.joined}
        form = {"centre": self.form.centre, "lengths": self.form.lengths}
        known = {name: x for name, x in (("sizes", self.sizes), ("heads", self.heads)) if x is not None}
        for one in (self.outline, self.signs, self.need):
            known |= {} if one is None else one.encoded()
        return encoded(facts, rows | form | known | arrays)

    @classmethod
    def decoded(
        cls, content: memoryview, *, rows: int, key_width: int, metric: Callable[[str], Metric | None]
    ) -> "ListIndex":
        """The index in these bytes, if it can be one of the first rows of such an arena.

        An index that was built for a learned metric needs it: `metric` gives it by its name.
        """
        facts, arrays = decoded(content)
        try:
            lists = statistics_decoded(arrays, "lists.")
            unknown = {f"calibration.{name}": array for name, array in UNKNOWN.items()}
            measured = [(unknown | arrays)[f"calibration.{one}"] for one in MEASURED]
            form = Form(str(facts["form"]), str(facts["compatibility"]), arrays["centre"], arrays["lengths"])
            if form.name == "learned":
                form = replace(form, metric=metric(str(facts["built"]["projection"])))
            index = cls(
                form,
                arrays["offsets"],
                lists,
                Calibration(*measured),
                dict(facts["built"]),
                arrays["joined"],
                sizes=arrays.get("sizes"),
                heads=arrays.get("heads"),
                outline=Outline.decoded(arrays),
                signs=Signs.decoded(arrays),
                need=Need.decoded(arrays),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise IndexDamaged(f"the index lacks {error}: build the index again") from error
        problem = index._problem(rows, key_width)
        if problem:
            raise IndexDamaged(f"the index {problem}: build the index again")
        return index

    def _problem(self, rows: int, key_width: int) -> str | None:
        """Why this is no index of such an arena, if it is none."""
        if self.offsets.ndim != 1 or self.offsets.dtype != np.int64:
            return "holds offsets that are none"
        count, offsets = len(self.offsets) - 1, self.offsets
        if self.form.name == "learned" and self.form.metric is None:
            return "is for another projection than the store compares by"
        if self.form.name not in FORMS or self.form.centre.shape != (key_width,) or self.form.lengths.shape != (3,):
            return f"is of form {self.form.name!r} and of keys of shape {self.form.centre.shape}, not {key_width}"
        if count < 1 or offsets[0] != 0 or offsets[-1] > rows or (np.diff(offsets) < 0).any():
            return f"does not divide the {rows} rows into lists"
        problem = problem_of_statistics(self.lists, offsets, self.form.width(key_width))
        problem = problem or problem_of_heads(self.heads, offsets)
        if self.outline is not None:
            problem = problem or self.outline.problem(self.rows, self.lists.leading)
        if self.signs is not None:
            problem = problem or self.signs.problem(self.rows, self.form.placed_width(key_width))
        if self.need is not None:
            problem = problem or self.need.problem
        return problem or self._problem_of_rows(rows) or self.calibration.problem

    def _problem_of_rows(self, rows: int) -> str | None:
        joined, lists = self.joined, len(self.offsets) - 1
        if joined.ndim != 1 or joined.dtype != np.int64 or self.known > rows:
            return f"knows more than the {rows} rows there are"
        if len(joined) and not (joined.min() >= -1 and joined.max() < lists):
            return "has rows that joined lists that are not there"
        if (self.lists.counts < 0).any():
            return "counts fewer rows than none"
        if self.made_of.shape != (lists,) or self.made_of.dtype != np.int64 or (self.made_of < 0).any():
            return "was made of rows that are none"
        if not (self.lists.counts <= np.diff(self.offsets) + np.bincount(joined + 1, minlength=lists + 1)[1:]).all():
            return "counts more rows than there are"
        return None


def runs_of(offsets: Counts, lists: Counts, between: int = 0) -> tuple[Counts, Counts]:
    """Where runs of rows start and stop that some lists, in order, make up; with so few rows `between`, two are one."""
    lists = lists[offsets[lists + 1] > offsets[lists]]
    starts, stops = offsets[lists], offsets[lists + 1]
    apart = np.flatnonzero(starts[1:] > stops[:-1] + between)
    return (starts[np.append(0, apart + 1)], stops[np.append(apart, len(stops) - 1)]) if len(lists) else (starts, stops)


def statistics_encoded(lists: Lists, prefix: str = "") -> dict[str, AnyArray]:
    """Statistics as arrays whose names begin like this."""
    arrays = {f"{prefix}{one.name}": getattr(lists, one.name) for one in fields(Lists)}
    if isinstance(lists.values, Shares):
        del arrays[name := f"{prefix}values"]
        arrays |= lists.values.encoded(name)
    return arrays


def statistics_decoded(arrays: Mapping[str, AnyArray], prefix: str = "") -> Lists:
    """The statistics in arrays, which may be anything (`problem_of_statistics`)."""
    values = arrays[name] if (name := f"{prefix}values") in arrays else Shares.decoded(name, arrays)
    others = {one.name: arrays[f"{prefix}{one.name}"] for one in fields(Lists) if one.name != "values"}
    return Lists(values=values, **others)


def problem_of_statistics(lists: Lists, offsets: Counts, width: int) -> str | None:
    """Why these are no statistics of so many lists of keys of this width, if they are none."""
    values = lists.values
    if len(values.shape) != 2 or lists.profile.ndim != 1:
        return "holds values that are none"
    count, leading = len(offsets) - 1, width - lists.profile.size
    value_width = values.sloped.size if isinstance(values, Shares) else values.shape[1]
    shapes: dict[str, tuple[int, ...]] = {
        "counts": (count,),
        "means": (count, width),
        "axes": (width, width),
        "spreads": (count, leading * (leading + 1) // 2),
        "outside": (count,),
        "profile": (width - leading,),
        "widest": (count,),
        "radii": (count, 2),
        "values": (count, value_width),
        "slope": (value_width, width),
        "value_radii": (count,),
        "slope_gaps": (count, 2),
        "scatter": (count,),
        "noise": (count,),
    }
    if isinstance(values, Shares):
        del shapes["values"]
    for name, shape in shapes.items():
        found = getattr(lists, name)
        if found.shape != shape or found.dtype != np.float64:
            return f"holds {name} of shape {found.shape}, not {shape}"
        if not np.isfinite(found).all():
            return f"holds {name} that are not finite"
    with np.errstate(over="ignore"):
        squares = 0.0 if isinstance(values, Shares) else np.square(values).sum()
        if not np.isfinite(8.0 * (squares + np.abs(lists.scatter).sum())):
            return "holds values whose squares are no numbers"
    if not 0 <= leading <= width:
        return "has more leading axes than axes"
    return values.problem(lists.counts) if isinstance(values, Shares) else None
