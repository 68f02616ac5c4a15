"""What is tried with a hostile thing: to read a store, to write to it, to check and repair it, and the command.

Every attempt is a function of the folder of its case and of `step`, which takes the name of a step and what to do.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softkv
from softkv.errors import StoreDamaged
from softkv.storage import check, repair
from tests.commands import ran
from tests.crash.hostile.confinement import Step
from tests.databases import count_as_large

CONTROLS = {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
CONTROLS -= {"\n", "\t", "\r"}


def read(folder: Path, step: Step) -> None:
    """Open a store for reading, and read everything in every way."""
    db = step("open to read", lambda: softkv.open(folder / "s", "r"))
    if db is None:
        return
    query = step("width", lambda: np.linspace(0.1, 1.0, db.info().key_width or 1, dtype=np.float32))
    step("keys", lambda: list(db)[:5])
    step("items", lambda: [(name, value) for name, value in db.items()])
    step("derived parts", lambda: derived(db))
    step("payloads", lambda: [item.payload for item in db.select()])
    step("get", lambda: (db.get("item 3"), "item 3" in db, db.get("#2"), db.get("nothing")))
    step("filter", lambda: sum(1 for _ in db.select({"n": {"$gte": 2}})))
    if query is not None:
        _ask(db, query, step)
    step("each other", lambda: finite(db.self_attention(show=2)))
    step("close", db.close)


def _ask(db: Any, query: Any, step: Step) -> None:
    step("lookup", lambda: finite(db.lookup(query)))
    step("lookup by text", lambda: finite(db.lookup("a fox")))
    step("nearest", lambda: finite(db.nearest(query)))
    step("the best", lambda: finite(db.lookup(query, k=3, temperature=0.3)))
    step("bound", lambda: finite(db.lookup(query, guarantee="bound", temperature=0.3)))
    step("gaussian", lambda: finite(db.lookup(query, compatibility="gaussian", temperature=0.3)))
    step("filtered", lambda: finite(db.lookup(query, where={"n": {"$lt": 5}})))
    step("compare", lambda: str(db.compare(query)))


def derived(db: Any) -> Any:
    """The derived parts, if they can be some; none of them is a reason to refuse."""
    with db._store.snapshot() as snapshot:
        try:
            found = snapshot.derived("lists")
        except StoreDamaged as error:
            raise AssertionError(f"derived parts are damage: {error}") from error
        if not all(0 < number <= snapshot.commit and isinstance(content, bytes) for number, content in found):
            raise AssertionError(f"derived parts are {found}"[:300])
        return snapshot.derived_numbers("lists")


def finite(answer: Any) -> Any:
    """An answer, if all of it is numbers."""
    one = answer[0] if isinstance(answer, softkv.Answers) and len(answer) else answer
    for name in ("value", "log_mass", "error", "effective"):
        found = getattr(one, name, None)
        if found is not None and not np.isfinite(np.asarray(found, np.float64)).all():
            raise AssertionError(f"{name} is {found}")
    for contributor in getattr(one, "contributors", ()):
        if not 0 <= contributor.weight <= 1.0001:
            raise AssertionError(f"{contributor}")
    return answer


def write(folder: Path, step: Step) -> None:
    """Open a store for writing, and change it in every way."""
    db = step("open to write", lambda: softkv.open(folder / "s", "w"))
    if db is None:
        return
    width = step("width", lambda: db.info().key_width) or 4
    vectors = np.linspace(0.1, 1.0, 2 * width, dtype=np.float32).reshape(2, width)
    value = step("value", lambda: next(iter(db.values()), None))
    value = 1.0 if value is None else value
    step("add", lambda: db.add(["new", "newer"], [value, value], vectors=vectors))
    step("replace", lambda: db.add(["item 3"], [value], vectors=vectors[:1], on_conflict="replace"))
    step("delete", lambda: db.delete(["item 4"]))
    step("delete all", lambda: db.delete(list(db)[5:]))
    step("put a derived part", lambda: db._store.put_derived("lists", b"new", instead_of=derived(db)))
    step("derived parts", lambda: derived(db))
    step("lookup", lambda: finite(db.lookup(vectors[0])))
    step("temperature", lambda: db.set_temperature(0.5))
    step("compact", db.compact)
    step("index", db.build_index)
    step("add again", lambda: db.add(["newest"], [value], vectors=vectors[:1]))
    step("abandon", db.abandon_reembedding)
    step("close", db.close)


def ask(folder: Path, step: Step) -> None:
    """Ask a store by its index, small as it is; what is not estimated is scanned."""
    db = step("open to read", lambda: softkv.open(folder / "s", "r"))
    if db is None:
        return
    count_as_large(pytest.MonkeyPatch())
    query = np.linspace(0.1, 1.0, step("width", lambda: db.info().key_width) or 4, dtype=np.float32)
    some = np.stack([query, -query])
    step("info", lambda: str(db.info()))
    step("lookup", lambda: finite(db.lookup(some)))
    step("sharp", lambda: finite(db.lookup(some, temperature=0.01)))
    step("tolerant", lambda: finite(db.lookup(query, tolerance=1.0, confidence=0.5)))
    step("bound", lambda: finite(db.lookup(some, guarantee="bound", tolerance=0.5)))
    step("the best", lambda: finite(db.lookup(some, k=3)))
    step("many of the best", lambda: finite(db.lookup(query, k=60)))
    step("nearest", lambda: finite(db.nearest(query, tolerance=0.1)))
    step("close", db.close)


def examine(folder: Path, step: Step) -> None:
    """Check a store, and repair it to a new one; both go on after damage."""
    step("check", lambda: str(check(folder / "s")))
    step("repair", lambda: repair(folder / "s", folder / "out" / "repaired"))
    step("erase what was repaired", lambda: (folder / "out" / "repaired").exists())


def command(folder: Path, step: Step) -> None:
    """The command, on a terminal and piped: an exit code and a message, no traceback, and no control characters."""
    store = folder / "s"
    for arguments in (
        ["list", "--db", store],
        ["list", "--db", store, "--plain"],
        ["info", "--db", store],
        ["query", "--vector", "1,2,3,4", "--db", store],
        ["compare", "--vector", "1,2,3,4", "--db", store],
        ["get", "item 3", "--db", store, "--json"],
        ["check", "--db", store],
    ):
        step(" ".join(map(str, arguments[:1] + arguments[3:])), lambda given=arguments: run(given))  # type: ignore[misc]
    step("piped", lambda: run(["list", "--db", store], terminal=False))


def run(arguments: list[Any], *, terminal: bool = True, stdin: str = "") -> int:
    """Run the command; AssertionError when it ends as no command may."""
    done = ran(*arguments, terminal=terminal, stdin=stdin)
    said = re.sub("\x1b\\[[0-9;]*m", "", done.out + done.err if terminal else done.err)  # colours are the command's own
    if done.code not in (0, 1, 2) or "Traceback" in done.err:
        raise AssertionError(f"{arguments} ended with {done}")
    if done.code == 2 and "Usage" not in done.err and "Error" not in done.err:
        raise AssertionError(f"{arguments} ended with {done}")
    if done.code == 1 and not (done.err or done.out).strip():
        raise AssertionError(f"{arguments} says nothing")
    if odd := CONTROLS & set(said):
        raise AssertionError(f"{arguments} sent {odd} to a terminal: {said[:300]!r}")
    return done.code


ATTEMPTS: dict[str, Callable[[Path, Step], None]] = {
    "read": read, "ask": ask, "write": write, "examine": examine, "command": command,
}  # fmt: skip
STORE = ("read", "write", "examine", "command")
