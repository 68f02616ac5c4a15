"""The lookup over all rows: against the reference, in blocks of any size, at any temperature; and what it takes."""

import importlib
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from softkv.errors import AllMasked, EmptyStore, NotFinite
from softkv.maths.blending import Labels, Numbers, Vectors
from softkv.maths.compatibility import COMPATIBILITIES
from softkv.maths.heads import Heads
from softkv.maths.lookup import Found, lookup

from . import reference
from .backends import BACKENDS, Backend, every_backend, exact
from .scales import scaled

GENERATOR = np.random.default_rng(11)
QUERIES = GENERATOR.standard_normal((5, 6))
KEYS = GENERATOR.standard_normal((90, 6))
VALUES = GENERATOR.standard_normal((90, 3))
MASK = GENERATOR.random((5, 90)) < 0.4
BIAS = np.where(GENERATOR.random(90) < 0.1, -math.inf, GENERATOR.standard_normal(90))
NAMES = sorted(COMPATIBILITIES)


@pytest.fixture(params=["whole", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything in one block, or queries and rows in blocks of a few."""
    if request.param == "small blocks":
        scaled(monkeypatch, rows=7, queries=2)
    return str(request.param)


def found_by(backend: Backend, **options: Any) -> Found:
    """The lookup of the shared queries, keys and values."""
    return lookup(backend.array(QUERIES), backend.array(KEYS), Vectors(backend.array(VALUES)), **options)


def check(backend: Backend, found: Found, expected: Callable[[int], reference.Expected]) -> None:
    """Compare every query of a finding with the reference."""
    for query in range(len(QUERIES)):
        wanted = expected(query)
        near = backend.tolerance(wanted.logits)
        assert exact(found.value)[query] == pytest.approx(wanted.value, abs=near * np.abs(VALUES).max())
        assert exact(found.log_mass)[query] == pytest.approx(wanted.log_mass, abs=near)
        assert exact(found.effective)[query] == pytest.approx(wanted.effective, rel=near * 10)
        assert exact(found.mass)[query] == pytest.approx(wanted.mass, rel=near)
        assert exact(found.scored)[query] == sum(weight > 0 for weight in wanted.weights)
        rows = reference.heaviest(wanted.logits, 10)
        assert exact(found.rows)[query].tolist() == rows + [-1] * (10 - len(rows))
        shares = [math.exp(wanted.logits[row] - wanted.log_mass) for row in rows]
        assert exact(found.weights)[query][: len(rows)] == pytest.approx(shares, rel=near, abs=near)


@every_backend
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_every_compatibility_agrees_with_the_reference(
    backend: Backend, name: str, temperature: float, blocks: str
) -> None:
    """Value, log mass, effective number, share and contributors, on every backend, however the rows are cut."""
    found = found_by(backend, compatibility=name, temperature=temperature)
    queries, keys, values = (backend.rounded(x) for x in (QUERIES, KEYS, VALUES))
    score = getattr(reference, name)
    check(backend, found, lambda i: reference.lookup(queries[i], keys, values, score=score, temperature=temperature))


@every_backend
@pytest.mark.parametrize("k", [1, 4, 89, 90, 500])
def test_top_k_renormalises_and_says_what_it_holds(backend: Backend, k: int, blocks: str) -> None:
    """With k the value is the mean of the k heaviest rows, `mass` their share of all; more than there are is all."""
    found = found_by(backend, k=k)
    queries, keys, values = (backend.rounded(x) for x in (QUERIES, KEYS, VALUES))
    check(backend, found, lambda i: reference.lookup(queries[i], keys, values, k=k))


@every_backend
@pytest.mark.parametrize("k", [None, 3])
def test_masks_and_biases_agree_with_the_reference(backend: Backend, k: int | None, blocks: str) -> None:
    """Masked rows count for nothing; a bias is added to the score; both with per-query temperatures and top-k."""
    temperatures = np.array([0.5, 1.0, 2.0, 0.25, 4.0])
    mask = backend.array(MASK) > 0
    found = found_by(backend, k=k, mask=mask, bias=backend.array(BIAS), temperature=backend.array(temperatures))
    queries, keys, values, bias = (backend.rounded(x) for x in (QUERIES, KEYS, VALUES, BIAS))
    check(
        backend,
        found,
        lambda i: reference.lookup(
            queries[i], keys, values, k=k, mask=MASK[i].tolist(), bias=bias, temperature=temperatures[i]
        ),
    )


@every_backend
def test_causal_lookups_see_no_later_row(backend: Backend, blocks: str) -> None:
    """Query i sees the rows up to i, also together with a mask."""
    found = found_by(backend, causal=True)
    queries, keys, values = (backend.rounded(x) for x in (QUERIES, KEYS, VALUES))
    check(
        backend,
        found,
        lambda i: reference.lookup(queries[i], keys, values, mask=[row <= i for row in range(90)]),
    )


def test_scores_are_given_without_bias_and_temperature() -> None:
    """The score of a contributor is its compatibility alone."""
    bias = np.where(np.isfinite(BIAS), BIAS, 0.0)
    found = lookup(QUERIES, KEYS, Vectors(VALUES), bias=bias, temperature=0.2, compatibility="dot")
    for query in range(5):
        expected = [reference.dot(QUERIES[query], KEYS[row]) for row in found.rows[query]]
        assert found.scores[query] == pytest.approx(expected, abs=1e-12)


@every_backend
@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_logits_of_ten_thousand_do_not_overflow(backend: Backend, scale: float) -> None:
    """Logits of up to ±10,000 give the answer of the reference within its rounding."""
    if backend.dtype == "bfloat16":
        pytest.skip("bfloat16 holds no two different numbers there")
    keys = backend.rounded(np.linspace(0.5, 1, 90)[:, None])
    query = backend.rounded([[scale]])
    found = lookup(
        backend.array(query), backend.array(keys), Numbers(backend.array(VALUES[:, :1])), compatibility="dot"
    )
    expected = reference.lookup(query[0], keys, backend.rounded(VALUES[:, :1]), score=reference.dot)
    assert exact(found.value)[0] == pytest.approx(expected.value, abs=backend.tolerance(expected.logits))
    assert exact(found.log_mass)[0] == pytest.approx(expected.log_mass, rel=4 * backend.epsilon)


@every_backend
@pytest.mark.parametrize("name", [name for name in NAMES if name != "uniform"])
def test_a_temperature_towards_zero_is_the_hard_lookup(backend: Backend, name: str) -> None:
    """At 1e-6 the answer is exactly the value of the best row."""
    found = found_by(backend, compatibility=name, temperature=1e-6)
    queries, keys = backend.rounded(QUERIES), backend.rounded(KEYS)
    for query in range(5):
        scores = [getattr(reference, name)(queries[query], key) for key in keys]
        assert exact(found.value)[query].tolist() == backend.rounded(VALUES)[int(np.argmax(scores))]
        assert exact(found.effective)[query] == 1
        assert exact(found.weights)[query][0] == pytest.approx(1)


@every_backend
@pytest.mark.parametrize("name", NAMES)
def test_a_temperature_towards_infinity_is_the_mean(backend: Backend, name: str) -> None:
    """At 1e6 all rows count alike."""
    found = found_by(backend, compatibility=name, temperature=1e6)
    mean = np.mean(backend.rounded(VALUES), axis=0)
    assert exact(found.value) == pytest.approx(np.tile(mean, (5, 1)), abs=1e-4)
    assert exact(found.effective) == pytest.approx(np.full(5, 90), rel=1e-5)


@every_backend
def test_a_single_row_is_the_answer(backend: Backend) -> None:
    """With one row its value comes back unchanged, and its weight is 1."""
    found = lookup(backend.array(QUERIES), backend.array(KEYS[:1]), Vectors(backend.array(VALUES[:1])))
    assert exact(found.value).tolist() == backend.rounded(VALUES[:1]) * 5
    assert exact(found.weights)[:, 0] == pytest.approx(np.ones(5))
    assert exact(found.effective).tolist() == exact(found.mass).tolist() == [1.0] * 5


@every_backend
def test_exact_duplicates_count_once_each(backend: Backend) -> None:
    """Rows given twice leave the value alone and double the mass."""
    once = found_by(backend)
    keys, values = np.concatenate([KEYS, KEYS]), np.concatenate([VALUES, VALUES])
    twice = lookup(backend.array(QUERIES), backend.array(keys), Vectors(backend.array(values)))
    assert exact(twice.value) == pytest.approx(exact(once.value), abs=4 * backend.epsilon)
    assert exact(twice.log_mass) == pytest.approx(exact(once.log_mass) + math.log(2), abs=8 * backend.epsilon)
    assert exact(twice.effective) == pytest.approx(2 * exact(once.effective), rel=64 * backend.epsilon)


@every_backend
@pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0, 100.0])
def test_answers_stay_in_the_hull_of_the_values(backend: Backend, temperature: float) -> None:
    """No coordinate of an answer lies outside the values it was made of, in any type below float64 exactly."""
    generator = np.random.default_rng(5)
    keys = generator.standard_normal((3000, 6))
    values = backend.array(np.stack([generator.standard_normal(3000), np.full(3000, 0.1)], axis=1))
    value = exact(lookup(backend.array(QUERIES), backend.array(keys), Vectors(values), temperature=temperature).value)
    slack = 1e-14 if backend.dtype == "float64" else 0.0
    assert (value >= exact(values).min(axis=0) - slack).all()
    assert (value <= exact(values).max(axis=0) + slack).all()


@every_backend
@pytest.mark.parametrize("heads", [False, True])
def test_shares_add_up_where_logits_leave_log_mass_no_digits(backend: Backend, heads: bool) -> None:
    """The logarithm of four is less than one digit of logits of 1e20, and each of four equal rows has a quarter."""
    keys, values = backend.array(np.ones((4, 2))), Vectors(backend.array(np.eye(4)))
    given: dict[str, Any] = {"heads": Heads(w_q=np.eye(2)[None], w_k=np.eye(2)[None])} if heads else {}
    found = lookup(keys[:1], keys, values, compatibility="dot", temperature=1e-20, k=2, **given)
    assert exact(found.weights) == pytest.approx(np.full((1, 4), 0.25))
    assert exact(found.mass).reshape(-1) == pytest.approx([0.5])
    if heads:
        assert exact(found.head_weights)[0] == pytest.approx(np.full((1, 4), 0.25))


@every_backend
def test_integers_are_converted(backend: Backend) -> None:
    """Queries, keys and values may be whole numbers; they are computed with as floats."""
    integers = Backend(backend.library, "int64")
    keys, values = GENERATOR.integers(-3, 4, (20, 6)), GENERATOR.integers(-9, 10, (20, 2))
    queries = GENERATOR.integers(-3, 4, (5, 6))
    found = lookup(integers.array(queries), integers.array(keys), Vectors(integers.array(values)))
    for query in range(5):
        expected = reference.lookup(queries[query].tolist(), keys.tolist(), values.tolist())
        near = 9 * Backend(backend.library, "float32").tolerance(expected.logits)
        assert exact(found.value)[query] == pytest.approx(expected.value, abs=near)


@pytest.mark.parametrize(("k", "rows"), [(None, 90), (5, 5)])
@every_backend
def test_labels_blend_without_a_one_hot_matrix(backend: Backend, k: int | None, rows: int, blocks: str) -> None:
    """The distribution is the reference's mean of one-hot vectors."""
    codes = GENERATOR.integers(0, 4, 90)
    held = Labels(Backend(backend.library, "int64").array(codes), 4)
    found = lookup(backend.array(QUERIES), backend.array(KEYS), held, k=k)
    queries, keys = backend.rounded(QUERIES), backend.rounded(KEYS)
    for query in range(5):
        expected = reference.lookup(queries[query], keys, np.eye(4)[codes].tolist(), k=k)
        assert exact(found.value)[query] == pytest.approx(expected.value, abs=backend.tolerance(expected.logits))
        assert exact(found.value)[query].sum() == pytest.approx(1, abs=4 * backend.epsilon)
    assert exact(found.scored).tolist() == [rows] * 5


def test_labels_of_many_rows_take_little_memory() -> None:
    """Neither a one-hot matrix nor all logits are ever held: 1.6 GB and 80 MB here."""
    keys = np.zeros((200_000, 2), dtype=np.float32)
    held = Labels(np.arange(200_000) % 1000, 1000)
    queries = np.zeros((100, 2), dtype=np.float32)
    tracemalloc.start()
    lookup(queries, keys, held)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6


def test_values_of_rows_too_light_to_matter_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks below rounding all together are counted in the mass; where it is known how far values are, not in more."""
    scaled(monkeypatch, rows=10)
    keys = np.concatenate([np.zeros((10, 1)), np.full((80, 1), -100.0)]).astype(np.float32)
    values = np.ones((90, 1), dtype=np.float32)
    values[10:] = np.nan
    held = Vectors(values, (np.zeros(1), 1.0))
    found = lookup(np.ones((1, 1), np.float32), keys, held, compatibility="dot")
    assert found.value.tolist() == [[1.0]]
    assert found.log_mass == pytest.approx(np.array([math.log(10)]))
    with pytest.raises(NotFinite, match=r"values\[10\] holds NaN"):
        lookup(np.full((1, 1), 0.01, np.float32), keys, held, compatibility="dot")
    for queries in (1, 3):
        with pytest.raises(NotFinite, match=r"values\[10\] holds NaN"):
            lookup(np.ones((queries, 1), np.float32), keys, Vectors(values), compatibility="dot")


@every_backend
def test_leading_axes_are_batches(backend: Backend, blocks: str) -> None:
    """Leading axes of queries, keys and values are looked up one by one, with top-k, masks and biases too."""
    queries, keys, values = (GENERATOR.standard_normal(shape) for shape in ((2, 3, 4, 6), (2, 3, 20, 6), (2, 3, 20, 2)))
    mask, bias = GENERATOR.random((2, 1, 4, 20)) < 0.7, GENERATOR.standard_normal((3, 1, 20))
    options: dict[str, Any] = {"mask": backend.array(mask) > 0, "bias": backend.array(bias), "k": 5, "show": 3}
    together = lookup(*(backend.array(x) for x in (queries, keys)), Vectors(backend.array(values)), **options)
    for i in range(2):
        for j in range(3):
            options |= {"mask": backend.array(mask[i, 0]) > 0, "bias": backend.array(bias[j, 0])}
            alone = lookup(
                backend.array(queries[i, j]), backend.array(keys[i, j]), Vectors(backend.array(values[i, j])), **options
            )
            for name in ("value", "log_mass", "effective", "mass", "scored", "rows", "weights", "scores"):
                near = pytest.approx(exact(getattr(alone, name)), abs=64 * backend.epsilon)
                assert exact(getattr(together, name))[i, j] == near, name


@every_backend
def test_keys_may_be_shared_by_a_batch_of_queries(backend: Backend) -> None:
    """Queries with leading axes may ask keys without, as heads do."""
    queries = GENERATOR.standard_normal((2, 3, 4, 6))
    together = lookup(backend.array(queries), backend.array(KEYS), Vectors(backend.array(VALUES)), k=4)
    flat = lookup(backend.array(queries.reshape(24, 6)), backend.array(KEYS), Vectors(backend.array(VALUES)), k=4)
    assert exact(together.value).reshape(24, 3) == pytest.approx(exact(flat.value), abs=16 * backend.epsilon)
    assert exact(together.rows).reshape(24, 10).tolist() == exact(flat.rows).tolist()


@every_backend
@pytest.mark.parametrize("compatibility", COMPATIBILITIES)
def test_no_queries_are_no_answers(backend: Backend, compatibility: str) -> None:
    """An empty batch of queries gives empty findings of the right widths, also with a temperature for each of them."""
    queries, keys, values = (backend.array(x) for x in (QUERIES[:0], KEYS, VALUES))
    for temperature in (1.0, backend.array(np.zeros(0))):
        found = lookup(queries, keys, Vectors(values), compatibility=compatibility, temperature=temperature)
        assert (tuple(found.value.shape), tuple(found.rows.shape)) == ((0, 3), (0, 10))


@every_backend
def test_a_query_that_may_see_no_row_is_refused_by_number(backend: Backend, blocks: str) -> None:
    """All rows masked is an error, not the plain mean; so is a bias of -inf on all."""
    mask = MASK.copy()
    mask[3] = False
    with pytest.raises(AllMasked, match="query 3 may see no row"):
        lookup(
            backend.array(QUERIES[3:4].repeat(4, 0)),
            backend.array(KEYS),
            Vectors(backend.array(VALUES)),
            mask=backend.array(mask[:4]) > 0,
        )
    with pytest.raises(AllMasked, match="query 0 may see no row"):
        found_by(backend, bias=backend.array(np.full(90, -math.inf)))


def test_an_empty_store_is_refused() -> None:
    """There is no average of nothing."""
    with pytest.raises(EmptyStore, match="no rows to look up in"):
        lookup(QUERIES, KEYS[:0], Vectors(VALUES[:0]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [*(name for name in NAMES if name != "uniform"), "custom"])
@every_backend
def test_a_key_that_is_not_finite_is_an_error_by_number(backend: Backend, name: str, bad: float, blocks: str) -> None:
    """NaN and infinity in a key are found in the scores, and named by row."""
    keys = KEYS.copy()
    keys[57, 2] = bad
    compared = (lambda q, k: q @ k.T) if name == "custom" else name
    with pytest.raises(NotFinite, match=r"keys\[57\] holds NaN or infinity"):
        lookup(backend.array(QUERIES), backend.array(keys), Vectors(backend.array(VALUES)), compatibility=compared)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("k", [None, 89])
@every_backend
def test_a_value_or_query_that_is_not_finite_is_an_error_by_number(backend: Backend, bad: float, k: int | None) -> None:
    """NaN and infinity in queries and in values that are read are errors."""
    values, queries = VALUES.copy(), QUERIES.copy()
    values[57, 2] = queries[1, 1] = bad
    with pytest.raises(NotFinite, match=r"values\[57\] holds NaN or infinity"):
        lookup(backend.array(QUERIES), backend.array(KEYS), Vectors(backend.array(values)), k=k)
    with pytest.raises(NotFinite, match=r"queries\[1\] holds NaN or infinity"):
        lookup(backend.array(queries), backend.array(KEYS), Vectors(backend.array(VALUES)), k=k)


def test_scores_that_overflow_are_an_error_that_says_so() -> None:
    """Finite vectors whose product is not finite are named as such."""
    huge = np.full((1, 2), 1e30, dtype=np.float32)
    with pytest.raises(NotFinite, match=r"score of row 0 .* overflows float32"):
        lookup(huge, huge, Numbers(np.ones((1, 1))), compatibility="dot")


def test_float32_is_not_promoted_in_silence() -> None:
    """float32 keys and values give float32 answers, also for lists of queries and NumPy scalars as temperature."""
    keys, values = KEYS.astype(np.float32), Vectors(VALUES.astype(np.float32))
    found = lookup(QUERIES.tolist(), keys, values, temperature=np.float64(0.5), bias=np.zeros(90))
    assert found.value.dtype == np.float32
    assert BACKENDS[0].array(found.log_mass).dtype == np.float64


def test_on_a_large_device_blocks_are_as_large_as_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that have to be widened are widened some at a time, by the room of the device and not by that of a cache."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(rows, 4, generator=generator) for rows in (3, 500, 500))
    rows = (keys, keys.to(torch.bfloat16))
    expected = [lookup(queries, some, Vectors(values)).value for some in rows]
    tensors = importlib.import_module("softkv.maths.tensors")
    monkeypatch.setattr(tensors.Torch, "is_large_device", lambda _library, _x: True)
    monkeypatch.setattr(tensors, "room", lambda _device: 200)
    widened: list[int] = []
    cast = tensors.Torch.cast

    def watched(library: object, x: Any, dtype: Any) -> Any:
        if x.dtype == torch.bfloat16:
            widened.append(len(x))
        return cast(library, x, dtype)

    monkeypatch.setattr(tensors.Torch, "cast", watched)
    found = [lookup(queries, some, Vectors(values)).value for some in rows]
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, expected, strict=True))
    assert widened == [50] * 10
