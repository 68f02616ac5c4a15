"""Arrow: files, frames of other libraries as items and payloads, and stores and answers as tables of others."""

import datetime
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pytest

import softkv
from softkv.doors.cluster.handle import create
from softkv.errors import BadRecord, InputError, MissingExtra, ShapeError
from softkv.files import Columns, records

from .commands import ran
from .listening import listening

FILMS = {"title": ["a red fox", "two boats", "the lost map"], "stars": [4.0, 3.5, 5.0]}
ROME = datetime.timezone(datetime.timedelta(hours=1))


@pytest.fixture
def db(tmp_path: Path) -> Any:
    """An empty store."""
    with softkv.open(tmp_path / "s") as found:
        yield found


def written(folder: Path, table: Any, name: str = "films.arrow", **options: Any) -> str:
    """A table as an IPC file, or with the ending .arrows as a stream."""
    path = str(folder / name)
    with pa.OSFile(path, "wb") as file:
        new = pa.ipc.new_stream if name.endswith("s") else pa.ipc.new_file
        with new(file, table.schema, **options) as writer:
            writer.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize("name", ["films.arrow", "films.feather", "films.ipc", "films.arrows"])
def test_a_file_of_arrow_is_loaded(tmp_path: Path, db: softkv.SoftKV, name: str) -> None:
    """The ending of its name tells what it is; file or stream, it may have any number of batches."""
    path = written(tmp_path, pa.table(FILMS), name)
    assert db.load(path, key="title", value="stars").count == 3
    assert dict(db.items()) == dict(zip(FILMS["title"], FILMS["stars"], strict=True))
    done = ran("add", "-i", path, "--key", "title", "--value", "stars", "-d", tmp_path / "t")
    assert (done.code, done.err) == (0, "added 3\n")


@pytest.mark.parametrize("compression", ["lz4", "zstd", "uncompressed"])
def test_a_feather_file_of_pandas_is_loaded(tmp_path: Path, db: softkv.SoftKV, compression: str) -> None:
    """It may be compressed; what it says of an index of the frame is no column."""
    frame = pd.DataFrame(FILMS | {"kind": pd.Categorical(["tale", "sea", "tale"])})
    pyarrow.feather.write_feather(frame, str(tmp_path / "f.feather"), compression=compression)
    db.load(tmp_path / "f.feather", key="title", value="stars", payload="kind")
    assert [item.payload for item in db.select()] == [{"kind": "tale"}, {"kind": "sea"}, {"kind": "tale"}]


VECTOR_TYPES = [
    pa.list_(pa.float32(), 2),
    pa.list_(pa.float64()),
    pa.large_list(pa.float32()),
    pa.list_(pa.float16(), 2),
]


@pytest.mark.parametrize("type_", VECTOR_TYPES, ids=str)
@pytest.mark.parametrize(
    "text", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_texts_and_vectors_of_every_type_are_read(tmp_path: Path, type_: Any, text: Any) -> None:
    """Chunked and sliced, with nulls among what may be missing."""
    vectors = pa.array([[9, 9], [1, 2], [3, 4], [5, 6]]).cast(type_).slice(1)
    keys = pa.chunked_array([pa.array(["a"], text), pa.array(["b", "c"], text)])
    table = pa.table({"key": keys, "value": pa.array([1, 2, 3], pa.int8()), "v": vectors, "n": pa.array([1, None, 3])})
    table = table.unify_dictionaries()
    found = list(records(written(tmp_path, table), columns=Columns(vector=("v",), payload=("n",))))
    assert [(one.key, one.value, one.payload) for one in found] == [
        ("a", 1, {"n": 1}),
        ("b", 2, {"n": None}),
        ("c", 3, {"n": 3}),
    ]
    assert np.array_equal(np.stack([one.vector for one in found if one.vector is not None]), [[1, 2], [3, 4], [5, 6]])


def test_times_and_decimals_are_carried_as_json_has_them(tmp_path: Path) -> None:
    """Times as texts, those with a zone in UTC; decimals as numbers, as a value too."""
    noon = datetime.datetime(2020, 1, 31, 12, tzinfo=ROME)
    table = pa.table(
        {
            "key": ["a", "b"],
            "price": pa.array([Decimal("1.5"), Decimal("2.25")]),
            "day": [datetime.date(2020, 1, 31), None],
            "at": [noon.replace(tzinfo=None), None],
            "there": pa.array([noon, None], pa.timestamp("ms", "Europe/Rome")),
        }
    )
    columns = Columns(value=("price",), payload=("price", "day", "at", "there"))
    first, second = records(written(tmp_path, table), columns=columns)
    assert (first.value, second.value) == (1.5, 2.25)
    assert first.payload == {
        "price": 1.5,
        "day": "2020-01-31",
        "at": "2020-01-31 12:00:00.000000",
        "there": "2020-01-31 11:00:00.000Z",
    }
    assert second.payload == {"price": 2.25, "day": None, "at": None, "there": None}
    for name in ("day", "there"):
        with pytest.raises(BadRecord, match=f"the column '{name}' is of type"):
            list(records(written(tmp_path, table), columns=Columns(value=(name,))))


@pytest.mark.parametrize("place", [10, 100, 0.5, 0.9, -1])
@pytest.mark.parametrize("name", ["f.arrow", "f.arrows"])
def test_a_damaged_file_of_arrow_is_refused(tmp_path: Path, name: str, place: float) -> None:
    """Cut off anywhere, or with bytes turned over, it ends in an error of ours or in the records that were written."""
    path = Path(written(tmp_path, pa.table({"key": [f"k{row}" for row in range(50)], "value": range(50)}), name))
    whole, expected = path.read_bytes(), list(records(str(path)))
    cut = int(place * len(whole)) if 0 < place < 1 else int(place)
    path.write_bytes(whole[:cut])
    with pytest.raises(BadRecord, match="this is no sound Arrow file"):
        list(records(str(path)))
    for at in range(cut % 7, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :])
        try:
            found = list(records(str(path)))
        except BadRecord:
            continue
        assert len(found) <= len(expected) * 4


