"""The source of records: a file, a pipe or stdin, opened as bytes, unpacked when it is gzip, its format determined.

Does not interpret the bytes beyond the few that distinguish formats.
"""

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from softkv.errors import SoftKVError
from softkv.files.record import LINES, ROWS, Refusals

FORMATS = ("csv", "tsv", "jsonl", "json", "parquet", "arrow", "npy", "npz")
SUFFIXES = {f".{name}": name for name in FORMATS} | {".ndjson": "jsonl", ".tab": "tsv", ".pq": "parquet"}
SUFFIXES |= dict.fromkeys((".feather", ".ipc", ".arrows"), "arrow")
MAGIC = {b"\x93NUMPY": "npy", b"PK\x03\x04": "npz", b"PAR1": "parquet", b"ARROW1": "arrow"}
SEEKING = ("parquet", "arrow", "npz")  # their tables of contents are at the end, which cannot be read first from a pipe
WITHOUT_LINES = ("parquet", "arrow", "npz", "npy")
HEAD = 1 << 16  # bytes looked at to tell the format


class _Replay(io.RawIOBase):
    """A stream whose first bytes were already read, starting again at the first byte, for pipes that cannot seek."""

    def __init__(self, head: bytes, stream: Any) -> None:
        self._head, self._stream = head, stream

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The bytes read already, then those of the stream as they come."""
        given = self._head[: len(buffer)] or self._stream.read1(len(buffer))
        self._head = self._head[len(given) :]
        buffer[: len(given)] = given
        return len(given)


@dataclass(frozen=True, slots=True)
class Source:
    """An open input; `path` is None for what is not a regular file, such as a pipe, which can be read only once."""

    path: str | None
    format: str
    encoding: str
    stream: BinaryIO
    refusals: Refusals
    begun: int = 0  # bytes that were taken from it before

    def read(self, size: int) -> bytes:
        """This many bytes; fewer only at the end."""
        return _bytes(self.stream.read, size, self.refusals)

    def peek(self, size: int) -> bytes:
        """The next bytes, at most this many, without consuming them."""
        return _bytes(self.stream.peek, size, self.refusals)[:size]  # type: ignore[attr-defined]

    def read_some(self, size: int) -> bytes:
        """Bytes of the source, at most this many, as soon as there are any."""
        return _bytes(self.stream.read1, size, self.refusals)  # type: ignore[attr-defined]


@contextmanager
def opened(source: str, format: str | None, encoding: str, refusals: Refusals) -> Iterator[Source]:  # noqa: A002
    """Open a path, or stdin for "-", and find out its format; closes only what it opened itself."""
    with ExitStack() as stack:
        stream, path = _stdin(refusals) if source == "-" else _file(source, refusals, stack)
        head, stream = _headed(stream, refusals)
        packed = head.startswith(b"\x1f\x8b")
        if packed:
            unpacked = stack.enter_context(gzip.GzipFile(fileobj=stream))
            head, stream = _headed(unpacked, refusals)
        found = format or _format(source, path, head, encoding, refusals)
        if packed and found in (*SEEKING, "npy"):
            raise refusals.fatal(f"a {found} file must not be packed by gzip; unpack it first: gunzip {refusals.name}")
        if path is None and found in SEEKING:
            raise refusals.fatal(f"{found} cannot be read from a pipe; write it to a file and give its name")
        yield Source(path, found, encoding, stream, replace(refusals, form=ROWS if found in WITHOUT_LINES else LINES))


def _stdin(refusals: Refusals) -> tuple[BinaryIO, None]:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise refusals.fatal("there is no standard input to read from")
    return stream, None


def _file(source: str, refusals: Refusals, stack: ExitStack) -> tuple[BinaryIO, str | None]:
    try:
        stream = stack.enter_context(open(source, "rb"))  # noqa: SIM115
        regular = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except IsADirectoryError:
        raise refusals.fatal("is a directory; give a file in it") from None
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        raise refusals.fatal(f"cannot be opened: {_reason(error)}") from error
    return stream, source if regular else None


def _headed(stream: Any, refusals: Refusals) -> tuple[bytes, BinaryIO]:
    head = _bytes(stream.read, HEAD, refusals)
    return head, io.BufferedReader(_Replay(head, stream), 1 << 17)


def _format(source: str, path: str | None, head: bytes, encoding: str, refusals: Refusals) -> str:
    plain = source.lower().removesuffix(".gz")
    found = SUFFIXES.get(os.path.splitext(plain)[1])
    if found is None and path is not None:
        raise refusals.fatal(f"its name does not tell its format; give format= as one of {', '.join(FORMATS)}")
    return found or _sniffed(head, encoding, refusals)


def _sniffed(head: bytes, encoding: str, refusals: Refusals) -> str:
    """The format by the first bytes; a document of one object, or several on one line, counts as JSON lines."""
    for magic, format_ in MAGIC.items():
        if head.startswith(magic):
            return format_
    text = head.decode(encoding, "replace").lstrip("\ufeff \t\r\n")
    if not text:
        raise refusals.fatal("there is nothing to read")
    if text[0] in "{[":
        return "jsonl" if text[0] == "{" else "json"
    header = text.splitlines()[0]
    return "tsv" if header.count("\t") > header.count(",") else "csv"


def _bytes(read: Any, size: int, refusals: Refusals) -> bytes:
    try:
        given = read(size)
    except SoftKVError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise refusals.fatal(f"cannot be read: {_reason(error)}") from error
    return bytes(given or b"")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
