"""Files that are given to `add` and `import`: bombs, lies, pickles, and texts that are none."""

import base64
import gzip
import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.crash.hostile.attempts import run
from tests.crash.hostile.cases import case
from tests.crash.hostile.confinement import Step
from tests.crash.hostile.forging import sparse

GROUP = "inputs"


class _Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch owned",)


PICKLE = pickle.dumps(_Harm())
HUGE = (1 << 63) - 1


def add(
    name: str,
    file: str,
    make: bytes | str | Callable[[Path], Any],
    *options: str,
    good: bool = False,
    heavy: bool = False,
) -> None:
    """A case of a file that is added, and imported where its name says that it can be."""

    def work(folder: Path) -> None:
        path = folder / "elsewhere" / file
        content = make.encode(errors="surrogatepass") if isinstance(make, str) else make
        path.write_bytes(content) if isinstance(content, bytes) else content(path)

    def added(folder: Path, step: Step) -> None:
        os.chdir(folder / "out")
        path = folder / "elsewhere" / file
        code = step("add", lambda: run(["add", "-i", path, "--db", folder / "out" / "s", "--no-progress", *options]))
        if good and code != 0:
            step("to be read", lambda: _fail(f"a good file was refused with {code}"))
        if path.suffix in (".jsonl", ".npz", ".parquet"):
            step("import", lambda: run(["import", path, "--db", folder / "out" / "t"]))
        step("nothing ran", lambda: _fail("something was run") if list(folder.rglob("owned")) else None)

    case(name, GROUP, work, attempts=(added,), heavy=heavy)


def _fail(why: str) -> None:
    raise AssertionError(why)


def exported(**lies: Any) -> str:
    """The first line of an export."""
    fields = {"format": 1, "kind": "number", "key_width": 4, "value_width": 1, "items": 1, "settings": {}} | lies
    return json.dumps({"softkv": fields}) + "\n"


def learned(content: str, **lies: Any) -> str:
    """The first line of an export whose store has learned this, and an item."""
    settings = {"value": "number", "compatibility": "gaussian", "projection": "p"}
    item = {"value": 1.0, "vector": [1, 2, 3, 4]}
    return exported(format=2, settings=settings, files={"p": content}, **lies) + json.dumps(item) + "\n"


def projection(facts: Any, arrays: Any) -> str:
    """A projection with this header and ones as numbers, in base64."""
    header = json.dumps({"facts": facts, "arrays": arrays}).encode()
    head = b"softkv index\n" + struct.pack("<QQ", 2, len(header)) + header
    return base64.b64encode(head + struct.pack("<1000f", *[1.0] * 1000)).decode()


FACTS = {"directions": False, "ridge": None, "learned": {}}
NAMES = ("factors", "centre", "units", "numbers")


# Texts

for name, content in {
    "nothing": "",
    "a byte order mark alone": "\ufeff",
    "a NUL": "key,value\na\0b,1\n",
    "NULs alone": "\0" * 10_000,
    "a header alone": "key,value\n",
    "a quote that never closes": 'key,value\n"a,1\nb,2\n',
    "only quotes": '"' * 9999,
    "carriage returns alone": "key,value\ra,1\rb,2\r",
    "a lone surrogate": "key,value\n\ud800,1\n",
    "a key with escapes": "key,value\n\x1b]0;owned\x07\x1b[2J,1\n",
    "columns with escapes": "\x1b[2J,value\na,1\n",
    "a formula": "key,value\n=cmd|' /C calc'!A0,1\n",
    "numbers beyond all": "key,value\na,1e999\nb,-1e400\n",
    "NaN": "key,value\na,nan\nb,inf\n",
    "a number of a million digits": "key,value\na,1" + "0" * 1_000_000 + "\n",
    "a column twice": "key,key,value\na,b,1\n",
    "no columns": "\n\n\n",
    "a million empty lines": "\n" * 1_000_000,
    "a row of a hundred thousand cells": "key,value\n" + "a," * 100_000 + "\n",
    "a million columns": ",".join(f"c{n}" for n in range(1_000_000)) + "\n" + "1," * 999_999 + "1\n",
    "JSON in a cell, deep": 'key,value,payload\na,1,"' + "[" * 100_000 + '"\n',
    "a key of 70,000 letters": "key,value\n" + "k" * 70_000 + ",1\n",
    "keys that begin with #": "key,value\n#1,1\n",
    "the same key a thousand times": "key,value\n" + "a,1\n" * 1000,
    "line separators": "key,value\na\u2028b\u0085,1\n",
    "SQL": "key,value\n'; DROP TABLE contents; --,1\n",
    "turned around": "key,value\na\u202eb,1\n",
}.items():
    add(f"CSV: {name}", "file.csv", content)
