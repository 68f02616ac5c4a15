"""Pages of stores that are indexed, have learned, have lost items or are guarded: in a file, and at a server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from softkv_cli.mixtures import mixture

import softkv
from softkv.guard.judged import seen_of

from . import reference
from .browsing import opened
from .databases import count_as_large, filled, vectors_of
from .listening import guarded
from .looking import answered, looking, says
from .servers import eventually

pytestmark = pytest.mark.chromium
FAR = [60.0, 60.0]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of vectors with an index, of more items than a page shows."""
    path = tmp_path_factory.mktemp("indexed") / "s"
    made = mixture(2500, 8, 4, 1, seed=0)
    with softkv.open(path, temperature=0.05) as db:
        db.add(vectors=made.keys, values=made.values[:, 0])
        db.build_index(temperatures=(0.05, 0.1))
    return path


def test_a_file_of_an_indexed_store_says_what_was_read_and_estimated(
    indexed: Path, browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does beside its own numbers, which are those of the items that it has."""
    count_as_large(monkeypatch)
    query = mixture(2500, 8, 4, 1, seed=0).queries[0]
    with softkv.open(indexed, "r") as db:
        db.page(tmp_path / "page.html", queries=[query])
        answer = db.lookup(query)
    assert answer.error_kind == "calibrated"
    with opened(browser, tmp_path / "page.html") as seen:
        told = seen.page.text_content("#whole")
    assert told.startswith("All 2,500 items, at its own temperature: ")
    for fact in ("(calibrated)", f"{answer.scored:,} scored", "shown: the heaviest of"):
        assert fact in told


def test_the_page_of_a_server_says_what_was_read_and_estimated(
    indexed: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error with its kind, the rows that were read, and that the weights are the heaviest of these."""
    count_as_large(monkeypatch)
    with guarded(indexed, read_only=True) as server, looking(browser, server) as seen:
        assert answered(seen)
        with softkv.open(indexed, "r") as db:
            answer = db.lookup(db.item(seen.page.text_content("#asked").split("“")[1][:-1]).vector, show=12)
        assert answer.error_kind == "calibrated"
        assert seen.exact("#error") == pytest.approx(answer.error, rel=1e-6)
        assert "(calibrated)" in seen.page.text_content("#error")
        assert f"route calibrated, {answer.rows_read:,} rows read" in seen.page.text_content("#whole")
        assert "these are the heaviest of the rows read" in seen.page.text_content("#rest")
        assert seen.all_exact("#bars .share") == pytest.approx([one.weight for one in answer.contributors], rel=1e-6)
        assert seen.told == []


def test_the_error_is_of_the_temperature_that_is_shown(browser: Any, tmp_path: Path) -> None:
    """It moves with the slider; while the store has not answered yet, none of another temperature stands there."""
    filled(tmp_path / "many", "number", 2500, compatibility="gaussian", temperature=0.5).close()
    held: list[Any] = []
    with guarded(tmp_path / "many", read_only=True) as server, looking(browser, server) as seen:
        assert answered(seen)
        key, errors = seen.page.text_content("#asked").split("“")[1][:-1], [seen.exact("#error")]
        seen.page.route("**/v1/many/lookup", lambda route: held.append(route))
        for press in ("PageDown", "PageUp", "PageUp"):
            seen.page.focus("#warmth")
            seen.page.keyboard.press(press)
            assert eventually(lambda: seen.page.text_content("#error") == "…" and len(held) == 1)
            assert seen.page.get_attribute("#error", "data-exact") is None
            held.pop().continue_()
            assert answered(seen)
            warm = float(seen.page.get_attribute("#temperature", "data-exact"))
            with softkv.open(tmp_path / "many", "r") as db:
                answer = db.lookup(db.item(key).vector, temperature=warm)
            assert seen.exact("#error") == pytest.approx(answer.error, rel=1e-6)
            assert seen.exact("#value") == pytest.approx(answer.value, rel=1e-9)
            errors.append(answer.error)
    assert len(set(errors)) == 3 < len(errors)


def test_a_server_answers_as_its_store_has_learned(browser: Any, tmp_path: Path) -> None:
    """A key asks with its own vector, at the store's temperature and at another."""
    points = np.random.default_rng(1).uniform(-1, 1, (300, 4)).astype(np.float32)
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add([f"point {n}" for n in range(300)], np.sin(4 * points[:, 0]), vectors=points)
        assert db.fit().kept
    with guarded(tmp_path / "s") as server, looking(browser, server) as seen:
        assert answered(seen)
        cases: list[tuple[str, dict[str, Any]]] = [("query=i8", {}), ("query=i8&T=0.3", {"temperature": 0.3})]
        for link, options in cases:
            seen.page.evaluate(f"location.hash = '{link}'")
            assert says(seen, "#asked", "point 7")
            assert says(seen, "#temperature", "0.3" if options else "1, the store’s own")
            assert answered(seen)
            with softkv.open(f"http://{server.host}:{server.port}/s", token=server.token) as db:
                answer = db.lookup(points[7], **options)
            assert seen.exact("#value") == pytest.approx(answer.value, rel=1e-6)
            assert seen.exact("#logmass") == pytest.approx(answer.log_mass, rel=1e-6)


def test_deleted_items_take_no_part(browser: Any, tmp_path: Path) -> None:
    """Deleted items take no part and are not shown; the others are called what they were called before."""
    gone = [1, 2, 12, 24]
    kept = [row for row in range(25) if row not in gone]
    with filled(tmp_path / "s", "number", 25, compatibility="gaussian", temperature=0.5) as db:
        values = list(db.values())
        assert db.delete([f"item {row}" for row in gone]) == len(gone)
        db.page(tmp_path / "page.html", queries=vectors_of(1, seed=7))
        answer = db.lookup(vectors_of(25)[13])
    keys = vectors_of(25)[kept].tolist()
    how: dict[str, Any] = {"score": reference.gaussian, "temperature": 0.5}
    found = reference.lookup(vectors_of(1, seed=7)[0].tolist(), keys, [[values[row]] for row in kept], **how)
    with opened(browser, tmp_path / "page.html", "#look=25") as seen:
        assert seen.page.text_content("#count") == "21"
        assert seen.exact("#value") == pytest.approx(found.value[0], rel=1e-9)
        assert seen.all_exact("#list td:last-child") == pytest.approx(found.weights, rel=1e-9, abs=1e-12)
        names = seen.page.eval_on_selector_all("#list th button", "all => all.map(one => one.textContent)")
        assert names == [f"item {row}" for row in kept]
        assert seen.page.text_content("#map-told") == ""
    with guarded(tmp_path / "s") as server, looking(browser, server) as seen:
        assert answered(seen)
        assert seen.page.text_content("#count") == "21"
        seen.page.evaluate("location.hash = 'query=i14'")
        assert says(seen, "#asked", "item 13")
        assert answered(seen)
        assert seen.exact("#value") == pytest.approx(answer.value, rel=1e-6)


def spots(count: int) -> tuple[np.ndarray, Any]:
    """Points around four places, and which they are around; with some noise between them."""
    rng = np.random.default_rng(0)
    places = rng.integers(-1, 1, (count, 2))
    return rng.standard_normal((count, 2)) + 4.4 * places + 2.2, [f"place {x + 2 * y}" for x, y in places.tolist()]


def with_guard(path: Path, count: int) -> softkv.SoftKV:
    """An open store of spots with numbers, which has a temperature that was learned, and a guard."""
    points, _ = spots(count)
    db = softkv.open(path, compatibility="gaussian")
    db.add([f"spot {number}" for number in range(count)], points.sum(1), vectors=points)
    db.tune()
    db.guard(wrong_at_most=0.1)
    return db


@pytest.mark.parametrize("kind", ["label", "number"])
def test_a_guard_says_which_queries_are_known(kind: str, browser: Any, tmp_path: Path) -> None:
    """The gauge has its threshold and its evidence, wherever the slider stands; a server says it of its own answers."""
    points, labels = spots(600)
    with softkv.open(tmp_path / "s", value=kind, compatibility="gaussian") as db:
        values = labels if kind == "label" else points.sum(1)
        db.add([f"spot {number}" for number in range(600)], values, vectors=points)
        db.tune()
        guard = db.guard(wrong_at_most=0.1)
        asked = np.array([points[3] * 0.99, FAR], np.float32)
        db.page(tmp_path / "page.html", queries=asked)
        answers = [db.lookup(one) for one in asked]
    assert [one.known for one in answers] == [True, False]
    for link, answer in zip(("#query=q0", "#query=q1&T=mean"), answers, strict=True):
        evidence = answer.guard.evidence_of(seen_of(answer))[0]
        with opened(browser, tmp_path / "page.html", link) as seen:
            told = seen.page.text_content("#evidence-told")
            assert f"so the query is {'known' if answer.known else 'not known'}." in told
            assert f"Guard: {guard}." in told
            assert "wherever the slider stands" in told
            below = np.mean(guard.evidence.values < evidence)
            # What is missing of a share near 1 is a few units of float32 in a store, and exact in the page.
            assert seen.exact("#evidence-told") == pytest.approx(below, abs=0.05)
            assert "known from here" in seen.page.text_content("#gauge")
    with guarded(tmp_path / "s") as server, looking(browser, server, "") as seen:
        seen.page.fill("#token", server.token)
        seen.page.keyboard.press("Enter")
        assert answered(seen)
        assert says(seen, "#evidence-told", "so the query is known")


def test_a_page_of_some_items_says_only_what_all_have_said(browser: Any, tmp_path: Path) -> None:
    """An item that asks those which were drawn is neither known nor unknown; a query was asked of all."""
    with with_guard(tmp_path / "s", 600) as db:
        db.page(tmp_path / "page.html", items=200, queries=[FAR])
    for link, told in (("#query=q0", "so the query is not known."), ("#query=i3", "which only all items can tell.")):
        with opened(browser, tmp_path / "page.html", link) as seen:
            assert told in seen.page.text_content("#evidence-told")


def test_a_page_that_compares_otherwise_has_no_threshold(tmp_path: Path) -> None:
    """The temperature is that of the guard."""
    with with_guard(tmp_path / "s", 300) as db:
        usual = db.info().temperature
        assert "threshold" in db.scene()["guard"]
        db.tune(compatibility="laplace")
        db.set_temperature(usual)
        assert "is about comparing by 'gaussian'" in db.scene()["guard"]["told"]


def test_a_guard_about_other_answers_says_so(browser: Any, tmp_path: Path) -> None:
    """The store has another temperature by now; the gauge is that of items that were left out."""
    with with_guard(tmp_path / "s", 300) as db:
        db.set_temperature(0.77)
        db.page(tmp_path / "page.html", queries=spots(300)[0][:1])
    with opened(browser, tmp_path / "page.html") as seen:
        told = seen.page.text_content("#evidence-told")
        assert "Guard: the guard is about temperature" in told
        assert "items that were left out" in told
        assert "known from here" not in seen.page.text_content("#gauge")
