"""Thresholds of scale that several files of tests move, so that small stores take the ways of large ones.

Each is named here once, with every file that holds it. What the tests of a single file move, they move themselves.
Here is also a store whose gaussian scores cancel (`far_ring`).
"""

from typing import Any

import numpy as np
import pytest

PLACES = {
    "cheap": ("asking.route.CHEAP",),
    "scattered": ("asking.route.SCATTERED",),
    "large": ("asking.route.LARGE", "asking.asker.LARGE"),
    "noted": ("asking.indexed.FEWEST",),
    "rehearsed": ("database.indexing.REHEARSED",),
    "loaded": ("database.loading.BATCH",),
    "reembedded": ("database.reembedding.BATCH",),
    "sampled": ("database.training.SAMPLED",),
    "pairs": ("database.training.PAIRS",),
    "steps": ("learning.fitting.STEPS",),
    "read": ("index.rehearsal.MOST",),
    "rows": ("maths.lookup.ROWS",),
    "queries": ("maths.lookup.QUERIES",),
    "sloped": ("maths.shares.SLOPED", "index.forecast.SLOPED"),
    "granules": ("storage.protocol.generation.GRANULE",),
    "grown": ("index.late.GROWN",),
    "characters": ("files.decoding.BLOCK",),
}


def scaled(patch: pytest.MonkeyPatch, **sizes: float) -> None:
    """Let these thresholds have these sizes until the patch is undone."""
    for name, size in sizes.items():
        for place in PLACES[name]:
            patch.setattr(f"softkv.{place}", size)


def far_ring() -> tuple[Any, Any, Any]:
    """A query, its keys, and all but the nearest of them: that one lies on the query, eight others on a ring around."""
    generator = np.random.default_rng(3)
    queries, keys = np.array([[2500.0, 2500.0]]), generator.uniform(-3000, 3000, (4000, 2)).astype(np.float32)
    keys[((keys - queries) ** 2).sum(1) < 200**2] *= -1
    angles, radii = generator.uniform(0, 6, 8), 40 + generator.uniform(0, 0.05, 8)
    keys[0], keys[1:9] = queries[0], queries + (radii * np.stack([np.cos(angles), np.sin(angles)])).T
    return queries, keys.astype(np.float64), np.arange(len(keys)) != 0


def weighted_mean(queries: Any, keys: Any, left: Any, values: Any) -> float:
    """The mean of the values of the rows that are left, in float64, at a temperature of 1."""
    logits = np.where(left, -0.5 * ((queries - keys) ** 2).sum(1), -np.inf)
    weights = np.exp(logits - logits.max())
    return float(weights @ values / weights.sum())
