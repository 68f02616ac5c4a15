"""What happens at the door of a store: what is let in, what is refused, and that refusing changes nothing."""

import errno
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.database import import_from, repair
from softkv.database.making import made
from softkv.doors.cluster import create
from softkv.errors import (
    AccessRefused,
    FormatTooNew,
    InputError,
    NotAStore,
    SoftKVError,
    StorageFailed,
    StorageFull,
    StoreDamaged,
    StoreError,
    StoreLocked,
    StoreNotFound,
    WritingUnsupported,
)
from softkv.storage import Store, check, layout
from softkv.storage.catalog import catalog, migrations, tables
from softkv.storage.catalog.roster import content_seal
from softkv.storage.disk import files, locks
from softkv.storage.layout import FORMAT, GRANULE, WINDOW
from softkv.storage.protocol import opening
from softkv.storage.protocol.leftovers import remove_unborn
from tests.stores import (
    CATALOG,
    FRUIT,
    GENERATION,
    bytes_of,
    closed_fruit,
    contents,
    copied,
    flip,
    footprint,
    forge,
    fruit,
    in_child,
    mode_of,
    sql,
    vectors,
)

MODES = ["r", "w", "c", "n"]

# Somebody else who writes: waits for a line, opens the store, adds an item, says so, and closes when asked.
WRITER = """
import sys
from softkv.storage import Store
for line in sys.stdin:
    if line == "open\\n":
        store = Store.open(sys.argv[1], "w")
    elif line == "add\\n":
        store.append([[0.0] * 4], [7.0])
    else:
        store.close()
    print("done", flush=True)
"""


@contextmanager
def promptly(seconds: int = 10) -> Iterator[None]:
    """Turn waiting for ever into a failure."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def shared_directory() -> Iterator[Path]:
    """A directory in which everybody may look, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def another_writer(path: Path) -> Iterator[Callable[[str], None]]:
    """Another process that does what it is told and answers when it has."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def told(order: str) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(order + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        yield told
        process.stdin.close()  # type: ignore[union-attr]


def crashed_fruit(path: Path, work: Callable[[Store], object] = len) -> Path:
    """A store of fruit as a killed writer leaves it: never closed, its last commits in the log."""
    with fruit(path.with_name("alive")) as store:
        work(store)
        return copied(path.with_name("alive"), path)


def kept(path: Path) -> dict[str, object]:
    """What lies in a store, but for what any attempt to open it leaves: the note in LOCK, an empty log, its index."""
    found = footprint(path)
    log = found.pop(f"{CATALOG}-wal", (0, 0))
    assert isinstance(log, tuple)
    return {name: content for name, content in found.items() if name != "LOCK"} | ({"log": log} if log[0] else {})


# What is not a store


@pytest.mark.parametrize("mode", MODES)
def test_a_file_is_refused(tmp_path: Path, mode: str) -> None:
    """A file in the place of a store is named, and left as it is, in every mode."""
    path = tmp_path / "s"
    path.write_bytes(b"mine")
    with pytest.raises(NotAStore, match="is a file; a store is a directory"):
        Store.open(path, mode)
    assert (path.read_bytes(), [one.name for one in tmp_path.iterdir()]) == (b"mine", ["s"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_foreign_database_is_refused(tmp_path: Path, mode: str, journal: str) -> None:
    """A directory with an SQLite database of something else stays identical to the byte, in every mode."""
    path = tmp_path / "s"
    path.mkdir()
    connection = sqlite3.connect(path / CATALOG)
    connection.execute(f"PRAGMA journal_mode={journal}")
    connection.execute("CREATE TABLE state (x)")
    connection.commit()
    connection.close()
    before = bytes_of(tmp_path)
    with pytest.raises(NotAStore, match="SQLite database of something else"):
        Store.open(path, mode)
    assert bytes_of(tmp_path) == before


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("content", [b"", b"hello", b"x" * 10_000, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_a_catalog_that_is_no_database_is_refused(tmp_path: Path, mode: str, content: bytes) -> None:
    """Any other bytes under the catalog's name are an error of ours, and stay as they are."""
    path = tmp_path / "s"
    path.mkdir()
    (path / CATALOG).write_bytes(content)
    with pytest.raises((NotAStore, StoreDamaged)):
        Store.open(path, mode)
    assert bytes_of(path) == {CATALOG: content}


