"""The arithmetic of the page, read out of it in a real browser: equal to the reference to nine digits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.maths.compatibility import COMPATIBILITIES

from . import reference
from .browsing import Watched, opened
from .databases import KINDS, filled, values_of, vectors_of
from .reference import Head
from .servers import eventually

pytestmark = pytest.mark.chromium
COUNT = 25  # items that the page lists at once
QUERY = vectors_of(1, seed=7)[0]
NEAR: dict[str, float] = {"rel": 1e-9, "abs": 1e-12}


def columns(kind: str, values: Any) -> tuple[list[list[float]], list[str]]:
    """What the reference blends, and the labels or texts that it stands for."""
    if kind in ("number", "vector"):
        return [list(map(float, np.ravel(value))) for value in values], []
    names = list(dict.fromkeys(values))
    return [[float(value == name) for name in names] for value in values], names


def shown_scores(seen: Watched) -> list[float]:
    """The scores of all items, in their order."""
    return seen.all_exact("#list tbody td:nth-child(4)")


def shown_weights(seen: Watched) -> list[float]:
    """The weights of all items, in their order."""
    return seen.all_exact("#list tbody td:nth-child(5)")


def agrees(seen: Watched, expected: reference.Expected) -> None:
    """What the page shows of all items is what the reference says."""
    assert shown_weights(seen) == pytest.approx(expected.weights, **NEAR)
    assert seen.exact("#effective") == pytest.approx(expected.effective, **NEAR)
    assert seen.exact("#logmass") == pytest.approx(expected.log_mass, **NEAR)


@pytest.mark.parametrize("name", COMPATIBILITIES)
def test_every_way_to_compare_is_that_of_the_reference(name: str, browser: Any, tmp_path: Path) -> None:
    """Scores, weights, log mass, effective number, answer and spread, at the store's temperature and at another."""
    with filled(tmp_path / "s", "number", COUNT, compatibility=name) as db:
        db.page(tmp_path / "page.html", queries=[QUERY])
        temperature, vectors = db.info().temperature, vectors_of(COUNT)
    values, _ = columns("number", values_of("number", COUNT))
    for link, warm in (("", temperature), ("#T=0.37", 0.37)):
        with opened(browser, tmp_path / "page.html", link) as seen:
            score = getattr(reference, name)
            how: dict[str, Any] = {"score": score, "temperature": warm}
            found = reference.lookup(QUERY.tolist(), vectors.tolist(), values, **how)
            agrees(seen, found)
            assert shown_scores(seen) == pytest.approx([score(QUERY.tolist(), key) for key in vectors.tolist()], **NEAR)
            assert seen.exact("#value") == pytest.approx(found.value[0], **NEAR)
            assert seen.exact("#spread") == pytest.approx(found.spread[0], **NEAR)
            best = reference.lookup(QUERY.tolist(), vectors.tolist(), values, k=3, **how)
            assert seen.exact("#ways tbody tr:nth-child(3) td:nth-child(2)") == pytest.approx(best.value[0], **NEAR)
            assert seen.exact("#ways tbody tr:nth-child(3) td:nth-child(3)") == pytest.approx(best.mass, **NEAR)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_value_is_blended(kind: str, browser: Any, tmp_path: Path) -> None:
    """Numbers and vectors are averaged, labels and texts take shares."""
    with filled(tmp_path / "s", kind, COUNT, compatibility="gaussian", temperature=0.8) as db:
        db.page(tmp_path / "page.html", queries=[QUERY])
    given = values_of(kind, COUNT)
    values, names = columns(kind, given)
    how: dict[str, Any] = {"score": reference.gaussian, "temperature": 0.8}
    found = reference.lookup(QUERY.tolist(), vectors_of(COUNT).tolist(), values, **how)
    with opened(browser, tmp_path / "page.html") as seen:
        agrees(seen, found)
        shown = seen.page.text_content("#value")
        if names:
            heaviest = names[int(np.argmax(found.value))]
            assert shown.startswith(heaviest)
            assert kind == "text" or f"{max(found.value):.1%}" in shown
        elif kind == "vector":
            cells = json.loads(seen.page.get_attribute("#value", "data-exact"))
            assert cells == pytest.approx(found.value, **NEAR)
        else:
            assert seen.exact("#value") == pytest.approx(found.value[0], **NEAR)


