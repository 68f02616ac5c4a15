"""Samples of strata: what they estimate is right on average, and what they say of their error is how wrong they are."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from softkv.maths import drawing, sampling
from softkv.maths.columns import ABREAST, GROUPS, Columns, LabelColumns, Pairs, VectorColumns, columns_of_labels
from softkv.maths.quantiles import KNOWN, _quantile, quantile
from softkv.maths.sampling import Deviation, RowWeights, sampled
from softkv.maths.strata import AT_ONCE, Draw, Sizes, Strata

STRATA, WIDTH = 40, 6
# Quantiles of χ² as they are tabled (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.4).
TABLED = {
    (1, 0.9): 2.706,
    (1, 0.95): 3.841,
    (1, 0.99): 6.635,
    (2, 0.95): 5.991,
    (3, 0.95): 7.815,
    (10, 0.9): 15.987,
    (10, 0.95): 18.307,
    (30, 0.99): 50.892,
    (100, 0.95): 124.342,
}


@pytest.mark.parametrize(("columns", "confidence"), TABLED)
def test_quantiles_are_those_of_tables(columns: int, confidence: float) -> None:
    """They are those of χ², divided by its degrees of freedom; many are rounded down, which is cautious."""
    assert _quantile(columns, confidence, KNOWN) == pytest.approx(TABLED[columns, confidence] / columns, rel=1e-3)
    assert -1e-3 < quantile(columns, confidence) - TABLED[columns, confidence] / columns < 0.03


@pytest.mark.parametrize("columns", [1.0, 2.0, 7.0, 30.0, 384.0])
@pytest.mark.parametrize("degrees", [1.0, 4.0, 33.0, 1e5])
def test_quantiles_of_a_variance_that_is_told_are_those_of_f(columns: float, degrees: float) -> None:
    """SciPy has the same."""
    for confidence in (0.5, 0.8, 0.95, 0.99):
        expected = stats.f.ppf(confidence, columns, degrees)
        assert _quantile(columns, confidence, degrees) == pytest.approx(expected, rel=2e-6)


def test_columns_and_degrees_between_others_are_taken_for_fewer() -> None:
    """The quantile falls with both, so that is cautious; whatever is given, there is one."""
    assert quantile(3.06, 0.95) == quantile(3.0, 0.95) > quantile(3.2, 0.95) > quantile(4.0, 0.95)
    assert quantile(3.0, 0.95, 9.01) == quantile(3.0, 0.95, 9.0) > quantile(3.0, 0.95, 1e6) > quantile(3.0, 0.95)
    assert quantile(0.0, 0.95, np.nan) == quantile(1.0, 0.95, 1.0)
    assert quantile(1.0, 1 - 1e-12, 1.0) > 1e12
    assert quantile(np.inf, 0.95, np.inf) == pytest.approx(1.0, rel=1e-2)


def test_degrees_are_those_of_the_strata_that_have_the_variance() -> None:
    """One stratum of eleven rows has ten; many alike have the sum; each that is visited by chance has one."""
    strata = Strata(np.full(6, 1000), np.ones((1, 6)), np.zeros((1, 6)), np.full(6, 0.9))
    draw = Draw.of(np.random.default_rng(1), strata, Sizes(np.ones(6), np.full(6, 11)))
    one = Deviation.of(draw, np.eye(6)[:1], np.zeros((1, 6)), np.ones(1))
    assert one.degrees[0] == pytest.approx(10.0)
    assert Deviation.of(draw, np.ones((1, 6)), np.zeros((1, 6)), np.ones(1)).degrees[0] == pytest.approx(60.0)
    rarely = Draw(np.arange(6), draw.counts, np.full(6, 1e-6), draw.sizes, draw.places)
    assert Deviation.of(rarely, np.zeros((1, 6)), np.ones((1, 6)), np.ones(1)).degrees[0] == pytest.approx(6.0)


class Population:
    """Rows with weights and values, in strata of different sizes."""

    def __init__(self, seed: int, *, labels: bool = False, steep: float = 0.7) -> None:
        rng = np.random.default_rng(seed)
        self.counts = np.concatenate([[0, 1, 2], rng.integers(3, 60, STRATA - 3)])
        self.owners = np.repeat(np.arange(STRATA), self.counts)
        self.firsts = self.counts.cumsum() - self.counts
        base, noise = rng.normal(size=STRATA)[self.owners], steep * rng.normal(size=len(self.owners))
        self.e = np.exp(base + noise)
        self.x = noise - self.means_of(noise)[self.owners]
        values = rng.normal(size=(STRATA, WIDTH))[self.owners] + rng.normal(size=(len(self.owners), WIDTH)) + 3.0
        self.codes = values.argmax(1)
        self.values = np.eye(WIDTH)[self.codes] if labels else values
        self.labels, self.free = labels, WIDTH - 1 if labels else WIDTH

    def means_of(self, x: np.ndarray) -> np.ndarray:
        """The mean of each stratum."""
        sums = np.zeros((STRATA, *x.shape[1:]))
        np.add.at(sums, self.owners, x)
        return sums / np.maximum(self.counts, 1).reshape(-1, *[1] * (x.ndim - 1))

    @property
    def mass(self) -> float:
        """The sum of all weights."""
        return float(self.e.sum())

    @property
    def total(self) -> np.ndarray:
        """The sum of all weights times values."""
        return self.e @ self.values

    def strata(self) -> Strata:
        """What is really true of them."""
        y = self.e[:, None] * (self.values - self.total / self.mass) / self.mass
        sums = np.zeros((STRATA, WIDTH))
        np.add.at(sums, self.owners, y)
        means = sums / np.maximum(self.counts, 1)[:, None]
        squares = np.bincount(self.owners, ((y - means[self.owners]) ** 2).sum(1), STRATA)
        within = self.counts**2 * squares / np.maximum(self.counts - 1, 1)
        return Strata(self.counts, within[None], (sums**2).sum(1)[None], np.full(STRATA, 0.7))

    def columns(self, rows: np.ndarray, draw: Draw) -> Columns:
        """The values of some rows that were drawn."""
        if self.labels:
            return LabelColumns(self.codes[rows], WIDTH, draw)
        return VectorColumns.of(self.values[rows], draw, free=self.free)

    def sample(
        self, random: np.random.Generator, strata: Strata, sizes: Sizes, times: float | None = None
    ) -> sampling.Sampled:
        """What one draw says; where rows are corrected, they are thought to weigh so many times what they do."""
        whole = sizes.whole(strata.counts)
        read, draw = whole[self.owners], Draw.of(random, strata, sizes)
        rows = self.firsts[draw.strata[draw.owners]] + draw.places
        mass, total = self.e[read].sum(keepdims=True), (self.e[read] @ self.values[read])[None]
        weights, values, pairs = RowWeights.plain(self.e[rows][None]), self.columns(rows, draw), Pairs.of(draw, random)
        if times is not None:
            c, means = np.where(whole, 0.0, times * self.means_of(self.e)), self.means_of(self.values)
            u, mine = self.e[rows] - c[self.owners[rows]], c[self.owners[rows]]
            masses = c * self.counts
            weights = RowWeights(
                self.e[rows][None], u[None], (u - mine * self.x[rows])[None], masses.sum()[None], (masses @ means)[None]
            )
            values = around(self.values[rows], means[draw.strata], draw)
        return sampled(draw, weights, values, mass=mass, total=total, pairs=pairs)


def test_each_set_of_rows_is_as_likely_as_any_other() -> None:
    """Two of five and three of four, side by side: χ² of 20,000 draws, at a level of 0.001."""
    random, counts, sizes = np.random.default_rng(1), np.array([5, 4]), np.array([2, 3])
    seen = dict.fromkeys(((a, b) for a in combinations(range(5), 2) for b in combinations(range(4), 3)), 0)
    for _ in range(20_000):
        places = drawing.different(random, counts, sizes).tolist()
        seen[tuple(places[:2]), tuple(places[2:])] += 1
    expected = 20_000 / len(seen)
    assert sum((found - expected) ** 2 / expected for found in seen.values()) < 72.055  # of 39 degrees of freedom


def test_runs_of_rows_in_random_order_are_samples_like_any_other() -> None:
    """Of six rows the second to fourth lie in random order: χ² of 20,000 draws of three, at a level of 0.001."""
    random, (counts, sizes, ahead, shuffled) = np.random.default_rng(2), np.array([[6], [3], [1], [3]])
    seen, in_runs = dict.fromkeys(combinations(range(6), 3), 0), 0
    for _ in range(20_000):
        rows = np.arange(6)
        rows[1:4] = random.permutation(rows[1:4])
        places = drawing.in_runs(random, counts, sizes, ahead, shuffled)
        assert (np.diff(places) > 0).all()
        seen[tuple(sorted(rows[places].tolist()))] += 1
        in_runs += places.tolist() == [1, 2, 3]
    expected = 20_000 / len(seen)
    assert sum((found - expected) ** 2 / expected for found in seen.values()) < 43.820  # of 19 degrees of freedom
    assert in_runs == pytest.approx(expected, rel=0.2)


def test_a_run_goes_on_at_the_front() -> None:
    """A run wraps around the rows in random order, and has no more rows than these."""
    random, lists = np.random.default_rng(3), np.array([[9, 4, 5], [4, 2, 3], [2, 0, 5], [5, 4, 0]])
    for _ in range(200):
        places = drawing.in_runs(random, *lists)
        for first, (count, size, ahead, shuffled) in zip((0, 4, 6), lists.T.tolist(), strict=True):
            some = places[first : first + size]
            assert len(set(some.tolist())) == size
            assert ((some >= 0) & (some < count)).all()
            body = some[(some >= ahead) & (some < ahead + shuffled)] - ahead
            gaps = np.diff(np.append(body, body[:1] + shuffled))
            assert (gaps > 1).sum() <= 1


@pytest.mark.ci
@pytest.mark.parametrize(("labels", "times"), [(False, None), (True, None), (False, 1.0), (False, 1.5)])
@pytest.mark.parametrize("rows", [60.0, 250.0])
def test_estimates_are_right_on_average_and_so_is_their_variance(
    labels: bool, times: float | None, rows: float
) -> None:
    """The mass, the total, V and the variance of the mass, over 4,000 draws of one population."""
    population, random = Population(3, labels=labels), np.random.default_rng(4)
    strata = population.strata()
    sizes = strata.sizes(rows)
    assert (sizes.chances < 1).sum() > 5
    assert not sizes.whole(strata.counts).all()
    found = [population.sample(random, strata, sizes, times) for _ in range(4000)]
    masses, totals = np.array([one.mass[0] for one in found]), np.array([one.total[0] for one in found])
    assert abs(masses.mean() - population.mass) < 4 * masses.std() / np.sqrt(len(found))
    assert (np.abs(totals.mean(0) - population.total) < 4.5 * totals.std(0) / np.sqrt(len(found))).all()
    variances = (
        np.array([one.of_mass.variance.sum() for one in found]) * masses**2
    )  # which are told as if the mass were 1
    assert variances.mean() == pytest.approx(masses.var(), rel=0.1)
    # To first order, the error of the value is that of Σ y with the true value.
    moved = (totals - masses[:, None] * (population.total / population.mass)).var(0).sum()
    variances = np.array([one.of_value.variance.sum() for one in found]) * masses**2
    assert variances.mean() == pytest.approx(moved, rel=0.12)
    thought = strata.variance(sizes).sum() * population.mass**2
    if times is None:
        assert thought == pytest.approx(moved, rel=0.12)
    elif times == 1.0:
        assert moved < 0.5 * thought


def share_kept(labels: bool, confidence: float, times: float | None = None) -> float:
    """How often an answer is within what is stated: of 40 populations, 100 draws each."""
    kept = list[bool]()
    for seed in range(40):
        population, random = Population(100 + seed, labels=labels), np.random.default_rng(seed)
        strata = population.strata()
        sizes, true = strata.sizes(300.0), population.total / population.mass
        for _ in range(100):
            found = population.sample(random, strata, sizes, times)
            kept.append(
                bool(np.linalg.norm(found.total[0] / found.mass[0] - true) <= found.of_value.error(confidence)[0])
            )
    return float(np.mean(kept))


@pytest.mark.ci
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("labels", "times"), [(False, None), (True, None), (False, 1.0)])
def test_answers_are_within_what_is_stated_as_often_as_that_says(
    labels: bool, times: float | None, confidence: float
) -> None:
    """A little less often is allowed for, since only many rows make an error normal."""
    assert confidence - 0.02 <= share_kept(labels, confidence, times) <= confidence + (1 - confidence) * 0.8


@pytest.mark.ci
@pytest.mark.parametrize("bug", ["means are not those of the rows", "rows are not counted as they are"])
def test_what_is_wrongly_known_of_all_rows_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are then within what is stated less often than the test before allows for."""
    if bug.startswith("means"):
        means_of = Population.means_of
        monkeypatch.setattr(Population, "means_of", lambda self, x: means_of(self, x) + 0.3 * (x.ndim > 1))
    else:
        plain = sampling.sampled

        def miscounted(draw: Draw, weights: RowWeights, *given: Any, **named: Any) -> sampling.Sampled:
            return plain(draw, replace(weights, mass=1.1 * weights.mass), *given, **named)

        monkeypatch.setattr("tests.test_sampling.sampled", miscounted)
    assert share_kept(False, 0.95, 1.0) < 0.9


