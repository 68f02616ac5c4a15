"""Any index of FAISS as a proposer of rows: fast, approximate, and not trusted for scores.

A proposer names rows that may be among the best; the caller scores them again from the stored keys, and leaves out rows
that are deleted or masked. So a bad proposer costs recall, never correctness.

The index holds copies of the keys, mostly in few bytes each. Built in one or two passes over them; searched on the CPU.

Shapes: m rows of a block, b queries, d width.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, final

import numpy as np

from softkv.errors import FormatTooNew, IndexDamaged, InputError, ShapeError
from softkv.index.engine import by_blas, checked, chosen_backend, device, faiss_module, flat_on_gpu
from softkv.index.skeleton import bounded, difference
from softkv.maths.inputs import whole_number
from softkv.ndarrays import Matrix, Rows
from softkv.progress import Progress

FORMAT = 1
METRICS = ("dot", "l2")
FEWEST = 1000  # rows below which the short names mean a plain scan
_MAGIC = b"SOFTPROP"
_HEAD = struct.Struct("<8sIIQ")  # magic, format, bytes of JSON, bytes of FAISS
_LONGEST_JSON = 4096
_LONGEST_KIND = 200
_PIECE = 1 << 13  # rows that are added at a time
_LARGEST = 1e15  # of numbers: their squares, times any width, stay inside float32
_KIND = re.compile(
    r"((PCAR?\d{1,7}|RR\d{1,7}|Pad\d{1,7}),)?"  # what is done to vectors first
    r"(HNSW\d{1,7}(,Flat|,SQ(4|6|8|fp16|bf16)|,PQ\d{1,7})?"
    r"|(IVF\d{1,7}(_HNSW\d{1,7})?,)?(Flat|SQ(4|6|8|fp16|bf16)|PQ\d{1,7}(x\d{1,7}(fsr?)?)?|RaBitQ[1-9]?(fs)?))\Z"
)
_NUMBERS = re.compile(r"(HNSW|IVF|PCA|PCAR|RR|Pad|PQ|x)(\d+)")
_LIMITS = {
    "HNSW": (4, 512),
    "IVF": (1, 1 << 20),
    "x": (4, 12),
    **dict.fromkeys(("PCA", "PCAR", "RR", "Pad", "PQ"), (1, 1 << 16)),
}
_NEED = "a candidate index"


@dataclass(frozen=True, slots=True)
class _Made:
    """The header of a proposer in a file."""

    kind: str
    metric: str
    width: int
    rows: int


@final
class Proposer:
    """A FAISS index over rows 0 … rows − 1 of some keys. Threads may ask it at the same time.

    >>> keys = np.random.default_rng(0).standard_normal((2000, 16)).astype(np.float32)
    >>> blocks = lambda: iter([(0, keys)])
    >>> built = Proposer.build("hnsw", blocks, keys, 16, rows=2000, metric="l2", backend="cpu")
    >>> built.kind, int(built.propose(keys[7:8], 3)[0, 0])
    ('HNSW32,SQ8', 7)
    """

    def __init__(self, index: Any, made: _Made) -> None:
        self.kind, self.metric, self.width, self.rows = made.kind, made.metric, made.width, made.rows
        self._index, self._made = index, made

    @classmethod
    def build(
        cls,
        kind: str,
        blocks: Callable[[], Iterator[tuple[int, Matrix]]],
        sample: Matrix,
        width: int,
        *,
        rows: int,
        metric: str,
        backend: str,
        progress: Progress | None = None,
    ) -> "Proposer":
        """Train on a sample and add all rows, which come in blocks from row 0 on; `progress` is told of rows added.

        `kind` is "hnsw", "ivf", "pq", "rabitq", or a factory string of FAISS. A GPU helps where centres are trained.
        """
        sample = _bounded("sample", sample, width)
        kind = spelled_out(kind, width, rows, len(sample))
        gpu = chosen_backend(backend) == "gpu"
        index = _empty(kind, width, metric)
        _train(index, sample, kind, gpu=gpu)
        for first, block in blocks():
            if first != index.ntotal:
                raise ShapeError(f"expected the block of row {index.ntotal}, got that of row {first}. Keep the order.")
            _add(index, _bounded("keys", block, width, first=first), kind, rows, progress)
        if index.ntotal != rows:
            raise ShapeError(f"expected {rows} rows in blocks, got {index.ntotal}. Give as many as were announced.")
        return cls(index, _Made(kind, metric, width, rows))

    @classmethod
    def from_bytes(cls, given: memoryview | bytes, *, width: int, rows: int) -> "Proposer":
        """The proposer that these bytes hold, for this many rows of this width; else `IndexDamaged`.

        Subtle: compare the bytes with their checksum first, since FAISS trusts what it reads. Here the head is checked,
        all lengths, and that what was read is built as the head says (skeleton.py).
        """
        view = memoryview(given).cast("B")
        made, body = _read_head(view)
        if (made.width, made.rows) != (width, rows):
            raise _damaged(f"is for {made.rows} rows of width {made.width}, but {rows} rows of width {width} are there")
        index = _read_index(body)
        _require_like(index, made)
        return cls(index, made)

    def to_bytes(self) -> bytes:
        """All of it, for `from_bytes`."""
        faiss, body = faiss_module(_NEED), bytearray()
        faiss.write_index(self._index, faiss.PyCallbackIOWriter(body.extend))
        text = json.dumps(asdict(self._made), sort_keys=True).encode()
        return b"".join([_HEAD.pack(_MAGIC, FORMAT, len(text), len(body)), text, body])

    def propose(self, queries: Matrix, count: int, *, effort: float = 1.0) -> Rows:
        """Rows that may be among the best of each query, (b, count), in no order to rely on; -1 where there are none.

        `effort` multiplies how much is searched: lists of an IVF, candidates in a graph. 1 is the default; kinds that
        search everything ignore it. Indexes of codes rank coarsely: ask for some times as many as are needed.
        """
        queries = checked("queries", queries)
        if queries.shape[1] != self.width:
            raise ShapeError(f"the queries have width {queries.shape[1]}, the index {self.width}. Pass that width.")
        count = whole_number("count", count, least=1)
        proposed, asked = np.full((len(queries), count), -1, np.int64), min(count, self.rows)
        for more in (1.0, 8.0, math.inf) if asked else ():
            short = np.flatnonzero(proposed[:, asked - 1] < 0)  # lists may hold too few rows, or none
            if not len(short) or not self._search(queries, short, proposed[:, :asked], effort * more):
                break
        return proposed

    def _search(self, queries: Matrix, some: Rows, proposed: Rows, effort: float) -> bool:
        """Search for some of the queries; whether more effort could have found more."""
        with by_blas(_NEED) as faiss:
            parameters = _parameters(faiss, self._index, proposed.shape[1], effort)
            found = self._index.search(queries[some], proposed.shape[1], params=parameters)[1]
        proposed[some] = np.where((found >= 0) & (found < self.rows), found, -1)
        return parameters is not None


def spelled_out(kind: str, width: int, rows: int, sampled: int) -> str:
    """The factory string that a short name stands for; one that is no short name stays.

    >>> spelled_out("pq", 384, 50_000, 50_000)
    'IVF894,PQ96x4fs'
    """
    lists = f"IVF{max(1, min(int(4 * math.sqrt(rows)), sampled // 16))}"
    padded = -(-width // 4) * 4
    pad = f"Pad{padded}," if padded != width else ""  # codes of four numbers each; others may not divide the width
    short = {
        "hnsw": "HNSW32,SQ8",
        "ivf": f"{lists},SQ8",
        "pq": f"{pad}{lists},PQ{padded // 4}x4fs",
        "rabitq": f"{lists},RaBitQ",
    }
    if kind not in short:
        return _checked_kind(kind)
    return short[kind] if min(rows, sampled) >= FEWEST else "Flat"


def _checked_kind(kind: object) -> str:
    # FAISS accepts strings that end the process, compare by another metric, cannot be read back, or take all rows at
    # once, so they are checked here.
    if not isinstance(kind, str) or len(kind) > _LONGEST_KIND or not _KIND.match(kind):
        raise _unknown(kind, "it is none of the kinds that are known to work")
    for before, number in _NUMBERS.findall(kind):
        least, most = _LIMITS[before]
        if not least <= int(number) <= most:
            raise _unknown(kind, f"{before}{number} is out of range, which is {before}{least} to {before}{most}")
    return kind


def _empty(kind: str, width: int, metric: str) -> Any:
    faiss = faiss_module(_NEED)
    wanted = _metric(faiss, metric)
    try:
        index = faiss.index_factory(width, kind, wanted)
    except (RuntimeError, MemoryError) as error:
        raise _unknown(kind, f"FAISS says: {_said(error)}") from error
    if any(part.metric_type != wanted for part in _parts(faiss, index)):
        raise _unknown(kind, f"it cannot compare by {metric!r}")
    return index


def _metric(faiss: ModuleType, name: str) -> Any:
    if name not in METRICS:
        raise InputError(f"expected a metric of {', '.join(METRICS)}, got {name!r}. Choose one of these.")
    return faiss.METRIC_INNER_PRODUCT if name == "dot" else faiss.METRIC_L2


def _train(index: Any, sample: Matrix, kind: str, *, gpu: bool) -> None:
    if index.is_trained:
        return
    with by_blas(_NEED) as faiss, device(gpu=gpu), _explained(kind, "train", len(sample)):
        parts = list(_parts(faiss, index))
        for part in parts:
            _set_up(part)
        with _clustering(faiss, [part for part in parts if gpu and isinstance(part, faiss.IndexIVF)]):
            index.train(sample)


def _set_up(part: Any) -> None:
    for one in (part, getattr(part, "pq", part)):
        if hasattr(one, "cp"):
            one.cp.min_points_per_centroid = 1  # else it prints a warning
    if hasattr(part, "do_polysemous_training"):
        part.do_polysemous_training = False  # takes many times as long, for a search that is not used here


@contextmanager
def _clustering(faiss: ModuleType, lists: list[Any]) -> Iterator[None]:
    """Let the GPU find the centres of these."""
    searched = [flat_on_gpu(faiss, part.d) for part in lists]  # held here: FAISS keeps only a pointer
    for part, one in zip(lists, searched, strict=True):
        part.clustering_index = one
    try:
        yield
    finally:
        for part in lists:
            part.clustering_index = None


def _add(index: Any, block: Matrix, kind: str, rows: int, progress: Progress | None) -> None:
    for start in range(0, len(block), _PIECE):
        with by_blas(_NEED), _explained(kind, "add", len(block)):
            index.add(block[start : start + _PIECE])
        if progress is not None:
            progress(index.ntotal, rows)


@contextmanager
def _explained(kind: str, work: str, rows: int) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        raise InputError(
            f"FAISS cannot {work} {rows} rows as {kind!r}: {_said(error)}. Take another kind, or give more rows to "
            f"train on."
        ) from error


def _parameters(faiss: ModuleType, index: Any, count: int, effort: float) -> Any:
    """The parameters of one search, in an object of its own, so that other searches do not change."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        inner = _parameters(faiss, index.index, count, effort)
        return inner and faiss.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexIVF):
        # A thirtieth of the lists, and enough of them to hold four times what is wanted.
        usual = max(8, index.nlist / 32, 4 * count * index.nlist / max(1, index.ntotal))
        return faiss.SearchParametersIVF(nprobe=int(min(max(1, usual * effort), index.nlist)))
    if isinstance(index, faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=int(min(max(1, max(64, count) * effort), index.ntotal)))
    return None