def selected(query: str, **tables: Any) -> list[tuple[Any, ...]]:
    """What duckdb finds in tables of others; where a module holds it, it complains of leaks when the process ends."""
    import duckdb

    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(query).fetchall()


def of_duckdb(columns: dict[str, Any]) -> Any:
    """These columns as a relation of duckdb."""
    import duckdb

    return duckdb.from_arrow(pa.table(columns))


FRAMES = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "duckdb": of_duckdb,
    "table": pa.table,
    "batch": pa.record_batch,
    "reader": lambda columns: pa.table(columns).to_reader(),
}


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_is_added_by_the_names_of_its_columns(db: softkv.SoftKV, library: str) -> None:
    """It is one batch, whichever library it is of; dots in a name mean nothing, and missing numbers are null."""
    columns = FILMS | {"the.year": [1990, 2004, 2011], "seen": [1.5, None, 2.5]}
    added = db.add(FRAMES[library](columns), key="title", value="stars", payload=["the.year", "seen"])
    assert added.count == 3
    assert dict(db.items()) == dict(zip(FILMS["title"], FILMS["stars"], strict=True))
    assert db.item("two boats").payload == {"the.year": 2004, "seen": None}
    assert db.info().commit == 1


def test_a_frame_is_added_to_every_kind_of_handle(tmp_path: Path) -> None:
    """One is on a store that is served, and one on a cluster."""
    softkv.open(tmp_path / "served", value="number").close()
    frame = pd.DataFrame(FILMS)
    with listening(tmp_path / "served") as url, softkv.open(f"{url}/served") as remote:
        assert remote.add(frame, key="title", value="stars").count == 3
        assert remote.to_arrow()["key"].to_pylist() == FILMS["title"]
        assert selected("SELECT sum(value) FROM remote", remote=remote) == [(12.5,)]
    create(tmp_path / "c", shards=2, value="number")
    with softkv.open(tmp_path / "c") as cluster:
        assert cluster.add(frame, key="title", value="stars").count == 3
        assert sorted(cluster.to_arrow()["key"].to_pylist()) == sorted(FILMS["title"])


def test_the_index_of_a_frame_is_a_column_where_it_has_a_name(db: softkv.SoftKV) -> None:
    """Pandas hands it out as one; rows that were selected come alone."""
    frame = pd.DataFrame(FILMS)
    db.add(frame.set_index("title")[1:], key="title", value="stars")
    assert list(db) == ["two boats", "the lost map"]
    db.add(frame[frame.stars > 3.5].iloc[:1], key="title", value="stars")
    assert list(db)[2:] == ["a red fox"]


@pytest.mark.parametrize("library", ["pandas", "polars", "table"])
def test_a_frame_of_numbers_is_a_matrix(db: softkv.SoftKV, library: str) -> None:
    """It may be the vectors, the values, and the queries; its rows are those of an array."""
    matrix = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
    frame = FRAMES[library]({"x": matrix[:, 0], "y": matrix[:, 1]})
    db.add(vectors=frame, values=frame)
    assert np.array_equal(np.stack([item.vector for item in db.select()]), matrix)
    assert np.array_equal(np.stack(list(db.values())), matrix)
    answers = [one.value for one in db.lookup(matrix)]
    assert np.array_equal([one.value for one in db.lookup(frame)], answers)
    with pytest.raises(ShapeError, match="3 key vectors but 2 values"):
        db.add(vectors=frame, values=matrix[:2])


