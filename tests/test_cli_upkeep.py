"""`softkv check`, `compact` and `reembed`; `export` and `import`; `models`."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import softkv
from softkv.database import upkeep
from softkv.embedders import register

from .commands import ran
from .scales import scaled

TEXTS = [f"a text about the number {number}" for number in range(30)]
register("letters", lambda texts: [[text.count(letter) + 0.1 for letter in "aeiou"] for text in texts])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Thirty texts with texts as values."""
    path = tmp_path / "s"
    with softkv.open(path) as db:
        db.add(TEXTS, [f"value of {text}" for text in TEXTS])
    return path


def test_compaction_tells_what_it_freed(tmp_path: Path) -> None:
    """Dead rows and bytes; the rest answers as before."""
    with softkv.open(tmp_path / "s") as db:
        db.add(vectors=np.random.default_rng(0).standard_normal((2000, 64)), values=np.arange(2000.0))
        db.delete([f"#{number}" for number in range(1, 1001)])
    done = ran("compact", "-d", tmp_path / "s")
    assert done.code == 0
    assert done.err.startswith("left 1,000 dead rows behind; ")
    assert int(done.err.split("; ")[1].split()[0].replace(",", "")) > 200_000
    with softkv.open(tmp_path / "s", "r") as db:
        assert len(db) == 1000
        assert db.check().ok


def test_what_readers_hold_is_told_apart_from_dead_rows(tmp_path: Path) -> None:
    """Answers to many queries keep the rows that they are about; once they are dropped, compaction tells what went."""
    path, keys = tmp_path / "s", np.random.default_rng(0).standard_normal((2000, 64))
    with softkv.open(path) as db:
        db.add(vectors=keys, values=np.arange(2000.0))
        answers = db.lookup(keys[:3])
        db.delete([f"#{number}" for number in range(1, 1001)])
        assert (db.info().freed_by_compact, db.info().held_by_readers) == (1000 * 4 * (64 + 1 + 2), 0)
        assert re.search(r"freed by compact +268,000\n", ran("info", "-d", path, terminal=True).out)
        db.compact()
        held = db.info().held_by_readers
        assert (db.info().dead_rows, db.info().freed_by_compact) == (0, 0)
        assert held > 2000 * 4 * 64
    assert ran("compact", "-d", path).err.endswith(f"; {held:,} bytes go when those who read them let go\n")
    assert len(answers) == 3
    del answers
    told = ran("compact", "-d", path).err
    assert told.startswith("left 0 dead rows behind; ")
    assert int(told.split("; ")[1].split()[0].replace(",", "")) >= held
    with softkv.open(path, "r") as db:
        assert db.info().held_by_readers == 0
        assert db.check().ok


def test_one_is_told_as_one(tmp_path: Path) -> None:
    """A row, an item and a finding are told in the singular."""
    path = tmp_path / "s"
    with softkv.open(path) as db:
        db.add(["a", "b"], [1.0, 2.0], vectors=np.eye(2))
        del db["b"]
    assert ran("compact", "-d", path).err.startswith("left 1 dead row behind")
    assert ran("export", tmp_path / "a.npz", "-d", path).err.startswith("exported 1 item to ")
    assert ran("backup", tmp_path / "b", "-d", path).err.startswith("1 item as of commit ")
    assert "rule, from 1 item\n" in ran("info", "-d", path, terminal=True).out
    (keys,) = path.glob("generation-*/keys.f32")
    with keys.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff")
    assert f"{path}: 1 finding, commit " in ran("check", "-d", path).out
    assert ran("check", "--repair-to", tmp_path / "r", "-d", path).out.endswith(
        f"0 items saved to {tmp_path / 'r'}, 1 lost\n"
    )


def test_a_check_tells_what_else_to_do_than_to_check(store: Path, tmp_path: Path) -> None:
    """It does of a damaged header, too; a copy that is only older than it must be is not called damaged."""
    done = ran("check", "--at-least", 1000, "-d", store)
    assert (done.code, done.err, "finding: it is at commit" in done.out) == (1, "", True)
    for keys in store.glob("generation-*/keys.f32"):
        keys.write_bytes(b"x" + keys.read_bytes()[1:])
    done = ran("check", "-d", store)
    assert (done.code, "tells what is left" in done.out, "damage: " in done.out) == (1, False, False)
    assert "1 finding, commit" in done.out
    assert done.err.startswith("`softkv check --repair-to NEW` writes the good items to a new store")
    done = ran("check", "--repair-to", tmp_path / "new", "-d", store)
    assert "tells what is left" not in done.out
    assert done.out.endswith(f"30 items saved to {tmp_path / 'new'}, 0 lost\n")


def test_a_backup_that_is_not_there_is_called_that(tmp_path: Path) -> None:
    """It is the backup that is missing, which no `add` makes."""
    done = ran("restore", tmp_path / "nosuch", "-d", tmp_path / "s")
    assert done.code == 1
    assert f"there is no backup at {tmp_path / 'nosuch'}" in done.err
    assert "softkv add" not in done.err


