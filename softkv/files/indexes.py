"""Indexes of FAISS: their vectors, beside items from a file of any format.

Vectors are read back as the index keeps them: compressed ones come rounded, which is said in a warning, and an index
that keeps none is refused. One behind a transform that is not undone, such as whitening, is refused as well. Needs
faiss, which trusts the index that it reads.
"""

import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from softkv.errors import MissingExtra
from softkv.files.record import Record, Refusals, listed
from softkv.logs import hint
from softkv.ndarrays import Matrix, Rows

TOGETHER = 4096  # vectors read back at once
WHOLE = ("IndexFlat", "IndexFlatL2", "IndexFlatIP", "IndexIVFFlat", "IndexHNSWFlat")
# Only these, because some others crash when a vector is read back.
ROUNDED = ("IndexPQ", "IndexScalarQuantizer", "IndexIVFPQ", "IndexIVFScalarQuantizer", "IndexHNSWSQ", "IndexHNSWPQ")


class VectorsRounded(UserWarning):
    """An index keeps its vectors compressed, so that they come back rounded."""


class VectorsNormalised(UserWarning):
    """An index keeps its vectors divided by their lengths, so that they come back so."""


class RankedOtherwise(UserWarning):
    """An index compares vectors after a transform that changes what they are compared by."""


def read(path: str, values: Callable[[], Iterator[Record]], refusals: Refusals) -> Generator[Record, None, None]:
    """The items of a file, each with the vector of its row; where ids are no rows, with the one that its key names."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra("reading an index of FAISS", package="faiss-cpu", extra="cpu") from error
    if not os.path.isfile(path):
        raise refusals.fatal("is no file of an index" if os.path.exists(path) else "there is no such file")
    try:
        index = faiss.read_index(path)
    except RuntimeError as error:
        raise refusals.fatal(f"FAISS cannot read it: {str(error).splitlines()[-1]}") from error
    inner, places, ids = _opened(faiss, index, refusals)
    count = sum(1 for _ in values())  # read twice, so that nothing is written if the numbers differ
    if count != len(ids) or len(np.unique(ids)) < count:
        raise refusals.fatal(f"has {len(np.unique(ids)):,} vectors, but there are {count:,} values")
    order = np.argsort(ids)
    in_rows = bool((ids[order] == np.arange(count)).all())
    named = None if in_rows else dict(zip(map(str, ids.tolist()), places.tolist(), strict=True))
    compared = _compared(faiss, index, refusals)
    left, begun = values(), 0
    while some := list(islice(left, TOGETHER)):
        here = places[order[begun : begun + len(some)]]
        if named is not None:
            here = np.array([_place_of(one, named, refusals) for one in some], np.int64)
        for one, vector in zip(some, _vectors(inner, here, refusals), strict=True):
            yield replace(one, text=None, vector=vector, compared=compared)
        begun += len(some)


def _vectors(inner: Any, places: Rows, refusals: Refusals) -> Matrix:
    try:
        found: Matrix = inner.reconstruct_batch(places)
    except RuntimeError as error:
        raise refusals.fatal(f"FAISS cannot give its vectors back: {str(error).splitlines()[-1]}") from error
    return found


def _compared(faiss: Any, index: Any, refusals: Refusals) -> str:
    """How a store compares that finds the items nearest that an index finds."""
    known = {faiss.METRIC_L2: "gaussian", faiss.METRIC_INNER_PRODUCT: "dot", faiss.METRIC_L1: "laplace"}
    if index.metric_type not in known:
        names = {getattr(faiss, name): name for name in dir(faiss) if name.startswith("METRIC_")}
        metric = names.get(index.metric_type, f"metric {index.metric_type}")
        raise refusals.fatal(f"is compared by {metric}, which no store knows; those are L2, L1 and inner products")
    return known[index.metric_type]


def _place_of(one: Record, named: dict[str, int], refusals: Refusals) -> int:
    if one.key not in named:
        raise refusals.fatal(
            f"its ids are no rows from 0 on, so the keys of the values name them; there is no vector {one.key!r}"
        )
    return named.pop(one.key)


def _opened(faiss: Any, index: Any, refusals: Refusals) -> tuple[Any, Rows, Rows]:
    """The index that keeps the vectors, the position of each in it, and its id outside."""
    mapped = hasattr(index, "id_map")
    inner = faiss.downcast_index(index.index) if mapped else index
    plain, steps = inner, []
    while type(plain).__name__ == "IndexPreTransform":
        steps += [faiss.downcast_VectorTransform(plain.chain.at(one)) for one in range(plain.chain.size())]
        plain = faiss.downcast_index(plain.index)
    name = type(plain).__name__
    if name not in WHOLE + ROUNDED:
        raise refusals.fatal(
            f"is an {name}, which does not give its vectors back; of FAISS one of {listed(WHOLE)} does"
        )
    _hint_at_transforms(faiss, steps, plain.metric_type, refusals)
    if name in ROUNDED or not all(isinstance(step, faiss.NormalizationTransform) for step in steps):
        hint(f"{refusals.name} keeps its vectors compressed or transformed; they come back rounded.", VectorsRounded)
    places: Rows = np.arange(plain.ntotal)
    if "IVF" in name:
        lists = plain.invlists
        held = [faiss.rev_swig_ptr(lists.get_ids(one), lists.list_size(one)).copy() for one in range(lists.nlist)]
        places = np.concatenate(held) if held else places
        plain.set_direct_map_type(faiss.DirectMap.Hashtable)
    if not mapped:
        return inner, places, places
    ids: Rows = faiss.vector_to_array(index.id_map)
    return inner, places, ids[places]


def _hint_at_transforms(faiss: Any, steps: list[Any], metric: int, refusals: Refusals) -> None:
    """Say what transforms change; an error where one is not undone."""
    for step in steps:
        if not _is_undone(faiss, step):
            raise refusals.fatal(
                f"keeps its vectors behind {type(step).__name__}, which is not undone here, as whitening (PCAW, PCAWR) "
                "and ITQ are not. Make an index of the vectors themselves, such as IndexFlatL2"
            )
    if any(isinstance(step, faiss.NormalizationTransform) for step in steps):
        hint(f"{refusals.name} keeps its vectors divided by their lengths; they come back so.", VectorsNormalised)
    linear = [step for step in steps if isinstance(step, faiss.LinearTransform)]
    shifted = metric == faiss.METRIC_INNER_PRODUCT and any(step.have_bias for step in linear)
    if shifted or (metric == faiss.METRIC_L1 and linear):
        by = "inner products of vectors less their mean" if shifted else "L1 between vectors that are rotated"
        hint(f"{refusals.name} compares by {by}; the store compares the vectors as given.", RankedOtherwise)


def _is_undone(faiss: Any, step: Any) -> bool:
    """Whether FAISS undoes a transform up to rounding and the dimensions that it leaves out."""
    if isinstance(step, faiss.LinearTransform):
        matrix = faiss.vector_to_array(step.A).reshape(step.d_out, step.d_in)
        wide = matrix if step.d_out <= step.d_in else matrix.T
        # Subtle: FAISS calls whitening orthonormal, too, and undoes it as if it were.
        return step.is_orthonormal and np.allclose(wide @ wide.T, np.eye(len(wide)), atol=1e-4)
    if isinstance(step, faiss.RemapDimensionsTransform):
        used = [one for one in faiss.vector_to_array(step.map).tolist() if one >= 0]
        return len(set(used)) == len(used)
    return isinstance(step, faiss.NormalizationTransform) and step.norm == 2
