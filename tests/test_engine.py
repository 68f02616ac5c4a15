"""FAISS behind one door: which build, which device, and work that is exact up to rounding."""

import importlib.metadata
import sys
import threading
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from softkv.errors import InputError, KindError, MissingExtra, NotFinite, ShapeError, SoftKVError
from softkv.index import engine
from softkv.index.engine import assigned, by_blas, chosen_backend, clusters, faiss_module
from softkv.ndarrays import Floats

faiss = pytest.importorskip("faiss")
THRESHOLD = engine.THRESHOLD
Matrix = npt.NDArray[np.float32]


def gpus() -> int:
    """How many GPUs this FAISS sees."""
    return engine._gpus(faiss)


needs_gpu = pytest.mark.skipif(gpus() == 0, reason="FAISS sees no GPU here")
without_gpu = pytest.mark.skipif(gpus() > 0, reason="there is a GPU")
backends = pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=needs_gpu)])


def groups(rows: int = 900, width: int = 12, count: int = 9, seed: int = 0) -> Matrix:
    """Rows in groups that lie apart, one after the other."""
    random = np.random.default_rng(seed)
    middles = 6 * random.standard_normal((count, width))
    return (np.repeat(middles, rows // count, axis=0) + random.standard_normal((rows, width))).astype(np.float32)


def squares(one: Matrix, other: Matrix) -> Floats:
    """Squared distances in float64, pair by pair."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    return np.array([((row - other) ** 2).sum(axis=1) for row in one])


def threshold() -> int:
    """The global switch of FAISS."""
    return int(getattr(faiss.cvar, THRESHOLD))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make it look as if these distributions were installed."""

    def install(*names: str) -> None:
        found = [SimpleNamespace(metadata=Message()) for _ in names]
        for one, name in zip(found, names, strict=True):
            one.metadata["Name"] = name
        monkeypatch.setattr(importlib.metadata, "distributions", lambda: iter(found))
        engine._builds.cache_clear()

    yield install
    engine._builds.cache_clear()


def test_without_faiss_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what needs it, and ends with the pip line."""
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"^clustering needs faiss-cpu, .* pip install 'softkv\[cpu\]'$"):
        clusters(groups(), 3, seed=0, iterations=1, backend="cpu")
    with pytest.raises(MissingExtra, match=r"softkv\[gpu\]"):
        chosen_backend("gpu")


def test_without_faiss_rows_are_still_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU needs NumPy alone, and "auto" is the CPU."""
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert chosen_backend("auto") == "cpu"
    assert assigned(groups(), groups()[::100], backend="auto").max() == 8


@pytest.mark.parametrize(
    "names", [("faiss-cpu", "faiss-gpu"), ("faiss-cpu", "faiss-gpu-cuvs"), ("FAISS_GPU_cu12", "faiss.cpu")]
)
def test_two_builds_are_refused(builds: Any, names: tuple[str, str]) -> None:
    """They overwrite each other's files, so both are named in the line that removes them."""
    builds("numpy", *names)
    with pytest.raises(SoftKVError, match=r"pip uninstall -y faiss-cpu faiss-gpu\S* && pip install") as caught:
        faiss_module("clustering")
    assert not isinstance(caught.value, MissingExtra)  # nobody takes it for a FAISS that is simply not there
    with pytest.raises(SoftKVError, match="one build"):
        chosen_backend("auto")


@pytest.mark.parametrize("names", [(), ("faiss-cpu",), ("faiss-gpu-cuvs", "faissist"), ("faiss-cpu", "faiss_cpu")])
def test_one_build_is_welcome(builds: Any, names: tuple[str, ...]) -> None:
    """It may be called anything, be listed twice, or be no distribution at all."""
    builds(*names)
    assert faiss_module("clustering") is faiss


@pytest.mark.parametrize("error", ["ImportError", "OSError", "RuntimeError"])
def test_a_faiss_that_cannot_be_loaded_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str
) -> None:
    """Installing it again would not help: the reason is told, whatever kind of error it comes as."""
    (tmp_path / "faiss.py").write_text(f"raise {error}('libcublas.so.12: cannot open shared object file')")
    monkeypatch.delitem(sys.modules, "faiss")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SoftKVError, match=r"installed but cannot be loaded: libcublas\.so\.12") as caught:
        faiss_module("clustering")
    assert not isinstance(caught.value, MissingExtra)