@pytest.mark.parametrize("mode", MODES)
def test_a_directory_of_something_else_is_refused(tmp_path: Path, mode: str) -> None:
    """A directory with other files in it is not taken for a store, nor for a place to make one."""
    path = tmp_path / "s"
    path.mkdir()
    (path / "thesis.txt").write_bytes(b"mine")
    with pytest.raises(NotAStore, match="Its files were left alone"):
        Store.open(path, mode)
    assert bytes_of(tmp_path) == {"s/thesis.txt": b"mine"}


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_path_is_refused(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of a variable that was never set, and makes no store of the working directory."""
    monkeypatch.chdir(tmp_path)
    for path in ("", b""):
        with pytest.raises(InputError, match="got an empty text"):
            Store.open(path, mode)  # type: ignore[arg-type]
    assert bytes_of(tmp_path) == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_store_without_its_catalog_is_damaged(tmp_path: Path, mode: str) -> None:
    """Where only the rows are left, nobody makes a new store over them."""
    path = closed_fruit(tmp_path / "s")
    (path / CATALOG).unlink()
    before = bytes_of(tmp_path)
    with pytest.raises(StoreDamaged, match="no longer one"):
        Store.open(path, mode)
    assert bytes_of(tmp_path) == before


@pytest.mark.parametrize("mode", ["r", "w"])
def test_an_empty_directory_is_no_store(tmp_path: Path, mode: str) -> None:
    """Reading an empty directory is an error, and leaves it empty."""
    with pytest.raises(StoreNotFound, match="is an empty directory"):
        Store.open(tmp_path, mode)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_parent_is_refused(tmp_path: Path, mode: str) -> None:
    """Directories above a store are never made along with it."""
    with pytest.raises(StoreNotFound):
        Store.open(tmp_path / "no" / "s", mode)
    assert not list(tmp_path.iterdir())


def test_a_tilde_names_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does at the start of a text, as a shell expands it; a Path, or ./~, is taken as it is."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for folder in ("home", "~"):
        (tmp_path / folder).mkdir()
    Store.open("~/s", "c").close()
    softkv.open("~/s", "r").backup("~/backup")
    assert softkv.restore("~/backup", "~/again").path == str(tmp_path / "home" / "again")
    Store.open(Path("~/one"), "c").close()
    Store.open("./~/two", "c").close()
    assert sorted(one.name for one in (tmp_path / "home").iterdir()) == ["again", "backup", "s"]
    assert sorted(one.name for one in (tmp_path / "~").iterdir()) == ["one", "two"]


@pytest.mark.parametrize("inside", ["generation-000007", "index/s", "mine"])
def test_nothing_is_made_in_a_store(tmp_path: Path, inside: str) -> None:
    """Its writer would remove it as a leftover; what is there already is read and written, and not made anew."""
    outer, other = closed_fruit(tmp_path / "outer"), closed_fruit(tmp_path / "other")
    (tmp_path / "outer.softkv").symlink_to(outer)
    softkv.open(other, "r").export(tmp_path / "fruit.jsonl")
    create(tmp_path / "cluster", 2)
    before, target = bytes_of(outer), tmp_path / "outer.softkv" / inside
    for attempt in (
        lambda: Store.open(target, "c"),
        lambda: Store.open(target, "n"),
        lambda: softkv.restore(other, target),
        lambda: softkv.restore(tmp_path / "cluster", target),
        lambda: repair(other, target),
        lambda: repair(tmp_path / "cluster", target),
        lambda: import_from(tmp_path / "fruit.jsonl", target),
        lambda: create(target, 2),
        lambda: create(tmp_path / "new", 2, [target.parent]),
        lambda: made(target, value="number", compatibility="dot", temperature=1.0, overwrite=True).__enter__(),
        lambda: softkv.open(other, "r").backup(target),
    ):
        with pytest.raises(InputError, match=r"lies in the store .*outer.* outside of it"):
            attempt()
    assert bytes_of(outer) == before
    assert not (tmp_path / "new").exists()
    shutil.copytree(other, target)
    with Store.open(target, "r") as store:
        assert store.check().ok
    Store.open(target, "c").close()
    with pytest.raises(InputError, match="lies in the store"):
        Store.open(target, "n")
    with Store.open(target, "r") as store:
        assert len(store) == len(FRUIT)


def test_a_store_is_made_beside_a_database_of_something_else(tmp_path: Path) -> None:
    """A directory above may hold a catalog.sqlite that is not of a store."""
    with sqlite3.connect(tmp_path / CATALOG) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    with Store.open(tmp_path / "s", "c") as store:
        assert store.check().ok


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A file where a directory should be is an error of ours in every mode."""
    (tmp_path / "file").write_bytes(b"mine")
    for mode in MODES:
        with pytest.raises(StoreError):
            Store.open(tmp_path / "file" / "s", mode)
    assert bytes_of(tmp_path) == {"file": b"mine"}


def test_a_link_to_a_store_is_followed(tmp_path: Path) -> None:
    """The path may lead through links: the store is the directory they end at."""
    closed_fruit(tmp_path / "s")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    with Store.open(tmp_path / "link", "w") as store:
        assert store.path == str(tmp_path / "s")
        assert list(store.keys()) == list(FRUIT)
        assert store.check().ok


# Permissions


def test_a_directory_without_permission_is_refused() -> None:
    """A user who may not even look into a store is told so in every mode."""

    def look() -> None:
        for mode in MODES:
            with pytest.raises(AccessRefused, match="Permission denied"):
                Store.open(directory / "s", mode)

    with shared_directory() as directory:
        closed_fruit(directory / "s")
        before = bytes_of(directory)
        with mode_of(directory / "s", 0o000):
            in_child(look, unprivileged=True)
        assert bytes_of(directory) == before


def test_a_parent_without_permission_is_refused() -> None:
    """A user who may not make a directory is told so, whether he may look into the parent or not."""

    def make() -> None:
        for mode in ("c", "n"):
            with pytest.raises(AccessRefused, match="Permission denied"):
                Store.open(directory / "s", mode)

    with shared_directory() as directory:
        for permissions in (0o555, 0o000):
            with mode_of(directory, permissions):
                in_child(make, unprivileged=True)
        assert not list(directory.iterdir())


def test_a_catalog_without_permission_is_refused() -> None:
    """A user who may not read the catalog is told so."""

    def look() -> None:
        with pytest.raises(AccessRefused, match="permission"):
            Store.open(directory / "s")

    with shared_directory() as directory:
        closed_fruit(directory / "s")
        with mode_of(directory / "s" / CATALOG, 0o000):
            in_child(look, unprivileged=True)


def test_a_reader_of_a_read_only_directory_does_not_write() -> None:
    """Whoever may only read a store is refused the writing modes, and the store is as before."""

    def write() -> None:
        for mode in ("w", "c", "n"):
            with pytest.raises(AccessRefused, match="Permission denied"):
                Store.open(directory / "s", mode)

    with shared_directory() as directory:
        closed_fruit(directory / "s")
        (directory / "s" / "LOCK").chmod(0o444)
        before = bytes_of(directory)
        with mode_of(directory / "s", 0o555):
            in_child(write, unprivileged=True)
        assert bytes_of(directory) == before


def test_a_closed_store_is_read_without_write_permission() -> None:
    """A store that nobody writes needs no permission but to read, and no file comes or goes."""

    def read() -> None:
        with Store.open(directory / "s") as store:
            assert contents(store) == expected
            assert store.check().ok

    with shared_directory() as directory:
        with fruit(directory / "s") as store:
            expected = contents(store)
        before = bytes_of(directory)
        with mode_of(directory / "s", 0o555):
            in_child(read, unprivileged=True)
        assert bytes_of(directory) == before


def test_a_store_being_written_is_read_without_write_permission() -> None:
    """A reader without write permission sees each commit of a writer at work."""

    def read() -> None:
        told("open")
        with Store.open(directory / "s") as store:
            assert len(store) == 3
            told("add")
            assert store.get("#4").value == 7.0
            assert store.check().ok
        told("close")

    with shared_directory() as directory:
        closed_fruit(directory / "s")
        with another_writer(directory / "s") as told:
            in_child(read, unprivileged=True)


def test_what_a_killed_writer_left_is_read_without_write_permission() -> None:
    """Commits in the log of a writer that died are seen by a reader who may not write, while its index is there."""

    def read() -> None:
        with Store.open(path) as store:
            assert list(store.keys()) == [*FRUIT, "#4"]
            assert store.check().ok

    with shared_directory() as directory:
        path = crashed_fruit(directory / "s", lambda store: store.append(vectors(1), [7.0]))
        assert (path / f"{CATALOG}-wal").stat().st_size
        assert (path / f"{CATALOG}-shm").exists()
        before = bytes_of(path)
        with mode_of(path, 0o555):
            in_child(read, unprivileged=True)
        assert bytes_of(path) == before


def test_a_log_that_cannot_be_read_without_writing_is_named() -> None:
    """Commits in a log without its index need a writer, and the reader is told whom to ask."""

    def read() -> None:
        with pytest.raises(AccessRefused, match="Have the store's owner open and close it once"):
            Store.open(path)

    with shared_directory() as directory:
        path = crashed_fruit(directory / "s")
        (path / f"{CATALOG}-shm").unlink()
        before = bytes_of(path)
        with mode_of(path, 0o555):
            in_child(read, unprivileged=True)
        assert bytes_of(path) == before
        with Store.open(path, "w") as store:  # the advice helps
            assert store.check().ok
        with mode_of(path, 0o555):
            in_child(lambda: Store.open(path).close(), unprivileged=True)


def test_a_frozen_reader_notices_a_writer() -> None:
    """A reader that opened without a log looks again when somebody begins to write, and again when he stops."""

    def read() -> None:
        with Store.open(directory / "s") as store:
            assert store._catalog.connection.frozen
            assert (len(store), "#4" in store) == (3, False)
            os.chmod(directory / "s", 0o755) if os.getuid() == owner else None
            told("open")
            told("add")
            assert (len(store), store.get("#4").value) == (4, 7.0)
            told("add")
            assert len(store) == 5
            told("close")
            assert (len(store), store.check().ok) == (5, True)

    with shared_directory() as directory:
        closed_fruit(directory / "s")
        owner = (directory / "s").stat().st_uid
        with another_writer(directory / "s") as told, mode_of(directory / "s", 0o555):
            in_child(read, unprivileged=True)


def test_a_frozen_reader_notices_what_happened_between_its_calls() -> None:
    """A writer that came and went between two calls of a frozen reader has left its commits."""

    def read() -> None:
        with Store.open(directory / "s") as store:
            assert store._catalog.connection.frozen
            assert len(store) == 3
            os.chmod(directory / "s", 0o755) if os.getuid() == owner else None
            for order in ("open", "add", "close"):
                told(order)
            assert (len(store), store.get("#4").value) == (4, 7.0)
            assert store.check().ok

    with shared_directory() as directory:
        closed_fruit(directory / "s")
        owner = (directory / "s").stat().st_uid
        with another_writer(directory / "s") as told, mode_of(directory / "s", 0o555):
            in_child(read, unprivileged=True)


# Formats

NEXT = FORMAT + 1


@pytest.mark.parametrize("mode", MODES)
def test_a_newer_format_is_refused_with_its_number(tmp_path: Path, mode: str) -> None:
    """A store of a newer softkv is named and left alone, in every mode."""
    path = closed_fruit(tmp_path / "s")
    sql(path, "PRAGMA user_version=7")
    before = kept(tmp_path / "s")
    with pytest.raises(FormatTooNew, match=r"has format 7; this softkv reads up to 3.*pip install -U softkv"):
        Store.open(path, mode)
    assert kept(tmp_path / "s") == before
    assert [one.name for one in tmp_path.iterdir()] == ["s"]


@pytest.fixture
def next_format(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, Callable[[catalog.Catalog], None]]]:
    """A softkv of the next format, whose migrations are still to be written."""
    steps: dict[int, Callable[[catalog.Catalog], None]] = {}
    for module in (layout, catalog, opening, migrations):
        monkeypatch.setattr(module, "FORMAT", NEXT)
    monkeypatch.setattr(migrations, "MIGRATIONS", steps)
    return steps