def test_the_ends_of_the_slider_are_the_best_key_and_the_plain_mean(browser: Any, tmp_path: Path) -> None:
    """They are so to the last digit, whatever the temperature of the store."""
    values = values_of("number", COUNT)
    with filled(tmp_path / "s", "number", COUNT, compatibility="dot") as db:
        db.page(tmp_path / "page.html", queries=[QUERY])
        best = db.nearest(QUERY).value
    with opened(browser, tmp_path / "page.html") as seen:
        seen.page.focus("#warmth")
        seen.page.keyboard.press("Home")
        seen.settled()
        assert (seen.exact("#value"), seen.exact("#effective"), sorted(shown_weights(seen))[-2:]) == (best, 1, [0, 1])
        seen.page.keyboard.press("End")
        seen.settled()
        assert seen.exact("#value") == pytest.approx(np.mean(values), **NEAR)
        assert shown_weights(seen) == pytest.approx([1 / COUNT] * COUNT, **NEAR)
        assert seen.exact("#logmass") == pytest.approx(np.log(COUNT), **NEAR)


def test_the_steps_of_a_weight_lead_to_it(browser: Any, tmp_path: Path) -> None:
    """Each number follows from the one before: score, logit, exponential, share, and what it adds to the answer."""
    with filled(tmp_path / "s", "number", COUNT, compatibility="student", temperature=0.5) as db:
        db.page(tmp_path / "page.html", queries=[QUERY])
    key, value = vectors_of(COUNT)[6].tolist(), values_of("number", COUNT)[6]
    values, _ = columns("number", values_of("number", COUNT))
    found = reference.lookup(
        QUERY.tolist(), vectors_of(COUNT).tolist(), values, score=reference.student, temperature=0.5
    )
    with opened(browser, tmp_path / "page.html", "#look=7") as seen:
        squares, score, logit, power, weight, adds = seen.all_exact("#arithmetic td:last-child")
    assert squares == pytest.approx(-2 * reference.gaussian(QUERY.tolist(), key), **NEAR)
    assert score == pytest.approx(reference.student(QUERY.tolist(), key), **NEAR)
    assert logit == pytest.approx(score / 0.5, **NEAR)
    assert power == pytest.approx(np.exp(logit - max(found.logits)), **NEAR)
    assert weight == pytest.approx(found.weights[6], **NEAR)
    assert adds == pytest.approx(weight * value, **NEAR)


def test_a_filter_leaves_the_others_out(browser: Any, tmp_path: Path) -> None:
    """It does what a mask does, and a link carries it."""
    with filled(tmp_path / "s", "number", COUNT, compatibility="laplace", temperature=0.9) as db:
        db.page(tmp_path / "page.html", queries=[QUERY])
    values, _ = columns("number", values_of("number", COUNT))
    mask = [number >= 10 for number in range(COUNT)]
    found = reference.lookup(
        QUERY.tolist(), vectors_of(COUNT).tolist(), values, score=reference.laplace, temperature=0.9, mask=mask
    )
    with opened(browser, tmp_path / "page.html") as seen:
        seen.page.select_option("#field", "n")
        seen.page.select_option("#operator", "$gte")
        seen.page.fill("#operand", "10")
        seen.page.keyboard.press("Enter")
        assert eventually(lambda: "where" in seen.page.evaluate("location.hash"))
        link = seen.page.evaluate("location.hash")
        assert seen.exact("#value") == pytest.approx(found.value[0], **NEAR)
        assert shown_weights(seen) == pytest.approx(found.weights[10:], **NEAR)
    with opened(browser, tmp_path / "page.html", link) as again:
        assert again.exact("#value") == pytest.approx(found.value[0], **NEAR)


