"""What a store has learned goes with it: through every format of export, through compaction and through repair."""

import base64
import errno
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv import errors
from softkv.database import LearnedNotCarried, import_from, repair
from softkv.files.exports import export
from softkv.files.exports import header as heads

from .commands import ran
from .scales import scaled
from .test_writer import failing

ITEMS, WIDTH = 400, 6
FORMATS = [".jsonl", ".npz", ".parquet"]
STORES = ["planes", "numbers", "vectors", "labels", "directions"]


def keys_of(seed: int, count: int) -> np.ndarray:
    """Of six features two matter, and the others are louder."""
    keys = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32)
    keys[:, 2:] *= 3.0
    return keys


KEYS, QUERIES = keys_of(0, ITEMS), keys_of(1, 40)


def values_of(kind: str, keys: np.ndarray) -> Any:
    """Values that the first two features decide."""
    wave = 100.0 + 10.0 * np.sin(2 * keys[:, 0]) + 5.0 * keys[:, 1]
    if kind == "vectors":
        return np.stack([wave, -wave, keys[:, 0]], 1)
    return wave if kind in ("planes", "numbers") else [f"{x > 0} {y > 0}" for x, y in keys[:, :2].tolist()]


def filled(path: Path, kind: str = "numbers") -> softkv.SoftKV:
    """A store of a kind that is tuned and has learned."""
    value = {"vectors": "vector", "labels": "label", "directions": "label"}.get(kind, "number")
    db = softkv.open(path, value=value, compatibility="cosine" if kind == "directions" else "gaussian")
    payloads = [{"even": n % 2 == 0} for n in range(ITEMS)]
    db.add(
        [None if n % 7 == 0 else str(n) for n in range(ITEMS)], values_of(kind, KEYS), vectors=KEYS, payloads=payloads
    )
    db.tune(hold_out=0)
    assert db.fit(planes=True if kind == "planes" else None if value != "number" else False, hold_out=0).kept
    return db


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps."""
    scaled(monkeypatch, steps=15)


@pytest.fixture
def waves(tmp_path: Path) -> Iterator[softkv.SoftKV]:
    """A store of numbers that has learned."""
    with filled(tmp_path / "waves") as db:
        yield db


def answers_of(db: Any, **options: Any) -> list[bytes]:
    """All that lookups say, bit for bit."""
    found = db.lookup(QUERIES, **options)
    return [np.asarray(one).tobytes() for one in (found.value, found.spread, found.log_mass, found.effective)]


def learned_by(db: Any) -> list[Any]:
    """The metric and all numbers that belong to it, bit for bit."""
    learned = db._view().learned
    arrays = (learned.metric.factors, learned.metric.centre, learned.units, learned.numbers)
    return [learned.metric.directions, learned.ridge, dict(learned.facts), *(one.tobytes() for one in arrays)]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("kind", STORES)
def test_an_import_answers_as_the_store_that_was_exported(tmp_path: Path, kind: str, suffix: str) -> None:
    """Bit for bit, by what was learned and without it, also once both have grown."""
    with filled(tmp_path / "s", kind) as db:
        assert db.export(tmp_path / f"all{suffix}") == ITEMS
        assert import_from(tmp_path / f"all{suffix}", tmp_path / "t") == ITEMS
        with softkv.open(tmp_path / "t") as again:
            assert again._store.settings == db._store.settings
            assert learned_by(again) == learned_by(db)
            assert answers_of(again) == answers_of(db)
            assert answers_of(again, projection=False) == answers_of(db, projection=False)
            assert answers_of(again, where={"even": True}) == answers_of(db, where={"even": True})
            assert again.info().projection == db.info().projection
            more = keys_of(2, 9)
            for one in (db, again):
                one.add(values=values_of(kind, more)[:8], vectors=more[:8])
                one.add(values=values_of(kind, more)[8:], vectors=more[8:])
                one.delete(["1", "#1"])
                one.compact()
            assert answers_of(again) == answers_of(db)
            assert again.check().ok
            assert not again.check().notes


@pytest.mark.slow
def test_an_import_answers_in_another_process(tmp_path: Path, waves: softkv.SoftKV) -> None:
    """What was carried is on the disk."""
    waves.export(tmp_path / "all.npz")
    import_from(tmp_path / "all.npz", tmp_path / "t")
    ask = "import softkv, sys; print(softkv.open(sys.argv[1], 'r').lookup([0.5] * 6).log_mass)"
    told = [subprocess.check_output([sys.executable, "-c", ask, path]) for path in (waves.path, tmp_path / "t")]
    assert told[0] == told[1]


@pytest.mark.parametrize("suffix", FORMATS)
def test_items_that_came_and_went_do_not_disturb_what_is_carried(
    tmp_path: Path, waves: softkv.SoftKV, suffix: str
) -> None:
    """Deleted, replaced and added one by one: the import is the store as if it had been filled in that order."""
    waves.delete([str(n) for n in range(2, 60, 7)])
    for n in (100, 3, 50):
        waves.add(str(n), 1.0, vectors=KEYS[n] + 1, on_conflict="replace")
    with waves.snapshot() as seen:
        waves.forget_fit()
        with pytest.warns(LearnedNotCarried, match="not there any more"):
            seen.export(tmp_path / f"late{suffix}")
    assert waves.fit(planes=False, hold_out=0).kept
    waves.export(tmp_path / f"all{suffix}")
    import_from(tmp_path / f"all{suffix}", tmp_path / "t")
    order = waves._store.in_order()
    with softkv.open(tmp_path / "t", "r") as again:
        expected = waves._view().learned.of_rows(order)
        assert again._view().learned.numbers.tobytes() == expected.numbers.tobytes()
        assert learned_by(again)[:-1] == learned_by(waves)[:-1]
        found, known = again.lookup(QUERIES), waves.lookup(QUERIES)
        assert (np.abs(np.ravel(found.value - known.value)) <= np.ravel(found.error + known.error)).all()


def test_the_numbers_of_keys_do_not_depend_on_how_they_came_in(tmp_path: Path, waves: softkv.SoftKV) -> None:
    """One by one or together, read then or later: or a copy would answer differently."""
    for n in range(20):
        waves.add(values=[1.0], vectors=KEYS[n : n + 1] * 1.5)
        waves.lookup(QUERIES[:1])
    known = learned_by(waves)
    with softkv.open(waves.path, "r") as other:
        assert learned_by(other) == known
    waves.delete([str(n) for n in range(200, 300) if n % 7])
    waves.compact()
    kept = waves._view().learned
    fresh = kept.metric.numbers(waves._view().snapshot.vectors(np.arange(len(waves))))
    assert kept.numbers.tobytes() == fresh.tobytes()


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_export_without_what_was_learned_imports_and_answers(
    tmp_path: Path, waves: softkv.SoftKV, suffix: str
) -> None:
    """That files of earlier versions lack it is said once, and they answer as if nothing had been learned."""
    with waves._store.snapshot() as snapshot:
        export(snapshot, tmp_path / f"old{suffix}")
    with pytest.warns(LearnedNotCarried, match=r"does not hold.*fit"):
        assert import_from(tmp_path / f"old{suffix}", tmp_path / "t") == ITEMS
    with softkv.open(tmp_path / "t") as db:
        assert answers_of(db) == answers_of(waves, projection=False)
        assert db.info().temperature_from == f"tuned, from {ITEMS} items"
    done = ran("import", tmp_path / f"old{suffix}", "-d", tmp_path / "u")
    assert done.code == 0
    assert done.err.startswith("hint: ")
    assert "`softkv fit`" in done.err
    assert ran("query", "--vector", "0,0,0,0,0,0", "-d", tmp_path / "u").code == 0


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_what_cannot_be_read_is_said_before_an_export_is_written(
    tmp_path: Path, waves: softkv.SoftKV, damage: str
) -> None:
    """The file is whole but for that, and what is imported from it answers."""
    (file,) = Path(waves.path, "index").iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink() if damage == "missing" else file.write_bytes(content)
    with softkv.open(waves.path, "r") as db:
        with warnings.catch_warnings():
            warnings.simplefilter("error", LearnedNotCarried)
            with pytest.raises(LearnedNotCarried, match="without what it has learned"):
                db.export(tmp_path / "all.npz")
        assert not (tmp_path / "all.npz").exists()
        with pytest.warns(LearnedNotCarried):
            db.export(tmp_path / "all.npz")
    import_from(tmp_path / "all.npz", tmp_path / "t")
    with softkv.open(tmp_path / "t", "r") as again:
        assert answers_of(again) == answers_of(waves, projection=False)
    done = ran("export", tmp_path / "again.jsonl", "-d", waves.path)
    assert (done.code, done.err.splitlines()[0][:5], len(done.err.splitlines())) == (0, "hint:", 2)


def test_what_is_too_large_for_a_file_is_left_behind_in_words(
    tmp_path: Path, waves: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is written that nothing reads."""
    monkeypatch.setattr(heads, "MOST_CARRIED", 100)
    with pytest.warns(LearnedNotCarried, match="bytes"):
        waves.export(tmp_path / "all.jsonl")
    assert import_from(tmp_path / "all.jsonl", tmp_path / "t") == ITEMS