def configured(tables: catalog.Catalog) -> None:
    """A migration of which something can be seen."""
    head = tables.head()
    standing = tables.standing(head.generation)
    tables.put_standing(replace(standing, settings='{"migrated":true}'))


def test_an_older_format_is_migrated(tmp_path: Path, next_format: dict[int, Callable[[catalog.Catalog], None]]) -> None:
    """The first writer of a newer softkv brings a store to its format, with all that is in it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (layout, catalog, opening, migrations):
            patch.setattr(module, "FORMAT", FORMAT)
        with fruit(tmp_path / "s") as store:
            expected = contents(store)
    next_format[FORMAT] = configured
    with Store.open(tmp_path / "s", "w") as store:
        assert (contents(store), store.settings) == (expected, {"migrated": True})
        assert store.check().ok
    assert sql(tmp_path / "s", "PRAGMA user_version") == [(NEXT,)]


def test_a_reader_does_not_migrate(tmp_path: Path, next_format: dict[int, Callable[[catalog.Catalog], None]]) -> None:
    """A reader of an older format is told to open the store for writing, and changes nothing."""
    path = closed_fruit(tmp_path / "s")
    sql(path, f"PRAGMA user_version={FORMAT}")
    next_format[FORMAT] = configured
    before = kept(path)
    with pytest.raises(StoreError, match=f"has format {FORMAT}; open it once with mode 'w'"):
        Store.open(path)
    assert kept(path) == before


def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, next_format: dict[int, Callable[[catalog.Catalog], None]]
) -> None:
    """A migration is one transaction: after an error in the middle the store has its old format and content."""

    def failing(tables: catalog.Catalog) -> None:
        configured(tables)
        raise ZeroDivisionError

    path = closed_fruit(tmp_path / "s")
    sql(path, f"PRAGMA user_version={FORMAT}")
    before = sql(path, "SELECT * FROM generations")
    next_format[FORMAT] = failing
    with pytest.raises(ZeroDivisionError):
        Store.open(path, "w")
    assert (sql(path, "PRAGMA user_version"), sql(path, "SELECT * FROM generations")) == ([(FORMAT,)], before)
    next_format[FORMAT] = configured
    with Store.open(path, "w") as store:
        assert store.check().ok


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("number", [-3, 0])
def test_a_format_that_never_was_is_damage(tmp_path: Path, number: int, mode: Any) -> None:
    """A format number below the first is refused, to read and to write, and nothing is changed."""
    path = closed_fruit(tmp_path / "s")
    sql(path, f"PRAGMA user_version={number}")
    with pytest.raises(StoreDamaged, match=f"format {number}, which no softkv ever wrote"):
        Store.open(path, mode)
    assert sql(path, "PRAGMA user_version") == [(number,)]


# Things in the place of files

PLACES = [
    CATALOG,
    f"{CATALOG}-wal",
    f"{CATALOG}-shm",
    "LOCK",
    f"{GENERATION}/PIN",
    f"{GENERATION}/keys.f32",
    f"{GENERATION}/values.number",
    f"{GENERATION}/norms.f32",
]


def put(what: str, place: Path, elsewhere: Path) -> None:
    """Put something that is no regular file in the place of one, which goes elsewhere."""
    if place.exists():
        place.rename(elsewhere)
    else:
        elsewhere.write_bytes(b"")
    if what == "link":
        place.symlink_to(elsewhere)
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("what", ["link", "pipe", "directory"])
@pytest.mark.parametrize("name", PLACES)
def test_what_is_no_regular_file_is_refused(tmp_path: Path, name: str, what: str, mode: str) -> None:
    """A link, a pipe or a directory in the place of a file is refused at once, and nothing is followed."""
    path = closed_fruit(tmp_path / "s")
    elsewhere = tmp_path / "elsewhere"
    put(what, path / name, elsewhere)
    before = elsewhere.read_bytes()
    if name == "LOCK" and mode == "r":  # readers do without it
        with Store.open(path) as store:
            assert list(store.keys()) == list(FRUIT)
        return
    with promptly(), pytest.raises(NotAStore, match="is not a regular file, so it is not opened"):
        Store.open(path, mode)
    assert elsewhere.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["elsewhere", "s"]


# Making a store


class Failing:
    """A function that does its work until its turn to fail comes."""

    def __init__(self, real: Callable[..., Any], turn: int, error: BaseException) -> None:
        self.real, self.turn, self.error, self.calls = real, turn, error, 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Work, or fail when it is the turn."""
        self.calls += 1
        if self.calls == self.turn:
            raise self.error
        return self.real(*arguments, **options)


