"""What is asked of rows that are drawn, and what is scanned all the same: by the library, and by the command."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.asking import lists as asking_lists
from softkv.asking import route, sampled
from softkv.index import measuring, strata
from softkv.index.strata import LOG_MASS, SOFT, Population, Variances
from softkv.maths import sampling
from softkv.maths.compatibility import additive, bilinear
from softkv.maths.strata import Strata
from tests.stores import with_secret

from .commands import ran
from .databases import measured_always
from .scales import scaled
from .test_list_layout import rewritten
from .test_measured import ITEMS, MATRIX, QUERIES, TOLERANCE, WIDTH, keys_of, values_of

T, ASKED = 0.05, 12
SOME = {"third": False}
THREE_QUARTERS = np.arange(ITEMS) % 4 > 0


@pytest.fixture(scope="module", autouse=True)
def large() -> Iterator[None]:
    """Stores count as large from the first item on, and to draw rows takes no time."""
    with pytest.MonkeyPatch.context() as patch:
        measured_always(patch)
        yield


@pytest.fixture(scope="module")
def path(large: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of numbers with an index as it is built by default."""
    path, keys = tmp_path_factory.mktemp("routes") / "s", keys_of(1, ITEMS)
    payloads = [{"third": number % 3 == 0} for number in range(ITEMS)]
    with softkv.open(path, value="number", compatibility="cosine", temperature=T) as db:
        db.add([str(number) for number in range(ITEMS)], values_of("number", keys), vectors=keys, payloads=payloads)
    with_secret(path, b"routes".ljust(32))
    with softkv.open(path) as db:
        db.build_index()
    return path


@pytest.fixture(scope="module")
def db(path: Path) -> Iterator[softkv.SoftKV]:
    """The store, open for reading."""
    with softkv.open(path, "r") as db:
        yield db


OTHER = "the index was built for cosine; `softkv index build` makes one for how the store compares"
MEASURED: dict[str, tuple[dict[str, Any], str]] = {
    "warmer than rehearsed": ({"temperature": 20.0}, "temperature 20 was not rehearsed (0.00988 to 5.25); "),
    "colder than rehearsed": ({"temperature": 0.005}, "temperature 0.005 was not rehearsed (0.00988 to 5.25); "),
    "where": ({"where": SOME, "temperature": 0.2}, route.FILTERED),
    "where, warmer": ({"where": SOME, "temperature": 20.0}, route.FILTERED),
    "mask": ({"mask": THREE_QUARTERS, "temperature": 0.2}, route.FILTERED),
    "where and mask": ({"where": SOME, "mask": THREE_QUARTERS, "temperature": 0.2}, route.FILTERED),
    "laplace": ({"compatibility": "laplace", "temperature": 3.0}, "no index is for laplace"),
    "laplace, where and mask": (
        {"compatibility": "laplace", "temperature": 3.0, "where": SOME, "mask": THREE_QUARTERS},
        "no index is for laplace",
    ),
    "student": ({"compatibility": "student", "temperature": 0.3}, "no index is for student"),
    "bilinear": ({"compatibility": bilinear(MATRIX), "temperature": 4.0}, OTHER),
    "dot": ({"compatibility": "dot", "temperature": 2.0}, OTHER),
    "gaussian": ({"compatibility": "gaussian", "temperature": 20.0}, OTHER),
}


@pytest.mark.parametrize("name", MEASURED)
def test_these_are_measured(db: softkv.SoftKV, name: str) -> None:
    """Each says why what was rehearsed does not do, and states the errors of all that it says."""
    options, why = MEASURED[name]
    pairs = [[db.lookup(query, **options, tolerance=one) for one in (TOLERANCE, 0)] for query in QUERIES[:ASKED]]
    measured = [(found, exact) for found, exact in pairs if found.route == "measured"]
    assert len(measured) > ASKED / 2
    for found, exact in measured:
        assert found.error_kind == "measured"
        assert found.reason.startswith(why)
        for told in ("value", "log_mass", "effective", "spread"):
            error = found.error if told == "value" else getattr(found, f"{told}_error")
            assert abs(getattr(found, told) - getattr(exact, told)) <= 2 * error, told
        assert found.log_mass_error <= LOG_MASS


