"""The store on disk: arenas of fixed-width rows, a catalog that says which rows exist, one commit protocol.

Reading order: layout.py (what lies where) and batch.py (what may enter), then the rooms, each of which stands on those
before it: disk/ (bytes made durable), filters/ (what is asked of payloads and values), catalog/ (what SQLite keeps),
protocol/ (how one commit is read and the next one made); threads.py and closing.py; store.py (all of it
joined), repairing.py.

Public names are looked up on first use, so that asking whether a store is served loads nothing else.

Does not know about queries, scores or weights.

>>> import tempfile, os
>>> from softkv.storage import Store
>>> path = os.path.join(tempfile.mkdtemp(), "fruit.softkv")
>>> with Store.open(path, "c") as store:
...     payloads = [{"red": True}, None]
...     added = store.append([[1.0, 0.0], [0.0, 1.0]], [0.5, 2.0], keys=["apple", "pear"], payloads=payloads)
...     store.get("apple").value, store.get("apple").payload, len(store)
(0.5, {'red': True}, 2)
"""

from typing import TYPE_CHECKING

from softkv.lazily import lazily

if TYPE_CHECKING:
    from softkv.kinds import ValueKind as ValueKind
    from softkv.storage.batch import Added as Added
    from softkv.storage.catalog.begun import Begun as Begun
    from softkv.storage.layout import Layout as Layout
    from softkv.storage.protocol.backup import Backup as Backup
    from softkv.storage.protocol.backup import backup as backup
    from softkv.storage.protocol.backup import restore as restore
    from softkv.storage.protocol.checking import Report as Report
    from softkv.storage.protocol.checking import check as check
    from softkv.storage.protocol.index_files import IndexFile as IndexFile
    from softkv.storage.protocol.item import Block as Block
    from softkv.storage.protocol.item import Item as Item
    from softkv.storage.protocol.rebuilding import Rebuild as Rebuild
    from softkv.storage.protocol.snapshot import Snapshot as Snapshot
    from softkv.storage.repairing import Repaired as Repaired
    from softkv.storage.repairing import repair as repair
    from softkv.storage.store import Store as Store

_HOMES = {
    "Added": "softkv.storage.batch",
    "Backup": "softkv.storage.protocol.backup",
    "Begun": "softkv.storage.catalog.begun",
    "Block": "softkv.storage.protocol.item",
    "IndexFile": "softkv.storage.protocol.index_files",
    "Item": "softkv.storage.protocol.item",
    "Layout": "softkv.storage.layout",
    "Rebuild": "softkv.storage.protocol.rebuilding",
    "Repaired": "softkv.storage.repairing",
    "Report": "softkv.storage.protocol.checking",
    "Snapshot": "softkv.storage.protocol.snapshot",
    "Store": "softkv.storage.store",
    "ValueKind": "softkv.kinds",
    "backup": "softkv.storage.protocol.backup",
    "check": "softkv.storage.protocol.checking",
    "repair": "softkv.storage.repairing",
    "restore": "softkv.storage.protocol.backup",
}
__getattr__ = lazily(__name__, _HOMES)
