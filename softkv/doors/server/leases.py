"""Snapshots that clients hold on a server: each for a minute, renewed whenever it is used.

Times are of a monotonic clock. A snapshot that ends while it is in use is closed afterwards. If one that nobody uses
cannot be closed, that is only logged: whoever asks meanwhile has nothing to do with it.

Does not know how clients are told apart: a token is any name of one.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from softkv.database.handle import StoreView
from softkv.errors import Busy, SnapshotExpired, SoftKVError
from softkv.logs import log_of

LOG = log_of(__name__)
SECONDS = 60.0
MOST = 16  # of one token


@dataclass(slots=True, eq=False)
class Lease:
    """A snapshot on loan."""

    name: str
    view: StoreView
    token: str
    ends: float
    users: int = 0


class Leases:
    """The snapshots of one store that clients hold."""

    def __init__(self, snapshot: Callable[[], StoreView], clock: Callable[[], float] = time.monotonic) -> None:
        self._snapshot, self._clock = snapshot, clock
        self._lock = threading.Lock()
        self._held: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, token: str) -> Lease:
        """Take a snapshot of the store; Busy if the token holds as many as it may."""
        self.sweep()
        with self._lock:
            if sum(one.token == token for one in self._held.values()) >= MOST:
                raise Busy(f"you hold {MOST} snapshots, and may hold no more. Close one that is done with.", SECONDS)
            lease = Lease(secrets.token_urlsafe(16), self._snapshot(), token, self._clock() + SECONDS)
            self._held[lease.name] = lease
            return lease

    @contextmanager
    def using(self, name: str, token: str) -> Iterator[StoreView]:
        """A snapshot to read within the block, and for another minute after it."""
        self.sweep()
        with self._lock:
            lease = self._found(name, token)
            lease.users += 1
        try:
            yield lease.view
        finally:
            with self._lock:
                lease.users -= 1
                lease.ends = self._clock() + SECONDS
                done = not lease.users and name not in self._held
            if done:
                lease.view.close()

    def end(self, name: str, token: str) -> None:
        """End a lease; reads that are under way may finish."""
        with self._lock:
            lease = self._found(name, token)
            del self._held[name]
        if not lease.users:
            lease.view.close()

    def sweep(self) -> None:
        """Close what nobody has used for a minute."""
        with self._lock:
            over = [one for one in self._held.values() if not one.users and one.ends <= self._clock()]
            for one in over:
                del self._held[one.name]
        _close(over)

    def close(self) -> None:
        """Close all of them; those in use when they no longer are."""
        with self._lock:
            free = [one for one in self._held.values() if not one.users]
            self._held.clear()
        _close(free)

    def _found(self, name: str, token: str) -> Lease:
        lease = self._held.get(name)
        if lease is None or lease.token != token:  # the name of another client's snapshot is treated as unknown
            raise SnapshotExpired(
                "this snapshot is not there: snapshots last a minute after their last use, and no server keeps them "
                "over a restart. Take a new one."
            )
        return lease


def _close(leases: Iterable[Lease]) -> None:
    """Close all of these snapshots, also where one cannot be."""
    for one in leases:
        try:
            one.view.close()
        except Exception as error:
            exc_info = not isinstance(error, SoftKVError)
            LOG.warning("a snapshot of commit %d could not be closed: %s", one.view.commit, error, exc_info=exc_info)
