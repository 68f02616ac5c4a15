"""Real texts asked by those of another domain: the questions of Banking77 by those of CLINC150, and the other way.

A build takes nine tenths of the items, drawn anew, and some of the queries.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from .index_data import DataSet, domains
from .index_report import Bench
from .measured_lines import Build, Line, Lines, store

KEPT = 0.9  # of the items
TIMES = ((1.0, 10.0), (10.0, 100.0))  # temperatures, as shares of that of the rule
TOLERANCE = 0.05  # some ten thousand items are few, of which 1% need nearly all
NAMES = "CLINC150 asked by Banking77", "Banking77 asked by CLINC150"


def texts(folder: Path) -> Mapping[str, Callable[[Build], Lines]]:
    """The stores of both; their vectors are kept in this folder."""
    bench = Bench(folder=folder, figures=folder, texts=os.environ["SOFTKV_DATA"])
    return {name: partial(_asked, name, data) for name, data in zip(NAMES, domains(bench), strict=True)}


def _asked(name: str, data: DataSet, build: Build) -> Lines:
    assert data.strange is not None
    rng = build.rng(name)
    some = rng.choice(data.count, int(KEPT * data.count), replace=False)
    keys, values = (np.array(array[some]) for array in data.items[:2])
    queries = data.strange[rng.permutation(len(data.strange))[: build.queries]]
    with store(build, "texts", keys, values, "cosine") as (db, rule):
        for times in TIMES:
            yield db, rule, Line(f"{name}, T {times[0]:g} to {times[1]:g} ×", queries, times, tolerance=TOLERANCE)
