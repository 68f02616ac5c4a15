"""How alike: every compatibility, on every backend, against the reference; and what cannot be compared."""

import math
from typing import Any

import numpy as np
import pytest

from softkv.errors import KindError, NotExpressible, NotFinite, ShapeError, ZeroVector
from softkv.maths import distances
from softkv.maths.arrays import library_of
from softkv.maths.compatibility import COMPATIBILITIES, additive, bilinear, by_halves, compatibility_of, cosine
from softkv.plain import soft_lookup

from . import reference
from .backends import BACKENDS, Backend, every_backend, exact
from .scales import far_ring, weighted_mean

NAMES = sorted(COMPATIBILITIES)
GENERATOR = np.random.default_rng(7)
QUERIES = GENERATOR.standard_normal((3, 5))
KEYS = GENERATOR.standard_normal((40, 5))


def logits(given: Any, backend: Backend, queries: Any, keys: Any, temperature: float = 1.0) -> Any:
    """The logits of a backend, as float64."""
    wide = Backend(backend.library, "float64" if backend.dtype == "float64" else "float32")
    asked, stored = (wide.array(backend.rounded(x)) for x in (queries, keys))
    return exact(compatibility_of(given).ask(asked, 1 / temperature)(stored, 0))


@every_backend
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.05, 1.0, 30.0])
def test_logits_are_those_of_the_reference(name: str, backend: Backend, temperature: float) -> None:
    """Every compatibility gives the scores of its formula, divided by the temperature."""
    found = logits(name, backend, QUERIES, KEYS, temperature)
    queries, keys = backend.rounded(QUERIES), backend.rounded(KEYS)
    expected = [[getattr(reference, name)(q, k) / temperature for k in keys] for q in queries]
    assert found == pytest.approx(np.array(expected), abs=backend.tolerance(np.ravel(expected)))


def test_scores_small_enough_for_paper() -> None:
    """For q = (1, 2) and k = (3, 4): 11, 11/√2, 11/(√5·5), -4, -4 and 0."""
    expected = {"dot": 11, "scaled_dot": 11 / math.sqrt(2), "cosine": 11 / (math.sqrt(5) * 5)}
    expected |= {"gaussian": -4, "laplace": -4, "uniform": 0}
    for name, score in expected.items():
        assert logits(name, BACKENDS[0], [[1, 2]], [[3, 4]])[0, 0] == pytest.approx(score, rel=1e-15)


@every_backend
@pytest.mark.parametrize("temperature", [1e-3, 0.05, 30.0])
@pytest.mark.parametrize("per_query", [False, True])
def test_gaussian_may_be_given_the_squares_of_keys(backend: Backend, temperature: float, per_query: bool) -> None:
    """With ½‖k‖² known the scores near the best are those of the formula, in every block of keys."""
    wide = Backend(backend.library, "float64" if backend.dtype == "float64" else "float32")
    queries, keys = backend.rounded(QUERIES), backend.rounded(KEYS)
    known = wide.array([0.5 * math.hypot(*key) ** 2 for key in keys])
    library = library_of(known)
    sharpness = library.double(wide.array([[1 / temperature]] * 3)) if per_query else 1 / temperature
    scorer = by_halves(known).ask(wide.array(queries), sharpness)
    for start in (0, 7, 39):
        found = exact(scorer(wide.array(keys[start:]), start))
        expected = np.array([[reference.gaussian(q, k) / temperature for k in keys[start:]] for q in queries])
        near = expected > expected.max(axis=1, keepdims=True) - 40
        assert found[near] == pytest.approx(expected[near], abs=backend.tolerance(expected[near]))
        assert (found[~near] < found.max() - 30).all()


@pytest.mark.parametrize("shift", [0.0, 30.0, 3e3])
@pytest.mark.parametrize("hidden", [False, True])
def test_rows_near_the_best_that_is_seen_are_told_by_differences(shift: float, hidden: bool) -> None:
    """Rows near the best are told by differences, also far from the origin, and where the nearest rows are hidden."""
    keys = (GENERATOR.standard_normal((500, 64)) + shift).astype(np.float32)
    queries = keys[:7] + np.float32(1e-2)
    seen = np.ones((7, 500), np.bool_)
    if hidden:
        seen[:, :7] = False
    exactly = -0.5 * ((queries[:, None].astype(float) - keys) ** 2).sum(-1) / 0.05
    halves = 0.5 * (keys.astype(float) ** 2).sum(-1).astype(np.float32)
    for ask in (by_halves(halves).ask, COMPATIBILITIES["gaussian"].ask):
        found = ask(queries, 1 / 0.05)(keys, 0, seen)
        best = np.where(seen, exactly, -np.inf).max(axis=1, keepdims=True)
        near = seen & (exactly > best - 40)
        assert found[near] == pytest.approx(exactly[near], rel=1e-5, abs=1e-4)