add("CSV: Latin-1", "file.csv", "key,value\nétude,1\n".encode("latin-1"))
add("CSV: UTF-16", "file.csv", "key,value\na,1\n".encode("utf-16"))
add("CSV: UTF-16 without end", "file.csv", "key,value\na,1\n".encode("utf-16")[:-1], "--encoding", "utf-16")
add("CSV: UTF-7", "file.csv", b"key,value\n+AGE-,1\n", "--encoding", "utf-7")
add("CSV: an encoding that is a codec of bytes", "file.csv", b"key,value\n", "--encoding", "zlib")
add("CSV: an encoding that is rot13", "file.csv", b"key,value\n", "--encoding", "rot13")
add("CSV: an encoding that is a path", "file.csv", b"key,value\n", "--encoding", "../../etc")
add("CSV: punycode", "file.csv", b"key,value\n" + b"a" * 20_000 + b"-\n", "--encoding", "punycode")
add("CSV: a gigabyte of nothing in one line", "file.csv", lambda path: sparse(path, 1 << 30), heavy=True)
add("CSV: forty megabytes of nothing in one line", "file.csv", lambda path: sparse(path, 40 << 20))
add("CSV: a directory", "file.csv", lambda path: path.mkdir())
add("CSV: a link to itself", "file.csv", lambda path: path.symlink_to(path))
add(
    "CSV: a bomb of gzip",
    "file.csv.gz",
    lambda path: path.write_bytes(gzip.compress(b"key,value\n" + b"a" * (200 << 20), 9)),
)
add(
    "CSV: gzip in gzip", "file.csv.gz", lambda path: path.write_bytes(gzip.compress(gzip.compress(b"key,value\na,1\n")))
)
add(
    "CSV: gzip cut off",
    "file.csv.gz",
    lambda path: path.write_bytes(gzip.compress(b"key,value\n" + os.urandom(9999))[:-200]),
)
add("CSV: a gzip header of nothing", "file.csv.gz", b"\x1f\x8b" + bytes(30))

