"""A cluster: one handle over many stores.

`create` makes one, `softkv.open` opens it, and `grow` gives it more shards; `check`, `status` and `repair` look at one
that may be damaged. Public names are looked up on first use.
"""

from typing import TYPE_CHECKING

from softkv.lazily import lazily

if TYPE_CHECKING:
    from softkv.doors.cluster.growing import grow as grow
    from softkv.doors.cluster.handle import create as create
    from softkv.doors.cluster.looking import check as check
    from softkv.doors.cluster.looking import repair as repair
    from softkv.doors.cluster.looking import status as status
    from softkv.doors.cluster.making import restore as restore

_HOMES = {
    "create": "softkv.doors.cluster.handle",
    "grow": "softkv.doors.cluster.growing",
    "check": "softkv.doors.cluster.looking",
    "repair": "softkv.doors.cluster.looking",
    "restore": "softkv.doors.cluster.making",
    "status": "softkv.doors.cluster.looking",
}
__getattr__ = lazily(__name__, _HOMES)
