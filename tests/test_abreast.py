"""Lists of several stores side by side: they say of queries what they said alone."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from softkv.maths.abreast import abreast, turned
from softkv.maths.compatibility import COMPATIBILITIES
from softkv.maths.farfield import tilted
from softkv.maths.forms import Form
from softkv.maths.moments import measured
from softkv.maths.symmetric import unpacked

ROWS, WIDTH, TEMPERATURE = 300, 6, 0.7
RNG = np.random.default_rng(4)
KEYS = [RNG.normal(size=(ROWS, WIDTH)) @ RNG.normal(size=(WIDTH, WIDTH)) + RNG.normal(size=WIDTH) for _ in range(3)]
CODES = [RNG.integers(0, 4, ROWS) for _ in KEYS]
VALUES = [RNG.normal(size=(ROWS, 2)) for _ in KEYS]
OFFSETS = np.array([0, 100, 100, 180, ROWS])
AMONG_ALL = [np.array([3, 1, 0, 5]), np.array([0, 1, 2, 4]), np.array([2, 3, 4, 5])]  # codes of each store among six


@pytest.mark.parametrize("name", ["dot", "cosine", "gaussian"])
@pytest.mark.parametrize("labels", [0, 4])
def test_lists_side_by_side_say_what_they_said_alone(name: str, labels: int) -> None:
    """Their keys are counted from other centres, along other axes, of which all have a covariance."""
    queries, compared = RNG.normal(size=(5, WIDTH)), COMPATIBILITIES[name]
    sharpness = np.full(5, 1.0 / TEMPERATURE)
    forms = [Form(name, name, keys.mean(0), np.ones(3)) for keys in KEYS]
    alone, parts = [], []
    for form, keys, codes, values in zip(forms, KEYS, CODES, VALUES, strict=True):

        def rows(
            start: int, stop: int, *, form: Form = form, keys: Any = keys, cells: Any = codes if labels else values
        ):
            return form.keys(keys[start:stop]), cells[start:stop]

        lists = measured(rows, OFFSETS, labels=labels, leading=WIDTH + 1)
        asked, added = form.queries(queries, compared, sharpness)
        alone.append(tilted(lists, asked).logs + added[:, None])
        parts.append(turned(lists, *form.onto(forms[0]), parts[0].axes if parts else lists.axes))
    found = abreast(parts, AMONG_ALL if labels else [None] * len(parts), 6 if labels else 0)
    asked, added = forms[0].queries(queries, compared, sharpness)
    logs = tilted(found, asked).logs + added[:, None]
    there = found.counts > 0
    expected = np.concatenate(alone, axis=1)
    np.testing.assert_allclose(logs[:, there], expected[:, there], atol=1e-8)
    if labels:
        tallies = np.concatenate(
            [np.bincount(own[codes], minlength=6) for own, codes in zip(AMONG_ALL, CODES, strict=True)]
        )
        shares = (found.counts[None, :] @ found.values)[0]
        np.testing.assert_allclose(shares, tallies.reshape(3, 6).sum(0))
        np.testing.assert_array_equal(found.values.sloped, np.arange(6))
    else:
        means = [values[a:b].mean(0) for values in VALUES for a, b in pairwise(OFFSETS.tolist()) if a < b]
        np.testing.assert_allclose(found.values[there], means, atol=1e-12)


def test_what_few_axes_do_not_hold_of_the_variance_is_held_by_the_others() -> None:
    """Each list has what it had in all, however far the axes are turned."""

    def rows(start: int, stop: int) -> Any:
        return KEYS[0][start:stop], VALUES[0][start:stop]

    lists = measured(rows, OFFSETS, leading=2)
    axes, _ = np.linalg.qr(RNG.normal(size=(WIDTH, WIDTH)))
    found = turned(lists, np.eye(WIDTH), np.zeros(WIDTH), axes)
    wide = [unpacked(one.spreads, 2).trace(axis1=1, axis2=2) + one.outside for one in (found, lists)]
    np.testing.assert_allclose(wide[0], wide[1])
    np.testing.assert_allclose(found.slope @ axes.T, lists.slope @ lists.axes.T)
