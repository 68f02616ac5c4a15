"""The machine on which figures are measured, in a line: processor, cores, threads, versions, day."""

import os
import platform
import sqlite3
import sys
import time


def machine() -> str:
    """The machine in one line."""
    import numpy as np

    versions = f"Python {sys.version.split()[0]}, NumPy {np.__version__}, SQLite {sqlite3.sqlite_version}"
    return f"{time.strftime('%Y-%m-%d')}, {_processor()}, {os.cpu_count()} cores, {platform.system()}, {versions}"


def threads() -> int:
    """How many threads NumPy multiplies matrices with: as the environment says, or else one for each core."""
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        given = os.environ.get(name, "")
        if given.isdecimal() and int(given) > 0:
            return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.machine()
    except OSError:
        return platform.processor() or platform.machine()
