"""Check that an index read by FAISS has the structure that its header states.

A checksum proves that bytes are those that the catalog names, not that softkv wrote them: an attacker may have written
both. FAISS uses the widths, sizes and row numbers in them unchecked, and may end the process. So every figure is
compared with that of an empty index of the same kind, and every length and row number with what follows from it. Codes
and centres can be anything: they cost recall, not safety.

While FAISS reads, lengths are limited by the size of the file, if its version allows that. Older versions trust the
lengths that they read, and refuse fewer forged files.

Shapes: m rows.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from softkv.ndarrays import AnyArray

SMALLEST = 1 << 29  # bytes that a vector may have, however small the file
INSIDE = ("index", "quantizer", "storage", "hnsw", "pq", "sq", "rabitq")
ASIDE = ("thisown", "use_visited_hashset")  # nothing to compare; asking for the second prints a warning
# What differs from an empty index, and is looked at by name or does not matter.
FILLED = (
    "ntotal", "ntotal2", "is_trained", "is_orthonormal", "do_polysemous_training", "use_precomputed_table", "max_level",
    "entry_point",
)  # fmt: skip
_limit = threading.Lock()  # guards a setting of the whole process, while an index is read


@contextmanager
def bounded(faiss: ModuleType, size: int) -> Iterator[None]:
    """FAISS, limited to reading so many bytes; the setting of the process is restored afterwards."""
    # It also counts a table that it works out from what it read, which may be some times as large as the file.
    wanted = {"vector_byte": max(SMALLEST, 8 * size), "loop": max(1, size)}
    known = {name: number for name, number in wanted.items() if hasattr(faiss, f"set_deserialization_{name}_limit")}
    with _limit:
        before = {name: getattr(faiss, f"get_deserialization_{name}_limit")() for name in known}
        try:
            for name, number in known.items():
                getattr(faiss, f"set_deserialization_{name}_limit")(number)
            yield
        finally:
            for name, number in before.items():
                getattr(faiss, f"set_deserialization_{name}_limit")(number)


def difference(faiss: ModuleType, found: Any, empty: Any, rows: int) -> str | None:
    """The first difference between an index of so many rows and an empty one of its kind; None if there is none."""
    found, empty = faiss.downcast_index(found), faiss.downcast_index(empty)
    return (
        _of_figures(found, empty)
        or _of_rows(found, rows)
        or _of_transforms(faiss, found, empty)
        or _of_graph(faiss, found, rows)
        or _of_lists(faiss, found, empty, rows)
        or _of_parts(faiss, found, empty, rows)
    )


def _figures(part: Any) -> dict[str, int | float]:
    names = (name for name in dir(type(part)) if not name.startswith("_") and name not in (*ASIDE, *FILLED))
    values = ((name, getattr(part, name)) for name in names)
    return {name: value for name, value in values if isinstance(value, (int, float))}


def _of_figures(found: Any, empty: Any) -> str | None:
    """Widths, sizes, and whatever else is a number."""
    here, there = _figures(found), _figures(empty)
    odd = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    return f"{type(found).__name__}.{odd[0]} is {here.get(odd[0])}, not {there.get(odd[0])}" if odd else None


def _of_rows(found: Any, rows: int) -> str | None:
    if not found.is_trained or found.ntotal != rows:
        return f"it holds {found.ntotal} rows, not {rows}"
    codes = getattr(found, "codes", None)
    if codes is None:
        return None
    if hasattr(found, "ntotal2"):  # rows in blocks, a few more than there are
        whole = -(-rows // found.bbs) * found.bbs
        size = found.get_block_stride() * (whole // found.bbs) if hasattr(found, "get_block_stride") else codes.size()
        fits = found.ntotal2 == whole and codes.size() == size and size * 2 >= whole * found.M2
    else:
        fits = codes.size() == rows * found.code_size
    return None if fits else f"it has {codes.size()} bytes of codes for {rows} rows"


def _of_transforms(faiss: ModuleType, found: Any, empty: Any) -> str | None:
    """What is done to vectors first: matrices as large as they say, and no number from outside of a vector."""
    if not isinstance(found, faiss.IndexPreTransform):
        return None
    if found.chain.size() != empty.chain.size():
        return f"{found.chain.size()} transforms"
    for place in range(found.chain.size()):
        here, there = (faiss.downcast_VectorTransform(one.chain.at(place)) for one in (found, empty))
        if type(here) is not type(there) or not here.is_trained:
            return f"a {type(here).__name__} among the transforms"
        problem = _of_figures(here, there) or _of_transform(faiss, here)
        if problem:
            return problem
    return None


def _of_transform(faiss: ModuleType, one: Any) -> str | None:
    if isinstance(one, faiss.RemapDimensionsTransform):
        places = faiss.vector_to_array(one.map)
        fits = len(places) == one.d_out and _within(places, -1, one.d_in)
    else:
        fits = one.A.size() == one.d_in * one.d_out and one.b.size() == (one.d_out if one.have_bias else 0)
    return None if fits else f"a {type(one).__name__} that does not fit"


def _of_graph(faiss: ModuleType, found: Any, rows: int) -> str | None:
    """Neighbours that are rows, on levels that both have."""
    if not isinstance(found, faiss.IndexHNSW):
        return None
    graph = found.hnsw
    levels, steps = _numbers(faiss, graph.levels), _numbers(faiss, graph.cum_nneighbor_per_level)
    offsets, neighbours = _numbers(faiss, graph.offsets).astype(np.int64), _numbers(faiss, graph.neighbors)
    if len(levels) != rows or not _within(levels, 1, len(steps)) or len(offsets) != rows + 1 or offsets[0]:
        return "a graph without the levels of its rows"
    if not np.array_equal(np.diff(offsets), steps[levels]) or len(neighbours) != offsets[-1]:
        return "a graph without room for its neighbours"
    if not _within(neighbours, -1, rows) or (rows and not 0 <= graph.entry_point < rows):
        return "a graph with neighbours that are no rows"
    if rows and not graph.max_level == levels.max() - 1 == levels[graph.entry_point] - 1:
        return "a graph without its highest level"
    for level in range(1, int(levels.max(initial=1))):
        there = np.flatnonzero(levels > level)
        places = offsets[there][:, None] + np.arange(steps[level], steps[level + 1])
        some = neighbours[places]
        if not (levels[some[some >= 0]] > level).all():
            return "a graph with neighbours on levels that they do not have"
    return None


def _of_lists(faiss: ModuleType, found: Any, empty: Any, rows: int) -> str | None:
    if not isinstance(found, faiss.IndexIVF):
        return None
    here, there = (faiss.downcast_InvertedLists(one.invlists) for one in (found, empty))
    if type(here) is not type(there):
        return f"lists of the kind {type(here).__name__}"
    if found.direct_map.type != empty.direct_map.type:
        return "a map of rows, which softkv never makes"
    sizes = [here.list_size(number) for number in range(found.nlist)] if here.nlist == found.nlist else []
    return _of_figures(here, there) or (None if sum(sizes) == rows else f"lists of {sum(sizes)} rows, not {rows}")


def _of_parts(faiss: ModuleType, found: Any, empty: Any, rows: int) -> str | None:
    for name in INSIDE:
        here, there = getattr(found, name, None), getattr(empty, name, None)
        if here is None or there is None:
            if (here is None) != (there is None):
                return f"no {name}, or one too many"
            continue
        if isinstance(here, faiss.Index):
            inner = found.nlist if name == "quantizer" else rows
            problem = difference(faiss, here, there, inner)
        else:
            problem = _of_figures(here, there) or _of_tables(name, here, there)
        if problem:
            return problem
    return None


def _of_tables(name: str, here: Any, there: Any) -> str | None:
    """Tables by which codes are read, as long as those of the kind."""
    if name == "pq" and here.centroids.size() != there.centroids.size():
        return f"{here.centroids.size()} numbers of centroids"
    if name == "sq" and here.trained.size() not in (0, 2, 2 * here.d):
        return f"{here.trained.size()} numbers of a range"
    return None


def _within(numbers: AnyArray, least: int, beyond: int) -> bool:
    return not len(numbers) or bool(numbers.min() >= least and numbers.max() < beyond)


def _numbers(faiss: ModuleType, vector: Any) -> AnyArray:
    """A view of a vector of FAISS, of whatever make."""
    size = vector.size()
    return faiss.rev_swig_ptr(vector.data(), size) if size else np.empty(0, np.int64)
