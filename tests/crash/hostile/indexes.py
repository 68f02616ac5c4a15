"""Index files that lie, in stores whose catalogs agree with them: lists of softkv's own, and what FAISS would read."""

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.index.encoding import decoded, encoded
from softkv.index.lists import MEASURED
from softkv.maths.drift import Drift
from softkv.storage.catalog.tables import seal
from tests.crash.hostile.cases import case
from tests.crash.hostile.forging import catalog, forge, sparse
from tests.crash.hostile.templates import PROPOSERS
from tests.scales import scaled

GROUP = "indexes"
ATTEMPTS = ("ask", "write", "examine")
HUGE = (1 << 63) - 1
NUMBERS32 = (0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 299, 300, 301, 16, 100_000)
NUMBERS64 = (0, 1, (1 << 64) - 1, HUGE, 1 << 63, 1 << 32, 1 << 40, 301, 299)


def add(name: str, make: Callable[[Path], Any], template: str = "indexed number", **options: Any) -> None:
    """A case of a store whose index files were altered."""
    case(name, GROUP, make, template=template, attempts=options.pop("attempts", ATTEMPTS), refused=False, **options)


def checked(said: bytes) -> Callable[[Path], None]:
    """A case in which this was written of a check of the calibration, under a checksum that is right."""

    def make(folder: Path) -> None:
        with catalog(folder / "s") as connection:
            ((generation, number),) = connection.execute("SELECT generation, number FROM indexes").fetchall()
            row = (generation, "checked", number, said.replace(b"FILE", str(number).encode()))
            connection.execute("INSERT INTO derived VALUES (?, ?, ?, ?, ?)", (*row, seal(*row)))

    return make


