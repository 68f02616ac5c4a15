"""Forecast a build of an index: time, from the work to do and the speed of this machine, and room on the disk.

Matrix products are counted, and all other work on numbers in units of an exp; the speed of both is measured for a few
hundredths of a second. The times of disk and catalog are those of one machine. For a proposer, one of a few rows is
built and scaled up, except for the centres of lists, which a few rows do not have. Good to a factor of two, if nothing
else runs.

Shapes: n rows, l lists, d key width, p value width, c calibration queries, t temperatures.
"""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from softkv.index.building import ITERATIONS, SAMPLE, SAMPLED
from softkv.index.candidates import Proposer, spelled_out
from softkv.index.opening import LEVELS
from softkv.maths.moments import LEADING
from softkv.maths.shares import SLOPED
from softkv.ndarrays import Matrix

ROW = 2e-6  # seconds for the rest of a row, such as its line in the catalog
BYTE = 4e-9  # seconds to read and write a byte of a row
LATENT = 0.3  # seconds that any build takes
TRIED = 4096  # rows of the small proposer
MOVES, POINTS = 10, 256  # at most: iterations of k-means in FAISS, and rows for each centre
NUMBER = 8  # bytes of the number of a row in a list
_LISTS = re.compile(r"IVF(\d+)(_HNSW\d+)?,")


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a build."""

    seconds: float
    meanwhile: int  # bytes on the disk while rows are laid in their order
    kept: int  # bytes of the index

    def __str__(self) -> str:
        room = f"{_room(self.meanwhile)} on the disk meanwhile and {_room(self.kept)} in the end"
        return f"about {_time(self.seconds)}, {room}"


def forecast(
    *,
    rows: int,
    key_width: int,
    value_width: int,
    labelled: bool,
    row_bytes: int,
    lists: int,
    queries: int,
    temperatures: int,
    refined: bool = False,
) -> Forecast:
    """The forecast of a whole build on this machine.

    If values are `labelled`, `value_width` is the number of labels. `refined` says whether most rows stay in their
    lists.
    """
    n, d, p, c, t = rows, key_width, value_width, queries, temperatures
    asked, levels = c * t, len(LEVELS) + 1
    labels = min(p, n) if labelled else 0
    entries = min(n, lists * labels)  # labels that occur in a list, at most
    p = min(p, SLOPED) if labelled else p  # only so many labels have a slope
    sample = min(n, lists * SAMPLED, max(lists, SAMPLE // d))
    arranging = 0 if refined else (ITERATIONS * sample + n) * lists * d
    products = arranging + n * d * (d + 2 * p) + 2 * c * n * d
    products += asked * lists * (levels * LEADING + LEADING**2)
    numbers = 30.0 * n * (d + (0 if labelled else p)) + asked * lists * 300
    if labelled:
        numbers += asked * (7 * n + 12 * entries + 4 * levels * labels)
    else:
        products += asked * (n + levels * lists) * (p + 1)
        numbers += asked * (2 * n + 6 * lists * (p + 1))
    multiplied, exponentiated = speeds()
    seconds = products * multiplied + numbers * exponentiated + n * (ROW + BYTE * row_bytes) + LATENT
    values = 2 * entries if labelled else lists * p
    kept = 8 * (lists * (d + LEADING * (LEADING + 1) // 2) + values + d * (d + p)) + 16 * asked * levels
    return Forecast(seconds, n * row_bytes + 2 * kept, kept)


def forecast_proposer(kind: str, sample: Matrix, *, rows: int, sampled: int, metric: str) -> Forecast:
    """The forecast of `Proposer.build` of this kind, for so many rows like the sample, trained on so many."""
    width = sample.shape[1]
    kind = spelled_out(kind, width, rows, sampled)
    lists = _LISTS.search(kind)
    count = int(lists[1]) if lists else 0
    codes = _LISTS.sub("", kind)
    half, whole = (_tried(codes, sample[:size], metric) for size in (min(len(sample), TRIED) // 2, TRIED))
    row = max(0.0, whole[0] - half[0]) / max(1, whole[2] - half[2])
    deeper = math.log(max(2, rows)) / math.log(max(2, whole[2])) if "HNSW" in codes else 1.0
    products = (MOVES * min(sampled, POINTS * count) + rows) * count * width
    once = max(0.0, whole[0] - row * whole[2])
    seconds = LATENT + once + rows * (row * deeper + ROW + 4 * width * BYTE) + products * speeds()[0]
    kept = round(rows * (whole[1] / max(1, whole[2]) + (NUMBER if count else 0))) + 4 * count * width
    return Forecast(seconds, kept, kept)


def _tried(kind: str, some: Matrix, metric: str) -> tuple[float, int, int]:
    """Seconds and bytes of a small proposer, and how many rows it has."""
    started = time.perf_counter()
    built = Proposer.build(
        kind, lambda: iter([(0, some)]), some, some.shape[1], rows=len(some), metric=metric, backend="cpu"
    )
    return time.perf_counter() - started, len(built.to_bytes()), len(some)


def speeds() -> tuple[float, float]:
    """Seconds for a number of a product and for an exp."""
    left = np.full((1024, 512), 0.5, np.float32)
    right, numbers = left.T.copy(), np.full(1 << 18, -1.0, np.float32)
    return _quickest(lambda: left @ right) / (1024 * 1024 * 512), _quickest(lambda: np.exp(numbers)) / len(numbers)


def _quickest(work: Callable[[], object]) -> float:
    """Seconds of the quickest of some calls; the first starts threads."""
    found = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def _time(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def _room(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(1, round(size / 1e6))} MB"