@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("error", [StorageFailed("the disk failed"), KeyboardInterrupt()])
@pytest.mark.parametrize("vacant", [False, True])
def test_a_store_is_made_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: int, error: BaseException, vacant: bool
) -> None:
    """Whichever directory fails to become durable, there is a whole store afterwards, or what was there before."""
    if vacant:
        (tmp_path / "s").mkdir()
    failing = Failing(files.sync_directory, turn, error)
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_directory", failing)
        with pytest.raises(type(error)):
            Store.open(tmp_path / "s", "c")
    assert failing.calls == turn
    if turn < 3:  # before the store gets its name
        assert [one.name for one in tmp_path.iterdir()] == (["s"] if vacant else [])
        assert not list(tmp_path.glob("s/*"))
    assert {one.name for one in tmp_path.iterdir()} <= {"s"}
    with Store.open(tmp_path / "s", "c") as store:
        assert (len(store), store.check().ok) == (0, True)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_a_store_that_cannot_get_its_name_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """When the last rename fails the error is one of ours, and no temporary directory stays."""
    expected = {errno.EIO: StorageFailed, errno.ENOSPC: StorageFull, errno.EACCES: AccessRefused}[number]
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", Failing(os.rename, 1, OSError(number, os.strerror(number))))
        with pytest.raises(expected, match="cannot make"):
            Store.open(tmp_path / "s", "c")
    assert not list(tmp_path.iterdir())


def test_a_store_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog and the directory are synced, then renamed, then the parent is synced."""
    steps: list[str] = []
    sync, rename = files.sync_directory, os.rename

    def watched_sync(path: str) -> None:
        steps.append(f"sync {os.path.basename(path).split('.new-')[0]}")
        sync(path)

    def watched_rename(old: str, new: str) -> None:
        assert not Path(old, f"{CATALOG}-wal").exists(), "the catalog was closed, so nothing of it waits in a log"
        steps.append("rename")
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_directory", watched_sync)
        patch.setattr(os, "rename", watched_rename)
        store = Store.open(tmp_path / "s", "c")
    assert steps[:4] == ["sync index", "sync .s", "rename", f"sync {tmp_path.name}"]
    assert store.check().ok
    store.close()


def test_what_comes_into_being_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two who make the same store end with one store: the slower opens what the faster made."""
    rename = os.rename

    def overtaken(old: str, new: str) -> None:
        patch.undo()
        closed_fruit(tmp_path / "s")
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", overtaken)
        store = Store.open(tmp_path / "s", "c")
    assert list(store.keys()) == list(FRUIT)
    assert store.check().ok
    store.close()
    assert [one.name for one in tmp_path.iterdir()] == ["s"]


# Mode n


def test_mode_n_leaves_readers_what_they_have(tmp_path: Path) -> None:
    """Who reads a store while it is started anew keeps the one that was."""
    closed_fruit(tmp_path / "s")
    with Store.open(tmp_path / "s") as reader:
        expected = contents(reader)
        with Store.open(tmp_path / "s", "n") as store:
            assert (len(store), contents(reader)) == (0, expected)
            assert store.check().ok


def test_mode_n_refuses_a_damaged_store(tmp_path: Path) -> None:
    """A store whose catalog cannot be believed is not removed either: perhaps something can be saved of it."""
    path = closed_fruit(tmp_path / "s")
    sql(path, "UPDATE state SET number = 99")
    before = kept(path)
    with pytest.raises(StoreDamaged):
        Store.open(path, "n")
    assert kept(path) == before


