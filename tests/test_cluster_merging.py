"""Answers of shards merged: the same as one lookup of all rows, and errors that hold as often as they say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import softkv
from softkv.answer import Answers
from softkv.doors.cluster.best import merged_best
from softkv.doors.cluster.merging import Sides, over_all

from . import reference

QUERIES, ROWS = 7, 60
RNG = np.random.default_rng(0)
KEYS, ASKED = RNG.standard_normal((ROWS, 4)), RNG.standard_normal((QUERIES, 4))
NAMES = ["red", "green", "blue", "grey"]
VALUES: dict[str, Any] = {
    "number": 1e6 + RNG.standard_normal(ROWS),
    "vector": RNG.standard_normal((ROWS, 3)).astype(np.float32),
    "label": [NAMES[code] for code in RNG.integers(0, 4, ROWS)],
}
SHARDS = [np.sort(part) for part in np.split(RNG.permutation(ROWS), [3, 20, 21])]  # of 3, 17, 1 and 39 rows
TEMPERATURE = 0.4


def of_some(kind: str, rows: npt.NDArray[np.int64], *, mask: Any = None, **options: Any) -> Answers:
    """What a shard of these rows answers, which it names by their numbers among all."""
    values = VALUES[kind]
    some = [values[row] for row in rows] if kind == "label" else values[rows]
    given = {"compatibility": "cosine", "temperature": TEMPERATURE, "show": ROWS, **options}
    mask = None if mask is None else mask[..., rows]
    found: Any = softkv.soft_lookup(ASKED, KEYS[rows], some, mask=mask, **given)
    return replace(found, rows=np.where(found.rows >= 0, rows[found.rows], -1))


def merged(parts: Sequence[Answers], *, show: int) -> Answers:
    """What shards answer together."""
    return Sides(tuple(parts)).merged(show)


def cells(kind: str, labels: tuple[object, ...] | None) -> Any:
    """What is blended of rows."""
    if labels is None:
        return lambda rows: VALUES[kind][rows]
    return lambda rows: np.array([labels.index(VALUES[kind][row]) for row in rows], np.int64)


def in_order_of(labels: Sequence[object] | None, other: Answers) -> Any:
    """The value of answers, with labels in this order."""
    return other.value if labels is None else other.value[:, [(other.labels or ()).index(one) for one in labels]]


def require_same(found: Answers, whole: Answers) -> None:
    """Refuse answers that differ from those of one lookup by more than rounding."""
    assert found.value.dtype == whole.value.dtype
    np.testing.assert_allclose(found.value, in_order_of(found.labels, whole), rtol=2e-7, atol=1e-7)
    for name in ("log_mass", "effective", "mass", "spread"):
        mine, theirs = getattr(found, name), getattr(whole, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12, err_msg=name)  # beside numbers of 1e6
    for name in ("scored", "seen", "rows"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    np.testing.assert_allclose(found.weights, whole.weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.scores, whole.scores, rtol=1e-9)
    assert found.count == whole.count == ROWS


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("temperature", [0.01, 0.4, np.geomspace(0.001, 10.0, QUERIES)])
def test_parts_say_together_what_one_lookup_of_all_rows_says(kind: str, temperature: Any) -> None:
    """They do at any temperature, whichever labels each part meets first."""
    parts = [of_some(kind, rows, temperature=temperature) for rows in SHARDS]
    found = merged(parts, show=ROWS)
    require_same(found, of_some(kind, np.arange(ROWS), temperature=temperature))
    if kind == "label":
        assert parts[0].labels != parts[1].labels
        assert found.labels is not None
        assert found.labels[: len(parts[0].labels or ())] == parts[0].labels
        assert set(found.labels) == set(NAMES)


def test_parts_say_together_what_the_reference_says() -> None:
    """The reference takes one query and one row of numbers at a time."""
    found = merged([of_some("number", rows) for rows in SHARDS], show=5)
    for query, answer in zip(ASKED, found, strict=True):
        expected = reference.lookup(
            query, KEYS, VALUES["number"][:, None], score=reference.cosine, temperature=TEMPERATURE
        )
        assert answer.value == pytest.approx(expected.value[0], rel=1e-12)
        assert answer.spread == pytest.approx(expected.spread[0], rel=1e-6)
        assert answer.log_mass == pytest.approx(expected.log_mass, rel=1e-12)
        assert answer.effective == pytest.approx(expected.effective, rel=1e-9)
        assert [one.row for one in answer.contributors] == reference.heaviest(expected.logits, 5)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("k", [1, 3, 45, ROWS])
def test_the_best_of_all_are_blended(kind: str, k: int) -> None:
    """They may be anywhere, also where a shard has fewer."""
    parts = [of_some(kind, rows, k=k, show=k + 1) for rows in SHARDS]
    labels = merged(parts, show=0).labels
    found = merged_best(Sides(tuple(parts), labels), k, TEMPERATURE, cells(kind, labels), show=k + 1)
    require_same(found, of_some(kind, np.arange(ROWS), k=k, show=k + 1))


def test_labels_that_a_part_alone_knows_already_are_left_out() -> None:
    """A shard may name labels of items that came after the question was asked; they have no share."""
    parts = [of_some("label", rows) for rows in SHARDS]
    first, labels = parts[0], tuple(dict.fromkeys(label for one in parts for label in one.labels or ()))
    newer = replace(first, labels=(*(first.labels or ()), "new"), value=np.pad(first.value, ((0, 0), (0, 1))))
    found = Sides((newer, *parts[1:]), labels).merged(ROWS)
    assert found.labels == labels
    np.testing.assert_array_equal(found.value, Sides(tuple(parts), labels).merged(ROWS).value)


def test_a_mass_that_one_part_does_not_know_is_unknown() -> None:
    """It is for the queries that this part is asked alone; their weights and their value are those of the k best."""
    parts, values = [of_some("number", rows, k=3, show=4) for rows in SHARDS], cells("number", None)
    whole = merged_best(Sides(tuple(parts)), 3, TEMPERATURE, values, show=3)
    masses = parts[0].log_mass.copy()
    masses[2] = np.nan
    given = {"error_kind": "calibrated", "log_mass": masses, "log_mass_error": np.where(np.isnan(masses), np.nan, 0.1)}
    found = merged_best(Sides((replace(parts[0], **given), *parts[1:])), 3, TEMPERATURE, values, show=3)
    assert (found[2].log_mass, found[2].mass, found[2].log_mass_error) == (None, None, None)
    assert found[2].value == pytest.approx(whole[2].value, rel=1e-9)
    assert found.weights[2] == pytest.approx(whole.weights[2] / whole.weights[2].sum(), rel=1e-9)
    assert (found[1].log_mass, found[1].mass) == pytest.approx((whole[1].log_mass, whole[1].mass), rel=1e-9)
    assert 0.0 < found[1].log_mass_error <= 0.11


@pytest.mark.parametrize("kind", VALUES)
def test_a_query_that_sees_nothing_in_a_part_is_answered_by_the_others(kind: str) -> None:
    """Each query has a mask, and some masks leave nothing of a shard."""
    mask = np.random.default_rng(1).random((QUERIES, ROWS)) < 0.3
    mask[2, SHARDS[1]] = False
    mask[5, SHARDS[3]] = False
    mask[:, SHARDS[0][0]] = True
    parts = []
    for rows in SHARDS:
        some = np.flatnonzero(mask[:, rows].any(1))
        parts.append(over_all(masked(kind, rows, mask, some), some, QUERIES))
    require_same(merged(parts, show=ROWS), of_some(kind, np.arange(ROWS), mask=mask))


def masked(kind: str, rows: npt.NDArray[np.int64], mask: Any, queries: npt.NDArray[np.int64]) -> Answers:
    """What a shard answers to those queries that see any of it."""
    values = VALUES[kind]
    some = [values[row] for row in rows] if kind == "label" else values[rows]
    given = {"compatibility": "cosine", "temperature": TEMPERATURE, "show": ROWS}
    found: Any = softkv.soft_lookup(ASKED[queries], KEYS[rows], some, mask=mask[np.ix_(queries, rows)], **given)
    return replace(found, rows=np.where(found.rows >= 0, rows[found.rows], -1))


def test_masses_may_be_far_apart_and_without_end() -> None:
    """A shard of no weight at all changes nothing, and no number is lost in between."""
    near, far = of_some("number", SHARDS[1]), of_some("number", SHARDS[3])
    for below in (50.0, 5000.0):
        found = merged([near, replace(far, log_mass=far.log_mass - below)], show=ROWS)
        np.testing.assert_allclose(found.value, near.value, rtol=1e-12)
        np.testing.assert_allclose(found.log_mass, near.log_mass, rtol=1e-12)
        np.testing.assert_allclose(found.effective, near.effective, rtol=1e-9)


def test_no_queries_get_no_answers() -> None:
    """What they get has the shapes that answers have."""
    none: Any = softkv.soft_lookup(np.empty((0, 4)), KEYS, VALUES["vector"])
    assert merged([none, none], show=3).value.shape == (0, 3)
    best = merged_best(Sides((none, none)), 2, 1.0, lambda rows: VALUES["vector"][rows], show=3)
    assert best.value.shape == (0, 3)


# Errors


def stated(kind: str, value: Any, spread: Any, errors: Any, log_errors: Any) -> Answers:
    """An answer of one shard for many draws, with what it states."""
    count = len(value)
    log_mass, effective, effective_error, spread_error = np.zeros(count), np.full(count, 5.0), None, None
    if kind == "measured":
        effective_error, spread_error = np.full(count, 0.1), np.full(count, 0.05)
    return Answers(
        value=value,
        spread=spread,
        log_mass=log_mass,
        effective=effective,
        mass=np.full(count, 0.5),
        scored=np.full(count, 10),
        seen=np.full(count, 100),
        temperature=1.0,
        rows=np.empty((count, 0), np.int64),
        weights=np.empty((count, 0)),
        scores=np.empty((count, 0)),
        error=np.full(count, errors),
        error_kind=kind,
        log_mass_error=np.full(count, log_errors),
        effective_error=effective_error,
        spread_error=spread_error,
        route=kind,
        rows_read=np.full(count, 10),
        count=100,
    )


@pytest.mark.parametrize("shards", [1, 2, 16])
@pytest.mark.parametrize(("errors", "log_errors"), [(0.3, 0.0), (0.0, 0.2), (0.1, 0.05)])
def test_measured_errors_hold_as_often_as_those_of_the_shards(shards: int, errors: float, log_errors: float) -> None:
    """In many draws each shard is within what it states in 95% of them; and they are not far too wide."""
    rng, draws, far = np.random.default_rng(shards), 4000, 1.96
    true, sizes = rng.normal(0.0, 1.0, shards), rng.normal(0.0, 0.5, shards)
    parts = []
    for value, size in zip(true, sizes, strict=True):
        off, moved = rng.standard_normal((2, draws))
        part = stated("measured", value + errors / far * off, np.full(draws, 0.7), errors, log_errors)
        parts.append(replace(part, log_mass=size + log_errors / far * moved))
    found = merged(parts, show=0)
    shares = np.exp(sizes) / np.exp(sizes).sum()
    assert found.error is not None
    assert found.log_mass_error is not None
    missed = np.abs(found.value - shares @ true)
    assert (missed <= found.error).mean() >= 0.945, "values are off by more than is stated"
    assert np.quantile(missed, 0.95) >= 0.5 * found.error.mean() or (shards, errors) == (1, 0.0)
    assert (np.abs(found.log_mass - np.log(np.exp(sizes).sum())) <= found.log_mass_error).mean() >= 0.945
    assert found.error_kind == "measured"


@pytest.mark.parametrize("kind", ["exact", "bound", "calibrated"])
def test_other_errors_hold_however_the_shards_are_off(kind: str) -> None:
    """They hold at every corner: each value and each mass as far off as stated, in whatever direction."""
    rng, shards, errors, log_errors = np.random.default_rng(3), 5, 0.2, 0.3
    true, sizes = rng.normal(0.0, 1.0, shards), rng.normal(0.0, 1.0, shards)
    corners = np.array(np.meshgrid(*[[-1.0, 1.0]] * (2 * shards))).reshape(2 * shards, -1)
    parts = []
    for number, (value, size) in enumerate(zip(true, sizes, strict=True)):
        off, moved = corners[number], corners[shards + number]
        part = stated(kind, value + errors * off, np.full(len(off), 0.7), errors, log_errors)
        parts.append(replace(part, log_mass=size + log_errors * moved))
    found = merged(parts, show=0)
    shares = np.exp(sizes) / np.exp(sizes).sum()
    assert found.error is not None
    missed = np.abs(found.value - shares @ true)
    assert (missed <= found.error).all(), "values are off by more than is stated"
    assert missed.max() >= 0.3 * found.error.max()
    assert found.error_kind == kind
    if kind == "exact":
        assert found.log_mass_error is None
    else:
        assert found.log_mass_error is not None
        assert (np.abs(found.log_mass - np.log(np.exp(sizes).sum())) <= found.log_mass_error + 1e-12).all()


def test_the_spread_and_the_effective_number_are_as_sure_as_they_say() -> None:
    """Many draws of measured parts show it."""
    rng, draws, far, shards = np.random.default_rng(4), 4000, 1.96, 4
    true, sizes = rng.normal(0.0, 1.0, shards), rng.normal(0.0, 0.5, shards)
    parts = []
    for value, size in zip(true, sizes, strict=True):
        off, moved, wide, many = rng.standard_normal((4, draws))
        part = stated("measured", value + 0.05 / far * off, 0.7 + 0.05 / far * wide, 0.05, 0.05)
        part = replace(part, effective=5.0 + 0.1 / far * many, log_mass=size + 0.05 / far * moved)
        parts.append(part)
    found = merged(parts, show=0)
    shares = np.exp(sizes) / np.exp(sizes).sum()
    spread = np.sqrt(shares @ (0.7**2 + (true - shares @ true) ** 2))
    effective = np.exp(shares @ (np.log(5.0) - np.log(shares)))
    assert (np.abs(found.spread - spread) <= found.spread_error).mean() >= 0.945
    assert (np.abs(found.effective - effective) <= found.effective_error).mean() >= 0.945
    assert found.spread_error is not None
    assert found.spread_error.max() < 0.2
    assert found.effective_error is not None
    assert found.effective_error.max() < 2.0


def test_each_query_is_as_sure_as_the_least_sure_part() -> None:
    """That part says how it was answered, and what is not known of one part is not known of all."""
    two = np.zeros(2)
    exact, drawn = stated("exact", two, two, 1e-9, 1e-9), stated("measured", two, two, 0.1, 0.02)
    mixed = replace(drawn, error_kind=("calibrated", "exact"), route=("calibrated", "scan"))
    found = merged([exact, drawn, mixed], show=0)
    assert found.error_kind == ("calibrated", "measured")
    assert found.route == ("calibrated", "measured")
    assert [answer.effective_error is None for answer in found] == [True, False]
    assert merged([exact, exact], show=0).effective_error is None
    assert merged([exact, replace(drawn, error=None, error_kind="unknown")], show=0).error is None


@pytest.mark.parametrize("k", [1, 2])
def test_the_best_are_told_apart_no_better_than_rounding_lets(k: int) -> None:
    """A row of another shard that is as near as the last of the best might be in its place, and the error says so."""
    parts = [of_some("number", rows, k=k, show=k + 1) for rows in SHARDS]
    parts = [replace(one, error=np.full(QUERIES, 1e-9), log_mass_error=np.full(QUERIES, 1e-7)) for one in parts]
    values = cells("number", None)
    apart = merged_best(Sides(tuple(parts)), k, TEMPERATURE, values, show=3)
    assert apart.error is not None
    assert apart.error.max() < 1e-5
    other = replace(parts[1], rows=np.where(parts[1].rows >= 0, ROWS - 1 - parts[1].rows, -1))
    third = replace(parts[1], rows=np.where(parts[1].rows >= 0, (parts[1].rows + 7) % ROWS, -1))
    near = merged_best(Sides((parts[1], other, third)), k, TEMPERATURE, values, show=3)
    assert near.error is not None
    for query in range(QUERIES):
        tied = values(np.array([one.rows[query, 0] for one in (parts[1], other, third)]))
        if k == 1:  # any of the three may be the best
            assert np.abs(tied - near.value[query]).max() <= near.error[query]
    assert (near.error > 1e-3).mean() > 0.5
