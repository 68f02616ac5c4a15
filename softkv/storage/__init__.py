"""The store on disk: arenas of fixed-width rows, a catalog that says which rows exist, one commit protocol.

Reading order: layout.py (what lies where) and batch.py (what may enter), then the rooms, each of which stands on those
before it: disk/ (bytes made durable), filters/ (what is asked of payloads and values), catalog/ (what SQLite keeps),
protocol/ (how one commit is read and the next one made); threads.py; store.py (all of it joined), repair.py.

Does not know about queries, scores or weights.

>>> import tempfile, os
>>> path = os.path.join(tempfile.mkdtemp(), "fruit.softkv")
>>> with Store.open(path, "c") as store:
...     payloads = [{"red": True}, None]
...     added = store.append([[1.0, 0.0], [0.0, 1.0]], [0.5, 2.0], keys=["apple", "pear"], payloads=payloads)
...     store.get("apple").value, store.get("apple").payload, len(store)
(0.5, {'red': True}, 2)
"""

from softkv.kinds import ValueKind
from softkv.storage.batch import Added, Entry
from softkv.storage.catalog.begun import Begun
from softkv.storage.layout import Layout
from softkv.storage.protocol.backup import Backup, backup, restore
from softkv.storage.protocol.checking import Report, check
from softkv.storage.protocol.index_files import IndexFile
from softkv.storage.protocol.item import Block, Item
from softkv.storage.protocol.rebuilding import Rebuild
from softkv.storage.protocol.snapshot import Snapshot
from softkv.storage.repair import Repaired, repair
from softkv.storage.store import Store

__all__ = [
    "Added",
    "Backup",
    "Begun",
    "Block",
    "Entry",
    "IndexFile",
    "Item",
    "Layout",
    "Rebuild",
    "Repaired",
    "Report",
    "Snapshot",
    "Store",
    "ValueKind",
    "backup",
    "check",
    "repair",
    "restore",
]
