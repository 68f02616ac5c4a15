"""Which FAISS builds indexes here, and whether on a GPU: found by the names of what is installed.

Does not import FAISS, which takes a third of a second; looks for GPUs only if FAISS is imported already.
"""

import importlib.util
import sys
from importlib import metadata

from softkv.errors import SoftKVError
from softkv.index.engine import chosen_backend

BUILDS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu11", "faiss-gpu-cu12", "faiss-gpu-cu13")


def backend_name() -> str:
    """What builds indexes, and where, in a few words."""
    found = [f"{name} {version}" for name in BUILDS if (version := _version(name))]
    if len(found) > 1:
        return f"{' and '.join(found)}, of which only one may be installed"
    if not found and importlib.util.find_spec("faiss") is None:
        return "numpy only"
    name = found[0] if found else "faiss of an unknown build"
    return f"{name} on the {_place(name)}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _place(name: str) -> str:
    if "faiss" not in sys.modules:
        return "gpu, where there is one" if "gpu" in name else "cpu"
    try:
        return chosen_backend("auto")
    except SoftKVError:
        return "cpu"
