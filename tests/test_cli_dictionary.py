"""`softkv get`, `delete`, `set`, `list`, `info` and `path`."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

import softkv

from .commands import ran


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Sixty numbers, some with payloads, one without a key."""
    path = tmp_path / "s"
    with softkv.open(path) as db:
        names = [f"item {number}" for number in range(59)]
        payloads = [{"n": number} if number % 2 else None for number in range(59)]
        db.add(names, list(range(59)), payloads=payloads, texts=["a text", *[None] * 58])
        db.add(vectors=[db.item("item 1").vector], values=[59.0])
    return path


def test_items_are_got_by_their_keys(store: Path) -> None:
    """They come as JSON with what they carry, or plainly, or many from stdin; a text that is not the key is told."""
    found = [json.loads(line) for line in ran("get", "item 0", "item 3", "#60", "-d", store).out.splitlines()]
    assert found == [
        {"key": "item 0", "value": 0.0, "text": "a text"},
        {"key": "item 3", "value": 3.0, "payload": {"n": 3}},
        {"key": "#60", "value": 59.0},
    ]
    assert ran("get", "-", "--plain", "-d", store, stdin="item 5\nitem 4\n").out == "5.0\n4.0\n"
    assert "item 5" in ran("get", "item 5", "-d", store, terminal=True).out


def test_a_key_that_is_not_there_is_exit_code_1(store: Path) -> None:
    """Nothing is printed of the others either."""
    assert ran("get", "item 1", "item 99", "-d", store) == (1, "", "softkv: no item has the key 'item 99'\n")
    done = ran("delete", "item 1", "item 99", "-d", store)
    assert (done.code, done.out) == (1, "")
    assert ran("get", "item 1", "-d", store).code == 0


def test_items_are_deleted(store: Path) -> None:
    """Named or from stdin, keyless ones by their number; how many is told on stderr."""
    assert ran("delete", "item 1", "#60", "-d", store) == (0, "", "deleted 2\n")
    assert ran("delete", "-", "-d", store, stdin="item 2\nitem 3\n").err == "deleted 2\n"
    with softkv.open(store, "r") as db:
        assert len(db) == 56
        assert db.check().ok


@pytest.mark.parametrize("value", ["9007199254740993", "-9007199254740993", "1,2", "many", "nan", ""])
def test_a_number_that_cannot_be_kept_is_set_nowhere(store: Path, value: str) -> None:
    """An integer that would be rounded is refused, as `add` refuses it, and so is what is no number."""
    done = ran("set", "-d", store, "--", value, "item 1")
    assert (done.code, done.out) == (1, "")
    assert "number" in done.err or "integer" in done.err or "NaN" in done.err
    assert "vector" not in done.err
    with softkv.open(store, "r") as db:
        assert db["item 1"] == 1.0


def test_a_list_is_all_of_it_when_piped(store: Path) -> None:
    """It comes in order, as JSON lines, CSV or bare keys, a stretch or what matches a filter."""
    assert [json.loads(line)["value"] for line in ran("list", "-d", store).out.splitlines()] == list(range(60))
    assert ran("list", "--plain", "-n", 2, "--skip", 3, "-d", store).out == "item 3\nitem 4\n"
    assert ran("list", "--plain", "--where", '{"n": {"$gte": 57}}', "-d", store).out == "item 57\n"
    rows = list(csv.DictReader(io.StringIO(ran("list", "--csv", "-d", store).out)))
    assert [row["key"] for row in rows][-1] == "#60"
    assert json.loads(rows[1]["payload"]) == {"n": 1}


def test_a_list_on_a_terminal_has_an_end(store: Path) -> None:
    """It shows fifty items, and how to see more."""
    done = ran("list", "-d", store, terminal=True)
    assert "item 49" in done.out
    assert "item 50" not in done.out
    assert "--limit" in done.err
    assert ran("list", "-d", store, "-n", 60, terminal=True).err == ""


def test_info_says_what_the_store_is(store: Path) -> None:
    """Lines, JSON and CSV have the same figures as the library."""
    with softkv.open(store, "r") as db:
        expected = db.info().to_dict()
    found = json.loads(ran("info", "-d", store).out)
    assert {**found, "bytes_on_disk": 0} == {**expected, "bytes_on_disk": 0}
    assert "value kind        number" in ran("info", "-d", store, terminal=True).out
    (row,) = csv.DictReader(io.StringIO(ran("info", "--csv", "-d", store).out))
    assert row["items"] == "60"


def test_the_path_is_printed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is printed in full, however it was given."""
    monkeypatch.chdir(store.parent)
    assert ran("path", "-d", "./s").out.strip() == str(store.resolve())


@pytest.mark.parametrize("form", [[], ["--plain"], ["--csv"], ["--json"]])
def test_a_terminal_is_not_told_what_to_do_by_data(tmp_path: Path, form: list[str]) -> None:
    """What would move its cursor or turn its text around is spelled out there; a pipe gets data as they are."""
    odd = "a\x1b[2J\x9b31m\u202eb"
    with softkv.open(tmp_path / "s", value="text") as db:
        db.add([odd], [odd], vectors=[[1.0, 0.0]])
    shown = ran("list", "--db", tmp_path / "s", *form, terminal=True).out
    assert not {"\x1b", "\x9b", "\u202e"} & set(re.sub("\x1b\\[[0-9;]*m", "", shown))
    assert "202e" in shown
    piped = ran("list", "--db", tmp_path / "s", *form).out
    assert odd in (piped if form in (["--plain"], ["--csv"]) else json.loads(piped)["key"])
    missing = ran("get", odd + "?", "--db", tmp_path / "s")
    assert missing.code == 1
    assert not {"\x1b", "\x9b", "\u202e"} & set(missing.err)