@pytest.mark.parametrize(
    ("compared", "learned", "other", "temperature"),
    [("cosine", False, "dot", 3.0), ("cosine", True, "dot", 3.0), ("dot", False, "cosine", 1.0)],
)
def test_lists_that_know_no_lengths_are_not_asked_of_keys_that_differ_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compared: str, learned: bool, other: str, temperature: float
) -> None:
    """Lists of directions are not asked by dot products, nor others by cosine: few rows held all of the mass."""
    scaled(monkeypatch, steps=50)
    monkeypatch.setattr("softkv.database.training.MOST", 1000)
    rng = np.random.default_rng(3)
    asked = {"compatibility": other, "temperature": temperature, "tolerance": TOLERANCE}
    plain = keys_of(2, ITEMS)
    plain /= np.linalg.norm(plain, axis=1, keepdims=True)
    varied = plain * np.exp(0.5 * rng.standard_normal((ITEMS, 1))).astype(np.float32)
    one_long = plain.copy()
    one_long[77] *= 20.0
    for name, keys, measured in (("plain", plain, True), ("varied", varied, False), ("one long", one_long, False)):
        with softkv.open(tmp_path / name, value="number", compatibility=compared) as db:
            db.add(vectors=keys, values=values_of("number", plain))
            assert not learned or db.fit().kept
            db.build_index()
            found = db.lookup(QUERIES[:ASKED], **asked)
            kinds = set(np.broadcast_to(found.error_kind, ASKED).tolist())
            assert ("measured" in kinds) == measured, name


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (["--temperature", 20], {"temperature": 20.0}),
        (["--temperature", 0.005], {"temperature": 0.005}),
        (["--temperature", 0.2, "--where", json.dumps(SOME)], {"temperature": 0.2, "where": SOME}),
        (["--temperature", 3, "--compatibility", "laplace"], {"temperature": 3.0, "compatibility": "laplace"}),
        (["--temperature", 0.6, "--compatibility", "student"], {"temperature": 0.6, "compatibility": "student"}),
    ],
    ids=str,
)
def test_the_command_measures_what_the_library_does(
    db: softkv.SoftKV, path: Path, options: list[Any], given: dict[str, Any]
) -> None:
    """It prints the same answer, and in a table that it was measured; so does `compare`."""
    vector = ["--vector", ",".join(map(repr, QUERIES[1].tolist())), "--db", path, "--tolerance", TOLERANCE]
    found = json.loads(ran("query", *vector, *options).out)
    assert (found["route"], found["error_kind"]) == ("measured", "measured")
    assert found == db.lookup(QUERIES[1], tolerance=TOLERANCE, **given).to_dict()
    assert {"error", "log_mass_error", "effective_error", "spread_error"} <= found.keys()
    assert "(measured)" in ran("query", *vector, *options, terminal=True).out
    compared = json.loads(ran("compare", *vector, *options).out)
    assert compared["soft"] == found
    assert "compatibility" in given or "measured" in {one["error_kind"] for one in compared["strip"]}


SCANNED: dict[str, tuple[dict[str, Any], str]] = {
    "a function": ({"compatibility": lambda queries, keys: queries @ keys.T}, "no index is for <lambda>"),
    "additive": ({"compatibility": additive(*np.ones((2, 3, WIDTH)), np.ones(3))}, "no index is for additive"),
    "a bound with a filter": ({"guarantee": "bound", "where": SOME}, "a filter is applied to all items, as a bound"),
    "a bound with a mask": ({"guarantee": "bound", "mask": THREE_QUARTERS}, "a mask is applied to all items"),
    "a bound by laplace": ({"guarantee": "bound", "compatibility": "laplace"}, "no index is for laplace"),
    "tolerance 0": ({"tolerance": 0}, "tolerance 0 asks for all items"),
    "a mask for each query": ({"mask": np.tile(THREE_QUARTERS, (2, 1))}, "a mask is applied to all items"),
    "the k best with a filter": ({"k": 3, "where": SOME}, "a filter is applied to all items"),
}


@pytest.mark.parametrize("name", SCANNED)
def test_these_are_scanned_all_the_same(db: softkv.SoftKV, name: str) -> None:
    """Others are measured at that temperature; each says why."""
    options, why = SCANNED[name]
    found = db.lookup(QUERIES[:2], **{"tolerance": TOLERANCE, "temperature": 0.2} | options)
    assert (found.route, found.error_kind) == ("scan", "exact")
    assert str(found.reason).startswith(why)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--tolerance", 0], "tolerance 0 asks for all items"),
        (["--guarantee", "bound", "--where", json.dumps(SOME)], "a filter is applied to all items, as a bound needs"),
        (["--tolerance", 0.0005], route.UNMEASURED),
    ],
    ids=str,
)
def test_the_command_scans_what_the_library_does(path: Path, options: list[Any], why: str) -> None:
    """The reason is in its JSON."""
    vector = ["--vector", ",".join(map(repr, QUERIES[0].tolist())), "--db", path, "--temperature", 20]
    found = json.loads(ran("query", *vector, *options).out)
    assert (found["route"], found["error_kind"]) == ("scan", "exact")
    assert why in found["reason"]