def test_vectors_stand_in_one_column_or_in_several(db: softkv.SoftKV) -> None:
    """Lists of polars, of fixed width or not, and columns of numbers; as keys and as values."""
    for number, type_ in enumerate((pl.Array(pl.Float32, 2), pl.List(pl.Float64))):
        frame = pl.DataFrame({"k": [f"{number}a", f"{number}b"], "v": pl.Series([[1, 2], [3, 4]], dtype=type_)})
        db.add(frame, key="k", value="v", vector="v")
    db.add(pd.DataFrame({"k": ["c"], "x": [5], "y": [6.0]}), key="k", value=["x", "y"], vector=["x", "y"])
    assert np.array_equal(np.stack(list(db.values())), [[1, 2], [3, 4], [1, 2], [3, 4], [5, 6]])
    assert np.array_equal(db.item("c").vector, [5, 6])


def test_columns_are_arguments_without_names_too(db: softkv.SoftKV) -> None:
    """Series as keys and values, and a frame as payloads, a row each."""
    frame = pl.DataFrame(FILMS | {"year": [1990, None, 2011]})
    db.add(frame["title"], frame["stars"], payloads=frame.select("year"))
    assert [item.payload for item in db.select()] == [{"year": 1990}, {"year": None}, {"year": 2011}]
    pandas = frame.to_pandas()
    db.add(pandas.title + "!", pandas.stars, payloads=pandas[["title"]])
    assert db.item("two boats!").payload == {"title": "two boats"}
    assert db.lookup("boats", where={"title": "two boats"}).value == 3.5


@pytest.mark.parametrize(
    ("frame", "options", "said"),
    [
        (pd.DataFrame(FILMS), {"key": "titel", "value": "stars"}, "the frame: there is no column 'titel'"),
        (pd.DataFrame(FILMS | {"n": 1}), {}, "which column holds the values"),
        (pd.DataFrame(FILMS | {"stars": [1, None, 2]}), {"key": "title", "value": "stars"}, "row 2: the value is null"),
        (
            pl.DataFrame(FILMS | {"stars": [1.0, 2.0, np.nan]}),
            {"key": "title", "value": "stars"},
            "row 3: the value is not",
        ),
        (pd.DataFrame({"k": [(1, 2)], "v": [{"a": 1}]}), {"key": "k", "value": "v"}, "the column 'k' is of type"),
        (pd.DataFrame({"k": [object()], "v": [1]}), {"key": "k", "value": "v"}, "cannot be converted to Arrow"),
        (pd.DataFrame({"k": ["a", "b"], "v": [1, "x"]}), {}, "Conversion failed for column v .* values of one type"),
        (pd.DataFrame({"k": ["a", "b"], "v": [1, 2**70]}), {}, "the frame: it cannot be converted to Arrow"),
        (pd.DataFrame([["a", 1]], columns=["k", "k"]), {}, "Each column needs its own name"),
    ],
)
def test_a_frame_that_holds_no_items_is_refused(db: softkv.SoftKV, frame: Any, options: Any, said: str) -> None:
    """The error names the column or the row, and nothing is added."""
    with pytest.raises(BadRecord, match=said):
        db.add(frame, **options)
    assert len(db) == 0


def test_payloads_that_hold_no_rows_are_refused(db: softkv.SoftKV) -> None:
    """A frame whose columns mix types has its own reason, also as payloads."""
    with pytest.raises(BadRecord, match=r"cannot be converted to Arrow .* values of one type"):
        db.add(["a", "b"], [1.0, 2.0], payloads=pd.DataFrame({"n": [1, "x"]}))
    assert len(db) == 0


def test_arguments_that_do_not_go_together_are_refused(db: softkv.SoftKV) -> None:
    """Names of columns without a frame, columns beside one, a query that was not collected, and no rows at all."""
    with pytest.raises(InputError, match=r"expected a frame .* got list"):
        db.add(["a"], [1.0], payload="year")
    with pytest.raises(InputError, match="got others beside it"):
        db.add(pd.DataFrame(FILMS), [1.0, 2.0, 3.0], key="title")
    with pytest.raises(InputError, match="got LazyFrame"):
        db.add(pl.LazyFrame(FILMS), key="title", value="stars")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="the batch is empty"):
        db.add(pd.DataFrame(FILMS)[:0], key="title", value="stars")


