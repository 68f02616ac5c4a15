"""The worked examples: every answer printed in their files, against the reference and against the fast lookup.

An answer is rounded to four decimals in the file, so it is right when it is within half of the last one.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from softkv_examples import ORDER, example, load
from softkv_examples.questions import Absent, banking77, sample

import softkv
from softkv.embedders import find
from softkv.maths.compatibility import additive, bilinear

from . import reference

PRINTED = 0.5001e-4


def asked(
    queries: Any, keys: Any, values: Any, *, causal: bool = False, **options: Any
) -> tuple[Any, list[reference.Expected]]:
    """The answers of the fast lookup, after checking them against those of the reference, which are given too."""
    found = softkv.soft_lookup(queries, keys, values, causal=causal, **options)
    score = getattr(reference, options.pop("compatibility", "scaled_dot"))
    columns = [value if isinstance(value, list) else [value] for value in values]
    expected = []
    for i, query in enumerate(queries):
        if causal:
            options["mask"] = [row <= i for row in range(len(keys))]
        expected.append(reference.lookup(query, keys, columns, score=score, **options))
    for one, answer in zip(found, expected, strict=True):
        assert np.ravel(one.value) == pytest.approx(answer.value, rel=1e-12, abs=1e-12)
        assert one.log_mass == pytest.approx(answer.log_mass, abs=1e-12)
        assert one.effective == pytest.approx(answer.effective, abs=1e-12)
    return found, expected


def printed(answer: Any) -> Any:
    """What compares equal to the numbers that the file prints."""
    return pytest.approx(np.array(answer), abs=PRINTED)


def test_every_example_is_told() -> None:
    """Each folder has a tale and a file, and its place in the order."""
    folders = [path for path in example("incomes").parent.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(path.name for path in folders) == sorted(ORDER)
    for path in folders:
        files = {"README.md", f"{path.name}.json"} | ({"questions.csv"} if path.name == "intents" else set())
        assert {file.name for file in path.iterdir()} == files


def test_incomes() -> None:
    """A name that is not in the dictionary gets the income of the names like it."""
    data = load("incomes")
    answers = data["answers"]
    assert data["query"] == [data["stranger"].lower().count(letter) for letter in data["letters"]]
    assert data["keys"] == [[name.lower().count(letter) for letter in data["letters"]] for name in data["names"]]
    options = {"compatibility": "gaussian", "temperature": data["temperature"]}
    _, (expected,) = asked([data["query"]], data["keys"], data["incomes"], **options)
    assert expected.logits == printed(answers["scores"])
    assert expected.weights == printed(answers["weights"])
    assert [*expected.value, *expected.spread, expected.log_mass] == printed(
        [answers["income"], answers["spread"], answers["log_mass"]]
    )
    _, (hard,) = asked([data["query"]], data["keys"], data["incomes"], **options, k=1)
    assert hard.value == [answers["hard"]] == [data["incomes"][1]]
    _, (exact,) = asked([data["query"]], data["keys"], data["incomes"], **options, mask=[True, False, False])
    assert exact.weights == [1, 0, 0]
    assert exact.value == [data["incomes"][0]]


def test_apple() -> None:
    """A word asks its sentence, all words ask at once, none sees a later one, and another sentence asks."""
    data = load("apple")
    answers, words, values = data["answers"], data["keys"], data["values"]
    options = {"compatibility": "dot", "temperature": data["temperature"]}
    _, itself = asked(words, words, values, **options)
    _, masked = asked(words, words, values, **options, causal=True)
    _, cross = asked(data["other_keys"], words, values, **options)
    _, other = asked(data["other_keys"], data["other_keys"], data["other_values"], **options)
    assert itself[4].weights == printed(answers["apple_weights"])
    assert itself[4].value == printed(answers["apple"])
    assert itself[4].value[0] > 2 * itself[4].value[1], "a fruit"
    assert other[0].value == printed(answers["apple_in_the_other_sentence"])
    assert other[0].value[1] > 2 * other[0].value[0], "a company"
    for found, name in ((itself, "self_attention"), (masked, "masked"), (cross, "cross_attention")):
        assert [one.value for one in found] == printed(answers[name])
    assert [data["sentence"][4], data["other_sentence"][0]] == ["apple", "apple"]


def test_books(tmp_path: Path) -> None:
    """Titles lead to contents, softly and hard, and videos are ranked."""
    data = load("books")
    answers, temperature = data["answers"], data["temperature"]
    contents, options = list(data["books"].values()), {"score": reference.cosine, "temperature": temperature}
    question, wish = embedded([data["question"], data["wish"]])
    expected = reference.lookup(question, embedded(data["books"]), embedded(contents), **options)
    ranked = reference.lookup(wish, embedded(data["videos"]), [[0.0]] * len(data["videos"]), **options)
    assert expected.weights == printed(answers["weights"])
    assert contents[int(np.argmax(expected.weights))] == answers["hard"]
    assert [expected.effective, expected.log_mass] == printed([answers["effective"], answers["log_mass"]])
    order = reference.heaviest(ranked.logits, len(ranked.logits))
    assert [list(data["videos"])[row] for row in order] == answers["video_ranking"]
    assert [ranked.weights[row] for row in order] == printed(answers["video_weights"])
    with softkv.open(tmp_path / "books.softkv", temperature=temperature) as db:
        db.update(data["books"])
        found = db.lookup(data["question"])
        assert found.value == pytest.approx(expected.value, abs=1e-6)
        assert [text for text, _ in found.texts] == [contents[row] for row in reference.heaviest(expected.logits, 8)]
        assert db.nearest(data["question"]).texts[0].text == answers["hard"]
        assert db.check().ok


def embedded(texts: Iterable[str]) -> list[list[float]]:
    """What the bundled model makes of texts."""
    vectors: list[list[float]] = find("static").documents(list(texts)).tolist()
    return vectors


def test_hours() -> None:
    """A noisy series is smoothed by Gaussian weights on time."""
    data = load("hours")
    answers, times = data["answers"], [[hour] for hour in data["hours"]]
    options = {"compatibility": "gaussian", "temperature": data["bandwidth"] ** 2}
    _, expected = asked([*times, [12.5]], times, data["degrees"], **options)
    assert [one.value[0] for one in expected] == printed([*answers["smoothed"], answers["between"]])
    assert [one.spread[0] for one in expected[:-1]] == printed(answers["spread"])
    assert np.abs(np.diff(answers["smoothed"], 2)).max() < np.abs(np.diff(data["degrees"], 2)).max() / 5


def test_car() -> None:
    """Features are keys along the axes, so row i scores Q_ij times K_j: eight answers, and one for the whole car."""
    data = load("car")
    keys = np.diag(data["keys"]).tolist()
    answers = data["answers"]
    _, expected = asked(data["queries"], keys, data["values"], compatibility="dot")
    for query, one in zip(data["queries"], expected, strict=True):
        assert one.logits == pytest.approx([q * k for q, k in zip(query, data["keys"], strict=True)], abs=1e-15)
    assert [one.value[0] for one in expected] == printed(answers["rows"])
    # The whole car: the scores QK of the eight rows weigh what the eight features say, and give one number.
    scores = [math.fsum(q * k for q, k in zip(query, data["keys"], strict=True)) for query in data["queries"]]
    (whole,) = asked([[1.0]], [[score] for score in scores], data["values"], compatibility="dot")[1]
    assert scores == printed(answers["scores"])
    assert whole.value == printed([answers["whole"]])


def test_ways() -> None:
    """Dot, scaled dot, divided by d, and Laplace side by side; and projections between different widths."""
    data = load("ways")
    ways = {"dot": ("dot", 1.0), "scaled_dot": ("scaled_dot", 1.0), "divided by d": ("dot", 2.0)}
    for name, (way, temperature) in (ways | {"laplace": ("laplace", 1.0)}).items():
        options = {"compatibility": way, "temperature": temperature}
        _, expected = asked(data["queries"], data["keys"], data["values"], **options)
        answers = data["answers"][name]
        assert [[logit * temperature for logit in one.logits] for one in expected] == printed(answers["scores"])
        assert [one.weights for one in expected] == printed(answers["weights"])
        assert [one.value[0] for one in expected] == printed(answers["values"])
    w_q, w_v = data["query_projection"], data["value_projection"]
    head = reference.Head(w_q, [0, 0], np.eye(2).tolist(), [0, 0], w_v, [0, 0, 0])
    column = [[value] for value in data["values"]]
    shape = {"heads": [head], "output_matrix": np.eye(3).tolist(), "output_offset": [0, 0, 0]}
    wide = [reference.multi_head(query, data["keys"], column, **shape)[0] for query in data["wide_queries"]]
    assert wide == printed(data["answers"]["projected"])
    heads = softkv.Heads(w_q=np.array([w_q]), w_k=np.eye(2)[None], w_v=np.array([w_v]))
    found = softkv.soft_lookup(data["wide_queries"], data["keys"], column, heads=heads)
    assert found.value == pytest.approx(np.array(wide), abs=1e-12)


def test_words() -> None:
    """One word asks nine, and every number on the way is there."""
    data = load("words")
    answers = data["answers"]
    assert len(data["words"]) == 9
    _, (expected,) = asked([data["query"]], data["keys"], data["values"])
    assert [reference.dot(data["query"], key) for key in data["keys"]] == printed(answers["dot_products"])
    assert expected.logits == printed(answers["scores"])
    assert [math.exp(logit) for logit in expected.logits] == printed(answers["exponentials"])
    assert expected.weights == printed(answers["weights"])
    assert expected.value == printed(answers["value"])
    assert [expected.log_mass, expected.effective] == printed([answers["log_mass"], answers["effective"]])


def test_translation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Additive and bilinear attention share an interface; the additive one needs a tanh for every pair and unit."""
    tanh, counted = math.tanh, []
    monkeypatch.setattr(math, "tanh", lambda x: counted.append(x) or tanh(x))
    data = load("translation")
    answers, keys, queries = data["answers"], data["encoder_states"], data["decoder_states"]
    matrices = data["query_matrix"], data["key_matrix"], data["direction"]
    ways: dict[str, tuple[Any, reference.Score]] = {
        "additive": (additive(*matrices), reference.additive(*matrices)),
        "bilinear": (bilinear(data["bilinear_matrix"]), reference.bilinear(data["bilinear_matrix"])),
    }
    for name, (way, score) in ways.items():
        found = softkv.soft_lookup(queries, keys, keys, compatibility=way, temperature=data["temperature"])
        expected = [reference.lookup(q, keys, keys, score=score, temperature=data["temperature"]) for q in queries]
        assert found.value == pytest.approx(np.array([one.value for one in expected]), abs=1e-12)
        assert [one.weights for one in expected] == printed(answers[f"{name}_weights"])
        assert [one.value for one in expected] == printed(answers[f"{name}_contexts"])
        assert [data["source"][row] for row in found.rows[:, 0]] == ["die", "katze", "schläft"]
    assert answers["additive_tanh_evaluations"] == len(counted) == len(queries) * len(keys) * len(data["direction"])


