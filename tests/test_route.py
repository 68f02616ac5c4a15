"""How a question is answered, and what is said of it: one test for each way, and for each reason to scan."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import route
from softkv.maths.compatibility import bilinear

from .databases import count_as_large
from .scales import scaled

ITEMS, WIDTH = 3000, 6
RNG = np.random.default_rng(0)
CENTRES = RNG.standard_normal((30, WIDTH))
KEYS = (CENTRES[RNG.integers(0, 30, ITEMS)] + 0.3 * RNG.standard_normal((ITEMS, WIDTH))).astype(np.float32)
QUERIES = (CENTRES[:20] + 0.3 * RNG.standard_normal((20, WIDTH))).astype(np.float32)


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores count as large from the first item on."""
    count_as_large(monkeypatch)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[softkv.SoftKV]:
    """A store with an index for cosines."""
    with softkv.open(tmp_path_factory.mktemp("route") / "s", compatibility="cosine") as db:
        db.add(vectors=KEYS, values=np.tanh(KEYS[:, 0]), payloads=[{"even": n % 2 == 0, "n": n} for n in range(ITEMS)])
        db.build_index(lists=40)
        yield db


def test_estimates_say_how_many_rows_they_read(indexed: softkv.SoftKV) -> None:
    """Fewer than a scan, and more than are in the value, where only the best are."""
    found = indexed.lookup(QUERIES, tolerance=0.2)
    assert found.route == "calibrated"
    assert found.reason == "the index was built for this"
    assert (found.rows_read == found.scored).all()
    assert found.rows_read.max() < ITEMS
    best = indexed.lookup(QUERIES[0], k=3, tolerance=0.2)
    assert (best.route, best.scored) == ("calibrated", 3)
    assert 3 < best.rows_read < ITEMS
    bound = indexed.lookup(QUERIES[0], tolerance=0.5, guarantee="bound", temperature=2.0)
    assert bound.route == bound.error_kind == "bound"


def test_a_larger_tolerance_is_kept_where_a_smaller_one_is(indexed: softkv.SoftKV) -> None:
    """A larger tolerance is kept where a smaller one is, also where few queries are far off."""
    for tolerance in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        assert indexed.lookup(QUERIES, tolerance=tolerance).route == "calibrated"