def test_a_frame_needs_pyarrow(db: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names pyarrow with its extra, as where a table is asked for."""
    frame, answers = pd.DataFrame(FILMS), softkv.soft_lookup([[1.0]], [[1.0]], [1.0])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for asked in (lambda: db.add(frame, key="title", value="stars"), db.to_arrow, answers.to_arrow):
        with pytest.raises(MissingExtra, match=r"pip install 'softkv\[parquet\]'"):
            asked()


VALUES: dict[str, Any] = {
    "number": [4.0, 3.5, 5.0],
    "label": ["x", "y", "x"],
    "text": ["one", "two", "three"],
    "vector": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_store_is_a_table_and_a_table_a_store(tmp_path: Path, kind: str) -> None:
    """Its items come out in their order, and go into another store as they were; an empty one has no values."""
    with (
        softkv.open(tmp_path / "s", value=kind) as db,
        softkv.open(tmp_path / "t", value=kind, compatibility="cosine") as other,
    ):
        assert db.to_arrow().schema.names == ["key", "text", "payload"]
        db.add(FILMS["title"], VALUES[kind], texts=[None, "boats", None], payloads=[{"n": 1}, None, [2]])
        db.add(vectors=db.item("two boats").vector, values=VALUES[kind][0])
        table = db.to_arrow()
        assert table["key"].to_pylist() == [*FILMS["title"], None]
        assert table["text"].to_pylist() == ["a red fox", "boats", "the lost map", None]
        assert table["value"].to_pylist() == [*VALUES[kind], VALUES[kind][0]]
        assert table["payload"].to_pylist() == ['{"n":1}', None, "[2]", None]
        assert np.array_equal(np.stack(table["vector"].to_numpy()), np.stack([item.vector for item in db.select()]))
        other.add(db.to_arrow())
        assert other.to_arrow().drop_columns("text").equals(table.drop_columns("text"))
        assert selected("SELECT count(*), max(key) FROM db", db=db) == [(4, "two boats")]
        with db.snapshot() as then:
            del db["two boats"]
            assert pl.DataFrame(then.to_arrow()).height == 4
        assert db.check().ok


@pytest.mark.parametrize("kind", VALUES)
def test_answers_are_tables_of_others(tmp_path: Path, kind: str) -> None:
    """A row for each query, with types that do not depend on what was found; pandas, polars and duckdb read them."""
    with softkv.open(tmp_path / "s", value=kind) as db:
        db.add(FILMS["title"], VALUES[kind], payloads=[{"n": 1}, None, {"n": 3}])
        answers = db.lookup(["a fox", "a map", "boats"], show=2)
        table = answers.to_arrow()
        plain = answers.to_dict()
        assert table["value"].to_pylist() == [one["value"] for one in plain]
        assert table["log_mass"].to_pylist() == answers.log_mass.tolist()
        assert table["query"].to_pylist() == [0, 1, 2]
        best = [some[0] for some in table["contributors"].to_pylist()]
        assert [one["key"] for one in best] == [answer.contributors[0].key for answer in answers]
        assert best[0]["payload"] == '{"n": 1}'
        assert best[0]["value"] == VALUES[kind][0]
        assert db.lookup(np.empty((0, 256))).to_arrow().schema.names == table.schema.names or kind == "label"
        assert pl.DataFrame(answers)["value"].to_list() == table["value"].to_pylist()
        assert pd.DataFrame.from_arrow(answers)["log_mass"].tolist() == answers.log_mass.tolist()
        asked = selected("SELECT contributors[1].key FROM answers ORDER BY query", answers=answers)
        assert [key for (key,) in asked] == [one["key"] for one in best]
        if kind == "label":
            assert dict(table["distribution"][0].as_py()) == plain[0]["distribution"]


def test_answers_of_heads_and_of_plain_arrays_are_tables(tmp_path: Path) -> None:
    """What each head has of its own is a list; rows without keys have none."""
    heads = softkv.Heads.random(3, query_width=2, key_width=2, value_width=2, head_width=1, seed=0)
    keys = [[1.0, 0.0], [0.0, 1.0]]
    found = softkv.soft_lookup(keys, keys, keys, heads=heads)
    assert found.to_arrow()["log_mass"].to_pylist() == found.log_mass.tolist()
    plain = softkv.soft_lookup(keys, keys, [1.0, 2.0]).to_arrow()
    assert [one["row"] for one in plain["contributors"][1].as_py()] == [1, 0]
    assert plain["known"].type == pa.bool_()
    assert plain["known"].null_count == 2
