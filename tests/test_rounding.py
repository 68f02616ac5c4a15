"""How far rounding may have moved an answer: the reference, in float64, is never farther off than is admitted."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import softkv
from softkv.maths.compatibility import COMPATIBILITIES, additive, bilinear, by_halves

from . import reference
from .databases import LABELS, count_as_large


def one_hot(label: str) -> list[float]:
    """A label as a distribution."""
    return [float(label == name) for name in LABELS]


def truth(db: softkv.SoftKV, query: Any, score: reference.Score, temperature: float) -> np.ndarray:
    """The value by the reference, of numbers and vectors as they are stored, and of labels one-hot."""
    items = list(db.select())
    values = [one_hot(one.value) if isinstance(one.value, str) else one.value for one in items]
    columns = [np.ravel(np.asarray(value, np.float64)).tolist() for value in values]
    keys, asked = [one.vector.tolist() for one in items], np.asarray(query).tolist()
    return np.array(reference.lookup(asked, keys, columns, score=score, temperature=temperature).value)


def unlike_the_rest(count: int, kind: str) -> Any:
    """Values all alike but for the first, so that their scale is small, and the spread around some answers is not."""
    if kind == "label":
        return [LABELS[1], *[LABELS[0]] * (count - 1)]
    values = np.zeros((count, 2) if kind == "vector" else count)
    values[0] = 1.0
    return values


@pytest.mark.parametrize("kind", ["number", "vector", "label"])
@pytest.mark.parametrize(("compatibility", "temperature"), [("cosine", 1e-3), ("dot", 0.05), ("laplace", 0.01)])
def test_one_value_unlike_the_rest_is_reckoned_with(
    tmp_path: Path, kind: str, compatibility: str, temperature: float
) -> None:
    """Between two keys a logit's rounding moves the answer by the distance of their values, not by the value scale."""
    rng = np.random.default_rng(0)
    keys = rng.standard_normal((1000, 32))
    keys[1] = keys[0] + 1e-3 * rng.standard_normal(32)
    with softkv.open(tmp_path / "s", compatibility=compatibility, value=kind) as db:
        db.add(vectors=keys, values=unlike_the_rest(1000, kind))
        score = getattr(reference, compatibility)
        for query in (keys[0] + 0.1 * rng.standard_normal((4, 32))).astype(np.float32):
            answer = db.lookup(query, temperature=temperature)
            found = truth(db, query, score, temperature)
            found = found[: len(np.ravel(answer.value))] if kind == "label" else found
            if kind == "label":
                found = np.array([found[LABELS.index(str(name))] for name in answer.labels])
            assert np.linalg.norm(np.ravel(answer.value) - found) <= answer.error


@pytest.mark.parametrize("far", [10.0, 1e3, 1e5])
def test_a_query_far_from_all_keys_says_how_little_it_can_tell(tmp_path: Path, far: float) -> None:
    """Differences of squares lose digits with the distance, wherever the origin is."""
    rng = np.random.default_rng(1)
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=rng.standard_normal((300, 8)), values=rng.standard_normal(300))
        for query in (rng.standard_normal((4, 8)) + far).astype(np.float32):
            answer = db.lookup(query, temperature=far / 5)
            found = truth(db, query, reference.gaussian, far / 5)
            assert abs(answer.value - found[0]) <= answer.error


def test_rounding_the_query_itself_counts(tmp_path: Path) -> None:
    """Keys and queries are compared in float32; one in float64 that does not fit is off before it is compared."""
    rng = np.random.default_rng(2)
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        keys = (rng.standard_normal((200, 4)) + 1e5).astype(np.float32)
        db.add(vectors=keys, values=rng.standard_normal(200))
        for query in rng.standard_normal((5, 4)) + 1e5:
            answer = db.lookup(query, temperature=0.5)
            assert abs(answer.value - truth(db, query, reference.gaussian, 0.5)[0]) <= answer.error
        same = db.lookup(keys[0], temperature=0.5)
        assert same.error < db.lookup(keys[0].astype(float) + 1e-3, temperature=0.5).error


def test_what_is_shown_does_not_change_what_is_admitted(tmp_path: Path) -> None:
    """The scores of a function are sized up by its mass, which is there also when nobody is shown."""
    rng = np.random.default_rng(3)
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=rng.standard_normal((50, 4)), values=rng.standard_normal(50))
        query, matrix = rng.standard_normal(4).astype(np.float32), rng.standard_normal((4, 4)).astype(np.float32)
        for compared in (lambda q, k: 100 * (q @ k.T), bilinear(100 * matrix)):
            shown = db.lookup(query, compatibility=compared, temperature=10.0)
            hidden = db.lookup(query, compatibility=compared, temperature=10.0, show=0)
            assert shown.error == hidden.error > 1e-8


