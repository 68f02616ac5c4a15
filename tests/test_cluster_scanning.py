"""Exact answers over shards: one scan of all, which says what a scan of one store of all items says."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.maths.blending import Labels, Numbers, Values, Vectors
from softkv.maths.blocks import Stretch
from softkv.maths.lookup import Found, lookup, lookup_along
from softkv.storage.catalog.catalog import Catalog

from .clusters import clustered, opened, require_alike
from .databases import filled, vectors_of

ROWS, ENDS = 500, [0, 3, 200, 201, 500]
RNG = np.random.default_rng(1)
KEYS, ASKED = (RNG.standard_normal((rows, 6)).astype(np.float32) for rows in (ROWS, 9))
CODES, MASK = RNG.integers(0, 5, ROWS), RNG.random(ROWS) < 0.7
VALUES: dict[str, Values] = {
    "number": Numbers(1e6 + RNG.standard_normal((ROWS, 1))),
    "vector": Vectors(RNG.standard_normal((ROWS, 3)).astype(np.float32)),
    "label": Labels(CODES, 5),
}


def of_some(values: Values, start: int, stop: int) -> Values:
    """Values of some rows; labels with codes of their own, in the order in which the rows meet them."""
    if not isinstance(values, Labels):
        return type(values)(values.array[start:stop])
    met = list(dict.fromkeys(values.array[start:stop].tolist()))
    others = [code for code in range(values.count) if code not in met]
    own = np.array([met.index(code) for code in values.array[start:stop].tolist()])
    return Labels(own, values.count, np.argsort([*met, *others]))


def require_near(found: Found, expected: Found) -> None:
    """Refuse findings that differ by more than rounding, or name other rows."""
    for name in ("value", "log_mass", "effective", "mass", "scores", "weights", "spread"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7, err_msg=name)
    for name in ("rows", "scored", "seen"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("temperature", [0.02, 0.5, np.geomspace(0.01, 10.0, len(ASKED))])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", VALUES)
def test_rows_in_several_arrays_are_looked_up_as_those_of_one(kind: str, masked: bool, temperature: Any) -> None:
    """All kinds are, also where some do not count, and labels have other codes in each."""
    mask, stretches = (MASK[None, :] if masked else None), []
    for start, stop in pairwise(ENDS):
        part = None if mask is None else mask[:, start:stop]
        stretches.append(Stretch(KEYS[start:stop], of_some(VALUES[kind], start, stop), "cosine", part, start))
    for some in (slice(None), slice(2, 3)):
        warm = temperature[some] if isinstance(temperature, np.ndarray) else temperature
        given = {"temperature": warm, "show": 12}
        expected = lookup(ASKED[some], KEYS, VALUES[kind], compatibility="cosine", mask=mask, **given)
        require_near(lookup_along(ASKED[some], stretches, **given), expected)


@pytest.mark.parametrize("kind", ["number", "vector", "label"])
@pytest.mark.parametrize("compatibility", ["dot", "cosine", "gaussian", "laplace"])
def test_a_scan_of_all_shards_says_what_that_of_one_store_says(kind: str, compatibility: str, tmp_path: Path) -> None:
    """Both say one thing, of one query as well, after items were deleted, some of all shards, and all of one."""
    queries, options = vectors_of(5, seed=5), {"compatibility": compatibility, "temperature": 0.5, "show": 8}
    with clustered(tmp_path / "c", kind, 60) as db, filled(tmp_path / "s", kind, 60) as one:
        first = [key for key in db if db._store.manifest.shard_of(key) == 0]
        for gone in ([], ["item 7", "item 8", "item 30"], [key for key in first if key in db]):
            for each in (db, one):
                each.delete([key for key in gone if key in each])
            for some in (queries, queries[:1]):
                found, expected = (each.lookup(some, **options) for each in (db, one))
                require_alike(found, expected)
                assert (found.routes, found.log_mass_error) == (expected.routes, None)
                assert (found.error <= 2.0 * expected.error + 1e-12).all()
                assert (found.rows_read <= expected.rows_read).all()


def test_labels_that_come_while_a_question_is_answered_rename_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the labels of a shard were read, an item with a new label comes, too far away to count."""
    queries, options = vectors_of(5, seed=5), {"compatibility": "gaussian", "temperature": 0.5, "show": 8}
    with clustered(tmp_path / "c", "label", 60) as db, opened(tmp_path / "c", mode="r") as reader:
        expected = reader.lookup(queries, **options)
        read, late = Catalog.labels, [0]

        def followed_by_another(catalog: Catalog) -> Any:
            found = read(catalog)
            with monkeypatch.context() as quiet:
                quiet.setattr(Catalog, "labels", read)
                late[0] += 1
                db.add(f"late {late[0]}", f"new {late[0]}", vectors=1e3 + vectors_of(1)[0])
            return found

        for some in ({}, {"k": 5}, {"tolerance": 0.0}):
            monkeypatch.setattr(Catalog, "labels", read)
            expected = reader.lookup(queries, **options, **some)
            monkeypatch.setattr(Catalog, "labels", followed_by_another)
            for _ in range(6):
                db.add(f"more {late[0]}", "label 0", vectors=1e3 + vectors_of(1)[0])
                found = reader.lookup(queries, **options, **some)
                for one, two in zip(found, expected, strict=True):
                    assert [(item.key, item.value) for item in one.contributors] == [
                        (item.key, item.value) for item in two.contributors
                    ]
                    shares = dict(zip(two.labels, two.value, strict=True))
                    for label, share in zip(one.labels, one.value, strict=True):
                        assert share == pytest.approx(shares.get(label, 0.0), abs=1e-5)
        assert late[0] > 30
