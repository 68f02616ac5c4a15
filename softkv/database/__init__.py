"""The one place where store, embedder and maths meet.

Reading order: intake.py (what `add` was given), loading.py, trail.py and resuming.py (items of a file, how far it was
read, and how to go on), columns.py (all items as arrays), carrying.py (what was learned, on its way into another
store), targets.py and evaluating.py, reader.py (everything that reads; lookups are in softkv/asking), summary.py and
backend.py, held_out.py, training.py and guarding.py, indexing.py, begun.py (a build that goes on after a stop),
refining.py, middles.py (whether plans miss rows that are like a query), rehearsing.py (the lists of several stores
together) and proposing.py, reembedding.py, upkeep.py, settling.py and rechecking.py (what a write does for the index),
aside.py (what a stop leaves beside a path), stamping.py and changes.py (everything that changes items), handle.py,
making.py (a store that takes its place when it is done), opening.py (`open`).
"""

from softkv.database.carrying import LearnedNotCarried, import_from
from softkv.database.handle import SoftKV, StoreView
from softkv.database.intake import LooksLikeLabels
from softkv.database.loading import Loaded, RecordsSkipped
from softkv.database.opening import check, open, repair, restore
from softkv.database.summary import Info

__all__ = [
    "Info",
    "LearnedNotCarried",
    "Loaded",
    "LooksLikeLabels",
    "RecordsSkipped",
    "SoftKV",
    "StoreView",
    "check",
    "import_from",
    "open",
    "repair",
    "restore",
]
