"""What `softkv serve` answers, beside twenty lines of FastAPI over the same handle, and beside Chroma's server.

Run: python -m tests.benchmarks.server [SECTION ...] [--items N] [--rounds N] [--seconds S] [--chroma PYTHON]

Client and server share the machine. Both are asked in turn, and a ratio is the median of those of the rounds. Sections:
rates (1, 8, 64 connections, with and without an index), batches (64 connections beside one call of the library with 64
queries), tail (p99 at half of the highest rate), adds (durable, 1,000 at a time, beside the same calls of a handle),
commands (`softkv query` through the server beside the path), memory (of the server, under mixed load for `--minutes`).
`--chroma` names the Python of an environment with chromadb: its server gives the 32 nearest with their embeddings,
which a client would blend; that is not counted.
"""

import argparse
import json
import pickle
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from softkv_cli.machine import machine

import softkv

WIDTH, VALUES, CLUSTERS = 384, 64, 2000
CONNECTIONS = (1, 8, 64)
GOALS = {1: 0.9, 8: 1.5, 64: 2.5}
TOKEN = secrets.token_urlsafe(32)
COMMAND = (sys.executable, "-c", "from softkv_cli.main import main; main()")
FILLS_CHROMA = """
import sys, chromadb, numpy as np
keys = np.load(sys.argv[2])
made = chromadb.HttpClient(port=int(sys.argv[1])).create_collection("keys", metadata={"hnsw:space": "ip"})
for first in range(0, len(keys), 2000):
    some = keys[first : first + 2000]
    made.add(ids=[str(first + i) for i in range(len(some))], embeddings=some)
print(made.id)
"""


def main() -> None:
    """Measure the sections that are named, or all but that of Chroma, which needs an environment."""
    sections: dict[str, Callable[[argparse.Namespace, Path], None]] = {
        "rates": rates, "batches": batches, "tail": tail, "adds": adds, "commands": commands, "memory": memory,
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*sections, []], default=list(sections))
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--added", type=int, default=200, help="items that are added and deleted every few seconds")
    parser.add_argument("--chroma", metavar="PYTHON")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="softkv-benchmark-") as folder:
        for name in options.sections or list(sections):
            sections[name](options, Path(folder))


def rates(options: argparse.Namespace, folder: Path) -> None:
    """Lookups a second over some connections, of a store without and with an index."""
    path, queries = made(folder / "rates", options.items)
    print("| store | connections | softkv serve | twenty lines | ratio | goal |\n|---|---|---|---|---|---|")
    for indexed in (False, True):
        if indexed:
            with softkv.open(path, "w") as db:
                db.build_index()
        with served(path) as ours, plainly_served(path) as plain:
            for count in CONNECTIONS:
                pairs = in_turn(options, count, (ours, lookups("/v1/rates/lookup", queries, ours)),
                                (plain, lookups("/lookup", queries, plain)))  # fmt: skip
                print_line("indexed" if indexed else "scanned", count, pairs, GOALS[count])
    if options.chroma:
        with served(path) as ours, chroma_served(options.chroma, folder, keys_of(path)) as (port, collection):
            for count in CONNECTIONS:
                asked = [{"query_embeddings": [query], "n_results": 32, "include": ["embeddings"]} for query in queries]
                where = f"/api/v2/tenants/default_tenant/databases/default_database/collections/{collection}/query"
                pairs = in_turn(options, count, (ours, lookups("/v1/rates/lookup", queries, ours)),
                                (port, requests(where, asked, port)))  # fmt: skip
                print_line("indexed, beside Chroma", count, pairs, 2.0)


def batches(options: argparse.Namespace, folder: Path) -> None:
    """Single lookups over 64 connections beside one call of the library with 64 queries; nothing has an index."""
    path, queries = made(folder / "batches", options.items)
    pairs = []
    with served(path) as port:
        sent = lookups("/v1/batches/lookup", queries, port)
        for _ in range(options.rounds):
            served_rate = load(port, sent, 64, options.seconds)["rate"]
            with softkv.open(path, "r") as db:
                db.lookup(queries[:64])
                start, calls = time.perf_counter(), 0
                while time.perf_counter() - start < options.seconds:
                    db.lookup(queries[:64])
                    calls += 1
                pairs.append((served_rate, 64 * calls / (time.perf_counter() - start)))
    print("| work | served | in process | ratio | goal |\n|---|---|---|---|---|")
    ratio = statistics.median(one / other for one, other in pairs)
    one, other = (statistics.median(some) for some in zip(*pairs, strict=True))
    print(f"| 64 queries of {options.items:,} items, scanned | {one:.0f}/s | {other:.0f}/s | {ratio:.2f} | ≥ 0.75 |")


