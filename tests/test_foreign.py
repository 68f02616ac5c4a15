"""Items out of what other programs keep: collections of llm and Chroma, and indexes of FAISS."""

import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

import softkv
from softkv.errors import BadRecord, InputError, MissingExtra, SoftKVError
from softkv.files.indexes import RankedOtherwise, VectorsNormalised, VectorsRounded

from .commands import ran

MADE = Path(__file__).parent / "foreign"
VECTORS = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """A file that llm made, of three collections."""
    return Path(shutil.copy(MADE / "llm.db", tmp_path))


@pytest.fixture
def db(tmp_path: Path) -> Any:
    """An empty store."""
    with softkv.open(tmp_path / "s") as found:
        yield found


def test_a_collection_of_llm_is_added_with_its_vectors(db: softkv.SoftKV, films: Path) -> None:
    """Ids are keys, contents values, metadata payloads; vectors compare by cosine, as llm does."""
    before = films.read_bytes()
    assert db.load(films, format="llm", collection="films").count == 4
    assert dict(db.items())["0"] == "a boy seeks treasure"
    first, last = db.item("0"), db.item("4")
    assert first.vector.tolist() == [2.0, 4.0, 0.0, 1.0, 1.0, 0.0, 1.0]
    assert (first.payload, last.payload) == ({"stars": 4.0, "label": "tale"}, None)
    assert db.info().compatibility == "cosine"
    assert films.read_bytes() == before
    assert sorted(os.listdir(films.parent)) == [films.name, "s"]


def test_fields_of_the_metadata_are_columns(db: softkv.SoftKV, films: Path) -> None:
    """One may be the value; an item that lacks it is refused by its row, or passed over."""
    options: dict[str, Any] = {"format": "llm", "collection": "films", "value": "stars", "payload": "content"}
    with pytest.raises(BadRecord, match=r"llm\.db: row 4: it has no 'stars'"):
        db.load(films, **options)
    with pytest.warns(UserWarning, match="1 records were passed over"):
        assert db.load(films, **options, skip_bad=True).count == 3
    assert dict(db.items()) == {"0": 4.0, "1": 3.5, "2": 5.0}
    assert db.item("1").payload == {"content": "two boats"}


def test_ids_are_keys_also_where_they_are_the_values(db: softkv.SoftKV, films: Path) -> None:
    """A collection that comes again is refused, and not added once more."""
    assert db.load(films, format="llm", collection="bare", value="id").count == 2
    assert dict(db.items()) == {"x": "x", "y": "y"}
    with pytest.raises(InputError, match="'x' is there already"):
        db.load(films, format="llm", collection="bare", value="id")


def test_contents_can_be_embedded_anew(db: softkv.SoftKV, films: Path) -> None:
    """They become the text, embedded by the model of the store, in the place of llm's vectors."""
    db.load(films, format="llm", collection="films", text="content")
    assert db.info().embedder == "static"
    assert db.item("1").text == "two boats"
    assert db.info().compatibility == "cosine"


def test_what_is_not_said_of_a_collection_is_asked_for(db: softkv.SoftKV, films: Path) -> None:
    """It is asked which of several it is, and what to blend without texts; an empty one has nothing to add."""
    with pytest.raises(BadRecord, match=r"which collection.*'films', 'bare', 'empty'"):
        db.load(films, format="llm")
    with pytest.raises(BadRecord, match="no collection 'plays'; which"):
        db.load(films, format="llm", collection="plays")
    with pytest.raises(BadRecord, match="row 1: the content of 'x' was not kept; give value="):
        db.load(films, format="llm", collection="bare")
    assert len(db) == 0
    assert db.load(films, format="llm", collection="empty").count == 0
    assert db.load(films, format="llm", collection="bare", value="id").count == 2


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (b"no database", "is no SQLite file"),
        ("UPDATE embeddings SET embedding = x'0102'", "row 1: |the item '0' is damaged"),
        ("UPDATE embeddings SET embedding = x'010203'", "the item '0' is damaged: .* four for each number"),
        ("UPDATE embeddings SET embedding = NULL", "its embedding as bytes, four for each number, got None"),
        ("UPDATE embeddings SET metadata = '{'", "the item '0' is damaged: not JSON"),
        ("UPDATE embeddings SET metadata = x'7b7d'", "its metadata as a JSON text, got b'{}'"),
        ("UPDATE embeddings SET metadata = '[[\"k\", 1]]'", "its metadata as a JSON object, got a list"),
        ("UPDATE embeddings SET metadata = '3'", "its metadata as a JSON object, got a number"),
        ('UPDATE embeddings SET metadata = \'{"k": 1, "k": 2}\'', "the name 'k' stands twice in one object"),
        ("UPDATE embeddings SET metadata = '{\"k\": NaN}'", "NaN is not JSON"),
        ("UPDATE embeddings SET embedding = x'0000807f0000807f'", "the vector holds NaN, infinity"),
        ("UPDATE embeddings SET embedding = x''", "the vector has no numbers"),
        ("DROP TABLE embeddings", "is no SQLite file of llm's embeddings"),
    ],
)
def test_a_file_of_llm_that_is_damaged_is_refused(db: softkv.SoftKV, films: Path, damage: Any, said: str) -> None:
    """The error says what is wrong with it, before anything is added."""
    if isinstance(damage, bytes):
        films.write_bytes(damage)
    else:
        with sqlite3.connect(films) as file:
            file.execute(damage)
        file.close()
    with pytest.raises(BadRecord, match=said):
        db.load(films, format="llm", collection="films")
    assert len(db) == 0


