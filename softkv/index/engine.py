"""The one place that imports FAISS: whether it is installed, where it runs, k-means, the nearest centre of each row.

`backend` is "cpu", "gpu" or "auto"; without FAISS, "auto" is the CPU, and `assigned` needs no FAISS there.

FAISS multiplies matrices in float32, where ‖x − c‖² cancels far from the origin and overflows far from 1: its k-means
ends the process over an overflow. So vectors are first moved into a frame in which neither happens.

Does not know lists or files, and keeps nothing on a GPU between calls. Does not scan: FAISS finds only the k best rows,
while an answer also needs the mass of all others (asking/scan.py). Other indexes are in candidates.py.

Shapes: n vectors or centres, d width.
"""

import functools
import importlib.metadata
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from softkv.errors import InputError, KindError, MissingExtra, NotFinite, ShapeError, SoftKVError
from softkv.maths.inputs import whole_number
from softkv.ndarrays import Matrix, Rows
from softkv.progress import Progress

BACKENDS = ("cpu", "gpu", "auto")
_SCORES = 1 << 22  # scores that are held at a time, while rows are assigned
_FAR = 100.0  # from here on, mean²/variance, squared distances lose two digits and more to cancellation
_SAMPLED = 1024  # rows that tell where vectors lie
_BUILDS = re.compile(r"faiss-(cpu|gpu)(-.+)?\Z")

THRESHOLD = "distance_compute_blas_threshold"  # the setting by which FAISS multiplies by BLAS
_turn = threading.Lock()  # guards it, for moments
_inside, _before = 0, 0  # how many threads want BLAS, and the setting before the first
_device_turn = threading.Lock()  # the memory pool of a GPU is not safe for two threads


def faiss_module(what: str, *, extra: str = "cpu") -> ModuleType:
    """FAISS, or an error that says what needs it and how to install it."""
    builds = _builds()
    if len(builds) > 1:
        raise SoftKVError(
            f"expected one build of FAISS, got {' and '.join(builds)}: all are imported as `faiss`, and overwrite each "
            f"other's files. Remove them all and install one: pip uninstall -y {' '.join(builds)} && "
            f"pip install 'softkv[cpu]' (or 'softkv[gpu]')"
        )
    try:
        import faiss
    except (ImportError, OSError, RuntimeError) as error:  # a build for GPUs raises any of them if it misses CUDA
        if isinstance(error, ModuleNotFoundError) and error.name == "faiss":
            raise MissingExtra(what, package=f"faiss-{extra}", extra=extra) from error
        raise SoftKVError(
            f"{what} needs FAISS, which is installed but cannot be loaded: {error}. Install another build of it: "
            f"pip uninstall -y {' '.join(builds) or 'faiss'} && pip install 'softkv[cpu]'"
        ) from error
    return faiss


def chosen_backend(backend: str) -> str:
    """The device to use: "cpu" or "gpu".

    >>> chosen_backend("cpu")
    'cpu'
    """
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise InputError(f"expected a backend of {', '.join(BACKENDS)}, got {backend!r}. Choose one of these.")
    if backend == "cpu":
        return "cpu"
    try:
        what, extra = ("backend='gpu'", "gpu") if backend == "gpu" else ("building an index", "cpu")
        found = _gpus(faiss_module(what, extra=extra))
    except MissingExtra:
        if backend == "gpu":
            raise
        return "cpu"
    if backend == "gpu" and not found:
        raise InputError(
            "backend='gpu' was asked for, but FAISS sees no GPU. Take backend='auto' or 'cpu'; or, on a machine with a "
            "GPU: pip uninstall -y faiss-cpu && pip install 'softkv[gpu]'"
        )
    return "gpu" if found else "cpu"


@contextmanager
def by_blas(what: str) -> Iterator[ModuleType]:
    """FAISS, set to multiply matrices by BLAS within the block; the setting of the process is restored afterwards."""
    # Without this it computes distances one by one below 128,000 queries, up to fifteen times slower.
    faiss = faiss_module(what)
    _switched(faiss.cvar, 1)
    try:
        yield faiss
    finally:
        _switched(faiss.cvar, -1)


