"""The public lookup in plain arrays: what goes in, and what comes out."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import softkv
from softkv import Heads, errors
from softkv.answer import Answer, Answers

from .backends import Backend, every_backend, exact

KEYS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
NUMBERS = [10.0, 20.0, 40.0]


def single(*given: Any, **options: Any) -> Answer:
    """The answer to one query."""
    answer = softkv.soft_lookup(*given, **options)
    assert isinstance(answer, Answer)
    return answer


def many(*given: Any, **options: Any) -> Answers:
    """The answers to many queries."""
    answers = softkv.soft_lookup(*given, **options)
    assert isinstance(answers, Answers)
    return answers


def test_rank_follows_rank() -> None:
    """A vector gives one Answer; a batch gives Answers, even of one; both say the same."""
    one, batch = single([1.0, 0.0], KEYS, NUMBERS), many([[1.0, 0.0]], KEYS, NUMBERS)
    assert (len(batch), batch.value.shape) == (1, (1,))
    assert isinstance(one.value, float)
    assert batch[0] == one or batch[0].value == one.value
    assert [answer.contributors for answer in batch] == [one.contributors]
    assert many(np.zeros((0, 2)), KEYS, NUMBERS).value.shape == (0,)


def test_numbers_give_a_mean_and_a_spread() -> None:
    """One number per key blends to a number."""
    answer = single([0.0, 0.0], KEYS, NUMBERS)
    assert answer.value == pytest.approx(70 / 3)
    assert answer.spread == pytest.approx(float(np.std(NUMBERS)))
    assert answer.log_mass == pytest.approx(math.log(3))
    assert (answer.effective, answer.mass, answer.scored) == (pytest.approx(3), 1.0, 3)
    assert answer.labels is answer.label is answer.head_weights is None


def test_vectors_give_a_vector() -> None:
    """Vectors blend to a vector of their width, without a spread."""
    answer = single([0.0, 0.0], KEYS, [[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])
    assert answer.value == pytest.approx([3, 5])
    assert answer.spread is None


@pytest.mark.parametrize(
    ("values", "labels", "names"),
    [
        (["b", "a", "b"], None, ("b", "a")),
        (np.array(["b", "a", "b"]), None, ("b", "a")),
        ([0, 1, 0], ["b", "a", "unused"], ("b", "a", "unused")),
        ([0, 1, 0], 2, (0, 1)),
        (torch.tensor([0, 1, 0]), 2, (0, 1)),
        (np.array([0, 1, 0], np.uint8), 2, (0, 1)),
    ],
)
def test_labels_give_a_distribution(values: Any, labels: Any, names: tuple[object, ...]) -> None:
    """Strings are labels; codes are, when the labels are named or counted."""
    answer = single([0.0, math.log(4)], KEYS, values, labels=labels, compatibility="dot")
    assert answer.labels == names
    assert exact(answer.value)[:2] == pytest.approx([5 / 9, 4 / 9], rel=1e-6)
    assert exact(answer.value)[2:].tolist() == [0.0] * (len(names) - 2)
    assert answer.label == names[0]
    batch = many([[0.0, 0.0], [-9.0, 9.0]], KEYS[:2], values[:2], labels=labels, compatibility="dot")
    assert batch.label is not None
    assert batch.label[1] == batch.labels[1]  # type: ignore[index]


def test_columns_of_a_table_are_taken_whatever_their_index() -> None:
    """Rows that were filtered out leave an index that does not begin at 0; what has no axis is refused."""
    pandas = pytest.importorskip("pandas")
    keys, index = np.array([[1.0, 0.0], [0.0, 1.0]]), [7, 9]
    query = pandas.Series([0.9, 0.1], index=["x", "y"])
    for values in ([30.0, 50.0], ["fruit", "company"]):
        expected = softkv.soft_lookup([0.9, 0.1], keys, values)
        found = softkv.soft_lookup(query, pandas.DataFrame(keys, index), pandas.Series(values, index))
        assert (found.label, np.allclose(found.value, expected.value)) == (expected.label, True)
    with pytest.raises(softkv.errors.ShapeError, match=r"values of shape \(\)"):
        softkv.soft_lookup([1.0], [[1.0]], np.array(5.0))


def test_integers_without_labels_are_numbers() -> None:
    """Whole numbers are blended unless they are said to be codes."""
    assert single([0.0, 0.0], KEYS, [1, 2, 6]).value == pytest.approx(3)


@every_backend
def test_arrays_come_back_in_the_library_they_came_in(backend: Backend) -> None:
    """Tensors in, tensors out; the value has the type of the values, at least float32; masses are float64."""
    answers = many(backend.array([[1.0, 0.0]]), backend.array(KEYS), backend.array(KEYS))
    wanted = "float64" if backend.dtype == "float64" else "float32"
    assert type(answers.value) is type(backend.array(KEYS))
    assert str(answers.value.dtype).removeprefix("torch.") == wanted
    assert str(answers.log_mass.dtype).removeprefix("torch.") == "float64"


def test_a_tensor_anywhere_makes_it_torch() -> None:
    """Lists and arrays that come along with a tensor become tensors."""
    for given in ((torch.ones(2), KEYS, NUMBERS), ([1.0, 1.0], torch.tensor(KEYS), NUMBERS)):
        assert isinstance(single(*given).value, torch.Tensor)
    assert isinstance(single([1.0, 1.0], KEYS, torch.tensor(NUMBERS)).value, torch.Tensor)


def test_the_answer_to_tensors_carries_gradients() -> None:
    """A single number stays a tensor, so that it can be differentiated."""
    query = torch.zeros(2, requires_grad=True)
    single(query, torch.tensor(KEYS, dtype=torch.float32), torch.tensor(NUMBERS)).value.backward()
    assert query.grad is not None
    assert query.grad.abs().sum() > 0


def test_contributors_are_the_heaviest_rows_with_their_shares() -> None:
    """Row, weight and score, heaviest first, `show` of them, shares of all rows even with k."""
    answer = single([1.0, 0.5], KEYS, NUMBERS, compatibility="dot", temperature=0.5, show=2, k=2)
    mass = math.exp(2) + math.exp(1) + math.exp(3)
    assert [one.row for one in answer.contributors] == [2, 0]
    assert [one.score for one in answer.contributors] == pytest.approx([1.5, 1.0])
    shares = [math.exp(3) / mass, math.exp(2) / mass]
    assert [one.weight for one in answer.contributors] == pytest.approx(shares)
    assert answer.mass == pytest.approx(sum(shares))
    assert answer.value == pytest.approx((40 * shares[0] + 10 * shares[1]) / sum(shares))
    assert single([1.0, 0.5], KEYS, NUMBERS, show=0).contributors == ()


def test_temperatures_are_given_back() -> None:
    """One for all as it was given, one per query with its answer."""
    for given in (0.5, np.float32(0.5), np.array(0.5)):
        answer = single([1.0, 0.0], KEYS, NUMBERS, temperature=given)
        assert (answer.temperature, type(answer.temperature)) == (0.5, float)
    batch = many([[1.0, 0.0], [0.0, 1.0]], KEYS, NUMBERS, temperature=[0.5, 2.0])
    assert [answer.temperature for answer in batch] == [0.5, 2.0]


def test_heads_answer_in_their_own_width() -> None:
    """Numbers are values of width 1 to heads; log mass is per head."""
    heads = softkv.Heads.random(2, query_width=2, key_width=2, value_width=1, head_width=3, output_width=5, seed=0)
    answer = single([1.0, 0.0], KEYS, NUMBERS, heads=heads)
    assert (answer.value.shape, answer.log_mass.shape, answer.spread) == ((5,), (2,), None)
    assert answer.head_weights is not None
    assert answer.head_weights.shape == (2, 3)
    assert many([[1.0, 0.0]], KEYS, NUMBERS, heads=heads)[0].value == pytest.approx(answer.value)


def test_answers_with_leading_axes_are_read_as_arrays() -> None:
    """An index of one number names no query of a batch of batches."""
    answers = many(np.ones((2, 3, 2)), KEYS, NUMBERS)
    assert answers.value.shape == (2, 3)
    with pytest.raises(softkv.errors.ShapeError, match=r"axes \(2, 3\)"):
        answers[0]


def test_no_queries_are_no_answers_with_causal_and_heads() -> None:
    """An empty batch is answered by an empty one, of the right width."""
    keys, rng = np.eye(4), np.random.default_rng(0)
    assert softkv.soft_lookup(np.empty((0, 4)), keys, np.arange(4.0), causal=True).value.shape == (0,)
    heads = Heads(w_q=rng.standard_normal((2, 5, 4)), w_k=rng.standard_normal((2, 5, 4)))
    assert softkv.soft_lookup(np.empty((0, 4)), keys, keys[:, :3], heads=heads).value.shape == (0, 6)


@pytest.mark.parametrize("temperature", [True, np.True_, 10**400])
def test_a_temperature_that_is_none_is_refused(temperature: Any) -> None:
    """Neither True nor a number beyond float64 is a temperature."""
    with pytest.raises(errors.TemperatureError, match="above 0"):
        softkv.soft_lookup(np.eye(4), np.eye(4), np.arange(4.0), temperature=temperature)


def test_a_list_is_no_compatibility() -> None:
    """It is refused like an unknown name."""
    with pytest.raises(errors.NotExpressible, match="expected one of dot"):
        softkv.soft_lookup(np.eye(4), np.eye(4), np.arange(4.0), compatibility=[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["w_o", "b_v", "b_o"])
@pytest.mark.parametrize("width", [1, 4])
def test_projections_that_do_not_fit_the_values_are_refused(name: str, width: int) -> None:
    """Without w_v the values of heads are as wide as those given; nothing is broadcast."""
    shape = {"w_o": (6, 7), "b_v": (2, 3), "b_o": (3,)}[name]
    heads = Heads(w_q=np.ones((2, 5, 4)), w_k=np.ones((2, 5, 4)), **{name: np.ones(shape)})
    with pytest.raises(errors.ShapeError, match=f"expected {name} of shape"):
        softkv.soft_lookup(np.eye(4), np.eye(4), np.ones((4, width)), heads=heads)


@pytest.mark.parametrize("rounded", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("compatibility", ["scaled_dot", "gaussian", "cosine", "laplace"])
def test_scores_are_not_rounded_under_autocast(rounded: torch.dtype, compatibility: str) -> None:
    """Scores and values are as precise as outside of it, and gradients flow."""
    draw = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(n, d, generator=draw) for n, d in ((4, 16), (300, 16), (300, 2)))
    queries.requires_grad_()
    expected = many(queries, keys, values, compatibility=compatibility, temperature=0.05)
    with torch.autocast("cpu", dtype=rounded):
        found = many(queries, keys, values, compatibility=compatibility, temperature=0.05)
    assert torch.equal(found.value, expected.value)
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found.log_mass, expected.log_mass)
    gradients = [torch.autograd.grad(one.value.sum(), queries)[0] for one in (found, expected)]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("rounded", [torch.bfloat16, torch.float16])
def test_heads_are_not_rounded_under_autocast(rounded: torch.dtype) -> None:
    """The value has the type that it has outside of it."""
    draw = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(n, d, generator=draw) for n, d in ((4, 16), (300, 16), (300, 2)))
    heads = Heads.random(2, query_width=16, key_width=16, value_width=2, head_width=2, seed=0)
    expected = many(queries, keys, values, heads=heads)
    with torch.autocast("cpu", dtype=rounded):
        found = many(queries, keys, values, heads=heads)
    assert found.value.dtype == expected.value.dtype
    assert torch.equal(found.value, expected.value)