def test_projections_that_stretch_stretch_the_rounding(tmp_path: Path) -> None:
    """With heads the error is that of the projected answer."""
    rng = np.random.default_rng(4)
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=rng.standard_normal((60, 6)), values=rng.standard_normal((60, 3)))
        items = list(db.select())
        for stretch in (1.0, 10.0):
            draws = {"w_q": (2, 4, 6), "w_k": (2, 4, 6), "w_v": (2, 3, 3), "w_o": (3, 6)}
            arrays = {name: stretch * rng.standard_normal(shape) for name, shape in draws.items()}
            # The reference takes float64 projections; the lookup rounds them as well.
            heads = softkv.Heads(**{name: one.astype(np.float32) for name, one in arrays.items()})
            for query in rng.standard_normal((4, 6)).astype(np.float32):
                answer = db.lookup(query, heads=heads, temperature=stretch**2)
                each = [
                    reference.Head(q.tolist(), [0.0] * 4, k.tolist(), [0.0] * 4, v.tolist(), [0.0] * 3)
                    for q, k, v in zip(heads.w_q, heads.w_k, heads.w_v, strict=True)
                ]
                found, _ = reference.multi_head(
                    query.tolist(),
                    [one.vector.tolist() for one in items],
                    [np.asarray(one.value).tolist() for one in items],
                    heads=each,
                    output_matrix=heads.w_o.tolist(),
                    output_offset=[0.0] * 3,
                    temperature=stretch**2,
                )
                assert np.linalg.norm(answer.value - found) <= answer.error < 0.01 * stretch**2


def test_logits_that_rounding_may_turn_over_promise_nothing(tmp_path: Path) -> None:
    """When a logit may be off by more than 1, the answer may be any value, and the error says so."""
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=[[1e4, 1.0], [1e4, 2.0], [1e4, 3.0]], values=[0.0, 10.0, 20.0])
        assert db.lookup([1e4, 1.0], temperature=1e-3).error >= 20.0
        assert db.lookup([1.0, 1.0], temperature=1e3).error < 0.01


def test_ordinary_answers_admit_little(tmp_path: Path) -> None:
    """An error that is always kept by being huge would be of no use."""
    rng = np.random.default_rng(5)
    for number, values in enumerate((rng.standard_normal(500), rng.standard_normal((500, 3)))):
        with softkv.open(tmp_path / str(number)) as db:
            db.add(vectors=rng.standard_normal((500, 64)), values=values)
            answers = db.lookup(rng.standard_normal((20, 64)))
            assert answers.error.max() < 1e-3 * db.info().value_scale


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    compatibility=st.sampled_from(["dot", "scaled_dot", "cosine", "gaussian", "laplace", "student"]),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
    warmth=st.floats(1e-3, 1e2),
    single=st.booleans(),
)
def test_no_answer_is_farther_off_than_it_says(
    seed: int, compatibility: str, size: float, warmth: float, single: bool
) -> None:
    """Hot or cold, long keys or short, queries in float32 or float64, of one number or of several."""
    rng = np.random.default_rng(seed)
    count, width = int(rng.integers(2, 30)), int(rng.integers(1, 6))
    values = rng.standard_normal(count) * 10.0 ** rng.integers(-2, 5) + 10.0 ** rng.integers(0, 5)
    usual = {"cosine": 1.0, "student": 1.0, "laplace": size}.get(compatibility, size**2)
    query = rng.standard_normal(width) * size
    query = query.astype(np.float32) if single else query
    with tempfile.TemporaryDirectory() as folder, softkv.open(Path(folder) / "s", compatibility=compatibility) as db:
        db.add(vectors=rng.standard_normal((count, width)) * size, values=values)
        answer = db.lookup(query, temperature=usual * warmth)
        found = truth(db, query, getattr(reference, compatibility), usual * warmth)
        assert abs(answer.value - found[0]) <= answer.error


