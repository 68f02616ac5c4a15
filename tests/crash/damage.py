"""Ways in which the files of a store come to be damaged: by a byte, by a piece, by their length, or by being others'.

Each is one `Damage`: what it is called, the file it is about, and the files as they are afterwards.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from tests.crash.originals import Files, Original
from tests.stores import CATALOG

SECTOR, PIECE, PAGE = 512, 1024, 4096


@dataclass(frozen=True)
class Damage:
    """One way to be damaged."""

    what: str
    file: str
    change: Callable[[Files], Files]

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def flips(original: Original, random: Random, share: float) -> Iterator[Damage]:
    """A byte turned into another: of the catalog this share, more of its header, less of blanks; with 5 nearly all."""
    for file, content in original.whole.items():
        for place in range(len(content)):
            if random.random() < share * _weight(file, place):
                yield flipped(file, place, random.randrange(1, 256))


def _weight(file: str, place: int) -> float:
    """How much likelier a byte is to be chosen than one of a large, plain file."""
    if file.endswith("-shm"):
        return 0.005  # made anew by the first who opens the catalog
    if file.startswith("generation") and 400 < place < PAGE - 20:
        return 0.05  # the blanks of a header
    if file == CATALOG and place < 200:
        return 10.0
    if file.endswith("-wal"):
        return 0.2 if place > 100 else 10.0
    return 0.3 if file.startswith("index") and place > 300 else 1.0


def flipped(file: str, place: int, change: int) -> Damage:
    """One byte is another."""

    def apply(files: Files) -> Files:
        content = bytearray(files[file])
        content[place] ^= change
        return {**files, file: bytes(content)}

    return Damage(f"byte {place} changed by {change:#04x}", file, apply)


def cuts(original: Original) -> Iterator[Damage]:
    """A file that ends too early, or goes on behind its end."""
    for file, content in original.whole.items():
        for size in range(0, len(content), SECTOR):
            yield put(f"cut to {size} bytes", file, content[:size])
        for more in (b"\0", b"x" * SECTOR, bytes(PAGE), content):
            if more:
                yield put(f"{len(more)} bytes behind its end", file, content + more)


def pieces(original: Original, random: Random) -> Iterator[Damage]:
    """Pieces and pages that are blank, that changed places, or that belong to another file."""
    for file, content in original.whole.items():
        for size in (PIECE, PAGE, original.recipe.page):
            for start in range(0, len(content), size):
                end = min(start + size, len(content))
                yield put(
                    f"{size} bytes from {start} are blank", file, content[:start] + bytes(end - start) + content[end:]
                )
                there = random.randrange(0, len(content), size)
                yield put(
                    f"{size} bytes at {start} and {there} have changed places",
                    file,
                    _swapped(content, start, there, size),
                )
                stranger = random.choice(sorted(original.whole))
                place = random.randrange(0, max(1, len(original.whole[stranger])), size)
                taken = original.whole[stranger][place : place + end - start]
                yield put(f"{size} bytes from {start} are those at {place} of {stranger}", file,
                          content[:start] + taken + content[start + len(taken) :])  # fmt: skip


def _swapped(content: bytes, one: int, other: int, size: int) -> bytes:
    one, other = sorted((one, other))
    first, second = content[one : one + size], content[other : other + size]
    if one == other:
        return content
    return content[:one] + second + content[one + size : other] + first + content[other + size :]


def stale(original: Original) -> Iterator[Damage]:
    """Pages as they were in an older copy, are in a newer one or in another store: as if writes were lost."""
    for copy in ("older", "newer", "other"):
        for file, content in original.whole.items():
            theirs = getattr(original, copy).get(file, b"")
            size = original.recipe.page if file == CATALOG else PIECE
            for start in range(0, min(len(content), len(theirs)), size):
                taken = theirs[start : start + size]
                if taken != content[start : start + size]:
                    yield put(f"{size} bytes from {start} are of the {copy} copy", file,
                              content[:start] + taken + content[start + size :])  # fmt: skip


def missing(original: Original) -> Iterator[Damage]:
    """Files and directories that are not there."""
    for file in original.whole:
        yield Damage("missing", file, lambda files, file=file: {name: files[name] for name in files if name != file})
    for folder in folders(original.whole):
        yield Damage(
            "missing with all in it", folder, lambda files, f=folder: _taken(files, {}, lambda x: x.startswith(f))
        )


def foreign(original: Original) -> Iterator[Damage]:
    """Files and whole generations that come from another copy; a file that is not there is gone here, too."""
    for copy in ("older", "newer", "other"):
        theirs: Files = getattr(original, copy)
        for file in sorted({*original.whole, *theirs}):
            if theirs.get(file) != original.whole.get(file):
                yield Damage(
                    f"of the {copy} copy", file, lambda files, t=theirs, f=file: _taken(files, t, lambda x: x == f)
                )
        for folder in [*folders(original.whole), CATALOG]:  # the catalog with its log
            yield Damage(f"all of the {copy} copy", folder,
                         lambda files, t=theirs, f=folder: _taken(files, t, lambda x: x.startswith(f)))  # fmt: skip


def _taken(files: Files, theirs: Files, which: Callable[[str], bool]) -> Files:
    kept = {name: content for name, content in files.items() if not which(name)}
    return {**kept, **{name: content for name, content in theirs.items() if which(name)}}


def folders(files: Files) -> list[str]:
    """The directories of a store, with a slash at the end."""
    return sorted({name.partition("/")[0] + "/" for name in files if "/" in name})


def put(what: str, file: str, content: bytes) -> Damage:
    """A file with another content."""
    return Damage(what, file, lambda files: {**files, file: content})