for name, content in {
    "nothing": "",
    "no JSON": "{",
    "a number": "7\n",
    "a list": "[]\n",
    "null": "null\n",
    "a hundred thousand brackets": "[" * 100_000,
    "a hundred thousand objects": '{"a":' * 100_000,
    "a deep payload": '{"key": "a", "value": 1, "payload": ' + "[" * 5000 + "]" * 5000 + "}\n",
    "a number of ten thousand digits": '{"key": "a", "value": 1' + "0" * 10_000 + "}\n",
    "NaN": '{"key": "a", "value": NaN}\n',
    "Infinity": '{"key": "a", "value": -Infinity}\n',
    "1e999": '{"key": "a", "value": 1e999}\n',
    "2^53 + 1": '{"key": "a", "value": 9007199254740993}\n',
    "a name twice": '{"key": "a", "key": "b", "value": 1}\n',
    "a lone surrogate": '{"key": "\\ud800", "value": 1}\n',
    "a NUL": '{"key": "a\\u0000b", "value": 1}\n',
    "escapes": '{"key": "\\u001b]0;owned\\u0007", "value": 1}\n',
    "a vector of a million": '{"key": "a", "value": [' + ",".join("1" * 1_000_000) + "]}\n",
    "vectors of other widths": '{"key": "a", "value": [1]}\n{"key": "b", "value": [1, 2]}\n',
    "vectors of vectors": '{"key": "a", "value": [[1]]}\n',
    "a vector of texts": '{"key": "a", "value": ["x"]}\n',
    "a million names": '{"key": "a", "value": 1, ' + ", ".join(f'"n{n}": 1' for n in range(300_000)) + "}\n",
    "names that are operators": '{"key": "a", "value": 1, "payload": {"$where": "x", "__class__": "os"}}\n',
    "an empty name": '{"": 1, "value": 2}\n',
    "comments": '// x\n{"key": "a", "value": 1}\n',
    "one object over many lines": '{"key":\n"a",\n"value":\n1}\n',
    "a byte order mark": '\ufeff{"key": "a", "value": 1}\n',
    "a header that lies about items": exported(items=(1 << 63) - 1),
    "a header of a width of 2^60": exported(key_width=1 << 60),
    "a header of settings of a path": exported(items=0, settings={"embedder": "../../etc"}),
    "a projection of nothing": learned(""),
    "a projection that is no base64": learned("?" * 1000),
    "a projection of fifty megabytes": learned("A" * (50 << 20)),
    "a projection of a million files": exported(format=2, files={str(n): "" for n in range(1_000_000)}),
    "a projection of a rank of 2^60": learned(
        projection(FACTS, {name: ["float32", [1 << 60, 4] if name == "factors" else [4]] for name in NAMES})
    ),
    "a projection of no rank": learned(
        projection(FACTS, {name: ["float32", [1 << 40, 0] if name == "factors" else [0]] for name in NAMES})
    ),
    "a projection of texts": learned(projection({**FACTS, "ridge": "x"}, {name: ["float32", [4]] for name in NAMES})),
    "a projection of deep facts": learned(projection({**FACTS, "learned": {"items": [[]]}}, {})),
    "a projection of names alone": learned(projection([], [])),
    "true for a number": '{"key": "a", "value": true}\n',
    "a key that is a number": '{"key": 1e400, "value": 1}\n',
    "a key that is a list": '{"key": ["a"], "value": 1}\n',
}.items():
    add(f"JSON lines: {name}", "file.jsonl", content)
add("JSON lines: forty megabytes of nothing in one line", "file.jsonl", lambda path: sparse(path, 40 << 20))
add("JSON lines: a gigabyte of nothing in one line", "file.jsonl", lambda path: sparse(path, 1 << 30), heavy=True)
add("JSON lines: no UTF-8", "file.jsonl", b'{"key": "\xff\xfe", "value": 1}\n')
for name, content in {
    "a hundred thousand brackets": "[" * 100_000,
    "an element that never ends": "[" + '"' + "a" * 40_000_000,
    "a map of many": "{" + ",".join(f'"k{n}": 1' for n in range(20_000)) + "}",
    "two documents": "[] []",
    "deep maps": '{"a": ' * 100_000,
    "a number without end": "[" + "1" * 40_000_000,
    "blanks without end": " " * 40_000_000,
    "commas": "[,,,,]",
    "colons": '{"a"::1}',
}.items():
    add(f"JSON: {name}", "file.json", content)


# Arrays


