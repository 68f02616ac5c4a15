"""The store on disk: arenas of fixed-width rows, a catalog that says which rows exist, one commit protocol.

Reading order: layout.py (what lies where), files.py (durable primitives), arena.py (rows), batch.py (what may enter),
numbers.py (what may lie there), tally.py, deaths.py and labels.py (what every commit keeps up to date), patience.py,
connection.py, tables.py, secret.py and catalog.py, filters.py and conditions.py (what may be asked of payloads),
searching.py (the same in SQL), loading.py and roster.py (which rows exist), matches.py (which of them meet a filter),
locks.py (one writer, pinned readers), threads.py, generation.py (the files of one layout), index_files.py (what was
made from its rows), acknowledged.py (what a catalog must not have lost), committed.py and snapshot.py (reading one
commit), progress.py, batches.py (what was sent before), conflicts.py, writer.py (the commit protocol), place.py,
migrations.py, opening.py, leftovers.py, indexing.py, ordering.py, compaction.py, rebuilding.py, windows.py and
checking.py, store.py (all of it joined) and repair.py.

Does not know about queries, scores or weights.

>>> import tempfile, os
>>> path = os.path.join(tempfile.mkdtemp(), "fruit.softkv")
>>> with Store.open(path, "c") as store:
...     payloads = [{"red": True}, None]
...     added = store.append([[1.0, 0.0], [0.0, 1.0]], [0.5, 2.0], keys=["apple", "pear"], payloads=payloads)
...     store.get("apple").value, store.get("apple").payload, len(store)
(0.5, {'red': True}, 2)
"""

from softkv.storage.batch import Added, Entry
from softkv.storage.checking import Report, check
from softkv.storage.index_files import IndexFile
from softkv.storage.layout import Layout, ValueKind
from softkv.storage.progress import Progress
from softkv.storage.rebuilding import Rebuild
from softkv.storage.repair import Repaired, repair
from softkv.storage.snapshot import Block, Item, Snapshot
from softkv.storage.store import Store

__all__ = [
    "Added",
    "Block",
    "Entry",
    "IndexFile",
    "Item",
    "Layout",
    "Progress",
    "Rebuild",
    "Repaired",
    "Report",
    "Snapshot",
    "Store",
    "ValueKind",
    "check",
    "repair",
]
