"""Bugs to plant in a process of its own, each of which some test must find: a checker that never failed is no checker.

Each is a function that patches what has been imported, for good.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from softkv.storage import connection, files
from softkv.storage.arena import Arena
from softkv.storage.generation import Generation
from softkv.storage.writer import Writer


def _values_are_not_synced() -> None:
    sync = Arena.sync

    def patched(arena: Arena) -> None:
        if arena.shape.role != "values":
            sync(arena)

    Arena.sync = patched  # type: ignore[method-assign]


def _index_files_are_not_synced() -> None:
    sync = files.sync

    def patched(descriptor: int, path: str) -> None:
        if "/index/" not in path:
            sync(descriptor, path)

    files.sync = patched


def _new_generations_are_not_synced() -> None:
    Generation.make_durable = lambda _generation: None  # type: ignore[method-assign]


def _rows_are_written_at_the_end_of_the_file() -> None:
    write = Arena.write
    Arena.write = lambda arena, _row, rows: write(arena, arena.stored_rows(), rows)  # type: ignore[method-assign]


def _directories_are_not_synced() -> None:
    files.sync_directory = lambda _path: None


def _the_commit_comes_before_the_sync() -> None:
    late: list[Arena] = []
    commit, sync = Writer.commit, Arena.sync
    Arena.sync = lambda arena: late.append(arena)  # type: ignore[method-assign]

    @contextmanager
    def patched(writer: Writer, **changes: Any) -> Iterator[Any]:
        with commit(writer, **changes) as head:
            yield head
        while late:
            arena = late.pop()
            if arena._descriptor >= 0:
                sync(arena)

    Writer.commit = patched  # type: ignore[method-assign]


def _the_catalog_is_not_synced_at_commits() -> None:
    connection._WRITER["synchronous"] = 1


BUGS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "values are not synced": _values_are_not_synced,
    "index files are not synced": _index_files_are_not_synced,
    "new generations are not synced": _new_generations_are_not_synced,
    "directories are not synced": _directories_are_not_synced,
    "rows are written at the end of the file": _rows_are_written_at_the_end_of_the_file,
    "the commit comes before the sync": _the_commit_comes_before_the_sync,
    "the catalog is not synced at commits": _the_catalog_is_not_synced_at_commits,
}

COURSES = {  # in which sessions a bug shows soonest, where that is not in all
    "index files are not synced": "index files",
}
