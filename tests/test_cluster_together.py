"""The lists of all shards side by side: estimates as of one store, while they are those that were rehearsed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softkv.asking import spanning
from softkv.asking.joined import joined
from softkv.doors.cluster.handle import Cluster, create
from softkv.index.opening import LEVELS
from softkv.index.strata import Population
from softkv.maths.strata import Draw, Sizes
from tests.stores import with_secret

from .clusters import opened, value_like
from .databases import count_as_large, measured_always
from .test_measured import KINDS, SMALL, TOLERANCE, keys_of, most_misses, values_of

pytestmark = pytest.mark.ci
ITEMS, SHARDS, ASKED = 16_000, 4, 400
# Times the rows that one store reads, at most: 1.3 is missed, since a plan over shards stops one level later.
# Levels are met to a list, and those opened in any case are of other sizes here.
ROWS = 1.1 * LEVELS[1] / LEVELS[0]
BEST = 0.9  # of the heaviest items are named, at least
QUERIES = keys_of(9, ASKED)


def made(path: Path, compatibility: str, shards: int) -> Cluster:
    """A cluster with an index, in which the same rows are drawn every time."""
    keys, kind, temperature = keys_of(1, ITEMS), KINDS[compatibility], SMALL[compatibility]
    create(path, shards, value=kind, compatibility=compatibility, temperature=temperature)
    with opened(path) as db:
        db.add([str(number) for number in range(ITEMS)], values_of(kind, keys), vectors=keys)
    for number in range(shards):
        with_secret(path / f"shard-{number:03}", f"shard {number}".encode().ljust(32))
    db = opened(path)
    db.build_index(temperatures=(temperature / 5, 4 * temperature))
    return db


@pytest.fixture(scope="module", params=KINDS)
def clusters(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Cluster]]:
    """Clusters of one shard and of several with the same items, which all count as large."""
    folder = tmp_path_factory.mktemp("together")
    with pytest.MonkeyPatch.context() as patch:
        count_as_large(patch, rehearsed=400)
        found = {shards: made(folder / str(shards), request.param, shards) for shards in (1, SHARDS)}
        yield found
        for db in found.values():
            assert db.check().ok
            db.close()


def is_rehearsed(db: Cluster) -> bool:
    """Whether what all shards rehearsed together counts."""
    index = db._view().index
    return index is not None and len(index.calibration.temperatures) > 0


def require_kept(found: Any, exact: Any, kind: str, *, least: int) -> None:
    """At least so many answers are of a kind, and as many of them as they say are within what they state."""
    there = np.broadcast_to(np.array(found.error_kind, object), len(found)) == kind
    assert there.sum() >= least, found.routes
    apart = (value_like(found, exact) - exact.value).reshape(len(found), -1)
    assert (np.linalg.norm(apart, axis=1) > found.error)[there].sum() <= most_misses(int(there.sum()))
    moved = np.abs(found.log_mass - exact.log_mass)
    assert (moved > found.log_mass_error)[there].sum() <= most_misses(int(there.sum()))


def test_estimates_that_all_shards_rehearsed_hold_as_often_as_they_say(clusters: dict[int, Cluster]) -> None:
    """Of queries that took no part in it, and they read one level more of the rows than one store does, at most."""
    read = {}
    for shards, db in clusters.items():
        exact, found = (db.lookup(QUERIES, tolerance=tolerance) for tolerance in (0.0, TOLERANCE))
        require_kept(found, exact, "calibrated", least=380)
        read[shards] = np.median(found.rows_read)
        best = [one.scores[:, 0] for one in (found, exact)]
        assert np.isclose(*best, rtol=1e-4).mean() >= BEST
    assert read[SHARDS] <= ROWS * read[1]


def test_rows_drawn_from_all_shards_at_once_tell_the_error_as_often_as_they_say(clusters: dict[int, Cluster]) -> None:
    """Each query has a draw of its own, at a temperature that was not rehearsed."""
    db = clusters[SHARDS]
    with pytest.MonkeyPatch.context() as patch:
        measured_always(patch)
        options: dict[str, Any] = {"temperature": 10 * db._view().usual_temperature, "tolerance": 2 * TOLERANCE}
        exact = db.lookup(QUERIES, **options | {"tolerance": 0.0})
        each = [db.lookup(query[None], **options) for query in QUERIES]
        found = joined([(np.array([n]), one) for n, one in enumerate(each)], None)
        require_kept(found, exact, "measured", least=300)


def test_every_row_of_a_list_may_be_drawn(clusters: dict[int, Cluster]) -> None:
    """Every row of all lists of all shards may be, and each once."""
    view = clusters[SHARDS]._view()
    assert view.index is not None
    population = Population(view.index, None)
    everything = Sizes(np.ones(len(population.counts)), population.counts)
    strata = population.strata
    draw = Draw._of(np.random.default_rng(0), strata, everything, np.flatnonzero(strata.counts))
    rows = population.rows(draw)
    np.testing.assert_array_equal(np.sort(rows), np.arange(ITEMS))
    np.testing.assert_array_equal(view.index.joined[rows], draw.strata[draw.owners])
    live = np.random.default_rng(1).random(ITEMS) < 0.9
    for some in (np.ones(ITEMS, np.bool_), live):  # those that lie in random order are those of each shard
        found, own = Population(view.index, some), list[Population]()
        for one in view.parts:
            assert one.view.index is not None
            own.append(Population(one.view.index, some[one.first : one.first + one.view.snapshot.rows]))
        for name in ("counts", "ahead", "shuffled"):
            np.testing.assert_array_equal(getattr(found, name), np.concatenate([getattr(each, name) for each in own]))
    assert population.shuffled.sum() > ITEMS / 2


def test_shards_that_cannot_be_put_side_by_side_answer_each_by_its_own_plan(clusters: dict[int, Cluster]) -> None:
    """Where there are too many rows for it, shards are asked one by one, as those in other processes are."""
    exact = clusters[SHARDS].lookup(QUERIES, tolerance=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spanning, "MOST", ITEMS - 1)
        with clusters[SHARDS].snapshot() as db:
            assert db._view().index is None
            require_kept(db.lookup(QUERIES, tolerance=TOLERANCE), exact, "calibrated", least=200)


def test_what_comes_and_goes_is_in_the_answers_at_once(clusters: dict[int, Cluster]) -> None:
    """Changes count before any shard has noted them; what was rehearsed outlives a compaction, but not many changes."""
    db, asked = clusters[SHARDS], {"tolerance": TOLERANCE}
    query, kind = QUERIES[:1], KINDS[db.info().compatibility or ""]
    near = db.lookup(query, **asked)[0].contributors[0].key
    value = values_of(kind, keys_of(1, ITEMS))[0]
    db.add(["new"], [value], vectors=query)
    if db.info().compatibility != "dot":
        assert db.lookup(query, **asked)[0].contributors[0].key == "new"
    with pytest.MonkeyPatch.context() as patch:
        measured_always(patch)
        warm = db.lookup(query, temperature=10 * db._view().usual_temperature, tolerance=2 * TOLERANCE)
        assert warm.error_kind == "measured"
    first = next(key for key in db if key != near)  # of the first shard, which keeps what was rehearsed
    db.delete(["new", near, first])
    found = db.lookup(QUERIES, **asked)
    assert near not in {one.key for one in found[0].contributors}
    db.compact()
    assert is_rehearsed(db)
    exact = db.lookup(QUERIES, tolerance=0.0)
    require_kept(db.lookup(QUERIES, **asked), exact, "calibrated", least=380)
    db.delete([str(number) for number in range(2_000) if str(number) in db])
    assert not is_rehearsed(db)
    db.build_index()
    assert is_rehearsed(db)
    assert db.lookup(query, **asked).error_kind == "calibrated"
    db.drop_index()
    assert db.lookup(query, **asked).error_kind == "exact"