def test_the_command_takes_what_other_programs_keep(tmp_path: Path, films: Path) -> None:
    """--from names the program; the command asks for what it needs, and makes nothing of what cannot be read."""
    store = tmp_path / "t"
    asked = ran("add", "--from", "llm", films, "-d", store)
    assert (asked.code, store.exists()) == (1, False)
    assert "Give --collection; there are 'films', 'bare', 'empty'" in asked.err
    assert "give --value, such as id" in ran("add", "--from", "llm", films, "--collection", "bare", "-d", store).err
    done = ran("add", "--from", "llm", films, "--collection", "films", "-d", store)
    assert (done.code, done.err.splitlines()[-1]) == (0, "added 4")
    assert ran("add", "--from", "llm", films, "-i", films, "-d", store).code == 2
    assert "expected --values for 'faiss'" in ran("add", "--from", "faiss", films, "-d", store).err
    index = ("add", "--from", "faiss", index_of(tmp_path, "Flat"), "--values", values_of(tmp_path))
    assert ran(*index, "-d", tmp_path / "u").err.splitlines()[-1] == "added 200"


class Planted:
    """What makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.pkl", "a.index", "a.jsonl", "a.parquet"])
def test_no_pickle_is_ever_opened(db: softkv.SoftKV, tmp_path: Path, name: str) -> None:
    """It may be called anything, be the whole of a file or lie in an array; what it would do is not done."""
    planted: Any = np.array([Planted(tmp_path / "opened")], object)
    if name == "a.npz":
        np.savez(tmp_path / name, value=planted, vectors=planted, key=planted)
    elif name == "a.npy":
        np.save(tmp_path / name, planted, allow_pickle=True)
    else:
        (tmp_path / name).write_bytes(pickle.dumps(planted))
    for options in ({}, {"format": "faiss", "values": values_of(tmp_path)}, {"format": "llm"}, {"format": "chroma"}):
        with pytest.raises(SoftKVError):
            db.load(tmp_path / name, **options)
    assert not (tmp_path / "opened").exists()
    assert len(db) == 0


def index_of(folder: Path, made: str, ids: Any = None, metric: int = faiss.METRIC_L2) -> str:
    """The file of an index with the 200 vectors."""
    index = faiss.index_factory(8, made, metric)
    index.train(np.tile(VECTORS, (2, 1)))  # OPQ wants 256 or more
    if ids is None:
        index.add(VECTORS)
    else:
        index.add_with_ids(VECTORS, np.asarray(ids))
    faiss.write_index(index, str(folder / "an.index"))
    return str(folder / "an.index")


def values_of(folder: Path, keys: Any = range(200)) -> str:
    """The file of values, whose i-th is i."""
    path = folder / "values.csv"
    path.write_text("key,value\n" + "".join(f"{key},{row}\n" for row, key in enumerate(keys)))
    return str(path)


@pytest.mark.parametrize("made", ["Flat", "IVF4,Flat", "HNSW8", "IDMap,Flat", "IDMap2,IVF4,Flat"])
@pytest.mark.parametrize(("metric", "compared"), [(faiss.METRIC_L2, "gaussian"), (faiss.METRIC_INNER_PRODUCT, "dot")])
def test_vectors_of_an_index_go_with_the_rows_of_a_file(
    db: softkv.SoftKV, tmp_path: Path, made: str, metric: int, compared: str
) -> None:
    """Bit for bit, in whatever order the index keeps them; they compare as they did there."""
    ids = np.random.default_rng(1).permutation(200) if "IDMap" in made else None
    path = index_of(tmp_path, made, ids, metric)
    assert db.load(path, format="faiss", values=values_of(tmp_path)).count == 200
    expected = VECTORS if ids is None else VECTORS[np.argsort(ids)]
    assert np.array_equal(np.stack([item.vector for item in db.select()]), expected)
    assert list(db.values()) == list(range(200))
    assert db.info().compatibility == compared


def test_an_index_that_compares_as_no_store_does_is_refused(db: softkv.SoftKV, tmp_path: Path) -> None:
    """L1 is that of `laplace`; by a metric that no store has, items would be found in another order."""
    with pytest.raises(BadRecord, match="compared by METRIC_Linf"):
        db.load(index_of(tmp_path, "Flat", None, faiss.METRIC_Linf), format="faiss", values=values_of(tmp_path))
    assert len(db) == 0
    db.load(index_of(tmp_path, "Flat", None, faiss.METRIC_L1), format="faiss", values=values_of(tmp_path))
    assert db.info().compatibility == "laplace"
    nearest = faiss.read_index(str(tmp_path / "an.index")).search(VECTORS[:20] + 0.1, 1)[1][:, 0]
    assert [db.nearest(query).contributors[0].key for query in VECTORS[:20] + 0.1] == list(map(str, nearest.tolist()))


@pytest.mark.parametrize("made", ["IVF4,Flat", "IDMap,Flat", "IDMap,HNSW8"])
def test_ids_that_are_no_rows_are_named_by_keys(db: softkv.SoftKV, tmp_path: Path, made: str) -> None:
    """The file may have any order; a key that is no id is refused before anything is added."""
    path, shuffled = index_of(tmp_path, made, np.arange(200) * 7 + 3), np.random.default_rng(2).permutation(200)
    with pytest.raises(BadRecord, match="there is no vector '0'"):
        db.load(path, format="faiss", values=values_of(tmp_path))
    assert len(db) == 0
    db.load(path, format="faiss", values=values_of(tmp_path, shuffled * 7 + 3))
    assert np.array_equal(db.item("10").vector, VECTORS[1])
    assert np.array_equal(np.stack([item.vector for item in db.select()]), VECTORS[shuffled])


@pytest.mark.parametrize("made", ["PQ4x4", "SQ8", "IVF4,SQ8", "PCA4,Flat"])
@pytest.mark.filterwarnings("ignore:column:UserWarning")
def test_vectors_that_come_back_rounded_are_said_to(db: softkv.SoftKV, tmp_path: Path, made: str) -> None:
    """Compressed ones are near those that went in, and a warning tells so."""
    with pytest.warns(VectorsRounded, match="come back rounded"):
        db.load(index_of(tmp_path, made), format="faiss", values=values_of(tmp_path))
    found = np.stack([item.vector for item in db.select()])
    assert 0 < np.abs(found - VECTORS).mean() < np.abs(VECTORS).mean()


@pytest.mark.parametrize("made", ["PCA8,Flat", "PCAR8,Flat", "OPQ2_8,Flat", "RR8,Flat", "RR12,Flat", "Pad12,Flat"])
@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L1])
@pytest.mark.filterwarnings("ignore::softkv.files.indexes.VectorsRounded", "ignore:column:UserWarning")
def test_transforms_that_keep_distances_are_undone(db: softkv.SoftKV, tmp_path: Path, made: str, metric: int) -> None:
    """Items are found as the index finds them; where a shift or a rotation changes that, a warning says so."""
    path = index_of(tmp_path, made, None, metric)
    shifted = made.startswith("PCA") and metric == faiss.METRIC_INNER_PRODUCT
    if shifted or (metric == faiss.METRIC_L1 and made != "Pad12,Flat"):
        with pytest.warns(RankedOtherwise, match="less their mean" if shifted else "that are rotated"):
            db.load(path, format="faiss", values=values_of(tmp_path))
    else:
        db.load(path, format="faiss", values=values_of(tmp_path))
        nearest = faiss.read_index(path).search(VECTORS[:20] + 0.1, 1)[1][:, 0].tolist()
        assert [one.contributors[0].key for one in db.nearest(VECTORS[:20] + 0.1)] == list(map(str, nearest))
    np.testing.assert_allclose(np.stack([item.vector for item in db.select()]), VECTORS, atol=1e-5)


def test_vectors_that_come_back_normalised_are_said_to(db: softkv.SoftKV, tmp_path: Path) -> None:
    """They are divided by their lengths, not rounded."""
    with pytest.warns(VectorsNormalised, match="divided by their lengths"):
        db.load(index_of(tmp_path, "L2norm,Flat"), format="faiss", values=values_of(tmp_path))
    expected = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    np.testing.assert_allclose(np.stack([item.vector for item in db.select()]), expected, rtol=1e-5)


@pytest.mark.parametrize("made", ["PCAW8,Flat", "PCAW4,Flat", "PCAWR8,IVF4,Flat", "ITQ8,Flat", "RR8,PCAW4,Flat"])
@pytest.mark.filterwarnings("ignore::softkv.files.indexes.VectorsRounded")
def test_an_index_behind_a_transform_that_is_not_undone_is_refused(
    db: softkv.SoftKV, tmp_path: Path, made: str
) -> None:
    """FAISS gives vectors that nobody put in, without an error for whitening."""
    with pytest.raises(BadRecord, match=r"(PCAMatrix|ITQTransform), which is not undone"):
        db.load(index_of(tmp_path, made), format="faiss", values=values_of(tmp_path))
    assert len(db) == 0


def test_an_index_that_fails_to_give_vectors_is_refused(
    db: softkv.SoftKV, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What FAISS says is part of an error of softkv."""

    def failing(*_: Any) -> None:
        raise RuntimeError("no such list")

    monkeypatch.setattr(faiss.IndexFlatL2, "reconstruct_batch", failing)
    with pytest.raises(BadRecord, match="FAISS cannot give its vectors back: no such list"):
        db.load(index_of(tmp_path, "Flat"), format="faiss", values=values_of(tmp_path))
    assert len(db) == 0


