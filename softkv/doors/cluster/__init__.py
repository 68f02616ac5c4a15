"""A cluster: one handle over many stores.

`create` makes one, `softkv.open` opens it, and `grow` gives it more shards; `check`, `status` and `repair` look at one
that may be damaged. Public names are looked up on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softkv.doors.cluster.growing import grow as grow
    from softkv.doors.cluster.handle import create as create
    from softkv.doors.cluster.looking import check as check
    from softkv.doors.cluster.looking import repair as repair
    from softkv.doors.cluster.looking import status as status
    from softkv.doors.cluster.making import restore as restore

_HOMES = {
    "create": "handle",
    "grow": "growing",
    "check": "looking",
    "repair": "looking",
    "restore": "making",
    "status": "looking",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'softkv.doors.cluster' has no attribute {name!r}")
    found: object = getattr(import_module(f"softkv.doors.cluster.{_HOMES[name]}"), name)
    return found