@every_backend
@pytest.mark.parametrize("pushed", [-np.inf, -1e5])
def test_a_row_that_a_bias_pushes_out_is_not_the_best(backend: Backend, pushed: float) -> None:
    """Rows far below one that a bias pushes out are told by differences, as if that one were not there."""
    queries, keys, left = far_ring()
    values = np.arange(len(keys)) % 7.0
    expected = weighted_mean(queries, keys, left, values)
    wide = Backend(backend.library, "float64" if backend.dtype == "float64" else "float32")
    asked, stored, held, bias = (wide.array(x) for x in (queries, keys, values, np.where(left, 0.0, pushed)))
    for halves in (None, 0.5 * (keys**2).sum(-1)):
        compared = "gaussian" if halves is None else by_halves(wide.array(halves))
        found = soft_lookup(asked, stored, held, compatibility=compared, temperature=1.0, bias=bias)
        assert exact(found.value)[0] == pytest.approx(expected, rel=1e-3)


def test_squares_that_are_no_numbers_are_not_used() -> None:
    """Lengths beyond float32, or damaged ones, leave the way that needs none."""
    for wrong in (np.inf, np.nan):
        found = by_halves(np.full(40, wrong)).ask(QUERIES, 1.0)(KEYS, 0)
        assert found == pytest.approx(COMPATIBILITIES["gaussian"].ask(QUERIES, 1.0)(KEYS, 0))


@every_backend
def test_cosine_may_be_given_the_lengths_of_keys(backend: Backend) -> None:
    """With 1 / ‖k‖ known the scores are those of the plain cosine, in every block of keys."""
    wide = Backend(backend.library, "float64" if backend.dtype == "float64" else "float32")
    queries, keys = backend.rounded(QUERIES), backend.rounded(KEYS)
    known = wide.array([1 / math.hypot(*key) for key in keys])
    scorer = cosine(known).ask(wide.array(queries), 1 / 0.05)
    for start in (0, 7, 39):
        found = exact(scorer(wide.array(keys[start:]), start))
        expected = [[reference.cosine(q, k) / 0.05 for k in keys[start:]] for q in queries]
        assert found == pytest.approx(np.array(expected), abs=backend.tolerance(np.ravel(expected)))


@every_backend
def test_bilinear_takes_queries_of_another_width(backend: Backend) -> None:
    """qᵀWk with a W of shape (query width, key width)."""
    matrix, queries = GENERATOR.standard_normal((3, 5)), GENERATOR.standard_normal((4, 3))
    score = reference.bilinear(matrix.tolist())
    expected = [[score(q, k) for k in backend.rounded(KEYS)] for q in backend.rounded(queries)]
    found = logits(bilinear(matrix), backend, queries, KEYS)
    assert found == pytest.approx(np.array(expected), abs=2 * backend.tolerance(np.ravel(expected)))