WRONG: dict[str, Callable[[Draw], Any]] = {
    "rows count for the stratum beside theirs": lambda draw: np.roll(draw.counts, 1),
    "all strata count alike": lambda draw: round(draw.counts.mean()),
    "only rows that are drawn count": lambda draw: draw.sizes,
}


@pytest.mark.ci
@pytest.mark.parametrize("bug", WRONG)
def test_a_wrong_weight_of_strata_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are then within what is stated less often than the test before allows for."""
    true = Draw._of.__func__  # type: ignore[attr-defined]

    def patched(cls: type[Draw], *given: Any) -> Draw:
        draw = true(cls, *given)
        return replace(draw, counts=np.maximum(draw.sizes, WRONG[bug](draw)))

    monkeypatch.setattr(Draw, "_of", classmethod(patched))
    assert share_kept(False, 0.95) < 0.93


def test_labels_are_vectors_that_are_1_at_their_code() -> None:
    """A draw of labels gives the estimates and variances of one of such vectors."""
    coded, dense = Population(5, labels=True), Population(5, labels=True)
    dense.labels = False
    strata = coded.strata()
    one, other = (x.sample(np.random.default_rng(6), strata, strata.sizes(150.0)) for x in (coded, dense))
    for name in ("mass", "total"):
        assert np.allclose(getattr(one, name), getattr(other, name), rtol=1e-9), name
    assert_same(one, other)


def assert_same(one: sampling.Sampled, other: sampling.Sampled, some: slice = slice(None)) -> None:
    """What is said of errors is the same, but for the digits of float32."""
    for what in ("of_value", "of_mass"):
        for name in ("variance", "degrees", "columns"):
            found, expected = (getattr(getattr(x, what), name) for x in (one, other))
            assert np.allclose(found[some], expected, rtol=1e-4), (what, name)


@pytest.mark.parametrize("at_once", [1, 200, AT_ONCE])
@pytest.mark.parametrize("labels", [False, True])
def test_queries_that_share_a_draw_are_told_what_each_is_alone(
    labels: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few rows are computed at once, and also where a query has read a stratum already."""
    monkeypatch.setattr("softkv.maths.strata.AT_ONCE", at_once)
    population, rng = Population(12, labels=labels), np.random.default_rng(13)
    strata = population.strata()
    draw = Draw.of(rng, strata, strata.sizes(150.0))
    rows = population.firsts[draw.strata[draw.owners]] + draw.places
    values, pairs = population.columns(rows, draw), Pairs.of(draw, np.random.default_rng(1))
    e = rng.random((7, len(rows)))
    e[2, draw.owners == 3] = 0.0
    mass, total = rng.random(7), rng.random((7, WIDTH))
    assert draw.sizes.min() < 7 < draw.sizes.max()
    found = sampled(draw, RowWeights.plain(e), values, mass=mass, total=total, pairs=pairs)
    for number in range(7):
        some = slice(number, number + 1)
        alone = sampled(draw, RowWeights.plain(e[some]), values, mass=mass[some], total=total[some], pairs=pairs)
        for name in ("mass", "total"):
            assert np.allclose(getattr(found, name)[some], getattr(alone, name)), name
        assert_same(found, alone, some)


