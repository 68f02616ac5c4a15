"""What a fresh process pays: opening a store and asking it once, and the memory that lookups take.

Each is a process of its own, and what it imports does not count. Files are in the page cache, for everybody: all have
been read once before.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from softkv.index.engine import by_blas

from . import index_data
from .index_contests import TOP, shown, times
from .index_data import TEMPERATURE, DataSet, store_of
from .index_report import Bench, at_most

LISTS, PROBES, ROUNDS = 1024, 16, 5
MEGABYTES = 250

# What `softkv.open` needs is imported with it.
OURS = """
import sys, time
import numpy as np
import softkv
softkv.open
path, query, temperature = sys.argv[1], np.load(sys.argv[2])[0], float(sys.argv[3])
start = time.perf_counter()
db = softkv.open(path, "r")
value = db.lookup(query, temperature=temperature).value
print(time.perf_counter() - start)
"""

THEIRS = """
import sys, time
import faiss
import numpy as np
query, probes, top = np.load(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
faiss.omp_set_num_threads(int(sys.argv[6]))
start = time.perf_counter()
keys = np.load(sys.argv[1])
index = faiss.read_index(sys.argv[2])
index.nprobe = probes
found = index.search(query, top)
print(time.perf_counter() - start)
"""

MEMORY = """
import json, sys, threading
import numpy as np
import softkv
softkv.open
path, queries, tolerance = sys.argv[1], np.load(sys.argv[2]), float(sys.argv[4])

def anonymous():
    with open("/proc/self/status") as status:
        return next(float(line.split()[1]) for line in status if line.startswith("RssAnon"))

peak, done = 0.0, threading.Event()

def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, anonymous())

watching = threading.Thread(target=watch)
watching.start()
before = anonymous()
db = softkv.open(path, "r")
for query in queries:
    value = db.lookup(query, temperature=float(sys.argv[3]), tolerance=tolerance).value
after = anonymous()
done.set()
watching.join()
print(json.dumps([(after - before) / 1e3, (max(peak, after) - before) / 1e3]))
"""


def opening(bench: Bench) -> None:
    """A store opened and asked once, beside its keys loaded and an index of FAISS asked once."""
    data = index_data.mixture(bench)
    ours, theirs = store_of(bench, data), _index_file(bench, data)
    bench.begin(f"Opening: {data.count:,} × {index_data.WIDTH}, in fresh processes, after their imports")
    with tempfile.TemporaryDirectory() as folder:
        query = Path(folder) / "query.npy"
        np.save(query, data.items.queries[:1])
        keys, settings = bench.folder / data.name / "keys.npy", (PROBES, TOP, bench.threads)
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(ROUNDS + 1):
            seconds["ours"].append(float(_printed(OURS, ours, query, TEMPERATURE)))
            seconds["theirs"].append(float(_printed(THEIRS, keys, theirs, query, *settings)))
    first, other = (statistics.median(taken[1:]) for taken in seconds.values())
    against = f"np.load of the keys, faiss.read_index, search, {shown(other)}"
    what = f"open and look up once, {shown(first)}"
    bench.row(what, times(first / other), against, at_most(1 / 8, "1/8"), first / other)


def memory(bench: Bench) -> None:
    """What lookups take beyond the imports, of memory that is not the files themselves."""
    data = index_data.mixture(bench)
    path = store_of(bench, data)
    bench.begin(
        f"Memory: {data.count:,} × {index_data.WIDTH}, anonymous, above the imports",
        "Looked at every millisecond while a fresh process opens the store and asks 20 queries, one by one.",
    )
    with tempfile.TemporaryDirectory() as folder:
        queries = Path(folder) / "queries.npy"
        np.save(queries, data.items.queries[:20])
        for what, tolerance in (("lookups by the index", 0.01), ("lookups by a scan", 0.0)):
            after, peak = json.loads(_printed(MEMORY, path, queries, TEMPERATURE, tolerance))
            goal = at_most(MEGABYTES, f"{MEGABYTES} MB")
            bench.row(what, f"{peak:.0f} MB at the peak", f"{after:.0f} MB afterwards", goal, peak)


def _printed(script: str, *arguments: object) -> str:
    """What a script prints in a process of its own."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _index_file(bench: Bench, data: DataSet) -> Path:
    """An index of FAISS over the same keys, with lists and the keys in them."""
    import faiss

    path = bench.folder / f"{data.name}.ivf"
    if not path.exists():
        keys, count = np.array(data.items.keys), bench.sized(LISTS, least=8)
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(keys.shape[1]), keys.shape[1], count, faiss.METRIC_INNER_PRODUCT)
        with by_blas("an index to compare with"):
            index.train(keys[:: max(1, len(keys) // (64 * count))])
            index.add(keys)
        faiss.write_index(index, str(path))
    return path