def test_a_store_that_was_emptied_carries_nothing_it_has_learned(tmp_path: Path, waves: softkv.SoftKV) -> None:
    """There are no rows it could be about; that is said, and the new store takes items and answers."""
    waves.clear()
    with pytest.warns(LearnedNotCarried, match="no items"):
        waves.export(tmp_path / "none.jsonl")
    assert import_from(tmp_path / "none.jsonl", tmp_path / "t") == 0
    with softkv.open(tmp_path / "t") as db:
        db.add(values=[1.0], vectors=KEYS[:1])
        assert db.lookup(QUERIES[0]).value == 1.0


def test_only_what_carries_something_needs_the_newer_format(tmp_path: Path, waves: softkv.SoftKV) -> None:
    """A file without a projection is as it was, and older code reads it."""
    waves.export(tmp_path / "learned.jsonl")
    waves.forget_fit()
    waves.export(tmp_path / "plain.jsonl")
    learned, plain = (header_of(tmp_path / f"{name}.jsonl") for name in ("learned", "plain"))
    assert (learned["format"], sorted(learned["files"])) == (2, [learned["settings"]["projection"]])
    assert plain["format"] == 1
    assert "files" not in plain


def header_of(path: Path) -> dict[str, Any]:
    """What the first line of an export says."""
    with path.open(encoding="utf-8") as file:
        found: dict[str, Any] = json.loads(file.readline())["softkv"]
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[softkv.SoftKV]:
    """A store of numbers that has learned, for all tests that only export it."""
    with pytest.MonkeyPatch.context() as patch:
        scaled(patch, steps=15)
        with filled(tmp_path_factory.mktemp("told") / "s") as db:
            yield db