def npy(header: str, body: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    """A file of one array with this header."""
    text = header.encode("latin-1")
    packed = struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + packed + text + body


def described(descr: str = "'<f4'", shape: str = "(3, 4)", order: str = "False") -> str:
    """The header of an array."""
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


FLOATS = np.arange(12, dtype="<f4").tobytes()
for name, content in {
    "objects": npy(described("'|O'", "(1,)"), PICKLE),
    "a pickle": PICKLE,
    "2^62 rows": npy(described(shape=f"({1 << 62}, 4)"), FLOATS),
    "2^40 rows": npy(described(shape=f"({1 << 40}, 4)"), FLOATS),
    "a shape whose product overflows": npy(described(shape=f"({1 << 32}, {1 << 32})"), FLOATS),
    "a negative shape": npy(described(shape="(-1, 4)"), FLOATS),
    "a shape of names": npy(described(shape="('a', 4)"), FLOATS),
    "a shape of floats": npy(described(shape="(3.0, 4)"), FLOATS),
    "a shape of sixty-five axes": npy(described(shape="(" + "1, " * 65 + ")"), FLOATS),
    "no shape": npy(described(shape="()"), FLOATS[:4]),
    "no rows": npy(described(shape="(0, 4)")),
    "a width of 2^40": npy(described(shape=f"(1, {1 << 40})"), FLOATS),
    "a width of nothing": npy(described(shape=f"({1 << 60}, 0)")),
    "code for a header": npy("__import__('os').system('touch owned')\n"),
    "a header of brackets": npy("(" * 9000 + ")" * 9000),
    "a header of 4 GB": npy(described(), FLOATS, 2, 0xFFFFFFFF),
    "a header of format 9": npy(described(), FLOATS, 9),
    "a header of nothing": npy("", FLOATS),
    "a header with a name too many": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), 'x': 1}\n", FLOATS),
    "texts of a billion letters": npy(described("'<U1000000000'", "(1,)"), FLOATS),
    "numbers that are no letters": npy(described("'<U1'", "(3,)"), b"\xff" * 12),
    "records": npy(described("[('a', '<f4'), ('b', '|O')]", "(3,)"), FLOATS),
    "dates": npy(described("'<M8[ns]'", "(3,)"), FLOATS * 2),
    "half bytes": npy(described("'<f1'", "(3, 4)"), FLOATS),
    "long doubles": npy(described("'<f16'", "(3, 4)"), FLOATS * 4),
    "complex numbers": npy(described("'<c8'", "(3, 2)"), FLOATS * 2),
    "voids of 2 GB": npy(described("'|V2147483647'", "(1,)"), FLOATS),
    "NaN": npy(described(), np.full(12, np.nan, "<f4").tobytes()),
    "infinities": npy(described(), np.full(12, np.inf, "<f4").tobytes()),
    "too few bytes": npy(described(), FLOATS[:-1]),
    "too many bytes": npy(described(), FLOATS + b"x"),
    "column-major of 2^40": npy(described(shape=f"({1 << 40}, 4)", order="True"), FLOATS),
    "an order that is a text": npy(described(order="'yes'"), FLOATS),
    "a descr that is a tuple": npy(described("('<f4', (2, 2))"), FLOATS),
    "a descr of escapes": npy(described("'\\x1b]0;owned\\x07'"), FLOATS),
    "integers of 2^63": npy(described("'<u8'", "(3, 4)"), b"\xff" * 96),
}.items():
    add(f"npy: {name}", "file.npy", content)
add("npy: big-endian", "file.npy", npy(described("'>f4'"), np.arange(12, dtype=">f4").tobytes()))
add("npy: column-major", "file.npy", npy(described(order="True"), FLOATS))
add(
    "npy: eight terabytes of nothing",
    "file.npy",
    lambda path: (path.write_bytes(npy(described(shape=f"({1 << 39}, 4)"))), sparse(path, 8 << 40)),
)


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return file.getvalue()


def good(count: int = 3) -> dict[str, bytes]:
    """The arrays of a few items."""
    keys = npy(described(shape=f"({count}, 4)"), np.ones((count, 4), "<f4").tobytes())
    return {"vector.npy": keys, "value.npy": npy(described("'<f8'", f"({count},)"), np.ones(count).tobytes())}


for name, content in {
    "nothing": b"PK\x05\x06" + bytes(18),
    "no zip": b"PK\x03\x04" + bytes(999),
    "objects": archive({**good(), "key.npy": npy(described("'|O'", "(3,)"), PICKLE)}),
    "members outside": archive({**good(), "../../owned.npy": FLOATS}),
    "an absolute member": archive({**good(), "/tmp/owned.npy": FLOATS}),
    "arrays of other lengths": archive({**good(), "value.npy": npy(described("'<f8'", "(2,)"), FLOATS[:16])}),
    "a list of members that lies": archive(good())[:-22]
    + struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0x7FFFFFFF, 0, 0),
    "cut in half": archive(good())[:200],
    "members with escapes": archive({**good(), "\x1b]0;owned\x07.npy": FLOATS}),
    "a nested archive": archive({"value.npy": archive(good())}),
    "random bytes": b"PK\x03\x04" + np.random.default_rng(0).bytes(9999),
    "a pickle for a header": archive({"header.json": PICKLE}),
    "a header of a hundred thousand brackets": archive({"header.json": b"[" * 100_000}),
    "a header of 2^60 items": archive(
        {
            "header.json": json.dumps(
                {"format": 1, "kind": "number", "key_width": 4, "value_width": 1, "items": 1 << 60, "settings": {}}
            ).encode(),
            "vectors.npy": npy(described(shape=f"({1 << 60}, 4)")),
            "values.npy": npy(described("'<f8'", f"({1 << 60},)")),
            "items.jsonl": b"",
        }
    ),
    "items of escapes": archive(
        {**good(), "key.npy": npy(described("'<U9'", "(3,)"), np.array(["\x1b]0;owned", "b", "c"], "<U9").tobytes())}
    ),
}.items():
    add(f"npz: {name}", "file.npz", content)