def tail(options: argparse.Namespace, folder: Path) -> None:
    """Latencies at half of the highest rate."""
    path, queries = made(folder / "tail", options.items)
    with softkv.open(path, "w") as db:
        db.build_index()
    with served(path) as port:
        sent = lookups("/v1/tail/lookup", queries, port)
        highest = load(port, sent, 64, options.seconds)["rate"]
        seen = [load(port, sent, 64, options.seconds, rate=highest / 2) for _ in range(options.rounds)]
    median, late = (statistics.median(one[name] for one in seen) for name in ("median", "p99"))
    print("| at half of the highest rate | median | p99 | ratio | goal |\n|---|---|---|---|---|")
    print(f"| {highest / 2:.0f}/s over 64 connections | {1e3 * median:.1f} ms | {1e3 * late:.1f} ms "
          f"| {statistics.median(one['p99'] / one['median'] for one in seen):.1f} | ≤ 5 |")  # fmt: skip


def adds(options: argparse.Namespace, folder: Path) -> None:
    """Items a second that are on the disk, a thousand at a time."""
    rng, pairs = np.random.default_rng(1), []
    for name in ("served", "alone"):
        softkv.open(folder / name, value="vector").close()
    with (
        served(folder / "served") as port,
        softkv.open(folder / "alone", "w") as alone,
        softkv.open(f"http://127.0.0.1:{port}/served", token=TOKEN) as db,
    ):
        for number in range(4 * options.rounds):
            some = [f"{number}/{one}" for one in range(1000)]
            keys, values = rng.standard_normal((1000, WIDTH)), rng.standard_normal((1000, VALUES))
            given = {"vectors": keys.astype(np.float32), "values": values.astype(np.float32)}
            took = []
            for handle in (db, alone):
                start = time.perf_counter()
                handle.add(some, **given)
                took.append(time.perf_counter() - start)
            pairs.append(took)
    one, other = (statistics.median(some) for some in zip(*pairs, strict=True))
    ratio = statistics.median(other / one for one, other in pairs)
    print("| work | served | in process | rate beside it | goal |\n|---|---|---|---|---|")
    print(f"| add 1,000 x ({WIDTH} + {VALUES}) | {1e3 * one:.1f} ms | {1e3 * other:.1f} ms | {ratio:.2f} | ≥ 0.7 |")


def commands(options: argparse.Namespace, folder: Path) -> None:
    """`softkv query` of 20,000 texts, of a store that is served and of a copy that is not, in turn."""
    path, copy = folder / "texts", folder / "copy"
    words = np.random.default_rng(0).integers(0, 1000, (20_000, 6)).tolist()
    with softkv.open(path) as db:
        db.add(
            [f"{number} " + " ".join(f"word{one}" for one in some) for number, some in enumerate(words)], range(20_000)
        )
    shutil.copytree(path, copy)
    query, pairs = [*COMMAND, "query", "word1 word2 word3", "--db"], []
    with served(path):  # the command finds the server through the store
        for _ in range(3 * options.rounds):
            took = []
            for where in (path, copy):
                start = time.perf_counter()
                subprocess.run([*query, str(where)], stdout=subprocess.DEVNULL, check=True)
                took.append(time.perf_counter() - start)
            pairs.append(took)
    one, other = (statistics.median(some) for some in zip(*pairs, strict=True))
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    print("| command | through a server | by the path | ratio | goal |\n|---|---|---|---|---|")
    print(f"| softkv query, 20,000 texts | {one:.2f} s | {other:.2f} s | {ratio:.2f} | ≤ 0.6 |")