def forged(path: Path, db: softkv.SoftKV, **changes: Any) -> Path:
    """An export whose header says something else."""
    db.export(path)
    first, *rest = path.read_text(encoding="utf-8").splitlines(keepends=True)
    fields = json.loads(first)["softkv"]
    for name, change in changes.items():
        fields[name] = change(fields[name]) if callable(change) else change
    path.write_text("".join([json.dumps({"softkv": fields}) + "\n", *rest]), encoding="utf-8")
    return path


def altered(db: softkv.SoftKV, **changes: Any) -> Any:
    """A change of the files of a header: the projection with other arrays or facts."""
    from softkv.index.encoding import encoded

    learned = db._view().learned
    arrays = {"factors": learned.metric.factors, "centre": learned.metric.centre, "units": learned.units}
    arrays |= {"numbers": np.empty(0, np.float32)}
    facts = {"directions": False, "ridge": None, "learned": dict(learned.facts)}
    facts |= {name: value for name, value in changes.items() if name in facts}
    arrays |= {name: np.asarray(value, np.float32) for name, value in changes.items() if name in arrays}
    content = base64.b64encode(b"".join(encoded(facts, arrays))).decode()
    return lambda files: dict.fromkeys(files, content)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": "none"},
        {"files": []},
        {"files": None},
        {"format": 1},
        {"format": 3},
        {"files": lambda files: dict(zip(["another"], files.values(), strict=True))},
        {"files": lambda files: files | {"another": "AAAA"}},
        {"files": lambda files: {name: content[:-5] for name, content in files.items()}},
        {"files": lambda files: {name: "AAAA" + content for name, content in files.items()}},
        {"files": lambda files: dict.fromkeys(files, "")},
        {"files": lambda files: dict.fromkeys(files, 7)},
        {"files": lambda files: dict.fromkeys(files, "no base64 at all ü")},
        {"settings": lambda settings: settings | {"projection": "x" * 300}},
        {"settings": lambda settings: settings | {"projection": 7}},
        {"settings": lambda settings: settings | {"temperature": "warm"}},
        {"settings": lambda settings: {name: one for name, one in settings.items() if name != "projection"}},
        {"factors": np.ones((2, 5))},
        {"factors": np.full((2, 6), np.nan)},
        {"factors": np.full((2, 6), 3e38)},
        {"factors": np.ones(6)},
        {"centre": np.full(6, np.inf)},
        {"units": np.zeros(6)},
        {"numbers": np.zeros(1)},
        {"ridge": -1.0},
        {"ridge": "flat"},
        {"ridge": float("inf")},
        {"learned": {"items": "many"}},
        {"learned": 3},
        {"directions": True, "centre": np.ones(6)},
    ],
    ids=lambda harm: next(iter(harm)),
)
def test_a_projection_that_cannot_be_one_is_refused_and_nothing_stays(
    tmp_path: Path, told: softkv.SoftKV, changes: dict[str, Any]
) -> None:
    """A BadRecord names the file, whatever it says it has learned, and there is no store."""
    if not changes.keys() <= {"files", "settings", "format"}:
        changes = {"files": altered(told, **changes)}
    path = forged(tmp_path / "forged.jsonl", told, **changes)
    with pytest.raises((errors.BadRecord, errors.FormatTooNew), match=r"forged\.jsonl"):
        import_from(path, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_the_changes_of_these_tests_are_what_is_refused(tmp_path: Path, told: softkv.SoftKV) -> None:
    """A file that is forged without a change is read, so it is the changes that are refused."""
    path = forged(tmp_path / "forged.jsonl", told, files=altered(told))
    assert import_from(path, tmp_path / "t") == ITEMS
    with softkv.open(tmp_path / "t", "r") as again:
        assert answers_of(again) == answers_of(told)


def test_an_interrupted_import_leaves_nothing(tmp_path: Path, waves: softkv.SoftKV) -> None:
    """There are no items, and nothing that was learned."""

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    waves.export(tmp_path / "all.jsonl")
    with pytest.raises(KeyboardInterrupt):
        import_from(tmp_path / "all.jsonl", tmp_path / "t", progress=stop)
    assert not (tmp_path / "t").exists()


def test_what_was_imported_can_be_dropped_and_learned_anew(tmp_path: Path, waves: softkv.SoftKV) -> None:
    """It can be dropped like what was learned here."""
    waves.export(tmp_path / "all.parquet")
    done = ran("import", tmp_path / "all.parquet", "-d", tmp_path / "t")
    assert (done.code, done.err) == (0, f"imported {ITEMS} items into {tmp_path / 't'}\n")
    assert ran("fit", "--drop", "-d", tmp_path / "t").err == "dropped: keys are compared as they are given\n"
    with softkv.open(tmp_path / "t") as db:
        assert answers_of(db) == answers_of(waves, projection=False)
        assert not list(Path(db.path, "index").iterdir())
        assert db.fit(planes=False).kept


# Repair


def test_a_repaired_store_compares_as_learned(tmp_path: Path, waves: softkv.SoftKV) -> None:
    """Bit for bit where nothing was lost, and by the same metric where something was."""
    done = repair(waves.path, tmp_path / "whole")
    assert (done.saved, done.lost, done.missing) == (ITEMS, 0, ())
    with softkv.open(tmp_path / "whole") as again:
        assert learned_by(again) == learned_by(waves)
        assert answers_of(again) == answers_of(waves)
        assert again._store.settings == waves._store.settings
        assert again.check().ok
    waves.close()
    from .stores import sql

    sql(Path(waves.path), "UPDATE items_1 SET key = 'nobody' WHERE key = '3'")
    done = repair(waves.path, tmp_path / "less")
    assert done.missing == (3,)
    with softkv.open(tmp_path / "less", "r") as again, softkv.open(waves.path, "r") as old:
        assert learned_by(again)[:-1] == learned_by(old)[:-1]
        kept = np.delete(old._view().learned.numbers, 3)
        assert again._view().learned.numbers.tobytes() == kept.tobytes()


def test_a_repair_says_what_was_learned_and_lost(tmp_path: Path, waves: softkv.SoftKV) -> None:
    """A damaged projection does not come along, and the new store answers without it."""
    (file,) = Path(waves.path, "index").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.warns(LearnedNotCarried, match="without what the old store has learned"):
        repair(waves.path, tmp_path / "new")
    with softkv.open(tmp_path / "new", "r") as again:
        assert answers_of(again) == answers_of(waves, projection=False)
    done = ran("check", "--repair-to", tmp_path / "other", "-d", waves.path)
    assert done.code == 0
    assert done.err.startswith("hint: ")
    Path(waves.path, "generation-000001", "keys.f32").unlink()
    done = ran("check", "--repair-to", tmp_path / "none", "-d", waves.path)
    assert (done.code, done.err.count("there are no items")) == (0, 1)
    assert [line for line in done.out.splitlines() if line.startswith("  lost")][:2] == ["  lost: '#1'", "  lost: '1'"]
    assert done.out.splitlines()[-1] == f"0 items saved to {tmp_path / 'none'}, {ITEMS} lost"


def test_a_projection_that_the_disk_cannot_read_costs_no_item(
    tmp_path: Path, waves: softkv.SoftKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check goes on with a note, and the items are saved without it."""
    error = OSError(errno.EIO, "Input/output error")
    with failing(monkeypatch, "read", error, times=9), pytest.warns(LearnedNotCarried, match="Input/output error"):
        done = repair(waves.path, tmp_path / "new")
    assert (done.saved, done.lost, done.report.ok) == (ITEMS, 0, True)
    assert [note for note in done.report.notes if "Input/output error" in note]
    with softkv.open(tmp_path / "new", "r") as again:
        assert answers_of(again) == answers_of(waves, projection=False)


# Another embedder


def test_a_change_of_embedder_says_what_it_forgets(tmp_path: Path) -> None:
    """It says so before anything is written, once, and only where something was learned."""
    texts = [f"{'cat' if n % 2 else 'dog'} {'red' if n % 3 else 'blue'} {n}" for n in range(60)]

    def letters(given: list[str]) -> list[list[float]]:
        return [[text.count(letter) + 0.5 for letter in "aeiou"] for text in given]

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with softkv.open(tmp_path / "s", value="label") as db:
        db.add(texts, ["odd" if n % 2 else "even" for n in range(60)])
        db.reembed("static")
        assert db.fit().kept
        with warnings.catch_warnings():
            warnings.simplefilter("error", LearnedNotCarried)
            with pytest.raises(LearnedNotCarried, match=r"fit.*forgotten"):
                db.reembed(letters)
        assert (db.info().unfinished, db.info().embedder) == (None, "static")
        with pytest.warns(LearnedNotCarried), pytest.raises(KeyboardInterrupt):
            db.reembed(letters, progress=stop)
        assert db.info().projection is not None
        db.abandon_reembedding()
        assert db.lookup("cat red").error_kind == "exact"
        with pytest.warns(LearnedNotCarried):
            db.reembed(letters)
        assert db.info().projection is None
        assert db.lookup("cat red").scored == 60
