"""Thresholds of scale that several files of tests move, so that small stores take the ways of large ones.

Each is named here once, with every file that holds it. What the tests of a single file move, they move themselves.
"""

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