def test_mode_n_that_cannot_move_the_old_store_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the old store cannot be moved out of the way it stays, and can be opened again."""
    path = closed_fruit(tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", Failing(os.rename, 1, OSError(errno.EBUSY, "busy")))
        with pytest.raises(StorageFailed, match="cannot move"):
            Store.open(path, "n")
    with Store.open(path, "w") as store:
        assert list(store.keys()) == list(FRUIT)
        assert store.check().ok


# After a crash


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    """Generations that the catalog does not name go with the next writer, and with none but him."""
    path = closed_fruit(tmp_path / "s")
    for name in ("generation-000002", "generation-1234567"):
        (path / name).mkdir()
        (path / name / "keys.f32").write_bytes(b"half")
    with Store.open(path) as store:
        assert (path / "generation-000002" / "keys.f32").exists()
        assert store.check().ok
        assert len(store.check().notes) == 2
    with Store.open(path, "w") as store:
        assert sorted(one.name for one in path.glob("generation-*")) == [GENERATION]
        assert list(store.keys()) == list(FRUIT)
        assert (store.check().ok, store.check().notes) == (True, [])


def test_only_names_of_ours_are_removed(tmp_path: Path) -> None:
    """Whatever else lies in the directory of a store is left alone: other names, files, links."""
    path = closed_fruit(tmp_path / "s")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"mine")
    for name in ("generation-2", "generation-000002.bak", "generation-00000x", "Generation-000002", "backup"):
        (path / name).mkdir()
        (path / name / "file").write_bytes(b"mine")
    for name in ("generation-000003", "notes.txt", ".hidden", "index/notes"):
        (path / name).write_bytes(b"mine")
    (path / "generation-000004").symlink_to(tmp_path / "elsewhere")
    before = {name for name in bytes_of(path) if not name.startswith(CATALOG)}
    with Store.open(path, "w") as store:
        store.append(vectors(1), [7.0])
        assert store.check().ok
    assert {name for name in bytes_of(path) if not name.startswith(CATALOG)} == before
    assert (path / "generation-000004").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_bytes() == b"mine"


def test_a_killed_writer_loses_nothing(tmp_path: Path) -> None:
    """What was acknowledged before the crash is there for readers and for the next writer."""
    path = crashed_fruit(tmp_path / "s", lambda store: store.delete("pear"))
    for mode in ("r", "w", "r"):
        with Store.open(path, mode) as store:
            assert list(store.keys()) == ["apple", "quince"]
            assert store.check().ok


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_crash_while_the_log_is_moved_into_the_catalog_costs_nothing(tmp_path: Path, mode: str) -> None:
    """After any number of its pages the catalog says that it is longer than it is, until the rest is moved again."""
    with fruit(tmp_path / "s") as store:
        store.append(vectors(400), np.zeros(400), keys=[f"key {i} " * 9 for i in range(400)])
        expected = contents(store)
        copied(tmp_path / "s", tmp_path / "crashed")
    before, after = ((tmp_path / name / CATALOG).read_bytes() for name in ("crashed", "s"))
    pages = len(after) // 4096
    assert len(before) < len(after) // 2
    for moved in (0, 1, 2, len(before) // 4096, pages // 2, pages - 1, pages):
        path = copied(tmp_path / "crashed", tmp_path / f"after {moved} pages")
        (path / CATALOG).write_bytes(after[: moved * 4096] + before[moved * 4096 :])
        with Store.open(path, mode) as store:
            assert contents(store) == expected
            assert store.check().ok


def test_an_unclean_open_verifies_the_end(tmp_path: Path) -> None:
    """After a crash the last windows are compared before anything is added; damage refuses, and changes nothing."""
    path = crashed_fruit(tmp_path / "s")
    flip(path / GENERATION / "keys.f32", 4096 + 40)
    before = kept(path)
    with pytest.raises(StoreDamaged, match=r"keys\.f32: bytes 4096 to 4144 do not match their checksum.*softkv check"):
        Store.open(path, "w")
    assert kept(path) == before
    with Store.open(path) as store:
        assert not store.check().ok


@pytest.mark.parametrize(("before_the_end", "noticed"), [(5, True), (WINDOW - 5, True), (WINDOW + 5, False)])
def test_an_unclean_open_verifies_the_last_mib(tmp_path: Path, before_the_end: int, noticed: bool) -> None:
    """That is more than the last checksum, of 16 KiB, and less than all rows; the rest is for whoever reads it."""
    with Store.open(tmp_path / "alive", "c") as store:
        store.append(vectors(200, 1 << 12), np.zeros(200))
        path = copied(tmp_path / "alive", tmp_path / "crashed")
    keys = path / GENERATION / "keys.f32"
    offset = keys.stat().st_size - before_the_end
    assert offset > 4096 + WINDOW
    flip(keys, offset)
    if noticed:
        start = offset - (offset - 4096) % GRANULE
        with pytest.raises(StoreDamaged, match=rf"keys\.f32: bytes {start} to {start + GRANULE} do not match"):
            Store.open(path, "w")
    else:
        with Store.open(path, "w") as store:
            assert len(store.check().findings) == 1


def test_a_clean_open_reads_no_rows(tmp_path: Path) -> None:
    """After a close nothing needs to be verified: damage is noticed by whoever touches it."""
    path = closed_fruit(tmp_path / "s")
    flip(path / GENERATION / "keys.f32", 4096 + 40)
    with Store.open(path, "w") as store:
        with pytest.raises(StoreDamaged, match="do not match their checksum"):
            store.get("apple")
        assert not store.check().ok


@pytest.mark.parametrize("work", ["cut", "empty", "missing", "zeros", "header"])
def test_an_unclean_open_mends_the_norms(tmp_path: Path, work: str) -> None:
    """Norms are derived and not synced: whatever a crash made of them, the next writer works them out again."""
    path = crashed_fruit(tmp_path / "s", lambda store: store.append(vectors(5, seed=8), np.zeros(5)))
    norms = path / GENERATION / "norms.f32"
    if work == "missing":
        norms.unlink()
    else:
        content = norms.read_bytes()
        norms.write_bytes(
            {
                "cut": content[:-10],
                "empty": b"",
                "zeros": content[:4096] + bytes(len(content) - 4096),
                "header": b"x" + content[1:],
            }[work]
        )
    with Store.open(path, "w") as store, store.snapshot() as snapshot:
        lengths = np.linalg.norm(store.vectors(range(8)).astype(np.float64), axis=1)
        np.testing.assert_allclose(snapshot.norms(0, 8), lengths, rtol=1e-6)
        stored = np.frombuffer(norms.read_bytes()[4096 : 4096 + 32], "<f4")
        np.testing.assert_allclose(stored, lengths, rtol=1e-6)
        assert (store.check().ok, store.check().notes) == (True, [])


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("name", ["keys.f32", "values.number"])
@pytest.mark.parametrize("length", [100, 4096, -1])
def test_rows_that_were_cut_off_are_refused(tmp_path: Path, name: str, length: int, mode: str, crashed: bool) -> None:
    """A file that is too short for what the catalog counts on is damage in every mode, and nothing is changed."""
    path = crashed_fruit(tmp_path / "s") if crashed else closed_fruit(tmp_path / "s")
    file = path / GENERATION / name
    file.write_bytes(file.read_bytes()[:length])
    before = kept(path)
    with pytest.raises(StoreDamaged, match="softkv check"):
        Store.open(path, mode)
    assert kept(path) == before


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("name", ["keys.f32", "values.number", "PIN"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str, mode: str) -> None:
    """A generation that is not whole is damage; nothing is made anew in its place."""
    path = closed_fruit(tmp_path / "s")
    (path / GENERATION / name).unlink()
    before = kept(path)
    with promptly(), pytest.raises(StoreDamaged):
        Store.open(path, mode)
    assert kept(path) == before


def test_the_rows_of_another_store_are_refused(tmp_path: Path) -> None:
    """Files of rows know whose they are: those of another store are not taken for one's own."""
    path, other = closed_fruit(tmp_path / "s"), closed_fruit(tmp_path / "other")
    shutil.copy(other / GENERATION / "keys.f32", path / GENERATION / "keys.f32")
    for mode in ("r", "w"):
        with pytest.raises(StoreDamaged, match="the header says"):
            Store.open(path, mode)


# Catalogs that lie


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize(
    "lie",
    [
        {"rows": 1 << 53},
        {"rows": (1 << 63) - 1},
        {"rows": -1},
        {"rows": "3"},
        {"key_width": 1 << 40},
        {"key_width": (1 << 63) - 1},
        {"key_width": 1 << 20},
        {"key_width": 0},
        {"key_width": -4},
        {"key_width": 2.5},
        {"key_width": "4"},
        {"value_width": 1 << 62},
        {"kind": "vector", "value_width": 1 << 19},
        {"kind": "pickle"},
        {"keys_tail": -1},
        {"keys_tail": "x"},
        {"sums": b""},
        {"sums": b"\xff" * 40},
        {"sums": np.array([np.inf, 0, 0, 0, 0]).tobytes()},
        {"sums": bytes(40 + (1 << 16))},
        {"generation": 7},
    ],
    ids=str,
)
def test_a_lie_about_a_generation_is_damage(tmp_path: Path, lie: dict[str, Any], mode: str) -> None:
    """Counts and widths that the files do not bear out are refused before any memory is asked for."""
    path = closed_fruit(tmp_path / "s")
    forge(path, "generations", **lie)
    tracemalloc.start()
    try:
        with promptly(), pytest.raises(StoreDamaged):
            Store.open(path, mode)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize(
    "lie",
    [
        {"number": -1},
        {"number": "x"},
        {"generation": (1 << 63) - 1},
        {"generation": -1},
        {"generation": 2.5},
        {"epoch": b"x"},
        {"next_item": -5},
        {"store": "another"},
    ],
    ids=str,
)
def test_a_lie_about_the_newest_commit_is_damage(tmp_path: Path, lie: dict[str, Any], mode: str) -> None:
    """Numbers that cannot be are refused, and so is a store that its own files do not know."""
    path = closed_fruit(tmp_path / "s")
    forge(path, "state", **lie)
    with promptly(), pytest.raises(StoreDamaged):
        Store.open(path, mode)


