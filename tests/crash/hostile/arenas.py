"""Arenas that lie about their length or hold no numbers, and what is put in the place of files and directories."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from tests.crash.hostile.attempts import STORE
from tests.crash.hostile.cases import case
from tests.crash.hostile.forging import GENERATION, PAGE, WINDOW, catalog, cells, forge, poke, sparse

GROUP = "arenas"
HUGE = (1 << 63) - 1
VALUES = {"number": "<f8", "label": "<i4", "vector": "<f4", "text": "<f4"}


def add(name: str, make: Callable[[Path], Any], template: str = "number", refused: bool | None = None) -> None:
    """A case of a store whose files were altered."""
    case(name, GROUP, make, template=template, attempts=STORE, refused=refused)


# Headers


def headed(arena: str = "keys.f32", *, sealed: bool = True, **fields: Any) -> Callable[[Path], None]:
    """A case in which the header of an arena says something else."""

    def make(folder: Path) -> None:
        path = folder / "s" / GENERATION / arena
        lines = path.read_bytes()[:PAGE].split(b"\n")
        text = lines[0] + b"\n" + json.dumps({**json.loads(lines[1]), **fields}).encode() + b"\n"
        text += b" " * (PAGE - 15 - len(text) - 1) + b"\n"
        poke(path, 0, text + (b"crc32 %08x\n" % crc32(text) if sealed else b"crc32 00000000\n"))

    return make


for field, lies in {
    "width": (0, 1, -1, 1 << 31, HUGE, "NaN", None, 1e308, [4], 4.0),
    "generation": (0, -1, HUGE, "../../etc", None, 1.0),
    "store": ("", "\x1b]0;owned\x07", "../../etc/passwd", 7, None),
    "dtype": ("|O", "<f8", ">f4", "object", "<U1000000000"),
    "file": ("/etc/passwd", "../keys.f32", ""),
    "role": ("values", "pickle"),
}.items():
    for lie in lies:
        add(f"a header whose {field} is {lie!r}", headed(**{field: lie}), refused=True)
add("a header of values of another kind", headed("values.number", dtype="|O"), refused=True)
add("a header with more fields", headed(offset=0, count=HUGE), refused=True)
add("a header without a checksum", headed(sealed=False), refused=True)
add("a header of norms that lies", headed("norms.f32", width=1 << 40))
add(
    "a header that is no JSON",
    lambda folder: poke(folder / "s" / GENERATION / "keys.f32", 15, b"\x80\x04\x95cos\nsystem\n"),
    refused=True,
)
add(
    "a header full of escapes",
    lambda folder: poke(folder / "s" / GENERATION / "keys.f32", 15, b"\x1b]0;owned\x07\x1b[2J" * 100),
    refused=True,
)
add("a header that ends early", lambda folder: os.truncate(folder / "s" / GENERATION / "keys.f32", 100), refused=True)


# Lengths


def stretched(rows: int, *, width: int = 4, place: str = "") -> Callable[[Path], None]:
    """A case of a store that says it has so many rows, in files that are as long and have nothing in them."""

    def make(folder: Path) -> None:
        store = folder / "s"
        for file, size in (("keys.f32", 4 * width), ("values.number", 8), ("norms.f32", 4)):
            sparse_to(store / GENERATION / file, PAGE + rows * size)
        dead, sums = 3, np.array([rows - 3, 1, 1, 0, 0], "<f8").tobytes()
        assert dead
        forge(store, "generations", rows=rows, sums=sums)

    return make


def sparse_to(path: Path, size: int) -> None:
    """Let a file be this long."""
    with open(path, "r+b") as file:
        file.truncate(size)


for rows in (100_000, 50_000_000, 1 << 33, 1 << 38):
    add(f"{rows:,} rows in files without content", stretched(rows))
add(
    "eight terabytes of keys behind the rows",
    lambda folder: sparse(folder / "s" / GENERATION / "keys.f32", 8 << 40),
    refused=False,
)
add(
    "eight terabytes of norms behind the rows",
    lambda folder: sparse(folder / "s" / GENERATION / "norms.f32", 8 << 40),
    refused=False,
)
add(
    "an arena of a byte less",
    lambda folder: os.truncate(
        folder / "s" / GENERATION / "keys.f32", (folder / "s" / GENERATION / "keys.f32").stat().st_size - 1
    ),
    refused=True,
)
add("an arena of no rows", lambda folder: os.truncate(folder / "s" / GENERATION / "values.number", PAGE), refused=True)
add("windows for a terabyte", lambda folder: _windows(folder / "s"))
add("a window whose checksum is a text", lambda folder: _window(folder / "s", "x"))
add("a window whose checksum is below zero", lambda folder: _window(folder / "s", -1))
add("a window of a role that is none", lambda folder: _window(folder / "s", 7, "../../etc"))


def _windows(store: Path) -> None:
    with catalog(store) as connection:
        for role in ("keys", "values", "norms"):
            connection.executemany("INSERT INTO windows VALUES (1, ?, ?, 0)", [(role, n) for n in range(100_000)])
    stretched(1 << 32)(store.parent)


def _window(store: Path, checksum: object, role: str = "keys") -> None:
    with catalog(store) as connection:
        connection.execute("INSERT INTO windows VALUES (1, ?, 0, ?)", (role, checksum))
    rows = WINDOW // 16 + 10
    stretched(rows)(store.parent)


# Numbers that are none, under checksums that are right

NUMBERS = {
    "NaN": np.nan,
    "infinity": np.inf,
    "minus infinity": -np.inf,
    "3e38": 3e38,
    "a denormal": 1e-45,
    "minus zero": -0.0,
}


def filled(role: str, value: float, rows: slice = slice(None)) -> Callable[[Path], None]:
    """A case in which numbers of an arena are this."""

    def change(numbers: Any) -> None:
        numbers[rows] = value

    def make(folder: Path) -> None:
        store = folder / "s"
        kind = next((store / GENERATION).glob(f"{role}.*")).suffix[1:]
        cells(store, role, change, VALUES.get(kind, "<f4"))

    return make


for name, number in NUMBERS.items():
    add(f"keys that are {name}", filled("keys", number))
    add(f"one key that is {name}", filled("keys", number, slice(8, 9)))
    add(f"values that are {name}", filled("values", number))
    add(f"one value that is {name}", filled("values", number, slice(4, 5)))
    add(f"norms that are {name}", filled("norms", number))
add("one cell of a vector that is NaN", filled("values", np.nan, slice(7, 8)), "vector")
add("one cell of a text's vector that is infinity", filled("values", np.inf, slice(300, 301)), "text")
add("values of 1e308", filled("values", 1e308))
add("norms that are negative", filled("norms", -1.0))
add("keys that are zero", filled("keys", 0.0))


# What is no file, or another's


def instead(name: str, make: Callable[[Path, Path], Any]) -> Callable[[Path], None]:
    """A case in which something of a store was moved away, and something else is put there."""

    def work(folder: Path) -> None:
        place, kept = folder / "s" / name, folder / "elsewhere" / "kept"
        if place.exists():
            shutil.move(place, kept)
        else:
            kept.write_bytes(b"")
        make(place, folder / "elsewhere")

    return work


for name in ("LOCK", f"{GENERATION}/PIN", f"{GENERATION}/keys.f32", f"{GENERATION}/norms.f32", "index/1"):
    derived = "norms" in name or "index" in name or "LOCK" in name
    add(f"{name} is a link to a file of others", instead(name, lambda place, there: place.symlink_to(there / "victim")))
    add(f"{name} is a link to /dev/zero", instead(name, lambda place, there: place.symlink_to("/dev/zero")))
    add(
        f"{name} is a hard link to a file of others",
        instead(name, lambda place, there: os.link(there / "victim", place)),
    )
    add(
        f"{name} is a hard link to itself elsewhere", instead(name, lambda place, there: os.link(there / "kept", place))
    )
    add(f"{name} is a pipe", instead(name, lambda place, there: os.mkfifo(place)))
    add(
        f"{name} is a directory with things in it",
        instead(name, lambda place, there: (place.mkdir(), (place / "thing").write_text("x"))),
    )
    add(f"{name} is a device", instead(name, lambda place, there: os.mknod(place, 0o20666, os.makedev(1, 5))))
    add(f"{name} is eight terabytes of nothing", instead(name, lambda place, there: sparse(place, 8 << 40)))
for name in (GENERATION, "index"):
    add(
        f"{name} is a link to a directory elsewhere",
        instead(name, lambda place, there: place.symlink_to(there / "kept")),
    )
    add(f"{name} is a link to itself", instead(name, lambda place, there: place.symlink_to(place)))
    add(f"{name} is a file", instead(name, lambda place, there: place.write_bytes(b"x")))
    add(f"{name} is a pipe", instead(name, lambda place, there: os.mkfifo(place)))
add(
    "the store is a link to another",
    instead(".", lambda place, there: None) if False else lambda folder: _linked(folder),
    refused=False,
)
add(
    "the next generation is a link to a directory elsewhere",
    lambda folder: _next(folder, lambda place, there: place.symlink_to(there)),
)
add(
    "the next generation is a directory with things in it",
    lambda folder: _next(folder, lambda place, there: (place.mkdir(), (place / "x").write_text("x"))),
    refused=False,
)
add("the next generation is a pipe", lambda folder: _next(folder, lambda place, there: os.mkfifo(place)))
add(
    "the next generation holds links",
    lambda folder: _next(
        folder, lambda place, there: (place.mkdir(), (place / "keys.f32").symlink_to(there / "victim"))
    ),
    refused=False,
)
add("a directory called in other digits", lambda folder: _named(folder, "generation-٠٠٠٠٠٩"), refused=False)
add(
    "directories with odd names",
    lambda folder: [
        _named(folder, name)
        for name in (
            "generation-000009\n",
            "\x1b]0;owned\x07",
            "generation--1",
            "generation-000002/..a".replace("/", "-"),
            "index\n",
            "a" * 255,
        )
    ],
    refused=False,
)
add(
    "index files with odd names",
    lambda folder: [
        (folder / "s" / "index" / name).write_text("x")
        for name in ("0", "-1", "٣", "1\n", "007", "x", "9" * 40, "\x1b[2J")
    ],
    refused=False,
)
add(
    "a generation of 10,000 names",
    lambda folder: [(folder / "s" / f"generation-{n:06d}").mkdir() for n in range(100, 10_100)],
    refused=False,
)
add(
    "the arenas of another store",
    lambda folder: shutil.copy(
        folder / "elsewhere" / "other" / GENERATION / "keys.f32", folder / "s" / GENERATION / "keys.f32"
    ),
    "vector",
    True,
)
add(
    "what an unborn store left is a link",
    lambda folder: (folder / ".s.new-00000000").symlink_to(folder / "elsewhere"),
    refused=False,
)


def _linked(folder: Path) -> None:
    shutil.move(folder / "s", folder / "out" / "really")
    (folder / "s").symlink_to(folder / "out" / "really")


def _next(folder: Path, make: Callable[[Path, Path], Any]) -> None:
    make(folder / "s" / "generation-000002", folder / "elsewhere")


def _named(folder: Path, name: str) -> None:
    (folder / "s" / name).mkdir()
    (folder / "s" / name / "thing").write_text("somebody's")
