"""What follows from how many left-out items were answered within what is stated; and exact answers, block by block."""

import json
import math
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from softkv.index.verdict import CHANCE, Truth, Verdict, at_most

from . import reference

GOOD = Verdict(7, 300, 2000, 0.95, (0.1, 0.5), (256, 250), (250, 240), (246, 239))


@pytest.mark.parametrize(("asked", "share"), [(1, 0.5), (12, 0.9), (256, 0.95)])
def test_few_within_are_as_probable_as_they_are(asked: int, share: float) -> None:
    """The tail of the binomial distribution, as its definition has it."""
    for within in {0, asked // 2, asked - 3, asked - 1, asked} - {-2}:
        ways = (math.comb(asked, k) * share**k * (1 - share) ** (asked - k) for k in range(within + 1))
        assert at_most(within, asked, share) == pytest.approx(math.fsum(ways), rel=1e-9)


def test_a_calibration_that_holds_is_withdrawn_as_rarely_as_is_said() -> None:
    """The probability of all that could be seen says so; one of which a tenth more is off is, mostly."""

    def withdrawn(values: int) -> bool:
        return replace(GOOD, temperatures=(0.1,), asked=(256,), values=(values,), masses=(256,)).withdrawn

    most = max(values for values in range(257) if withdrawn(values))
    assert all(withdrawn(values) for values in range(most + 1))
    assert at_most(most, 256, 0.95) < CHANCE < 4 * at_most(most + 1, 256, 0.95)
    assert at_most(most, 256, 0.85) > 0.95


def test_log_masses_may_be_off_a_little_more_often() -> None:
    """They are stated without room; one that is mostly off is found all the same."""
    assert not replace(GOOD, masses=(232, 226)).withdrawn
    assert not replace(GOOD, values=(242, 237)).withdrawn
    assert replace(GOOD, values=(225, 237)).withdrawn
    bad = replace(GOOD, masses=(256, 120))
    assert bad.withdrawn
    assert str(bad) == "48% of 250 log masses within what it states"
    assert str(replace(GOOD, values=(200, 250))) == "78% of 256 values within what it states"


def test_without_answers_nothing_is_withdrawn() -> None:
    """All queries were scanned, which is right."""
    nothing = Verdict(7, 1, 2, 0.95, (), (), (), ())
    assert (nothing.withdrawn, str(nothing)) == (False, "100% of 0 answers within what it states")
    assert not replace(GOOD, asked=(0, 0), values=(0, 0), masses=(0, 0)).withdrawn


def test_a_verdict_is_read_as_it_was_written() -> None:
    """Bytes and facts come back."""
    assert Verdict.decoded(GOOD.encoded()) == GOOD
    assert Verdict.of(json.loads(json.dumps(asdict(GOOD)))) == GOOD


LIES: dict[str, Any] = {
    "file": [-1, 1.5, None, "7", True, 1 << 70],
    "changes": [-1, "x", [1]],
    "items": [-1, None],
    "confidence": [0.0, 0.4, 0.5, 1.0, -0.5, 2, "0.95", float("nan"), None],
    "temperatures": [None, 3, "ab", [0.1] * 9, [0.1], [0.1, "x"], [0.1, -1.0], [0.1, float("nan")], [[1.0], [2.0]], {}],
    "asked": [[256], [256, -1], [256, 1 << 60], [1.0, 2.0], None, [250, 250, 250]],
    "values": [[257, 1], [-1, 1], ["1", 1], 7],
    "masses": [[257, 1], [None, 1], {"a": 1, "b": 2}],
}


@pytest.mark.parametrize(("name", "lie"), [(name, lie) for name, lies in LIES.items() for lie in lies])
def test_what_is_no_verdict_is_none(name: str, lie: Any) -> None:
    """Whatever is wrong with it, nothing is raised."""
    facts = json.loads(json.dumps(asdict(GOOD)))
    assert Verdict.of(facts) == GOOD
    assert Verdict.decoded(json.dumps({**facts, name: lie}).encode()) is None
    del facts[name]
    assert Verdict.of(facts) is None


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[1]", b"\xff\xfe", b"7", b"[" * 100_000, b'"x"', b"\0" * 99])
def test_bytes_that_are_no_verdict_are_none(content: bytes) -> None:
    """Nothing is raised."""
    assert Verdict.decoded(content) is None


@pytest.mark.parametrize("kind", ["vectors", "labels"])
def test_exact_answers_are_those_of_the_reference(kind: str) -> None:
    """Rows may be cut into blocks anyhow, peaks rise late, and what does not count is left out."""
    rng = np.random.default_rng(0)
    logits = (30.0 * rng.standard_normal((4, 90))).astype(np.float32)
    logits[0, 80] = 200.0  # all that was summed before is nothing beside it
    logits[1] -= 500.0
    codes, counted = rng.integers(0, 5, 90), rng.random(90) < 0.7
    counted[:10] = False
    counted[80] = True
    values = rng.standard_normal((90, 3)).astype(np.float32) if kind == "vectors" else codes
    rows = values if kind == "vectors" else np.eye(5)[codes]
    for cuts in ([0, 90], [0, 7, 9, 60, 90]):
        truth = Truth(4, rows.shape[1])
        for start, stop in pairwise(cuts):
            truth.add(logits[:, start:stop].copy(), values[start:stop], counted[start:stop])
        for query in range(4):
            kept = np.flatnonzero(counted)
            keys = logits[query, kept].astype(np.float64)[:, None].tolist()
            found = reference.lookup([1.0], keys, rows[kept].tolist(), score=reference.dot)
            assert truth.values[query] == pytest.approx(found.value, abs=1e-5)
            assert truth.log_masses[query] == pytest.approx(found.log_mass, abs=1e-5)
