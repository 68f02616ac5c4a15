"""The one place where store, embedder and maths meet.

Reading order: profile.py (what a store remembers), embedding.py (its embedder, when a text needs one), intake.py (what
`add` was given), learned.py and indexed.py (the projection and the index of one commit), view.py (one commit),
columns.py (all its items as arrays), carrying.py (what was learned, on its way into another store), question.py,
asking.py (one lookup over it, by a scan), planes.py, estimating.py, several.py and proposing.py (by an index),
rounding.py (how far a scan can be trusted), targets.py and evaluating.py, reader.py (everything that reads), summary.py
and backend.py, training.py, indexing.py, reembedding.py, upkeep.py, aside.py (what a stop leaves beside a path),
handle.py (everything that changes; `open`), making.py (a store that takes its place when it is done).
"""

from softkv.database.carrying import LearnedNotCarried, import_from, repair
from softkv.database.handle import SoftKV, StoreView, open
from softkv.database.intake import LooksLikeLabels
from softkv.database.summary import Info

__all__ = ["Info", "LearnedNotCarried", "LooksLikeLabels", "SoftKV", "StoreView", "import_from", "open", "repair"]