def test_one_far_value_of_no_weight_changes_neither_spread_nor_error(tmp_path: Path) -> None:
    """Items that weigh nothing here, however large their values, are not in the spread, on which the error stands."""
    for far in (1e9, 1e12):
        with softkv.open(tmp_path / f"{far}", compatibility="dot") as db:
            db.add(vectors=[[1, 0], [1, 0], [1, 0], [-50, 0]], values=[1, 2, 3, far])
            answer = db.lookup([1, 0], temperature=1)
            weights = np.exp([0.0, 0.0, 0.0, -51.0]) / (3.0 + np.exp(-51.0))
            mean = weights @ [1, 2, 3, far]
            spread = np.sqrt(weights @ (np.array([1, 2, 3, far]) - mean) ** 2)
            assert answer.value == pytest.approx(mean)
            assert answer.spread == pytest.approx(spread, rel=1e-5)
            assert 1e-7 < answer.error < 1e-4 * spread


def test_spreads_of_a_steep_function_are_right_everywhere(tmp_path: Path) -> None:
    """Numbers may be a millionth of the largest ones of their block, too, alone and in a batch."""
    points = np.linspace(0, 10, 6000).astype(np.float32)[:, None]
    heights = np.exp(4 * (points[:, 0].astype(float) - 5))
    queries = np.linspace(0.5, 9.5, 19).astype(np.float32)[:, None]
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=points, values=heights)
        found = db.lookup(queries, temperature=0.01)
        logits = -50.0 * (queries.astype(float) - points[:, 0].astype(float)) ** 2
        weights = np.exp(logits - logits.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        means = weights @ heights
        wanted = np.sqrt((weights * (heights - means[:, None]) ** 2).sum(1))
        assert found.spread == pytest.approx(wanted, rel=1e-3)
        assert (np.abs(found.value - means) <= found.error).all()
        for number, query in enumerate(queries):
            assert db.lookup(query, temperature=0.01).spread == pytest.approx(wanted[number], rel=1e-3)


@pytest.mark.parametrize("kind", ["number", "vector"])
def test_what_a_batch_leaves_out_is_weighed_by_its_values(tmp_path: Path, kind: str) -> None:
    """A block of little mass may hold a value that is so large that it counts."""
    keys, values = np.zeros((4000, 2)), np.ones(4000)
    keys[2000:, 0], keys[-1, 0] = -40, -11.2
    values[0], values[-1] = 2, 1e9
    held: Any = values if kind == "number" else np.stack([values, values[::-1]], axis=1)
    exact = (2001.0 + np.exp(-11.2) * 1e9) / (2000.0 + np.exp(-11.2))
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=keys, values=held)
        query = np.array([1.0, 0.0], np.float32)
        alone, batch = db.lookup(query, temperature=1), db.lookup(np.tile(query, (1000, 1)), temperature=1)
        for found in (alone.value, batch.value[17]):
            assert np.ravel(found)[0] == pytest.approx(exact, rel=1e-4)
    plain = softkv.soft_lookup(np.tile(query, (1000, 1)), keys.astype(np.float32), held, compatibility="dot")
    assert plain.value.reshape(1000, -1)[17, 0] == pytest.approx(exact, rel=1e-4)


def test_the_best_of_two_that_rounding_may_exchange_may_be_either(tmp_path: Path) -> None:
    """The other's value is within the error; where one is better beyond rounding, the error is nearly none."""
    rng = np.random.default_rng(9)
    keys = rng.standard_normal((50, 64))
    keys[7] = keys[3] * (1 + 1e-9)
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=keys, values=rng.standard_normal(50))
        doubtful, certain = db.nearest(keys[3]), db.nearest(keys[20])
        assert doubtful.error >= abs(db["#4"] - db["#8"]) > 0.1
        assert certain.error < 1e-6
        most = db.lookup(keys[3], k=2)
        assert most.error < 1e-4


def test_a_function_is_taken_to_be_as_steep_as_a_distance(tmp_path: Path) -> None:
    """What rounding the query does to its scores is not known, but is not taken for nothing."""
    rng = np.random.default_rng(7)

    def farthest(queries: Any, keys: Any) -> Any:
        return -np.abs(queries[:, None, :] - keys[None]).max(-1)

    def score(query: reference.Vector, key: reference.Vector) -> float:
        return -max(abs(a - b) for a, b in zip(query, key, strict=True))

    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=rng.standard_normal((40, 3)) * 1e-2 + 100, values=rng.standard_normal(40))
        for query in rng.standard_normal((8, 3)) * 1e-2 + 100:
            answer = db.lookup(query, compatibility=farthest, temperature=1e-4)
            assert abs(answer.value - truth(db, query, score, 1e-4)[0]) <= answer.error


