"""How many rows measured answers read for a tolerance, and how wrong they are then.

One build, asked like the items and in random directions, at several tolerances. What is scanned is left out; where that
is most, so is the tolerance.
"""

from pathlib import Path
from typing import Any

import numpy as np

from .index_report import always_measured
from .measured_lines import MEDIUM, WARM, Build, told, vectors

TOLERANCES = (0.005, 0.01, 0.02, 0.05, 0.1)
LINES = [f"{kind}, T {told(times)}" for kind in ("like the items", "random directions") for times in (MEDIUM, WARM)]
CONFIDENCE = 0.95
HEAD = "| asked | tolerance | measured | rows read | true error: half below, 95% below |\n|---|---|---|---|---|"
Read = dict[str, list[list[float]]]  # of each line and tolerance: it, how many, rows, errors: half, and 95% below


def read(items: int, queries: int, folder: Path) -> Read:
    """The figures, in a store of so many items."""
    build, found = Build(0, folder, items, queries), Read()
    for db, rule, line in vectors(build):
        if line.name not in LINES:
            continue
        temperatures = line.temperatures(rule, build.rng(line.name))
        exact = db.lookup(line.queries, temperature=temperatures, tolerance=0, show=1).value
        with always_measured():
            rows = [_measured(db, line.queries, temperatures, exact, one) for one in TOLERANCES]
        rows = [one for one in rows if one[1] >= len(line.queries) / 2]
        found |= {line.name: rows} if rows else {}
    return found


def _measured(db: Any, queries: Any, temperatures: Any, exact: Any, tolerance: float) -> list[float]:
    found = db.lookup(queries, temperature=temperatures, tolerance=tolerance, confidence=CONFIDENCE, show=1)
    measured = np.broadcast_to(np.asarray(found.route), len(queries)) == "measured"
    if not measured.any():
        return [tolerance, 0.0, 1.0, 0.0, 0.0]
    errors = np.linalg.norm(found.value - exact, axis=1)[measured] / db._view().snapshot.value_scale
    shares = np.median(found.rows_read[measured]) / len(db)
    return [tolerance, float(measured.sum()), float(shares), *np.quantile(errors, (0.5, CONFIDENCE)).tolist()]


def table(found: Read) -> None:
    """Print a row for each line and tolerance."""
    print(HEAD)
    for name, rows in found.items():
        for tolerance, count, share, half, most in rows:
            print(f"| {name} | {tolerance:g} | {count:.0f} | {share:.1%} | {half:.2%}, {most:.2%} |", flush=True)
