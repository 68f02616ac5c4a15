"""Write what can be made again from the rows of a generation: index files, and parts of what is derived.

Index files are written, synced, their directory synced, and only then named, by one transaction.
A file that is replaced or dropped is removed right after that transaction. It need not wait for readers, as a
generation does: those that were given it have it open, and later ones find none.

A derived part is kept in the catalog, in a commit of its own after that of its rows: so it is there with its commit
or not at all. Does not know what is in either.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from softkv.errors import InputError, KindError, SoftKVError
from softkv.storage.batch import checked_name
from softkv.storage.catalog.catalog import IndexRecord
from softkv.storage.catalog.derived import LONGEST, checked_number, put
from softkv.storage.disk import files
from softkv.storage.protocol.index_files import numbered, remove_unnamed, require_folder
from softkv.storage.protocol.writer import Writer

FileContent: TypeAlias = "bytes | memoryview | Iterable[bytes | memoryview]"


def put_index(writer: Writer, name: str, content: FileContent, instead_of: str | None) -> None:
    """Add an index file of the present generation, or replace the one of this name, and drop another."""
    checked_name(name)
    with writer.work():
        standing = writer.committed.standing
        if standing is None:
            raise InputError(f"{writer.directory} has no rows yet, so there is nothing to index. Add items first.")
        with written(writer, {name: content}, standing.generation, standing.rows) as records, writer.commit():
            for record in records:
                writer.catalog.put_index(record)
            if instead_of is not None:
                writer.catalog.drop_index(standing.generation, instead_of)


def drop_index(writer: Writer, name: str | None) -> None:
    """Forget the index file of this name, or all; does nothing when there is none."""
    if name is not None:
        checked_name(name)
    with writer.work():
        generation, catalog = writer.committed.head.generation, writer.catalog
        if catalog.has_index(generation, name):
            with writer.commit():
                catalog.drop_index(generation, name)
            with suppress(SoftKVError):
                remove_unnamed(writer.directory, catalog)


def room_for(contents: Mapping[str, FileContent]) -> int:
    """How many bytes they have, as far as that is known before they are written."""
    return sum(whole.nbytes for whole in map(_whole, contents.values()) if whole is not None)


@contextmanager
def written(
    writer: Writer, contents: Mapping[str, FileContent], generation: int, rows: int
) -> Iterator[list[IndexRecord]]:
    """Files that are durable and not named yet, to be named in the commit that follows; else they are removed again."""
    for name in contents:
        checked_name(name)
    files.require_room(writer.directory, room_for(contents), f"indexing {writer.directory}")
    made: list[str] = []
    ours: list[str] | None = made  # after a failure only these: others may belong to a writer that has taken over
    try:
        yield _written(writer, contents, generation, rows, made) if contents else []
        ours = None
    finally:
        # After a commit with unknown outcome the catalog may name them. Otherwise the catalog is read: an interrupt may
        # have come right after the commit, or right before its end. If removing fails, the next writer does it.
        if writer.failure is None:
            with suppress(SoftKVError):
                writer.catalog.connection.abort()
                remove_unnamed(writer.directory, writer.catalog, ours)


def _written(
    writer: Writer, contents: Mapping[str, FileContent], generation: int, rows: int, made: list[str]
) -> list[IndexRecord]:
    folder, head = require_folder(writer.directory), writer.committed.head
    first = max(head.number, *writer.catalog.index_files(), *numbered(writer.directory), 0) + 1
    records = []
    for number, (name, content) in enumerate(contents.items(), first):
        made.append(os.path.join(folder, str(number)))
        size, digest = _write(writer, made[-1], content)
        records.append(IndexRecord(generation, name, number, rows, head.number + 1, size, digest))
    with writer.poisoning():
        files.sync_directory(folder)
    return records


def _write(writer: Writer, path: str, content: FileContent) -> tuple[int, bytes]:
    """Write one file and sync it; returns its size and its checksum."""
    size, digest = 0, hashlib.sha256()
    descriptor = files.create_file(path)
    try:
        for piece in _pieces(writer, content):
            files.write_at(descriptor, piece, size, path)
            digest.update(piece)
            size += len(piece)
        with writer.poisoning():
            files.sync(descriptor, path)
    finally:
        os.close(descriptor)
    return size, digest.digest()


def _pieces(writer: Writer, content: FileContent) -> Iterator[memoryview]:
    """The bytes of a buffer in one piece, or of an iterable in its pieces."""
    if _whole(content) is not None:
        yield _bytes_of(content)
        return
    if isinstance(content, str) or not isinstance(content, Iterable):
        raise KindError(f"an index file holds bytes, not a {type(content).__name__}")
    waiting, end = iter(content), object()
    while True:
        with writer.calling():
            piece = next(waiting, end)
        if piece is end:
            return
        yield _bytes_of(piece)


def _whole(content: object) -> memoryview | None:
    """The content when it is a buffer: an array, too, which is iterable as well."""
    try:
        return memoryview(content)  # type: ignore[arg-type]
    except TypeError:
        return None


def _bytes_of(piece: object) -> memoryview:
    try:
        view = memoryview(piece)  # type: ignore[arg-type]
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError, NotImplementedError) as error:
        raise KindError(
            f"an index file holds bytes or contiguous buffers, and a piece is a {type(piece).__name__}"
        ) from error


def put_derived(writer: Writer, name: str, content: bytes, instead_of: Sequence[int]) -> int:
    """Add a part to the present generation, and remove those that it replaces; returns its number."""
    checked_name(name)
    held, replaced = _held(content), _parts(instead_of)
    with writer.work():
        standing = writer.committed.standing
        if standing is None:
            raise InputError(f"{writer.directory} has no rows yet, so nothing is derived from them. Add items first.")
        twice = 2 * len(held)  # in the log first
        files.require_room(writer.directory, twice, f"adding a derived part to {writer.directory}")
        with writer.commit() as head:
            known = [number for number in replaced if 0 < number < head.number]
            put(writer.catalog.connection, standing.generation, name, head.number, held, known)
        return head.number


def _held(content: Any) -> bytes:
    """The bytes of a buffer, copied only where they may still change."""
    try:
        held = content if isinstance(content, bytes) else memoryview(content).tobytes()
    except TypeError as error:
        raise KindError(f"a part of what is derived holds bytes, not a {type(content).__name__}") from error
    if len(held) > LONGEST:
        raise InputError(f"a part of what is derived has at most {LONGEST:,} bytes, not {len(held):,}. Put several.")
    return held


def _parts(given: Any) -> list[int]:
    try:
        return [checked_number(number) for number in given]
    except TypeError as error:
        raise InputError(f"expected instead_of as numbers of parts, got {type(given).__name__}") from error