def memory(options: argparse.Namespace, folder: Path) -> None:
    """The memory of a server that is asked, added to and deleted from, minute by minute: its own, and mapped files."""
    path, queries = made(folder / "memory", options.items // 5)
    seen = []
    with running([*COMMAND, "serve", str(path), "--port"], "/health") as (port, process):
        sent = lookups("/v1/memory/lookup", queries, port)
        with closing(softkv.open(f"http://127.0.0.1:{port}/memory", token=TOKEN)) as db:
            for minute in range(max(2, round(options.minutes))):
                end = time.monotonic() + 60 * options.minutes / max(2, round(options.minutes))
                while time.monotonic() < end:
                    load(port, sent, 16, 2.0)
                    names = [f"{minute}/{secrets.token_hex(8)}" for _ in range(options.added)]
                    vectors, values = (np.resize(queries, (len(names), width)) for width in (WIDTH, VALUES))
                    db.add(names, vectors=vectors, values=values)
                    db.nearest(queries[:256])
                    db.delete(names)
                seen.append([kept_by(process.pid, what) for what in ("RssAnon", "RssFile")])
    own, mapped = (", ".join(f"{one[place]:.0f}" for one in seen) for place in (0, 1))
    print(f"| memory, MB after each of {len(seen)} minutes | last beside first | goal |\n|---|---|---|")
    print(f"| its own: {own} | {seen[-1][0] / seen[0][0]:.2f} | flat |")
    print(f"| files that are mapped, which grow by what is added until `compact`: {mapped} | | |")


def kept_by(process: int, what: str) -> float:
    """How many MB of memory a process holds, of one sort."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1e3


def made(path: Path, items: int) -> tuple[Path, np.ndarray]:
    """A store of keys in clusters, and 512 queries like them."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, WIDTH))

    def drawn(count: int) -> np.ndarray:
        noise = rng.standard_normal((count, WIDTH))
        return np.asarray(centres[rng.integers(0, CLUSTERS, count)] + 0.7 * noise, np.float32)

    with softkv.open(path, "n", compatibility="cosine") as db:
        for start in range(0, items, 50_000):
            keys = drawn(min(50_000, items - start))
            db.add(vectors=keys, values=np.tanh(keys[:, :VALUES]))
    return path, drawn(512)


def keys_of(path: Path) -> np.ndarray:
    """All keys of a store."""
    with softkv.open(path, "r") as db:
        return np.concatenate([keys for keys, _ in db.columns().blocks()])


def lookups(where: str, queries: np.ndarray, port: int) -> list[bytes]:
    """A request for each query, as JSON."""
    return requests(where, [{"query": query} for query in queries], port)


def requests(where: str, asked: list[dict[str, Any]], port: int) -> list[bytes]:
    """Requests as the bytes that are sent."""
    bodies = [json.dumps(one, default=lambda array: np.asarray(array).tolist()).encode() for one in asked]
    head = f"POST {where} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: "
    return [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]


def in_turn(options: argparse.Namespace, connections: int, *sides: tuple[int, list[bytes]]) -> list[list[float]]:
    """The rates of both sides, round by round."""
    for port, sent in sides:
        load(port, sent, connections, 1.0)
    return [[load(*side, connections, options.seconds)["rate"] for side in sides] for _ in range(options.rounds)]


def load(
    port: int, sent: list[bytes], connections: int, seconds: float, *, rate: float | None = None
) -> dict[str, Any]:
    """What load.py measures."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(pickle.dumps(sent))
        file.flush()
        command = [sys.executable, "-m", "tests.benchmarks.load", "127.0.0.1", str(port), file.name]
        command += ["--connections", str(connections), "--seconds", str(seconds)]
        command += [] if rate is None else ["--rate", str(rate)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout)
    if found["refused"]:
        raise RuntimeError(f"{found['refused']} requests were refused")
    return found


def print_line(store: str, connections: int, pairs: list[list[float]], goal: float) -> None:
    """A line of the table of rates."""
    one, other = (statistics.median(some) for some in zip(*pairs, strict=True))
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    print(f"| {store} | {connections} | {one:.0f}/s | {other:.0f}/s | {ratio:.2f} | ≥ {goal} |", flush=True)


@contextmanager
def served(path: Path) -> Iterator[int]:
    """The port of a `softkv serve`."""
    with running([*COMMAND, "serve", str(path), "--port"], "/health") as (port, _):
        yield port


@contextmanager
def plainly_served(path: Path) -> Iterator[int]:
    """The port of plain_server.py."""
    with running([sys.executable, "-m", "tests.benchmarks.plain_server", str(path)], "/openapi.json") as (port, _):
        yield port


@contextmanager
def chroma_served(python: str, folder: Path, keys: np.ndarray) -> Iterator[tuple[int, str]]:
    """The port of Chroma's server, and its collection of these keys."""
    np.save(folder / "keys.npy", keys)
    command = [str(Path(python).parent / "chroma"), "run", "--path", str(folder / "chroma"), "--port"]
    with running(command, "/api/v2/heartbeat") as (port, _):
        fill = [python, "-c", FILLS_CHROMA, str(port), str(folder / "keys.npy")]
        yield port, subprocess.run(fill, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def running(command: list[str], alive: str) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """A server and its port, once it answers; ours knows the token of this run."""
    with closing(socket.create_server(("127.0.0.1", 0))) as one:
        port = one.getsockname()[1]
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(TOKEN)
        file.flush()
        more = ["--token-file", file.name] if "serve" in command else []
        process = subprocess.Popen([*command, str(port), *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(600):
                if process.poll() is not None:
                    raise RuntimeError(f"{command} ended with {process.returncode}")
                try:
                    httpx.get(f"http://127.0.0.1:{port}{alive}", timeout=1)
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            yield port, process
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
