"""`open`: a handle on a local store, on one that is served, or on a cluster of stores.

Also `check`, `repair` and `restore`, which take a path instead of a handle. Only this file knows of other stores than
local ones (handle.py).
"""

import os
from collections.abc import Sequence
from typing import Any, cast

from softkv import storage
from softkv.asking.embedding import AnyEmbedder
from softkv.database import carrying
from softkv.database.handle import SoftKV, open_here
from softkv.errors import InputError, StoreNotFound
from softkv.progress import Progress
from softkv.storage import Backup, Repaired, Report
from softkv.storage.disk.named import HELD, is_bare_url, is_cluster, is_held, is_url
from softkv.storage.protocol.opening import directory_of
from softkv.storage.store import AnyPath


def open(  # noqa: A001 - softkv.open, as in dbm
    path: str | os.PathLike[str],
    mode: str = "c",
    *,
    value: str | None = None,
    compatibility: str | None = None,
    embedder: AnyEmbedder = None,
    temperature: float | None = None,
    force: bool = False,
    wait: float = 0.0,
    token: str | None = None,
    alone: bool = False,
    address: str | None = None,
) -> SoftKV:
    """Open a store, and make it if there is none; or one that is served, by its URL; or a cluster of stores.

    >>> import softkv, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "films.softkv")
    >>> with softkv.open(path) as db:
    ...     added = db.add(["a shepherd looks for treasure", "two boats on a river"], ["The Alchemist", "Upstream"])
    ...     db.nearest("a boy searching for gold").texts[0].text
    'The Alchemist'

    Args:
        path: The directory of the store, or a URL such as http://127.0.0.1:7411/films, of one that is served; or "ray:"
            and the directory of a cluster, to have its shards held by processes of their own (docs/cluster.md).
        mode: "c" to read and write, and make it if need be; "r" to read; "w" to read and write; "n" to start it anew.
        value: What values are: "number", "vector", "label" or "text". Otherwise the first ones tell; texts are "text".
        compatibility: How queries and keys compare. Otherwise by cosine; bare vectors of width 1 by gaussian, since
            cosine sees only the sign of a number, and others among which is a zero vector by dot product.
        embedder: What turns texts into vectors: "static", the name or folder of a model, or a function. Otherwise the
            one the store was made with, or "static".
        temperature: What scores are divided by. Otherwise one is found by rule (see `info`).
        force: Write even on a network file system, where locks and syncs may not hold.
        wait: How many seconds to wait for another process that writes, or for a server; reading waits for none.
        token: What a server is shown; otherwise the variable SOFTKV_TOKEN.
        alone: Have a server answer each question by itself, to the last bit as a local handle would.
        address: Where Ray is to be joined, for "ray:"; otherwise one of this machine is, or one is started.
    """
    if not isinstance(wait, (int, float)) or not wait >= 0:
        raise InputError(f"expected wait as a number of seconds, 0 or more, got {wait!r}.")
    options: dict[str, Any] = {"value": value, "compatibility": compatibility, "temperature": temperature}
    if is_url(path):
        from softkv.doors.remote.handle import connected

        served = connected(str(path), mode, token, embedder=embedder, force=force, wait=wait, alone=alone, **options)
        return cast(SoftKV, served)  # it has the surface of one
    if is_bare_url(path):
        raise StoreNotFound(f"there is no store at {path}. Of one that is served, give the URL: http://{path}")
    if token is not None or alone:
        raise InputError("expected a URL where token or alone is given, since both are for a server. Leave them out.")
    if is_held(path):
        from softkv.doors.cluster.actors import opened

        return opened(
            directory_of(str(path)[len(HELD) :]), mode, address=address, wait=wait, embedder=embedder, **options
        )
    if address is not None:
        raise InputError('expected a path that begins with "ray:" where an address is given. Leave the address out.')
    if is_cluster(directory_of(path)):
        from softkv.doors.cluster.handle import joined

        return joined(directory_of(path), mode, embedder=embedder, force=force, wait=wait, **options)
    return open_here(path, mode, embedder=embedder, force=force, wait=wait, **options)


def check(path: AnyPath, *, at_least: int | None = None) -> Report:
    """Compare everything in a store or a cluster with everything else; one that is before `at_least` is not ok.

    Unlike `check` of a handle, it reports damage for which there can be no handle.
    """
    if is_url(path) or is_held(path):
        with open(path, "r") as db:
            return db.check(at_least=at_least)
    if is_cluster(directory_of(path)):
        from softkv.doors.cluster import looking

        return looking.check(path, at_least=at_least)
    return storage.check(path, at_least=at_least)


def repair(path: AnyPath, new: AnyPath) -> Repaired:
    """Write the good items of the store or the cluster at `path` to a new one, with what it has learned.

    >>> import softkv, tempfile, os
    >>> folder = tempfile.mkdtemp()
    >>> with softkv.open(os.path.join(folder, "old.softkv")) as db:
    ...     db["a large house"] = 2450
    >>> done = softkv.repair(os.path.join(folder, "old.softkv"), os.path.join(folder, "new.softkv"))
    >>> done.saved, done.lost, done.missing
    (1, 0, ())
    """
    if is_cluster(directory_of(path)):
        from softkv.doors.cluster import looking

        return looking.repair(path, new)
    return carrying.repair(path, new)


def restore(
    path: AnyPath,
    target: AnyPath,
    *,
    disks: Sequence[AnyPath] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> Backup:
    """Copy a backup to where nothing is, as a store or a cluster of its own that may be written to.

    `disks` are directories that the shards of a cluster are shared out to; otherwise they lie in its own.
    """
    if is_cluster(directory_of(path)):
        from softkv.doors.cluster import making

        return making.restore(path, target, disks=disks, force=force, progress=progress)
    if disks:
        raise InputError(f"expected disks only for shards of a cluster, and {path} is no backup of one. Name none.")
    return storage.restore(path, target, force=force, progress=progress)