def test_another_model_embeds_everything_again(store: Path) -> None:
    """Keys and values are those of the new model, order and payloads stay, and the old model is refused by name."""
    before = [json.loads(line) for line in ran("list", "-d", store).out.splitlines()]
    assert ran("reembed", "-m", "letters", "-d", store) == (0, "", "embedded 30 items with letters\n")
    assert [json.loads(line) for line in ran("list", "-d", store).out.splitlines()] == before
    with softkv.open(store, "r") as db:
        assert db.info().embedder == "letters"
        assert (db.info().key_width, db.info().value_width) == (5, 5)
        assert db.lookup(TEXTS[0]).scored == 30
        assert db.check().ok
    done = ran("query", "a", "-m", "static", "-d", store)
    assert done.code == 1
    assert "'letters'" in done.err
    assert "'static'" in done.err
    assert "softkv reembed" in done.err


def test_an_interrupted_change_of_model_goes_on(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see the old model until it is done, nothing can be added meanwhile, and no model need be named again."""
    scaled(monkeypatch, reembedded=7)
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if done >= 14:
            raise KeyboardInterrupt

    with softkv.open(store) as db, pytest.raises(KeyboardInterrupt):
        db.reembed("letters", progress=stop)
    assert seen == [7, 14]
    info = json.loads(ran("info", "-d", store).out)
    assert (info["embedder"], info["unfinished"]) == ("static", "14 of 30 items embedded anew")
    assert ran("query", TEXTS[3], "-d", store).code == 0
    refused = ran("add", "new", "value", "-d", store)
    assert refused.code == 1
    assert "softkv reembed" in refused.err
    assert ran("reembed", "-m", "static", "-d", store).code == 1
    assert ran("reembed", "-d", store).err == "embedded 30 items with letters\n"
    with softkv.open(store) as db:
        assert db.info().unfinished is None
        db["new"] = "value"
        assert db.check().ok


def test_a_change_of_model_that_has_not_begun_is_called_for_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt before the first items are written tells a command that works, and does not offer to drop them."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(upkeep, "reembed", interrupted)
    done = ran("reembed", "-m", "letters", "-d", store)
    assert done.code == 130
    assert f"nothing was begun. `softkv reembed --db {store} --model letters` begins again." in done.err
    assert "--abandon" not in done.err


def test_a_change_of_model_may_be_abandoned(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is as it was afterwards, and can be written to."""
    scaled(monkeypatch, reembedded=7)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with softkv.open(store) as db, pytest.raises(KeyboardInterrupt):
        db.reembed("letters", progress=stop)
    assert ran("reembed", "--abandon", "-d", store) == (0, "", "the change was dropped\n")
    assert ran("add", "new", "value", "-d", store).code == 0
    with softkv.open(store, "r") as db:
        assert db.info().embedder == "static"
        assert db.check().ok


def test_bare_vectors_cannot_be_embedded_again(tmp_path: Path) -> None:
    """It refuses before it starts, and says how many there are."""
    with softkv.open(tmp_path / "s") as db:
        db.add(TEXTS, np.arange(30.0))
        db.add(["bare", "too"], [1.0, 2.0], vectors=np.ones((2, 256)))
    done = ran("reembed", "-m", "letters", "-d", tmp_path / "s")
    assert done.code == 1
    assert "2 of 32 items were given as bare vectors" in done.err
    with softkv.open(tmp_path / "s", "r") as db:
        assert db.info().unfinished is None


def test_nothing_to_go_on_with_is_said(store: Path) -> None:
    """There is no model, or no change that was begun."""
    done = ran("reembed", "-d", store)
    assert done.code == 2
    assert "softkv models" in done.err
    done = ran("reembed", "--abandon", "-d", store)
    assert done.code == 1
    assert "none to drop" in done.err


@pytest.mark.parametrize("ending", ["jsonl", "npz", "parquet"])
def test_an_export_is_imported(store: Path, tmp_path: Path, ending: str) -> None:
    """The copy lists and answers as the first does."""
    file = tmp_path / f"all.{ending}"
    assert ran("export", file, "-d", store).err == f"exported 30 items to {file}\n"
    assert ran("import", file, "-d", tmp_path / "t").err == f"imported 30 items into {tmp_path / 't'}\n"
    for command in (["list"], ["query", "the number five"]):
        assert ran(*command, "-d", tmp_path / "t").out == ran(*command, "-d", store).out
    again = ran("export", file, "-d", store)
    assert again.code == 1
    assert "--force" in again.err or "force" in again.err
    assert ran("export", file, "--force", "-d", store).code == 0
    assert ran("import", file, "-d", store).code == 1


def test_models_are_listed_and_known_by_what_they_do() -> None:
    """The bundled one is always there; its fingerprint is what a store would keep."""
    assert "static" in ran("models", terminal=True).out
    assert {"name": "static", "origin": "bundled", "width": 256} in [
        json.loads(line) for line in ran("models", "list").out.splitlines()
    ]
    found = json.loads(ran("models", "fingerprint", "letters").out)
    assert (found["name"], found["width"]) == ("letters", 5)
    assert ran("models", "fingerprint", "no such model").code == 1