def test_planes_and_items_that_ask_all_items_are_scanned(tmp_path: Path) -> None:
    """They are, however little drawing takes."""
    keys = keys_of(2, 300)
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=keys, values=values_of("number", keys))
        db.fit(planes=True)
        db.build_index(lists=10)
        assert route.worth_drawing(db._view(), 1) > 0
        found = db.lookup(QUERIES[0], tolerance=TOLERANCE)
        assert (found.route, found.reason.partition(";")[0]) == ("scan", "planes are read off all items")
        found = db.self_attention(k=1)
        assert (found.route, found.reason) == ("scan", "every item asks all items")


def test_what_was_learned_after_the_index_was_built_is_scanned(tmp_path: Path) -> None:
    """It is until an index is built for it, and the old one answers who asks without it."""
    keys = keys_of(2, 2000)
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=keys, values=keys[:, 0] * keys[:, 1])
        db.build_index(lists=10)
        assert db.fit(planes=False).kept
        for asked in (QUERIES[0], QUERIES[:ASKED]):
            found = db.lookup(asked, tolerance=TOLERANCE)
            assert (found.route, found.error_kind) == ("scan", "exact")
            assert found.reason.startswith("the index was built for gaussian; `softkv index build`")
        assert "calibrated" in db.lookup(QUERIES, temperature=20, projection=False, tolerance=0.2).routes


