"""Two versions of softkv beside each other, in alternating calls: stores, lookups, indexes, learning, doors, files.

    python -m tests.benchmarks.versions OLD/.venv/bin/python NEW/.venv/bin/python --pairs 15

Each interpreter has its version installed. A line is done by two processes in turn, and its figure is the median of the
ratios of the pairs, with the upper end of the interval that holds the true median in 95 of 100 cases, by the order of
the ratios. Where that end is above `--until`, more pairs are taken, up to `--most`.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from math import comb
from pathlib import Path
from typing import Any

ROWS, WIDTH = 100_000, 384
PAUSE = 0.1  # seconds before each turn, in which the threads of BLAS of the other process stop waiting for work
COMMAND = "from softkv_cli.main import main; main()"
Work = Callable[[], object]
Turn = Callable[[], tuple[Work, Work]]  # prepares one turn: gives the work, and what tidies up after it


# In the process of one version: it may import only what both have.


def nothing() -> None:
    """No work."""


def works(folder: Path) -> dict[str, Turn]:
    """For each line what prepares one turn."""
    import numpy as np

    import softkv
    from softkv.storage import Store

    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((ROWS, WIDTH), dtype=np.float32), rng.standard_normal(ROWS)
    query = rng.standard_normal(WIDTH).astype(np.float32)
    names = [f"item {number}" for number in range(ROWS)]
    payloads = [{"n": number} for number in range(ROWS)]
    picked = rng.permutation(ROWS)[:2_000]

    with Store.open(folder / "large", "n") as made:
        for start in range(0, ROWS, 10_000):
            part = slice(start, start + 10_000)
            made.append(keys[part], keys[part], keys=names[part])
        made.delete(names[::10])
    with softkv.open(folder / "database", "n", temperature=0.05) as db:
        db.add(vectors=keys, values=values, payloads=payloads)
    with softkv.open(folder / "texts", "n", temperature=0.05) as db:
        db.add([f"how much is item {number} of the list?" for number in range(20_000)], np.arange(20_000.0))
    shutil.copytree(folder / "database", folder / "tenth")
    with softkv.open(folder / "tenth", "w") as db:
        db.delete([f"#{number}" for number in range(1, ROWS, 10)])
    live = [name for number, name in enumerate(names) if number % 10]

    def fresh(work: Callable[[Any], object], *, rows: slice | None = None) -> tuple[Work, Work]:
        """On a store of its own."""
        store = Store.open(folder / "fresh", "n")
        if rows is not None:
            store.append(keys[rows], keys[rows], keys=names[rows])
        return lambda: work(store), lambda: (store.close(), shutil.rmtree(folder / "fresh"))

    def copied(work: Callable[[Any], object]) -> tuple[Work, Work]:
        """On a copy of the large store."""
        shutil.copytree(folder / "large", folder / "copy")
        store = Store.open(folder / "copy", "w")
        return lambda: work(store), lambda: (store.close(), shutil.rmtree(folder / "copy"))

    def read(work: Callable[[Any], object], *, before: Callable[[Any], object] = lambda _: None) -> Any:
        """With a handle on the large store that has read nothing yet, or what `before` reads."""
        store = Store.open(folder / "large", "r")
        before(store)
        return lambda: work(store), store.close

    def asked(name: str, work: Callable[[Any], object]) -> tuple[Work, Work]:
        """Ten times with a handle that has answered once."""
        db = softkv.open(folder / name, "r")
        work(db)
        return lambda: [work(db) for _ in range(10)], db.close

    def added(store: Any) -> None:
        for start in range(0, 50_000, 10_000):
            part = slice(start, start + 10_000)
            store.append(keys[part], keys[part], keys=names[part])

    def singles(store: Any) -> None:
        for number in range(200):
            store.append(keys[number : number + 1], keys[number : number + 1], keys=[names[number]])

    def texts() -> tuple[Work, Work]:
        db = softkv.open(folder / "new texts", "n", temperature=0.05)
        given = [f"may I send item {number} back?" for number in range(10_000)]
        db.add(["the first"], [1.0])
        return lambda: db.add(given, np.arange(10_000.0)), lambda: (db.close(), shutil.rmtree(folder / "new texts"))

    def command(*given: str) -> tuple[Work, Work]:
        line = [sys.executable, "-c", COMMAND, *given]
        return lambda: subprocess.run(line, check=True, capture_output=True), nothing

    def gotten(store: Any) -> None:
        for number in picked:
            if number % 10:
                store.get(names[number])

    def scanned(store: Any) -> None:
        for block in store.blocks():
            block.vectors.sum()

    few, most = {"n": {"$lt": ROWS // 100}}, {"n": {"$gte": ROWS // 100}}
    order = np.random.default_rng(1).permutation(len(live))
    return {
        "add 50,000 x (384 + 384), batches of 10,000": lambda: fresh(added),
        "200 single adds": lambda: fresh(singles, rows=slice(1_000, 2_000)),
        "delete 10,000 keys": lambda: copied(lambda store: store.delete(live[:10_000])),
        "open, 100,000 items": lambda: (lambda: [Store.open(folder / "large").close() for _ in range(20)], nothing),
        "get 1,800 items, first touch": lambda: read(gotten),
        "get 1,800 items, again": lambda: read(gotten, before=gotten),
        "first scan of 100,000 x 384": lambda: read(scanned),
        "compact, a tenth dead": lambda: copied(lambda store: store.compact()),
        "compact into an order": lambda: copied(lambda store: store.compact(np.flatnonzero(store.live)[order])),
        "lookup": lambda: asked("database", lambda db: db.lookup(query)),
        "lookup where 1% match": lambda: asked("database", lambda db: db.lookup(query, where=few)),
        "lookup where 99% match": lambda: asked("database", lambda db: db.lookup(query, where=most)),
        "nearest": lambda: asked("database", lambda db: db.nearest(query)),
        "lookup, a tenth deleted": lambda: asked("tenth", lambda db: db.lookup(query)),
        "add 10,000 texts": texts,
        "softkv --help": lambda: command("--help"),
        "softkv get": lambda: command("get", "how much is item 3 of the list?", "--db", str(folder / "texts")),
        "softkv query": lambda: command("query", "what does seven cost", "--db", str(folder / "texts")),
    } | asked_works(folder)


def asked_works(folder: Path) -> dict[str, Turn]:
    """The lines about arrays, indexes, learning, doors, embedders and files."""
    import numpy as np
    import torch

    import softkv
    from softkv.doors.torch import SoftKVLayer
    from softkv.embedders import find

    rng = np.random.default_rng(2)
    centres = rng.standard_normal((500, 64))
    home = rng.integers(0, len(centres), ROWS + 256)
    points = (centres[home] + 0.6 * rng.standard_normal((ROWS + 256, 64))).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    keys, queries = points[:ROWS], points[ROWS:]
    values = np.tanh(keys @ rng.standard_normal((64, 16)).astype(np.float32) * 3)
    tensors = torch.from_numpy(keys), torch.from_numpy(values)
    layer = SoftKVLayer(*tensors, learn_temperature=False)
    asked = torch.from_numpy(queries[:64])
    labels = [f"intent {number % 77}" for number in home[:5_000]]
    sentences = [f"would you tell me the price of item {number}, please?" for number in range(20_000)]
    embedder = find("static")

    with softkv.open(folder / "indexed", "n", temperature=0.05) as db:
        db.add(vectors=keys, values=values)
        db.build_index()
    with softkv.open(folder / "intents", "n", value="label", temperature=0.05) as db:
        db.add(vectors=keys[:5_000], values=labels)

    def often(work: Work, times: int) -> tuple[Work, Work]:
        """Several times, after once that does not count."""
        work()
        return lambda: [work() for _ in range(times)], nothing

    def with_index(work: Callable[[Any], object]) -> tuple[Work, Work]:
        """With a handle that has answered once."""
        db = softkv.open(folder / "indexed", "r")
        work(db)
        return lambda: work(db), db.close

    def copied(name: str, work: Callable[[Any], object]) -> tuple[Work, Work]:
        shutil.copytree(folder / name, folder / "changed")
        db = softkv.open(folder / "changed", "w")
        return lambda: work(db), lambda: (db.close(), shutil.rmtree(folder / "changed"))

    def opened(db_folder: Path) -> None:
        with softkv.open(db_folder, "r") as db:
            db.lookup(queries[0])

    def exported(form: str) -> tuple[Work, Work]:
        target = folder / f"written.{form}"
        line = [sys.executable, "-c", COMMAND, "export", str(target), "--db", str(folder / "intents")]
        return lambda: subprocess.run(line, check=True, capture_output=True), target.unlink

    def imported() -> tuple[Work, Work]:
        source, target = folder / "given.jsonl", folder / "imported"
        line = [sys.executable, "-c", COMMAND, "export", str(source), "--db", str(folder / "intents"), "--force"]
        subprocess.run(line, check=True, capture_output=True)
        line = [sys.executable, "-c", COMMAND, "import", str(source), "--db", str(target)]
        return lambda: subprocess.run(line, check=True, capture_output=True), lambda: shutil.rmtree(target)

    def each(db: Any, temperature: float) -> None:
        for query in queries[:100]:
            db.lookup(query, temperature=temperature)

    def best(db: Any) -> None:
        for query in queries[:100]:
            db.lookup(query, k=32)

    def layered() -> None:
        layer(asked)

    works: dict[str, Turn] = {
        "arrays, 1 query": lambda: often(lambda: softkv.soft_lookup(queries[0], keys, values, temperature=0.1), 20),
        "arrays, 256 queries": lambda: often(lambda: softkv.soft_lookup(queries, keys, values, temperature=0.1), 1),
        "tensors, 1 query": lambda: often(lambda: softkv.soft_lookup(asked[0], *tensors, temperature=0.1), 20),
        "tensors, 64 queries": lambda: often(lambda: softkv.soft_lookup(asked, *tensors, temperature=0.1), 2),
        "indexed, 256 queries": lambda: with_index(lambda db: db.lookup(queries, temperature=0.05)),
        "indexed, the best 32": lambda: with_index(best),
        "indexed, open and look up once": lambda: (lambda: opened(folder / "indexed"), nothing),
        "build an index, 100,000 x 64": lambda: copied("indexed", lambda db: (db.drop_index(), db.build_index())),
        "tune, 5,000 labels": lambda: copied("intents", lambda db: db.tune()),
        "fit, 5,000 labels": lambda: copied("intents", lambda db: db.fit()),
        "evaluate, 100 queries": lambda: with_index(lambda db: db.evaluate(queries[:100], values[:100])),
        "embed 20,000 texts": lambda: often(lambda: embedder.documents(sentences), 1),
        "torch layer, 64 queries": lambda: often(layered, 2),
        "softkv export, 5,000 items, jsonl": lambda: exported("jsonl"),
        "softkv export, 5,000 items, npz": lambda: exported("npz"),
        "softkv import, 5,000 items, jsonl": imported,
    }
    for temperature in (0.03, 0.05, 0.1):
        works[f"indexed, 1 query, T {temperature}"] = lambda temperature=temperature: with_index(
            lambda db: each(db, temperature)
        )
    return works


def serve(folder: Path) -> None:
    """Do each line that stdin names, once, and say how many seconds it took."""
    known = works(folder)
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        work, end = known[json.loads(line)]()
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        end()
        print(json.dumps(seconds), flush=True)


# In the process that compares them.


class Version:
    """The process of one version."""

    def __init__(self, python: str, folder: Path) -> None:
        folder.mkdir()
        self._process = subprocess.Popen(
            [os.path.abspath(python), str(Path(__file__).resolve()), "--serve", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder,
        )  # fmt: skip
        self.lines: list[str] = self._heard()

    def _heard(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def seconds(self, line: str) -> float:
        """Do a line once."""
        assert self._process.stdin is not None
        time.sleep(PAUSE)
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        return float(self._heard())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def upper(ratios: list[float]) -> float:
    """The upper end of a 95% interval for the median of what the ratios are drawn from, by their order alone."""
    count, below = len(ratios), 0.0
    for rank in range(count):
        below += comb(count, rank) / 2**count
        if below >= 0.975:
            return sorted(ratios)[rank]
    return max(ratios)


def ratios(line: str, versions: list[Version], pairs: int, until: float, most: int) -> Iterator[float]:
    """New beside old, each first in every second pair."""
    old, new = versions
    found: list[float] = []
    while len(found) < pairs or (len(found) < most and upper(found) > until):
        first, second = (old, new) if len(found) % 2 else (new, old)
        one, other = first.seconds(line), second.seconds(line)
        found.append(one / other if first is new else other / one)
        yield found[-1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", help="the interpreter of the old version, and that of the new one")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--most", type=int, default=61)
    parser.add_argument("--until", type=float, default=1.10)
    parser.add_argument("--only", nargs="*", default=[""], help="lines whose names contain one of these")
    parser.add_argument("--folder", default=None, help="where to write; a temporary folder by default")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        versions = [Version(python, Path(name) / str(number)) for number, python in enumerate(given.pythons)]
        print("| line | new / old, median | upper 95% | pairs |\n|---|---|---|---|")
        for line in versions[1].lines:
            if any(part in line for part in given.only):
                found = list(ratios(line, versions, given.pairs, given.until, given.most))
                print(f"| {line} | {statistics.median(found):.2f} | {upper(found):.2f} | {len(found)} |", flush=True)
        for version in versions:
            version.close()


if __name__ == "__main__":
    main()
