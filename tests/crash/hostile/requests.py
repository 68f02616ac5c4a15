"""Requests that nobody means: of a good store, in the library and at the command. The store stays as it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import softkv
from tests.crash.hostile.attempts import finite, run
from tests.crash.hostile.cases import as_it_is, case
from tests.crash.hostile.confinement import Step
from tests.crash.hostile.templates import WIDTH
from tests.crash.hostile.trial import footprint

GROUP = "requests"
QUERY = np.linspace(0.1, 1.0, WIDTH, dtype=np.float32)
HUGE = 1 << 63
STRINGS = {
    "quotes": "'\"`",
    "SQL": "x'; DROP TABLE contents; --",
    "a UNION": "' UNION SELECT sql FROM sqlite_master --",
    "json_each": "json_each('[1]')",
    "a path of JSON": "$.n",
    "an index of JSON": "$[0]",
    "a path upwards": "../../etc/passwd",
    "wildcards": "%_*?[a]",
    "a LIKE bomb": "%" * 40_000,
    "a GLOB bomb": "*a" * 20_000,
    "a pattern bomb": "(a+)+$" * 100,
    "a NUL": "a\0b",
    "a lone surrogate": "\ud800",
    "escapes": "\x1b]0;owned\x07\x1b[2J",
    "turning around": "\u202e\u2066",
    "nothing": "",
    "ten megabytes": "x" * 10_000_000,
    "a question mark": "?1",
    "a colon": ":key",
    "an at": "@asked",
    "a number": "7",
    "a dollar": "$where",
    "a backslash": "\\u0000",
    "a blank": " ",
}


def ask(name: str, request: Callable[[Any], Any], template: str = "number", refused: bool | None = None) -> None:
    """A case of something that is asked of a store open for reading."""

    def requested(folder: Path, step: Step) -> None:
        with softkv.open(folder / "s", "r") as db:
            before = list(db.items())
            found = step("ask", lambda: request(db))
            step("be as before", lambda: _same(list(db.items()), before))
        if refused is not None:
            step("be as expected", lambda: _expect((found is None) == refused, f"answered {found!r:.200}"))

    case(name, GROUP, as_it_is, template=template, attempts=(requested,))


def change(name: str, request: Callable[[Any], Any], template: str = "number") -> None:
    """A case of a change that is refused: everything stays as it was."""

    def changed(folder: Path, step: Step) -> None:
        with softkv.open(folder / "s", "w") as db:
            before, commit = list(db.items()), db.info().commit
            step("change", lambda: _refused(lambda: request(db)))
            step("be as before", lambda: _same(list(db.items()), before))
            step("have no new commit", lambda: _expect(db.info().commit == commit, "there is a new commit"))

    case(name, GROUP, as_it_is, template=template, attempts=(changed,))


def command(name: str, *arguments: str, stdin: str = "") -> None:
    """A case of a command that changes nothing; {} is the store."""

    def commanded(folder: Path, step: Step) -> None:
        given = [argument.replace("{}", str(folder / "s")) for argument in arguments]
        before = footprint(folder / "s")
        for terminal in (True, False):
            step(
                f"run {'on a terminal' if terminal else 'piped'}",
                lambda t=terminal: run(given, terminal=t, stdin=stdin),
            )  # type: ignore[misc]
        step("be as before", lambda: _expect(footprint(folder / "s") == before, "the store has changed"))

    case(name, GROUP, as_it_is, template="number", attempts=(commanded,))


def _same(now: list[Any], before: list[Any]) -> None:
    _expect([name for name, _ in now] == [name for name, _ in before], "other items")
    _expect(all(np.array_equal(a, b) for (_, a), (_, b) in zip(now, before, strict=True)), "other values")


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)


def _refused(request: Callable[[], Any]) -> None:
    from softkv.errors import SoftKVError

    try:
        request()
    except SoftKVError as error:
        _expect(bool(str(error).strip()) and len(str(error)) < 10_000, "an error without words, or with too many")
        return
    raise AssertionError("was done")


# Filters

for name, text in STRINGS.items():
    ask(f"a filter on a field called {name}", lambda db, t=text: len(list(db.select({t: 1}))))
    ask(f"a filter for the value {name}", lambda db, t=text: len(list(db.select({"a": t}))))
for operator in (
    "$gt",
    "$lt",
    "$in",
    "$nin",
    "$exists",
    "$regex",
    "$where",
    "$function",
    "$expr",
    "$like",
    "$and",
    "$or",
    "$not",
):
    for name, operand in {
        "SQL": "1) OR (1=1",
        "nothing": None,
        "a list of itself": [[[]]],
        "an object": {"$gt": {"$gt": 1}},
        "infinity": float("inf"),
        "2^63": HUGE,
    }.items():
        ask(f"a filter by {operator} of {name}", lambda db, o=operator, x=operand: len(list(db.select({"n": {o: x}}))))


def nested(levels: int, shell: Callable[[Any], Any], inner: Any) -> Any:
    """Something in a shell, in a shell, in a shell."""
    for _ in range(levels):
        inner = shell(inner)
    return inner


ask(
    "a filter of 100,000 $not",
    lambda db: len(list(db.select(nested(100_000, lambda x: {"$not": x}, {"n": 1})))),
    refused=True,
)
ask(
    "a filter of 100,000 $and",
    lambda db: len(list(db.select(nested(100_000, lambda x: {"$and": [x]}, {"n": 1})))),
    refused=True,
)
ask(
    "a filter of 100,000 fields within fields",
    lambda db: len(list(db.select(nested(100_000, lambda x: {"a": x}, 1)))),
    refused=True,
)
ask(
    "a filter that doubles forty times",
    lambda db: len(list(db.select(nested(40, lambda x: {"$or": [x, x]}, {"n": 1})))),
    refused=True,
)
ask("a filter that holds itself", lambda db: len(list(db.select(_circle()))), refused=True)
ask("a filter of 999 conditions", lambda db: len(list(db.select({"$or": [{f"f{n}": n} for n in range(400)]}))))
ask(
    "a filter of a million conditions",
    lambda db: len(list(db.select({"$or": [{"n": n} for n in range(1_000_000)]}))),
    refused=True,
)
ask(
    "a filter of a million values",
    lambda db: len(list(db.select({"n": {"$in": list(range(1_000_000))}}))),
    refused=True,
)
ask(
    "a filter of 10,000 long values",
    lambda db: len(list(db.select({"a": {"$in": [f"{n}" * 500 for n in range(10_000)]}}))),
)
ask("a filter of bytes", lambda db: len(list(db.select({"a": b"x"}))), refused=True)
ask("a filter of an object", lambda db: len(list(db.select({"a": object()}))), refused=True)
ask("a filter that is a text", lambda db: len(list(db.select("n = 1"))), refused=True)
ask(
    "a filter of a class of one's own",
    lambda db: len(list(db.select({"a": type("Text", (str,), {"__eq__": None, "__hash__": str.__hash__})("b")}))),
)
ask("a filter of a number of 10,000 digits", lambda db: len(list(db.select({"n": 10**10_000}))), refused=True)


def _circle() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["$not"] = found
    return found


# Keys

for name, text in STRINGS.items():
    ask(f"the key {name}", lambda db, t=text: (db.get(t), t in db))
    ask(f"a lookup of the text {name}", lambda db, t=text: finite(db.lookup(t)), "text")
for name, key in {
    "None": None,
    "a number": 7,
    "bytes": b"item 3",
    "a list": ["item 3"],
    "a tuple": ("item 3",),
    "an array": np.array("item 3"),
    "NaN": float("nan"),
    "an object": object(),
}.items():
    ask(f"a key that is {name}", lambda db, k=key: (db.get(k), k in db))
for name, key in {
    "huge": "#" + "9" * 30,
    "of many digits": "#" + "9" * 100_000,
    "negative": "#-1",
    "of other digits": "#٣",
    "of fractions": "#1.5",
    "empty": "#",
    "with zeros": "#01",
    "exponential": "#1e3",
}.items():
    ask(f"a number that is {name}", lambda db, k=key: (db.get(k), k in db))

# Queries and options

for name, query in {
    "NaN": QUERY * np.nan,
    "infinite": QUERY * np.inf,
    "huge": QUERY * 3e38,
    "tiny": QUERY * 1e-44,
    "zero": QUERY * 0,
    "float64 beyond float32": QUERY.astype(float) * 1e300,
    "complex": QUERY * 1j,
    "of objects": np.array([object()] * WIDTH),
    "of texts of numbers": np.array(["1"] * WIDTH),
    "boolean": QUERY > 0,
    "too wide": np.ones(WIDTH + 1),
    "too narrow": np.ones(WIDTH - 1),
    "of a million numbers": np.ones(1_000_000, np.float32),
    "a scalar": np.float32(1),
    "of three axes": np.ones((1, 1, WIDTH)),
    "of no queries": np.ones((0, WIDTH)),
    "of no width": np.ones((3, 0)),
    "ragged": [[1.0] * WIDTH, [1.0]],
    "mixed": ["a", QUERY],
    "a dict": {"a": 1},
    "a set": {1.0, 2.0},
    "a generator": (x for x in QUERY),
    "None": None,
    "bytes": b"1234",
    "masked": np.ma.masked_all(WIDTH),
    "integers of 2^63": np.full(WIDTH, HUGE - 1),
    "dates": np.zeros(WIDTH, "M8[s]"),
    "a million huge": np.full((1000, WIDTH), 1e38, np.float32),
    "of another byte order": QUERY.astype(">f4"),
    "of strides of zero": np.broadcast_to(np.float32(1), (50_000, WIDTH)),
}.items():
    ask(f"a query that is {name}", lambda db, q=query: _sound(db.lookup(q)))
for option, values in {
    "k": (0, -1, HUGE, 1 << 31, 1.5, "3", None, True, np.nan, [3], 10**30),
    "temperature": (
        0,
        -1,
        5e-324,
        1e-45,
        1e308,
        np.inf,
        np.nan,
        "1",
        [1, 2],
        HUGE,
        True,
        10**400,
        np.array([[1.0]]),
        -0.0,
    ),
    "tolerance": (-1, np.nan, np.inf, "x", None, True, 1e308, 5e-324, [1]),
    "confidence": (0, 1, -1, 2, np.nan, "x", None, True, 0.999999999999, 1e-300),
    "guarantee": ("bound ", 1, True, b"bound", ["bound"], ""),
    "compatibility": (
        "",
        "none",
        7,
        "os.system",
        b"dot",
        [],
        np.eye(3),
        lambda q, k: None,
        lambda q, k: np.nan,
        lambda q, k: np.full((len(q), len(k)), np.nan),
        lambda q, k: "x",
        lambda q, k: np.ones((1, 1)),
    ),
    "mask": (
        True,
        "x",
        [],
        [True],
        np.ones(WIDTH),
        np.ones((3, 3, 3), bool),
        np.ones(13),
        np.zeros(13, bool),
        np.ones(13, object),
        [[True], [True, False]],
        np.full(13, np.nan),
        7,
        {"a": 1},
    ),
    "show": (-1, HUGE, 0, 1.5, "x", None, True, np.nan, 10**30),
    "where": (7, [], "x", {"": 1}, {7: 1}, {None: None}),
    "heads": (7, "x", [], np.eye(4), True),
}.items():
    for number, value in enumerate(values, 1):
        told = f"{option} {number}, a {type(value).__name__}"
        ask(f"a lookup with {told}", lambda db, o=option, v=value: _sound(db.lookup(QUERY, **{o: v})))  # type: ignore[misc]
ask("a comparison of k 2^63", lambda db: str(db.compare(QUERY, k=HUGE)))
ask("a comparison at a denormal temperature", lambda db: str(db.compare(QUERY, temperature=5e-324)))
ask("everybody asks with a mask too small", lambda db: _sound(db.self_attention(mask=np.ones((2, 2), bool))))
ask("everybody shows 2^63", lambda db: _sound(db.self_attention(show=HUGE)))
ask("items from -2^70", lambda db: len(list(db.select(start=-(1 << 70), stop=1 << 70))))
ask("items from a text", lambda db: len(list(db.select(start="x"))))
ask("an export into the store", lambda db: db.export(Path(db.path) / "catalog.sqlite"), refused=True)
ask("an export over a device", lambda db: db.export("/dev/null"), refused=True)
ask("an export to a name with a NUL", lambda db: db.export("a\0.jsonl"), refused=True)
ask("an export of no known format", lambda db: db.export("/nowhere/x.pickle"), refused=True)


def _sound(found: Any) -> Any:
    """An answer, or answers, with numbers in them."""
    return finite(found) if isinstance(found, softkv.Answer) or len(found) else True
