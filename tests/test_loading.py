"""`load`: the items of a file into a store, from the library; what `softkv add -i` does."""

import codecs
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import Loaded, RecordsSkipped
from softkv.errors import BadRecord, CommitUncertain, InputError, KindError, ShapeError, StoreError

from .commands import ran
from .scales import scaled
from .stores import uncertain

CSV = "title,stars,year,x,y\nThe Well,4.5,1990,1,0\nUpstream,3,2004,0,1\nNight Line,4,2011,1,1\n"
LINES = [f"item {number},{number}" for number in range(35)]


def told(path: Path) -> list[Any]:
    """Everything about the items of a store that it was given."""
    with softkv.open(path, "r") as db:
        assert db.check().ok
        return [
            (one.key, one.text, np.asarray(one.value).tolist(), one.payload, one.vector.tolist()) for one in db.select()
        ]


def settings(path: Path) -> Any:
    """What a store of no items has decided."""
    with softkv.open(path, "r") as db:
        return db.value_kind, db.info().compatibility, len(db)


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ({"key": "title", "value": "stars"}, ["--key", "title", "--value", "stars"]),
        (
            {"key": "title", "value": ("x", "y"), "payload": ["stars", "year"]},
            ["--key", "title", "--value", "x,y", "--payload", "stars,year"],
        ),
        (
            {"vector": ["x", "y"], "value": "title", "kind": "label", "payload": "year"},
            ["--vector", "x,y", "--value", "title", "--kind", "label", "--payload", "year"],
        ),
        ({"key": "year", "text": "title", "value": "title"}, ["--key", "year", "--text", "title", "--value", "title"]),
        (
            {"key": "year", "text": "title", "value": "stars", "skip": 1},
            ["--key", "year", "--text", "title", "--value", "stars", "--skip", "1"],
        ),
    ],
)
def test_a_file_becomes_the_items_that_the_command_makes_of_it(
    tmp_path: Path, named: dict[str, Any], options: list[str]
) -> None:
    """Keys, embedded texts, vectors, kinds, payloads: the store holds the same, whichever way it was filled."""
    (tmp_path / "films.csv").write_text(CSV)
    assert ran("add", "-i", tmp_path / "films.csv", *options, "--db", tmp_path / "s").code == 0
    with softkv.open(tmp_path / "t") as db:
        count = 3 - named.get("skip", 0)
        assert db.load(tmp_path / "films.csv", **named) == Loaded(count)
    assert told(tmp_path / "t") == told(tmp_path / "s")
    assert settings(tmp_path / "t") == settings(tmp_path / "s")


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json", "parquet", "npz"])
def test_every_format_is_loaded(tmp_path: Path, ending: str) -> None:
    """A text under a key is embedded, whatever the file."""
    import pyarrow
    import pyarrow.parquet

    path, rows = tmp_path / f"a.{ending}", [{"key": "one", "value": 1.5}, {"key": "two", "value": 2.5}]
    if ending == "npz":
        np.savez(path, keys=["one", "two"], values=[1.5, 2.5])
    elif ending == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif ending in ("csv", "tsv"):
        path.write_text("key,value\none,1.5\ntwo,2.5\n".replace(",", "," if ending == "csv" else "\t"))
    else:
        path.write_text(json.dumps(rows) if ending == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    with softkv.open(tmp_path / "s") as db:
        assert db.load(str(path)).count == 2
        assert dict(db) == {"one": 1.5, "two": 2.5}
        assert db.nearest("one").contributors[0].key == "one"
        assert db.check().ok


def test_a_matrix_without_values_is_refused_in_words(tmp_path: Path) -> None:
    """Library and command refuse it, before a store is made; what would do is named."""
    np.save(tmp_path / "m.npy", np.eye(3))
    with softkv.open(tmp_path / "s") as db, pytest.raises(BadRecord, match=r"m\.npy: .*no values.*\.npz") as refused:
        db.load(tmp_path / "m.npy")
    done = ran("add", "-i", tmp_path / "m.npy", "--db", tmp_path / "t")
    assert (done.code, str(refused.value) in done.err, (tmp_path / "t").exists()) == (1, True, False)


def test_an_export_brings_the_kind_of_its_values(tmp_path: Path) -> None:
    """Labels are labels again, in a store that has decided nothing; in one of texts they are texts."""
    with softkv.open(tmp_path / "s", value="label") as db:
        db.update({"a fox": "animal", "a tree": "plant"})
        db.export(tmp_path / "a.jsonl")
    for kind, expected in ((None, "label"), ("text", "text")):
        with softkv.open(tmp_path / str(kind), value=kind) as db:
            assert db.load(tmp_path / "a.jsonl").count == 2
            assert (db.value_kind, dict(db)) == (expected, {"a fox": "animal", "a tree": "plant"})


def test_an_export_may_begin_with_the_mark_of_its_encoding(tmp_path: Path) -> None:
    """Editors write one; `import_from` passes over it too."""
    with softkv.open(tmp_path / "s", value="label") as db:
        db.update({"a fox": "animal", "a tree": "plant"})
        db.export(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_bytes(codecs.BOM_UTF8 + (tmp_path / "a.jsonl").read_bytes())
    assert softkv.import_from(tmp_path / "b.jsonl", tmp_path / "t") == 2
    with softkv.open(tmp_path / "u") as db:
        assert db.load(tmp_path / "b.jsonl").count == 2
        assert (db.value_kind, dict(db)) == ("label", {"a fox": "animal", "a tree": "plant"})


def test_a_bad_line_is_named_and_nothing_of_its_batch_is_written(tmp_path: Path) -> None:
    """The kind that the values were to be of is not written either."""
    (tmp_path / "films.csv").write_text("key,value\na,1\nb,many\n")
    with softkv.open(tmp_path / "s") as db:
        with pytest.raises(BadRecord, match=r"films\.csv:3: the value 'many' is not a number$"):
            db.load(tmp_path / "films.csv", kind="number")
        (tmp_path / "films.csv").write_text("key,value\na,1\n" + "b" * 70_000 + ",2\n")
        with pytest.raises(BadRecord, match=r"films\.csv:3: the key has 70,000 bytes"):
            db.load(tmp_path / "films.csv", kind="label")
        (tmp_path / "films.csv").write_text("x,value\n[1],a\n[0],b\n")
        with pytest.raises(InputError, match=r"\(In .*films\.csv, lines 2 to 3\.\)"):
            db.load(tmp_path / "films.csv", vector="x", kind="label", on_conflict="whatever")
        assert (len(db), db.value_kind) == (0, None)
        assert db.check().ok


def test_what_was_stored_before_an_error_stays_and_the_error_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`skip` adds exactly the rest; progress tells the records so far."""
    scaled(monkeypatch, loaded=10)
    broken = [*LINES[:25], "item 25,oops", *LINES[26:]]
    (tmp_path / "a.csv").write_text("\n".join(["key,value", *broken]))
    with softkv.open(tmp_path / "s") as db:
        with pytest.raises(BadRecord, match=r"a\.csv:27: .*The first 20 records are stored.*go on with skip=20\.\)$"):
            db.load(tmp_path / "a.csv", kind="number")
        assert list(db.values()) == list(range(20))
        (tmp_path / "a.csv").write_text("\n".join(["key,value", *LINES]))
        with pytest.raises(BadRecord, match=r"first 20 records. If an earlier run stored them, go on with skip=20"):
            db.load(tmp_path / "a.csv")
        seen: list[int] = []
        assert db.load(tmp_path / "a.csv", skip=20, progress=lambda done, _of: seen.append(done)) == Loaded(15)
        assert (seen[-1], sorted(seen)) == (35, seen)
        assert list(db.values()) == list(range(35))
        assert db.check().ok


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("columns", ["keys", "vectors", "vectors under a name"])
def test_after_an_uncertain_commit_the_error_says_how_to_add_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str, happened: bool
) -> None:
    """Keys tell what is there, or the commit of the store opened again, or the name of the file."""
    scaled(monkeypatch, loaded=10)
    rows = [f"item {n},{n}" if columns == "keys" else f'"[1,{n}]",{n}' for n in range(35)]
    lines = [f"{columns[:6].rstrip('s')},value", *rows]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    (tmp_path / "begun.csv").write_text("\n".join([*lines[:11], "oops"]))
    named: dict[str, Any] = {"batch": "monday"} if columns.endswith("name") else {}
    begun: dict[str, Any] = named or {"skip": 10}
    with softkv.open(tmp_path / "s", compatibility="cosine") as db:
        with pytest.raises(BadRecord, match=r"first 10 records are stored\. Mend this"):
            db.load(tmp_path / "begun.csv", **named)
        commit = db.info().commit
        with monkeypatch.context() as patch:
            uncertain(db._store, patch, happened=happened)
            with pytest.raises(CommitUncertain, match="first 10 records are stored, and the next 10 may be") as error:
                db.load(tmp_path / "a.csv", **begun)
    with softkv.open(tmp_path / "s") as db:
        if columns == "keys":
            assert "Go on with skip=10 and on_conflict='ignore', which passes over those that are." in str(error.value)
            db.load(tmp_path / "a.csv", skip=10, on_conflict="ignore")
        elif named:
            assert "go on with the same batch." in str(error.value)
            db.load(tmp_path / "a.csv", **named)
        else:
            assert f"if it is above {commit}, go on with skip=20, else with skip=10.)" in str(error.value)
            db.load(tmp_path / "a.csv", skip=20 if db.info().commit > commit else 10)
        assert list(db.values()) == list(range(35))
        assert db.check().ok


def test_bad_records_are_passed_over_when_asked(tmp_path: Path) -> None:
    """Counted, and named by one warning, or each by a function; keys that are there are among them."""
    (tmp_path / "a.csv").write_text("key,value\na,1\nb,many\nc,2\na,3\n")
    said: list[BadRecord] = []
    with softkv.open(tmp_path / "s") as db:
        with pytest.warns(
            RecordsSkipped, match=r"^2 records were passed over; the first: .*a\.csv:3: the value 'many'"
        ):
            assert db.load(tmp_path / "a.csv", kind="number", skip_bad=True) == Loaded(2, skipped=2)
        assert db.load(tmp_path / "a.csv", skip_bad=said.append) == Loaded(0, skipped=4)
        assert sorted(str(one).split(": ")[0].rsplit(":")[-1] for one in said) == ["2", "3", "4", "5"]
        assert dict(db) == {"a": 1.0, "c": 2.0}


def test_keys_that_are_there_are_replaced_or_ignored(tmp_path: Path) -> None:
    """What is replaced and passed over is counted; otherwise the error names the line."""
    (tmp_path / "a.csv").write_text("key,value\na,1\nb,2\n")
    with softkv.open(tmp_path / "s") as db:
        db["b"] = 5
        with pytest.raises(BadRecord, match=r"a\.csv:3: the key 'b' is there already\. Give it another, or use on_con"):
            db.load(tmp_path / "a.csv")
        assert db.load(tmp_path / "a.csv", on_conflict="ignore") == Loaded(1, ignored=1)
        assert db.load(tmp_path / "a.csv", on_conflict="replace") == Loaded(2, replaced=2)
        assert dict(db) == {"b": 2.0, "a": 1.0}


def test_a_store_decides_what_the_values_of_a_file_are(tmp_path: Path) -> None:
    """Labels of digits stay labels; another kind than that of the store is refused before the file is stored."""
    (tmp_path / "a.csv").write_text("key,value\na,1\nb,2\n")
    with softkv.open(tmp_path / "s", value="label") as db:
        assert db.load(tmp_path / "a.csv").count == 2
        assert dict(db) == {"a": "1", "b": "2"}
        with pytest.raises(KindError, match="holds values of kind 'label', not 'number'"):
            db.load(tmp_path / "a.csv", kind="number")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"key": "title"}, BadRecord, "there is no column 'title'"),
        ({"skip": -1}, InputError, "expected skip as a number of records, 0 or more, got -1"),
        ({"kind": "colour"}, KindError, "there is no kind 'colour'"),
        ({"format": "xls"}, InputError, "there is no format 'xls'"),
        ({"encoding": "utf-99"}, InputError, "there is no text encoding 'utf-99'"),
        ({"key": 3}, InputError, "expected the name of a column as a text, got 3"),
        ({"text": b"key"}, InputError, "expected the name of a column as a text, got b'key'"),
        ({"value": 3}, InputError, "expected the names of columns as texts, got 3"),
        ({"encoding": 3}, InputError, "there is no text encoding 3"),
        ({"skip": True}, InputError, "expected skip as a number"),
        ({"vector": ["value", 3]}, InputError, "expected the names of columns as texts, got ['value', 3]"),
        ({"vector": "value", "value": "key"}, ShapeError, "width"),
    ],
)
def test_mistakes_write_nothing(tmp_path: Path, options: dict[str, Any], error: type[Exception], said: str) -> None:
    """Each is said before anything is stored."""
    (tmp_path / "a.csv").write_text("key,value\na,1\nb,2\n")
    with softkv.open(tmp_path / "s") as db:
        db["z"] = "a text"
        with pytest.raises(error) as raised:
            db.load(tmp_path / "a.csv", **options)
        assert said in str(raised.value)
        assert dict(db) == {"z": "a text"}


def test_a_reader_does_not_load_and_a_dash_is_no_stdin(tmp_path: Path) -> None:
    """The library has no stdin of its own: "-" is a file, if there is one."""
    softkv.open(tmp_path / "s").close()
    with softkv.open(tmp_path / "s", "r") as db, pytest.raises(StoreError, match="open for reading"):
        db.load(tmp_path / "none.csv")
    with softkv.open(tmp_path / "s") as db, pytest.raises(BadRecord, match=r"^\./-: cannot be opened"):
        db.load("-", format="csv")
