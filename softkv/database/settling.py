"""Note down, after a write, which lists new rows belong to, and how the statistics of the index change.

Done once enough rows came or died, by whoever wrote them, in a small commit of its own after that of the rows: so what
was acknowledged never depends on it, and a process that dies in between leaves rows that lookups read, and the next
writer notes. Nothing is read of rows that are noted.

Does not decide which list a row belongs to (index/late.py).
"""

from collections.abc import Callable

from softkv.asking.indexed import NAME
from softkv.asking.view import View
from softkv.errors import SoftKVError
from softkv.logs import log_of
from softkv.storage import Store

LOG = log_of(__name__)
TOGETHER = 1 << 14  # rows that are looked at together
MOST = 1 << 17  # rows that are noted after one write: whoever wrote few does not wait for those of many others


def settle(store: Store, view: Callable[[], View]) -> None:
    """Note what came and died, if there is an index, and it is enough. A failure is logged: it costs speed alone."""
    try:
        for _ in range(0, MOST, TOGETHER):
            seen = view()
            change = seen.findings.indexes.change(seen.snapshot, TOGETHER)
            if change is None:
                return
            written, replaced = change
            number = store.put_derived(NAME, written.encoded(), instead_of=replaced)
            seen.findings.indexes.noted(number, written)
            LOG.info("noted the lists of %d rows of %s", len(written.owners), store.path)
    except Exception as error:  # whatever it is, the write is done, and must not look as if it were not
        LOG.warning(
            "late rows of %s are not in lists yet: %s", store.path, error, exc_info=not isinstance(error, SoftKVError)
        )
