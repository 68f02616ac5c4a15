"""Note down, after a write, which lists new rows belong to, and how the statistics of the index change.

Done once enough rows were added or deleted, by the handle that wrote them, in a small commit after that of the rows. So
nothing that was acknowledged depends on it; if the process dies in between, lookups read these rows until the next
writer notes them. Lookups need not read rows that are noted.

Does not decide which list a row belongs to (index/late.py).
"""

from collections.abc import Callable

from softkv.asking.indexed import NAME
from softkv.asking.view import View
from softkv.errors import SoftKVError
from softkv.logs import log_of
from softkv.storage import Store

LOG = log_of(__name__)
TOGETHER = 1 << 14  # rows that are read together
MOST = 1 << 17  # rows that are noted after one write, so that a small write does not wait for many rows of others


def settle(store: Store, view: Callable[[], View]) -> None:
    """Note rows that were added or deleted, if they are enough. A failure is logged, since it only costs speed."""
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
    except Exception as error:  # the write itself is done, and must not be reported as failed
        LOG.warning(
            "late rows of %s are not in lists yet: %s", store.path, error, exc_info=not isinstance(error, SoftKVError)
        )
