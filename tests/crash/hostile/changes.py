"""Changes that are refused, and commands that change nothing: the store stays as it is."""

from typing import Any

import numpy as np

from tests.crash.hostile.requests import HUGE, QUERY, change, command, nested
from tests.crash.hostile.templates import WIDTH

# Changes

VECTOR = QUERY[None, :]
for name, keys in {
    "a NUL": ["a\0b"],
    "a lone surrogate": ["\ud800"],
    "#": ["#1"],
    "70,000 letters": ["k" * 70_000],
    "bytes": [b"a"],
    "a number": [7],
    "twice": ["a", "a"],
    "too many": ["a", "b", "c"],
    "a generator": (x for x in "a"),
    "a set": {"a"},
}.items():
    change(
        f"an add of the key {name}",
        lambda db, k=keys, n=name: db.add(
            k, [1.0] * (len(k) if isinstance(k, list) else 1), vectors=np.repeat(VECTOR, 2 if n == "twice" else 1, 0)
        ),
    )
for name, vectors in {
    "NaN": VECTOR * np.nan,
    "infinity": VECTOR * np.inf,
    "zero": VECTOR * 0,
    "too wide": np.ones((1, 9)),
    "objects": np.array([[object()] * WIDTH]),
    "texts": [["a"] * WIDTH],
    "complex": VECTOR * 1j,
    "beyond float32": VECTOR.astype(float) * 1e300,
    "one axis too many": np.ones((1, 1, WIDTH)),
    "no rows": np.ones((0, WIDTH)),
    "2^20 + 1 wide": np.ones((1, (1 << 20) + 1), np.float32),
    "denormal": VECTOR * 1e-44,
    "None": [[None] * WIDTH],
}.items():
    change(f"an add of vectors of {name}", lambda db, v=vectors: db.add(["a"], [1.0], vectors=v))
for name, value in {
    "NaN": np.nan,
    "infinity": np.inf,
    "1e200": 1e200,
    "2^53 + 1": (1 << 53) + 1,
    "2^70": 1 << 70,
    "a text": "x",
    "None": None,
    "true": True,
    "a list": [1.0],
    "complex": 1j,
    "an object": object(),
    "bytes": b"1",
}.items():
    change(f"an add of the value {name}", lambda db, v=value: db.add(["a"], [v], vectors=VECTOR))
for name, payload in {
    "NaN": float("nan"),
    "a set": {1},
    "an object": object(),
    "bytes": b"x",
    "2 MB": "x" * 2_000_000,
    "65 levels": nested(70, lambda x: [x], 1),
    "100,000 levels": nested(100_000, lambda x: [x], 1),
    "itself": None,
    "names that are numbers": {1: 2},
    "a lone surrogate": "\ud800",
    "a NUL": {"a": "\0"},
    "doubled forty times": nested(40, lambda x: [x, x], 1),
    "an array": np.ones(3),
}.items():
    if name not in ("itself", "a NUL"):
        change(
            f"an add of the payload {name}", lambda db, p=payload: db.add(["a"], [1.0], vectors=VECTOR, payloads=[p])
        )
for name, keys in {
    "missing": ["nothing"],
    "a number": [7],
    "None": [None],
    "SQL": ["' OR 1=1 --"],
    "a NUL": ["a\0"],
    "one of them missing": ["item 1", "nothing"],
    "numbers beyond": ["#" + "9" * 50],
}.items():
    change(f"a deletion of {name}", lambda db, k=keys: db.delete(k))
for value in (0, -1, float("nan"), float("inf"), "x", 10**400, True, [1]):
    change(f"a temperature of {value!r:.20}", lambda db, v=value: db.set_temperature(v))
for kind in (
    "",
    "os.system",
    "IVF1048576,PQ64",
    "IVF0,Flat",
    "PQ0",
    "Flat;x",
    "x" * 10_000,
    7,
    None,
    "IVF4,Flat,RFlat",
    "IDMap,Flat",
    "\x1b[2J",
):
    change(f"an index of the kind {kind!r:.30}", lambda db, k=kind: db.build_index(k))
for lists in (0, -1, HUGE, 1.5, "x", True):
    change(f"an index of {lists!r} lists", lambda db, n=lists: db.build_index(lists=n))