def test_heads_are_those_of_the_reference(browser: Any, tmp_path: Path) -> None:
    """Projections, offsets, the joined answer, and the weights of one head."""
    drawn = np.random.default_rng(3).standard_normal
    heads = softkv.Heads(
        w_q=drawn((2, 4, 5)), w_k=drawn((2, 4, 5)), w_v=drawn((2, 2, 3)), w_o=drawn((3, 4)),
        b_q=drawn((2, 4)), b_k=drawn((2, 4)), b_v=drawn((2, 2)), b_o=drawn(3),
    )  # fmt: skip
    with filled(tmp_path / "s", "vector", COUNT, compatibility="dot") as db:
        db.page(tmp_path / "page.html", queries=[QUERY], heads=heads)
    values, _ = columns("vector", values_of("vector", COUNT))
    names = ("w_q", "b_q", "w_k", "b_k", "w_v", "b_v")
    parts = [Head(*(np.asarray(getattr(heads, name))[one].tolist() for name in names)) for one in range(2)]
    output, answers = reference.multi_head(
        QUERY.tolist(), vectors_of(COUNT).tolist(), values, heads=parts,
        output_matrix=np.asarray(heads.w_o).tolist(), output_offset=np.asarray(heads.b_o).tolist(),
    )  # fmt: skip
    with opened(browser, tmp_path / "page.html") as seen:
        assert json.loads(seen.page.get_attribute("#value", "data-exact")) == pytest.approx(output, **NEAR)
        seen.page.click("#heads button:nth-child(3)")
        seen.settled()
        agrees(seen, answers[1])


def test_what_was_learned_is_worked_into_the_vectors(browser: Any, tmp_path: Path) -> None:
    """The page compares by the metric that `fit` has learned: what it shows is what the store answers."""
    rng = np.random.default_rng(1)
    points = rng.uniform(-1, 1, (300, 4)).astype(np.float32)
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=points, values=np.sin(4 * points[:, 0]))
        fitted = db.fit()
        db.page(tmp_path / "page.html", queries=[points[5] * 0.9])
        answer = db.lookup(points[5] * 0.9)
    assert fitted.kept
    with opened(browser, tmp_path / "page.html") as seen:
        assert "as the store has learned" in seen.page.text_content("#about")
        assert seen.exact("#logmass") == pytest.approx(answer.log_mass, rel=1e-4)
        assert seen.exact("#effective") == pytest.approx(answer.effective, rel=1e-4)
        weights = [one.weight for one in answer.contributors]
        assert seen.all_exact("#bars .share")[:10] == pytest.approx(weights, rel=1e-3)


def test_evidence_is_where_the_query_lies_among_items_that_were_left_out(browser: Any, tmp_path: Path) -> None:
    """The temperature is the store's, wherever the slider stands; each item is asked of all others."""
    with filled(tmp_path / "s", "number", COUNT, compatibility="gaussian", temperature=0.6) as db:
        db.page(tmp_path / "page.html", queries=[QUERY, [9.0] * 5])
    vectors = vectors_of(COUNT).tolist()

    def log_mass(query: list[float], left_out: int = -1) -> float:
        mask = [row != left_out for row in range(COUNT)]
        zeros = [[0.0]] * COUNT
        return reference.lookup(query, vectors, zeros, score=reference.gaussian, temperature=0.6, mask=mask).log_mass

    others = [log_mass(vectors[row], row) for row in range(COUNT)]
    below = np.mean([one < log_mass(QUERY.tolist()) for one in others])
    with opened(browser, tmp_path / "page.html", "#T=mean") as seen:
        assert seen.exact("#evidence-told") == pytest.approx(below)
    with opened(browser, tmp_path / "page.html", "#query=q1") as seen:
        assert seen.exact("#evidence-told") == 0
        assert "the answer is a guess" in seen.page.text_content("#evidence-told")
