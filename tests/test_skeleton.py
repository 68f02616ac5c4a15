"""What FAISS has read is compared with an empty index of its kind before it is asked anything."""

from collections.abc import Iterator

import faiss
import numpy as np
import pytest

from softkv.index.skeleton import bounded, difference

ROWS, WIDTH = 300, 12
KEYS = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
KINDS = (
    "HNSW8,Flat", "HNSW8,SQ8", "IVF4,Flat", "IVF4,SQ8", "IVF4,PQ3", "Pad16,IVF4,PQ4x4fs", "IVF4,RaBitQ",
    "IVF4,RaBitQfs", "IVF4_HNSW4,Flat", "PCA4,Flat", "RR8,SQ8", "PQ3", "PQ4x4fs", "Flat", "SQfp16", "RaBitQ",
    "RaBitQfs",
)  # fmt: skip
METRIC = faiss.METRIC_INNER_PRODUCT


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """For so little, threads wait for each other longer than they work."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


def filled(kind: str, rows: int = ROWS) -> faiss.Index:
    """An index with rows in it."""
    index = faiss.index_factory(WIDTH, kind, METRIC)
    part = faiss.downcast_index(index)
    if hasattr(part, "do_polysemous_training"):
        part.do_polysemous_training = False  # takes seconds
    index.train(KEYS)
    index.add(KEYS[:rows])
    return index


def problem(index: faiss.Index, kind: str, rows: int = ROWS) -> str | None:
    """What is found to be wrong with an index that says it is of a kind."""
    empty = faiss.index_factory(WIDTH, kind, METRIC)
    return difference(faiss, index, empty, rows)


@pytest.mark.parametrize("rows", [ROWS, 33, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_what_faiss_made_is_as_it_should_be(kind: str, rows: int) -> None:
    """What FAISS made is as it should be, also with few rows."""
    assert problem(filled(kind, rows), kind, rows) is None


@pytest.mark.parametrize("kind", KINDS)
def test_other_rows_and_other_kinds_are_told_apart(kind: str) -> None:
    """No index passes for one of other rows, nor for one of the kind that comes next in the list."""
    assert problem(filled(kind), kind, ROWS + 1)
    assert problem(filled(kind), KINDS[KINDS.index(kind) - 1])


def test_neighbours_that_are_no_rows_are_found() -> None:
    """A search would read outside of the arena."""
    for place, row in ((0, ROWS), (7, -2), (-1, 1 << 30)):
        index = filled("HNSW8,Flat")
        neighbours = index.hnsw.neighbors
        neighbours.data()  # a view is written through
        faiss.rev_swig_ptr(neighbours.data(), neighbours.size())[place] = row
        assert problem(index, "HNSW8,Flat") == "a graph with neighbours that are no rows"


def test_levels_that_a_row_does_not_have_are_found() -> None:
    """On its upper levels a graph may only lead to rows that are there as well."""
    index = filled("HNSW8,Flat")
    levels = faiss.vector_to_array(index.hnsw.levels)
    steps, offsets = (faiss.vector_to_array(x) for x in (index.hnsw.cum_nneighbor_per_level, index.hnsw.offsets))
    tall, low = int(np.flatnonzero(levels > 1)[0]), int(np.flatnonzero(levels == 1)[0])
    neighbours = faiss.rev_swig_ptr(index.hnsw.neighbors.data(), index.hnsw.neighbors.size())
    neighbours[int(offsets[tall]) + steps[1]] = low
    assert problem(index, "HNSW8,Flat") == "a graph with neighbours on levels that they do not have"


def test_an_entry_that_is_no_row_is_found() -> None:
    """The search begins there."""
    index = filled("HNSW8,Flat")
    index.hnsw.entry_point = ROWS
    assert problem(index, "HNSW8,Flat") == "a graph with neighbours that are no rows"
    index.hnsw.entry_point, index.hnsw.max_level = 0, 9
    assert problem(index, "HNSW8,Flat") == "a graph without its highest level"


def test_places_outside_of_a_vector_are_found() -> None:
    """A transform takes its numbers from where it says."""
    index = filled("Pad16,IVF4,PQ4x4fs")
    remapping = faiss.downcast_VectorTransform(index.chain.at(0))
    faiss.rev_swig_ptr(remapping.map.data(), 16)[3] = 12
    assert problem(index, "Pad16,IVF4,PQ4x4fs") == "a RemapDimensionsTransform that does not fit"


def test_the_limits_of_the_process_come_back() -> None:
    """They are the host's, and are only lent."""
    before = faiss.get_deserialization_vector_byte_limit(), faiss.get_deserialization_loop_limit()
    with bounded(faiss, 100):
        assert faiss.get_deserialization_loop_limit() == 100
    assert before == (faiss.get_deserialization_vector_byte_limit(), faiss.get_deserialization_loop_limit())