@pytest.mark.parametrize("field", ["number", "epoch", "next_item", "next_ordinal"])
def test_numbers_at_their_end_are_an_error(tmp_path: Path, field: str) -> None:
    """A counter that can count no further is an error of ours at the first write, not one of the driver."""
    path = closed_fruit(tmp_path / "s")
    forge(path, "state", **{field: (1 << 63) - 1})

    def write() -> None:
        with Store.open(path, "w") as store:
            store.append(vectors(2), [1.0, 2.0])

    with pytest.raises(StoreError):
        write()
    with Store.open(path) as store:
        assert list(store.keys()) == list(FRUIT)


@pytest.mark.parametrize("settings", ["nonsense", "[1]", "7", '"text"', "", "[" * 100_000])
def test_settings_that_are_not_settings_are_damage(tmp_path: Path, settings: str) -> None:
    """Settings that are no JSON object, under a checksum that is right, are an error of ours."""
    path = closed_fruit(tmp_path / "s")
    forge(path, "generations", settings=settings)
    with Store.open(path) as store, pytest.raises(StoreDamaged, match="settings"):
        print(store.settings)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "", "nan"])
def test_a_payload_that_is_no_json_is_damage(tmp_path: Path, text: str) -> None:
    """A payload that cannot be read, under a checksum that is right, is an error of ours, and of that item alone."""
    path = closed_fruit(tmp_path / "s")
    row, item, ordinal, born = sql(path, "SELECT row, item, ordinal, born FROM items_1 WHERE key = 'apple'")[0]
    seal = tables.item_seal(item, ordinal, born, b"apple", content_seal((None, None, text))) + row
    sql(path, "UPDATE items_1 SET seal = ? WHERE row = ?", seal, row)
    sql(path, "UPDATE contents SET payload = ? WHERE item = ?", text, item)
    with Store.open(path) as store:
        with pytest.raises(StoreDamaged, match="payload of the item in row 0 cannot be read"):
            store.get("apple")
        assert store.get("pear").payload == {"name": "pear"}


@pytest.mark.parametrize("field", ["number", "settings", "seal"])
def test_a_damaged_newest_commit_is_named(tmp_path: Path, field: str) -> None:
    """The row of the newest commit is not believed when one field of it has changed."""
    path = closed_fruit(tmp_path / "s")
    sql(path, f"UPDATE state SET {field} = {field} || '1'")
    for mode in MODES:
        with pytest.raises(StoreDamaged, match="the row of the newest commit is damaged"):
            Store.open(path, mode)


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER spy AFTER INSERT ON state BEGIN DELETE FROM items_1; END",
        "CREATE VIEW extra AS SELECT * FROM state",
        "CREATE TABLE extra (x)",
        "CREATE VIRTUAL TABLE items_9 USING fts5(x)",
        "CREATE TRIGGER items_1 AFTER INSERT ON items_1 BEGIN SELECT 1; END",
        "DROP TABLE labels",
    ],
)
def test_tables_that_are_not_ours_are_refused(tmp_path: Path, statement: str, mode: str) -> None:
    """A catalog with anything that runs by itself, or with tables missing or added, is not used."""
    path = closed_fruit(tmp_path / "s")
    sql(path, statement)
    before = kept(path)
    with pytest.raises(StoreDamaged, match="does not have the tables of a store"):
        Store.open(path, mode)
    assert kept(path) == before


def test_a_view_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    """A table of ours that has become a view is not read."""
    path = closed_fruit(tmp_path / "s")
    sql(path, "ALTER TABLE state RENAME TO items_9")
    sql(path, "CREATE VIEW state AS SELECT * FROM items_9")
    for mode in MODES:
        with pytest.raises(StoreDamaged, match="view state"):
            Store.open(path, mode)


# Network file systems

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:40 / {point} rw,relatime shared:2 - {kind} server:/share rw
"""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "ceph", "fuse.sshfs"])
def test_a_network_file_system_is_refused_for_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where locks and syncs may not hold, stores are read, and written only when that is forced."""
    path = closed_fruit(tmp_path / "s")
    point = str(tmp_path).replace(" ", "\\040")
    monkeypatch.setattr(locks, "_mounts", lambda: MOUNTS.format(point=point, kind=kind))
    before = bytes_of(tmp_path)
    for mode, name in (("w", "s"), ("c", "s"), ("n", "s"), ("c", "new"), ("n", "new")):
        with pytest.raises(WritingUnsupported, match=f"network file system \\({kind}\\).*force=True"):
            Store.open(tmp_path / name, mode)
    assert bytes_of(tmp_path) == before
    with Store.open(path) as store:
        assert list(store.keys()) == list(FRUIT)
    with Store.open(path, "w", force=True) as store:
        store.append(vectors(1), [7.0])
        assert store.check().ok