def _parts(faiss: ModuleType, index: Any) -> Iterator[Any]:
    """An index and those inside it through which rows go."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "storage"):  # behind a transform, and of a graph
        inner = getattr(index, name, None)
        if inner is not None:
            yield from _parts(faiss, inner)


def _read_head(view: memoryview) -> tuple[_Made, memoryview]:
    if len(view) < _HEAD.size:
        raise _damaged(f"has {len(view)} bytes, which is less than a head")
    magic, number, text, body = _HEAD.unpack_from(view)
    if magic != _MAGIC or number < 1:
        raise _damaged("does not start as one does")
    if number > FORMAT:
        raise FormatTooNew(
            f"the candidate index has format {number}; this softkv reads up to {FORMAT}. "
            "Install a newer one (pip install -U softkv), or build the index again."
        )
    if text > _LONGEST_JSON or len(view) != _HEAD.size + text + body:
        raise _damaged(f"has {len(view)} bytes, not the {_HEAD.size + text + body} that its head tells of")
    start = _HEAD.size + text
    return _made(bytes(view[_HEAD.size : start])), view[start:]


def _made(text: bytes) -> _Made:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"has a head that cannot be read: {error}") from error
    if not isinstance(fields, dict) or {name: type(one) for name, one in fields.items()} != _Made.__annotations__:
        raise _damaged(f"has a head without the fields {sorted(_Made.__annotations__)}")
    made = _Made(**fields)
    if made.metric not in METRICS or made.width < 1 or made.rows < 0:
        raise _damaged(f"has a head that makes no sense: {made}")
    return made


def _read_index(body: memoryview) -> Any:
    faiss, place = faiss_module(_NEED), 0

    def read(size: int) -> bytes:
        nonlocal place
        piece = bytes(body[place : place + size])
        place += len(piece)
        return piece

    try:
        with bounded(faiss, len(body)):
            index = faiss.read_index(faiss.PyCallbackIOReader(read))
    except (RuntimeError, MemoryError) as error:
        raise _damaged(f"cannot be read by this FAISS: {_said(error)}") from error
    if place != len(body):
        raise _damaged(f"has {len(body) - place} bytes after its end")
    return index


def _require_like(index: Any, made: _Made) -> None:
    faiss = faiss_module(_NEED)
    wanted, parts = _metric(faiss, made.metric), list(_parts(faiss, index))
    if any(isinstance(part, (faiss.IndexIDMap, faiss.IndexIDMap2)) for part in parts):
        raise _damaged("maps rows to other numbers")
    if any((part.ntotal, part.metric_type, part.is_trained) != (made.rows, wanted, True) for part in parts):
        raise _damaged("holds other rows, or another metric, than its head says")
    if index.d != made.width:
        raise _damaged(f"holds keys of width {index.d}, while its head says {made.width}")
    empty = _empty(_known_kind(made), made.width, made.metric)
    problem = difference(faiss, index, empty, made.rows)
    if problem:
        raise _damaged(f"is not built like a {made.kind}: {problem}")


def _known_kind(made: _Made) -> str:
    try:
        return _checked_kind(made.kind)
    except InputError as error:
        raise _damaged(f"is of no kind that is known: {error}") from error


def _bounded(what: str, given: Any, width: int, first: int = 0) -> Matrix:
    """Rows that FAISS can square: beyond that, its k-means ends the process."""
    matrix = checked(what, given, first=first)
    if matrix.shape[1] != width:
        raise ShapeError(f"the {what} have width {matrix.shape[1]}, not {width}. Pass rows of that width.")
    if matrix.size and max(float(matrix.max()), -float(matrix.min())) > _LARGEST:
        raise InputError(
            f"expected {what} with numbers up to {_LARGEST:g}, which can be squared in float32, got larger ones. Scale "
            f"them down, or look up without a candidate index."
        )
    return matrix


def _unknown(kind: object, why: str) -> InputError:
    shown = repr(kind)
    return InputError(
        f"{shown if len(shown) <= 80 else shown[:80] + '...'} cannot be a candidate index: {why}. Take 'hnsw', 'ivf', "
        f"'pq', 'rabitq', or a factory string of FAISS such as 'HNSW32', 'PQ48', 'IVF1024,PQ48x4fs', 'IVF1024,RaBitQ'."
    )


def _damaged(what: str) -> IndexDamaged:
    return IndexDamaged(f"the candidate index {what}. Nothing is lost: build the index again.")


def _said(error: Exception) -> str:
    """What FAISS says, without the place in its sources."""
    text = " ".join(str(error).split())
    return text.rsplit("Error: ", 1)[-1][:200] or type(error).__name__
