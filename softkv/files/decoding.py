"""Decode bytes to text, a block at a time; bytes that are not in the encoding end the reading at a known position.

An error of the encoding is one of the file, not of one record: latin-1 read as UTF-8 fails wherever a name has an
accent, and skipping those records would lose exactly the interesting ones.
"""

import codecs
import shlex
from collections.abc import Iterator

from softkv.errors import InputError
from softkv.files.limits import BLOCK
from softkv.files.record import Misfit
from softkv.files.source import Source

DEFAULT = "utf-8-sig"  # UTF-8, with or without the mark that Excel writes before it
FIXED = "utf-8"  # where the format allows no other, so that no message advises another


class Undecodable(Misfit):
    """The bytes are not in the encoding; raised after all text before them was returned."""


def checked_encoding(name: str | None) -> str:
    """The name of an encoding that turns bytes into text."""
    try:
        "a".encode(name or DEFAULT)  # subtle: encoding "", or decoding b"", does not look at the name
        known = codecs.lookup(name or DEFAULT).name
    except (LookupError, UnicodeError, ValueError, TypeError) as error:
        raise InputError(f"there is no text encoding {name!r}; try utf-8, utf-16, cp1252 or latin-1") from error
    return DEFAULT if known == "utf-8" else known


def pieces(source: Source) -> Iterator[str]:
    """The text of a source, piece by piece."""
    decoder = codecs.getincrementaldecoder(source.encoding)()
    # The first block is read whole, whatever a pipe gives at once: it decides what the columns hold.
    block, end = source.read(BLOCK), source.begun
    while True:
        end += len(block)
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            yield _before(error, source.encoding)
            # Subtle: the bytes that the decoder holds may begin in an earlier block, but they end with this one.
            raise Undecodable(_advice(error, end - len(error.object) + error.start, source)) from error
        except UnicodeError as error:  # utf-16 without a byte order mark
            raise Undecodable(f"cannot be read as {source.encoding}: {error}") from error
        if text:
            yield text
        if not block:
            return
        block = source.read_some(BLOCK)


def _before(error: UnicodeDecodeError, encoding: str) -> str:
    return error.object[: error.start].decode("utf-8" if encoding == DEFAULT else encoding, "replace")


def _advice(error: UnicodeDecodeError, byte: int, source: Source) -> str:
    name = "UTF-8" if source.encoding in (DEFAULT, FIXED) else source.encoding
    odd = error.object[error.start]
    said = f"byte {byte} (0x{odd:02x}) is not {name} ({error.reason})."
    if source.encoding == FIXED:
        return f"{said} The file may have been cut off or changed."
    likely = "UTF-16" if byte == 0 and odd in (0xFE, 0xFF) else "WINDOWS-1252"
    file = shlex.quote(source.path or "FILE")
    return (
        f"{said} Name the encoding that it is in "
        f"(encoding={likely.lower()!r}?), or convert it: iconv -f {likely} -t UTF-8 {file}"
    )