@pytest.mark.parametrize("mapped", [[0, 1, 2, 2], [0, 1, 2, 7]])
@pytest.mark.filterwarnings("ignore::softkv.files.indexes.VectorsRounded")
def test_a_dimension_is_not_taken_twice(db: softkv.SoftKV, tmp_path: Path, mapped: list[int]) -> None:
    """Distances in an index of such vectors are others; dimensions that are left out come back as zeros."""
    remap = faiss.RemapDimensionsTransform(8, 4, False)
    faiss.copy_array_to_vector(np.array(mapped, np.int32), remap.map)
    index = faiss.IndexPreTransform(remap, faiss.IndexFlatL2(4))
    index.add(VECTORS)
    faiss.write_index(index, str(tmp_path / "an.index"))
    if len(set(mapped)) < len(mapped):
        with pytest.raises(BadRecord, match="RemapDimensionsTransform, which is not undone"):
            db.load(tmp_path / "an.index", format="faiss", values=values_of(tmp_path))
        return
    db.load(tmp_path / "an.index", format="faiss", values=values_of(tmp_path))
    expected = VECTORS * [1, 1, 1, 0, 0, 0, 0, 1]
    assert np.array_equal(np.stack([item.vector for item in db.select()]), expected.astype(np.float32))


@pytest.mark.parametrize("made", ["IVF4,PQ4x4fs", "LSH", "PQ4x4fs"])
def test_an_index_that_keeps_no_vectors_is_refused(db: softkv.SoftKV, tmp_path: Path, made: str) -> None:
    """The error names it: to ask some of them for a vector would end the process."""
    with pytest.raises(BadRecord, match="does not give its vectors back"):
        db.load(index_of(tmp_path, made), format="faiss", values=values_of(tmp_path))