def cancelling_heads() -> softkv.Heads:
    """One head that rewrites (x, 0) into the difference of x + 1e4 and 1e4."""
    w_q, w_k = np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[[1.0, 0.0], [-1.0, 0.0]]])
    return softkv.Heads(w_q=w_q, w_k=w_k, b_q=np.full((1, 2), 1e4))


@pytest.mark.parametrize("way", ["heads", "bilinear", "additive"])
def test_terms_that_cancel_before_a_query_meets_a_key_count(tmp_path: Path, way: str) -> None:
    """A query is rewritten, or moved by a matrix, in float32: the score is small and its terms are not."""
    rng = np.random.default_rng(11)
    keys = np.zeros((1000, 2))
    keys[::2, 0] = 4
    options: dict[str, Any]
    if way == "heads":
        options, queries = {"heads": cancelling_heads(), "compatibility": "dot"}, rng.uniform(0.05, 0.9, (20, 1))
        queries = np.hstack([queries, 0 * queries])
    elif way == "bilinear":
        options = {"compatibility": bilinear(np.array([[1.0, 0.0], [-1.0, 0.0]]))}
        queries = 1e5 + rng.uniform(0.05, 0.9, (20, 2))
    else:
        options = {"compatibility": additive(np.array([[1.0, -1.0]]), np.array([[0.1, 0.0]]), np.array([3.0]))}
        queries = 1e4 + rng.uniform(0.05, 0.9, (20, 2))

    def exact(query: reference.Vector, key: reference.Vector) -> float:
        if way == "additive":
            return 3.0 * float(np.tanh(query[0] - query[1] + 0.1 * key[0]))
        return (query[0] - query[1]) * key[0]

    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=keys, values=rng.standard_normal(1000) + 5 * (keys[:, 0] > 0))
        found = db.lookup(queries, temperature=1.0, **options)
        wanted = [truth(db, query, exact, 1.0)[0] for query in queries]
        off = np.abs(np.ravel(found.value) - wanted)
        assert off.max() > 1e-5, "nothing was rounded, and nothing is tested"
        assert (off <= found.error).all()
        assert found.error.max() < 3.0


@pytest.mark.parametrize("compatibility", ["dot", "scaled_dot"])
def test_a_query_below_what_float32_holds_is_told_as_rounded(tmp_path: Path, compatibility: str) -> None:
    """Beyond the least normal number, rounding takes more of a number than it does elsewhere."""
    rng = np.random.default_rng(12)
    with softkv.open(tmp_path / "s", compatibility=compatibility) as db:
        db.add(vectors=rng.standard_normal((100, 4)) * 1e10, values=rng.standard_normal(100))
        for size in (1e-43, 1e-41, 1e-39):
            for query in rng.standard_normal((5, 4)) * size:
                answer = db.lookup(query, temperature=size * 1e10)
                exact = truth(db, query, getattr(reference, compatibility), size * 1e10)[0]
                assert abs(answer.value - exact) <= answer.error


def test_offsets_of_projected_values_are_rounded_with_them(tmp_path: Path) -> None:
    """What is added to a mean and taken away again takes digits along."""
    rng = np.random.default_rng(13)
    plain = {"w_q": np.eye(3)[None], "w_k": np.eye(3)[None]}
    heads = softkv.Heads(**plain, w_v=np.eye(2)[None], b_v=np.full((1, 2), 1e6), w_o=np.eye(2), b_o=np.full(2, -1e6))
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=rng.standard_normal((60, 3)), values=rng.standard_normal((60, 2)))
        queries = rng.standard_normal((20, 3)).astype(np.float32)
        found = db.lookup(queries, heads=heads, compatibility="dot", temperature=1.0)
        wanted = np.stack([truth(db, query, reference.dot, 1.0) for query in queries])
        off = np.linalg.norm(found.value - wanted, axis=1)
        assert off.max() > 1e-3
        assert (off <= found.error).all()