def test_a_plan_that_takes_longer_than_a_scan_is_not_followed(
    indexed: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads too many rows, too many are in no list, or the store is so small that lists are dear."""
    assert indexed.lookup(QUERIES, tolerance=0.2).route == "calibrated"
    for cheap, scattered in ((0, 1e4), (ITEMS * WIDTH - 1, 1e3)):
        with monkeypatch.context() as patch:
            scaled(patch, cheap=cheap, scattered=scattered)
            found = indexed.lookup(QUERIES, tolerance=0.2)
            assert (found.route, found.reason) == ("scan", route.MOST_READ)
            assert indexed.lookup(QUERIES[0], k=3, tolerance=0.2).route == "calibrated"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tolerance": 0}, "tolerance 0 asks for all items"),
        ({"where": {"even": True}}, "a filter is applied to all items"),
        ({"mask": np.arange(ITEMS) % 2 == 0}, "a mask is applied to all items"),
        ({"compatibility": "laplace"}, "no index is for laplace"),
        ({"compatibility": lambda q, k: q @ k.T}, "no index is for <lambda>"),
        ({"compatibility": bilinear(np.eye(WIDTH))}, "the index was built for cosine"),
        ({"k": 3, "guarantee": "bound"}, "the k best with a guarantee are found among all items"),
        ({"k": 65}, "at most the 64 best are found by the index, and 65 were not rehearsed"),
        ({"temperature": 1e-6}, "temperature 1e-06 was not rehearsed ("),
        ({"temperature": 50.0}, "temperature 50 was not rehearsed ("),
        ({"confidence": 0.9999}, "too few queries were rehearsed to be 99.99% sure; `softkv index build --queries`"),
        ({"tolerance": 1e-9}, "tolerance 1e-09 asks for all items"),
        ({"tolerance": 1e-5, "confidence": 0.975}, "no plan keeps within 1e-05 for 97.5%; a larger tolerance is kept"),
    ],
    ids=lambda given: given if isinstance(given, str) else None,
)
def test_every_scan_says_why(indexed: softkv.SoftKV, options: dict[str, Any], why: str) -> None:
    """The fact that stood against the index, whatever was asked, one query or many."""
    for answer in (indexed.lookup(QUERIES[0], **options), *indexed.lookup(QUERIES[:2], **options)):
        assert answer.route == "scan"
        assert answer.rows_read == ITEMS
        assert answer.error_kind == "exact"
        assert answer.reason.startswith(why)


def test_a_suggested_range_goes_as_far_as_the_question() -> None:
    """Its three digits are rounded outwards, whatever the temperature."""
    for temperature in np.exp(np.random.default_rng(3).uniform(-200, 200, 500)).tolist():
        low, high = (float(route._rounded(temperature, towards)) for towards in (math.floor, math.ceil))
        assert 0.985 * temperature <= low <= temperature <= high <= 1.015 * temperature


def test_what_the_reason_suggests_works(tmp_path: Path) -> None:
    """An index for the temperatures that it names answers the question."""
    with softkv.open(tmp_path / "s", compatibility="cosine") as db:
        db.add(vectors=KEYS, values=np.tanh(KEYS[:, 0]))
        assert db.lookup(QUERIES[0]).reason == "there is no index; `softkv index build`"
        db.build_index(lists=40)
        warm = 300 * db.info().temperature
        answer = db.lookup(QUERIES[0], temperature=warm, tolerance=0.1)
        assert answer.route == "scan"
        low, high = map(float, answer.reason.split("--temperatures ")[1].rstrip("`").split())
        db.build_index(lists=40, temperatures=(low, high))
        assert db.lookup(QUERIES[0], temperature=warm, tolerance=0.1).route == "calibrated"


def test_each_query_of_a_batch_has_its_own_route(indexed: softkv.SoftKV) -> None:
    """Those that suit the index are estimated; the reasons of the others are theirs."""
    usual = indexed.info().temperature
    temperatures = np.array([usual, 1e-6, usual, 50.0])
    found = indexed.lookup(QUERIES[:4], temperature=temperatures, tolerance=0.2)
    assert found.route == ("calibrated", "scan", "calibrated", "scan")
    assert "1e-06" in found.reason[1]
    assert "50" in found.reason[3]
    assert [one.route for one in found] == list(found.route)
    assert (found.rows_read[[1, 3]] == ITEMS).all()
    assert (found.rows_read[[0, 2]] < ITEMS).all()
    exact = indexed.lookup(QUERIES[:4], temperature=temperatures, tolerance=0)
    assert found.value[[1, 3]] == pytest.approx(exact.value[[1, 3]])


def test_queries_unlike_those_rehearsed_are_scanned(indexed: softkv.SoftKV) -> None:
    """The reason says that the query is unlike the others."""
    found = indexed.lookup(-5 * CENTRES.sum(0, keepdims=True).repeat(3, 0), tolerance=0.2)
    assert found.route == "scan"
    assert found.reason.startswith("the query is unlike those rehearsed")


def test_few_rows_are_gathered(indexed: softkv.SoftKV) -> None:
    """Where a filter leaves few, only these are compared."""
    answer = indexed.lookup(QUERIES[0], where={"n": {"$lt": 12}})
    assert (answer.route, answer.rows_read, answer.scored) == ("gather", 12, 12)
    assert answer.reason == "12 of 3,000 items are left to compare"


def test_a_quarter_is_gathered_for_several_queries_and_masked_for_one(indexed: softkv.SoftKV) -> None:
    """To copy a row takes as long as to compare it in place with several queries; the answers are the same."""
    mask = np.arange(ITEMS) % 4 == 1
    one, several = (indexed.lookup(asked, mask=mask) for asked in (QUERIES[0], QUERIES[:4]))
    assert (one.route, one.rows_read, one.scored) == ("scan", ITEMS, ITEMS // 4)
    assert (several.route, several.rows_read[0], several.scored[0]) == ("gather", ITEMS // 4, ITEMS // 4)
    assert one.value == pytest.approx(several.value[0])
    assert [each.row for each in one.contributors] == [each.row for each in several[0].contributors]


def test_what_a_lookup_cannot_take_is_named_where_an_index_would_answer(indexed: softkv.SoftKV) -> None:
    """The way is chosen by the mask and by k, which are looked at before."""
    odd: dict[str, Any] = {"k": 2.5}
    with pytest.raises(softkv.errors.ShapeError, match="ragged"):
        indexed.lookup(QUERIES[:2], mask=[[True], [True, False]])
    with pytest.raises(softkv.errors.KindError, match="k to be a whole number"):
        indexed.lookup(QUERIES[0], **odd)


def test_planes_are_read_off_all_items(tmp_path: Path) -> None:
    """What would do without is named."""
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=KEYS[:500], values=KEYS[:500, 0])
        db.fit(planes=True)
        db.build_index(lists=10)
        assert db.lookup(QUERIES[0]).reason.startswith("planes are read off all items; `softkv fit --no-planes`")


def test_small_stores_say_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of few items needs no reason, in words or in a table."""
    scaled(monkeypatch, cheap=1 << 24)
    with softkv.open(tmp_path / "s") as db:
        db.add(["a", "b"], [1.0, 2.0], vectors=[[1.0, 0.0], [0.0, 1.0]])
        answer = db.lookup([1.0, 0.2])
        assert (answer.route, answer.reason, answer.rows_read) == ("scan", "", 2)
        assert repr(answer).endswith("exact over 2")
        assert answer.to_dict()["route"] == "scan"
        assert db.lookup(np.empty((0, 2))).route == "scan"


def test_proposals_say_so(tmp_path: Path) -> None:
    """Rows that another index proposed were scored; nothing says how wrong that is."""
    with softkv.open(tmp_path / "s", compatibility="cosine") as db:
        db.add(vectors=KEYS, values=KEYS[:, 0])
        db.build_index("hnsw")
        found = db.lookup(QUERIES, k=3, tolerance=0.1)
        assert (found.route, found.error_kind) == ("proposed", "unknown")
        assert (found.scored == 3).all()
        assert (found.rows_read >= 24).all()
        assert (found.rows_read < ITEMS).all()


def test_heads_say_how_they_were_answered(tmp_path: Path) -> None:
    """The head of which least is known says it."""
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=KEYS, values=KEYS[:, :2])
        heads = softkv.Heads.random(2, query_width=WIDTH, key_width=WIDTH, value_width=2, head_width=3, seed=0)
        assert db.lookup(QUERIES, heads=heads, tolerance=0.5).reason.startswith("there is no index")
        db.build_index(lists=40)
        temperature = db.info().temperature
        found = db.lookup(QUERIES, heads=heads, temperature=temperature, tolerance=0.5)
        assert set(found.route if isinstance(found.route, tuple) else [found.route]) <= {"calibrated", "scan"}
        for answer in found:
            assert (answer.route == "scan") == (answer.error_kind == "exact")
        assert db.lookup(QUERIES, heads=heads, k=2, tolerance=0.5).reason.startswith("the k best of heads")