@every_backend
def test_additive_scores_pairs(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """vᵀtanh(W_q q + W_k k), also when the pairs are scored a few rows at a time."""
    w_q, w_k, v = (GENERATOR.standard_normal(shape) for shape in ((6, 3), (6, 5), (6,)))
    queries = GENERATOR.standard_normal((4, 3))
    score = reference.additive(w_q.tolist(), w_k.tolist(), v.tolist())
    expected = [[score(q, k) for k in backend.rounded(KEYS)] for q in backend.rounded(queries)]
    for paired in (distances.PAIRED, 50):
        monkeypatch.setattr(distances, "PAIRED", paired)
        found = logits(additive(w_q, w_k, v), backend, queries, KEYS)
        assert found == pytest.approx(np.array(expected), abs=2 * backend.tolerance(np.ravel(expected)))


def test_any_function_is_a_compatibility() -> None:
    """f(queries, keys) -> scores is called with blocks, and its scores are divided by the temperature."""
    answers = soft_lookup(QUERIES, KEYS, KEYS, compatibility=lambda q, k: 3 * q @ k.T, temperature=3.0)
    assert answers.value == pytest.approx(soft_lookup(QUERIES, KEYS, KEYS, compatibility="dot").value)


def test_a_function_may_keep_its_scores() -> None:
    """What a function returns is not written into."""
    kept = QUERIES @ KEYS.T
    before = kept.copy()
    soft_lookup(QUERIES, KEYS, KEYS, compatibility=lambda _queries, _keys: kept, temperature=2.0)
    assert np.array_equal(kept, before)


def test_a_function_with_scores_of_another_shape_is_refused() -> None:
    """A compatibility function must return one score per pair."""
    with pytest.raises(ShapeError, match=r"expected scores of shape \(3, 40\).*got \(40, 3\)"):
        soft_lookup(QUERIES, KEYS, KEYS, compatibility=lambda q, k: k @ q.T)


@pytest.mark.parametrize("origin", [1e3, 1e6, -1e8])
@every_backend
def test_gaussian_does_not_cancel_far_from_the_origin(backend: Backend, origin: float) -> None:
    """Moving queries and keys together changes nothing, as far as their type can hold the moved numbers."""
    if backend.dtype not in ("float32", "float64"):
        pytest.skip("16 bits cannot tell numbers apart so far from the origin")
    step = 2.0 ** math.ceil(math.log2(abs(origin) * backend.epsilon)) * 4
    grid = GENERATOR.integers(-8, 8, (50, 5)) * step
    found = logits("gaussian", backend, grid[:3] + origin, grid + origin, temperature=step**2)
    expected = np.array([[reference.gaussian(q, k) / step**2 for k in grid] for q in grid[:3]])
    assert found == pytest.approx(expected, abs=backend.tolerance(np.ravel(expected)))


@every_backend
def test_gaussian_tells_neighbours_apart_at_a_sharp_temperature(backend: Backend) -> None:
    """Where the cancellation would be visible in logits, rows near the peak are scored by their differences."""
    if backend.dtype not in ("float32", "float64"):
        pytest.skip("16 bits cannot tell these neighbours apart")
    keys = backend.rounded(np.concatenate([KEYS * 100, KEYS[:1] + np.arange(3)[:, None] * 1e-3]))
    queries, temperature = backend.rounded(KEYS[:1]), 1e-6
    found = logits("gaussian", backend, queries, keys, temperature)[0, -3:]
    expected = [reference.gaussian(queries[0], key) / temperature for key in keys[-3:]]
    assert found == pytest.approx(expected, rel=8 * backend.epsilon, abs=1e-12)


@every_backend
@pytest.mark.parametrize("size", [1e-30, 1e-4, 1e4, 1e30])
def test_cosine_neither_overflows_nor_underflows(backend: Backend, size: float) -> None:
    """The length of the vectors does not matter, however short or long they are."""
    if backend.dtype == "float16":
        pytest.skip("float16 ends at 65504")
    found = logits("cosine", backend, QUERIES / size, KEYS * size)
    queries, keys = backend.rounded(QUERIES / size), backend.rounded(KEYS * size)
    expected = np.array([[reference.cosine(q, k) for k in keys] for q in queries])
    assert found == pytest.approx(expected, abs=8 * backend.epsilon)


@every_backend
def test_cosine_refuses_zero_vectors_by_number(backend: Backend) -> None:
    """A vector of zeros has no direction; the message says which one it is."""
    keys = KEYS.copy()
    keys[17] = 0
    with pytest.raises(ZeroVector, match=r"keys\[17\] is a zero vector"):
        soft_lookup(backend.array(QUERIES), backend.array(keys), backend.array(KEYS), compatibility="cosine")
    queries = QUERIES * [[1], [0], [1]]
    with pytest.raises(ZeroVector, match=r"queries\[1\] is a zero vector"):
        soft_lookup(backend.array(queries), backend.array(KEYS), backend.array(KEYS), compatibility="cosine")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "uniform"])
def test_widths_that_differ_are_refused(name: str) -> None:
    """Queries and keys are compared number by number, except under a matrix."""
    with pytest.raises(ShapeError, match="width 4, but the keys have width 5"):
        soft_lookup(QUERIES[:, :4], KEYS, KEYS, compatibility=name)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("dots", NotExpressible, "expected one of dot, .* got 'dots'"),
        ("bilinear", NotExpressible, "needs its matrices"),
        (bilinear(np.eye(4)), ShapeError, "queries of width 5, got"),
        (bilinear(np.ones((5, 4))), ShapeError, "width 4, but the keys have width 5"),
        (additive(np.eye(4), np.eye(4), np.ones(3)), ShapeError, "additive takes"),
        (additive(np.eye(4), np.ones((4, 5)), np.ones(4)), ShapeError, "query matrix takes width 4"),
        (additive(np.ones((4, 5)), np.eye(4), np.ones(4)), ShapeError, "width 4, but the keys have width 5"),
        (lambda q, k: (q @ k.T).astype(str), KindError, "real numbers"),
        (lambda q, k: (q @ k.T) * np.nan, NotFinite, "not a finite number"),
    ],
)
def test_what_cannot_be_compared_is_refused(given: Any, error: type[Exception], message: str) -> None:
    """Names, matrices and functions that do not fit say what is expected."""
    with pytest.raises(error, match=message):
        soft_lookup(QUERIES, KEYS, KEYS, compatibility=given)