def test_a_small_store_is_scanned_and_says_nothing_of_it(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be asked anything."""
    scaled(monkeypatch, cheap=ITEMS * WIDTH)
    for options, _ in MEASURED.values():
        answer = db.lookup(QUERIES[0], tolerance=TOLERANCE, **options)
        assert (answer.route, answer.reason, answer.error_kind) == ("scan", "", "exact")


def test_rows_of_whole_lists_count_as_what_they_take(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query is not scanned for the lists that it reads in any case if these take less time than a scan."""
    monkeypatch.setattr(sampled, "worth_drawing", lambda *_: 0.1 * ITEMS)
    queries, found = keys_of(3, 40), dict[float, list[softkv.Answer]]()
    for share in (1.0, 0.25):
        monkeypatch.setattr(sampled, "listed_as_drawn", lambda *_, share=share: share)
        found[share] = [db.lookup(query, temperature=0.005, tolerance=TOLERANCE) for query in queries]
    dear, cheap = (np.array([one.route == "measured" for one in found[share]]) for share in found)
    assert not (dear & ~cheap).any()
    gained = np.flatnonzero(cheap & ~dear)
    assert len(gained) > 20
    exact = db.lookup(queries, temperature=0.005, tolerance=0)
    assert all(np.linalg.norm(found[0.25][one].value - exact[one].value) <= found[0.25][one].error for one in gained)
    assert min(found[0.25][one].rows_read for one in gained) > 0.1 * ITEMS
    for price, started, share in ((5, 0.0, 0.4), (1000, 0.0, 0.4), (1000, 0.5, 0.5 * WIDTH / (2 * (WIDTH + 1)))):
        monkeypatch.setattr(route, "DRAWN", price)
        monkeypatch.setattr(route, "STARTED", started * ITEMS * WIDTH)
        allowed = route.worth_drawing(db._view(), 1) / route.listed_as_drawn(db._view(), 1)
        assert allowed == pytest.approx(share * ITEMS)


def test_no_more_than_two_fifths_of_the_rows_are_drawn(db: softkv.SoftKV) -> None:
    """A lookup that would need more is scanned, with that reason, even where drawing takes no time."""
    assert route.worth_drawing(db._view(), 1) == 0.4 * ITEMS
    found = [db.lookup(QUERIES[0], temperature=20.0, tolerance=one) for one in np.geomspace(0.05, 0.0005, 30)]
    drawn = [one.scored for one in found if one.route == "measured"]
    assert 0.3 * ITEMS < max(drawn) < 0.42 * ITEMS  # a few more or less, as chance has it
    assert found[-1].reason.endswith(f"{route.UNMEASURED}; a larger tolerance needs fewer")


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({"temperature": 20.0}, 1, 20),
        ({"temperature": 20.0}, 0, 3),
        ({"temperature": 3.0, "compatibility": "laplace"}, 0, 3),
    ],
    ids=["of the index", "corrected", "by another way to compare"],
)
def test_the_first_draw_sizes_the_second_and_is_in_no_answer(
    db: softkv.SoftKV, options: dict[str, Any], least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third is made where the second does not do; the answer is what the last says, and the rows of all are told.

    By another way to compare than that of the index a variance is thought to be twice what few rows tell, and where
    lists correct what rows tell, the second draw has more than are needed: that does, but for a few.
    """
    looks, look = list[Any](), measuring._Measuring._look
    monkeypatch.setattr(measuring._Measuring, "_look", lambda *given: looks.append(look(*given)) or looks[-1])
    monkeypatch.setattr(strata, "ENOUGH", ITEMS if least else 2)  # rows of a list that corrects what drawn ones tell
    index, draws = db._view().index, list[int]()
    seen = 0 if "compatibility" not in options else np.minimum(np.diff(index.offsets), measuring.SEEN).sum()
    for query in QUERIES[:60]:
        looks.clear()
        found = db.lookup(query, tolerance=TOLERANCE, **options)
        if found.route == "measured":
            *before, last = looks
            value = index.units.middle + index.units.size * last.told.total[0] / last.told.mass[0]
            assert found.value == pytest.approx(float(value[0]), rel=1e-6)
            assert found.rows_read == found.scored + seen + sum(int(one.compared[0]) for one in before)
            draws.append(len(looks))
        else:
            assert len(looks) <= 1 + len(measuring.AIMS)
    assert len(draws) > 40
    assert set(draws) <= {2, 3, 4}
    assert least <= len(draws) - draws.count(2) <= most


@pytest.mark.parametrize("unkind", [1, 2, 3, 4])
def test_where_chance_is_unkind_more_is_drawn(db: softkv.SoftKV, unkind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan comes after four draws whose error was too large; those after the second share what two have left over."""
    looks, look, estimate = list[Any](), measuring._Measuring._look, measuring._Measuring._estimate
    rooms, enough = list[float](), Strata.enough

    def unsure(*given: Any) -> Any:
        found = estimate(*given)
        return replace(found, sure=found.sure & (len(looks) > unkind + 1))  # the first look decides sizes alone

    def sized(self: Any, goals: Any, most: float, **options: Any) -> Any:
        assert options["least"] == measuring.LEAST * measuring.PILOT
        rooms.append(most)
        return enough(self, goals, most, **options)

    monkeypatch.setattr(measuring._Measuring, "_look", lambda *given: looks.append(look(*given)) or looks[-1])
    monkeypatch.setattr(measuring._Measuring, "_estimate", unsure)
    monkeypatch.setattr(Strata, "enough", sized)
    for name, small in {"AIMS": (0.85, 0.8, 0.75, 0.7), "PILOT": 200, "LOG_MASS": 0.5}.items():  # as the store is
        monkeypatch.setattr(measuring, name, small)
    found = db.lookup(QUERIES[0], temperature=20.0, tolerance=0.5)
    read = np.cumsum([int(one.compared[0]) for one in looks])
    assert rooms == [rooms[0], rooms[0], *(rooms[0] - read[1 + np.arange(1, len(rooms) - 1)])]
    if unkind < 4:
        assert found.route == "measured"
        assert len(looks) == unkind + 2
        assert found.rows_read == found.scored + read[-2]
    else:
        assert found.route == "scan"
        assert len(looks) == 5
        assert found.reason.endswith(f"{route.UNMEASURED}; a larger tolerance needs fewer")


def test_each_draw_after_one_that_failed_aims_at_less() -> None:
    """The last one reads many times what was thought to be enough."""
    assert list(measuring.AIMS) == sorted(measuring.AIMS, reverse=True)
    assert (measuring.AIMS[0] / measuring.AIMS[-1]) ** 2 > 20


def test_variances_are_raised_to_what_lists_foretell_and_never_lowered(
    db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variance of four times what the rows tell makes each error twice as large; a twentieth is stated at least.

    So it is as long as few rows tell of it: many would rule it out.
    """
    monkeypatch.setattr(sampling, "MANY", np.inf)
    estimate, seen = measuring._Measuring._estimate, list[int]()

    def noted(self: Any, look: Any, thought: Any, unguided: Any) -> Any:
        told, by_itself, floor = look.told, look.plainly(), measuring.FLOOR * self.wanted
        none, more = (
            [
                Variances(
                    times * one.of_value.variance, times * one.of_mass.variance, np.zeros_like(one.of_mass.variance)
                )
                for one in (told, by_itself)
            ]
            for times in (0.0, 4.0)
        )
        plain, raised = (estimate(self, look, *given) for given in (none, more))
        for found, times in ((plain, 1.0), (raised, 2.0)):
            error = np.hypot(times * told.of_value.error(self.confidence), floor)
            assert found.error == pytest.approx(error * self.units.size)
        lost = measuring.FLOOR * LOG_MASS
        assert np.hypot(2 * np.sqrt(plain.log_mass_error**2 - lost**2), lost) == pytest.approx(
            raised.log_mass_error, rel=0.1
        )
        for name in ("effective_error", "spread_error"):
            assert (1.5 * getattr(plain, name) < getattr(raised, name)).all(), name
        found = estimate(self, look, thought, unguided)
        assert (found.error >= np.sqrt(thought.values.sum(1)) * self.units.size).all()
        assert (found.error >= plain.error).all()
        assert (found.log_mass_error >= np.maximum(plain.log_mass_error, np.sqrt(thought.masses.sum(1)))).all()
        seen.append(len(thought.values))
        return found

    monkeypatch.setattr(measuring._Measuring, "_estimate", noted)
    for query in QUERIES[:20]:
        db.lookup(query, temperature=20.0, tolerance=TOLERANCE)
    assert len(seen) >= 20


def test_lists_of_which_most_rows_would_be_drawn_are_read_whole(
    db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of no list half of the rows are drawn, but of those that chance visits, which have few; some are read whole.

    The heads that are all read do not count.
    """
    look, whole = measuring._Measuring._look, list[int]()

    def noted(self: Any, left: Any, sizes: Any) -> Any:
        found, strata = look(self, left, sizes), left.model.values
        draw, heads = found.draw, strata.heads[found.draw.strata]
        certain = (draw.chances == 1.0) & ~((heads > 0) & (draw.counts == heads) & (draw.sizes == heads))
        assert (left.own.sum(1) >= 3).all()  # the likeliest to hold the best rows
        assert (draw.sizes <= np.ceil(SOFT * strata.counts[draw.strata]))[certain].all()
        whole.append(int(strata.counts[sizes.whole(strata.counts)].sum()))
        return found

    monkeypatch.setattr(measuring._Measuring, "_look", noted)
    for query in QUERIES[:20]:
        db.lookup(query, temperature=0.2, tolerance=TOLERANCE, where=SOME)
    assert max(whole) > 0


@pytest.mark.parametrize("some", [{}, {"where": SOME}], ids=str)
def test_no_more_items_are_effective_than_there_are(db: softkv.SoftKV, some: dict[str, Any]) -> None:
    """Where all weigh alike, half of the estimates would be more than all items, or than those that match."""
    found = [db.lookup(query, temperature=1e4, tolerance=TOLERANCE, **some) for query in QUERIES[:20]]
    measured, most = [one for one in found if one.route == "measured"], ITEMS * (2 / 3 if some else 1)
    assert len(measured) > 10
    assert max(one.effective for one in measured) == most
    assert all(most - one.effective <= 2 * one.effective_error for one in measured)


def test_a_mass_is_known_to_a_tenth_of_itself_whatever_the_confidence(db: softkv.SoftKV) -> None:
    """A ratio to a mass that is known worse would be biased."""
    off, options = [], {"temperature": 0.2, "where": SOME, "confidence": 0.02}
    for query in QUERIES[:30]:
        found, exact = (db.lookup(query, tolerance=tolerance, **options) for tolerance in (0.5, 0))
        assert found.route == "measured"
        off.append(found.log_mass - exact.log_mass)
    assert np.sqrt(np.mean(np.square(off))) < 0.12


def test_what_is_drawn_follows_from_the_secret_the_generation_and_the_query(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither temperature, tolerance nor commit matter; another query, generation and secret draw otherwise."""
    drawer, seeds = asking_lists.drawer, list[int]()

    def noted(*given: Any) -> np.random.Generator:
        found = drawer(*given)
        seeds.append(found.bit_generator.state["state"]["state"])
        return found

    monkeypatch.setattr(asking_lists, "drawer", noted)

    def seed(db: softkv.SoftKV, query: np.ndarray = QUERIES[0], **options: Any) -> int:
        seeds.clear()
        assert db.lookup(query, **{"temperature": 20.0, "tolerance": TOLERANCE} | options).route == "measured"
        assert len(seeds) == 1
        return seeds[0]

    copy, other = (Path(shutil.copytree(path, tmp_path / name)) for name in ("copy", "other"))
    with softkv.open(copy) as db:
        first = seed(db)
        assert seed(db, temperature=10.0) == seed(db, tolerance=0.04) == seed(db, confidence=0.9) == first
        db.add("one more", 1.0, vectors=QUERIES[1])
        assert seed(db) == first
        assert seed(db, QUERIES[1]) != first
        db.delete("7")
        assert seed(db) == first
        db.compact()
        assert seed(db) != first
    with_secret(other, b"another".ljust(32))
    with softkv.open(other, "r") as db:
        assert seed(db) != first


def test_an_index_of_an_earlier_layout_is_drawn_from_as_it_is(path: Path, tmp_path: Path) -> None:
    """Its lists have no bodies in random order, so each row is drawn by itself; `info` says to build again."""
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    rewritten(copy, lambda index: replace(index, heads=None))
    with softkv.open(copy, "r") as db:
        assert "what is measured is read from twice as many places" in str(db.info().index)
        pairs = [[db.lookup(one, temperature=20.0, tolerance=t) for t in (TOLERANCE, 0)] for one in QUERIES[:ASKED]]
    assert {found.route for found, _ in pairs} == {"measured"}
    assert all(abs(found.value - exact.value) <= 2 * found.error for found, exact in pairs)


def test_an_index_is_rehearsed_from_a_fifth_of_the_temperature_to_a_hundred_times(db: softkv.SoftKV) -> None:
    """Of a default build, answers at both ends are calibrated, and beyond them measured."""
    low, high = db.info().index.built["temperatures"]
    assert 0.19 * T <= low <= 0.2 * T
    assert 100 * T <= high <= 110 * T
    for times, inside in ((0.9, low), (1.1, high)):
        ways = [
            {db.lookup(one, temperature=t, tolerance=0.2).route for one in keys_of(9, 10)}
            for t in (inside, times * inside)
        ]
        assert "calibrated" in ways[0], ways
        assert "calibrated" not in ways[1], ways


@pytest.mark.parametrize("alone", [False, True])
def test_rows_of_a_list_that_a_query_reads_whole_do_not_count_again(
    db: softkv.SoftKV, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other queries of a batch draw them: these alone take them for a sample, also where but one query is left."""
    look, whole = measuring._Measuring._look, list[np.ndarray]()

    def noted(self: Any, left: Any, sizes: Any) -> Any:
        found = look(self, left, sizes)
        whole.append(left.own[:, found.draw.strata[found.draw.owners]])
        assert np.array_equal(np.isneginf(found.logits), whole[-1])
        return found

    monkeypatch.setattr(measuring._Measuring, "_look", noted)
    temperatures = np.where(np.arange(6) % 3 == 0, 0.2, 0.05 if alone else 0.2)  # the cold ones need too many rows
    for first in range(0, 60, 6):
        queries = np.concatenate([keys_of(9, 3), QUERIES[first : first + 3]])
        found = db.lookup(queries, temperature=temperatures, tolerance=TOLERANCE, where=SOME)
        assert alone or found.routes["measured"] > 1
    assert any(one.any() and not one.all(0).all() for one in whole if (len(one) == 1) == alone)


@pytest.mark.parametrize("kept", [1.0, 0.5])
def test_only_bodies_of_lists_are_taken_for_rows_in_random_order(db: softkv.SoftKV, kept: float) -> None:
    """Heads are not, which lie before them, farthest first; of either as many rows as are left."""
    index, live = db._view().index, np.random.default_rng(0).random(ITEMS) < kept
    population = Population(index, None if kept == 1 else live)
    inside = np.arange(ITEMS) - np.repeat(index.offsets[:-1], np.diff(index.offsets))
    lists = np.repeat(np.arange(len(index.heads)), np.diff(index.offsets))
    in_head = inside < index.heads[lists]
    assert np.array_equal(population.ahead, np.bincount(lists[in_head & live], minlength=len(index.heads)))
    assert np.array_equal(population.shuffled, np.bincount(lists[~in_head & live], minlength=len(index.heads)))
    assert population.ahead.sum() > 0.04 * kept * ITEMS
