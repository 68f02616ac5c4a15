"""What a benchmark prints above its table: the machine, the versions, the day."""

import os
import platform
import sqlite3
import sys
import time

import numpy as np


def machine() -> str:
    """The machine in one line."""
    versions = f"Python {sys.version.split()[0]}, NumPy {np.__version__}, SQLite {sqlite3.sqlite_version}"
    return f"{time.strftime('%Y-%m-%d')}, {_processor()}, {os.cpu_count()} cores, {platform.system()}, {versions}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        return names[0] if names else platform.machine()
    except OSError:
        return platform.processor() or platform.machine()