@pytest.mark.parametrize("at_once", [1, 60, 10_000])
def test_a_draw_in_parts_is_the_whole_draw(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has whole strata, and hardly more rows than it should have; none is left out."""
    monkeypatch.setattr("softkv.maths.strata.AT_ONCE", at_once)
    rng, strata = np.random.default_rng(31), Population(31).strata()
    draw = Draw.of(rng, strata, Sizes(np.ones(STRATA), np.minimum(strata.counts, 4)))
    parts = list(draw.parts(3))
    assert (len(parts) == len(draw.sizes)) == (at_once == 1)
    assert (len(parts) == 1) == (at_once == 10_000)
    for name in ("strata", "counts", "chances", "sizes", "places"):
        assert np.array_equal(np.concatenate([getattr(part, name) for _, _, part in parts]), getattr(draw, name))
    for some, rows, part in parts:
        assert np.array_equal(draw.owners[rows] - some.start, part.owners)
        assert len(part.places) < max(1, at_once // 3) + draw.sizes.max()
    nothing = Draw.of(rng, strata, Sizes(np.zeros(STRATA), np.zeros(STRATA, np.int64)))
    assert list(nothing.parts(3)) == []


@pytest.mark.parametrize("at_once", [100, AT_ONCE])
@pytest.mark.parametrize("count", [1, 2, 12])
@pytest.mark.parametrize("alike", [True, False])
def test_sums_of_strata_and_groups(alike: bool, count: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are few or many, for one query and for more than a stratum has rows; groups hold each pair once."""
    monkeypatch.setattr("softkv.maths.strata.AT_ONCE", at_once)
    rng, population = np.random.default_rng(14), Population(14)
    strata = population.strata()
    draw = Draw.of(rng, strata, strata.sizes(400.0))
    assert draw.sizes.min() < count or count == 1
    assert draw.sizes.max() > 20
    assert (len(list(draw.parts(1))) > 1) == (at_once == 100)
    pairs = Pairs.of(draw, rng)
    u, values = rng.random((count, len(draw.owners))), rng.random((len(draw.owners), WIDTH))
    means, g = rng.random((count, WIDTH)), u
    columns, centres = VectorColumns.of(values, draw), np.zeros((len(draw.sizes), WIDTH))
    if not alike:  # weights of either sign, and strata about centres
        u, g, centres = u - 0.4, rng.standard_normal(u.shape), 3.0 * rng.random(centres.shape)
        columns = around(values, centres, draw)
    inside, squares, groups = columns.varied(u, g, means, pairs)
    t, away = values - centres[draw.owners], centres[draw.owners] - means[:, None]
    apart = u[:, :, None] * t + g[:, :, None] * away
    assert np.allclose(columns.total(u, g), u @ t + g @ centres[draw.owners], rtol=1e-5)
    sums, each = np.zeros((count, len(draw.sizes), WIDTH)), np.zeros((count, len(draw.sizes)))
    np.add.at(sums, (slice(None), draw.owners), apart)
    np.add.at(each, (slice(None), draw.owners), (apart**2).sum(2))
    assert np.allclose(inside, each, rtol=1e-3, atol=1e-4)
    assert np.allclose(squares, (sums**2).sum(2), rtol=1e-3, atol=1e-4)
    expected = np.zeros((count, GROUPS, WIDTH))
    np.add.at(expected, (slice(None), pairs.groups), apart * pairs.weights[:, None])
    np.add.at(expected, (slice(None), pairs.homes), sums * pairs.sides[:, None])
    assert np.allclose(groups, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def around(values: np.ndarray, centres: np.ndarray, draw: Draw) -> VectorColumns:
    """Values of drawn rows, (r, p), as differences from the centres of their strata, (s, p)."""
    given = centres[draw.owners]
    t = values - given
    squares, crossed = (t * t).sum(1), (t * given).sum(1)
    return VectorColumns(np.pad(t, ((0, ABREAST), (0, 0))), draw, squares, centres=centres, crossed=crossed)


@pytest.mark.parametrize("count", [1, 5])
def test_distances_from_means_are_never_told_smaller_than_they_are(count: int) -> None:
    """Of values that lie close together, far from their middle, float32 loses digits; that only makes errors larger."""
    rng = np.random.default_rng(21)
    values = (100.0 + 1e-2 * rng.standard_normal((500, 16))).astype(np.float32)
    means = values[:count].astype(np.float64) + 1e-3
    draw = Draw(np.arange(1), np.array([500]), np.ones(1), np.array([500]), np.arange(500))
    found = VectorColumns.of(values, draw).distances(means)
    true = ((values.astype(np.float64) - means[:, None]) ** 2).sum(2)
    assert (found >= 0.99 * true).all()
    assert (found <= 1.01 * true + 0.01 * true.mean()).all()


@pytest.mark.parametrize(("labels", "most"), [(2, 1.0), (1, 1.0), (3, 2.0)])
def test_shares_of_labels_that_the_others_settle_do_not_count(labels: int, most: float) -> None:
    """The error of two labels is that of one number, whatever a draw finds."""
    rng = np.random.default_rng(8)
    strata = Strata(np.full(10, 300), np.full((1, 10), 1.0), np.full((1, 10), 1e-9), np.full(10, 0.9))
    found = []
    for _ in range(50):
        draw = Draw.of(rng, strata, strata.sizes(600.0))
        codes = rng.integers(labels, size=len(draw.places))
        e, nothing = rng.random((1, len(codes))), (np.zeros(1), np.zeros((1, labels)))
        for values in (columns_of_labels(codes, labels, draw), LabelColumns(codes, labels, draw)):
            pairs = Pairs.of(draw, rng)
            told = sampled(draw, RowWeights.plain(e), values, mass=nothing[0], total=nothing[1], pairs=pairs)
            found.append(float(told.of_value.columns[0]))
    assert max(found) == most


@pytest.mark.parametrize(("rank", "columns"), [(1, (1.0, 1.6)), (8, (5.0, 9.0)), (64, (25.0, 64.0))])
def test_columns_that_vary_together_count_as_fewer(rank: int, columns: tuple[float, float]) -> None:
    """Values 64 wide of some rank; the median of 50 draws."""
    rng = np.random.default_rng(7)
    values = rng.normal(size=(3000, rank)) @ np.linalg.qr(rng.normal(size=(64, rank)))[0].T
    strata = Strata(np.full(10, 300), np.full((1, 10), 1.0), np.full((1, 10), 1e-9), np.full(10, 0.9))
    found = []
    for _ in range(50):
        draw = Draw.of(rng, strata, strata.sizes(600.0))
        rows = draw.strata[draw.owners] * 300 + draw.places
        e, given, pairs = np.ones((1, len(rows))), VectorColumns.of(values[rows], draw), Pairs.of(draw, rng)
        told = sampled(draw, RowWeights.plain(e), given, mass=np.zeros(1), total=np.zeros((1, 64)), pairs=pairs)
        found.append(told.of_value.columns[0])
    assert columns[0] <= np.median(found) <= columns[1]


def test_where_one_block_has_most_of_the_variance_nothing_is_told_of_columns() -> None:
    """A few rows that outweigh the others have as many columns as one: products of groups do not tell them apart."""
    rng = np.random.default_rng(15)
    values, e = rng.normal(size=(3000, 64)), np.ones(3000)
    e[[5, 6]] = 1e4
    strata = Strata(np.full(10, 300), np.full((1, 10), 1.0), np.full((1, 10), 1e-9), np.full(10, 0.9))
    found = []
    for _ in range(50):
        draw = Draw.of(rng, strata, strata.sizes(2000.0))
        rows = draw.strata[draw.owners] * 300 + draw.places
        if {5, 6} <= set(rows.tolist()):
            given, pairs = VectorColumns.of(values[rows], draw), Pairs.of(draw, rng)
            weights = RowWeights.plain(e[rows][None])
            told = sampled(draw, weights, given, mass=np.zeros(1), total=np.zeros((1, 64)), pairs=pairs)
            found.append(told.of_value.columns[0])
    assert len(found) > 10
    assert max(found) == 1.0


def test_sizes_follow_from_what_is_wanted() -> None:
    """No more variance than that, by hardly more rows than it takes."""
    strata = Population(8).strata()
    for wanted in (1e-2, 1e-3, 1e-4):
        goals = np.array([wanted])
        sizes, ratios = strata.enough(goals, 1e6, also=(strata, 2 * goals))
        assert 0.8 < ratios[0] <= 1
        assert strata.variance(sizes).sum() <= wanted
        assert strata.variance(strata.sizes(0.9 * sizes.expected)).sum() > 0.8 * wanted
        assert ((sizes.rows <= strata.counts) | (strata.counts == 0)).all()
        assert (sizes.chances[strata.counts == 0] == 0).all()


def test_no_fewer_rows_are_taken_than_the_least() -> None:
    """The least is taken where fewer would do, and more where the goal takes more; no more than allowed in any case."""
    strata = Population(8).strata()
    wanted = np.array([1e-2])
    enough = strata.enough(wanted, 1e6, also=(strata, 2 * wanted))[0].expected
    for least in (0.3 * enough, 2.0 * enough):
        sizes, ratios = strata.enough(wanted, 1e6, also=(strata, 2 * wanted), least=least)
        assert sizes.expected == pytest.approx(max(strata.sizes(least).expected, enough), rel=0.1)
        assert ratios[0] <= 1
    sizes, ratios = strata.enough(wanted, 1.5 * enough, also=(strata, 2 * wanted), least=2.0 * enough)
    assert sizes.expected <= 1.5 * enough
    assert ratios[0] <= 1


@pytest.mark.parametrize("allowed", [0.8, 0.85, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("goal", [1.5, 2.0, 2.5])
def test_where_many_strata_are_soon_read_whole_fewer_rows_are_found(goal: float, allowed: float) -> None:
    """V falls to almost nothing there; a little before, and also with no room for all of these, some rows will do."""
    counts = np.array([1000] * 140 + [500] * 140 + [700] * 5600)
    apart = np.concatenate([np.linspace(1.58, 0.85, 240), np.linspace(0.85, 0.02, 40), np.full(5600, 3e-5)])
    strata = Strata(counts, np.square(apart)[None], np.square(apart * 0.1)[None], np.full(len(counts), 0.15))
    sizes = [strata.sizes(rows) for rows in np.geomspace(1e3, 3e5, 600)]
    fewest = next(one.expected for one in sizes if strata.variance(one).sum() <= goal)
    most, wanted = allowed * counts[:280].sum(), np.array([goal])
    found, ratios = strata.enough(wanted, most, also=(strata, 2 * wanted), least=500.0)
    assert ratios[0] <= 1
    assert 0.95 * fewest <= found.expected <= min(1.15 * fewest, most)


def test_sizes_are_enough_for_all_queries_that_can_have_enough() -> None:
    """The others are told that they cannot, and no more rows are taken for them."""
    one, other = Population(16).strata(), Population(17).strata()
    counts = np.maximum(one.counts, other.counts)
    within, between = (np.concatenate([getattr(x, name) for x in (one, other)]) for name in ("within", "between"))
    both = Strata(counts, within, between, one.most)
    wide = both, np.full(2, np.inf)
    sizes, ratios = both.enough(np.array([1e-2, 1e-3]), 1e6, also=wide)
    assert (both.variance(sizes).sum(1) <= [1e-2, 1e-3]).all()
    assert ratios.max() <= 1
    fewer, ratios = both.enough(np.array([1e-2, 1e-14]), sizes.expected, also=wide)
    assert ratios[0] <= 1
    assert 1e6 < ratios[1] < np.inf  # as a share of its goal
    assert fewer.expected <= sizes.expected
    assert both.of(np.array([1])).within.tolist() == other.within.tolist()


def test_strata_of_which_most_rows_would_be_drawn_are_read_whole() -> None:
    """Fewer than that share of the others are drawn."""
    strata = Population(8).strata()
    for rows in (300.0, 400.0, 600.0):
        sizes = strata.sizes(rows)
        whole, share = sizes.whole(strata.counts), sizes.rows / np.maximum(strata.counts, 1)
        assert (share[~whole & (sizes.chances == 1)] <= 0.7).all()
        assert (whole & (strata.counts > 10)).any()


def test_a_stratum_of_which_nothing_is_thought_is_drawn_from_all_the_same() -> None:
    """A tenth of the rows is spread by sizes: what is thought of strata may be wrong."""
    strata = Strata(np.full(2, 1000), np.array([[1.0, 0.0]]), np.array([[1e-9, 0.0]]), np.full(2, 0.9))
    sizes = strata.sizes(200.0)
    assert (sizes.chances * sizes.rows).tolist() == [190, 10]


def test_what_is_read_whole_has_no_error() -> None:
    """Nothing is drawn of it, and the sums are those of all rows."""
    population = Population(9)
    strata = population.strata()
    sizes = Sizes(np.ones(STRATA), population.counts)
    found = population.sample(np.random.default_rng(0), strata, sizes)
    assert found.mass[0] == pytest.approx(population.mass)
    for one in (found.of_value, found.of_mass):
        assert not one.variance.any()
        assert one.error(0.95)[0] == 0.0
    assert sampling.log_error(found.of_mass.error(0.95))[0] == 0.0


def test_nothing_is_known_where_nothing_was_found() -> None:
    """No value is told, and no error."""
    strata = Population(10).strata()
    nothing = Sizes(np.zeros(STRATA), np.zeros(STRATA, np.int64))
    found = Population(10).sample(np.random.default_rng(0), strata, nothing)
    assert (found.mass[0], found.total.tolist()) == (0.0, [[0.0] * WIDTH])
    assert sampling.log_error(np.array([0.5, 1.0, 3.0])).tolist() == [pytest.approx(np.log(2)), np.inf, np.inf]


def test_variances_are_not_lowered_by_what_was_thought() -> None:
    """They are raised, but not beyond what drawn rows rule out, if a variance is known from many of them."""
    population = Population(11)
    strata = population.strata()
    found = population.sample(np.random.default_rng(0), strata, strata.sizes(100.0)).of_value
    few, many = (replace(found, degrees=np.array([degrees])) for degrees in (29.0, 40.0))
    for one, most in ((few, np.inf), (many, 40 / stats.chi2.ppf(0.001, 40))):
        error = one.error(0.95)
        for times in (0.1, 0.9, 1.5, 4.0, 100.0):
            raised = one.at_least(times * one.variance)
            assert raised.error(0.95) == pytest.approx(np.sqrt(np.clip(times, 1.0, most)) * error, rel=0.03)
            assert (raised.variance >= one.variance).all()
        for part in ([4.0, 0.0], [0.0, 4.0]):
            raised = one.at_least(part * one.variance)
            assert 1.0 < raised.variance.sum() / one.variance.sum() < min(4.0, 1.05 * most)
            assert (raised.variance >= one.variance).all()
    nothing = replace(found, variance=np.zeros((1, 2)), degrees=np.zeros(1))
    assert nothing.at_least(np.ones((1, 2))).variance.tolist() == [[1.0, 1.0]]
    raised = few.at_least(4.0 * few.variance)
    assert few.raised(raised, few).error(0.95) == pytest.approx(2.0 * few.error(0.95))
    assert few.raised(few, raised).error(0.95) == few.error(0.95)