def test_heads_by_an_index_reckon_with_what_they_rewrite_and_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terms that cancel in the query, and offsets that cancel in the value, as in a scan."""
    count_as_large(monkeypatch)
    rng = np.random.default_rng(15)
    for far in (0.0, 1e8):
        values = {"w_v": np.eye(2)[None], "b_v": np.full((1, 2), far), "w_o": np.eye(2), "b_o": np.full(2, -far)}
        heads = replace(cancelling_heads(), **values)
        with softkv.open(tmp_path / f"{far}", compatibility="dot") as db:
            keys = rng.standard_normal((3000, 2)).astype(np.float32)
            held = (rng.standard_normal((3000, 2)) + np.sign(keys)).astype(np.float32)
            db.add(vectors=keys, values=held)
            db.build_index(lists=60)
            queries = np.hstack([rng.uniform(0.01, 0.3, (20, 1)), np.zeros((20, 1))]).astype(np.float32)
            found = db.lookup(
                queries, heads=heads, compatibility="dot", temperature=1.0, tolerance=0.3, guarantee="bound"
            )
            assert "bound" in found.error_kind
            logits = queries[:, :1].astype(float) @ keys[:, :1].T.astype(float)
            weights = np.exp(logits)
            exact = weights @ held / weights.sum(1, keepdims=True)
            off = np.linalg.norm(found.value - exact, axis=1)
            assert (off <= found.error).all()
            assert far or found.error.max() < 2.0


@pytest.mark.parametrize("compatibility", ["dot", "cosine"])
def test_lengths_that_are_no_numbers_leave_an_error_that_says_nothing(tmp_path: Path, compatibility: str) -> None:
    """Where what is kept of the keys was damaged unnoticed, an error is infinite, and never no number."""
    with softkv.open(tmp_path / "s", compatibility=compatibility) as db:
        db.add(vectors=np.eye(3), values=[1.0, 2.0, 3.0])
        view = db._view()
        view.__dict__["longest_key"] = np.inf
        for query in (np.array([0.0, 1e-3, 0.0]), np.ones(3)):
            for k in (1, 2, None):
                assert db.lookup(query, k=k, temperature=1.0).error >= 0


@pytest.mark.parametrize("width", [64, 512, 4096, 8192])
def test_wide_gaussians_are_told_by_differences_sooner(width: int) -> None:
    """Squares summed over thousands of numbers lose more digits, and near rows are as exact as narrow ones."""
    epsilon = float(np.finfo(np.float32).eps)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        keys = rng.random((int(rng.choice([3, 50, 400])), width)).astype(np.float32)
        if seed % 3:
            keys = (rng.choice([-0.4, 0.4], (len(keys), 1)) + 0.01 * rng.standard_normal(keys.shape)).astype(np.float32)
        query = (keys[:1] + 1e-3 * rng.standard_normal((1, width))).astype(np.float32)
        centre = keys.mean(0)
        size = 0.5 * ((query - centre) ** 2).sum() + 0.5 * ((keys - centre) ** 2).sum(1).max()
        sharpness = 0.999 * epsilon**0.5 / (4 * epsilon) / float(size)
        logits = COMPATIBILITIES["gaussian"].ask(query, sharpness)(keys, 0)[0]
        exact = -0.5 * sharpness * ((query.astype(float) - keys) ** 2).sum(1)
        near = exact > exact.max() - 40
        assert np.abs(logits - exact)[near].max() <= epsilon**0.5
        lengths = np.linalg.norm(keys.astype(float), axis=1).astype(np.float32)
        sharpness = 0.999 * epsilon**0.5 / (4 * epsilon) / float(0.5 * (np.linalg.norm(query) + lengths.max()) ** 2)
        logits = by_halves(0.5 * lengths**2).ask(query, sharpness)(keys, 0)[0]
        exact = -0.5 * sharpness * ((query.astype(float) - keys) ** 2).sum(1)
        near = exact > exact.max() - 40
        assert np.abs(logits - exact)[near].max() <= epsilon**0.5


@pytest.mark.parametrize("far", [0.0, 3.0])
def test_hidden_items_do_not_make_what_is_left_less_exact(tmp_path: Path, far: float) -> None:
    """Each item asks all others by sharp distances: itself, which is nearest by far, is masked."""
    rng = np.random.default_rng(14)
    keys, numbers = (rng.standard_normal((800, 64)) + far).astype(np.float32), rng.standard_normal(800)
    with softkv.open(tmp_path / "s", compatibility="gaussian") as db:
        db.add(vectors=keys, values=numbers)
        found = db.lookup(keys[:20], temperature=2e-3, mask=~np.eye(800, dtype=np.bool_)[:20])
        logits = -0.5 * ((keys[:20, None].astype(float) - keys) ** 2).sum(-1) / 2e-3
        logits[np.arange(20), np.arange(20)] = -np.inf
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        off = np.abs(found.value - weights @ numbers / weights.sum(axis=1))
        assert (off <= found.error).all()
        assert found.error.max() < 0.1
