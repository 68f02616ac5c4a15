"""What a build of a proposer takes: one of a few rows is built, and what all rows take is counted from it.

Centres of lists are counted by products instead (forecast.py): a few rows have none worth finding. Good to a factor of
two, if nothing else runs.

Shapes: d key width.
"""

import math
import re
import time

from softkv.index.candidates import Proposer, spelled_out
from softkv.index.engine import Matrix
from softkv.index.forecast import BYTE, LATENT, ROW, Forecast, speeds

ROWS = 4096  # of the trial
ITERATIONS = 10  # of FAISS, until centres stay
POINTS = 256  # of the sample to each centre, at most
NUMBER = 8  # bytes of the number of a row in a list
_LISTS = re.compile(r"IVF(\d+)(_HNSW\d+)?,")


def forecast_proposer(kind: str, sample: Matrix, *, rows: int, sampled: int, metric: str) -> Forecast:
    """What `Proposer.build` of this kind takes, of so many rows like the sample, when it is trained on so many."""
    width = sample.shape[1]
    kind = spelled_out(kind, width, rows, sampled)
    lists = _LISTS.search(kind)
    count = int(lists[1]) if lists else 0
    codes = _LISTS.sub("", kind)
    half, whole = (_tried(codes, sample[:size], metric) for size in (min(len(sample), ROWS) // 2, ROWS))
    row = max(0.0, whole[0] - half[0]) / max(1, whole[2] - half[2])
    deeper = math.log(max(2, rows)) / math.log(max(2, whole[2])) if "HNSW" in codes else 1.0
    products = (ITERATIONS * min(sampled, POINTS * count) + rows) * count * width
    once = max(0.0, whole[0] - row * whole[2])
    seconds = LATENT + once + rows * (row * deeper + ROW + 4 * width * BYTE) + products * speeds()[0]
    kept = round(rows * (whole[1] / max(1, whole[2]) + (NUMBER if count else 0))) + 4 * count * width
    return Forecast(seconds, kept, kept)


def _tried(kind: str, some: Matrix, metric: str) -> tuple[float, int, int]:
    """Seconds and bytes of a proposer of a few rows, and how many these are."""
    started = time.perf_counter()
    built = Proposer.build(
        kind, lambda: iter([(0, some)]), some, some.shape[1], rows=len(some), metric=metric, backend="cpu"
    )
    return time.perf_counter() - started, len(built.to_bytes()), len(some)