def test_heads() -> None:
    """Two heads give the values of the reference, and of torch's module with the same arrays."""
    data = load("heads")
    answers, x = data["answers"], data["vectors"]
    (w_q, w_k, w_v), (b_q, b_k, b_v) = (
        np.array(data[name]).reshape(shape)
        for name, shape in (("in_projection", (3, 2, 2, 4)), ("in_offset", (3, 2, 2)))
    )
    heads = [reference.Head(*(array[i].tolist() for array in (w_q, b_q, w_k, b_k, w_v, b_v))) for i in range(2)]
    shape = {"output_matrix": data["out_projection"], "output_offset": data["out_offset"]}
    expected = [reference.multi_head(word, x, x, heads=heads, **shape) for word in x]
    assert [value for value, _ in expected] == printed(answers["values"])
    assert [[one.weights for one in each] for _, each in expected] == printed(answers["head_weights"])
    assert [[one.log_mass for one in each] for _, each in expected] == printed(answers["log_mass"])
    module = torch.nn.MultiheadAttention(4, data["head_count"], batch_first=True).eval()
    with torch.no_grad():
        for parameter, name in (
            (module.in_proj_weight, "in_projection"),
            (module.in_proj_bias, "in_offset"),
            (module.out_proj.weight, "out_projection"),
            (module.out_proj.bias, "out_offset"),
        ):
            parameter.copy_(torch.tensor(data[name]))
        tensor = torch.tensor(x)
        assert module(tensor, tensor, tensor)[0].numpy() == pytest.approx(np.array(answers["values"]), abs=1e-4)
        found = softkv.soft_lookup(tensor, tensor, tensor, heads=softkv.Heads.from_torch(module))
    assert found.value.numpy() == pytest.approx(np.array([value for value, _ in expected]), abs=1e-5)
    assert found.log_mass.numpy() == printed(answers["log_mass"])