@pytest.mark.parametrize("backend", ["tpu", "", None, 3])
def test_an_unknown_backend_is_refused(backend: Any) -> None:
    """The three that there are are named."""
    with pytest.raises(InputError, match="cpu, gpu, auto"):
        chosen_backend(backend)


@without_gpu
def test_a_gpu_that_is_not_there_is_refused() -> None:
    """Nobody who asked for a GPU gets a CPU; who asked for neither does."""
    with pytest.raises(InputError, match=r"sees no GPU.*softkv\[gpu\]"):
        chosen_backend("gpu")
    assert chosen_backend("auto") == "cpu"


def test_builds_without_the_functions_of_gpus_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every build for CPUs has `get_num_gpus`, and a broken driver raises in it."""
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    assert chosen_backend("auto") == "gpu"
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: faiss.index_factory(4, "nonsense"))
    assert chosen_backend("auto") == "cpu"
    monkeypatch.delattr(faiss, "get_num_gpus")
    assert chosen_backend("auto") == "cpu"


def test_blas_is_on_inside_and_as_before_outside() -> None:
    """BLAS is on inside and as before outside, also after an exception, and only when the last one leaves."""
    before = threshold()
    with by_blas("this"):
        with pytest.raises(ZeroDivisionError), by_blas("that"):
            _ = 1 / (threshold() - 1)
        assert threshold() == 1
    with pytest.raises(ZeroDivisionError), by_blas("this"):
        _ = 1 / (threshold() - 1)
    assert threshold() == before != 1


def test_blas_stays_on_for_those_who_are_still_inside() -> None:
    """Threads are not made to wait for each other, and the last one turns it off."""
    before, entered, leave = threshold(), threading.Event(), threading.Event()

    def other() -> None:
        with by_blas("that"):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with by_blas("this"):
        thread.start()
        assert entered.wait(10)
    assert threshold() == 1
    leave.set()
    thread.join()
    assert threshold() == before


def test_failures_leave_the_switch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A k-means that raises, and one that is interrupted."""
    before = threshold()
    with monkeypatch.context() as patch:
        patch.setattr(faiss, "Clustering", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            clusters(groups(), 3, seed=0, iterations=5, backend="cpu")
    with pytest.raises(KeyboardInterrupt):
        clusters(groups(), 3, seed=0, iterations=5, backend="cpu", progress=interrupt)
    assert threshold() == before


def interrupt(done: int, of: int) -> None:
    """The user has enough."""
    raise KeyboardInterrupt


@backends
def test_centres_are_the_means_of_their_rows(backend: str) -> None:
    """When nothing moves any more, each centre is the mean of the rows that are nearest to it."""
    rows = groups()
    centres = clusters(rows, 20, seed=3, iterations=100, backend=backend)
    nearest = squares(rows, centres).argmin(axis=1)
    means = np.array([rows[nearest == one].mean(axis=0) for one in range(20)])
    np.testing.assert_allclose(centres, means, atol=1e-4)


def test_one_iteration_at_a_time_is_what_faiss_does_at_once() -> None:
    """The centres are those of faiss.Kmeans, also when clusters run empty."""
    rows = np.repeat(groups(rows=90), 2, axis=0)
    oracle = faiss.Kmeans(12, 60, niter=6, seed=5, min_points_per_centroid=1, max_points_per_centroid=len(rows))
    with by_blas("the oracle"):  # ties are broken by rounding
        oracle.train(rows)
    assert sum(one["nsplit"] for one in oracle.iteration_stats) > 0
    found = clusters(rows, 60, seed=5, iterations=6, backend="cpu")
    np.testing.assert_allclose(found, oracle.centroids, atol=1e-5)


@backends
def test_the_seed_decides(backend: str) -> None:
    """One seed gives the same centres, to the last bit; another gives others."""
    first, again, other = (clusters(groups(), 30, seed=s, iterations=3, backend=backend) for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_progress_counts_up_and_stops_early() -> None:
    """Every iteration is told, until nothing moves; then all are done."""
    told: list[tuple[int, int]] = []
    clusters(groups(), 9, seed=0, iterations=50, backend="cpu", progress=lambda *one: told.append(one))
    assert told[:2] == [(1, 50), (2, 50)]
    assert told[-1] == (50, 50)
    assert len(told) < 50


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_there_are_no_more_centres_than_vectors(rows: int) -> None:
    """With fewer vectors than centres, each is its own."""
    given = groups()[:rows]
    found = clusters(given, 8, seed=0, iterations=3, backend="cpu")
    assert sorted(map(tuple, found)) == sorted(map(tuple, given))


def test_few_or_equal_vectors_are_clustered_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    """FAISS would warn of too few points; copies of one vector still give finite centres next to it."""
    copies = np.full((300, 4), 7.0, np.float32)
    found = clusters(copies, 100, seed=0, iterations=4, backend="cpu")
    np.testing.assert_allclose(found, np.full((100, 4), 7.0), rtol=0.05)
    clusters(groups()[:40], 30, seed=0, iterations=2, backend="cpu")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("power", [-90, -40, 40, 90, 120])
def test_the_unit_does_not_matter(power: int) -> None:
    """Numbers whose squares overflow or vanish in float32 are clustered like others (FAISS alone would abort)."""
    rows = groups(count=6)
    scaled = np.ldexp(rows, power)
    plain = clusters(rows, 6, seed=0, iterations=5, backend="cpu")
    found = clusters(scaled, 6, seed=0, iterations=5, backend="cpu")
    np.testing.assert_allclose(np.ldexp(found, -power), plain, rtol=1e-4)
    assert np.array_equal(assigned(scaled, found, backend="cpu"), assigned(rows, plain, backend="cpu"))


@backends
def test_the_origin_does_not_matter(backend: str) -> None:
    """Far from the origin float32 squares cancel: times in seconds are told apart all the same."""
    times = (1.7e9 + 86400.0 * np.repeat(np.arange(8), 50) + np.tile(128.0 * np.arange(50), 8))[:, None]
    times = times.astype(np.float32)
    centres = times[25::50]
    assert np.array_equal(assigned(times, centres, backend=backend), np.repeat(np.arange(8), 50))
    found = clusters(times, 8, seed=2, iterations=30, backend=backend)
    assert float(squares(times, found).min(axis=1).max()) < 86400.0**2


@backends
def test_rows_go_to_their_nearest_centre(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """They do in blocks of any size, as float64 tells; one that is as near counts as well."""
    rows, centres = groups(), groups(seed=1)[::13]
    exact = squares(rows, centres)
    for scores in (1, 5000, 1 << 22):
        monkeypatch.setattr(engine, "_SCORES", scores)
        found = assigned(rows, centres, backend=backend)
        assert found.dtype == np.int64
        np.testing.assert_allclose(exact[np.arange(len(rows)), found], exact.min(axis=1), rtol=1e-4)


def test_no_rows_are_assigned_to_nothing() -> None:
    """No vectors give no numbers; no centres are a mistake."""
    assert assigned(groups()[:0], groups(), backend="cpu").shape == (0,)
    with pytest.raises(ShapeError, match="at least one centre"):
        assigned(groups(), groups()[:0], backend="cpu")


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (NotFinite, np.array([[1.0, np.nan]], np.float32)),
        (NotFinite, np.array([[1.0, -np.inf]], np.float32)),
        (KindError, np.ones((3, 2))),
        (ShapeError, np.ones(3, np.float32)),
        (ShapeError, np.ones((3, 0), np.float32)),
        (ShapeError, [[1.0]]),
    ],
)
def test_what_faiss_would_choke_on_is_refused(error: type[Exception], given: Any) -> None:
    """It is refused before FAISS sees it, with what was expected."""
    good = np.ones((4, 2), np.float32)
    with pytest.raises(error, match=r"expected|holds"):
        clusters(given, 2, seed=0, iterations=1, backend="cpu")
    with pytest.raises(error, match=r"expected|holds"):
        assigned(given, good, backend="cpu")


def test_the_row_that_is_not_finite_is_named() -> None:
    """Its number counts from the first row, not from that of its block."""
    rows = np.ones((40000, 2), np.float32)
    rows[30000, 1] = np.nan
    with pytest.raises(NotFinite, match=r"vectors\[30000\]"):
        assigned(rows, np.ones((1, 2), np.float32), backend="cpu")


def test_mistakes_are_named() -> None:
    """Widths and counts may be wrong."""
    rows = groups()
    with pytest.raises(ShapeError, match="width 12, but the centres have width 5"):
        assigned(rows, np.ascontiguousarray(rows[:, :5]), backend="cpu")
    for count in (0, -1, True, 2.0):
        with pytest.raises(KindError, match="at least 1"):
            clusters(rows, count, seed=0, iterations=1, backend="cpu")  # type: ignore[arg-type]
