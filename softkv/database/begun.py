"""An unfinished build of an index: the results of its finished stages, kept as an index file.

The next build goes on from there if its options are the same and the rows lie as they did: rows added since come behind
the lists, and deleted ones are left out. A new generation of rows removes the file, and a build starts over. A build
that is done drops the file.

Does not do any of the work (indexing.py).

Shapes: n rows, l lists, d key width.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from softkv.asking.indexed import suits
from softkv.errors import FormatTooNew, IndexDamaged
from softkv.index.encoding import decoded, encoded
from softkv.index.lists import problem_of_statistics, statistics_decoded, statistics_encoded
from softkv.index.shuffling import problem_of_heads
from softkv.logs import log_of
from softkv.maths.forms import Form
from softkv.maths.summaries import Lists
from softkv.ndarrays import Flags, Reals, Rows
from softkv.storage import Snapshot

NAME = "lists-unfinished"  # of the index file
FEWEST = 4  # items of an index, since a quarter of them is held out
LOG = log_of(__name__)
_FACTS = ("rows", "items", "whole", "is_refined")


@dataclass(frozen=True, slots=True, eq=False)
class HalfBuilt:
    """The results so far. `order` is set once rows are arranged, and empty once they lie in that order."""

    wanted: Mapping[str, Any]  # the other options that its results depend on
    rows: int  # the rows of the arena that it covers
    items: int  # live items when it began
    whole: int  # live items when all lists were last made anew
    is_refined: bool  # whether existing lists are refined
    centre: Reals  # (d,), of the form
    offsets: Rows  # (l + 1,)
    heads: Rows | None  # (l,), how many of the first rows of each list are its head
    order: Rows = field(default_factory=lambda: np.empty(0, np.int64))  # (n,)
    lists: Lists | None = None  # once they are measured

    @property
    def says(self) -> str:
        """How far the build is, in words."""
        if len(self.order):
            return f"rows are assigned to {len(self.offsets) - 1:,} lists"
        return "rows lie in their lists" if self.lists is None else "lists are measured"

    def laid(self, kept: Flags) -> "HalfBuilt":
        """Once those rows that were `kept`, (n,), lie in their order."""
        before = np.concatenate([[0], kept.cumsum()])
        offsets = before[self.offsets]
        heads = None if self.heads is None else before[self.offsets[:-1] + self.heads] - offsets[:-1]
        return replace(self, rows=int(offsets[-1]), offsets=offsets, heads=heads, order=np.empty(0, np.int64))

    def encoded(self) -> Iterator[bytes | memoryview]:
        """The state of a build as bytes, piece by piece."""
        measured = {} if self.lists is None else statistics_encoded(self.lists)
        facts = {name: getattr(self, name) for name in _FACTS} | {"wanted": dict(self.wanted)}
        heads = {} if self.heads is None else {"heads": self.heads}
        rows = {"centre": self.centre, "offsets": self.offsets, "order": self.order, **heads}
        return encoded(facts, rows | measured)


def wanted_of(form: Form, lists: int | None, projection: str | None) -> dict[str, Any]:
    """The options that have to be equal for a build to go on."""
    return {"form": form.name, "compatibility": form.compatibility, "lists": lists, "projection": projection}


def found(snapshot: Snapshot, wanted: Mapping[str, Any]) -> HalfBuilt | None:
    """The unfinished build of these rows with these options; None if there is none to go on with."""
    try:
        file = snapshot.index(NAME)
        if file is None:
            return None
        begun = _decoded(file.read(), snapshot)
        file.close()
    except (IndexDamaged, FormatTooNew) as error:
        LOG.warning("what a build of an index of %s left cannot be used: %s", snapshot.path, error)
        return None
    return begun if begun.wanted == wanted and snapshot.live[: begun.rows].sum() >= FEWEST else None


def is_begun(snapshot: Snapshot) -> bool:
    """Whether there is a file of an unfinished build, usable or not."""
    file = snapshot.index(NAME)
    if file is not None:
        file.close()
    return file is not None


def _decoded(content: memoryview, snapshot: Snapshot) -> HalfBuilt:
    facts, arrays = decoded(content)
    try:
        lists = statistics_decoded(arrays) if "means" in arrays else None
        rows, items, whole = (int(facts[name]) for name in ("rows", "items", "whole"))
        told = dict(facts["wanted"]), rows, items, whole, bool(facts["is_refined"])
        begun = HalfBuilt(*told, arrays["centre"], arrays["offsets"], arrays.get("heads"), arrays["order"], lists)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise IndexDamaged(f"what was begun lacks {error}") from error
    problem = _problem(begun, snapshot)
    if problem:
        raise IndexDamaged(f"what was begun {problem}")
    return begun


def _problem(begun: HalfBuilt, snapshot: Snapshot) -> str | None:
    """Why this cannot be a build of the rows of a snapshot, if so."""
    assert snapshot.layout is not None
    offsets, order, width = begun.offsets, begun.order, snapshot.layout.key_width
    if any(one.ndim != 1 or one.dtype != np.int64 for one in (offsets, order)) or len(offsets) < 2:
        return "has no lists"
    if begun.centre.shape != (width,) or not np.isfinite(begun.centre).all() or not 0 < begun.rows <= snapshot.rows:
        return f"is not about {snapshot.rows:,} rows of width {width}"
    if offsets[0] or (np.diff(offsets) < 0).any() or offsets[-1] != (len(order) or begun.rows):
        return "does not divide the rows into lists"
    if len(order) and (order.min() < 0 or order.max() >= begun.rows or np.bincount(order).max() > 1):
        return "names rows twice, or such as are not there"
    problem = problem_of_heads(begun.heads, offsets)
    if problem or begun.lists is None:
        return problem
    if not suits(begun.lists, snapshot):
        return f"is about values of shape {begun.lists.values.shape}"
    return problem_of_statistics(begun.lists, offsets, _width(begun, width))


def _width(begun: HalfBuilt, key_width: int) -> int:
    """How wide keys are in lists: a learned metric may have another width, which `wanted` names with it."""
    assert begun.lists is not None
    learned = begun.wanted.get("projection") is not None
    return int(begun.lists.means.shape[-1]) if learned else key_width + (begun.wanted.get("form") == "gaussian")