@pytest.mark.parametrize(
    ("path", "point", "kind"),
    [
        ("/mnt/share/s", "/mnt/share", "nfs"),
        ("/mnt/shared/s", "/mnt/share", "ext4"),
        ("/mnt/my share/s", "/mnt/my\\040share", "nfs"),
        ("/mnt/share", "/mnt/share", "nfs"),
        ("/mnt", "/mnt/share", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(path: str, point: str, kind: str) -> None:
    """The longest mount point above a path counts, whole names only, with blanks as the system writes them."""
    assert locks.filesystem_kind(path, MOUNTS.format(point=point, kind="nfs")) == kind


def test_a_platform_without_locks_only_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on Linux and macOS reading works, and writing is refused with a reason."""
    path = closed_fruit(tmp_path / "s")
    with monkeypatch.context() as patch:
        patch.setattr(locks, "fcntl", None)
        for mode in ("w", "c", "n"):
            with pytest.raises(WritingUnsupported, match="writes on Linux and macOS only"):
                Store.open(path, mode)
        with Store.open(path) as store:
            assert json.dumps(store.get("apple").payload) == '{"name": "apple"}'
            assert store.check().ok


def test_a_path_may_be_bytes_or_end_with_a_slash(tmp_path: Path) -> None:
    """Both name the same store."""
    Store.open(os.fsencode(tmp_path / "s"), "c").close()
    with Store.open(f"{tmp_path}/s/", "w") as store:
        assert store.path == str(tmp_path / "s")
        assert store.check().ok


@pytest.mark.parametrize("name", ["with blank", "ünïcode 🜚", "50%", "a?mode=memory", "a#b", "..dots", "-rf"])
def test_any_name_will_do_for_a_store(tmp_path: Path, name: str) -> None:
    """Any name will do for a store, also what means something in a URI, which is how SQLite is given its path."""
    closed_fruit(tmp_path / name)
    for mode in ("r", "w"):
        with Store.open(tmp_path / name, mode) as store:
            assert len(store) == 3
            assert store.check().ok
    assert os.listdir(tmp_path) == [name]


def test_a_store_behind_a_link_is_made_and_erased_where_the_link_leads(tmp_path: Path) -> None:
    """The link stays a link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "s").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "later")
    for name in ("s", "dangling"):
        closed_fruit(tmp_path / name)
        with Store.open(tmp_path / name, "n") as store:
            assert len(store) == 0
    assert sorted(os.listdir(tmp_path)) == ["dangling", "later", "real", "s"]
    assert (tmp_path / "s").is_symlink()
    assert CATALOG in os.listdir(tmp_path / "real")


def foreign(path: Path, *, wal: bool = False) -> Path:
    """A directory with somebody else's database under the name of our catalog, and a LOCK of their own."""
    path.mkdir()
    (path / "LOCK").write_text("not yours")
    connection = sqlite3.connect(path / CATALOG)
    if wal:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE theirs (x)")
    connection.execute("INSERT INTO theirs VALUES ('precious')")
    connection.commit()
    if wal:  # as a crash leaves it: with a log that was not moved into the database
        copied(path, path.parent / "crashed")
        connection.close()
        shutil.rmtree(path)
        (path.parent / "crashed").rename(path)
        (path / f"{CATALOG}-shm").unlink()
    connection.close()
    return path


@pytest.mark.parametrize("wal", [False, True])
def test_somebody_elses_database_stays_as_it_is(tmp_path: Path, wal: bool) -> None:
    """Byte for byte, with its log and its lock, in every mode and for the check."""
    path = foreign(tmp_path / "s", wal=wal)
    before = bytes_of(path)
    assert (f"{CATALOG}-wal" in before) == wal
    for mode in MODES:
        with pytest.raises(NotAStore, match="SQLite database of something else"):
            Store.open(path, mode)
        assert bytes_of(path) == before
    with pytest.raises(NotAStore):
        check(path)
    assert bytes_of(path) == before


def a_file(path: Path) -> None:
    """A file in the place of the store."""
    path.write_bytes(b"precious")


def a_directory(path: Path) -> None:
    """A directory with something in it."""
    path.mkdir()
    (path / "file").write_bytes(b"precious")


def a_text(path: Path) -> None:
    """A text under the name of the catalog."""
    path.mkdir()
    (path / CATALOG).write_bytes(b"precious " * 1_000)


def an_empty_catalog(path: Path) -> None:
    """A file of no length under the name of the catalog."""
    path.mkdir()
    (path / CATALOG).touch()


def a_catalog_directory(path: Path) -> None:
    """A directory under the name of the catalog."""
    (path / CATALOG).mkdir(parents=True)


def a_linked_catalog(path: Path) -> None:
    """A link under the name of the catalog, to a good one."""
    closed_fruit(path)
    (path / CATALOG).rename(path.parent / "real")
    (path / CATALOG).symlink_to(path.parent / "real")


def a_piped_catalog(path: Path) -> None:
    """A pipe under the name of the catalog."""
    path.mkdir()
    os.mkfifo(path / CATALOG)


@pytest.mark.parametrize(
    "make", [a_file, a_directory, a_text, an_empty_catalog, a_catalog_directory, a_linked_catalog, a_piped_catalog]
)
def test_what_is_not_a_store_is_refused_and_left_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Every mode refuses it; nothing beside it is made either."""
    make(tmp_path / "s")
    before, names = bytes_of(tmp_path), sorted(str(path) for path in tmp_path.rglob("*"))
    for mode in MODES:
        with pytest.raises((NotAStore, StoreDamaged)):
            Store.open(tmp_path / "s", mode)
    assert (bytes_of(tmp_path), sorted(str(path) for path in tmp_path.rglob("*"))) == (before, names)


def test_a_store_without_its_catalog_is_damaged_and_not_empty(tmp_path: Path) -> None:
    """It is not taken for a place to make a new one."""
    path = closed_fruit(tmp_path / "s")
    (path / CATALOG).unlink()
    before = bytes_of(path)
    for mode in MODES:
        with pytest.raises(StoreDamaged, match="no longer one"):
            Store.open(path, mode)
    assert bytes_of(path) == before


def test_a_store_can_be_copied_and_moved(tmp_path: Path) -> None:
    """No path is stored in it."""
    path = closed_fruit(tmp_path / "s")
    copied(path, tmp_path / "copy")
    path.rename(tmp_path / "moved")
    for name in ("copy", "moved"):
        with Store.open(tmp_path / name, "w") as store:
            store.append(vectors(1), [1.0])
            assert store.check().ok
    assert not any(str(tmp_path).encode() in found for found in bytes_of(tmp_path / "moved").values())


def test_errors_of_opening_are_all_ours(tmp_path: Path) -> None:
    """A single flipped bit anywhere in the first pages of the catalog: the truth, or an error of ours."""
    path = closed_fruit(tmp_path / "s")
    good = (path / CATALOG).read_bytes()
    with Store.open(path) as store:
        expected = contents(store)
    for name in (f"{CATALOG}-wal", f"{CATALOG}-shm"):
        (path / name).unlink(missing_ok=True)
    wrong = 0
    for offset in range(0, len(good), max(1, len(good) // 150)):
        (path / CATALOG).write_bytes(good)
        flip(path / CATALOG, offset, offset % 8)
        report = check(path)
        try:
            with Store.open(path) as store:
                found = contents(store)
                assert found == expected or not report.ok, offset
                assert all(expected.get(name) == item for name, item in found.items()), offset
        except SoftKVError:
            wrong += 1
            assert not report.ok, offset
    assert wrong > 0


def test_what_a_crash_left_beside_a_store_is_removed(tmp_path: Path) -> None:
    """Half-made and half-erased stores of this name go when it is made again; others, and those at work, stay."""
    names = [".s.new-0123abcd", ".s.old-0123abcd", ".other.new-0123abcd", ".s.new-zzzz", ".s.new-deadbeef"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "LOCK").touch()
    living = locks.lock_writer(str(tmp_path / ".s.new-deadbeef"))
    Store.open(tmp_path / "s", "c").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["s", *names[2:]])
    living.release()


def test_what_a_power_cut_left_beside_a_store_is_removed(tmp_path: Path) -> None:
    """LOCK may be lost or be the first to go; an empty directory, which was just begun, is removed as well."""
    for name in (".s.new-00000001", ".s.old-00000002", ".s.new-00000003", ".s.old-00000004"):
        (tmp_path / name).mkdir()
    (tmp_path / ".s.new-00000001" / CATALOG).touch()
    (tmp_path / ".s.old-00000002" / GENERATION).mkdir()
    (tmp_path / ".s.new-00000005").touch()  # not ours, which are directories
    Store.open(tmp_path / "s", "c").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".s.new-00000005", "s"]


def test_what_a_crash_left_of_a_store_that_was_made_in_two_steps_is_removed(tmp_path: Path) -> None:
    """A store that is to take another's place is made beside its waiting place; those at work and others stay."""
    whole = ["..s.new-00000001.new-00000001", "..s.made-00000002.new-00000001", "..s.kept-00000003.old-00000001"]
    others = [
        "..t.new-00000001.new-00000001",
        "..s.new-1.new-00000001",
        "..s.new-00000001",
        "..s.new-00000004.new-00000002",
    ]
    for name in [*whole, *others]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "LOCK").touch()
    (tmp_path / "..s.new-00000001.new-00000003").mkdir()  # died before it was locked
    living = locks.lock_writer(str(tmp_path / others[-1]))
    Store.open(tmp_path / "s", "c").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["s", *others])
    living.release()


