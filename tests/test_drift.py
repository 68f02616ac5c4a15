"""Statistics of lists that follow rows that come and go: as if all rows had been measured then."""

from dataclasses import replace

import numpy as np
import pytest

from softkv.maths.drift import Drift, problem_of_drift, together
from softkv.maths.moments import measured
from softkv.maths.summaries import Lists

LISTS, WIDTH, LEADING = 5, 8, 3


def rows_of(seed: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Owners, keys and values of some rows, far from zero and of unlike size."""
    rng = np.random.default_rng(seed)
    owners = rng.integers(0, LISTS, count)
    keys = 20.0 * owners[:, None] + rng.standard_normal((count, WIDTH)) * np.geomspace(3, 0.1, WIDTH)
    return owners, keys, 1e4 + 100.0 * np.stack([keys[:, 0], np.sin(keys[:, 1]), keys.sum(1)], axis=1)


def lists_of(owners: np.ndarray, keys: np.ndarray, values: np.ndarray) -> Lists:
    """The statistics of rows, list by list."""
    order = np.argsort(owners, kind="stable")
    offsets = np.concatenate([[0], np.bincount(owners, minlength=LISTS).cumsum()])
    return measured(lambda a, b: (keys[order[a:b]], values[order[a:b]]), offsets, leading=LEADING)


def exact(lists: Lists, owners: np.ndarray, keys: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
    """What should be known of each list, row by row, in float64."""
    found: dict[str, list[object]] = {
        name: [] for name in ("counts", "means", "spreads", "outside", "values", "scatter")
    }
    units = lists.units
    for number in range(LISTS):
        k, v = keys[owners == number], values[owners == number]
        turned = (k - k.mean(0)) @ lists.axes
        apart = (v - v.mean(0)) / units.size
        found["counts"].append(len(k))
        found["means"].append(k.mean(0))
        found["spreads"].append(np.cov(turned[:, :LEADING].T, bias=True)[np.triu_indices(LEADING)])
        found["outside"].append((turned[:, LEADING:] ** 2).sum(1).mean())
        found["values"].append((v.mean(0) - units.middle) / units.size)
        found["scatter"].append((apart**2).sum(1).mean())
    return {name: np.array(one) for name, one in found.items()}


def assert_as_measured(found: Lists, lists: Lists, *rows: np.ndarray) -> None:
    """Everything is what the rows are."""
    wanted = exact(lists, *rows)
    for name, expected in wanted.items():
        assert getattr(found, name) == pytest.approx(expected, rel=1e-4, abs=1e-5), name


def test_rows_that_come_and_go_are_counted_as_if_measured() -> None:
    """Rows of another distribution are, too, and whatever order they come and go in."""
    first, later = rows_of(0, 400), rows_of(1, 300)
    later[1][:] += 0.5
    lists = lists_of(*first)
    come = [Drift.of(lists, *(x[part] for x in later)) for part in (slice(0, 100), slice(100, 300))]
    gone = Drift.of(lists, *(x[:150] for x in first), sign=-1.0)
    found = together([*come, gone]).applied(lists.rounded())
    rows = [np.concatenate([x[150:], y]) for x, y in zip(first, later, strict=True)]
    assert_as_measured(found, lists, *rows)


def test_what_came_and_went_leaves_nothing() -> None:
    """The statistics are those that were measured."""
    first, later = rows_of(2, 300), rows_of(3, 200)
    lists = lists_of(*first)
    drift = together([Drift.of(lists, *later), Drift.of(lists, *later, sign=-1.0)])
    quick = lists.rounded()
    found = drift.applied(quick)
    for name in ("counts", "means", "spreads", "outside", "values", "scatter", "noise"):
        assert getattr(found, name) == pytest.approx(getattr(quick, name), rel=1e-4, abs=1e-5), name


def test_labels_are_counted_in_their_lists() -> None:
    """Those that came and went, and such as nobody had when the lists were measured; other lists keep theirs."""
    rng = np.random.default_rng(9)
    owners, keys, _ = rows_of(9, 500)
    codes = (owners + rng.integers(0, 4, 500)) % 7
    order = np.argsort(owners, kind="stable")
    offsets = np.concatenate([[0], np.bincount(owners, minlength=LISTS).cumsum()])
    lists = measured(lambda a, b: (keys[order[a:b]], codes[order[a:b]]), offsets, leading=LEADING, labels=7)
    later, keys_later, _ = rows_of(10, 200)
    later %= LISTS - 1
    codes_later = rng.integers(5, 12, 200)
    gone = np.flatnonzero(owners < 2)[:60]
    come = Drift.of(lists, later, keys_later, codes_later)
    drift = together([come, Drift.of(lists, owners[gone], keys[gone], codes[gone], sign=-1.0)])
    assert problem_of_drift(drift, lists, labels=12) is None
    assert problem_of_drift(drift, lists, labels=11) == "counts labels that are not there"
    quick = lists.rounded()
    whole, steps = drift.applied(quick), drift.among(later[:1]).applied(quick, onto=come.applied(quick))
    kept = np.setdiff1d(np.arange(500), gone)
    for number in range(LISTS):
        there = np.concatenate([codes[kept][owners[kept] == number], codes_later[later == number]])
        shares = np.bincount(there, minlength=12) / len(there)
        assert np.eye(LISTS)[[number]] @ whole.values == pytest.approx(shares[None], abs=1e-6)
        assert whole.scatter[number] == pytest.approx(1 - (shares**2).sum(), abs=1e-5)
        assert whole.counts[number] == len(there)
        if number == later[0]:
            assert np.eye(LISTS)[[number]] @ steps.values == pytest.approx(shares[None], abs=1e-6)
    nothing = together([drift, Drift.of(lists, later, keys_later, codes_later, sign=-1.0)])
    assert (nothing.codes < 7).all()


def test_lists_that_did_not_change_are_as_they_were() -> None:
    """They are as in what the others are put onto, which itself stays as it is."""
    first = rows_of(4, 300)
    lists = lists_of(*first)
    quick = lists.rounded()
    some = first[0] == 2
    all_gone = Drift.of(lists, *(x[some] for x in first), sign=-1.0)
    onto = replace(quick, outside=quick.outside + 7)
    found = all_gone.applied(quick, onto=onto)
    others = np.arange(LISTS) != 2
    assert found.counts[2] == 0
    assert (found.counts[others] == quick.counts[others]).all()
    assert (found.outside[others] == quick.outside[others] + 7).all()
    assert (quick.counts > 0).all()
    assert Drift.none(lists).applied(quick) is quick
    assert np.isfinite(found.means).all()


def test_sums_of_some_lists_are_those() -> None:
    """Other lists have none there."""
    lists, later = lists_of(*rows_of(5, 300)), rows_of(6, 100)
    whole = Drift.of(lists, *later)
    part = whole.among(np.array([1, 4]))
    assert part.lists.tolist() == [1, 4]
    assert (part.keys == whole.keys[[1, 4]]).all()


@pytest.mark.parametrize(
    ("field", "damaged", "says"),
    [
        ("lists", np.array([0, 2, 1, 3, 4]), "lists that are not there"),
        ("lists", np.arange(1, 6), "lists that are not there"),
        ("counts", np.full(5, np.nan, np.float32), "not finite"),
        ("keys", np.zeros((5, WIDTH + 1), np.float32), "keys of shape"),
        ("values", np.zeros((5, 3)), "values of shape"),
    ],
)
def test_what_is_no_change_of_these_lists_says_why(field: str, damaged: np.ndarray, says: str) -> None:
    """Forged bytes come to nothing."""
    lists = lists_of(*rows_of(7, 300))
    drift = Drift.of(lists, *rows_of(8, 200))
    assert problem_of_drift(drift, lists) is None
    assert says in (problem_of_drift(replace(drift, **{field: damaged}), lists) or "")