add("npz: a bomb", "file.npz", lambda path: _bomb(path))
add(
    "npz: ten thousand members",
    "file.npz",
    lambda path: path.write_bytes(archive({f"a{n}.npy": b"" for n in range(10_000)})),
)
add("npz: members on top of each other", "file.npz", lambda path: path.write_bytes(_overlapping()))


def _bomb(path: Path) -> None:
    count = 25_000_000
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed,
        packed.open("value.npy", "w") as member,
    ):
        member.write(npy(described("'<f8'", f"({count},)")))
        for _ in range(count * 8 >> 20):
            member.write(bytes(1 << 20))


def _overlapping() -> bytes:
    """Two entries of the list that name the same bytes, as quoted bombs do."""
    whole = bytearray(archive(good()))
    second = whole.rindex(b"PK\x01\x02")
    whole[second + 42 : second + 46] = bytes(4)
    return bytes(whole)


# Parquet


def parquet(change: Callable[[bytearray], Any] | None = None, **columns: Any) -> Callable[[Path], None]:
    """A Parquet file, altered afterwards."""

    def make(path: Path) -> None:
        import pyarrow as arrow
        import pyarrow.parquet

        table = columns or {"key": ["a", "b"], "value": [1.0, 2.0], "vector": [[1.0, 2.0], [3.0, 4.0]]}
        pyarrow.parquet.write_table(arrow.table(table), path)
        if change is not None:
            content = bytearray(path.read_bytes())
            changed = change(content)
            path.write_bytes(bytes(changed if isinstance(changed, (bytes, bytearray)) else content))

    return make


def _set(place: slice, new: bytes) -> Callable[[bytearray], Any]:
    return lambda content: content.__setitem__(place, new)


add("Parquet: nothing", "file.parquet", b"")
add("Parquet: magic alone", "file.parquet", b"PAR1PAR1")
add("Parquet: cut in half", "file.parquet", parquet(lambda content: content[: len(content) // 2]))
add("Parquet: a footer of 4 GB", "file.parquet", parquet(_set(slice(-8, -4), b"\xff\xff\xff\xff")))
add("Parquet: a footer of nothing", "file.parquet", parquet(_set(slice(-8, -4), bytes(4))))
add(
    "Parquet: a footer of random bytes",
    "file.parquet",
    parquet(_set(slice(-300, -8), np.random.default_rng(5).bytes(292))),
)
add("Parquet: pages of random bytes", "file.parquet", parquet(_set(slice(4, 200), np.random.default_rng(6).bytes(196))))
for place in range(4, 60, 8):
    add(f"Parquet: eight bytes of ones at {place}", "file.parquet", parquet(_set(slice(place, place + 8), b"\xff" * 8)))
for place in range(-320, -8, 24):
    add(f"Parquet: eight bytes of ones at {place}", "file.parquet", parquet(_set(slice(place, place + 8), b"\x7f" * 8)))
add("Parquet: a bomb", "file.parquet", parquet(key=["a" * 1000] * 200_000, value=[0.0] * 200_000))
add("Parquet: ten thousand columns", "file.parquet", parquet(**{f"c{n}": [1.0] for n in range(10_000)}))
add("Parquet: keys with escapes", "file.parquet", parquet(key=["\x1b]0;owned\x07"], value=[1.0]))
add("Parquet: a list of a million", "file.parquet", parquet(key=["a"], value=[[0.0] * 2_000_000]))
add("Parquet: nested lists", "file.parquet", parquet(key=["a"], value=[[[[[1.0]]]]]))
add("Parquet: nulls alone", "file.parquet", parquet(key=[None, None], value=[None, None]))
add("Parquet: NaN", "file.parquet", parquet(key=["a"], value=[float("nan")]))
add("Parquet: encrypted", "file.parquet", b"PARE" + bytes(100) + b"PARE")
