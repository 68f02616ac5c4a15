"""Metrics of the server, in the text format of Prometheus, and one line of log for each request.

Labels are names of the server: routes by their template, HTTP methods, statuses. Nothing that a client chooses becomes
a label or a word of the log, so neither grows with what clients send, or shows what they ask.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import Any

from softkv.doors.server.served import Served
from softkv.errors import SoftKVError
from softkv.logs import log_of

LOG = log_of(__name__)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MOMENT = 0.05  # seconds that stores are waited for
STEPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # seconds up to which requests are counted


class Metrics:
    """Counts of requests by method, route and status, of the seconds they took, and of what is in the stores."""

    def __init__(self, stores: Iterable[Served]) -> None:
        self._stores, self._began, self.running = stores, time.time(), 0
        self.asked, self._used = 0, time.monotonic()  # requests with a token that run
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._within: Counter[float] = Counter()
        self._seconds = 0.0
        self._items: dict[str, float] = {}  # by store, of those that answered when they were asked last
        self._looks: dict[str, Future[None]] = {}
        for one in self._stores:
            self._count(one)
        self._executor = ThreadPoolExecutor(max(1, len(self._items)), "softkv-figures")

    async def look(self) -> None:
        """Count the items of the stores; one that is being written to keeps its figure, and is not waited for."""
        for one in self._stores:
            if one.name not in self._looks or self._looks[one.name].done():
                self._looks[one.name] = self._executor.submit(self._count, one)
        if self._looks:
            _, late = await asyncio.wait(list(map(asyncio.wrap_future, self._looks.values())), timeout=MOMENT)
            for look in late:
                look.cancel()  # the count goes on in its thread, for the next request

    def _count(self, served: Served) -> None:
        try:
            self._items[served.name] = float(len(served.now()))
        except SoftKVError:
            self._items.pop(served.name, None)

    def ready(self) -> bool:
        """Whether all stores are open and answer."""
        return len(self._items) == len(list(self._stores))

    def idle(self) -> float:
        """How many seconds ago something was last asked of the stores, or a snapshot or job of theirs was open."""
        if self.asked or any(one.busy for one in self._stores):
            self._used = time.monotonic()
        return time.monotonic() - self._used

    def count(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        """Take one request into account, and log it; status 0 stands for a client that went away first."""
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = scope.get("softkv.route", "none")
        self._requests[method, route, status] += 1
        self._seconds += seconds
        if route.startswith("/v1"):  # not probes, or requests without a token
            self._used = time.monotonic()
        self._within.update([next((step for step in STEPS if seconds <= step), float("inf"))])
        LOG.info("%s %s %d %.1f ms", method, route, status, 1000 * seconds)

    def text(self) -> str:
        """All figures."""
        lines = ["# TYPE softkv_requests_total counter"]
        for (method, route, status), count in sorted(self._requests.items()):
            lines.append(f'softkv_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
        lines.append("# TYPE softkv_request_seconds histogram")
        for step in (*STEPS, float("inf")):
            within = sum(count for other, count in self._within.items() if other <= step)
            lines.append(f'softkv_request_seconds_bucket{{le="{"+Inf" if step > STEPS[-1] else step}"}} {within}')
        lines.append(f"softkv_request_seconds_sum {self._seconds}")
        lines.append(f"softkv_request_seconds_count {self._requests.total()}")
        figures = {"requests_running": self.running, "start_time_seconds": self._began}
        figures |= {f'store_items{{store="{name}"}}': items for name, items in sorted(self._items.items())}
        for family, named in groupby(sorted(figures.items()), lambda one: one[0].partition("{")[0]):
            lines += [f"# TYPE softkv_{family} gauge", *(f"softkv_{name} {figure}" for name, figure in named)]
        return "\n".join([*lines, ""])
