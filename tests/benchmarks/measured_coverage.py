"""How often measured answers are within what they state, at 80, 90, 95 and 99% confidence: for each line, over builds.

    OPENBLAS_NUM_THREADS=1 python -m tests.benchmarks.measured_coverage --folder FOLDER

25 builds of 100,000 items, of which each is asked 200 queries a line; the truth is the lookup with tolerance 0, whose
rounding counts as stated. Only measured answers are counted, of their values and of the logarithms of their mass; how
many there are is told, and what became of the others. Queries are asked one by one, so that each has a draw of its own
(`--together`). A line fails when the confidence that was asked for is above what
the share that held is below, 99.9% sure (measured_limits.py), or when half of the errors that are stated for 95% are
more than four times the true ones. Errors of less than a tenth of the tolerance are left out of that: where all that
counts is read, no less than a twentieth is stated, however small the true one; the table tells how many state more. If
a line fails, so does the command. Afterwards come needles (measured_needles.py), and the rows that a tolerance takes
(measured_rows.py).

What was counted is kept in the folder, and not counted again: so builds may be shared between processes (`--first`),
and a run goes on where it was interrupted. `--texts` asks real texts as well, of which SOFTKV_DATA names the folder.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from softkv_cli.machine import machine

from . import measured_needles as needles
from . import measured_rows as rows
from .filling import kept_in
from .index_plots import drawn, measured_coverage, measured_errors
from .index_report import always_measured
from .measured_limits import upper_limit
from .measured_lines import SEED, STORES, Build, Line, Lines
from .measured_texts import texts

CONFIDENCES = (0.8, 0.9, 0.95, 0.99)
JUDGED, MOST_STATED = 0.95, 4.0  # the confidence at which errors may be stated so many times too large
LITTLE = 0.1  # of the tolerance
FEWEST = 20  # measured answers of a line; of fewer nothing is said
HEAD = (
    "| asked | measured, calibrated, scanned | rows read | values within at 80, 90, 95, 99% | log_mass "
    "within | stated ÷ true; of how many | |\n|---|---|---|---|---|---|---|"
)
ALL = (*STORES, "needles", "rows")
PANELS = {
    "(like|random).* T ": "queries and temperatures",
    "filter|.* after ": "filters and changes",
    "gaussian": "squared distances",
    "[CB].* asked by ": "texts of another domain",
}
Counted = dict[str, Any]  # what was seen of one line, one confidence and one build


class Told(NamedTuple):
    """What answers say."""

    values: Any  # (b, p)
    errors: Any  # (b,)
    log_masses: Any  # (b, h)
    log_mass_errors: Any  # (b, h)
    ways: Any  # (b,)
    rows_read: Any  # (b,)

    @classmethod
    def of(cls, found: Any) -> "Told":
        """What some answers say."""
        count = len(found)
        logs = np.zeros((count, 1)) if found.log_mass_error is None else found.log_mass_error.reshape(count, -1)
        values, log_masses = np.asarray(found.value).reshape(count, -1), found.log_mass.reshape(count, -1)
        ways = np.broadcast_to(np.asarray(found.route), count)
        return cls(values, found.error, log_masses, logs, ways, np.broadcast_to(found.rows_read, count))


def lookup(db: Any, line: Line, temperatures: Any, together: int, **how: float) -> Told:
    """What the answers to the queries of a line say, so many of which are asked at once."""
    parts = []
    for start in range(0, len(line.queries), together):
        some = slice(start, start + together)
        parts.append(
            Told.of(db.lookup(line.queries[some], temperature=temperatures[some], show=1, **line.options, **how))
        )
    return Told(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def counted(db: Any, line: Line, temperatures: Any, exact: Told, confidence: float, together: int) -> Counted:
    """How many answers were measured, and how many of these are within what they state."""
    found = lookup(db, line, temperatures, together, tolerance=line.tolerance, confidence=confidence)
    measured = found.ways == "measured"
    apart = np.linalg.norm(found.values - exact.values, axis=1)
    stated, apart = (found.errors + exact.errors)[measured], apart[measured]
    logs = np.abs(found.log_masses - exact.log_masses) <= found.log_mass_errors + exact.log_mass_errors
    logs = logs.mean(1)  # each head states its own
    return {
        "line": line.name,
        "confidence": confidence,
        "ways": Counter(found.ways.tolist()),
        "measured": int(measured.sum()),
        "held": int((apart <= stated).sum()),
        "held_log_mass": float(logs[measured].sum()),
        "rows": rounded(found.rows_read[measured] / len(db)),
        "stated": rounded(found.errors[measured] / (line.tolerance * db._view().snapshot.value_scale)),
        "ratios": rounded(stated / np.maximum(apart, np.finfo(np.float32).tiny)),
    }


def rounded(numbers: Any) -> list[float]:
    """Numbers with the digits that a file keeps."""
    return [float(f"{number:.3g}") for number in numbers]


def asked(build: Build, lines: Lines, together: int) -> list[Counted]:
    """All lines of one store at all confidences."""
    found = []
    for db, rule, line in lines:
        temperatures = line.temperatures(rule, build.rng(line.name))
        exact = lookup(db, line, temperatures, len(line.queries), tolerance=0)
        with always_measured():
            found += [counted(db, line, temperatures, exact, one, together) for one in CONFIDENCES]
    return found


def kept(path: Path, make: Callable[[Path], Any]) -> Any:
    """What a file holds; it is made if it is not there, in a temporary folder."""
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            content = json.dumps(make(Path(folder)))
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(path)
    return json.loads(path.read_text(encoding="utf-8"))


def of_builds(given: argparse.Namespace, folder: Path, stores: Mapping[str, Callable[[Build], Lines]]) -> list[Counted]:
    """What was counted in all builds of all stores that are asked for."""
    found: list[Counted] = []
    for number in range(given.first, given.builds):
        for name, lines in stores.items():
            size = f"{given.items}x{given.queries} by {given.together}"
            path = folder / f"{name} {size} build {number}.json"

            def make(temporary: Path, name: str = name, number: int = number, lines: Any = lines) -> list[Counted]:
                build, started = Build(number, temporary, given.items, given.queries), time.process_time()
                seen = asked(build, lines(build), given.together)
                print(
                    f"build {number}, {name}: {time.process_time() - started:.0f} s of the processor",
                    file=sys.stderr,
                    flush=True,
                )
                return seen

            found += kept(path, make)
    return found


def judged(name: str, found: Sequence[Counted]) -> tuple[str, str]:
    """The cells of a line, and why it fails; "" if it does not."""
    shares: dict[str, list[str]] = {"held": [], "held_log_mass": []}
    failures = []
    for confidence in CONFIDENCES:
        some = [one for one in found if one["confidence"] == confidence]
        measured = [one["measured"] for one in some]
        for what, told in (("held", "values"), ("held_log_mass", "log_mass")):
            if sum(measured) < FEWEST:
                shares[what].append("–")
                continue
            held = [one[what] for one in some]
            limit = upper_limit(held, measured)
            shares[what].append(f"{100 * sum(held) / sum(measured):.1f}")
            if confidence > limit:
                failures.append(f"{told} at {confidence:.0%} held in less than {limit:.1%}")
    some = [one for one in found if one["confidence"] == JUDGED]
    ratios, stated, rows = (np.concatenate([one[what] for one in some]) for what in ("ratios", "stated", "rows"))
    large = ratios[stated > LITTLE]
    ratio, cell = float(np.median(large)) if len(large) >= FEWEST else 0.0, ""
    if ratio:
        cell = (
            f"{ratio:.1f}; {len(large) / len(ratios):.0%}"
            if ratio < 1000
            else f"> 1,000; {len(large) / len(ratios):.0%}"
        )
    if ratio > MOST_STATED:
        failures.append(f"the error is stated {ratio:,.0f} times too large")
    ways = sum((Counter(one["ways"]) for one in found), Counter[str]())
    others = f"{ways['measured']:,}, {ways['calibrated']:,}, {ways['scan'] + ways['gather']:,}"
    read = f"{np.median(rows):.1%}" if len(rows) else ""
    held_cells = " | ".join(", ".join(one) for one in shares.values())
    why = "; ".join(failures)
    return f"| {name} | {others} | {read} | {held_cells} | {cell} | {f'FAILS: {why}' if why else 'held'} |", why


def table(found: Sequence[Counted]) -> bool:
    """Print a row for each line; whether all held."""
    print(HEAD, flush=True)
    failed = []
    for name in dict.fromkeys(one["line"] for one in found):
        cells, why = judged(name, [one for one in found if one["line"] == name])
        print(cells, flush=True)
        failed += [f"{name}: {why}"] if why else []
    print("", *[f"FAILS: {one}" for one in failed], sep="\n" if failed else "", flush=True)
    return not failed


def panels(found: Sequence[Counted]) -> dict[str, dict[str, list[float | None]]]:
    """The share of values that held at each confidence, by panel of the plot and by line."""

    def share(name: str, confidence: float) -> float | None:
        some = [one for one in found if (one["line"], one["confidence"]) == (name, confidence)]
        measured = sum(one["measured"] for one in some)
        return sum(one["held"] for one in some) / measured if measured >= FEWEST else None

    told: dict[str, dict[str, list[float | None]]] = {}
    for name in dict.fromkeys(one["line"] for one in found):
        title = next((title for start, title in PANELS.items() if re.match(start, name)), "values")
        told.setdefault(title, {})[name] = [share(name, confidence) for confidence in CONFIDENCES]
    return told


def told(given: argparse.Namespace, folder: Path) -> bool:
    """Print all tables, and draw the plots; whether everything held."""
    names = () if given.texts else given.lines or ALL
    stores = texts(folder) if given.texts else {name: STORES[name] for name in names if name in STORES}
    found = of_builds(given, folder, stores)
    plots = {"coverage": lambda: measured_coverage(panels(found), CONFIDENCES)}
    held = not found or table(found)
    if "needles" in names:
        held &= needles.table(kept(folder / f"needles {given.items}.json", partial(needles.asked, given.items)))
    if "rows" in names:
        read = kept(folder / f"rows {given.items}.json", partial(rows.read, given.items, given.queries))
        print()
        rows.table(read)
        plots["errors"] = lambda: measured_errors(read)
    for name, draw in plots.items() if given.figures and found else ():
        print(drawn(given.figures / f"measured-{name}.svg", draw))
    return held


def options() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builds", type=int, default=25, help="the number behind that of the last build to ask")
    parser.add_argument("--first", type=int, default=0, help="the number of the first build to ask")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--together", type=int, default=1, help="queries asked at once, which share a draw")
    parser.add_argument("--lines", nargs="*", choices=ALL, help="what to do; default: all")
    parser.add_argument("--texts", action="store_true", help="only real texts, asked by those of another domain")
    parser.add_argument("--folder", type=Path, help="where to keep what was counted; default: a temporary one")
    parser.add_argument("--figures", type=Path, help="the folder for plots; without it none are drawn")
    given = parser.parse_args()
    if not 0 <= given.first < given.builds:
        parser.error(f"expected --first from 0 to below --builds, got {given.first} and {given.builds}")
    return given


def main() -> None:
    """Count, and print the tables."""
    given = options()
    with kept_in(given.folder) as folder:
        items = "texts" if given.texts else f"{given.items:,} items"
        print(f"{machine()}\n{given.builds - given.first} builds of {items}, seed {SEED}\n", flush=True)
        held = told(given, folder)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