def noted(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A case in which late rows were noted, and facts and arrays of the note altered under a checksum that is right."""

    def make(folder: Path) -> None:
        with softkv.open(folder / "s") as db:
            db.delete(["item 7"])
            scaled(pytest.MonkeyPatch(), noted=1)
            items = [db.item(f"item {number}") for number in range(0, 400, 9)]
            names, vectors = [f"late {one.key}" for one in items], [one.vector for one in items]
            db.add(names, [one.value for one in items], vectors=vectors)
        with catalog(folder / "s") as connection:
            ((*key, old),) = connection.execute(
                "SELECT generation, name, part, content FROM derived WHERE name = 'lists'"
            )
            facts, arrays = decoded(memoryview(old))
            writable = {name: array.copy() for name, array in arrays.items()}
            change(facts, writable)
            row = (*key, b"".join(encoded(facts, writable)))
            connection.execute("REPLACE INTO derived VALUES (?, ?, ?, ?, ?)", (*row, seal(*row)))

    return make


def _lied(lies: dict[str, Any], facts: dict[str, Any], _: dict[str, Any]) -> None:
    """Facts altered by these."""
    facts.update(lies)


def _filled(value: float, x: Any) -> Any:
    """An array full of this, of floats where whole numbers cannot be it."""
    return np.full(x.shape, value, x.dtype if x.dtype.kind == "f" or isinstance(value, int) else np.float64)


def content(store: Path) -> tuple[Path, bytes]:
    """The only index file of a store."""
    with catalog(store) as connection:
        ((file,),) = connection.execute("SELECT file FROM indexes").fetchall()
    path = store / "index" / str(file)
    return path, path.read_bytes()


def put(store: Path, new: bytes) -> None:
    """Replace the only index file, and let the catalog agree with it."""
    path, _ = content(store)
    path.write_bytes(new)
    forge(store, "indexes", size=len(new), sha256=hashlib.sha256(new).digest())


# Lists


def lists(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A case in which facts and arrays of an index are altered."""

    def make(folder: Path) -> None:
        facts, arrays = decoded(memoryview(content(folder / "s")[1]))
        writable = {name: array.copy() for name, array in arrays.items()}
        change(facts, writable)
        put(folder / "s", b"".join(encoded(facts, writable)))

    return make


def fill(name: str, value: float) -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    """All numbers of an array are this."""
    return lambda facts, arrays: arrays[name].fill(value)


def array(name: str, make: Callable[[Any], Any]) -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    """An array is made into another."""

    def change(_: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays[name] = make(arrays[name])

    return change


def _without(name: str) -> Callable[[dict[str, Any], dict[str, Any]], Any]:
    """An array is not there."""
    return lambda facts, arrays: arrays.pop(name)


STATISTICS = (
    "counts",
    "means",
    "axes",
    "spreads",
    "outside",
    "profile",
    "widest",
    "radii",
    "values",
    "slope",
    "value_radii",
    "slope_gaps",
    "scatter",
    "noise",
)
for statistic in STATISTICS:
    for value in (np.nan, np.inf, -1e300):
        add(f"lists whose {statistic} are {value}", lists(fill(f"lists.{statistic}", value)))
    add(f"lists whose {statistic} have another shape", lists(array(f"lists.{statistic}", lambda x: x.reshape(-1)[:3])))
for measured in MEASURED:
    for value in (np.nan, -np.inf):
        add(f"a calibration whose {measured} are {value}", lists(fill(f"calibration.{measured}", value)))
    add(f"a calibration whose {measured} are empty", lists(array(f"calibration.{measured}", lambda x: x[:0])))
    add(
        f"a calibration whose {measured} are one number",
        lists(array(f"calibration.{measured}", lambda x: x.reshape(-1)[0])),
    )
add(
    "a calibration at infinitely many temperatures",
    lists(array("calibration.temperatures", lambda x: np.linspace(1, 2, 100_000, dtype=x.dtype))),
)
add("a calibration that promises nothing is wrong", lists(fill("calibration.errors", 0.0)))
for name, make in {
    "are huge": lambda x: x * (1 << 40),
    "fall": lambda x: x[::-1].copy(),
    "are below zero": lambda x: x - 5,
    "begin at one": lambda x: x + 1,
    "are all zero": lambda x: x * 0,
    "are broken": lambda x: x.astype(np.float64) + 0.5,
    "are NaN": lambda x: np.full(len(x), np.nan),
    "are a matrix": lambda x: np.stack([x, x]),
    "are one": lambda x: x[:1],
    "wrap around": lambda x: np.concatenate([x[:1], np.full(len(x) - 2, -(1 << 63)), x[-1:]]),
    "are none": lambda x: x[:0],
    "are a number": lambda x: x[0],
}.items():
    add(f"offsets that {name}", lists(array("offsets", make)))
ODD = {
    "are NaN": lambda x: np.full(len(x), np.nan),
    "are a matrix": lambda x: np.stack([x, x]),
    "are too few": lambda x: x[:-1],
    "are none": lambda x: x[:0],
    "are a number": lambda x: x[0],
}  # as no array of whole numbers may be that has one for each list, or label
HEADS = {
    "are huge": lambda x: x + (1 << 40),
    "are larger than their lists": lambda x: x + 20,
    "are below zero": lambda x: x - 5,
    "are broken": lambda x: x.astype(np.float64) + 0.5,
}
for name, make in (HEADS | ODD).items():
    add(f"heads that {name}", lists(array("heads", make)))
add("counts beyond the lists", lists(array("lists.counts", lambda x: x + 1e6)))
add("counts below zero", lists(fill("lists.counts", -3.0)))
add("counts of a fraction", lists(fill("lists.counts", 0.25)))
add("no lists at all", lists(lambda facts, arrays: arrays.update({"offsets": np.zeros(1, np.int64)})))
add("a million lists without rows", lists(lambda facts, arrays: _many(arrays)))
add("lengths that are NaN", lists(fill("lengths", np.nan)))
add("lengths without end", lists(array("lengths", lambda x: np.array([0.0, 1.0, np.inf]))))
add("a centre that is NaN", lists(fill("centre", np.nan)))
for fact, lies in {
    "form": ("none", "", 7, None, ["cosine"], {"__class__": "os"}, "gaussian", "dot"),
    "compatibility": ("none", 7, None, "gaussian"),
    "built": (
        None,
        7,
        "x",
        [1],
        {"seconds": "\x1b]0;owned\x07"},
        {"lists": HUGE * 10},
        {"seconds": float("nan")},
        {"changed": HUGE * 10, "checked": {"file": 1}},
    ),
}.items():
    for lie in lies:
        add(
            f"an index whose {fact} is {lie!r}",
            lists(lambda facts, arrays, fact=fact, lie=lie: facts.update({fact: lie})),
        )  # type: ignore[misc]
add("values of another width", lists(array("lists.values", lambda x: np.hstack([x, x]))))
SAID = '{"file": FILE, "changes": 0, "items": 1, "confidence": 0.95, "temperatures": LIST, "asked": LIST, "values": %s}'
for name, said in {
    "nothing": "",
    "much": "[" * 1_000_000,
    "half of it": SAID % "LIST",
    "no numbers": SAID.replace("LIST", '[7, "\x1b]0;owned\x07"]') % '[7, {}], "masses": [null, 0]',
    "that nothing is right": SAID.replace("LIST", "[1.0]") % '[0], "masses": [0]',
    "huge numbers": SAID.replace("LIST", f"[{HUGE}0]") % f'[{HUGE}0], "masses": [{HUGE}0]',
}.items():
    add(f"a check that says {name}", checked(said.encode()))
for fact in ("file", "since", "first", "gone"):
    for lie in (-1, HUGE, "x", None):
        add(f"a note whose {fact} is {lie!r}", noted(partial(_lied, {fact: lie})))
NOTED = ("owners", "dead", *(f"drift.{one.name}" for one in fields(Drift)))
for name in NOTED:
    for value in (-3, np.nan, 3e38):
        add(f"a note whose {name} are {value}", noted(array(name, partial(_filled, value))), "indexed label")
    add(f"a note whose {name} are cut off", noted(array(name, lambda x: x[:-1])), "indexed label")
    add(f"a note without {name}", noted(_without(name)))
for name in ("counts", "keys", "squares", "values", "scatter"):
    for value in (-1e6, 3e38):
        add(f"a note of {name} of {value}", noted(fill(f"drift.{name}", value)))
SHARED = ("starts", "codes", "tallies", "sloped", "labels")
for part in SHARED:
    given = {
        "are huge": lambda x: x * (1 << 40),
        "are below zero": lambda x: x - 5,
        "are all zero": lambda x: x * 0,
        "fall": lambda x: x[::-1].copy(),
    } | ODD
    for name, make in given.items():
        add(f"shares whose {part} {name}", lists(array(f"lists.values.{part}", make)), "indexed label")
    add(f"shares without {part}", lists(_without(f"lists.values.{part}")), "indexed label")
add("labels too many", lists(array("lists.values.labels", lambda x: x * 50)), "indexed label")
add("labels without end", lists(array("lists.values.labels", lambda x: x + (1 << 30))), "indexed label")
add("labels too few", lists(lambda facts, arrays: _fewer(arrays)), "indexed label")
add("labels in lists that have others", lists(array("lists.values.codes", lambda x: 2 - x)), "indexed label")
add("values where there should be shares", lists(lambda facts, arrays: _in_full(arrays)), "indexed label")
add("shares where there should be values", lists(lambda facts, arrays: _shared(arrays)))


def _many(arrays: dict[str, Any]) -> None:
    count = 1_000_000
    arrays["offsets"] = np.zeros(count + 1, np.int64)
    for name in STATISTICS:
        if name not in ("axes", "profile", "slope", "means", "spreads", "values"):
            arrays[f"lists.{name}"] = np.zeros((count, *arrays[f"lists.{name}"].shape[1:]))
    for name in ("means", "spreads", "values"):
        arrays[f"lists.{name}"] = np.zeros((count, 1))


def _fewer(arrays: dict[str, Any]) -> None:
    arrays["lists.values.labels"] -= 1
    arrays["lists.values.sloped"], arrays["lists.slope"] = arrays["lists.values.sloped"][:2], arrays["lists.slope"][:2]
    there = arrays["lists.values.codes"] < arrays["lists.values.labels"]
    starts = np.append(0, there.cumsum())[arrays["lists.values.starts"]]
    arrays["lists.values.starts"] = starts
    for name in ("codes", "tallies"):
        arrays[f"lists.values.{name}"] = arrays[f"lists.values.{name}"][there]
    arrays["lists.counts"] = np.add.reduceat(np.append(arrays["lists.values.tallies"], 0.0), starts[:-1])


def _in_full(arrays: dict[str, Any]) -> None:
    for part in SHARED:
        del arrays[f"lists.values.{part}"]
    arrays["lists.values"] = np.full((len(arrays["lists.counts"]), len(arrays["lists.slope"])), 0.25)


def _shared(arrays: dict[str, Any]) -> None:
    count = len(arrays["lists.counts"])
    del arrays["lists.values"]
    shares = (np.arange(count + 1), np.zeros(count, np.int64), arrays["lists.counts"], np.zeros(1, np.int64), [1])
    arrays.update({f"lists.values.{part}": np.array(x) for part, x in zip(SHARED, shares, strict=True)})


# The envelope of lists


def header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A case in which the header of an index file says something else of its arrays."""

    def make(folder: Path) -> None:
        old = content(folder / "s")[1]
        length = int.from_bytes(old[21:29], "little")
        said = json.loads(old[29 : 29 + length])
        said = change(said) or said
        text = said if isinstance(said, bytes) else json.dumps(said).encode()
        put(folder / "s", old[:21] + len(text).to_bytes(8, "little") + text + old[29 + length :])

    return make


for name, lie in {
    "2^60 numbers": ["float64", [1 << 60]],
    "a product beyond all": ["float64", [1 << 40, 1 << 40]],
    "objects": ["object", [3]],
    "a negative length": ["float64", [-1]],
    "a length that is true": ["float64", [True]],
    "no type": [None, [3]],
    "a product of nothing and much": ["float64", [0, 1 << 62]],
    "a million axes": ["float64", [1] * 1_000_000],
    "a text": "float64",
    "sixty-five axes": ["float64", [1] * 65],
    "a number for a shape": ["float64", 3],
}.items():
    add(f"an array of {name}", header(lambda said, lie=lie: said["arrays"].update({"lists.means": lie})))  # type: ignore[misc]
add("a header that is a list", header(lambda said: b"[]"))
add("a header of a hundred thousand brackets", header(lambda said: b"[" * 100_000))
add("a header that is no UTF-8", header(lambda said: b"\xff\xfe{}"))
add("a header with an array too few", header(lambda said: said["arrays"].pop("offsets") and None))
for name, new in {
    "nothing": b"",
    "one byte": b"x",
    "a pickle": b"\x80\x04\x95cos\nsystem\n(S'touch owned'\ntR.",
    "zeros": bytes(1 << 20),
    "a NumPy array of objects": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(
        128
    )
    + b"\x80\x04.",
}.items():
    add(f"an index file of {name}", lambda folder, new=new: put(folder / "s", new))  # type: ignore[misc]
    add(f"a proposer of {name}", lambda folder, new=new: put(folder / "s", new), "proposed hnsw")  # type: ignore[misc]
add(
    "an index file of a header of 2^60 bytes",
    lambda folder: put(folder / "s", b"softkv index\n" + struct.pack("<QQ", 1, 1 << 60)),
)

# The record in the catalog

for field, lies in {
    "rows": (0, HUGE, 401, 1),
    "number": (0, HUGE, 1),
    "size": (0, HUGE, 1 << 40),
    "file": (0, 99, HUGE),
    "name": ("", "x" * 100_000, "../../etc/passwd", "\x1b]0;owned\x07", b"\xff\x00", "a\0b", "proposer"),
    "sha256": (b"", "x", b"\0" * 32, b"\0" * 100_000),
    "generation": (2, HUGE),
}.items():
    for lie in lies:
        told = repr(lie) if len(repr(lie)) < 30 else f"{len(lie):,} of {lie[:1]!r}"  # type: ignore[arg-type]
        add(
            f"an index record whose {field} is {told}",
            lambda folder, f=field, x=lie: forge(folder / "s", "indexes", **{f: x}),
        )  # type: ignore[misc]
add("an index file of eight terabytes", lambda folder: _sparse(folder / "s"))
add("a thousand index records of one file", lambda folder: _thousand(folder / "s"))


def _sparse(store: Path) -> None:
    path, _ = content(store)
    sparse(path, 8 << 40)
    forge(store, "indexes", size=8 << 40)


def _thousand(store: Path) -> None:
    from softkv.storage.catalog.tables import seal

    with catalog(store) as connection:
        (row,) = connection.execute("SELECT * FROM indexes").fetchall()
        for number in range(1000):
            fields = (row[0], f"more {number}", *row[2:-1])
            connection.execute(f"INSERT INTO indexes VALUES ({', '.join('?' * len(row))})", (*fields, seal(*fields)))


# Proposers: what FAISS reads


def proposer(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A case in which the bytes of a proposer are altered."""
    return lambda folder: put(folder / "s", change(content(folder / "s")[1]))


def body_of(whole: bytes) -> int:
    """Where the part of FAISS begins: behind the count of rows, the head, and its JSON."""
    return 8 + 24 + struct.unpack_from("<8sIIQ", whole, 8)[2]


def struck(whole: bytes, place: int, form: str, number: int) -> bytes:
    """One number in the part of FAISS is another."""
    altered = bytearray(whole)
    struct.pack_into(form, altered, min(body_of(whole) + place, len(whole) - struct.calcsize(form)), number)
    return bytes(altered)


def strikes(whole: bytes, random: Random, count: int) -> list[tuple[int, str, int]]:
    """Numbers to alter: half of them near the beginning, where sizes and widths stand."""
    length, found = len(whole) - body_of(whole) - 8, []
    for _ in range(count):
        place = random.randrange(min(400, length)) if random.random() < 0.5 else random.randrange(length)
        place = place // 4 * 4 if random.random() < 0.5 else place
        wide = random.random() < 0.5
        found.append((place, "<Q" if wide else "<I", random.choice(NUMBERS64 if wide else NUMBERS32)))
    return found


def _other_head(whole: bytes, **fields: Any) -> bytes:
    start = body_of(whole)
    length = struct.unpack_from("<8sIIQ", whole, 8)
    text = json.dumps({**json.loads(whole[32:start]), **fields}).encode()
    return whole[:8] + struct.pack("<8sIIQ", length[0], length[1], len(text), length[3]) + text + whole[start:]


for name in PROPOSERS:
    template = f"proposed {name}"
    add(f"{template}: cut in half", proposer(lambda whole: whole[: len(whole) // 2]), template)
    add(f"{template}: another kind's head", proposer(lambda whole: _other_head(whole, kind="HNSW32,Flat")), template)
    add(
        f"{template}: a part that is another's",
        proposer(lambda whole: whole[: body_of(whole)] + b"IxMp" + whole[body_of(whole) + 4 :]),
        template,
    )
add("a proposer of 2^62 rows", proposer(lambda whole: struct.pack("<Q", 1 << 62) + whole[8:]), "proposed hnsw")
add("a proposer of no rows", proposer(lambda whole: struct.pack("<Q", 0) + whole[8:]), "proposed hnsw")
for kind in (
    "Flat",
    "../../etc",
    "IVF1048576,PQ64",
    "HNSW512,Flat",
    "",
    "PCA65536,Flat",
    "Pad65536,Flat",
    7,
    None,
    "\x1b[2J",
    "x" * 3000,
):
    add(
        f"a proposer whose kind is {kind!r:.40}",
        proposer(lambda whole, kind=kind: _other_head(whole, kind=kind)),
        "proposed ivf",
    )  # type: ignore[misc]
