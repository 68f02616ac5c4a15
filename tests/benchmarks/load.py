"""Requests that are sent over a number of connections, each as soon as the one before is answered, or at a given rate.

A process of its own, started by server.py: it prints one line of JSON with requests a second and latencies. It speaks
just enough HTTP to count answers: a client that parses them would take most of the time of two cores that it shares.

Run: python -m tests.benchmarks.load HOST PORT FILE --connections N --seconds S [--rate R]

FILE is a pickle of requests as bytes, which are sent in turn.
"""

import argparse
import asyncio
import json
import pickle
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path


class Load:
    """What is sent, and how long each answer took."""

    def __init__(self, host: str, port: int, requests: Iterator[bytes]) -> None:
        self._where, self._requests = (host, port), requests
        self.latencies: list[float] = []
        self.refused = 0

    async def until(self, end: float, rate: float | None, connections: int) -> None:
        """Send over so many connections until the end; at a rate, each sends its share of it, whatever comes back."""
        pause = None if rate is None else connections / rate
        await asyncio.gather(*(self._send(end, pause, number, connections) for number in range(connections)))

    async def _send(self, end: float, pause: float | None, number: int, connections: int) -> None:
        reader, writer = await asyncio.open_connection(*self._where)
        due = time.perf_counter() + (pause or 0.0) * number / connections
        while (now := time.perf_counter()) < end:
            if pause is not None:
                await asyncio.sleep(max(0.0, due - now))
            began = due if pause is not None else now  # late requests count from when they were due
            writer.write(next(self._requests))
            status = await _answer(reader)
            self.latencies.append(time.perf_counter() - began)
            self.refused += status != 200
            due += pause or 0.0
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> int:
    """Read one answer; its status."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
    await reader.readexactly(length)
    return int(lines[0].split()[1])


def main() -> None:
    """Send, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float)
    options = parser.parse_args()
    load = Load(options.host, options.port, cycle(pickle.loads(options.file.read_bytes())))
    began = time.perf_counter()
    asyncio.run(load.until(began + options.seconds, options.rate, options.connections))
    took, seen = time.perf_counter() - began, sorted(load.latencies)
    told = {"rate": len(seen) / took, "median": seen[len(seen) // 2], "p99": seen[int(0.99 * len(seen))]}
    print(json.dumps({**told, "refused": load.refused}))


if __name__ == "__main__":
    main()