def test_whoever_finds_its_empty_directory_gone_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another that makes the store took it for what a crash had left, between two calls."""
    lock_writer, begun = locks.lock_writer, []

    def overtaken(directory: str) -> locks.FileLock:
        begun.append(directory)
        if len(begun) == 1:
            remove_unborn(str(tmp_path), "s")
        return lock_writer(directory)

    monkeypatch.setattr(locks, "lock_writer", overtaken)
    with Store.open(tmp_path / "s", "c") as store:
        assert store.check().ok
    assert (len(begun), sorted(path.name for path in tmp_path.iterdir())) == (2, ["s"])


@pytest.mark.parametrize("mode", ["w", "c"])
def test_settings_that_nobody_accepts_leave_the_store_as_it_is(tmp_path: Path, mode: str) -> None:
    """They are looked at before a writer leaves its first trace."""
    path = closed_fruit(tmp_path / "s")
    forge(path, "generations", settings='{"value": "pickle"}')
    before = kept(path)

    def refuse(settings: dict[str, Any]) -> None:
        raise StoreDamaged(f"not {settings}")

    with pytest.raises(StoreDamaged, match="pickle"):
        Store.open(path, mode, accept=refuse)
    assert kept(path) == before
    with pytest.raises(StoreDamaged, match="cannot be read"):
        softkv.open(path, mode)
    assert kept(path) == before


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_generation_that_is_a_link_is_not_followed(tmp_path: Path, mode: str) -> None:
    """Nothing is read or written where it leads."""
    path = closed_fruit(tmp_path / "s")
    (path / GENERATION).rename(tmp_path / "elsewhere")
    (path / GENERATION).symlink_to(tmp_path / "elsewhere")
    before = bytes_of(tmp_path / "elsewhere")
    with pytest.raises(NotAStore, match="is a link or none of our directories"):
        Store.open(path, mode)
    assert bytes_of(tmp_path / "elsewhere") == before
    assert not check(path).ok


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize(
    ("table", "before", "after"),
    [
        ("labels", '"label" TEXT', '"label" TEXT DEFAULT (hex(zeroblob(9)))'),
        ("state", "number INTEGER NOT NULL", "number INTEGER NOT NULL CHECK (length(zeroblob(9)))"),
        ("state", "seal INTEGER NOT NULL", "seal INTEGER NOT NULL, more AS (zeroblob(900000000))"),
        ("items_1_live", "WHERE", "WHERE abs(item) AND"),
    ],
)
def test_definitions_that_would_run_something_are_refused(
    tmp_path: Path, table: str, before: str, after: str, mode: str
) -> None:
    """Defaults, checks, generated columns and conditions of indexes are code of whoever made the catalog."""
    path = closed_fruit(tmp_path / "s")
    connection = sqlite3.connect(path / CATALOG)
    connection.execute("PRAGMA writable_schema=ON")
    (text,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    altered = text.replace(before, after) if before in text else text.replace(before.replace('"', ""), after)
    assert altered != text
    connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (altered, table))
    connection.commit()
    connection.close()
    with pytest.raises(StoreDamaged, match="does not have the tables of a store"):
        Store.open(path, mode)


def test_blanks_and_quotes_in_definitions_do_not_matter(tmp_path: Path) -> None:
    """Versions of SQLAlchemy write them in other ways."""
    path = closed_fruit(tmp_path / "s")
    connection = sqlite3.connect(path / CATALOG)
    connection.execute("PRAGMA writable_schema=ON")
    connection.execute("UPDATE sqlite_master SET sql = replace(replace(sql, char(10), ' '), char(9), '  ')")
    connection.commit()
    connection.close()
    with Store.open(path, "w") as store:
        assert len(store) == 3
    assert check(path).ok


@pytest.mark.skipif(sys.platform == "darwin", reason="names there are UTF-8")
def test_a_directory_need_not_have_a_name_in_utf8(tmp_path: Path) -> None:
    """A store below one is written, read, checked, exported, moved and refused, and `softkv path` says its bytes."""
    folder = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(folder)
    path = os.fsdecode(os.path.join(folder, b"st\xe9.softkv"))
    with softkv.open(path, compatibility="gaussian") as db:
        db.add([str(i) for i in range(40)], np.arange(40.0), vectors=vectors(40))
        db.fit()
        db.build_index()
        db.compact()
        assert path in str(db.info())
        for form in ("jsonl", "npz", "parquet"):
            file = os.fsdecode(os.path.join(folder, b"all.")) + form
            assert db.export(file) == 40
            import_from(file, file + ".softkv")
            with softkv.open(file + ".softkv") as again:
                assert dict(again) == dict(db)
        with pytest.raises(StoreLocked), softkv.open(os.fsencode(path), "w"):
            pass
    with made(path, value="number", compatibility="dot", temperature=1.0, overwrite=True) as db:
        db.add(["new"], [1.0], vectors=vectors(1))
    with softkv.open(path, "r") as db:
        assert dict(db) == {"new": 1.0}
        assert db.check().ok
    script = "from softkv_cli.main import main; main()"
    command = [sys.executable, "-c", script, "path", "--db", os.fsencode(path)]
    assert subprocess.run(command, capture_output=True, check=True).stdout == os.fsencode(path) + b"\n"
    connection = sqlite3.connect(os.path.join(os.fsencode(path), b"catalog.sqlite"))
    connection.execute("PRAGMA user_version=7")
    connection.close()
    for mode in ("r", "w"):
        with pytest.raises(FormatTooNew, match="format 7"):
            Store.open(path, mode)