def test_an_index_and_values_that_do_not_fit_are_refused(db: softkv.SoftKV, tmp_path: Path) -> None:
    """Others in number, the same id twice, a file that is none, and bad records, since rows would be shifted by one."""
    path, values = index_of(tmp_path, "Flat"), values_of(tmp_path, range(201))
    with pytest.raises(BadRecord, match="has 200 vectors, but there are 201 values"):
        db.load(path, format="faiss", values=values)
    with pytest.raises(BadRecord, match="has 100 vectors, but there are 200 values"):
        db.load(index_of(tmp_path, "IDMap,Flat", np.arange(200) // 2), format="faiss", values=values_of(tmp_path))
    with pytest.raises(BadRecord, match="FAISS cannot read it"):
        db.load(values, format="faiss", values=values)
    with pytest.raises(BadRecord, match="there is no such file"):
        db.load(tmp_path / "nowhere", format="faiss", values=values)
    Path(values).write_text("key,value\n" + "a,1\n" * 100 + "b,\n" * 100)
    with pytest.raises(BadRecord, match=r"values\.csv:102"):
        db.load(index_of(tmp_path, "Flat"), format="faiss", values=values, skip_bad=True)
    assert len(db) == 0


def test_arguments_of_other_formats_are_refused(db: softkv.SoftKV, tmp_path: Path, films: Path) -> None:
    """Values go with an index and a collection with those that have some."""
    with pytest.raises(InputError, match="expected values="):
        db.load(values_of(tmp_path), values=values_of(tmp_path))
    with pytest.raises(InputError, match="collection="):
        db.load(values_of(tmp_path), collection="films")
    with pytest.raises(InputError, match="there is no format 'milvus'"):
        db.load(films, format="milvus")


def test_a_store_that_compares_already_keeps_its_way(tmp_path: Path) -> None:
    """What an index compared by is a wish for a store that has none."""
    with softkv.open(tmp_path / "s", compatibility="laplace") as db:
        db.load(index_of(tmp_path, "Flat"), format="faiss", values=values_of(tmp_path))
        assert db.info().compatibility == "laplace"


def test_what_is_no_directory_of_chroma_is_not_made_one(db: softkv.SoftKV, tmp_path: Path) -> None:
    """Its client would make a store wherever it is sent."""
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(BadRecord, match=r"has a file chroma\.sqlite3"):
            db.load(path, format="chroma")
    assert not list((tmp_path / "empty").iterdir())
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(("module", "form", "extra"), [("chromadb", "chroma", "chroma"), ("faiss", "faiss", "cpu")])
def test_a_library_that_is_missing_is_named(
    db: softkv.SoftKV, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, form: str, extra: str
) -> None:
    """The extra that brings it is told."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "chroma.sqlite3").touch()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'softkv\[{extra}\]'"):
        db.load(tmp_path / "c", format=form, values=values_of(tmp_path) if form == "faiss" else None)


CHROMA = """
import sys, softkv
from softkv.errors import BadRecord
with softkv.open(sys.argv[2]) as db:
    try:
        db.load(sys.argv[1], format="chroma")
    except BadRecord as error:
        print(error)
    db.load(sys.argv[1], format="chroma", collection="films")
    payload = dict(sorted(db.item("1").payload.items()))  # Chroma gives them in any order
    print(dict(db.items()), payload, db.item("0").vector.tolist(), db.info().compatibility)
with softkv.open(sys.argv[2] + "2") as db:
    print(db.load(sys.argv[1], format="chroma", collection="bare", value="row").count, db.info().compatibility)
    print([int(value) for value in db.values()] == list(range(1500)), list(db)[1499])
"""


@pytest.mark.slow
def test_a_directory_of_chroma_is_read_by_its_client(thorough: bool, tmp_path: Path) -> None:
    """Its collections come whole, page by page, though the function that embedded one cannot be made here."""
    if not thorough:
        pytest.skip("chromadb and llm take half a gigabyte and a network to install: --thorough")
    libraries = str(tmp_path / "libraries")
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", libraries, "chromadb>=1", "llm"]
    subprocess.run(install, check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": libraries}
    subprocess.run([sys.executable, str(MADE / "make.py"), str(tmp_path)], check=True, env=environment)
    asked = [sys.executable, "-c", CHROMA, str(tmp_path / "chroma"), str(tmp_path / "s")]
    said = subprocess.run(asked, check=True, env=environment, capture_output=True, text=True).stdout.splitlines()
    assert said[0].endswith("which collection? Give collection=; there are 'bare', 'films'")
    films = {"0": "a boy seeks treasure", "1": "two boats", "2": "the lost map"}
    metadata = {"label": "sea", "stars": 3.5}
    assert said[1] == f"{films} {metadata} {[2.0, 4.0, 0.0, 1.0, 1.0, 0.0, 1.0]} cosine"
    assert said[2:] == ["1500 gaussian", "True v1499"]
    command = [sys.executable, "-m", "softkv_cli", "add", "--from", "chroma", str(tmp_path / "chroma")]
    for collection, more in (("bare", ["--value", "row"]), ("films", [])):
        whole = [*command, "--collection", collection, *more, "-d", str(tmp_path / collection)]
        done = subprocess.run(whole, check=True, env=environment, capture_output=True, text=True)
        assert done.stderr.splitlines()[-1] == ("added 1,500" if collection == "bare" else "added 3")
    with softkv.open(tmp_path / "t") as db:  # what the present llm makes is read as well
        assert db.load(tmp_path / "llm.db", format="llm", collection="films").count == 4
