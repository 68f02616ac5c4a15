"""CSV exports: the items of a store as a table, which `db.load` and `add -i` read back as they were."""

import csv
import io
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import LearnedNotCarried
from softkv.errors import InputError
from softkv.files.exports.delimited import TextsNotCarried, options

from .commands import ran
from .databases import KINDS, values_of, vectors_of

ODD = ["a red fox", 'a "grey" wolf, or two', "two\nlines\r\nof dogs", " é 日本 \u2028 ", "007", "=1+1, a sum"]
PAYLOADS = [{"n": 1}, None, [1.5, "x,y"], "a text", {"deep": {"é": None}}, 0]


def items_of(path: Path) -> list[Any]:
    """Everything about the items of a store."""
    with softkv.open(path, "r") as db:
        assert db.check().ok
        return [
            (one.key, one.text, np.asarray(one.value).tolist(), one.payload, one.vector.tolist()) for one in db.select()
        ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", ["keys", "texts", "texts alone", "vectors", "vectors with keys"])
def test_a_table_is_read_back_as_the_same_items(tmp_path: Path, kind: str, given: str) -> None:
    """Library and command read the same keys, texts, values and payloads, and the same vectors bit for bit."""
    with softkv.open(tmp_path / "s", value=kind) as db:
        columns: dict[str, Any] = {
            "keys": {"keys": ODD},
            "texts": {"keys": [f"item {n}" for n in range(6)], "texts": ODD},
            "texts alone": {"texts": ODD},
            "vectors": {"vectors": vectors_of(6, 3)},
            "vectors with keys": {"keys": ODD, "vectors": vectors_of(6, 3)},
        }[given]
        values = ODD if kind == "text" else list(values_of(kind, 6))
        db.add(values=values, payloads=PAYLOADS, **columns)
        assert db.export(tmp_path / "a.csv") == 6
    done = ran("export", tmp_path / "b.csv", "--db", tmp_path / "s")
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()
    command = shlex.split(done.err.split("`softkv ")[1].split("`")[0])
    assert ran(*command, "--db", tmp_path / "t").code == 0
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file, softkv.open(tmp_path / "u") as db:
        header = next(csv.reader(file))
        assert db.load(tmp_path / "a.csv", **options(header, kind)).count == 6
    assert ("vector" in header, "text" in header) == (given.startswith("vectors"), given.startswith("texts"))
    assert items_of(tmp_path / "t") == items_of(tmp_path / "u") == items_of(tmp_path / "s")


@pytest.mark.parametrize("kind", ["text", "label"])
def test_characters_that_may_end_a_line_come_back_within_any_cell(tmp_path: Path, kind: str) -> None:
    """A row ends where it should, whatever stands in keys, texts, values and payloads; Python's own reader agrees."""
    ends = [
        "\r",
        "\n",
        "\r\n",
        "\n\r",
        "\v",
        "\f",
        "\x1c",
        "\x1d",
        "\x1e",
        "\x85",
        "\u2028",
        "\u2029",
        "\ufeff",
        " ",
        "\t",
    ]
    cells = [f"{before}fox{end}{after}" for end in ends for before in ("", end) for after in ("", "dog", '"')]
    with softkv.open(tmp_path / "s", value=kind) as db:
        db.add(cells, values=cells, texts=[f"{cell}one" for cell in cells], payloads=[{cell: cell} for cell in cells])
        db.export(tmp_path / "a.csv")
    with softkv.open(tmp_path / "t", value=kind) as db:
        assert db.load(tmp_path / "a.csv", text="text").count == len(cells)
    assert items_of(tmp_path / "t") == items_of(tmp_path / "s")
    for written in ((tmp_path / "a.csv").read_bytes().decode(), ran("list", "--csv", "--db", tmp_path / "s").out):
        rows = list(csv.DictReader(io.StringIO(written, newline="")))
        assert [(row["key"], row["value"]) for row in rows] == [(cell, cell) for cell in cells]


def test_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    """Values have 64 bits, vectors 32, and signs of zero are kept."""
    values = [0.1, -0.0, 1e150, 5e-324, 2.0**53, 1 / 3]
    vectors = np.array([[-0.0, 1e-45], [3.4e38, 1], [0.1, 16777217], [1 / 3, -1], [7, 1e-30], [1e30, 2]], np.float32)
    with softkv.open(tmp_path / "s", compatibility="dot") as db:
        db.add(vectors=vectors, values=values)
        db.export(tmp_path / "a.csv")
    with softkv.open(tmp_path / "t", compatibility="dot") as db:
        db.load(tmp_path / "a.csv")
        assert [repr(one.value) for one in db.select()] == [repr(float(value)) for value in values]
        assert np.stack([one.vector for one in db.select()]).tobytes() == vectors.tobytes()


def test_a_table_is_what_a_spreadsheet_would_make(tmp_path: Path) -> None:
    """Columns that no item needs are left out; a store without items has a header."""
    with softkv.open(tmp_path / "s") as db:
        db.update({"a fox": 1.5, "two dogs": 2})
        db.export(tmp_path / "a.csv")
        db.clear()
        assert db.export(tmp_path / "b.csv") == 0
    assert (tmp_path / "a.csv").read_text() == "key,value\na fox,1.5\ntwo dogs,2.0\n"
    with softkv.open(tmp_path / "t") as db:
        assert db.load(tmp_path / "b.csv").count == 0


def test_what_a_table_cannot_say_is_refused(tmp_path: Path) -> None:
    """Items without a key among others, and empty texts; no file is left."""
    with softkv.open(tmp_path / "s") as db:
        db.add(["a fox", None], [1, 2], texts=[None, "two dogs"])
        with pytest.raises(InputError, match=r"1 of 2 items have no key.*Export to \.jsonl"):
            db.export(tmp_path / "a.csv")
    with softkv.open(tmp_path / "t", value="label") as db:
        db.add(["a fox", "two dogs"], ["animal", ""])
        with pytest.raises(InputError, match=r"the value of item 1 \(from 0\) is an empty text"):
            db.export(tmp_path / "a.csv")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s", "t"]


def test_what_stays_behind_is_said(tmp_path: Path) -> None:
    """Texts beside bare vectors, and what was learned; an import of a table says what to do in its place."""
    random = np.random.default_rng(0)
    with softkv.open(tmp_path / "s", value="number", compatibility="gaussian") as db:
        vectors = random.standard_normal((300, 4))
        db.add(vectors=vectors, values=vectors[:, 0] * 3)
        db.fit()
        assert db.info().projection is not None
        with pytest.warns(LearnedNotCarried, match="CSV holds items alone"):
            db.export(tmp_path / "a.csv")
    with softkv.open(tmp_path / "t") as db:
        db.add("a fox", 1)
        db.add("a point", 2, vectors=np.ones(256))
        with pytest.warns(TextsNotCarried, match="1 of 2 items are bare vectors"):
            db.export(tmp_path / "b.csv")
    with softkv.open(tmp_path / "u") as db:
        assert db.load(tmp_path / "b.csv").count == 2
        assert [one.text for one in db.select()] == [None, None]
    done = ran("import", tmp_path / "b.csv", "--db", tmp_path / "v")
    assert done.code == 1
    assert "CSV holds items, and not the store they were in" in done.err
    assert not (tmp_path / "v").exists()