EMBEDDERS: tuple[Any, ...] = (
    "os:system",
    "../../etc",
    "/etc/passwd",
    "./model",
    "./\x1b]0;owned\x07",
    7,
    object(),
    lambda texts: [[float("nan")]] * len(texts),
    lambda texts: "x",
    lambda texts: [[]] * len(texts),
    lambda texts: None,
    lambda texts: [[1.0]],
)
for number, given in enumerate(EMBEDDERS, 1):
    change(f"an embedder {number}, a {type(given).__name__}", lambda db, g=given: db.reembed(g))  # type: ignore[misc]

# The command

for name, arguments in {
    "a NUL for a store": ["list", "--db", "a\0b"],
    "a store with escapes": ["list", "--db", "/nowhere/\x1b]0;owned\x07"],
    "a store that is a device": ["list", "--db", "/dev/zero"],
    "a store of 5,000 letters": ["list", "--db", "x" * 5000],
    "a key with escapes": ["get", "\x1b]0;owned\x07\x1b[2J", "--db", "{}"],
    "a key that turns around": ["get", "\u202eabc", "--db", "{}"],
    "a key of a NUL": ["get", "a\0b", "--db", "{}"],
    "an empty key": ["get", "", "--db", "{}"],
    "a filter of escapes": ["list", "--where", '{"\x1b]0;owned": 1}', "--db", "{}"],
    "a filter with raw escapes in its names": ["list", "--where", '{"$\\u001b]0;owned\\u0007": 1}', "--db", "{}"],
    "a filter a hundred thousand deep": ["list", "--where", "[" * 100_000, "--db", "{}"],
    "a filter of 100,000 objects": ["list", "--where", '{"a":' * 50_000 + "1" + "}" * 50_000, "--db", "{}"],
    "a filter that is NaN": ["list", "--where", '{"n": NaN}', "--db", "{}"],
    "a filter of many digits": ["list", "--where", '{"n": 1' + "0" * 9999 + "}", "--db", "{}"],
    "a filter that is no object": ["list", "--where", "7", "--db", "{}"],
    "a vector of NaN": ["query", "--vector", "nan,1,1,1", "--db", "{}"],
    "a vector without end": ["query", "--vector", "1e999,1,1,1", "--db", "{}"],
    "a vector of a million": ["query", "--vector", "1," * 999_999 + "1", "--db", "{}"],
    "a vector of nothing": ["query", "--vector", "", "--db", "{}"],
    "k of 2^63": ["query", "--vector", "1,1,1,1", "-k", str(HUGE), "--db", "{}"],
    "k of many digits": ["query", "--vector", "1,1,1,1", "-k", "9" * 5000, "--db", "{}"],
    "a limit of 2^63": ["list", "-n", str(HUGE), "--db", "{}"],
    "a skip of 2^70": ["list", "--skip", str(1 << 70), "--db", "{}"],
    "a temperature of a denormal": ["query", "--vector", "1,1,1,1", "-T", "5e-324", "--db", "{}"],
    "a temperature without end": ["query", "--vector", "1,1,1,1", "-T", "inf", "--db", "{}"],
    "a tolerance of NaN": ["query", "--vector", "1,1,1,1", "--tolerance", "nan", "--db", "{}"],
    "a compatibility of escapes": ["query", "--vector", "1,1,1,1", "--compatibility", "\x1b[2J", "--db", "{}"],
    "a model of escapes": ["query", "a", "--model", "./\x1b]0;owned\x07", "--db", "{}"],
    "a model that is a function": ["query", "a", "--model", "os:system", "--db", "{}"],
    "an export into the store": ["export", "{}/x.jsonl", "--db", "{}"],
    "an export to /dev/null": ["export", "/dev/null", "--db", "{}"],
    "an import of a device": ["import", "/dev/zero", "--db", "{}/../out/new"],
    "an add of a device": ["add", "-i", "/dev/zero", "--format", "npz", "--db", "{}/../out/new"],
    "a repair onto itself": ["check", "--repair-to", "{}", "--db", "{}"],
    "a repair to nowhere": ["check", "--repair-to", "/nowhere/new", "--db", "{}"],
    "a surrogate in a key": ["get", "\udcff", "--db", "{}"],
    "an option of escapes": ["list", "--\x1b]0;owned", "--db", "{}"],
}.items():
    command(f"the command: {name}", *arguments)
command(
    "the command: keys of stdin that are none",
    "get",
    "-",
    "--db",
    "{}",
    stdin="\0\n\x1b]0;owned\x07\n" + "x" * 100_000 + "\n",
)
command("the command: questions of stdin that are none", "query", "-", "--db", "{}", stdin="\0\n\x1b]0;owned\x07\n")
