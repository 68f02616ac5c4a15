"""Many answers, taken by index."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import softkv
from softkv.errors import ShapeError

KEYS = np.random.default_rng(0).standard_normal((30, 4))
QUERIES = np.random.default_rng(1).standard_normal((6, 4))


@pytest.mark.parametrize("values", [KEYS[:, 0], KEYS, list(map(str, range(30)))], ids=["numbers", "vectors", "texts"])
@pytest.mark.parametrize("part", [slice(0, 2), slice(4, None), slice(None, None, -2), slice(3, 3)], ids=str)
def test_a_slice_has_the_answers_to_these_queries(tmp_path: Path, values: Any, part: slice) -> None:
    """Everything that an answer tells is that of its own query, as in a slice of the list of answers."""
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=KEYS, values=values)
        answers: Any = db.lookup(QUERIES, show=3)
        assert answers[part].to_dict() == [one.to_dict() for one in list(answers)[part]]
        assert len(answers[part]) == len(range(6)[part])
        assert answers[part].value.shape == answers.value[part].shape


@pytest.mark.parametrize("library", [np.asarray, torch.tensor])
def test_a_slice_of_labels_and_temperatures_keeps_them_apart(library: Any) -> None:
    """Labels are one set for all answers, however many there are; temperatures and weights are of each."""
    labels = ["a", "b"] * 15
    warm = library(np.linspace(0.5, 2.0, 6))
    answers: Any = softkv.soft_lookup(library(QUERIES), library(KEYS), labels, temperature=warm)
    part = answers[1:3]
    assert part.labels == answers.labels
    assert part.label == answers.label[1:3]
    assert part.to_dict() == [answers[1].to_dict(), answers[2].to_dict()]


def test_a_slice_of_answers_with_more_axes_is_refused() -> None:
    """A slice would leave open which of the axes is meant."""
    answers: Any = softkv.soft_lookup(QUERIES.reshape(2, 3, 4), KEYS, KEYS)
    with pytest.raises(ShapeError, match="Index their arrays"):
        answers[0:1]