def test_intents(tmp_path: Path) -> None:
    """Soft beats hard at the help desk; hard is scikit-learn's nearest neighbour, soft is torch's."""
    data = load("intents")
    with (example("intents") / "questions.csv").open(newline="", encoding="utf-8") as lines:
        known = [(one["question"], one["intent"]) for one in csv.DictReader(lines)]
    asked = [(question, intent) for intent, questions in data["asked"].items() for question in questions]
    compare_with_oracles(tmp_path, known, asked, [data["answers"]["hard"], data["answers"]["soft"]])


@pytest.mark.parametrize(("name", "shares"), [("clinc150", [0.811, 0.829]), ("banking77", [0.792, 0.823])])
def test_soft_beats_hard_on_questions_that_people_asked(
    name: str, shares: list[float], tmp_path: Path, real_data: str
) -> None:
    """It does so by as much as the example of intents says."""
    drawn = sample(name, 3000, 1000, seed=0)
    compare_with_oracles(tmp_path, drawn.known, drawn.asked, shares)


def compare_with_oracles(tmp_path: Path, items: Sequence[Any], others: Sequence[Any], expected: list[float]) -> None:
    """The hard answers are those of scikit-learn, the soft ones those of torch, and so many of both are right."""
    (known, values), (questions, intents) = zip(*items, strict=True), zip(*others, strict=True)
    with softkv.open(tmp_path / "questions.softkv", value="label") as db:
        db.add(texts=known, values=values)
        hard, soft, temperature = db.nearest(questions), db.lookup(questions), db.lookup(questions[0]).temperature
        assert db.check().ok
    keys, asked = np.array(embedded(known)), np.array(embedded(questions))
    nearest = KNeighborsClassifier(1, algorithm="brute").fit(keys, values).predict(asked)
    assert np.mean(nearest == np.array(hard.label)) > 0.995, "but for ties"
    codes = torch.tensor([soft.labels.index(value) for value in values])
    votes = torch.softmax(torch.tensor(asked @ keys.T) / temperature, 1) @ torch.nn.functional.one_hot(codes).double()
    assert soft.value == pytest.approx(votes.numpy(), abs=1e-5)
    shares = [float(np.mean(np.array(found.label) == np.array(intents))) for found in (hard, soft)]
    assert shares == pytest.approx(expected, abs=0.002)
    assert shares[0] < shares[1]


def test_questions_that_are_not_there_are_missed_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the data, or with another folder, it is said what is missing."""
    monkeypatch.delenv("SOFTKV_DATA", raising=False)
    with pytest.raises(Absent, match=r"SOFTKV_DATA is not set\. It names the folder"):
        sample("clinc150", 3, 3, seed=0)
    monkeypatch.setenv("SOFTKV_DATA", str(tmp_path))
    with pytest.raises(Absent, match=r"there is no banking77/train\.csv in it"):
        banking77()