def clusters(
    vectors: Matrix, count: int, *, seed: int, iterations: int, backend: str, progress: Progress | None = None
) -> Matrix:
    """The centres of k-means, (count, d), the same for the same seed; fewer when there are fewer vectors.

    `progress` is told of each iteration, and may raise to end it. It ends early when nothing moves any more.
    """
    vectors = checked("vectors", vectors)
    iterations = whole_number("iterations", iterations, least=1)
    count = min(whole_number("count", count, least=1), len(vectors))
    if count == 0:
        return np.empty((0, vectors.shape[1]), np.float32)
    frame, gpu = _Frame.of(vectors), chosen_backend(backend) == "gpu"
    vectors = frame.into(vectors)
    centres: Matrix | None = None
    for done in range(1, iterations + 1):
        moved = _one_iteration(vectors, count, centres, seed=seed, gpu=gpu)
        settled = centres is not None and np.array_equal(moved, centres)
        centres = moved
        if progress is not None:
            progress(iterations if settled else done, iterations)
        if settled:
            break
    assert centres is not None
    return frame.back(centres)


def assigned(vectors: Matrix, centres: Matrix, *, backend: str) -> Rows:
    """The number of the nearest centre of each vector, (n,)."""
    vectors, centres = checked("vectors", vectors, numbers=False), checked("centres", centres)
    if vectors.shape[1] != centres.shape[1]:
        raise ShapeError(
            f"the vectors have width {vectors.shape[1]}, but the centres have width {centres.shape[1]}. "
            f"Pass vectors of that width."
        )
    if not len(centres):
        raise ShapeError("expected at least one centre to assign vectors to, got none. Cluster some vectors first.")
    frame, nearest = _Frame.of(centres), np.empty(len(vectors), np.int64)
    search = _by_gpu(frame.into(centres)) if chosen_backend(backend) == "gpu" else _by_matmul(frame.into(centres))
    step = max(1, min(_SCORES // len(centres), 1 << 14))
    for first in range(0, len(vectors), step):
        block = checked("vectors", vectors[first : first + step], first=first)
        nearest[first : first + step] = search(frame.into(block))
    return nearest


def flat_on_gpu(faiss: ModuleType, width: int) -> Any:
    """An empty exact L2 index on the first GPU; only for the holder of `device`."""
    return faiss.index_cpu_to_gpu(_resources(faiss), 0, faiss.IndexFlatL2(width))


def device(*, gpu: bool) -> AbstractContextManager[object]:
    """Exclusive use of the GPU; does not wait if none is used."""
    return _device_turn if gpu else nullcontext()


def checked(what: str, given: Any, *, numbers: bool = True, first: int = 0) -> Matrix:
    """The rows as FAISS takes them: float32, in one piece, and finite if `numbers` are looked at."""
    if getattr(given, "ndim", None) != 2 or not given.shape[1]:
        raise ShapeError(f"expected {what} as an array (rows, width), got {_shape(given)}. Pass a matrix.")
    if given.dtype != np.float32:
        raise KindError(f"expected {what} in float32, got {given.dtype}. Convert them: astype(np.float32).")
    matrix: Matrix = np.ascontiguousarray(given)
    if numbers and not np.isfinite(_largest(matrix)):
        row = int(np.argmin(np.isfinite(matrix).all(axis=1)))
        raise NotFinite(f"{what}[{first + row}] holds NaN or infinity; expected finite numbers. Remove that row.")
    return matrix


def _switched(settings: Any, more: int) -> None:
    """Count a thread that wants BLAS, or one that is done: the first turns it on, and the last restores the setting."""
    global _inside, _before
    # A lock held all the while would be simpler, but lookups would wait for each other, and for a whole k-means.
    with _turn:
        there = hasattr(settings, THRESHOLD)
        if there and not _inside:
            _before = getattr(settings, THRESHOLD)
            setattr(settings, THRESHOLD, 1)
        _inside += more
        if there and not _inside:
            setattr(settings, THRESHOLD, _before)


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """Where vectors are measured from, and in units of which power of two."""

    origin: Matrix | None  # (d,), in the new unit
    exponent: int

    @classmethod
    def of(cls, vectors: Matrix) -> "_Frame":
        """The frame in which no square of these overflows."""
        some, largest = vectors[:: max(1, len(vectors) // _SAMPLED)], float(_largest(vectors))
        exponent = int(np.frexp(largest)[1]) if 0 < largest < np.inf else 0
        exponent = exponent if abs(exponent) > 32 else 0  # 2^32 squared, times any width, is well inside float32
        if not len(some):
            return cls(None, exponent)
        sample = np.ldexp(some.astype(np.float64), -exponent)
        mean = sample.mean(axis=0)
        spread = float(((sample - mean) ** 2).sum(axis=1).mean())
        return cls(mean.astype(np.float32) if float(mean @ mean) > _FAR * spread else None, exponent)

    def into(self, vectors: Matrix) -> Matrix:
        """Vectors in this frame; the same array, not a copy, if nothing changes."""
        with np.errstate(over="ignore", under="ignore"):
            seen = np.ldexp(vectors, -self.exponent) if self.exponent else vectors
            return seen if self.origin is None else seen - self.origin

    def back(self, vectors: Matrix) -> Matrix:
        """Vectors back in the original frame."""
        with np.errstate(under="ignore"):
            moved = vectors if self.origin is None else vectors + self.origin
            return np.ldexp(moved, self.exponent) if self.exponent else moved


def _one_iteration(vectors: Matrix, count: int, centres: Matrix | None, *, seed: int, gpu: bool) -> Matrix:
    # One at a time gives the same centres as all at once: what is random comes from the seed, also for empty clusters.
    with by_blas("clustering") as faiss, device(gpu=gpu):
        settings = faiss.ClusteringParameters()
        settings.niter, settings.seed = 1, seed & 0x7FFFFFFF
        settings.min_points_per_centroid = 1
        settings.max_points_per_centroid = min(len(vectors), 0x7FFFFFFF)
        clustering = faiss.Clustering(vectors.shape[1], count, settings)
        if centres is not None:
            faiss.copy_array_to_vector(centres.ravel(), clustering.centroids)
        index = flat_on_gpu(faiss, vectors.shape[1]) if gpu else faiss.IndexFlatL2(vectors.shape[1])
        clustering.train(vectors, index)
        moved: Matrix = faiss.vector_to_array(clustering.centroids).reshape(count, vectors.shape[1])
    return moved


def _by_matmul(centres: Matrix) -> Callable[[Matrix], Rows]:
    # As fast as FAISS with BLAS, and without its global switch: argmin ‖x − c‖² = argmax x·c − ½‖c‖².
    turned, halves = centres.T, 0.5 * np.einsum("nd,nd->n", centres, centres)  # (d, n), (n,)

    def search(block: Matrix) -> Rows:
        with np.errstate(over="ignore", invalid="ignore"):
            scores = block @ turned
            scores -= halves
            nearest: Rows = scores.argmax(axis=1)
            return nearest

    return search


def _by_gpu(centres: Matrix) -> Callable[[Matrix], Rows]:
    faiss = faiss_module("assigning rows", extra="gpu")
    with device(gpu=True):
        index = flat_on_gpu(faiss, centres.shape[1])
        index.add(centres)

    def search(block: Matrix) -> Rows:
        with device(gpu=True):
            found: Rows = index.search(block, 1)[1][:, 0]
        return np.maximum(found, 0)  # -1 where a distance overflowed

    return search


@functools.cache
def _builds() -> tuple[str, ...]:
    """The installed distributions that provide `faiss`."""
    names = {one.metadata["Name"] or "" for one in importlib.metadata.distributions() if one.metadata}
    plain = {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    return tuple(sorted(name for name in plain if _BUILDS.match(name)))


def _gpus(faiss: ModuleType) -> int:
    if not (hasattr(faiss, "get_num_gpus") and hasattr(faiss, "StandardGpuResources")):
        return 0
    try:
        return int(faiss.get_num_gpus())
    except RuntimeError:  # a driver that is too old, or forbidden
        return 0


@functools.cache
def _resources(faiss: ModuleType) -> Any:
    return faiss.StandardGpuResources()


def _largest(vectors: Matrix) -> np.float32:
    """The largest absolute number; NaN if there is one, 0 of nothing."""
    return np.float32(max(vectors.max(), -vectors.min())) if vectors.size else np.float32(0)


def _shape(given: Any) -> str:
    return f"shape {given.shape}" if hasattr(given, "shape") else type(given).__name__
